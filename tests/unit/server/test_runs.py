"""The runs of a step: how much of the log they read, and what they say of a run that was read in part."""

import asyncio
from typing import Any

from noetl.model import events as e
from noetl.model.commands import Command
from noetl.model.events import Event
from noetl.server.inspection.runs import MAX_LISTED_ATTEMPTS, MAX_READ_EVENTS, RunReader
from noetl.server.inspection.views import RunsView
from tests.play import Play, workflow
from tests.unit.server.test_folds import ID, LongExecution

LOOP = """
- {step: begin, next: {spec: {mode: inclusive}, arcs: [{step: slow}, {step: score}]}}
- step: slow
  tool: {kind: python, code: "result = 1"}
- step: score
  loop: {in: "{{ range(0, ITEMS) }}", iterator: item, spec: {mode: parallel, chunk: 1, max_in_flight: 8}}
  tool: {kind: python, code: "result = 1"}
"""


def make_log(items: int) -> list[Event]:
    """A loop, and beside it a step that ends after all of its items."""
    play = Play(workflow(LOOP.replace("ITEMS", str(items)))).start()
    slow = play.command("slow")
    while len(play.queue) > 1:
        play.now += 1_000
        loop = [command for command in play.list_ready() if command.step == "score"]
        report(play, loop[0])
    play.complete(slow, 1, started_at=play.now - 10)
    assert play.state.status == "completed"
    return play.log


def report(play: Play, command: Command) -> None:
    items = e.Items(first=command.first, ok=1, micros=10)
    play.complete(command, [{}], items=items, started_at=play.now - 10)


def read_runs(log: list[Event], step: str) -> tuple[RunsView, LongExecution]:
    long = LongExecution(log)

    async def read() -> RunsView:
        folds = long.make_folds()
        fold = await folds.read_newest(ID)
        long.log.calls.clear()
        long.log.returned.clear()
        reader: Any = RunReader(long.log, folds)  # type: ignore[arg-type]  # a port that counts
        found: RunsView = await reader.read_runs(fold, step, None, 10)
        return found

    return asyncio.run(read()), long


def test_runs_of_a_long_loop_read_as_much_as_those_of_a_short_one() -> None:
    short, few = read_runs(make_log(100), "score")
    long, many = read_runs(make_log(1_000), "score")
    assert sum(many.log.returned.values()) == sum(few.log.returned.values()) < 200
    assert many.log.calls == few.log.calls
    for found in (short, long):
        (run,) = found.runs
        assert (run.status, len(run.attempts)) == ("completed", MAX_LISTED_ATTEMPTS)
        assert run.attempts_total is None
        assert {attempt.status for attempt in run.attempts} == {"completed"}
        assert [(each.first, each.count) for each in run.attempts[:2]] == [(0, 1), (1, 1)]


def test_a_run_beside_a_long_loop_has_its_beginning_and_its_end() -> None:
    found, long = read_runs(make_log(1_000), "slow")
    (run,) = found.runs
    assert run.status == "completed"
    (attempt,) = run.attempts
    assert (attempt.status, attempt.count) == ("completed", 0)
    assert attempt.ended_at is not None
    assert sum(long.log.returned.values()) <= MAX_READ_EVENTS


def test_a_run_that_was_read_whole_counts_its_attempts() -> None:
    found, _ = read_runs(make_log(12), "score")
    (run,) = found.runs
    assert (run.attempts_total, len(run.attempts)) == (12, 12)
