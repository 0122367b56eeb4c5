"""What can go wrong from outside: a sentence, a hint, an exit code, and no stack trace; and the next one finds all in order."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.disk import fill, small_disk
from tests.stack import NoetlCommand, inspect_home, write_playbook

NOBODY = "http://127.0.0.1:9"


def complains(noetl: NoetlCommand, code: int, words: str, *arguments: object) -> None:
    done = noetl(*arguments)
    assert done.code == code, done.err
    assert done.out == ""
    assert words in done.err
    assert done.err.startswith("error: ")
    assert "Traceback" not in done.err


def is_sound(noetl: NoetlCommand) -> None:
    assert noetl.json("run", "examples/hello.yaml")["result"] == "HELLO, WORLD!"
    assert noetl.json("exec", "get", "@latest")["status"] == "completed"


@pytest.fixture
def sound_home(noetl: NoetlCommand) -> Iterator[None]:
    """The home of the test works as before."""
    yield
    is_sound(noetl)


@pytest.mark.usefixtures("sound_home")
def test_what_is_not_there(noetl: NoetlCommand) -> None:
    complains(noetl, 2, "no file and no playbook", "run", "no/such/path")
    complains(noetl, 2, "did you mean examples/hello.yaml", "run", "examples/helo.yaml")
    complains(noetl, 2, "no execution 42", "exec", "get", "42")
    complains(noetl, 2, "is not an execution id", "exec", "get", "latest")
    complains(noetl, 2, "there is no execution yet", "exec", "get", "@latest")
    complains(noetl, 2, "not an execution id", "exec", "list", "--before", "xyz")


def test_an_unreachable_server(noetl: NoetlCommand) -> None:
    away = noetl.with_env(NOETL_SERVER_URL=NOBODY)
    complains(away, 1, "no server answers", "run", "examples/hello.yaml")
    complains(away, 1, "noetl server start", "exec", "list")


@pytest.mark.usefixtures("sound_home")
def test_an_unreachable_database(noetl: NoetlCommand) -> None:
    away = noetl.with_env(NOETL_DB_URL="postgresql://nobody@127.0.0.1:9/none")
    complains(away, 1, "no database answers", "run", "examples/hello.yaml")


@pytest.mark.usefixtures("sound_home")
def test_a_payload_of_the_wrong_type(noetl: NoetlCommand, tmp_path: Path) -> None:
    payload = tmp_path / "payload.yaml"
    for content in ("[1, 2]", "just text", "a: [unclosed"):
        payload.write_text(content)
        complains(noetl, 2, "payload.yaml", "run", "examples/hello.yaml", "--payload", payload)
    complains(noetl, 2, "--set 'name'", "run", "examples/hello.yaml", "--set", "name")


@pytest.mark.usefixtures("sound_home")
def test_a_port_that_is_in_use(noetl: NoetlCommand) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        for command in ("server", "start"), ("dev", "examples"):
            complains(noetl, 2, f"cannot listen on 127.0.0.1:{port}", *command, "--port", port)


def test_a_home_that_cannot_be_used(noetl: NoetlCommand, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    complains(
        NoetlCommand(tmp_path / "file" / "home"),
        2,
        "a file is in the way",
        "run",
        "examples/hello.yaml",
    )
    complains(NoetlCommand(Path("/proc/none")), 2, "set NOETL_HOME", "run", "examples/hello.yaml")


def test_a_setting_that_makes_no_sense(noetl: NoetlCommand) -> None:
    complains(
        noetl.with_env(NOETL_WORKER_SLOTS="many"),
        2,
        "NOETL_WORKER_SLOTS",
        "run",
        "examples/hello.yaml",
    )
    complains(
        noetl.with_env(NOETL_TLS_CERT="cert.pem"),
        2,
        "NOETL_TLS_CERT and NOETL_TLS_KEY belong together",
        "server",
        "start",
    )


# It fills the disk once: the next command goes on with what it leaves unfinished.
FILLS = """\
  - step: fill
    tool:
      kind: python
      code: |
        try:
            with open(%r, "xb", buffering=0) as file:
                while True:
                    file.write(bytes(4096))
        except OSError as error:
            result = str(error)
    next: each
  - step: each
    loop: {in: "{{ range(40) | list }}", iterator: n, spec: {mode: parallel, max_in_flight: 4}}
    tool: {kind: python, input: {n: "{{ n }}"}, code: "result = [n, 'x' * 500000]"}
"""


def test_a_disk_that_is_too_small_for_a_home(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 24) as disk:
        complains(NoetlCommand(disk / "home"), 1, "is full", "run", "examples/hello.yaml")
        assert [path.name for path in (disk / "home").iterdir()] == ["postgres.lock"]


def test_a_disk_that_is_full(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 220) as disk:
        noetl, filler = NoetlCommand(disk / "home"), disk / "filler"
        is_sound(noetl)
        fill(filler)
        for command in ("run", "examples/hello.yaml"), ("exec", "list"):
            complains(noetl, 1, "No space left on device", *command)
        filler.unlink()
        is_sound(noetl)
        inspect_home(noetl.home)


@pytest.mark.long  # it waits for a while whether somebody makes space
def test_a_disk_that_becomes_full(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 220) as disk:
        noetl, filler = NoetlCommand(disk / "home"), disk / "filler"
        is_sound(noetl)
        done = noetl("run", write_playbook(tmp_path, "fills", FILLS % str(filler)))
        assert done.code == 1
        assert "no space left" in done.out + done.err
        assert "Traceback" not in done.err
        filler.write_bytes(b"")
        is_sound(noetl)
        inspect_home(noetl.home)
