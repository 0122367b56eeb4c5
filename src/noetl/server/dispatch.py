"""The shell around the engine: whatever arrived while the last commit was in flight is the next batch.

Every item is interpreted and advanced on the state of its execution, items of one execution on top of each other; one append
writes them all. Nothing is answered, kept or handed out before that append is confirmed. What happens then:

  applied          the state is kept, items are answered, waiting workers get their commands, hints go out
  known            the state was not the last, or a row was gone: forget, reload, decide again; rows are read again by duties
  stale attempt    the report is refused, the rest of the part is decided again
  state changed    somebody else wrote a state value: forget, reload, decide again with that as a fact
  shard lost       the shard and its states are dropped; items are answered `retry`
  not there        the outcome may be unknown: the states are forgotten, items are answered `retry`, keys absorb the repeat

An execution whose fold or decision raises is quarantined: the event is written, its messages wait in its inbox until it is
released, everyone else goes on.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice
from typing import assert_never

from noetl.bus import port as bus_port
from noetl.bus.port import Bus
from noetl.engine.fold import evolve
from noetl.engine.machine import Refusal, advance, interpret, quarantine, with_conflicts
from noetl.engine.state import Execution
from noetl.faults import fault
from noetl.log.limits import check_size
from noetl.log.port import (
    BATCH_EVENTS,
    AppendBatch,
    Appended,
    EventLog,
    InboxRow,
    Known,
    Outcome,
    ShardLost,
    StaleAttempt,
    StateChanged,
)
from noetl.model.clock import Clock
from noetl.model.decisions import Send
from noetl.model.errors import Unavailable
from noetl.model.events import CommandCancelled, StateConflict
from noetl.model.exchange import LeaseKey
from noetl.model.ids import ExecutionId, Micros, TimerId
from noetl.model.messages import Admitted, LeaseLost, Message, Release, Report, Start, TimerDue
from noetl.model.playbook_state import StateValue
from noetl.playbook.plan import Plan
from noetl.server.children import Children
from noetl.server.shards import OwnedShards
from noetl.server.states import LoadedState, States, Unfoldable
from noetl.server.waiting import Waiting
from noetl.server.work import Answer, BatchBudget, ExecutionBatch, Inbound
from noetl.turns import TimeSlice

log = logging.getLogger(__name__)

TRIES = 3  # decisions from a reloaded state before a worker is asked to come again
PREFETCH = 64  # executions loaded together when they are not in memory
FIRST_DELAY, LONGEST_DELAY = 0.05, 2.0
LATELY = 10.0  # seconds within which whoever was told to come again has done so
REFUSED: dict[str, Answer] = {
    "known": "ok",
    "stale": "stale",
    "unknown": "stale",
    "terminal": "refused",
    "full": "refused",
}


class Dispatcher:
    def __init__(
        self,
        eventlog: EventLog,
        bus: Bus,
        clock: Clock,
        shards: OwnedShards,
        states: States,
        children: Children,
        waiting: Waiting,
        *,
        lease: Micros,
        at_a_stretch: float | None = None,
    ) -> None:
        self._at_a_stretch = at_a_stretch
        self._log = eventlog
        self._bus = bus
        self._clock = clock
        self._shards = shards
        self._states = states
        self._children = children
        self._waiting = waiting
        self._lease = lease
        self._queue: deque[Inbound] = deque()
        self._arrived = asyncio.Event()
        self._aside: set[ExecutionId] = set()
        self._delay = FIRST_DELAY
        self._closed = False
        self._trouble: tuple[Unavailable, float] | None = None
        self.on_append: Callable[[Iterable[int]], None] = lambda shards: (
            None
        )  # shards that may have new events
        shards.on_change.append(self._shard_changed)

    # -- what arrives --

    # Not coroutines: what is given first is decided first, whenever its answer is awaited.

    def report(self, report: Report) -> "asyncio.Future[Answer]":
        return self._submit(report.execution_id, report)

    def deliver(self, row: InboxRow) -> "asyncio.Future[Answer]":
        return self._submit(row.execution_id, row.message, inbox_id=row.inbox_id)

    def fire(self, execution_id: ExecutionId, timer: TimerId) -> "asyncio.Future[Answer]":
        return self._submit(execution_id, TimerDue(timer=timer), timer=timer)

    def aside(self) -> frozenset[ExecutionId]:
        """Executions known to be quarantined: their inbox rows wait."""
        return frozenset(self._aside)

    def trouble(self) -> Unavailable | None:
        """Why nothing can be written; None when something was since, or nobody has tried lately."""
        if self._trouble is None or asyncio.get_running_loop().time() - self._trouble[1] > LATELY:
            return None
        return self._trouble[0]

    def _submit(
        self,
        execution_id: ExecutionId,
        message: Message,
        *,
        inbox_id: int | None = None,
        timer: TimerId | None = None,
    ) -> "asyncio.Future[Answer]":
        item = Inbound(
            execution_id, message, asyncio.get_running_loop().create_future(), inbox_id, timer
        )
        if self._closed:
            item.reply("retry")
        else:
            self._queue.append(item)
            self._arrived.set()
        return item.answer

    # -- the loop --

    async def run(self) -> None:
        try:
            while True:
                await self._arrived.wait()
                await self.commit_waiting()
        finally:
            self._closed = True
            for item in self._queue:
                item.reply("retry")

    async def commit_waiting(self) -> int:
        """Decide what waits and write it, as one batch. The number of items that were answered."""
        works: dict[ExecutionId, ExecutionBatch] = {}
        taken: list[Inbound] = []
        try:
            await self._decide_waiting(works, taken)
            await self._commit(list(works.values()))
        except Unavailable as error:
            log.warning("the store is not there", extra={"error": str(error), "delay": self._delay})
            self._trouble = error, asyncio.get_running_loop().time()
            self._give_up(works.values(), taken)
            await self._back_off()
        except Exception:  # a loop that must survive; what was decided is decided again
            log.exception("a batch failed")
            self._give_up(works.values(), taken)
            await self._back_off()
        except BaseException:
            self._give_up(works.values(), taken)
            raise
        finally:
            if not self._queue:
                self._arrived.clear()
        return sum(item.answer.done() for item in taken)

    async def _back_off(self) -> None:
        await asyncio.sleep(self._delay)
        self._delay = min(self._delay * 2, LONGEST_DELAY)

    def _give_up(self, works: Iterable[ExecutionBatch], items: Iterable[Inbound]) -> None:
        """Nothing is certain of these: whoever brought them comes again. So does whoever brought what waits behind them:
        a later report must not overtake one that was sent back."""
        for work in works:
            work.give_back()
        given_up = list(items)
        executions = {item.execution_id for item in given_up}
        waiting, self._queue = self._queue, deque()
        for item in waiting:
            if item.execution_id in executions:
                given_up.append(item)
            else:
                self._queue.append(item)
        self._states.forget_all(executions)
        for item in given_up:
            item.reply("retry")

    # -- deciding --

    async def _decide_waiting(
        self, works: dict[ExecutionId, ExecutionBatch], taken: list[Inbound]
    ) -> None:
        """As many items as fit; one whose events do not fit any more begins the next batch."""
        room = BatchBudget()
        await self._states.begin(
            item.execution_id
            for item in islice(self._queue, BATCH_EVENTS)
            if isinstance(item.message, Start)
        )
        await self._states.prefetch(item.execution_id for item in islice(self._queue, PREFETCH))
        stretch = TimeSlice(self._at_a_stretch)
        while self._queue and room.events > 0 and len(taken) < BATCH_EVENTS:
            if stretch.over:
                await stretch.pause()
                continue  # somebody may have taken back what waited
            item = self._queue.popleft()
            taken.append(item)
            work = works.get(item.execution_id) or await self._open(item.execution_id)
            if work is None:
                item.reply("retry")
                continue
            if not await self._add(work, item, room):
                self._queue.appendleft(taken.pop())
                return
            works[item.execution_id] = work

    async def _open(self, execution_id: ExecutionId) -> ExecutionBatch | None:
        """None: not ours any more."""
        shard = self._shards.of(execution_id)
        if not self._shards.owns(shard):
            return None
        try:
            loaded = await self._states.get(execution_id)
        except Unfoldable as error:
            return self._unfoldable(execution_id, shard, error)
        if loaded is None:
            return ExecutionBatch(execution_id, shard, after=0)
        aside = loaded.state.quarantined is not None
        if not aside:
            self._aside.discard(execution_id)
        return ExecutionBatch(
            execution_id, shard, after=loaded.seq, loaded=loaded, state=loaded.state, aside=aside
        )

    def _unfoldable(
        self, execution_id: ExecutionId, shard: int, error: Unfoldable
    ) -> ExecutionBatch:
        """Set aside without a state; the event is written unless this server has seen that it is there."""
        work = ExecutionBatch(execution_id, shard, after=error.seq, aside=True)
        if execution_id not in self._aside:
            log.error(
                "execution cannot be folded",
                extra={"execution_id": execution_id, "error": str(error)},
            )
            work.set_aside(quarantine(error.state, str(error), error.cause, self._clock.now()))
            self._aside.add(execution_id)
        return work

    async def _add(self, work: ExecutionBatch, item: Inbound, room: BatchBudget) -> bool:
        """Decide one item on top of the others. False: its events do not fit into this batch."""
        if item.known:
            work.consume(item, "ok")
            return True
        if work.loaded is None and not work.aside:
            work.consume(item, "stale")
            return True
        if work.aside and not (isinstance(item.message, Release) and work.loaded is not None):
            self._set_aside(work, item)
            return True
        try:
            return await self._decide(work, item, room)
        except Unavailable:
            raise
        except Exception as error:  # whatever is raised here concerns this execution alone
            self._quarantine(work, item, error)
            return True

    async def _decide(self, work: ExecutionBatch, item: Inbound, room: BatchBudget) -> bool:
        assert work.loaded is not None
        assert work.state is not None
        if item.fatal is not None:
            raise RuntimeError(item.fatal)
        fixed = work.loaded.fixed
        retried = await self._retried(item.message, fixed.plan)
        message = await self._children.pins.at_call(item.message, work.state, fixed.tenant)
        stored = await self._stored_state(work, message)
        now = self._clock.now()
        given = interpret(fixed, work.state, message, now, retried=retried, stored=stored)
        if isinstance(given, Refusal):
            self._refuse(work, item, given)
            return True
        if item.conflicts:
            given = with_conflicts(work.state, given, item.conflicts, now)
        advanced = advance(fixed, work.state, *given)
        report = item.report
        payloads = (
            sum([len(ref.payload or b"") for ref in report.refs]) if report is not None else 0
        )
        encoded = [check_size(event) for event in advanced.events]
        if not room.take(len(encoded), payloads + sum(map(len, encoded))):
            return False
        refs = () if report is None else report.refs
        prepared = await self._children.prepare(fixed.tenant, advanced.effects, refs)
        work.record(item, given, advanced, encoded, prepared)
        return True

    def _refuse(self, work: ExecutionBatch, item: Inbound, refusal: Refusal) -> None:
        """A worker that stopped by itself gives its lease up: if its attempt still counts, that lease is lost."""
        work.consume(item, REFUSED[refusal.reason])
        report = item.message
        if not isinstance(report, Report) or not isinstance(report.event, CommandCancelled):
            return
        live = work.state.commands.get(report.command_id) if work.state is not None else None
        if live is not None and live.attempt == report.attempt:
            lost = LeaseLost(
                command_id=report.command_id, attempt=report.attempt, worker=report.worker
            )
            work.effects.append(Send(work.execution_id, lost))

    async def _retried(self, message: Message, plan: Plan) -> Execution | None:
        """The execution that this one goes on from: it has ended, so its state is final. Rewound if a step is named."""
        if not isinstance(message, Start) or message.retry_of is None:
            return None
        if message.from_step is not None:
            rewound = await self._states.rewound(message.retry_of, message.from_step, plan)
            return None if rewound is None else rewound.state
        loaded = await self._states.read(message.retry_of)
        return None if loaded is None else loaded.state

    async def _stored_state(
        self, work: ExecutionBatch, message: Message
    ) -> dict[str, StateValue] | None:
        """The playbook's state, when this message admits the execution; None: it does not, or the playbook uses none."""
        assert work.loaded is not None
        plan = work.loaded.fixed.plan
        names = plan.state_names
        waits = (
            isinstance(message, Start) and plan.playbook.executor.spec.max_concurrent is not None
        )
        if waits or not isinstance(message, Start | Admitted) or (names is not None and not names):
            return None
        path = (
            message.path
            if isinstance(message, Start)
            else work.state.path
            if work.state is not None
            else ""
        )
        rows = await self._log.read_state(
            work.loaded.fixed.tenant, path, None if names is None else sorted(names)
        )
        return {row.name: StateValue(row.version, row.value, row.unset) for row in rows}

    def _quarantine(self, work: ExecutionBatch, item: Inbound, error: Exception) -> None:
        assert work.state is not None
        text = f"{type(error).__name__}: {error}"
        log.error(
            "execution quarantined",
            extra={"execution_id": work.execution_id, "error": text},
            exc_info=error,
        )
        cause = f"{item.message.key}@{work.after}.{len(work.events)}"  # it may happen again after a release
        event = quarantine(work.state, text, cause, self._clock.now())
        work.set_aside(event)
        work.state = evolve(work.state, event)
        self._set_aside(work, item)

    def _set_aside(self, work: ExecutionBatch, item: Inbound) -> None:
        """Whatever reaches a quarantined execution stays in its inbox, or goes there."""
        self._aside.add(work.execution_id)
        if item.timer is not None:
            work.effects.append(Send(work.execution_id, TimerDue(timer=item.timer)))
            work.consume(item, "ok")
        elif isinstance(item.message, Release):
            work.consume(item, "refused")  # it cannot be folded yet
        else:
            work.left.append(item)

    # -- writing --

    async def _commit(self, works: list[ExecutionBatch]) -> None:
        if not works:
            return
        for work in works:
            work.reserve(self._waiting)
        epochs = self._shards.epochs()
        outcomes = await self._append(works, epochs)
        if outcomes is None:
            return
        self._delay, self._trouble = FIRST_DELAY, None
        for work, outcome in zip(works, outcomes, strict=True):
            self._settle(work, outcome, epochs)
        await self._take_aside(works)
        await self._hint(works, outcomes)

    async def _append(
        self, works: list[ExecutionBatch], epochs: dict[int, int]
    ) -> list[Outcome] | None:
        """None: the store refused the batch as such, and its parts were tried one by one."""
        batch = AppendBatch(
            epochs=epochs, parts=tuple(work.part() for work in works), lease=self._lease
        )
        fault("append.before")
        try:
            outcomes = await self._log.append(batch)
        except Unavailable:
            raise
        except (
            Exception
        ) as error:  # a constraint that no outcome stands for: a bug in one of the parts
            await self._isolate(works, error)
            return None
        finally:  # not before the commit: who looks then finds nothing. Whatever was raised, it may have been written
            self.on_append({work.shard for work in works})
        fault("append.after")
        return outcomes

    async def _isolate(self, works: list[ExecutionBatch], error: Exception) -> None:
        for work in works:
            work.give_back()
        if len(works) > 1:
            for work in works:
                await self._commit([work])
            return
        log.error("part refused", extra={"execution_id": works[0].execution_id}, exc_info=error)
        self._again(works[0], fatal=f"{type(error).__name__}: {error}")

    def _settle(self, work: ExecutionBatch, outcome: Outcome, epochs: dict[int, int]) -> None:
        match outcome:
            case Appended():
                self._applied(work, outcome)
            case Known():
                self._known(work, outcome.key)
            case StaleAttempt():
                self._stale(work, outcome.held)
            case StateChanged():
                self._state_changed(work, outcome)
            case ShardLost():
                self._shards.drop(outcome.shard, epochs.get(outcome.shard))
                self._give_up([work], work.all_items())
            case _:
                assert_never(outcome)

    def _applied(self, work: ExecutionBatch, outcome: Appended) -> None:
        if work.loaded is not None and work.state is not None:
            loaded = LoadedState(work.loaded.fixed, work.state, outcome.last_seq)
            if self._shards.owns(work.shard):
                self._states.keep(work.execution_id, loaded)
            if not work.aside:
                self._aside.discard(work.execution_id)
        work.hand_out()
        for item, answer in work.items:
            item.reply(answer)

    def _known(self, work: ExecutionBatch, key: str | None) -> None:
        """Decide again from the log as it is. With a key everything else was in order: that item's event is recorded."""
        self._states.forget(work.execution_id)
        work.give_back()
        if key is not None:
            twice = [item for item, keys in work.keys.items() if key in keys]
            if twice:
                twice[-1].known = True
                self._requeue(work.all_items())
            elif work.loaded is None:  # its quarantine is in the log already
                self._requeue(work.all_items())
            else:
                self._again(work, fatal=f"what was decided is in the log already: {key}")
            return
        again = []
        for item in work.all_items():
            item.tries += 1
            if item.report is not None and item.tries < TRIES:
                again.append(item)
            else:
                item.reply("retry")  # rows are read again by their duty
        self._requeue(again)

    def _state_changed(self, work: ExecutionBatch, outcome: StateChanged) -> None:
        """Decide again from the log as it is, with what was found there."""
        self._states.forget(work.execution_id)
        work.give_back()
        items = work.all_items()
        conflict = StateConflict(
            name=outcome.name,
            expected=0,
            version=outcome.version,
            by=outcome.by,
            is_full=outcome.is_full,
        )
        if any(
            item.conflicts.get(outcome.name) == conflict for item in items
        ):  # it was told, and writes all the same
            self._again(
                work,
                fatal=f"state.{outcome.name} is written over version {outcome.version} again and again",
            )
            return
        for item in items:
            item.conflicts = {**item.conflicts, outcome.name: conflict}
        self._requeue(items)

    def _again(self, work: ExecutionBatch, fatal: str) -> None:
        """The same decision would fail the same way: its last item takes the execution out."""
        self._states.forget(work.execution_id)
        work.give_back()
        items = work.all_items()
        decided = [item for item in items if item in work.keys] or items
        if decided and decided[-1].fatal is None:
            decided[-1].fatal = fatal
            self._requeue(items)
        else:
            self._give_up([work], items)

    def _stale(self, work: ExecutionBatch, held: LeaseKey) -> None:
        work.give_back()
        again = []
        for item in work.all_items():
            report = item.report
            if report is not None and LeaseKey(report.command_id, report.attempt) == held:
                item.reply("stale")
            else:
                again.append(item)
        self._requeue(again)

    def _requeue(self, items: list[Inbound]) -> None:
        self._queue.extendleft(reversed(items))
        if items:
            self._arrived.set()

    async def _take_aside(self, works: list[ExecutionBatch]) -> None:
        """Reports to a quarantined execution are accepted into its inbox: their worker is done with them."""
        for item in [item for work in works for item in work.left if not item.answer.done()]:
            if item in self._queue:
                continue
            if item.report is None:
                item.reply("retry")
            else:
                item.reply("ok" if await self._log.accept(item.report) else "stale")

    async def _hint(self, works: list[ExecutionBatch], outcomes: list[Outcome]) -> None:
        """After the commit: a worker must not look for a command that is not there. A lost hint only delays."""
        applied = [
            (work, outcome)
            for work, outcome in zip(works, outcomes, strict=True)
            if isinstance(outcome, Appended)
        ]
        pools = sorted({pool for work, _ in applied for pool in work.pools()})
        self._waiting.wake(pools)  # here at once; elsewhere by the bus
        for pool in pools:
            await self._bus.publish(bus_port.commands(pool))
        for shard in sorted({shard for _, outcome in applied for shard in outcome.inboxes}):
            await self._bus.publish(bus_port.inbox(shard))
        for work, outcome in zip(works, outcomes, strict=True):
            if isinstance(outcome, Known):
                await self._bus.publish(bus_port.inbox(work.shard))

    def _shard_changed(self, shard: int) -> None:
        """Whatever was known of it was known under another epoch."""
        self._states.forget_all(
            each for each in self._states.kept() if self._shards.of(each) == shard
        )
        self._aside = {each for each in self._aside if self._shards.of(each) != shard}
