"""What can go wrong from outside: a sentence, a hint, an exit code, and no stack trace."""

from pathlib import Path

import pytest

from tests.integration.cli.conftest import Noetl

NOBODY = "http://127.0.0.1:9"


def complains(noetl: Noetl, code: int, words: str, *arguments: object) -> None:
    done = noetl(*arguments)
    assert done.code == code, done.err
    assert done.out == ""
    assert words in done.err
    assert done.err.startswith("error: ")
    assert "Traceback" not in done.err


def test_an_unreachable_server(noetl: Noetl) -> None:
    away = noetl.with_env(NOETL_SERVER_URL=NOBODY)
    complains(away, 1, "no server answers", "run", "examples/hello.yaml")
    complains(away, 1, "noetl server start", "exec", "list")


def test_an_unreachable_database(noetl: Noetl) -> None:
    away = noetl.with_env(NOETL_DB_URL="postgresql://nobody@127.0.0.1:9/none")
    complains(away, 1, "no database answers", "run", "examples/hello.yaml")


def test_what_is_not_there(noetl: Noetl) -> None:
    complains(noetl, 2, "no file and no playbook", "run", "no/such/path")
    complains(noetl, 2, "did you mean examples/hello.yaml", "run", "examples/helo.yaml")
    complains(noetl, 2, "no execution 42", "exec", "get", "42")
    complains(noetl, 2, "is not an execution id", "exec", "get", "latest")
    complains(noetl, 2, "there is no execution yet", "exec", "get", "@latest")


@pytest.mark.parametrize("content", ["[1, 2]", "just text", "a: [unclosed"])
def test_a_payload_of_the_wrong_type(noetl: Noetl, tmp_path: Path, content: str) -> None:
    payload = tmp_path / "payload.yaml"
    payload.write_text(content)
    complains(noetl, 2, "payload.yaml", "run", "examples/hello.yaml", "--payload", payload)


def test_a_home_that_cannot_be_used(noetl: Noetl, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    complains(Noetl(tmp_path / "file" / "home"), 2, "a file is in the way", "run", "examples/hello.yaml")


def test_a_setting_that_makes_no_sense(noetl: Noetl) -> None:
    complains(noetl.with_env(NOETL_WORKER_SLOTS="many"), 2, "NOETL_WORKER_SLOTS", "run", "examples/hello.yaml")
    complains(noetl, 2, "will not listen on 0.0.0.0", "server", "start", "--host", "0.0.0.0")
