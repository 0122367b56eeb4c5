"""What commands say when no server answers, no server runs, or nobody can be a server at that address."""

import signal
from pathlib import Path
from typing import Any

import pytest

from tests.stack import CommandOutput, NoetlCommand, run_stack, write_playbook
from tests.waiting import until

NOBODY = "http://127.0.0.1:9"
WAITS = "  - step: ask\n    tool: {kind: wait, signal: go}\n"


def check_error(done: CommandOutput, code: int, *words: str) -> None:
    assert (done.code, done.out) == (code, ""), done.err
    assert all(word in done.err for word in words), done.err
    assert "bug" not in done.err


def find_check(noetl: NoetlCommand, check: str, code: int = 0) -> Any:
    (found,) = [finding for finding in noetl.json("doctor", code=code) if finding["check"] == check]
    return found


def test_doctor_names_the_address_at_which_no_server_answers(noetl: NoetlCommand) -> None:
    away = noetl.with_env(NOETL_SERVER_URL=NOBODY)
    (found,) = away.json("doctor", code=1)
    assert (found["check"], found["status"]) == ("reach", "error")
    assert found["message"] == f"no server answers at {NOBODY}"
    assert "noetl server start --port 9" in found["do"]
    assert "noetl dev --port 9" in found["do"]
    shown = away("doctor")
    assert (shown.code, shown.err) == (1, "")
    assert f"no server answers at {NOBODY}" in shown.out


def test_doctor_says_what_goes_on_with_executions_that_no_server_runs(
    noetl: NoetlCommand, tmp_path: Path
) -> None:
    assert find_check(noetl, "server")["message"] == "none runs, and nothing needs one"
    hasty = noetl.with_env(NOETL_SHARD_LEASE_SEC="1")
    running = hasty.start("run", write_playbook(tmp_path, "waits", WAITS), "--json")
    until(lambda: noetl.json("exec", "list", "--waiting"))
    running.send_signal(signal.SIGKILL)
    noetl.wait(running)
    until(lambda: find_check(noetl, "server")["status"] == "warn")
    found = find_check(noetl, "server")
    execution_id = noetl.json("exec", "get", "@latest")["execution_id"]
    assert f"1 execution(s) have not ended, and no server runs ({execution_id})" in found["message"]
    assert "noetl dev" in found["do"]
    assert f"noetl exec cancel {execution_id}" in found["do"]
    assert noetl("exec", "pause", execution_id).code == 0
    for change in ("signal", execution_id, "go"), ("resume", execution_id):
        told = noetl("exec", *change).err
        assert f"warning: no server runs, so execution {execution_id} stays as it is" in told
        assert "noetl dev goes on with it" in told
    assert noetl("exec", "cancel", execution_id).code == 0


def test_the_page_on_which_to_answer_is_opened_by_a_command(
    noetl: NoetlCommand, tmp_path: Path
) -> None:
    running = noetl.start("run", write_playbook(tmp_path, "waits", WAITS), "--json")
    assert running.stderr is not None
    told = iter(running.stderr)
    assert next(told).startswith("step ask waits for the signal go: ")
    page, _, execution_id = next(told).strip().rpartition(" ")
    assert page.startswith("in a browser: ")
    assert page.endswith("noetl ui")
    assert noetl("exec", "cancel", execution_id).code == 0
    ended = noetl.wait(running).json
    assert (ended["execution_id"], ended["status"]) == (execution_id, "cancelled")


@pytest.mark.parametrize("url", ["nope", "http://", "ftp://127.0.0.1", "http://127.0.0.1:99999"])
def test_an_address_that_can_be_none_is_refused(noetl: NoetlCommand, url: str) -> None:
    wrong = noetl.with_env(NOETL_SERVER_URL=url)
    for command in ("ui",), ("exec", "list"), ("doctor",), ("worker", "start"):
        check_error(wrong(*command), 2, f"NOETL_SERVER_URL: {url!r} is not the address of a server")


def test_the_page_of_a_server_that_does_not_answer_is_not_opened(noetl: NoetlCommand) -> None:
    away = noetl.with_env(NOETL_SERVER_URL=NOBODY)
    for wanted in (), ("@latest",), ("123",):
        check_error(away("ui", *wanted), 1, f"no server answers at {NOBODY}")


def test_the_page_of_an_execution_that_there_is_not_is_refused(
    noetl: NoetlCommand, free_port: int
) -> None:
    for wrong in "nope", "0", "9" * 19:
        check_error(noetl("ui", wrong), 2, f"{wrong!r} is not an execution id")
    alone = noetl("ui", "123", "--port", free_port)  # starts a server to look for it
    assert alone.code == 2, alone.err
    assert "error: no execution 123" in alone.err
    with run_stack(noetl) as stack:
        check_error(stack.client("ui", "123"), 2, "no execution 123")
