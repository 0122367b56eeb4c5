"""An execution that waits for a person says so, with the commands and the page that answer it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.stack import NoetlCommand, wait_until_ready, write_playbook
from tests.stack.forking import RunningCommand
from tests.waiting import until

ASKS = """\
  - step: ask
    tool: {kind: wait, approval: {amount: 7}}
    next: more
  - step: more
    tool: {kind: wait, signal: go on}
"""


@pytest.fixture(scope="module")
def dev(noetl: NoetlCommand, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NoetlCommand]:
    """Commands that ask a `noetl dev`, which has its worker in its own process."""
    folder = tmp_path_factory.mktemp("playbooks")
    write_playbook(folder, "asks", ASKS)
    with noetl.keep_running("dev", folder, "--port", 0) as process:
        assert process.stdout is not None
        url = next(iter(process.stdout)).partition("NOETL_SERVER_URL=")[2].strip()
        wait_until_ready(url)
        yield noetl.with_env(NOETL_SERVER_URL=url)


def read_line(process: RunningCommand, words: str) -> str:
    """The first line with these words that the command writes on stderr."""
    assert process.stderr is not None
    for line in process.stderr:
        if words in line:
            return str(line)
    raise AssertionError(f"it has ended without {words!r}")


def test_run_says_what_waits_and_how_to_answer(dev: NoetlCommand) -> None:
    running = dev.start("run", "asks", "--json")
    asked = read_line(running, "waits for an approval")
    assert "step ask waits for an approval (amount: 7): " in asked
    until(lambda: dev.json("exec", "list", "--waiting"))  # its row follows its events
    execution_id = dev.json("exec", "get", "@latest")["execution_id"]
    assert f"noetl exec approve {execution_id} ask gives it" in asked
    assert f"noetl exec reject {execution_id} ask refuses it" in asked
    page = f"{dev.settings['NOETL_SERVER_URL']}/executions/{execution_id}"
    assert read_line(running, "in a browser") == f"in a browser: {page}\n"
    check_wait(dev, "ask", "approval", asked.strip(), page)

    assert dev("exec", "approve", execution_id, "ask").code == 0
    asked = read_line(running, "waits for the signal")
    assert asked.startswith("step more waits for the signal go on: ")
    assert f"noetl signal {execution_id} 'go on' sends it" in asked
    check_wait(dev, "more", "signal", asked.strip(), page)

    assert dev("signal", execution_id, "go on").code == 0
    done = dev.wait(running)
    assert (done.code, done.json["status"]) == (0, "completed")
    assert "no worker" not in done.err
    assert dev.json("exec", "get", execution_id)["waits"] == []
    assert "waits" not in dev("exec", "get", execution_id).out


def check_wait(dev: NoetlCommand, step: str, reason: str, sentence: str, page: str) -> None:
    """`exec get` says the same."""
    (wait,) = dev.json("exec", "get", "@latest")["waits"]
    assert (wait["step"], wait["reason"]) == (step, reason)
    shown = dev("exec", "get", "@latest").out
    assert f"waits      {sentence}\n           in a browser: {page}\n" in shown


def test_doctor_counts_the_worker_of_dev(dev: NoetlCommand) -> None:
    def has_worker() -> bool:
        found = {finding["check"]: finding["message"] for finding in dev.json("doctor")}
        return bool(found["queue"] == "0 queued, 1 worker(s)")

    until(has_worker)


def test_nobody_can_answer_an_execution_in_memory(noetl: NoetlCommand, tmp_path: Path) -> None:
    running = noetl.start("run", "--memory", write_playbook(tmp_path, "asks", ASKS))
    assert "nobody can answer with --memory" in read_line(running, "waits for an approval")
    running.terminate()
    assert noetl.wait(running).code == 1
