"""The contract of the event log. Every method is one transaction: it happened completely, not at
all, or its outcome is unknown.

Only the owner of a shard appends to it, fenced by the shard's epoch. Anyone may post to an inbox.
Claiming, renewing and losing leases change only rows of the queue. Methods raise `StoreUnavailable`
(nothing happened) or `OutcomeUnknown` (it may have happened: repeat the call, unique keys absorb
the second). Time here is the store's own clock.

States of a command row:  queued ──claim / hand-off──► leased ──report──► done · dead · cancelled
                            ▲  ▲                         │ │
                            │  └── Requeue (attempt+1) ── │ └─ lease lost ─► lost ─┐ (LeaseLost in the inbox)
                            └───── Requeue ── parked ◄────┘                       └─ Requeue (attempt+1) or dead

If a server that does not own the shard accepts a report that ends a lease, the row is `reported`
until the owner has folded the report.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Protocol, Union

from msgspec import Struct

from noetl.model.commands import Command
from noetl.model.decisions import AddPart, Effect
from noetl.model.events import Event
from noetl.model.exchange import LeaseKey
from noetl.model.ids import CommandId, ExecutionId, Micros, RefId, Tenant, TimerId
from noetl.model.messages import Message, Report, Start, StoredRef
from noetl.model.playbook_state import StateValue
from noetl.model.reference import Lifetime, Reference

StepKey = tuple[ExecutionId, str]  # a step of an execution

MAX_BATCH_EVENTS = 500
MAX_BLOB_BYTES = 1024 * 1024  # bytes of one payload in the log's database
# References that one walk over lineage visits. One that is met at several depths counts for each.
MAX_LINEAGE_REFS = 100_000


class RecordedEvent(Struct, frozen=True):
    """An event in the log. Readers follow (shard, seq): sequence numbers are assigned under a lock."""

    execution_id: ExecutionId
    shard: int
    seq: int
    epoch: int
    event: Event


class InboxRow(Struct, frozen=True):
    inbox_id: int
    shard: int
    execution_id: ExecutionId
    message: Message


class Handoff(Struct, frozen=True):
    """A command of this batch that goes to a waiting worker: it is leased in the transaction that
    issues it.
    """

    command_id: CommandId
    worker: str


class ExecutionPart(Struct, frozen=True, kw_only=True):
    """One execution's part of a batch. It is applied completely or not at all."""

    execution_id: ExecutionId
    shard: int
    tenant: Tenant
    after: int  # the sequence number of the last event this was decided from; 0 for a new execution
    events: tuple[Event, ...]
    encoded: tuple[bytes, ...] = ()  # the events' bytes, if the caller has encoded them already
    effects: tuple[Effect, ...] = ()
    # (command, attempt) of each report: the command must still be leased as this attempt
    taken: tuple[LeaseKey, ...] = ()
    inbox: tuple[int, ...] = ()  # inbox rows this consumes; if one is gone, the outcome is Known
    timers: tuple[TimerId, ...] = ()  # fired timers this consumes
    refs: tuple[StoredRef, ...] = ()
    handoffs: tuple[Handoff, ...] = ()
    children: tuple[ExecutionId, ...] = ()  # ids for the StartChild effects, in order
    child_starts: tuple[Start, ...] = ()  # their Start messages, in the same order


class AppendBatch(Struct, frozen=True, kw_only=True):
    """At most BATCH_EVENTS events of any number of executions and shards of one owner."""

    epochs: dict[int, int]
    parts: tuple[ExecutionPart, ...]
    lease: Micros


class Appended(Struct, frozen=True):
    """The part was applied. `inboxes` are the shards that got an inbox row: their owners should get
    a hint.
    """

    execution_id: ExecutionId
    last_seq: int
    inboxes: tuple[int, ...] = ()


class Known(Struct, frozen=True):
    """Something in the part is in the log already, or the part was decided from an old state:
    reload, decide again.

    `key` is set if that is the only problem: an event with this key is in the log, or twice in the
    part. It is not set if a report of the same command waits in the inbox: that report came first.
    """

    execution_id: ExecutionId
    key: str | None = None


class StaleAttempt(Struct, frozen=True):
    """The command of a report is no longer leased as that attempt: refuse the report."""

    execution_id: ExecutionId
    held: LeaseKey


class ShardLost(Struct, frozen=True):
    """Another server owns the shard: nothing of the part was applied."""

    execution_id: ExecutionId
    shard: int


class StateChanged(Struct, frozen=True):
    """The part writes a state value that has another version by now: nothing of it was applied.

    `by` is the execution or person that wrote it. `is_full`: nobody wrote it, but the path has as
    many names as it may have.
    """

    execution_id: ExecutionId
    name: str
    version: int
    by: str | None = None
    is_full: bool = False


Outcome = Union[Appended, Known, StaleAttempt, ShardLost, StateChanged]


class StateRow(Struct, frozen=True, kw_only=True):
    """One version of a state value. An execution wrote it with the event `seq`, or a person did."""

    path: str
    name: str
    version: int
    value: Any = None
    unset: bool = False
    execution_id: ExecutionId | None = None
    seq: int | None = None
    by: str | None = None
    at: Micros = 0


class PinnedExecution(Struct, frozen=True):
    """What does not change during an execution: stored once at its start, as part of the log."""

    execution_id: ExecutionId
    tenant: Tenant
    playbook: str
    workload: dict[str, Any]


class StateSnapshot(Struct, frozen=True):
    """The encoded state of an execution after the event `seq`."""

    execution_id: ExecutionId
    seq: int
    state: bytes


class Projection(Struct, frozen=True, kw_only=True):
    """The row of an execution that people read. The shard's owner writes it, never ahead of the
    log.
    """

    execution_id: ExecutionId
    shard: int
    tenant: Tenant
    path: str
    status: str
    last_seq: int
    started_at: Micros
    updated_at: Micros
    ended_at: Micros | None = None
    parent: ExecutionId | None = None
    retry_of: ExecutionId | None = None
    error: str | None = None
    steps: int = 0
    recovered: int = 0  # failures that were handled
    state: bytes | None = None
    state_hash: str | None = None


class ExecutionFilter(Struct, frozen=True, kw_only=True):
    """Which executions a list shows. None matches any."""

    status: str | None = None
    path: str | None = None  # `*` matches any text: `etl/*`
    parent: ExecutionId | None = None
    since: Micros | None = None  # started then or later
    roots: bool = False  # only executions that no other execution started


def has_wildcard(path: str | None) -> bool:
    return path is not None and "*" in path


class QueueEntry(Struct, frozen=True, kw_only=True):
    """A row of the queue as people see it, without the command's content.

    `number` is the order of issue. `progress` is how far the tool was at the last renewal of the
    lease.
    """

    number: int
    command_id: CommandId
    execution_id: ExecutionId
    step: str
    kind: str
    pool: str
    status: str
    attempt: int
    priority: int = 0
    available_at: Micros | None = None
    worker: str | None = None
    lease_until: Micros | None = None
    stopping: bool = False
    progress: str | None = None


class QueueDepth(Struct, frozen=True):
    pool: str
    status: str
    count: int


class WorkerPresence(Struct, frozen=True, kw_only=True):
    """One incarnation of a worker, as the server it last contacted knows it. `age` is the time
    since then.
    """

    worker: str  # `name/incarnation`: the holder of its leases
    server: str
    tenant: Tenant
    pools: tuple[str, ...] = ()
    free: int = 0
    held: int = 0
    age: Micros = 0


class RecordedChange(Struct, frozen=True):
    """Events of an execution were recorded. `seq` is the last of them."""

    shard: int
    seq: int
    execution_id: ExecutionId
    events: int = 1


class ShardRows(Struct, frozen=True):
    """Projections of one shard after the event `checkpoint`, written under `epoch`."""

    shard: int
    epoch: int
    checkpoint: int
    rows: tuple[Projection, ...]


class MessageState(Struct, frozen=True):
    """The state of a message key: `waiting` in the inbox, recorded in the log as `seq`, or neither."""

    waiting: bool = False
    seq: int | None = None


class LogPart(Struct, frozen=True):
    """Lines that a step printed, as its worker stored them.

    `number` counts the parts of an execution in the order of their commits, so a reader that has
    one part has all parts before it.
    """

    number: int
    uri: str
    payload: bytes


class TracedReference(Struct, frozen=True, kw_only=True):
    """A reference and its sources. `depth` is the number of steps back from the nearest requested
    one.
    """

    depth: int
    reference: Reference
    parent: RefId | None
    inputs: tuple[RefId, ...]
    at: Micros
    expired_at: Micros | None = None


class ReferenceLife(Struct, frozen=True):
    """The lifetime of a reference as its report gave it, and when it expired."""

    lifetime: Lifetime | None = None
    expired_at: Micros | None = None


class JudgedCounts(Struct, frozen=True):
    """Counts: executions judged, references that expired, payloads deleted that no reference named."""

    looked: int = 0
    expired: int = 0
    swept: int = 0


class StorageUsage(Struct, frozen=True):
    """What an execution stores in a tier. Expired references are counted apart."""

    execution_id: ExecutionId
    tier: str
    count: int
    bytes: int
    expired: int = 0


NO_PROGRESS: Mapping[LeaseKey, str] = MappingProxyType({})


class Renewal(Struct, frozen=True):
    """What a worker must stop: cancelled commands, and commands that it no longer holds."""

    stop: tuple[LeaseKey, ...] = ()
    lost: tuple[LeaseKey, ...] = ()


class EventLog(Protocol):
    # -- the owner --
    async def append(self, batch: AppendBatch) -> list[Outcome]: ...

    async def inbox(
        self, shards: list[int], limit: int, skip: frozenset[ExecutionId] = frozenset()
    ) -> list[InboxRow]:
        """Inbox rows, oldest first. Of the executions in `skip` (quarantined) only release requests."""
        ...

    async def due_timers(
        self, shards: list[int], limit: int
    ) -> list[tuple[ExecutionId, TimerId]]: ...

    async def project(self, batch: list[ShardRows]) -> list[bool]:
        """Write projections. False for a shard that has another epoch by now."""
        ...

    # -- anyone --
    async def start(self, start: Start, workload: dict[str, Any]) -> ExecutionId:
        """Start an execution. A known start key returns the id of the earlier execution."""
        ...

    async def post(self, execution_id: ExecutionId, message: Message) -> bool:
        """Put a message into the inbox. False if its key was there already."""
        ...

    async def accept(self, report: Report) -> bool:
        """Accept a report at a server that does not own the shard. False if the report is stale.

        The command's row and the inbox row are written in one transaction.
        """
        ...

    # -- readers --
    async def events(
        self, execution_id: ExecutionId, after: int = 0, limit: int = 10_000
    ) -> list[RecordedEvent]: ...

    async def named_events(self, names: list[tuple[ExecutionId, str]]) -> list[RecordedEvent]:
        """The events with these keys, in no order."""
        ...

    async def follow(self, shard: int, after: int, limit: int) -> list[RecordedEvent]: ...

    async def changes(self, after: dict[int, int], limit: int) -> list[RecordedChange]:
        """The changes after a sequence number per shard, of at most `limit` events in each shard."""
        ...

    async def parts(self, manifest: str) -> list[AddPart]:
        """The parts of a manifest, in order of `first`."""
        ...

    async def last_seq(self, execution_id: ExecutionId) -> int: ...
    async def read_pinned(self, execution_id: ExecutionId) -> PinnedExecution | None: ...

    async def pins(self, execution_ids: list[ExecutionId]) -> dict[ExecutionId, PinnedExecution]:
        """`pinned` for several executions. Unknown executions are left out."""
        ...

    async def projection(self, execution_id: ExecutionId) -> Projection | None: ...
    async def projections(self, tenant: Tenant, limit: int) -> list[Projection]: ...

    async def executions(
        self, tenant: Tenant, wanted: ExecutionFilter, before: ExecutionId | None, limit: int
    ) -> list[Projection]:
        """Projections older than `before`, newest first, without `state`."""
        ...

    async def child_counts(self, parent: ExecutionId) -> dict[str, int]:
        """The number of children by status."""
        ...

    async def tenant_of(self, execution_id: ExecutionId) -> Tenant | None:
        """None if there is no such execution."""
        ...

    async def received(self, execution_id: ExecutionId, key: str) -> MessageState: ...
    async def checkpoint(self, shard: int) -> int: ...

    async def live(self, shard: int) -> list[ExecutionId]:
        """The executions of the shard without a terminal event."""
        ...

    # -- state between executions --
    async def read_state(
        self, tenant: Tenant, path: str, names: list[str] | None = None
    ) -> list[StateRow]:
        """The values by name, including unset ones. `names` None: all of the path."""
        ...

    async def list_state(
        self, tenant: Tenant, after: tuple[str, str], limit: int
    ) -> list[StateRow]:
        """The values after (path, name), without unset ones."""
        ...

    async def state_history(
        self, tenant: Tenant, path: str, name: str, before: int, limit: int
    ) -> list[StateRow]:
        """Versions older than `before`, newest first. At most KEPT_VERSIONS are stored."""
        ...

    async def put_state(
        self,
        tenant: Tenant,
        path: str,
        name: str,
        value: StateValue,
        expected: int | None,
        by: str | None,
    ) -> int:
        """Write a value for a person. Returns the new version; the version in `value` is ignored.

        `expected` None overwrites any version. Raises Conflict if the value has another version, or
        if the path has MAX_STATE_NAMES names. Raises InvalidInput if the value cannot be stored.
        """
        ...

    # -- small payloads --
    async def put_blob(self, reference: Reference, payload: bytes) -> None:
        """Store a payload before the report that names it. The report records its parent and inputs.

        Storing the same payload again succeeds. Raises Conflict if the address holds another
        payload, NotFound if there is no such execution, InvalidInput if it is larger than BLOB_LIMIT.
        """
        ...

    async def blob(self, ref_id: RefId, uri: str) -> bytes | None:
        """The payload with this id and exactly this address, from `put_blob` or from a report."""
        ...

    async def orphans(self, execution_id: ExecutionId, uris: list[str]) -> list[str]:
        """The addresses that no unexpired reference of this ended execution names.

        Empty while the execution runs, because a report may still name them. Empty for an unknown
        execution, because another log may know it.
        """
        ...

    # -- how long results stay --
    async def judge(self, grace: Micros, retention: Micros | None, limit: int) -> JudgedCounts:
        """Expire results of up to `limit` executions that ended at least `grace` ago.

        Small payloads that were put and never named are deleted. `retention` applies to results
        without a lifetime of their own; None keeps them for ever.

        Nothing expires while a relative of the execution lives (its callers, the executions it
        called, its retries), and no pinned result expires. One server judges at a time; the others
        find nothing to do.
        """
        ...

    async def lives(self, refs: list[RefId]) -> dict[RefId, ReferenceLife]:
        """The lifetimes of the references that are recorded."""
        ...

    async def pin_results(self, places: list[StepKey]) -> None:
        """Keep all results of these steps. Results that have not expired by then never expire."""
        ...

    async def unpin_results(self, places: list[StepKey]) -> None: ...

    async def pinned_results(self, executions: list[ExecutionId]) -> list[StepKey]:
        """The pinned steps, in order."""
        ...

    async def usage(self, executions: list[ExecutionId]) -> list[StorageUsage]:
        """Storage by execution, then by tier."""
        ...

    async def lineage(
        self,
        tenant: Tenant,
        roots: list[RefId],
        depth: int,
        after: tuple[int, RefId] | None,
        limit: int,
    ) -> list[TracedReference]:
        """The roots and their sources, up to `depth` steps back, across executions.

        Each reference comes once, nearest first, then by id; `after` is the (depth, id) of the last
        one seen. Of a graph that is too large, the nearest part is returned.
        """
        ...

    # -- step logs --
    async def put_logs(self, parts: tuple[StoredRef, ...]) -> None:
        """Store payloads with addresses of kind `log`.

        Parts that are stored already, and parts of unknown executions, are skipped.
        """
        ...

    async def logs(
        self, execution_id: ExecutionId, step: str | None, after: int, limit: int
    ) -> list[LogPart]: ...

    # -- the queue --
    async def claim(
        self, worker: str, pools: tuple[str, ...], limit: int, lease: Micros
    ) -> list[Command]:
        """Lease commands by priority, then in order of issue.

        A command that has lost SUSPECT leases is suspect. A worker holds at most one suspect at a
        time. So a command that kills its workers is soon the only suspect there, and the commands
        that ran beside it are not blamed.
        """
        ...

    async def renew(
        self,
        worker: str,
        held: tuple[LeaseKey, ...],
        lease: Micros,
        progress: Mapping[LeaseKey, str] = NO_PROGRESS,
    ) -> Renewal:
        """Renew leases and store the progress of their tools."""
        ...

    async def leased(self, worker: str) -> list[Command]: ...

    async def expire_leases(self, limit: int) -> int:
        """End leases that ran out: the commands are lost or stopped, with the inbox row."""
        ...

    async def lose(self, worker: str) -> int:
        """End all leases of a worker that is gone, as `expire` does."""
        ...

    async def command_status(self, command_id: CommandId) -> tuple[str, int] | None: ...

    async def queue(
        self,
        tenant: Tenant,
        *,
        status: str | None = None,
        pool: str | None = None,
        execution_id: ExecutionId | None = None,
        after: int = 0,
        limit: int = 100,
    ) -> list[QueueEntry]:
        """Rows of the queue in order of issue, after the number `after`."""
        ...

    async def depths(self, tenant: Tenant | None = None) -> list[QueueDepth]:
        """The number of unfinished commands by pool and status."""
        ...

    async def note_worker(self, worker: WorkerPresence, lease: Micros) -> None:
        """Record that the worker made contact now. The row is kept for `lease`."""
        ...

    async def workers(self, tenant: Tenant) -> list[WorkerPresence]:
        """The known workers, by name."""
        ...

    async def find_lost_history(self, limit: int) -> list[str]:
        """The unreadable ones of the `limit` newest files with events of ended executions.

        Those events are nowhere else.
        """
        ...
