"""The shell around the engine. Items that arrive while an append is in flight form the next batch.

That batch is decided while the append is in flight, except for items of executions that the append
writes: their states are not confirmed yet. It is written when the append has ended. The dispatcher
interprets each item and advances the state of its execution; later items of the same
execution build on that state. One append writes the whole batch. The dispatcher answers no item,
caches no state and hands out no command before the append is confirmed. It then acts per execution:

  appended         keep the state, answer the items, hand commands to waiting workers, send hints
  known            the state was outdated, or a row was gone: forget the state, reload it, decide
                   again; duties read inbox rows and timers again
  stale attempt    refuse the report, decide the rest of the part again
  state changed    a playbook state value has another version by now: reload, decide again with that
                   fact
  shard lost       drop the shard and its states, answer the items with `retry`
  unavailable      the outcome may be unknown: forget the states, answer `retry`; repeats are known

If folding or deciding an execution raises, the dispatcher quarantines that execution. It writes the
quarantine event; messages wait in the inbox until the release. Other executions continue.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from itertools import islice
from typing import assert_never

from noetl.backoff import Backoff
from noetl.bus import port as bus_port
from noetl.bus.port import Bus
from noetl.engine.fold import evolve
from noetl.engine.interpretation import Refusal, add_conflicts, interpret
from noetl.engine.machine import advance, make_quarantined
from noetl.engine.state import Execution
from noetl.faults import hit_fault_point
from noetl.log.events.limits import check_size
from noetl.log.events.port import (
    MAX_BATCH_EVENTS,
    AppendBatch,
    Appended,
    EventLog,
    Known,
    Outcome,
    ShardLost,
    StaleAttempt,
    StateChanged,
)
from noetl.log.inbox.port import Inbox, InboxRow
from noetl.log.playbook_state.port import PlaybookStateStore
from noetl.model.clock import Clock
from noetl.model.decisions import Send
from noetl.model.errors import Unavailable
from noetl.model.events import CommandCancelled, CommandParked, StateConflict
from noetl.model.exchange import LeaseKey
from noetl.model.ids import ExecutionId, Micros, Tenant, TimerId
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
from noetl.server.dispatch.children import Children
from noetl.server.dispatch.execution_batch import Answer, BatchBudget, ExecutionBatch, InboundItem
from noetl.server.dispatch.shards import OwnedShards
from noetl.server.dispatch.states import LoadedState, States, Unfoldable
from noetl.server.observer import CommitObserver
from noetl.server.workers.handoff import TenantPool, WaitingWorkers
from noetl.time_slice import TimeSlice

log = logging.getLogger(__name__)

MAX_DECISION_TRIES = (
    3  # decisions from a reloaded state before the worker has to send its report again
)
PREFETCH_EXECUTIONS = 64  # executions loaded together when they are not in memory
MIN_BACKOFF_S = 0.05  # seconds between batches while the store is unavailable; doubled each time
MAX_BACKOFF_S = 2.0
WRITE_ERROR_TTL_S = 10.0  # seconds; callers that were answered `retry` have tried again by then
ANSWER_BY_REFUSAL: dict[str, Answer] = {
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
        log: EventLog,
        inbox: Inbox,
        playbook_state: PlaybookStateStore,
        bus: Bus,
        clock: Clock,
        shards: OwnedShards,
        states: States,
        children: Children,
        waiting: WaitingWorkers,
        observer: CommitObserver,
        *,
        lease: Micros,
        time_slice_s: float | None = None,
    ) -> None:
        self._time_slice_s = time_slice_s
        self._log = log
        self._inbox = inbox
        self._playbook_state = playbook_state
        self._bus = bus
        self._clock = clock
        self._shards = shards
        self._states = states
        self._children = children
        self._waiting = waiting
        self._observer = observer
        self._lease = lease
        self._queue: deque[InboundItem] = deque()
        # Both go before the queue: items to decide again, and items of executions that are written.
        self._repeated: deque[InboundItem] = deque()
        self._held_back: deque[InboundItem] = deque()
        self._writing: asyncio.Task[None] | None = None
        self._written_ids: frozenset[ExecutionId] = frozenset()
        self._arrived = asyncio.Event()
        self._quarantined_ids: set[ExecutionId] = set()
        self._backoff = Backoff(MIN_BACKOFF_S, MAX_BACKOFF_S)
        self._closed = False
        self._write_error: tuple[Unavailable, float] | None = None
        # called with the shards that may have new events
        self.on_append: list[Callable[[Iterable[int]], None]] = []  # called with the shards
        self.on_end: Callable[[], None] = lambda: None  # called when executions have ended
        shards.on_change.append(self._forget_shard)

    # -- taking items --

    # These are no coroutines, so that items are decided in the order of the calls, even if their
    # answers are awaited in another order.

    def submit_report(self, tenant: Tenant, report: Report) -> "asyncio.Future[Answer]":
        """Submit a report of a worker of this tenant."""
        return self._submit_message(report.execution_id, report, tenant=tenant)

    def deliver(self, row: InboxRow) -> "asyncio.Future[Answer]":
        """Submit an inbox row."""
        return self._submit_message(row.execution_id, row.message, inbox_id=row.inbox_id)

    def fire_timer(self, execution_id: ExecutionId, timer: TimerId) -> "asyncio.Future[Answer]":
        """Submit a due timer."""
        return self._submit_message(execution_id, TimerDue(timer=timer), timer=timer)

    def list_quarantined(self) -> frozenset[ExecutionId]:
        """Executions known to be quarantined. Their inbox rows are not to be delivered."""
        return frozenset(self._quarantined_ids)

    def get_write_error(self) -> Unavailable | None:
        """The last write error; None if a write succeeded since, or if it is some seconds old."""
        if self._write_error is None:
            return None
        error, failed_at = self._write_error
        age = asyncio.get_running_loop().time() - failed_at
        return None if age > WRITE_ERROR_TTL_S else error

    def _submit_message(
        self,
        execution_id: ExecutionId,
        message: Message,
        *,
        inbox_id: int | None = None,
        timer: TimerId | None = None,
        tenant: Tenant | None = None,
    ) -> "asyncio.Future[Answer]":
        answer = asyncio.get_running_loop().create_future()
        item = InboundItem(execution_id, message, answer, inbox_id, timer, tenant)
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
                await self._run_round()
        finally:
            self._closed = True
            if self._writing is not None:
                self._writing.cancel()
                await asyncio.gather(self._writing, return_exceptions=True)
            for item in self._take_waiting():
                item.reply("retry")

    def is_idle(self) -> bool:
        """Whether nothing waits to be decided or written."""
        return self._writing is None and not (self._queue or self._repeated or self._held_back)

    async def _run_round(self) -> None:
        """Decide the waiting items, and begin to write them once the append in flight has ended."""
        self._queue = self._take_waiting()
        works: dict[ExecutionId, ExecutionBatch] = {}
        items: list[InboundItem] = []
        async with self._retry_on_error(works, items):
            await self._decide_waiting(works, items)
            if self._writing is not None:
                await self._writing
            if works:
                self._written_ids = frozenset(works)
                self._writing = asyncio.ensure_future(self._write_batch(works, items))
        if not (self._queue or self._repeated or self._held_back):
            self._arrived.clear()

    def _take_waiting(self) -> deque[InboundItem]:
        """All items that wait, in the order in which they are to be decided."""
        waiting = self._repeated + self._held_back + self._queue
        self._repeated, self._held_back, self._queue = deque(), deque(), deque()
        return waiting

    async def _write_batch(
        self, works: dict[ExecutionId, ExecutionBatch], items: list[InboundItem]
    ) -> None:
        try:
            async with self._retry_on_error(works, items):
                await self._commit_batches(list(works.values()))
        finally:
            self._written_ids = frozenset()
            self._writing = None

    @asynccontextmanager
    async def _retry_on_error(
        self, works: dict[ExecutionId, ExecutionBatch], items: list[InboundItem]
    ) -> AsyncIterator[None]:
        """Answer these items with `retry` if an error ends the block, and pause."""
        try:
            yield
        except Unavailable as error:
            delay = self._backoff.delay
            log.warning("the store is not there", extra={"error": str(error), "delay": delay})
            self._write_error = error, asyncio.get_running_loop().time()
            self._answer_retry(works.values(), items)
            await self._back_off()
        except Exception:  # this loop must survive; the items are decided again
            log.exception("a batch failed")
            self._answer_retry(works.values(), items)
            await self._back_off()
        except BaseException:
            self._answer_retry(works.values(), items)
            raise

    async def _back_off(self) -> None:
        await asyncio.sleep(self._backoff.delay)
        self._backoff.count_failure()

    def _answer_retry(self, works: Iterable[ExecutionBatch], items: Iterable[InboundItem]) -> None:
        """Answer these items with `retry`, because their outcome is uncertain.

        Queued items of the same executions are answered `retry` too: a later report must not
        overtake one that its worker has to send again.
        """
        for work in works:
            work.give_back()
        given_up = list(items)
        executions = {item.execution_id for item in given_up}
        for waiting in (self._repeated, self._held_back, self._queue):
            overtaking = [item for item in waiting if item.execution_id in executions]
            for item in overtaking:
                waiting.remove(item)
            given_up += overtaking
        self._states.forget_all(executions)
        for item in given_up:
            item.reply("retry")

    # -- deciding --

    async def _decide_waiting(
        self, works: dict[ExecutionId, ExecutionBatch], items: list[InboundItem]
    ) -> None:
        """Decide as many items as fit into a batch, and fill `works` and `items` with them.

        An item that does not fit any more begins the next batch. Items of executions that are
        being written are held back, also if the append ends meanwhile, so that their order stays.
        """
        budget = BatchBudget()
        written_ids = self._written_ids
        await self._states.assume_new(
            item.execution_id
            for item in islice(self._queue, MAX_BATCH_EVENTS)
            if isinstance(item.message, Start) and item.execution_id not in written_ids
        )
        await self._states.prefetch(
            item.execution_id
            for item in islice(self._queue, PREFETCH_EXECUTIONS)
            if item.execution_id not in written_ids
        )
        time_slice = TimeSlice(self._time_slice_s)
        while self._queue and budget.events > 0 and len(items) < MAX_BATCH_EVENTS:
            if time_slice.is_used_up:
                await time_slice.pause()
                continue  # the queue may have changed during the pause
            item = self._queue.popleft()
            if item.execution_id in written_ids:
                self._held_back.append(item)
                continue
            items.append(item)
            work = works.get(item.execution_id) or await self._open_batch(item.execution_id)
            if work is None:
                item.reply("retry")
                continue
            if not await self._add_item(work, item, budget):
                self._queue.appendleft(items.pop())
                return
            works[item.execution_id] = work

    async def _open_batch(self, execution_id: ExecutionId) -> ExecutionBatch | None:
        """Load the execution; None if this server no longer owns its shard."""
        shard = self._shards.find_shard(execution_id)
        if not self._shards.owns(shard):
            return None
        try:
            loaded = await self._states.get(execution_id)
        except Unfoldable as error:
            return self._quarantine_unfoldable(execution_id, shard, error)
        if loaded is None:
            return ExecutionBatch(execution_id, shard, after=0)
        aside = loaded.state.quarantined is not None
        if not aside:
            self._quarantined_ids.discard(execution_id)
        return ExecutionBatch(
            execution_id,
            shard,
            after=loaded.seq,
            tenant=loaded.fixed.tenant,
            loaded=loaded,
            state=loaded.state,
            is_quarantined=aside,
        )

    def _quarantine_unfoldable(
        self, execution_id: ExecutionId, shard: int, error: Unfoldable
    ) -> ExecutionBatch:
        """A quarantined batch without a state.

        It writes the quarantine event unless this server already knows of the quarantine.
        """
        work = ExecutionBatch(
            execution_id, shard, after=error.seq, tenant=error.tenant, is_quarantined=True
        )
        if execution_id not in self._quarantined_ids:
            log.error(
                "execution cannot be folded",
                extra={"execution_id": execution_id, "error": str(error)},
            )
            event = make_quarantined(error.state, str(error), error.cause, self._clock.now())
            work.quarantine_with(event)
            self._quarantined_ids.add(execution_id)
        return work

    async def _add_item(self, work: ExecutionBatch, item: InboundItem, budget: BatchBudget) -> bool:
        """Decide one item on top of the others. False if its events do not fit into this batch."""
        if item.known:
            work.consume_item(item, "ok")
            return True
        if work.loaded is None and not work.is_quarantined:
            work.consume_item(item, "stale")
            return True
        if item.tenant not in (None, work.tenant):
            work.consume_item(item, "stale")  # as for an execution that does not exist
            return True
        if work.is_quarantined:
            can_release = isinstance(item.message, Release) and work.loaded is not None
            if not can_release:
                self._leave_in_inbox(work, item)
                return True
        try:
            return await self._decide_item(work, item, budget)
        except Unavailable:
            raise
        except Exception as error:  # any other error concerns only this execution
            self._quarantine_execution(work, item, error)
            return True

    async def _decide_item(
        self, work: ExecutionBatch, item: InboundItem, budget: BatchBudget
    ) -> bool:
        """Interpret the item and advance the state. False if its events do not fit."""
        assert work.loaded is not None
        assert work.state is not None
        if item.fatal is not None:
            raise RuntimeError(item.fatal)
        fixed = work.loaded.fixed
        message = item.message
        retried: Execution | None = None
        stored: dict[str, StateValue] | None = None
        if isinstance(message, Report):
            if isinstance(message.event, CommandParked):
                message = await self._children.pins.pin_at_call(message, work.state, fixed.tenant)
        elif isinstance(message, Start | Admitted):
            retried = await self._read_repeated_state(message, fixed.plan)
            stored = await self._read_playbook_state(work, message)
        now = self._clock.now()
        events = interpret(fixed, work.state, message, now, retried=retried, stored=stored)
        if isinstance(events, Refusal):
            self._refuse_item(work, item, events)
            return True
        if item.conflicts:
            events = add_conflicts(work.state, events, item.conflicts, now)
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
        work.record_decision(item, events, advanced, encoded, prepared)
        return True

    def _refuse_item(self, work: ExecutionBatch, item: InboundItem, refusal: Refusal) -> None:
        """Consume the item without an event.

        A refused `CommandCancelled` means that the worker stopped by itself and gave its lease up:
        if its attempt is still the current one, the execution learns that the lease is lost.
        """
        work.consume_item(item, ANSWER_BY_REFUSAL[refusal.reason])
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

    async def _read_repeated_state(self, message: Start | Admitted, plan: Plan) -> Execution | None:
        """The state of the execution that a `Start` repeats; rewound if the start names a step.

        That execution has ended, so its state is final. None if the message repeats none.
        """
        if not isinstance(message, Start) or message.retry_of is None:
            return None
        if message.from_step is not None:
            rewound = await self._states.rewind_execution(message.retry_of, message.from_step, plan)
            return None if rewound is None else rewound.state
        loaded = await self._states.read(message.retry_of)
        return None if loaded is None else loaded.state

    async def _read_playbook_state(
        self, work: ExecutionBatch, message: Start | Admitted
    ) -> dict[str, StateValue] | None:
        """The playbook's state values if this message admits the execution.

        None if it does not admit it (a start that waits for a place is admitted later), or if the
        playbook uses no state. `plan.state_names` is None if the names are not known beforehand:
        all values are read then.
        """
        assert work.loaded is not None
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
        rows = await self._playbook_state.read_state(work.loaded.fixed.tenant, path, wanted)
        return {row.name: StateValue(row.version, row.value, row.unset) for row in rows}

    def _quarantine_execution(
        self, work: ExecutionBatch, item: InboundItem, error: Exception
    ) -> None:
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
        event = make_quarantined(work.state, text, cause, self._clock.now())
        work.quarantine_with(event)
        work.state = evolve(work.state, event)
        self._leave_in_inbox(work, item)

    def _leave_in_inbox(self, work: ExecutionBatch, item: InboundItem) -> None:
        """Keep an item of a quarantined execution in its inbox, or move it there."""
        self._quarantined_ids.add(work.execution_id)
        if item.timer is not None:
            work.effects.append(Send(work.execution_id, TimerDue(timer=item.timer)))
            work.consume_item(item, "ok")
        elif isinstance(item.message, Release):
            work.consume_item(item, "refused")  # the log still cannot be folded
        else:
            work.left_items.append(item)

    # -- writing --

    async def _commit_batches(self, works: list[ExecutionBatch]) -> None:
        """Append these batches, act on each outcome, and send hints."""
        if not works:
            return
        for work in works:
            work.reserve_places(self._waiting)
        epochs = self._shards.copy_epochs()
        outcomes = await self._append_batches(works, epochs)
        if outcomes is None:
            return
        self._backoff.reset()
        self._write_error = None
        for work, outcome in zip(works, outcomes, strict=True):
            self._settle_outcome(work, outcome, epochs)
        await self._accept_left_reports(works)
        await self._send_hints(works, outcomes)

    async def _append_batches(
        self, works: list[ExecutionBatch], epochs: dict[int, int]
    ) -> list[Outcome] | None:
        """None if the store refused the batch as a whole and its parts were tried one by one."""
        batch = AppendBatch(
            epochs=epochs,
            parts=tuple(work.make_execution_part() for work in works),
            lease=self._lease,
        )
        hit_fault_point("append.before")
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            outcomes = await self._log.append(batch)
        except Unavailable:
            raise
        except Exception as error:  # a violated constraint without an outcome: a bug in one part
            await self._append_one_by_one(works, error)
            return None
        finally:
            # Not earlier: before the commit a reader finds nothing new. Also after an error,
            # because the batch may have been written all the same.
            shards = {work.shard for work in works}
            for hear in self.on_append:
                hear(shards)
        self._observer.observe_append(batch, outcomes, loop.time() - began)
        hit_fault_point("append.after")
        return outcomes

    async def _append_one_by_one(self, works: list[ExecutionBatch], error: Exception) -> None:
        """Append the parts one by one, so that only the faulty one fails."""
        for work in works:
            work.give_back()
        if len(works) > 1:
            for work in works:
                await self._commit_batches([work])
            return
        log.error("part refused", extra={"execution_id": works[0].execution_id}, exc_info=error)
        self._requeue_with_error(works[0], fatal=f"{type(error).__name__}: {error}")

    def _settle_outcome(
        self, work: ExecutionBatch, outcome: Outcome, epochs: dict[int, int]
    ) -> None:
        """Act on the outcome of one part; the module docstring lists the outcomes."""
        match outcome:
            case Appended():
                self._finish_appended(work, outcome)
            case Known():
                self._retry_known(work, outcome.key)
            case StaleAttempt():
                self._refuse_stale(work, outcome.held)
            case StateChanged():
                self._retry_changed_state(work, outcome)
            case ShardLost():
                self._shards.drop(outcome.shard, epochs.get(outcome.shard))
                self._answer_retry([work], work.all_items())
            case _:
                assert_never(outcome)

    def _finish_appended(self, work: ExecutionBatch, outcome: Appended) -> None:
        """Cache the new state, hand out commands and answer the items."""
        if work.loaded is not None and work.state is not None:
            loaded = LoadedState(work.loaded.fixed, work.state, outcome.last_seq)
            if self._shards.owns(work.shard):
                self._states.cache_state(work.execution_id, loaded)
            if not work.is_quarantined:
                self._quarantined_ids.discard(work.execution_id)
            if work.state.terminal:
                self.on_end()
        work.hand_out_commands()
        for item, answer in work.items:
            item.reply(answer)

    def _retry_known(self, work: ExecutionBatch, key: str | None) -> None:
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
            if item.report is not None and item.tries < MAX_DECISION_TRIES:
                repeats.append(item)
            else:
                item.reply("retry")  # a duty reads inbox rows and timers again
        self._requeue_items(repeats)

    def _mark_known(self, work: ExecutionBatch, key: str) -> None:
        """Decide again, with the item of this key marked as recorded.

        If no item has the key, a decided event is in the log already: quarantine the execution.
        """
        duplicates = [item for item, keys in work.keys.items() if key in keys]
        if duplicates:
            duplicates[-1].known = True
            self._requeue_items(work.all_items())
        elif work.loaded is None:  # its quarantine is in the log already
            self._requeue_items(work.all_items())
        else:
            self._requeue_with_error(work, fatal=f"what was decided is in the log already: {key}")

    def _retry_changed_state(self, work: ExecutionBatch, outcome: StateChanged) -> None:
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
            self._requeue_with_error(work, fatal=fatal)
            return
        for item in items:
            item.conflicts = {**item.conflicts, outcome.name: conflict}
        self._requeue_items(items)

    def _requeue_with_error(self, work: ExecutionBatch, fatal: str) -> None:
        """Decide again, but let the last decided item fail with this message.

        The same decision would fail the same way, so that item quarantines the execution.
        """
        self._states.forget(work.execution_id)
        work.give_back()
        items = work.all_items()
        decided = [item for item in items if item in work.keys] or items
        if decided and decided[-1].fatal is None:
            decided[-1].fatal = fatal
            self._requeue_items(items)
        else:
            self._answer_retry([work], items)

    def _refuse_stale(self, work: ExecutionBatch, held: LeaseKey) -> None:
        """Answer the report of that attempt with `stale`, and decide the other items again."""
        work.give_back()
        repeats = []
        for item in work.all_items():
            report = item.report
            if report is not None and LeaseKey(report.command_id, report.attempt) == held:
                item.reply("stale")
            else:
                repeats.append(item)
        self._requeue_items(repeats)

    def _requeue_items(self, items: list[InboundItem]) -> None:
        self._repeated.extend(items)
        if items:
            self._arrived.set()

    async def _accept_left_reports(self, works: list[ExecutionBatch]) -> None:
        """Accept reports to quarantined executions into their inboxes, so that workers are done."""
        left = [item for work in works for item in work.left_items]
        for item in left:
            if item.answer.done() or item in self._repeated:
                continue
            if item.report is None or item.tenant is None:
                item.reply("retry")
                continue
            accepted = await self._inbox.accept_report(item.tenant, item.report)
            item.reply("ok" if accepted else "stale")

    async def _send_hints(self, works: list[ExecutionBatch], outcomes: list[Outcome]) -> None:
        """Wake workers and shard owners. A lost hint only delays.

        Called after the commit: before it, a worker would look for a command that is not there.
        """
        pools: set[TenantPool] = set()
        inboxes: set[int] = set()
        known_shards: list[int] = []
        for work, outcome in zip(works, outcomes, strict=True):
            if isinstance(outcome, Appended):
                pools |= work.list_hinted_pools()
                inboxes.update(outcome.inboxes)
            elif isinstance(outcome, Known):
                known_shards.append(work.shard)
        sorted_pools = sorted(pools)
        self._waiting.wake_pools(sorted_pools)  # this server's workers; the bus wakes the others
        for tenant, pool in sorted_pools:
            await self._bus.publish(bus_port.make_commands_subject(tenant, pool))
        for shard in (*sorted(inboxes), *known_shards):
            await self._bus.publish(bus_port.make_inbox_subject(shard))

    def _forget_shard(self, shard: int) -> None:
        """Forget the states of this shard: they were loaded under another epoch."""
        stale_states = [
            execution_id
            for execution_id in self._states.list_cached()
            if self._shards.find_shard(execution_id) == shard
        ]
        self._states.forget_all(stale_states)
        self._quarantined_ids = {
            execution_id
            for execution_id in self._quarantined_ids
            if self._shards.find_shard(execution_id) != shard
        }
