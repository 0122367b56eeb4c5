"""Slips of the hand and of the mind: nothing is found in silence, and what was asked for is said as it is then."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import psycopg
import pytest

from noetl.embedded import EmbeddedPostgres
from tests.stack import CommandOutput, NoetlCommand, run_stack, write_playbook
from tests.waiting import until

WAITS = """\
  - step: ask
    tool: {kind: wait, signal: go}
    next: bad
  - step: bad
    tool: {kind: python, code: 'print("here"); raise ValueError("no such luck")'}
"""


@pytest.fixture(scope="module")
def client(noetl: NoetlCommand) -> Iterator[NoetlCommand]:
    with run_stack(noetl, workers=1, slots=2) as stack:
        yield stack.client


@pytest.fixture
def waiting(client: NoetlCommand, tmp_path: Path) -> str:
    """An execution that waits in its first step for the signal `go`."""
    client.json("catalog", "register", write_playbook(tmp_path, "asks", WAITS))
    started = httpx.post(
        f"{client.settings['NOETL_SERVER_URL']}/api/execute",
        json={"path": "asks"},
        headers=client.token_header,
        trust_env=False,
    )
    execution_id = str(started.json()["execution_id"])
    until(lambda: client.json("exec", "explain", execution_id, "ask")["verdict"] == "waiting")
    return execution_id


@pytest.fixture
def failed_execution(client: NoetlCommand, waiting: str) -> str:
    """One that has failed."""
    client.json("exec", "signal", waiting, "go")
    until(lambda: client.json("exec", "get", waiting)["status"] == "failed")
    return waiting


def check_refusal(done: CommandOutput, code: int, *words: str) -> None:
    assert (done.code, done.out) == (code, ""), done.err
    assert all(word in done.err for word in words), done.err


def test_a_status_that_there_is_not(client: NoetlCommand) -> None:
    check_refusal(
        client("exec", "list", "--status", "runing"), 2, "runing", "running", "quarantined"
    )
    url = client.settings["NOETL_SERVER_URL"]
    answer = httpx.get(
        f"{url}/api/executions",
        params={"status": "runing"},
        headers=client.token_header,
        trust_env=False,
    )
    assert (answer.status_code, answer.json()["code"]) == (422, "INVALID_INPUT")


def test_a_type_of_event_that_there_is_not(
    client: NoetlCommand, noetl: NoetlCommand, waiting: str
) -> None:
    for each in client, noetl:
        wrong = each("exec", "events", waiting, "--type", "step.exti")
        check_refusal(wrong, 2, "'step.exti'", "did you mean step.exit?", "playbook.completed")
        check_refusal(each("exec", "events", waiting, "--type", "nope"), 2, "'nope'", "step.enter")


def test_children_of_an_execution_that_there_is_not(
    client: NoetlCommand, noetl: NoetlCommand
) -> None:
    for each in client, noetl:
        check_refusal(each("exec", "list", "--parent", "99"), 2, "no execution 99")
        check_refusal(each("exec", "list", "--parent", "x"), 2, "'x' is not an execution id")


def test_more_rows_than_a_list_can_have(client: NoetlCommand) -> None:
    for given in "501", "0", "many":
        wrong = client("exec", "list", "-n", given)
        check_refusal(wrong, 2, f"'--limit' / '-n': '{given}' is not a whole number from 1 to 500")


def test_a_hint_is_a_command_here_and_a_route_there(client: NoetlCommand) -> None:
    done = client("exec", "get", "99")
    check_refusal(done, 2, "noetl exec list shows those there are")
    assert "/api/" not in done.err
    url = client.settings["NOETL_SERVER_URL"]
    answer = httpx.get(f"{url}/api/executions/99", headers=client.token_header, trust_env=False)
    assert answer.json()["routes"] == ["GET /api/executions"]


def test_a_refused_request_is_explained_in_plain_words(
    client: NoetlCommand, failed_execution: str
) -> None:
    long = "x" * 201
    done = client("exec", "list", "--search", long)
    check_refusal(done, 2, "the searched text must have at most 200 characters")
    done = client("exec", "explain", failed_execution, long)
    check_refusal(done, 2, "step must have at most 200 characters")
    done = client("catalog", "get", "asks", "--version", 1 << 40)
    check_refusal(done, 2, "version must be at most 2147483648")
    done = client("exec", "items", failed_execution, "bad")
    check_refusal(done, 2, "is no loop", f"noetl result show {failed_execution} bad")


def test_a_step_that_there_is_not(client: NoetlCommand, failed_execution: str) -> None:
    for more in (), ("--follow",):
        check_refusal(
            client("exec", "logs", failed_execution, "--step", "bda", *more),
            2,
            "no step 'bda'",
            "ask, bad",
        )
    assert client.json("exec", "logs", failed_execution, "--step", "bad")["line"] == "here"
    assert client("exec", "logs", failed_execution, "--step", "ask").out == "nothing was printed\n"


def test_a_signal_that_nothing_waits_for_is_sent_with_a_warning(
    client: NoetlCommand, waiting: str
) -> None:
    done = client("exec", "signal", waiting, "og")
    assert (done.code, done.out) == (0, f"signal og sent to execution {waiting}\n")
    assert done.err == "warning: no step of asks waits for the signal 'og'; it waits for go\n"
    assert client("exec", "signal", waiting, "go").err == ""


def test_an_approval_that_nothing_waits_for_is_kept_with_a_warning(
    client: NoetlCommand, waiting: str
) -> None:
    done = client("exec", "approve", waiting, "bad", "--by", "ada")
    assert (done.code, done.out) == (0, f"step bad of execution {waiting} is approved by ada\n")
    assert done.err == (
        "warning: step bad waits for no approval now; this one is kept until it does\n"
    )


def test_a_name_that_is_empty(client: NoetlCommand, waiting: str) -> None:
    for command in "signal", "approve", "explain":
        check_refusal(client("exec", command, waiting, ""), 2, "it is empty")


def test_an_approval_that_does_not_say_true_or_false_is_refused(
    client: NoetlCommand, waiting: str
) -> None:
    done = client("exec", "signal", waiting, "approve:ask", "--payload", '{approved: "no"}')
    check_refusal(
        done,
        2,
        "neither approves nor rejects",
        "its `approved` is a text",
        '{"approved": true, "by": "ada"}',
    )


def test_the_result_of_a_step_that_failed_is_its_failure(
    client: NoetlCommand, failed_execution: str
) -> None:
    for more in (), ("--json",):
        check_refusal(
            client("result", "show", failed_execution, "bad", *more),
            1,
            "step bad failed",
            "no such luck",
            "exec explain",
        )
    check_refusal(client("result", "show", failed_execution, "bda"), 2, "'bda' has no result")


def test_a_step_that_failed_has_nothing_to_save(
    client: NoetlCommand, noetl: NoetlCommand, failed_execution: str
) -> None:
    words = (
        "step bad failed and left no result: PYTHON_ERROR: ",
        "no such luck",
        f"noetl exec retry {failed_execution}",
    )
    check_refusal(client("result", "export", failed_execution, "bad", "--format", "csv"), 2, *words)
    for command in "get", "export", "pin":
        check_refusal(noetl("result", command, failed_execution, "bad"), 2, *words)


def test_a_playbook_that_there_is_not(
    client: NoetlCommand, noetl: NoetlCommand, waiting: str
) -> None:
    for each in client, noetl:
        check_refusal(
            each("catalog", "get", "quite/other"), 2, "'quite/other'", "noetl catalog list"
        )
        check_refusal(each("catalog", "get", "ask"), 2, "did you mean asks?")
        check_refusal(each("catalog", "diff", "ask"), 2, "did you mean asks?")
        for wrong in ("get", "asks", "--version", 9), ("diff", "asks", "--from", 9):
            check_refusal(each("catalog", *wrong), 2, "version 9", "its latest version is 1")


def test_a_folder_without_playbooks(
    client: NoetlCommand, noetl: NoetlCommand, tmp_path: Path
) -> None:
    (tmp_path / "some.test.yaml").write_text("")
    for each in client, noetl:
        check_refusal(
            each("catalog", "register", tmp_path), 2, f"no playbooks in {tmp_path}", ".yaml or .yml"
        )


def test_a_change_says_what_the_execution_is_then(client: NoetlCommand, waiting: str) -> None:
    assert client("exec", "pause", waiting).out == f"execution {waiting} is paused\n"
    assert client("exec", "resume", waiting).out == f"execution {waiting} is running\n"
    assert client("exec", "cancel", waiting).out.startswith(f"execution {waiting} is cancel")


def test_an_execution_that_has_not_ended_cannot_be_retried_and_may_have_been_left_behind(
    client: NoetlCommand, noetl: NoetlCommand, waiting: str
) -> None:
    cancel = f"noetl exec cancel {waiting}, then retry"
    check_refusal(
        client("exec", "retry", waiting), 2, "has not ended", cancel, "noetl worker start"
    )
    check_refusal(noetl("exec", "retry", waiting), 2, "has not ended", cancel, "noetl server start")


def test_a_dead_command_is_a_finding_until_its_execution_has_ended(
    client: NoetlCommand, noetl: NoetlCommand, waiting: str
) -> None:
    mark = "update noetl.command set status = %s where execution_id = %s and step = 'ask'"
    with psycopg.connect(
        EmbeddedPostgres(noetl.home).ensure_postgres().control, autocommit=True
    ) as database:
        database.execute(mark, ("dead", waiting))
        done = client("doctor")
        assert done.code == 1
        assert f"1 command(s) that killed their workers five times ({waiting})" in done.out
        database.execute(mark, ("parked", waiting))
        client.json("exec", "cancel", waiting)
        until(lambda: client.json("exec", "get", waiting)["ended_at"])
        database.execute(mark, ("dead", waiting))
    assert client("doctor").code == 0
