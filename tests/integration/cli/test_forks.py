"""Tests start commands as forks of a process that has loaded them: a fork behaves as a process that was started."""

import signal
from pathlib import Path

import pytest

from tests.stack import NoetlCommand
from tests.waiting import until

WAITS = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: waits}
workflow:
  - step: hold
    tool:
      kind: python
      input: {file: "{{ workload.file }}"}
      code: |
        import threading
        open(file, "w").close()
        threading.Event().wait()
"""


@pytest.mark.parametrize(
    "arguments",
    [("--help",), ("exec", "--help"), ("validate", "examples/hello.yaml"), ("validate", "nowhere.yaml"), ("nonsense",)],
)  # fmt: skip
def test_a_fork_says_what_a_new_process_says(noetl: NoetlCommand, arguments: tuple[str]) -> None:
    forked = noetl(*arguments)
    started = noetl.wait(noetl.start_python("-m", "noetl", *arguments))
    assert forked == started


def test_a_fork_has_the_environment_that_it_is_given(noetl: NoetlCommand) -> None:
    debug = noetl.and_env(NOETL_DB_URL="postgresql://nobody@127.0.0.1:1/none")
    assert debug("exec", "list").code != 0
    assert noetl("exec", "list").code == 0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_fork_that_gets_a_signal_ends_as_a_new_process_does(
    noetl: NoetlCommand, tmp_path: Path, number: signal.Signals
) -> None:
    file = tmp_path / "waits.yaml"
    file.write_text(WAITS)
    codes = []
    for how in ("forked", "started"):
        begun = tmp_path / how
        arguments = ("run", "--memory", file, "--set", f"file={begun}")
        if how == "forked":
            process = noetl.start(*arguments)
        else:
            process = noetl.start_python("-m", "noetl", *arguments)
        until(begun.exists)
        process.send_signal(number)
        codes.append(noetl.wait(process).code)
    forked, started = codes
    assert forked == started
    assert forked != 0
