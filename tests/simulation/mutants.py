"""Planted protocol bugs: each removes one protection from the real modules, and the simulator must notice.

A harness that finds nothing proves nothing unless it finds these. Where two mechanisms protect the same thing, a mutant takes
both away, since either alone would be enough. `mutants.json` holds the seed that found each; the suite repeats those.
"""

import asyncio
import inspect
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace as dataclass_replace
from itertools import count
from typing import Any

from msgspec.structs import replace

from noetl.engine import interpretation, loops, rules, steps
from noetl.leases.memory import LeasesMemory
from noetl.leases.port import ClaimedShard
from noetl.log.events.append_memory import PartWrite
from noetl.log.events.memory import LogMemory
from noetl.log.events.port import Appended
from noetl.log.inbox.memory import InboxMemory
from noetl.log.playbook_state.append_memory import StateConflicts
from noetl.log.projections.memory import ProjectionsMemory
from noetl.log.projections.port import ShardRows
from noetl.log.queue.memory import QueueMemory
from noetl.log.tables import FINISHED, MemoryDatabase
from noetl.model import codec
from noetl.model import messages as m
from noetl.model.commands import Journal
from noetl.model.decisions import Send
from noetl.model.errors import NoetlError
from noetl.model.exchange import ExchangeRequest
from noetl.model.ids import Tenant
from noetl.pipeline.output.result_writer import ResultWriter
from noetl.pipeline.task import policy
from noetl.results.tiers.memory import ResultsMemory
from noetl.server.dispatch import dispatcher as dispatch
from noetl.server.dispatch.dispatcher import Dispatcher
from noetl.server.dispatch.requests import Requests
from noetl.server.dispatch.states import States
from noetl.server.duties.projector import Projector
from noetl.worker.outbox import Outbox
from noetl.worker.worker import Worker
from tests.simulation.faulty import drive

MUTANTS: dict[str, Callable[[list[str]], AbstractContextManager[None]]] = {}
SLIPS = (TypeError, AttributeError, NameError)


class MutantBroken(Exception):
    """The code of a mutant does not fit the code that it replaces, so what the simulator finds is not the planted bug."""


@contextmanager
def plant_mutant(name: str | None) -> Iterator[None]:
    """MutantBroken if the mutant's own code raised what only a slip in it raises."""
    slips: list[str] = []
    with nullcontext() if name is None else MUTANTS[name](slips):
        yield
    if slips:
        raise MutantBroken(f"{name}: {slips[0]}")


@contextmanager
def patch_changes(slips: list[str], *changes: tuple[Any, str, Any]) -> Iterator[None]:
    with ExitStack() as stack:
        for owner, name, new in changes:
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, watch_function(new, slips) if callable(new) else new)
        yield


def watch_function(new: Callable[..., Any], slips: list[str]) -> Callable[..., Any]:
    """The same function; slips in its own code, or in how it is called, are noted. The product survives them as it survives
    any bug, so that the simulator would take what follows for the planted bug."""

    def note(error: BaseException) -> None:
        *_, innermost = traceback.extract_tb(error.__traceback__)
        if innermost.filename in (__file__, new.__code__.co_filename):
            slips.append(f"{type(error).__name__}: {error}, at line {innermost.lineno}")

    def call_function(*args: Any, **more: Any) -> Any:
        try:
            return new(*args, **more)
        except SLIPS as error:
            note(error)
            raise

    async def await_function(*args: Any, **more: Any) -> Any:
        try:
            return await new(*args, **more)
        except SLIPS as error:
            note(error)
            raise

    return await_function if inspect.iscoroutinefunction(new) else call_function


Change = tuple[Any, str, Any]


def mutant(changes: Callable[[], list[Change]]) -> Callable[[], list[Change]]:
    """Registers a function that says what to replace; its docstring is the bug."""
    MUTANTS[changes.__name__] = lambda slips: patch_changes(slips, *changes())
    return changes


def parts(batch: Any, change: Callable[[Any], Any]) -> Any:
    return replace(batch, parts=tuple(change(part) for part in batch.parts))


# ---- ownership ---------------------------------------------------------------------------------------------------------


@mutant
def no_fence() -> list[Change]:
    """An owner that was replaced still writes, under its own old epoch."""
    original = LogMemory.append

    async def append(self: LogMemory, batch: Any) -> Any:
        shards = self._db.shards
        now = {shard: shards[shard].epoch for shard in batch.epochs}
        for shard, epoch in batch.epochs.items():
            shards[shard].epoch = epoch
        try:
            return drive(original(self, batch))
        finally:
            for shard, epoch in now.items():
                shards[shard].epoch = epoch

    return [(LogMemory, "append", append)]


@mutant
def takeover_keeps_epoch() -> list[Change]:
    """Taking a shard does not raise its epoch: two owners look the same."""

    async def claim(self: LeasesMemory, runtime_id: int, limit: int) -> list[ClaimedShard]:
        if not self._is_runtime_alive(runtime_id):
            return []
        free = [shard for shard in self._shards if not self._is_runtime_alive(shard.owner)][
            : max(limit, 0)
        ]
        for shard in free:
            shard.owner, shard.epoch = runtime_id, max(shard.epoch, 1)
        return [ClaimedShard(shard.shard, shard.epoch) for shard in free]

    return [(LeasesMemory, "claim", claim)]


@mutant
def no_compare() -> list[Change]:
    """A part is written even if others were written since the state it was decided from (`Part.after` is not checked)."""
    original = LogMemory.append

    async def append(self: LogMemory, batch: Any) -> Any:
        return drive(
            original(
                self,
                parts(
                    batch,
                    lambda part: replace(
                        part, after=self._db.get_execution_rows(part.execution_id).last_seq
                    ),
                ),
            )
        )

    return [(LogMemory, "append", append)]


@mutant
def sequence_not_rolled_back() -> list[Change]:
    """Sequence numbers are taken before it is certain that the part is written, as from a database sequence."""
    original = LogMemory.append

    async def append(self: LogMemory, batch: Any) -> Any:
        outcomes = drive(original(self, batch))
        for part, outcome in zip(batch.parts, outcomes, strict=True):
            if not isinstance(outcome, Appended):
                self._db.shards[part.shard].last_seq += len(part.events)
        return outcomes

    async def follow(self: LogMemory, shard: int, after: int, limit: int) -> Any:
        rows = [row for row in self._db.by_shard[shard] if row.seq > after]
        return [self._decode_event_row(row) for row in rows[:limit]]

    return [(LogMemory, "append", append), (LogMemory, "follow_shard", follow)]


@mutant
def cache_never_dropped() -> list[Change]:
    """A state stays in memory when the outcome of its append is not known."""
    return [(States, "forget", lambda self, execution_id: None)]


# ---- failures ----------------------------------------------------------------------------------------------------------


@mutant
def every_guard_handles_failures() -> list[Change]:
    """An arc with any guard is tried after a failure, as if each of them mentioned the outcome."""
    original = steps._route

    def route(fixed: Any, state: Any, activation: Any, moment: Any) -> Any:
        plan = fixed.plan.steps[activation.step]
        arcs = plan.step.next.arcs if plan.step.next is not None else []
        guarded = frozenset(number for number, arc in enumerate(arcs) if arc.when is not None)
        changed = {**fixed.plan.steps, activation.step: replace(plan, error_arcs=guarded)}
        return original(
            dataclass_replace(fixed, plan=replace(fixed.plan, steps=changed)),
            state,
            activation,
            moment,
        )

    return [(steps, "_route", route)]


@mutant
def used_up_retry_goes_on() -> list[Change]:
    """A retry without a try left lets the error pass."""
    original = policy.reach_verdict

    async def verdict(action: Any, failure: Any, tries: int, rendering: Any, chance: float) -> Any:
        found = await original(action, failure, tries, rendering, chance)
        used_up = action is not None and action.do == "retry" and isinstance(found, policy.Fail)
        return policy.Continue(failure) if used_up else found

    return [(policy, "reach_verdict", verdict)]


# ---- reports -----------------------------------------------------------------------------------------------------------


@mutant
def no_attempt_token() -> list[Change]:
    """A report is taken from every worker and for every attempt."""
    original_append, original_accept, original_report = (
        LogMemory.append,
        InboxMemory.accept_report,
        interpretation._interpret_report,
    )

    async def append(self: LogMemory, batch: Any) -> Any:
        return drive(original_append(self, parts(batch, lambda part: replace(part, taken=()))))

    async def accept(self: InboxMemory, tenant: Tenant, report: m.Report) -> bool:
        row = self._db.commands.get(report.command_id)
        if row is None:
            return False
        held = row.status == "leased"
        answer: bool = drive(original_accept(self, tenant, replace(report, attempt=row.attempt)))
        return answer or held

    def report(state: Any, given: m.Report, at: int) -> Any:
        live = state.commands.get(given.command_id)
        return original_report(
            state, given if live is None else replace(given, attempt=live.attempt), at
        )

    return [
        (LogMemory, "append", append),
        (InboxMemory, "accept_report", accept),
        (interpretation, "_interpret_report", report),
    ]


@mutant
def ack_before_append() -> list[Change]:
    """A report is acknowledged when it arrives."""

    def report(self: Dispatcher, tenant: Tenant, given: m.Report) -> "asyncio.Future[Any]":
        self._submit_message(given.execution_id, given, tenant=tenant)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        answer.set_result("ok")
        return answer

    return [(Dispatcher, "submit_report", report)]


@mutant
def known_is_enough() -> list[Change]:
    """A part that was refused because the state had moved on counts as written."""

    def answer_known(self: Dispatcher, work: Any, key: str | None) -> None:
        self._states.forget(work.execution_id)
        work.give_back()
        for item in work.all_items():
            item.reply("ok")

    return [(Dispatcher, "_retry_known", answer_known)]


@mutant
def accept_in_two_steps() -> list[Change]:
    """A server that is not the owner finishes the command's row and posts the report afterwards, if it lives that long."""
    original = InboxMemory.accept_report

    async def accept(self: InboxMemory, tenant: Tenant, report: m.Report) -> bool:
        row = self._db.commands.get(report.command_id)
        if row is not None and row.status == "leased" and row.attempt == report.attempt:
            self._db.end_lease(row, "reported")
            return True
        return bool(drive(original(self, tenant, report)))

    return [(InboxMemory, "accept_report", accept)]


@mutant
def worker_drops_reports() -> list[Change]:
    """A report is forgotten if its exchange failed."""
    original = Worker._send_exchange

    async def exchange(self: Worker, request: Any, patience: float, pace: Any) -> Any:
        reply = await original(self, request, patience, pace)
        if reply is None:
            for entry in self._outbox.next_batch():
                self._outbox.remove_acknowledged(entry)
        return reply

    return [(Worker, "_send_exchange", exchange)]


@mutant
def worker_gives_up_reports() -> list[Change]:
    """A report counts as delivered after every answer of a server."""

    def answers(self: Outbox, batch: Any, acks: Any) -> Any:
        given = {(ack.command_id, ack.key): ack for ack in acks}
        found = [(entry, given.get((entry.report.command_id, entry.report.key))) for entry in batch]
        return [
            (entry, replace(ack, status="ok" if ack.status == "retry" else ack.status))
            for entry, ack in found
            if ack is not None
        ]

    return [(Outbox, "match_acks", answers)]


# ---- commands ----------------------------------------------------------------------------------------------------------


@mutant
def handoff_before_commit() -> list[Change]:
    """A waiting worker gets its command while the transaction that issues it is still under way."""
    original = Dispatcher._append_batches

    async def append(self: Dispatcher, works: Any, epochs: Any) -> Any:
        for work in works:
            for waiter, command in work.handoffs:
                waiter.give_command(command)
        return await original(self, works, epochs)

    return [(Dispatcher, "_append_batches", append)]


@mutant
def claimed_twice() -> list[Change]:
    """A claim does not take the row from the queue."""
    original = QueueMemory.claim_commands

    async def claim(self: QueueMemory, *args: Any) -> Any:
        commands = drive(original(self, *args))
        for command in commands:
            row = self._db.commands[command.command_id]
            self._db.leased.pop(row.command_id)
            row.status, row.worker = "queued", None
            self._db._push_row(row)
            row.status = "queued"
        return commands

    return [(QueueMemory, "claim_commands", claim)]


@mutant
def renewed_by_anyone() -> list[Change]:
    """A lease is renewed for every worker and every attempt."""
    original = QueueMemory.renew_leases

    async def renew(
        self: QueueMemory, tenant: Tenant, worker: str, held: Any, lease: int, progress: Any
    ) -> Any:
        for each in held:
            row = self._db.leased.get(each.command_id)
            if row is not None:
                row.lease_until = self._db.clock.now() + lease
        return replace(drive(original(self, tenant, worker, held, lease, progress)), lost=())

    return [(QueueMemory, "renew_leases", renew)]


@mutant
def reaper_without_status() -> list[Change]:
    """The reaper takes every row with an expired lease, also of commands that have ended."""
    original = QueueMemory.expire_leases

    async def expire(self: QueueMemory, limit: int) -> int:
        for row in list(self._db.commands.values()):
            if row.status in FINISHED and row.lease_until <= self._db.clock.now():
                row.status = "queued"
                self._db._push_row(row)
        return int(drive(original(self, limit)))

    return [(QueueMemory, "expire_leases", expire)]


@mutant
def leases_by_name() -> list[Change]:
    """A worker that starts again goes on with the leases of its former life, as the same attempt."""
    return [(ExchangeRequest, "holder", property(lambda self: self.worker))]


@mutant
def worker_keeps_lost_leases() -> list[Change]:
    """A worker goes on with a tool after it could not renew the lease."""

    async def watch(self: Worker) -> None:
        await asyncio.Event().wait()

    return [(Worker, "_watch_leases", watch)]


@mutant
def worker_forgets_stop_on_arrival() -> list[Change]:
    """A worker that is told to stop a command before the command's task has begun holds it for ever and reports nothing."""
    return [(Worker, "_end_if_cut_off", lambda self, job, task: None)]


@mutant
def stop_ignored() -> list[Change]:
    """A worker goes on with a command that it was told to stop."""
    return [(Worker, "_stop_command", lambda self, job, ending: None)]


@mutant
def cancel_leaves_the_queue() -> list[Change]:
    """Cancelling tells workers, and forgets commands that no worker has."""

    def stop(self: Any, row: Any) -> None:
        if row is not None and row.status == "leased":
            row.cancel = True

    return [(PartWrite, "_stop_command", stop)]


# ---- journals ----------------------------------------------------------------------------------------------------------


@mutant
def journal_not_sent() -> list[Change]:
    """A new attempt begins at the first task again."""
    original = rules.requeue
    return [
        (rules, "requeue", lambda live, at=None: replace(original(live, at), journal=Journal()))
    ]


@mutant
def tries_reset() -> list[Change]:
    """A new attempt counts the tries of its policy from the beginning."""
    original = rules.requeue

    def requeue(live: Any, at: Any = None) -> Any:
        made = original(live, at)
        return replace(made, journal=replace(made.journal, tries=0))

    return [(rules, "requeue", requeue)]


@mutant
def put_after_report() -> list[Change]:
    """A result is stored in the background while its reference is already reported."""

    async def put(self: ResultWriter, where: Any, value: Any, store: str | None) -> Any:
        async def later() -> None:
            await asyncio.sleep(0.1)
            await self._store.put(where, value)

        self._later = asyncio.ensure_future(later())  # type: ignore[attr-defined]
        return drive(ResultsMemory().put(where, value)), None

    return [(ResultWriter, "_put_with_retries", put)]


# ---- what reaches an execution -------------------------------------------------------------------------------------------


@mutant
def inbox_deleted_when_read() -> list[Change]:
    """A row of the inbox is deleted before the append that turns it into an event."""
    original_inbox, original_append = InboxMemory.read_messages, LogMemory.append

    async def inbox(self: InboxMemory, *args: Any) -> Any:
        rows = drive(original_inbox(self, *args))
        for row in rows:
            self._db.consume_message(row.shard, row.inbox_id)
        return rows

    async def append(self: LogMemory, batch: Any) -> Any:
        return drive(original_append(self, parts(batch, lambda part: replace(part, inbox=()))))

    return [(InboxMemory, "read_messages", inbox), (LogMemory, "append", append)]


@mutant
def inbox_out_of_order() -> list[Change]:
    """The newest row of the inbox comes first."""
    original = InboxMemory.read_messages

    async def inbox(self: InboxMemory, *args: Any) -> Any:
        return list(reversed(drive(original(self, *args))))

    return [(InboxMemory, "read_messages", inbox)]


@mutant
def timer_deleted_when_read() -> list[Change]:
    """A due timer is deleted before the append that records that it fired."""
    original_due, original_append = InboxMemory.read_due_timers, LogMemory.append

    async def due_timers(self: InboxMemory, *args: Any) -> Any:
        due = drive(original_due(self, *args))
        for execution_id, timer in due:
            del self._db.timers[self._db.shard_of(execution_id)][execution_id, timer]
        return due

    async def append(self: LogMemory, batch: Any) -> Any:
        return drive(original_append(self, parts(batch, lambda part: replace(part, timers=()))))

    return [(InboxMemory, "read_due_timers", due_timers), (LogMemory, "append", append)]


@mutant
def fresh_request_keys() -> list[Change]:
    """The server gives every request a key of its own: a repeated one counts again."""
    original = Requests._post_to_inbox
    numbers = count()

    async def post(self: Requests, execution_id: Any, message: Any) -> bool:
        if isinstance(message, m.Signal | m.Pause):
            message = replace(message, request=f"{message.request}.{next(numbers)}")
        return await original(self, execution_id, message)

    return [(Requests, "_post_to_inbox", post)]


@mutant
def start_key_ignored() -> list[Change]:
    """A start that is repeated starts again."""
    original = InboxMemory.start_execution

    async def start(self: InboxMemory, given: m.Start, workload: Any) -> Any:
        return drive(original(self, replace(given, start_key=None), workload))

    return [(InboxMemory, "start_execution", start)]


@mutant
def child_started_before_commit() -> list[Change]:
    """A child is started before the transaction that asks for it, under an id that is new at every try."""
    original = Dispatcher._append_batches

    async def append(self: Dispatcher, works: Any, epochs: Any) -> Any:
        for work in works:
            for start in work.starts:
                await self._inbox.start_execution(start, {"k": 0})
        return await original(self, works, epochs)

    return [(Dispatcher, "_append_batches", append)]


@mutant
def notices_after_commit() -> list[Change]:
    """What an execution tells another is posted after the transaction that makes it true."""
    original = Dispatcher._append_batches

    async def append(self: Dispatcher, works: Any, epochs: Any) -> Any:
        sends = []
        for work in works:
            sends += [effect for effect in work.effects if isinstance(effect, Send)]
            work.effects = [effect for effect in work.effects if not isinstance(effect, Send)]
        outcomes = await original(self, works, epochs)
        for send in sends:
            try:
                await self._inbox.post_message(send.execution_id, send.message)
            except NoetlError:
                continue
        return outcomes

    return [(Dispatcher, "_append_batches", append)]


@mutant
def place_not_given_back() -> list[Change]:
    """An execution that ends keeps its place among those admitted."""
    return [(PartWrite, "_leave_admission", lambda self, effect: None)]


# ---- projections -------------------------------------------------------------------------------------------------------


@mutant
def projector_without_compare() -> list[Change]:
    """A row is written over any other, by any server that believes to own the shard."""

    async def project(self: ProjectionsMemory, batch: list[ShardRows]) -> list[bool]:
        for each in batch:
            for row in each.rows:
                self._db.projections[row.execution_id] = codec.encode(row)
            self._db.checkpoints[each.shard] = each.checkpoint
        return [True] * len(batch)

    return [(ProjectionsMemory, "write_projections", project)]


@mutant
def projector_trusts_its_cache() -> list[Change]:
    """The checkpoint moves on over events that the projected state does not contain."""

    async def load(self: Projector, execution_id: Any, seq: int) -> Any:
        return await self._states.get(execution_id)

    return [(Projector, "_load_state_as_of", load)]


@mutant
def checkpoint_passes_deferred_rows() -> list[Change]:
    """The checkpoint moves on over events of rows that wait to be written."""
    original = Projector._make_rows

    async def make(self: Projector, *args: Any) -> Any:
        rows, deferred = await original(self, *args)
        last = {id_: row._replace(position=row.seq) for id_, row in deferred.items()}
        return rows, last

    return [(Projector, "_make_rows", make)]


# ---- the engine ----------------------------------------------------------------------------------------------------------


@mutant
def loop_closed_by_counter() -> list[Change]:
    """A loop is over when everything has been issued and half of it was counted, even if its commands still run."""
    original = loops.is_loop_over

    def is_over(loop: Any) -> bool:
        counted = loop.ok + loop.failed + loop.skipped
        return original(loop) or (
            loop.mode == "parallel"
            and loop.next >= loop.collection.size > 1
            and 2 * counted >= loop.collection.size
        )

    return [(loops, "is_loop_over", is_over)]


@mutant
def end_is_not_final() -> list[Change]:
    """Requests that arrive after the end are recorded."""
    original = interpretation.interpret

    def interpret(fixed: Any, state: Any, message: Any, at: int, **more: Any) -> Any:
        if state.terminal and isinstance(message, m.Signal | m.Cancel | m.Pause):
            return interpretation._interpret_request(fixed, state, message, max(at, state.last_at))
        return original(fixed, state, message, at, **more)

    return [(dispatch, "interpret", interpret)]


@mutant
def reclaim_keeps_attempt() -> list[Change]:
    """A command is queued again as the same attempt after its lease was lost."""
    original = MemoryDatabase.lose

    def lose(self: MemoryDatabase, row: Any) -> None:
        if row.cancel:
            original(self, row)
            return
        self.end_lease(row, "queued")
        self._push_row(row)

    return [(MemoryDatabase, "lose", lose)]


@mutant
def state_not_compared() -> list[Change]:
    """A write of state is applied over every version."""
    return [(StateConflicts, "_find_conflict", lambda self, part, writes, seen: None)]


@mutant
def state_conflict_taken_for_known() -> list[Change]:
    """A part that lost a race for a state value is dropped as if it stood in the log, and its items are acknowledged."""

    def state_changed(self: Dispatcher, work: Any, outcome: Any) -> None:
        self._states.forget(work.execution_id)
        work.give_back()
        for item in work.all_items():
            item.reply("ok")

    return [(Dispatcher, "_retry_changed_state", state_changed)]
