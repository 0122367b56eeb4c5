"""The tables of the memory twin, with the constraints of the real ones. Rows hold bytes, so no
object is shared.

Nothing here awaits: each call of the twin is a transaction because no other task runs meanwhile.
"""

import heapq
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from noetl.log.events.port import PinnedExecution
from noetl.log.lifetimes.port import StepKey
from noetl.log.playbook_state.port import StateRow
from noetl.model import codec
from noetl.model.clock import Clock
from noetl.model.commands import SUSPECT_LOST_LEASES, Command, Journal
from noetl.model.ids import CommandId, ExecutionId, Micros, RefId, Tenant, TimerId, shard_of
from noetl.model.messages import LeaseLost, Message, Start, Stopped, StoredRef
from noetl.model.playbook_state import MAX_STATE_VERSIONS
from noetl.shard_rows import ShardRow

_state_row = msgspec.json.Decoder(StateRow)
_pinned = msgspec.json.Decoder(PinnedExecution)
FINISHED = frozenset({"done", "dead", "cancelled"})
KEEP_FINISHED_MICROS: Micros = 3_600_000_000


class BlobKey(NamedTuple):
    ref_id: RefId
    uri: str


class StateKey(NamedTuple):
    tenant: Tenant
    path: str
    name: str


class LogPartRow(NamedTuple):
    step: str
    blob: BlobKey


class QueuedCommand(NamedTuple):
    """An entry of a heap: the highest priority first, then the order of issue."""

    negative_priority: int
    number: int
    command_id: CommandId


class DelayedCommand(NamedTuple):
    available_at: Micros
    number: int
    command_id: CommandId


class FinishedCommand(NamedTuple):
    at: Micros
    command_id: CommandId


@dataclass(slots=True)
class EventRow:
    execution_id: ExecutionId
    seq: int
    epoch: int
    data: bytes


@dataclass(slots=True)
class ExecutionRows:
    """The events of one execution, and the index that refuses a second event of the same key."""

    events: list[EventRow] = field(default_factory=list)
    keys: set[str] = field(default_factory=set)
    ended: bool = False

    @property
    def last_seq(self) -> int:
        return self.events[-1].seq if self.events else 0


@dataclass(slots=True)
class CommandRow:
    command_id: CommandId
    execution_id: ExecutionId
    tenant: Tenant
    number: int  # order of issue
    data: bytes
    attempt: int
    pool: str
    priority: int
    status: str = "queued"
    available_at: Micros = 0
    worker: str | None = None
    lease_until: Micros = 0
    cancel: bool = False
    lost: int = 0  # number of leases it has lost
    progress: str | None = None

    @property
    def is_suspect(self) -> bool:
        return self.lost >= SUSPECT_LOST_LEASES


@dataclass(slots=True)
class PostedRow:
    inbox_id: int
    shard: int
    execution_id: ExecutionId
    key: str
    kind: str
    command_id: CommandId | None  # set for a report, so that a later one cannot overtake it
    data: bytes


@dataclass(slots=True)
class WorkerRow:
    data: bytes
    seen_at: Micros
    until: Micros


@dataclass(slots=True)
class Admission:
    active: dict[ExecutionId, None] = field(default_factory=dict)
    waiting: dict[ExecutionId, int] = field(default_factory=dict)  # the limit each asked with


class MemoryDatabase:
    """It outlives the processes that use it."""

    def __init__(self, shards: list[ShardRow], clock: Clock) -> None:
        self.shards = shards
        self.clock = clock
        self.executions: dict[ExecutionId, ExecutionRows] = {}
        self.by_shard: list[list[EventRow]] = [[] for _ in shards]
        self.pinned: dict[ExecutionId, bytes] = {}
        self.start_keys: dict[tuple[Tenant, str], ExecutionId] = {}
        self.children: dict[tuple[ExecutionId, str], ExecutionId] = {}
        self.inbox: list[dict[int, PostedRow]] = [{} for _ in shards]
        self.inbox_keys: dict[tuple[ExecutionId, str], int] = {}
        self.reports: dict[CommandId, int] = {}  # inbox rows that are reports of the command
        self.commands: dict[CommandId, CommandRow] = {}
        self.leased: dict[CommandId, CommandRow] = {}
        self.finished: deque[FinishedCommand] = deque()
        self.timers: list[dict[tuple[ExecutionId, TimerId], Micros]] = [{} for _ in shards]
        self.admissions: dict[tuple[Tenant, str], Admission] = {}
        self.refs: dict[RefId, bytes] = {}
        self.ref_times: dict[RefId, Micros] = {}
        self.blobs: dict[BlobKey, bytes] = {}
        # blobs that were stored before their report
        self.puts: dict[BlobKey, ExecutionId] = {}
        self.expired: dict[RefId, Micros] = {}
        self.result_pins: dict[StepKey, None] = {}
        self.judge_at: dict[ExecutionId, tuple[Micros, ...]] = {}
        self.logs: dict[ExecutionId, list[LogPartRow]] = {}  # in order
        self.manifests: dict[str, dict[int, bytes]] = {}
        self.manifest_tenants: dict[str, Tenant] = {}
        # versions of each name, the current one last
        self.states: dict[StateKey, list[bytes]] = {}
        self.projections: dict[ExecutionId, bytes] = {}
        self.snapshots: dict[ExecutionId, dict[int, bytes]] = {}  # by seq
        self.snapshot_times: dict[tuple[ExecutionId, int], Micros] = {}  # when they were written
        self.workers: dict[tuple[Tenant, str], WorkerRow] = {}
        self.checkpoints = [0] * len(shards)
        # by tenant and pool; suspects have queues of their own
        self._queues: dict[tuple[Tenant, str, bool], list[QueuedCommand]] = {}
        self._delayed_commands: list[DelayedCommand] = []
        self._last_inbox = 0
        self._last_command = 0

    def shard_of(self, execution_id: str) -> int:
        return shard_of(execution_id, len(self.shards))

    def get_execution_rows(self, execution_id: ExecutionId) -> ExecutionRows:
        return self.executions.get(execution_id) or ExecutionRows()

    # -- events --

    def append(
        self, execution_id: ExecutionId, events: Iterable[tuple[str, bytes]], *, ended: bool
    ) -> int:
        """Append events and assign their sequence numbers. Returns the last one of the execution."""
        shard = self.shards[self.shard_of(execution_id)]
        rows = self.executions.setdefault(execution_id, ExecutionRows())
        for key, data in events:
            shard.last_seq += 1
            row = EventRow(execution_id, shard.last_seq, shard.epoch, data)
            rows.events.append(row)
            rows.keys.add(key)
            self.by_shard[shard.shard].append(row)
        rows.ended = rows.ended or ended
        return rows.last_seq

    def pin_and_start(self, start: Start, workload: dict[str, Any]) -> None:
        if start.execution_id in self.pinned:
            return
        pinned = PinnedExecution(start.execution_id, start.tenant, start.playbook, workload)
        self.pinned[start.execution_id] = codec.encode(pinned)
        self.post(start.execution_id, start)

    def find_tenant(self, execution_id: ExecutionId) -> Tenant | None:
        data = self.pinned.get(execution_id)
        return None if data is None else _pinned.decode(data).tenant

    # -- inbox --

    def post(self, execution_id: ExecutionId, message: Message) -> bool:
        key = (execution_id, message.key)
        if key in self.inbox_keys:
            return False
        self._last_inbox += 1
        shard = self.shard_of(execution_id)
        kind = str(type(message).__struct_config__.tag)
        command = None
        if kind == "report":
            command = getattr(message, "command_id", None)
        row = PostedRow(
            self._last_inbox, shard, execution_id, message.key, kind, command, codec.encode(message)
        )
        self.inbox[shard][row.inbox_id] = row
        self.inbox_keys[key] = row.inbox_id
        if command is not None:
            self.reports[command] = self.reports.get(command, 0) + 1
        return True

    def consume_message(self, shard: int, inbox_id: int) -> None:
        row = self.inbox[shard].pop(inbox_id)
        del self.inbox_keys[row.execution_id, row.key]
        if row.command_id is not None:
            self.reports[row.command_id] -= 1
            if not self.reports[row.command_id]:
                del self.reports[row.command_id]

    # -- the queue --

    def issue_command(self, command: Command, available_at: Micros | None) -> None:
        self._last_command += 1
        row = CommandRow(
            command.command_id,
            command.execution_id,
            command.tenant,
            self._last_command,
            b"",
            0,
            command.pool,
            command.priority,
        )
        self.commands[command.command_id] = row
        self._enqueue(row, command, available_at)

    def requeue_command(
        self, row: CommandRow, attempt: int, journal: Journal, available_at: Micros | None
    ) -> None:
        """Queue the command as a new attempt. It keeps its place in the order of issue."""
        command = codec.decode_command(row.data)
        self._enqueue(
            row, msgspec.structs.replace(command, attempt=attempt, journal=journal), available_at
        )

    def _enqueue(self, row: CommandRow, command: Command, available_at: Micros | None) -> None:
        self.end_lease(row, "queued")
        row.data, row.attempt = codec.encode(command), command.attempt
        row.available_at = available_at or 0
        if row.available_at > self.clock.now():
            delayed = DelayedCommand(row.available_at, row.number, row.command_id)
            heapq.heappush(self._delayed_commands, delayed)
        else:
            self._push_row(row)

    def _push_row(self, row: CommandRow) -> None:
        heapq.heappush(
            self._queues.setdefault((row.tenant, row.pool, row.is_suspect), []),
            QueuedCommand(-row.priority, row.number, row.command_id),
        )

    def lease_command(self, row: CommandRow, worker: str, lease: Micros) -> Command:
        row.status = "leased"
        row.worker = worker
        row.lease_until = self.clock.now() + lease
        row.cancel = False
        self.leased[row.command_id] = row
        return codec.decode_command(row.data)

    def end_lease(self, row: CommandRow, status: str) -> None:
        """End the lease, if there is one, and set the status. The append that makes a command `done`
        deletes it at its end.
        """
        self.leased.pop(row.command_id, None)
        row.status = status
        row.worker = None
        row.lease_until = 0
        row.cancel = False
        if status in FINISHED:
            self.finished.append(FinishedCommand(self.clock.now(), row.command_id))

    def pop_claimable(
        self, tenant: Tenant, pools: tuple[str, ...], *, suspect: bool
    ) -> CommandRow | None:
        """Take the next claimable row of these pools: the highest priority, then the order of
        issue.
        """
        self._queue_due()
        heads: list[tuple[QueuedCommand, list[QueuedCommand]]] = []
        for pool in dict.fromkeys(pools):
            queue = self._queues.get((tenant, pool, suspect), [])
            while queue and not self._is_claimable(queue[0], pool, suspect):
                heapq.heappop(queue)
            if queue:
                heads.append((queue[0], queue))
        if not heads:
            return None
        first, queue = min(heads, key=lambda head: head[0])
        heapq.heappop(queue)
        return self.commands[first.command_id]

    def _queue_due(self) -> None:
        now = self.clock.now()
        while self._delayed_commands and self._delayed_commands[0].available_at <= now:
            delayed = heapq.heappop(self._delayed_commands)
            row = self.commands.get(delayed.command_id)
            if row is not None and row.status == "queued" and row.available_at <= now:
                self._push_row(row)

    def _is_claimable(self, entry: QueuedCommand, pool: str, suspect: bool) -> bool:
        """Whether the entry's row can be claimed. Entries of rows that have changed stay in the
        heap until they reach its top.
        """
        row = self.commands.get(entry.command_id)
        if row is None or row.status != "queued":
            return False
        if row.pool != pool or row.is_suspect != suspect:
            return False
        if -row.priority != entry.negative_priority:
            return False
        return row.available_at <= self.clock.now()

    def lose(self, row: CommandRow) -> None:
        """End a lease without a report. A command that was to be stopped is stopped; for others the
        owner decides.
        """
        message: Message
        if row.cancel:
            message = Stopped(command_id=row.command_id, attempt=row.attempt)
            self.end_lease(row, "cancelled")
        else:
            message = LeaseLost(command_id=row.command_id, attempt=row.attempt, worker=row.worker)
            row.lost += 1
            self.end_lease(row, "lost")
        self.post(row.execution_id, message)

    def delete_done(self, command_ids: Iterable[CommandId]) -> None:
        for command_id in command_ids:
            row = self.commands.get(command_id)
            if row is not None and row.status == "done":
                del self.commands[command_id]

    def sweep(self) -> None:
        """Delete rows of commands that died or were cancelled an hour ago."""
        before = self.clock.now() - KEEP_FINISHED_MICROS
        while self.finished and self.finished[0].at <= before:
            command_id = self.finished.popleft().command_id
            row = self.commands.get(command_id)
            if row is not None and row.status in FINISHED:
                del self.commands[command_id]

    # -- admission, references --

    def get_admission(self, tenant: Tenant, path: str) -> Admission:
        return self.admissions.setdefault((tenant, path), Admission())

    def store_refs(self, refs: Iterable[StoredRef]) -> None:
        for ref in refs:
            reference = ref.reference
            self.refs.setdefault(
                reference.ref_id, codec.encode(msgspec.structs.replace(ref, payload=None))
            )
            self.ref_times.setdefault(reference.ref_id, self.clock.now())
            if ref.payload is not None:
                self.blobs.setdefault(BlobKey(reference.ref_id, reference.uri), ref.payload)

    # -- state between executions --

    def read_state_row(self, tenant: Tenant, path: str, name: str) -> StateRow | None:
        versions = self.states.get(StateKey(tenant, path, name))
        if not versions:
            return None
        return _state_row.decode(versions[-1])

    def list_state_keys(self, tenant: Tenant, path: str) -> list[StateKey]:
        return sorted(key for key in self.states if (key.tenant, key.path) == (tenant, path))

    def write_state(self, tenant: Tenant, row: StateRow) -> None:
        versions = self.states.setdefault(StateKey(tenant, row.path, row.name), [])
        versions.append(codec.encode(row))
        del versions[:-MAX_STATE_VERSIONS]
