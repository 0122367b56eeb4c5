"""The shell around the engine. Items that arrive while an append is in flight form the next batch.

The dispatcher interprets each item and advances the state of its execution; later items of the same
execution build on that state. One append writes the whole batch. The dispatcher answers no item,
caches no state and hands out no command before the append is confirmed. It then acts per execution:

  appended         keep the state, answer the items, hand commands to waiting workers, send hints
  known            the state was outdated, or a row was gone: forget the state, reload it, decide
                   again; duties read inbox rows and timers again
  stale attempt    refuse the report, decide the rest of the part again
  state changed    a playbook state value has another version by now: reload, decide again with that
                   fact
  shard lost       drop the shard and its states, answer the items with `retry`
  unavailable      the outcome may be unknown: forget the states, answer `retry`; keys absorb repeats

If folding or deciding an execution raises, the dispatcher quarantines that execution. It writes the
quarantine event; messages wait in the inbox until the release. Other executions continue.
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
from noetl.model.messages import (
    Admitted,
    LeaseLost,
    Message,
    Release,
    Report,
    Start,
    StoredRef,
    TimerDue,
)
from noetl.model.playbook_state import StateValue
from noetl.playbook.plan import Plan
from noetl.server.children import Children
from noetl.server.shards import OwnedShards
from noetl.server.states import LoadedState, States, Unfoldable
from noetl.server.waiting import Waiting
from noetl.server.work import Answer, BatchBudget, ExecutionBatch, Inbound
from noetl.turns import TimeSlice

log = logging.getLogger(__name__)

TRIES = 3  # decisions from a reloaded state before the worker has to send its report again
PREFETCH = 64  # executions loaded together when they are not in memory
FIRST_DELAY = 0.05  # seconds between batches while the store is unavailable; doubled each time
LONGEST_DELAY = 2.0
LATELY = 10.0  # seconds; callers that were answered `retry` have tried again by then
REFUSED: dict[str, Answer] = {
    "known": "ok",
    "stale": "stale",
    "unknown": "stale",
    "terminal": "refused",
    "full": "refused",
}


class Dispatcher:
    """Decides and commits everything that reaches the executions of owned shards."""

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
        time_slice_s: float | None = None,
    ) -> None:
        self._time_slice_s = time_slice_s
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
        # called with the shards that may have new events
        self.on_append: Callable[[Iterable[int]], None] = lambda shards: None
        shards.on_change.append(self._shard_changed)

    # -- taking items --

    # These are no coroutines, so that items are decided in the order of the calls, even if their
    # answers are awaited in another order.

    def report(self, report: Report) -> "asyncio.Future[Answer]":
        """Submit a report of a worker."""
        return self._submit(report.execution_id, report)

    def deliver(self, row: InboxRow) -> "asyncio.Future[Answer]":
        """Submit an inbox row."""
        return self._submit(row.execution_id, row.message, inbox_id=row.inbox_id)

    def fire(self, execution_id: ExecutionId, timer: TimerId) -> "asyncio.Future[Answer]":
        """Submit a due timer."""
        return self._submit(execution_id, TimerDue(timer=timer), timer=timer)

    def aside(self) -> frozenset[ExecutionId]:
        """Executions known to be quarantined. Their inbox rows are not to be delivered."""
        return frozenset(self._aside)

    def trouble(self) -> Unavailable | None:
        """The last write error; None if a write succeeded since, or if it is some seconds old."""
        if self._trouble is None:
            return None
        error, failed_at = self._trouble
        age = asyncio.get_running_loop().time() - failed_at
        return None if age > LATELY else error

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
        """Commit batches until cancelled. Items that are left are answered `retry`."""
        try:
            while True:
                await self._arrived.wait()
                await self.commit_waiting()
        finally:
            self._closed = True
            for item in self._queue:
                item.reply("retry")

    async def commit_waiting(self) -> int:
        """Decide the queued items and write them as one batch. Returns how many were answered."""
        works: dict[ExecutionId, ExecutionBatch] = {}
        items: list[Inbound] = []
        try:
            await self._decide_waiting(works, items)
            await self._commit(list(works.values()))
        except Unavailable as error:
            log.warning("the store is not there", extra={"error": str(error), "delay": self._delay})
            self._trouble = error, asyncio.get_running_loop().time()
            self._give_up(works.values(), items)
            await self._back_off()
        except Exception:  # this loop must survive; the items are decided again
            log.exception("a batch failed")
            self._give_up(works.values(), items)
            await self._back_off()
        except BaseException:
            self._give_up(works.values(), items)
            raise
        finally:
            if not self._queue:
                self._arrived.clear()
        return sum(item.answer.done() for item in items)

    async def _back_off(self) -> None:
        await asyncio.sleep(self._delay)
        self._delay = min(self._delay * 2, LONGEST_DELAY)

    def _give_up(self, works: Iterable[ExecutionBatch], items: Iterable[Inbound]) -> None:
        """Answer these items with `retry`, because their outcome is uncertain.

        Queued items of the same executions are answered `retry` too: a later report must not
        overtake one that its worker has to send again.
        """
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
        self, works: dict[ExecutionId, ExecutionBatch], items: list[Inbound]
    ) -> None:
        """Decide as many items as fit into a batch, and fill `works` and `items` with them.

        An item that does not fit any more begins the next batch.
        """
        budget = BatchBudget()
        await self._states.begin(
            item.execution_id
            for item in islice(self._queue, BATCH_EVENTS)
            if isinstance(item.message, Start)
        )
        await self._states.prefetch(item.execution_id for item in islice(self._queue, PREFETCH))
        time_slice = TimeSlice(self._time_slice_s)
        while self._queue and budget.events > 0 and len(items) < BATCH_EVENTS:
            if time_slice.over:
                await time_slice.pause()
                continue  # the queue may have changed during the pause
            item = self._queue.popleft()
            items.append(item)
            work = works.get(item.execution_id) or await self._open(item.execution_id)
            if work is None:
                item.reply("retry")
                continue
            if not await self._add(work, item, budget):
                self._queue.appendleft(items.pop())
                return
            works[item.execution_id] = work

    async def _open(self, execution_id: ExecutionId) -> ExecutionBatch | None:
        """Load the execution; None if this server no longer owns its shard."""
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
        """A quarantined batch without a state.

        It writes the quarantine event unless this server already knows of the quarantine.
        """
        work = ExecutionBatch(execution_id, shard, after=error.seq, aside=True)
        if execution_id not in self._aside:
            log.error(
                "execution cannot be folded",
                extra={"execution_id": execution_id, "error": str(error)},
            )
            event = quarantine(error.state, str(error), error.cause, self._clock.now())
            work.set_aside(event)
            self._aside.add(execution_id)
        return work

    async def _add(self, work: ExecutionBatch, item: Inbound, budget: BatchBudget) -> bool:
        """Decide one item on top of the others. False if its events do not fit into this batch."""
        if item.known:
            work.consume(item, "ok")
            return True
        if work.loaded is None and not work.aside:
            work.consume(item, "stale")
            return True
        if work.aside:
            can_release = isinstance(item.message, Release) and work.loaded is not None
            if not can_release:
                self._set_aside(work, item)
                return True
        try:
            return await self._decide(work, item, budget)
        except Unavailable:
            raise
        except Exception as error:  # any other error concerns only this execution
            self._quarantine(work, item, error)
            return True

    async def _decide(self, work: ExecutionBatch, item: Inbound, budget: BatchBudget) -> bool:
        """Interpret the item and advance the state. False if its events do not fit."""
        assert work.loaded is not None
        assert work.state is not None
        if item.fatal is not None:
            raise RuntimeError(item.fatal)
        fixed = work.loaded.fixed
        retried = await self._retried(item.message, fixed.plan)
        message = await self._children.pins.at_call(item.message, work.state, fixed.tenant)
        stored = await self._stored_state(work, message)
        now = self._clock.now()
        events = interpret(fixed, work.state, message, now, retried=retried, stored=stored)
        if isinstance(events, Refusal):
            self._refuse(work, item, events)
            return True
        if item.conflicts:
            events = with_conflicts(work.state, events, item.conflicts, now)
        advanced = advance(fixed, work.state, *events)
        report = item.report
        refs: tuple[StoredRef, ...] = ()
        payload_bytes = 0
        if report is not None:
            refs = report.refs
            payload_bytes = sum([len(ref.payload or b"") for ref in refs])
        encoded = [check_size(event) for event in advanced.events]
        if not budget.take(len(encoded), payload_bytes + sum(map(len, encoded))):
            return False
        prepared = await self._children.prepare(fixed.tenant, advanced.effects, refs)
        work.record(item, events, advanced, encoded, prepared)
        return True

    def _refuse(self, work: ExecutionBatch, item: Inbound, refusal: Refusal) -> None:
        """Consume the item without an event.

        A refused `CommandCancelled` means that the worker stopped by itself and gave its lease up:
        if its attempt is still the current one, the execution learns that the lease is lost.
        """
        work.consume(item, REFUSED[refusal.reason])
        report = item.message
        if not isinstance(report, Report) or not isinstance(report.event, CommandCancelled):
            return
        if work.state is None:
            return
        live = work.state.commands.get(report.command_id)
        if live is not None and live.attempt == report.attempt:
            lost = LeaseLost(
                command_id=report.command_id, attempt=report.attempt, worker=report.worker
            )
            work.effects.append(Send(work.execution_id, lost))

    async def _retried(self, message: Message, plan: Plan) -> Execution | None:
        """The state of the execution that a `Start` repeats; rewound if the start names a step.

        That execution has ended, so its state is final. None for any other message.
        """
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
        """The playbook's state values if this message admits the execution.

        None if it does not admit it (a start that waits for a place is admitted later), or if the
        playbook uses no state. `plan.state_names` is None if the names are not known beforehand:
        all values are read then.
        """
        assert work.loaded is not None
        if not isinstance(message, Start | Admitted):
            return None
        plan = work.loaded.fixed.plan
        names = plan.state_names
        if names is not None and not names:
            return None
        path = ""
        if isinstance(message, Start):
            if plan.playbook.executor.spec.max_concurrent is not None:
                return None
            path = message.path
        elif work.state is not None:
            path = work.state.path
        wanted = None if names is None else sorted(names)
        rows = await self._log.read_state(work.loaded.fixed.tenant, path, wanted)
        return {row.name: StateValue(row.version, row.value, row.unset) for row in rows}

    def _quarantine(self, work: ExecutionBatch, item: Inbound, error: Exception) -> None:
        """Quarantine the execution because deciding this item has failed."""
        assert work.state is not None
        text = f"{type(error).__name__}: {error}"
        log.error(
            "execution quarantined",
            extra={"execution_id": work.execution_id, "error": text},
            exc_info=error,
        )
        # The position makes the cause unique: the same message may fail again after a release.
        cause = f"{item.message.key}@{work.after}.{len(work.events)}"
        event = quarantine(work.state, text, cause, self._clock.now())
        work.set_aside(event)
        work.state = evolve(work.state, event)
        self._set_aside(work, item)

    def _set_aside(self, work: ExecutionBatch, item: Inbound) -> None:
        """Keep an item of a quarantined execution in its inbox, or move it there."""
        self._aside.add(work.execution_id)
        if item.timer is not None:
            work.effects.append(Send(work.execution_id, TimerDue(timer=item.timer)))
            work.consume(item, "ok")
        elif isinstance(item.message, Release):
            work.consume(item, "refused")  # the log still cannot be folded
        else:
            work.left.append(item)

    # -- writing --

    async def _commit(self, works: list[ExecutionBatch]) -> None:
        """Append these batches, act on each outcome, and send hints."""
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
        """None if the store refused the batch as a whole and its parts were tried one by one."""
        batch = AppendBatch(
            epochs=epochs, parts=tuple(work.part() for work in works), lease=self._lease
        )
        fault("append.before")
        try:
            outcomes = await self._log.append(batch)
        except Unavailable:
            raise
        except Exception as error:  # a violated constraint without an outcome: a bug in one part
            await self._isolate(works, error)
            return None
        finally:
            # Not earlier: before the commit a reader finds nothing new. Also after an error,
            # because the batch may have been written all the same.
            self.on_append({work.shard for work in works})
        fault("append.after")
        return outcomes

    async def _isolate(self, works: list[ExecutionBatch], error: Exception) -> None:
        """Append the parts one by one, so that only the faulty one fails."""
        for work in works:
            work.give_back()
        if len(works) > 1:
            for work in works:
                await self._commit([work])
            return
        log.error("part refused", extra={"execution_id": works[0].execution_id}, exc_info=error)
        self._again(works[0], fatal=f"{type(error).__name__}: {error}")

    def _settle(self, work: ExecutionBatch, outcome: Outcome, epochs: dict[int, int]) -> None:
        """Act on the outcome of one part; the module docstring lists the outcomes."""
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
        """Cache the new state, hand out commands and answer the items."""
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
        """Reload the state from the log and decide again.

        A key says that the event with this key is in the log already, and nothing else was wrong.
        """
        self._states.forget(work.execution_id)
        work.give_back()
        if key is not None:
            self._mark_known(work, key)
            return
        repeats = []
        for item in work.all_items():
            item.tries += 1
            if item.report is not None and item.tries < TRIES:
                repeats.append(item)
            else:
                item.reply("retry")  # a duty reads inbox rows and timers again
        self._requeue(repeats)

    def _mark_known(self, work: ExecutionBatch, key: str) -> None:
        """Decide again, with the item of this key marked as recorded.

        If no item has the key, a decided event is in the log already: quarantine the execution.
        """
        duplicates = [item for item, keys in work.keys.items() if key in keys]
        if duplicates:
            duplicates[-1].known = True
            self._requeue(work.all_items())
        elif work.loaded is None:  # its quarantine is in the log already
            self._requeue(work.all_items())
        else:
            self._again(work, fatal=f"what was decided is in the log already: {key}")

    def _state_changed(self, work: ExecutionBatch, outcome: StateChanged) -> None:
        """Reload the state and decide again, with the version that the append found as a fact."""
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
        told_before = any(item.conflicts.get(outcome.name) == conflict for item in items)
        if told_before:
            name, version = outcome.name, outcome.version
            fatal = f"state.{name} is written over version {version} again and again"
            self._again(work, fatal=fatal)
            return
        for item in items:
            item.conflicts = {**item.conflicts, outcome.name: conflict}
        self._requeue(items)

    def _again(self, work: ExecutionBatch, fatal: str) -> None:
        """Decide again, but let the last decided item fail with this message.

        The same decision would fail the same way, so that item quarantines the execution.
        """
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
        """Answer the report of that attempt with `stale`, and decide the other items again."""
        work.give_back()
        repeats = []
        for item in work.all_items():
            report = item.report
            if report is not None and LeaseKey(report.command_id, report.attempt) == held:
                item.reply("stale")
            else:
                repeats.append(item)
        self._requeue(repeats)

    def _requeue(self, items: list[Inbound]) -> None:
        self._queue.extendleft(reversed(items))
        if items:
            self._arrived.set()

    async def _take_aside(self, works: list[ExecutionBatch]) -> None:
        """Accept reports to quarantined executions into their inboxes, so that workers are done."""
        left = [item for work in works for item in work.left]
        for item in left:
            if item.answer.done() or item in self._queue:
                continue
            if item.report is None:
                item.reply("retry")
                continue
            accepted = await self._log.accept(item.report)
            item.reply("ok" if accepted else "stale")

    async def _hint(self, works: list[ExecutionBatch], outcomes: list[Outcome]) -> None:
        """Wake workers and shard owners. A lost hint only delays.

        Called after the commit: before it, a worker would look for a command that is not there.
        """
        pools: set[str] = set()
        inboxes: set[int] = set()
        known_shards: list[int] = []
        for work, outcome in zip(works, outcomes, strict=True):
            if isinstance(outcome, Appended):
                pools |= work.pools()
                inboxes.update(outcome.inboxes)
            elif isinstance(outcome, Known):
                known_shards.append(work.shard)
        sorted_pools = sorted(pools)
        self._waiting.wake(sorted_pools)  # this server's workers; the bus wakes the others
        for pool in sorted_pools:
            await self._bus.publish(bus_port.commands(pool))
        for shard in (*sorted(inboxes), *known_shards):
            await self._bus.publish(bus_port.inbox(shard))

    def _shard_changed(self, shard: int) -> None:
        """Forget the states of this shard: they were loaded under another epoch."""
        stale_states = [
            execution_id
            for execution_id in self._states.kept()
            if self._shards.of(execution_id) == shard
        ]
        self._states.forget_all(stale_states)
        self._aside = {
            execution_id for execution_id in self._aside if self._shards.of(execution_id) != shard
        }
