"""The exchange: reports until heard, leases, stopping, draining; a server made of a few lines, virtual time."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from noetl.model import events as e
from noetl.model.commands import Command
from noetl.model.decisions import AddPart
from noetl.model.errors import Unavailable, Unreached
from noetl.model.exchange import Ack, ExchangeReply, ExchangeRequest, LeaseKey
from noetl.model.messages import Report
from noetl.results.tiers.memory import ResultsMemory
from noetl.tools.noop import Noop
from noetl.tools.port import Call
from noetl.tools.registry import Registry
from noetl.tools.wait import Wait
from noetl.worker.settings import WorkerSettings
from noetl.worker.spool import MemorySpool
from noetl.worker.worker import Worker
from tests.unit.pipeline.bench import HEADER, LoopClock, Scripted, command, plan_of
from tests.waiting import run_virtually

STEPS = """- step: s
  tool: {kind: python, code: x, input: {n: 1}}
- step: two
  tool: [{name: a, kind: python, code: x}, {name: b, kind: python, code: x}]
"""
TEXT = HEADER + "workflow:\n" + STEPS
PLAN = plan_of(STEPS)


@dataclass
class ScriptedServer:
    """Gives queued commands to workers with room, takes every report, and remembers all of it."""

    queue: list[Command] = field(default_factory=list)
    requests: list[ExchangeRequest] = field(default_factory=list)
    events: list[Any] = field(default_factory=list)
    stop: list[LeaseKey] = field(default_factory=list)
    answer: Callable[[Report], str] = lambda report: "ok"
    down: bool = False
    gone: bool = False
    fetched: int = 0
    stale: int = 0

    async def exchange(self, request: ExchangeRequest) -> ExchangeReply:
        self.requests.append(request)
        if self.gone:
            raise Unreached("no server")
        if self.down:
            raise Unavailable("not now")
        acks = tuple(self._record(report) for report in request.reports)
        if not acks and not self.queue and not self.stop:
            await asyncio.sleep(min(request.wait / 1e6, 0.5))
        given = self.queue[: request.free]
        del self.queue[: request.free]
        stop, self.stop = tuple(self.stop), []
        return ExchangeReply(acks=acks, commands=tuple(given), stop=stop)

    def _record(self, report: Report) -> Ack:
        status, _, code = self.answer(report).partition(" ")
        if status == "ok":
            self.events.append(report.event)
        return Ack(report.command_id, report.key, status, code=code or None)  # type: ignore[arg-type]  # what the test says

    async def fetch_playbook(self, content: str) -> str:
        self.fetched += 1
        return TEXT

    async def list_manifest_parts(self, manifest: str) -> list[AddPart]:
        return []

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


def settings(**more: Any) -> WorkerSettings:
    return WorkerSettings(worker_id="w1", incarnation="w1.1", **{"slots": 2, **more})


def issue(step: str = "s", number: int = 1, **fields: Any) -> Command:
    return msgspec.structs.replace(command(PLAN, step), command_id=f"c{number}", **fields)


def make_worker(
    desk: ScriptedServer,
    does: Callable[[Call], Any] = lambda call: 1,
    spool: Any = None,
    **more: Any,
) -> Worker:
    registry = Registry([Scripted(does), Noop(), Wait()])
    return Worker(
        desk, ResultsMemory(), registry, LoopClock(), spool or MemorySpool(), settings(**more)
    )


async def until(fact: Callable[[], bool]) -> None:
    """Virtual time: looking again costs nothing."""
    while not fact():  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def working(worker: Worker, fact: Callable[[], bool]) -> None:
    """Let the worker run until the fact holds, then drain it."""
    task = asyncio.ensure_future(worker.run())
    await until(fact)
    worker.drain()
    await task


def test_a_command_is_run_and_its_report_repeated_until_it_is_acknowledged() -> None:
    answers = iter(["retry", "retry", "ok"])
    desk = ScriptedServer([issue()], answer=lambda report: next(answers))
    run_virtually(working(make_worker(desk), lambda: bool(desk.events)))
    assert [type(event) for event in desk.events] == [e.CommandCompleted]
    sent = [request for request in desk.requests if request.reports]
    assert len(sent) == 3
    assert all(LeaseKey("c1", 1) in request.held for request in sent)  # type: ignore[arg-type]


def test_no_report_no_wait_and_no_work_without_room() -> None:
    desk = ScriptedServer([issue(number=n) for n in range(5)])
    running, most = 0, 0

    async def run_slowly(call: Call) -> Any:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.5)
        running -= 1

    run_virtually(working(make_worker(desk, run_slowly), lambda: len(desk.events) == 5))
    assert most == 2
    assert all(request.wait == 0 for request in desk.requests if request.reports)


def test_short_work_is_fetched_ahead_and_never_more_of_it_runs_at_once() -> None:
    desk = ScriptedServer([issue(number=n) for n in range(200)])
    running, most = 0, 0

    async def run_shortly(call: Call) -> Any:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1

    run_virtually(working(make_worker(desk, run_shortly), lambda: len(desk.events) == 200))
    assert most == 2
    assert max(len(request.held) for request in desk.requests) > 2


def test_long_work_is_left_to_others() -> None:
    desk = ScriptedServer([issue(number=n) for n in range(20)])
    run_virtually(
        working(
            make_worker(desk, lambda call: asyncio.sleep(1.0)),
            lambda: len(desk.of(e.CommandCompleted)) == 20,
        )
    )
    assert max(len(request.held) for request in desk.requests) == 2


def test_what_was_fetched_ahead_goes_back_when_those_before_it_take_long() -> None:
    desk = ScriptedServer([issue(number=n) for n in range(100)])
    done = 0

    async def slower(call: Call) -> None:
        nonlocal done
        done += 1
        await asyncio.sleep(0.01 if done < 50 else 60)

    async def play() -> None:
        worker = make_worker(desk, slower)
        task = asyncio.ensure_future(worker.run())
        await until(
            lambda: bool(desk.of(e.CommandReturned)) and len(worker.held_leases) == 2
        )  # those that run
        back = len(desk.of(e.CommandReturned))
        await asyncio.sleep(30)
        assert len(worker.held_leases) == 2
        assert len(desk.of(e.CommandReturned)) == back  # nothing was fetched ahead again
        task.cancel()
        await asyncio.wait([task])

    run_virtually(play())


def test_what_waits_for_room_is_stopped_and_drained_like_the_rest() -> None:
    desk = ScriptedServer([issue(number=n) for n in range(200)])

    async def play() -> None:
        worker = make_worker(desk, lambda call: asyncio.sleep(0.01))
        task = asyncio.ensure_future(worker.run())
        await until(lambda: len(worker.held_leases) > 5)
        waiting = worker.held_leases[-1]
        desk.stop = [waiting]
        await until(lambda: waiting not in worker.held_leases)
        worker.hand_back()
        await task
        assert worker.held_leases == ()

    run_virtually(play())
    assert len(desk.of(e.CommandReturned)) > 0


def test_the_next_task_starts_only_when_the_journal_entry_is_acknowledged() -> None:
    order: list[str] = []
    desk = ScriptedServer([issue("two")])
    desk.answer = lambda report: order.append(report.event.type) or "ok"  # type: ignore[func-returns-value]

    def does(call: Call) -> Any:
        order.append(call.identity.task)

    run_virtually(working(make_worker(desk, does), lambda: bool(desk.of(e.CommandCompleted))))
    assert order == ["a", "task.done", "b", "command.completed"]


def test_claims_are_announced_only_when_a_tool_lasts_or_is_not_the_first() -> None:
    desk = ScriptedServer([issue(number=1), issue(number=2, attempt=2), issue(number=3)])
    run_virtually(working(make_worker(desk), lambda: len(desk.of(e.CommandCompleted)) == 3))
    assert [event.command_id for event in desk.of(e.CommandStarted)] == ["c2"]
    lasting = ScriptedServer([issue()])
    run_virtually(
        working(
            make_worker(lasting, lambda call: asyncio.sleep(1.5)),
            lambda: bool(lasting.of(e.CommandCompleted)),
        )
    )
    assert [type(event) for event in lasting.events] == [
        e.CommandClaimed,
        e.CommandStarted,
        e.CommandCompleted,
    ]


def test_leases_are_renewed_while_a_tool_runs() -> None:
    desk = ScriptedServer([issue()])
    run_virtually(
        working(
            make_worker(desk, lambda call: asyncio.sleep(30)),
            lambda: bool(desk.of(e.CommandCompleted)),
        )
    )
    beats = [request for request in desk.requests if request.held and not request.reports]
    assert len(beats) >= 15


def test_how_far_a_tool_is_goes_with_renewals_and_nowhere_else() -> None:
    desk = ScriptedServer([issue()])

    async def run_long(call: Call) -> Any:
        for number in range(100):
            call.progress(f"{number}/100")
            await asyncio.sleep(0.1)

    run_virtually(working(make_worker(desk, run_long), lambda: bool(desk.of(e.CommandCompleted))))
    told = [each for request in desk.requests for each in request.progress]
    assert all(request.renew for request in desk.requests if request.progress)
    assert {each.held for each in told} == {LeaseKey("c1", 1)}  # type: ignore[arg-type]
    assert 3 <= len({each.said for each in told}) <= 20
    assert not desk.requests[-1].progress


def test_a_tool_is_stopped_when_its_lease_cannot_be_renewed_and_may_be_given_again() -> None:
    desk = ScriptedServer([issue()])
    stopped: list[float] = []
    runs = 0

    async def does(call: Call) -> Any:
        nonlocal runs
        runs += 1
        if runs == 2:
            return {"second": runs}
        desk.down = True
        try:
            await asyncio.sleep(100)
        finally:
            stopped.append(asyncio.get_running_loop().time())

    async def scene() -> None:
        worker = make_worker(desk, does)
        task = asyncio.ensure_future(worker.run())
        await until(lambda: bool(stopped))
        assert worker.held_leases == ()
        desk.down = False
        desk.queue.append(issue())  # leased to it and not listed: the same attempt again
        await until(lambda: bool(desk.of(e.CommandCompleted)))
        worker.drain()
        await task

    run_virtually(scene())
    assert 3.9 <= stopped[0] <= 4.2
    assert desk.of(e.CommandCancelled) == []


def test_a_command_that_is_to_stop_is_stopped_and_says_so() -> None:
    desk = ScriptedServer([issue()])
    ended: list[str] = []

    async def does(call: Call) -> Any:
        desk.stop.append(LeaseKey("c1", 1))  # type: ignore[arg-type]
        try:
            await asyncio.sleep(100)
        finally:
            ended.append("tool")

    run_virtually(working(make_worker(desk, does), lambda: bool(desk.of(e.CommandCancelled))))
    assert ended == ["tool"]
    assert desk.of(e.CommandCompleted) == []


class TwoRepliesAtOnce(ScriptedServer):
    """Gives `second` to the poll, and in the same turn of the event loop tells the worker to stop it."""

    def __init__(self, first: Command, second: Command) -> None:
        super().__init__([first])
        self.second = second
        self.reply_to_poll: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.stop_sent = False

    async def exchange(self, request: ExchangeRequest) -> ExchangeReply:
        first_is_held = bool(request.held)
        if first_is_held and request.wait and not self.reply_to_poll.done():
            await self.reply_to_poll
            return ExchangeReply(commands=(self.second,))
        if first_is_held and not request.wait and not self.stop_sent:
            self.stop_sent = True
            self.reply_to_poll.set_result(None)
            await asyncio.sleep(0)  # the poll goes on before this exchange does
            return ExchangeReply(stop=(LeaseKey(self.second.command_id, self.second.attempt),))
        return await super().exchange(request)


def test_command_that_is_stopped_before_its_task_begins_says_so() -> None:
    async def scene() -> None:
        desk = TwoRepliesAtOnce(issue(number=1), issue(number=2))
        worker = make_worker(desk, lambda call: asyncio.sleep(3))
        await working(worker, lambda: bool(desk.of(e.CommandCompleted)))
        assert worker.held_leases == ()
        assert [event.command_id for event in desk.of(e.CommandCancelled)] == ["c2"]

    run_virtually(scene())


def test_command_that_comes_with_its_stop_is_not_begun() -> None:
    called: list[str] = []
    desk = ScriptedServer([issue()], stop=[LeaseKey("c1", 1)])  # type: ignore[arg-type]
    run_virtually(
        working(make_worker(desk, lambda call: called.append("c1")), lambda: bool(desk.events))
    )
    assert [type(event) for event in desk.events] == [e.CommandCancelled]
    assert called == []


def test_command_whose_tool_raises_a_cancellation_of_its_own_fails() -> None:
    def cancelled_by_nobody(call: Call) -> Any:
        raise asyncio.CancelledError

    desk = ScriptedServer([issue()])
    run_virtually(
        working(make_worker(desk, cancelled_by_nobody), lambda: bool(desk.of(e.CommandFailed)))
    )
    (ended,) = desk.of(e.CommandFailed)
    assert ended.result.error.code == "INTERNAL"


def test_a_stale_answer_stops_the_tool_and_nothing_more_is_said_of_it() -> None:
    desk = ScriptedServer([issue("two")])
    desk.answer = lambda report: "stale" if report.command_id == "c1" else "ok"
    tasks: list[str] = []

    async def scene() -> None:
        worker = make_worker(desk, lambda call: tasks.append(call.identity.task))
        task = asyncio.ensure_future(worker.run())
        await until(
            lambda: tasks == ["a"] and not worker.held_leases and bool(desk.requests[-1].free)
        )
        desk.queue.append(issue(number=2))
        await until(lambda: bool(desk.events))
        worker.drain()
        await task

    run_virtually(scene())
    assert tasks == ["a", "task_0"]
    assert [event.command_id for event in desk.events] == ["c2"]


def test_while_an_ending_is_not_heard_nothing_is_claimed_and_it_outlives_the_worker() -> None:
    desk = ScriptedServer([issue()])
    spool = MemorySpool()

    def does(call: Call) -> Any:
        desk.down = True

    async def scene() -> None:
        worker = make_worker(desk, does, spool)
        task = asyncio.ensure_future(worker.run())
        await until(lambda: spool.free_places < 1_024)
        asked = [request.free for request in desk.requests if request.held]
        assert asked[-1] == 0 or desk.requests[-1].reports
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        desk.down = False
        desk.queue.append(issue(number=2))
        second = make_worker(desk, lambda call: 2, spool)
        task = asyncio.ensure_future(second.run())
        await until(lambda: len(desk.of(e.CommandCompleted)) == 2)
        second.drain()
        await task

    run_virtually(scene())
    assert [event.command_id for event in desk.events] == ["c1", "c2"]
    assert spool.free_places == 1_024


def test_a_command_sent_twice_runs_once() -> None:
    desk = ScriptedServer([issue(), issue()])
    calls: list[str] = []

    async def scene() -> None:
        worker = make_worker(desk, lambda call: calls.append(call.key))
        task = asyncio.ensure_future(worker.run())
        await until(lambda: bool(desk.events))
        desk.queue.append(issue())  # a reply that was under way for long
        await until(lambda: not desk.queue)
        worker.drain()
        await task

    run_virtually(scene())
    assert len(calls) == 1
    assert len(desk.of(e.CommandCompleted)) == 1


def test_a_higher_attempt_replaces_the_one_that_runs() -> None:
    desk = ScriptedServer([issue()])
    calls: list[Call] = []

    async def does(call: Call) -> Any:
        calls.append(call)
        if len(calls) == 1:
            desk.queue.append(issue(attempt=2))
            await asyncio.sleep(100)
        return 1

    run_virtually(working(make_worker(desk, does), lambda: bool(desk.of(e.CommandCompleted))))
    assert [event.attempt for event in desk.of(e.CommandCompleted)] == [2]


def test_a_playbook_is_fetched_once_and_refused_when_its_hash_differs() -> None:
    desk = ScriptedServer([issue(number=1), issue(number=2), issue(number=3, playbook="0" * 64)])
    run_virtually(working(make_worker(desk, slots=1), lambda: len(desk.events) == 3))
    assert desk.fetched == 2
    [failure] = desk.of(e.CommandFailed)
    assert (failure.command_id, failure.result.error.code) == ("c3", "PLAYBOOK_UNUSABLE")


def test_a_refused_ending_becomes_a_plain_failure() -> None:
    desk = ScriptedServer([issue()])
    desk.answer = lambda report: "refused" if isinstance(report.event, e.CommandCompleted) else "ok"
    run_virtually(working(make_worker(desk), lambda: bool(desk.events)))
    assert desk.events[0].result.error.code == "REPORT_REFUSED"


@pytest.mark.parametrize("refused", [e.CommandCompleted, e.TaskDone])
def test_a_step_whose_report_was_refused_fails_with_the_code_of_the_refusal(refused: type) -> None:
    desk = ScriptedServer([issue("two")])
    desk.answer = lambda report: (
        "refused FOREIGN_REFERENCE" if isinstance(report.event, refused) else "ok"
    )
    run_virtually(working(make_worker(desk), lambda: bool(desk.of(e.CommandFailed))))
    assert desk.of(e.CommandFailed)[0].result.error.code == "FOREIGN_REFERENCE"


def test_a_command_that_comes_too_late_is_not_begun() -> None:
    desk = ScriptedServer()
    calls: list[str] = []
    exchange = desk.exchange

    async def exchange_late(request: ExchangeRequest) -> ExchangeReply:
        reply = await exchange(request)
        if reply.commands and len(desk.requests) == 1:
            await asyncio.sleep(5)  # the server stood still after it had leased the command
        return reply

    desk.exchange = exchange_late  # type: ignore[method-assign]
    desk.queue.append(issue())

    async def scene() -> None:
        worker = make_worker(desk, lambda call: calls.append(call.key), patience=9.0)
        task = asyncio.ensure_future(worker.run())
        await asyncio.sleep(6)
        assert calls == []
        desk.queue.append(issue())  # still its own: sent again
        await until(lambda: bool(desk.events))
        worker.drain()
        await task

    run_virtually(scene())
    assert len(calls) == 1


def test_draining_finishes_what_is_held() -> None:
    desk = ScriptedServer([issue()])

    async def scene() -> None:
        worker = make_worker(desk, lambda call: asyncio.sleep(3))
        task = asyncio.ensure_future(worker.run())
        await until(lambda: bool(worker.held_leases))
        desk.queue.append(issue(number=2))
        worker.drain()
        await task

    run_virtually(scene())
    assert [event.command_id for event in desk.of(e.CommandCompleted)] == ["c1"]
    assert len(desk.queue) == 1


def test_draining_waits_for_what_runs_and_not_for_a_server_that_is_gone() -> None:
    desk, spool, ended = ScriptedServer([issue()]), MemorySpool(), []

    async def lasting(call: Call) -> None:
        await asyncio.sleep(3)
        ended.append(call.key)

    async def scene() -> None:
        worker = make_worker(desk, lasting, spool)
        task = asyncio.ensure_future(worker.run())
        await until(lambda: bool(worker.held_leases))
        desk.gone = True
        worker.drain()
        await task

    run_virtually(scene())
    assert len(ended) == 1
    assert [type(report.event) for report in run_virtually(spool.load())] == [e.CommandCompleted]


def test_draining_waits_for_a_server_that_is_only_busy() -> None:
    desk = ScriptedServer([issue()])

    async def scene() -> None:
        worker = make_worker(desk, lambda call: setattr(desk, "down", True))
        task = asyncio.ensure_future(worker.run())
        await until(lambda: desk.down)
        worker.drain()
        await asyncio.sleep(20)
        assert not task.done()
        desk.down = False
        await task

    run_virtually(scene())
    assert len(desk.of(e.CommandCompleted)) == 1


def test_while_an_ending_is_unanswered_it_is_what_asks_for_more_and_no_poll_is_begun() -> None:
    """A poll that lists what is recorded meanwhile is answered at once, again and again."""
    desk = ScriptedServer([issue(number=n) for n in range(3)])
    run_virtually(
        working(
            make_worker(desk, lambda call: asyncio.sleep(0.3), slots=1),
            lambda: len(desk.events) == 3,
        )
    )
    assert [request.free for request in desk.requests if request.reports] == [1, 1, 1]
    assert not [request for request in desk.requests if request.wait and request.held]


def test_a_report_offers_the_places_that_the_running_poll_does_not_offer() -> None:
    """So the next command comes with the acknowledgement, and the poll stays open."""
    desk = ScriptedServer([issue()])
    run_virtually(
        working(
            make_worker(desk, lambda call: asyncio.sleep(0.1), slots=3),
            lambda: len(desk.events) == 1,
        )
    )
    polls = [request.free for request in desk.requests if request.wait]
    reports = [request.free for request in desk.requests if request.reports]
    assert polls[:2] == [3, 2]
    assert reports == [1]


class GenerousServer(ScriptedServer):
    """Gives every queued command at once."""

    async def exchange(self, request: ExchangeRequest) -> ExchangeReply:
        return await super().exchange(msgspec.structs.replace(request, free=len(self.queue)))


def test_endings_are_reported_together_while_commands_wait_for_room() -> None:
    desk = GenerousServer([issue(number=n) for n in range(9)])
    run_virtually(
        working(
            make_worker(desk, lambda call: asyncio.sleep(0.001), slots=1),
            lambda: len(desk.events) == 9,
        )
    )
    sizes = [len(request.reports) for request in desk.requests if request.reports]
    assert sum(sizes) == 9
    assert len(sizes) <= 4


def test_an_ending_is_reported_at_once_if_no_command_waits_for_room() -> None:
    desk = GenerousServer([issue(number=n) for n in range(2)])
    started: list[float] = []
    reported: list[float] = []

    async def does(call: Call) -> Any:
        started.append(asyncio.get_running_loop().time())

    def answer(report: Report) -> str:
        reported.append(asyncio.get_running_loop().time())
        return "ok"

    desk.answer = answer
    run_virtually(working(make_worker(desk, does, slots=2), lambda: len(desk.events) == 2))
    assert reported == started


def test_what_cannot_be_finished_is_stopped_and_handed_back() -> None:
    desk = ScriptedServer([issue()])
    stopped: list[str] = []

    async def does(call: Call) -> Any:
        try:
            await asyncio.sleep(100)
        finally:
            stopped.append(call.identity.task)

    async def scene() -> None:
        worker = make_worker(desk, does)
        task = asyncio.ensure_future(worker.run())
        await until(lambda: bool(worker.held_leases))
        worker.hand_back()
        await task
        assert worker.held_leases == ()

    run_virtually(scene())
    assert stopped == ["task_0"]
    assert [(event.command_id, event.attempt) for event in desk.of(e.CommandReturned)] == [
        ("c1", 1)
    ]
