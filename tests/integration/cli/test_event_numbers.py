"""Commands name an event by its number in the execution, as the page does, and never by its place in the log."""

import json
from collections.abc import Iterator

import pytest

from tests.stack import CommandOutput, NoetlCommand, run_stack


@pytest.fixture(scope="module")
def noetl(noetl: NoetlCommand) -> NoetlCommand:
    """With one shard, so that executions share its sequence numbers."""
    return noetl.with_env(NOETL_SHARD_COUNT="1")


@pytest.fixture(scope="module", params=["home", "server"])
def command(request: pytest.FixtureRequest, noetl: NoetlCommand) -> Iterator[NoetlCommand]:
    """A command that has run two executions: on this home, and by a server."""
    if request.param == "home":
        run_twice(noetl)
        yield noetl
        return
    with run_stack(noetl, workers=1) as stack:
        run_twice(stack.client)
        yield stack.client


def run_twice(command: NoetlCommand) -> None:
    for _ in range(2):
        assert command.json("run", "examples/hello.yaml")["status"] == "completed"


def list_events(command: NoetlCommand, *options: str) -> list[dict[str, object]]:
    lines = command("exec", "events", "@latest", *options, "--json").out.splitlines()
    return [json.loads(line) for line in lines]


def test_events_are_printed_with_their_numbers(command: NoetlCommand) -> None:
    rows = list_events(command)
    assert [row["number"] for row in rows] == list(range(1, len(rows) + 1))
    assert all(row["number"] != row["seq"] for row in rows)
    lines = command("exec", "events", "@latest").out.splitlines()
    assert [int(line.split()[0]) for line in lines] == [row["number"] for row in rows]
    first, second = list_events(command, "--type", "step.enter")
    shown = command("exec", "events", "@latest", "--type", "step.enter").out.splitlines()
    assert [int(line.split()[0]) for line in shown] == [first["number"], second["number"]]


def test_state_at_an_event_is_asked_by_its_number(command: NoetlCommand) -> None:
    rows = list_events(command)
    told = command.json("exec", "explain", "@latest", "shout")
    (reached,) = [cause for cause in told["causes"] if cause["kind"] == "reached"]
    (number,) = [row["number"] for row in rows if row["seq"] == reached["seq"]]
    assert isinstance(number, int)
    explained = command("exec", "explain", "@latest", "shout").out
    assert f"it was reached from greet  event {number}" in explained
    page = command.json("exec", "at", "@latest", number)
    assert (page["seq"], page["steps"]["shout"]["status"]) == (reached["seq"], "running")
    shown = command("exec", "at", "@latest", number).out
    assert f"event      {number} of {len(rows)}, " in shown
    early = command.json("exec", "explain", "@latest", "shout", "--at", 1)
    assert early["verdict"] == "not reached"


def test_an_event_that_there_is_not_is_refused(command: NoetlCommand) -> None:
    count = len(list_events(command))
    for wanted in ("at", "@latest", count + 1), ("explain", "@latest", "shout", "--at", count + 1):
        check_refusal(command("exec", *wanted), f"no event {count + 1}: it has {count}")
    check_refusal(command("exec", "at", "@latest", 0), "'0' is not a whole number from 1")


def check_refusal(done: CommandOutput, words: str) -> None:
    assert (done.code, done.out) == (2, ""), done.err
    assert words in done.err
