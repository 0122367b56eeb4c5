"""The contract of the log. Every method is one transaction: it happened whole, not at all, or its outcome is unknown.

Who writes what: only the owner of a shard appends to it, fenced by the shard's epoch; anyone may post to an inbox;
claiming, renewing and losing leases touch queue rows only. Raises `StoreUnavailable` (nothing happened) or
`OutcomeUnknown` (it may have: repeat the call, keys absorb it). Time here is the store's own clock.

States of a command row:  queued ──claim / hand-off──► leased ──report──► done · dead · cancelled
                            ▲  ▲                         │ │
                            │  └── Requeue (attempt+1) ── │ └─ lease lost ─► lost ─┐ (LeaseLost in the inbox)
                            └───── Requeue ── parked ◄────┘                       └─ Requeue (attempt+1) or dead
A report that ends a lease and is accepted for another owner makes the row `reported` until that owner has folded it.
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

Place = tuple[ExecutionId, str]  # a step of an execution

BATCH_EVENTS = 500
BLOB_LIMIT = 1024 * 1024  # bytes of a payload kept here
LINEAGE_LIMIT = 100_000  # references that one walk over lineage meets; one that is met at several depths counts for each


class Recorded(Struct, frozen=True):
    """An event as it stands in the log. Readers follow (shard, seq): sequence numbers are given under a lock."""

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
    """A command of this batch goes straight to a waiting worker: leased in the transaction that issues it."""

    command_id: CommandId
    worker: str


class ExecutionPart(Struct, frozen=True, kw_only=True):
    """One execution's share of a batch. It is applied whole or left out whole."""

    execution_id: ExecutionId
    shard: int
    tenant: Tenant
    after: int  # the sequence number of the last event this was decided from; 0 for a new execution
    events: tuple[Event, ...]
    encoded: tuple[
        bytes, ...
    ] = ()  # the events' bytes, where whoever decided them has looked at their size
    effects: tuple[Effect, ...] = ()
    taken: tuple[
        LeaseKey, ...
    ] = ()  # (command, attempt) that must be leased as this attempt: the report's fence
    inbox: tuple[int, ...] = ()  # inbox rows this consumes; a row that is gone already means: known
    timers: tuple[TimerId, ...] = ()  # fired timers this consumes
    refs: tuple[StoredRef, ...] = ()
    handoffs: tuple[Handoff, ...] = ()
    children: tuple[ExecutionId, ...] = ()  # ids for the StartChild effects, in order
    child_starts: tuple[Start, ...] = ()  # their Start messages, in the same order


class AppendBatch(Struct, frozen=True, kw_only=True):
    """At most BATCH_EVENTS events, any number of executions and shards of one owner."""

    epochs: dict[int, int]
    parts: tuple[ExecutionPart, ...]
    lease: Micros


class Appended(Struct, frozen=True):
    """Applied. `inboxes` are shards whose inbox got a row with it: whoever owns them should be told."""

    execution_id: ExecutionId
    last_seq: int
    inboxes: tuple[int, ...] = ()


class Known(Struct, frozen=True):
    """Something in the part was there already, or the state it was decided from is not the last: reload, decide again.

    `key` is set when that alone is wrong: an event of this key stands in the log, or twice in the part. It is not set
    when a report of the same command waits in the inbox: that one came first.
    """

    execution_id: ExecutionId
    key: str | None = None


class StaleAttempt(Struct, frozen=True):
    """A report's command is no longer leased as that attempt: refuse the report."""

    execution_id: ExecutionId
    held: LeaseKey


class ShardLost(Struct, frozen=True):
    """The shard's epoch is not ours any more: nothing of it was applied."""

    execution_id: ExecutionId
    shard: int


class StateChanged(Struct, frozen=True):
    """The part writes a state value that has another version by now: nothing of it was applied. `by` is the execution or person
    that wrote it. `is_full`: nobody did; the path has as many names as it may have, and this would be one more."""

    execution_id: ExecutionId
    name: str
    version: int
    by: str | None = None
    is_full: bool = False


Outcome = Union[Appended, Known, StaleAttempt, ShardLost, StateChanged]


class StateRow(Struct, frozen=True, kw_only=True):
    """One version of a state value. Written by an execution with the event `seq`, or by a person."""

    path: str
    name: str
    version: int
    value: Any = None
    unset: bool = False
    execution_id: ExecutionId | None = None
    seq: int | None = None
    by: str | None = None
    at: Micros = 0


class Pinned(Struct, frozen=True):
    """What stays the same for the whole execution: stored once at its start, part of the log."""

    execution_id: ExecutionId
    tenant: Tenant
    playbook: str
    workload: dict[str, Any]


class StateSnapshot(Struct, frozen=True):
    """The encoded state of an execution as of `seq`."""

    execution_id: ExecutionId
    seq: int
    state: bytes


class Projection(Struct, frozen=True, kw_only=True):
    """The row people read: written by the shard's owner, never ahead of the log."""

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
    """Which executions a list is to show; None: any."""

    status: str | None = None
    path: str | None = None  # `*` stands for any letters: `etl/*`
    parent: ExecutionId | None = None
    since: Micros | None = None  # started then or later
    roots: bool = False  # no execution started them, neither one that waits nor one that does not


def has_wildcard(path: str | None) -> bool:
    return path is not None and "*" in path


class Queued(Struct, frozen=True, kw_only=True):
    """A row of the queue as people see it: what it is, never what it carries. `number` is the order of issue; `progress` is how
    far its tool was when its lease was last renewed."""

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


class Depth(Struct, frozen=True):
    pool: str
    status: str
    count: int


class Present(Struct, frozen=True, kw_only=True):
    """One life of a worker as the server it last spoke to knows it. `age`: since then, by the store's clock."""

    worker: str  # `name/incarnation`: the holder of its leases
    server: str
    tenant: Tenant
    pools: tuple[str, ...] = ()
    free: int = 0
    held: int = 0
    age: Micros = 0


class Change(Struct, frozen=True):
    """Events were recorded, whatever they say; `seq` is the last of them."""

    shard: int
    seq: int
    execution_id: ExecutionId
    events: int = 1


class ShardRows(Struct, frozen=True):
    """Rows of one shard as of the event `checkpoint`, written under `epoch`."""

    shard: int
    epoch: int
    checkpoint: int
    rows: tuple[Projection, ...]


class Received(Struct, frozen=True):
    """What became of a key: `waiting` in the inbox, recorded in the log as `seq`, or neither."""

    waiting: bool = False
    seq: int | None = None


class LogPart(Struct, frozen=True):
    """Lines that a step printed, as its worker stored them. `number` counts the parts of an execution in the order of their
    commits, so a reader that has one has all before it."""

    number: int
    uri: str
    payload: bytes


class Traced(Struct, frozen=True, kw_only=True):
    """A reference and what it was made from. `depth`: steps back from the nearest of those that were asked for."""

    depth: int
    reference: Reference
    parent: RefId | None
    inputs: tuple[RefId, ...]
    at: Micros
    expired_at: Micros | None = None


class Life(Struct, frozen=True):
    """How long a reference is to lead to something, as its report said; and since when it does not."""

    lifetime: Lifetime | None = None
    expired_at: Micros | None = None


class Judged(Struct, frozen=True):
    """Executions that were looked at, references that expired, payloads that no reference ever named."""

    looked: int = 0
    expired: int = 0
    swept: int = 0


class Used(Struct, frozen=True):
    """What an execution keeps in a tier; references to what it kept once are counted apart."""

    execution_id: ExecutionId
    tier: str
    count: int
    bytes: int
    expired: int = 0


NO_PROGRESS: Mapping[LeaseKey, str] = MappingProxyType({})


class Renewal(Struct, frozen=True):
    """What a worker must stop: cancelled commands, and those that are not its own any more."""

    stop: tuple[LeaseKey, ...] = ()
    lost: tuple[LeaseKey, ...] = ()


class EventLog(Protocol):
    # -- the owner --
    async def append(self, batch: AppendBatch) -> list[Outcome]: ...
    async def inbox(
        self, shards: list[int], limit: int, skip: frozenset[ExecutionId] = frozenset()
    ) -> list[
        InboxRow
    ]: ...  # oldest first; of executions in `skip` (quarantined) only the requests to release them
    async def due_timers(
        self, shards: list[int], limit: int
    ) -> list[tuple[ExecutionId, TimerId]]: ...
    async def project(
        self, batch: list[ShardRows]
    ) -> list[bool]: ...  # False: that shard has another epoch by now

    # -- anyone --
    async def start(
        self, start: Start, workload: dict[str, Any]
    ) -> ExecutionId: ...  # known start key: the earlier id
    async def post(
        self, execution_id: ExecutionId, message: Message
    ) -> bool: ...  # False: that key was there
    async def accept(
        self, report: Report
    ) -> bool: ...  # at a non-owner: row + inbox in one transaction; False: stale

    # -- readers --
    async def events(
        self, execution_id: ExecutionId, after: int = 0, limit: int = 10_000
    ) -> list[Recorded]: ...
    async def named_events(
        self, names: list[tuple[ExecutionId, str]]
    ) -> list[Recorded]: ...  # by key; in no order
    async def follow(self, shard: int, after: int, limit: int) -> list[Recorded]: ...
    async def changes(
        self, after: dict[int, int], limit: int
    ) -> list[Change]: ...  # by shard and seq: of at most `limit` events beyond it in each
    async def parts(self, manifest: str) -> list[AddPart]: ...  # in order of first
    async def last_seq(self, execution_id: ExecutionId) -> int: ...
    async def pinned(self, execution_id: ExecutionId) -> Pinned | None: ...
    async def pins(
        self, execution_ids: list[ExecutionId]
    ) -> dict[ExecutionId, Pinned]: ...  # of those there are
    async def projection(self, execution_id: ExecutionId) -> Projection | None: ...
    async def projections(self, tenant: Tenant, limit: int) -> list[Projection]: ...
    async def executions(
        self, tenant: Tenant, wanted: ExecutionFilter, before: ExecutionId | None, limit: int
    ) -> list[Projection]: ...  # newest first, older than `before`; without `state`
    async def child_counts(self, parent: ExecutionId) -> dict[str, int]: ...  # by status
    async def tenant_of(
        self, execution_id: ExecutionId
    ) -> Tenant | None: ...  # None: no such execution
    async def received(self, execution_id: ExecutionId, key: str) -> Received: ...
    async def checkpoint(self, shard: int) -> int: ...
    async def live(
        self, shard: int
    ) -> list[ExecutionId]: ...  # executions of the shard without a terminal event

    # -- state between executions --
    async def read_state(
        self, tenant: Tenant, path: str, names: list[str] | None = None
    ) -> list[StateRow]: ...  # by name, those that were unset too; None: all of the path
    async def list_state(
        self, tenant: Tenant, after: tuple[str, str], limit: int
    ) -> list[StateRow]: ...  # by path and name beyond `after`, without those that were unset
    async def state_history(
        self, tenant: Tenant, path: str, name: str, before: int, limit: int
    ) -> list[
        StateRow
    ]: ...  # the last KEPT_VERSIONS at most, newest first, older than the version `before`
    async def put_state(
        self,
        tenant: Tenant,
        path: str,
        name: str,
        value: StateValue,
        expected: int | None,
        by: str | None,
    ) -> int:
        """A write by a person; the version of `value` is ignored, and returned is the one it got. `expected` None: whatever is
        there. Conflict when another version is there, or MAX_STATE_NAMES names. InvalidInput when it cannot be kept."""
        ...

    # -- small payloads --
    async def put_blob(self, reference: Reference, payload: bytes) -> None:
        """Before the report that names it; what the report's StoredRef says (parent, inputs) is recorded with the report.

        The same again is fine. Conflict when another payload stands there, NotFound without such an execution,
        InvalidInput beyond BLOB_LIMIT.
        """
        ...

    async def blob(self, ref_id: RefId, uri: str) -> bytes | None:
        """What `put_blob` or the payload of a recorded StoredRef left under this id and exactly this address."""
        ...

    async def orphans(self, execution_id: ExecutionId, uris: list[str]) -> list[str]:
        """Those that no reference of this execution names and none ever will, for it has ended; what names them may have expired.
        None of one that is not here: another log may know it."""
        ...

    # -- how long results stay --
    async def judge(self, grace: Micros, retention: Micros | None, limit: int) -> Judged:
        """Of so many executions that ended at least `grace` ago: expire the results whose time is over, and delete small
        payloads that were put and never named. `retention`: how long results stay that say nothing else; None: for ever.

        Nothing goes while an execution of its family lives (whom it called, who called it, who goes on from it), nor what is
        pinned. One server judges at a time: the others find nothing to do.
        """
        ...

    async def lives(self, refs: list[RefId]) -> dict[RefId, Life]: ...  # of those that are recorded
    async def pin_results(self, places: list[Place]) -> None:
        """Keep all that these steps have stored. What has not expired when this returns never will; again is fine."""
        ...

    async def unpin_results(self, places: list[Place]) -> None: ...
    async def pinned_results(self, executions: list[ExecutionId]) -> list[Place]: ...  # in order
    async def usage(
        self, executions: list[ExecutionId]
    ) -> list[Used]: ...  # by execution, then tier

    async def lineage(
        self,
        tenant: Tenant,
        roots: list[RefId],
        depth: int,
        after: tuple[int, RefId] | None,
        limit: int,
    ) -> list[Traced]:
        """These references and whatever they were made from, up to `depth` steps back, in whichever execution: each once, nearest
        first, then by id; beyond `after`, which is (depth, id). Of a graph that is too large the nearest part."""
        ...

    # -- step logs --
    async def put_logs(self, parts: tuple[StoredRef, ...]) -> None:
        """Payloads with addresses of kind `log`. One that stands there already stays as it is; one of an execution that is
        not there is passed over."""
        ...

    async def logs(
        self, execution_id: ExecutionId, step: str | None, after: int, limit: int
    ) -> list[LogPart]: ...

    # -- the queue --
    async def claim(
        self, worker: str, pools: tuple[str, ...], limit: int, lease: Micros
    ) -> list[Command]:
        """By priority, then in order of issue. Of commands that lost SUSPECT leases a worker holds one at most: whoever kills
        its workers is soon alone with them, and those that happened to run beside it are not taken for it."""
        ...

    async def renew(
        self,
        worker: str,
        held: tuple[LeaseKey, ...],
        lease: Micros,
        progress: Mapping[LeaseKey, str] = NO_PROGRESS,
    ) -> Renewal: ...  # and how far their tools are, until the next one
    async def leased(self, worker: str) -> list[Command]: ...
    async def expire(
        self, limit: int
    ) -> int: ...  # leases that ran out: lost or stopped, with the inbox row
    async def lose(self, worker: str) -> int: ...  # the worker is gone: the same, at once
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
    ) -> list[Queued]: ...  # in order of issue, beyond the number `after`
    async def depths(
        self, tenant: Tenant | None = None
    ) -> list[Depth]: ...  # commands not over, by pool, status
    async def note_worker(
        self, worker: Present, lease: Micros
    ) -> None: ...  # heard of now; kept for `lease`
    async def workers(self, tenant: Tenant) -> list[Present]: ...  # by name
    async def lost_history(self, limit: int) -> list[str]:
        """Files with events of ended executions that this process cannot reach, of the `limit` newest. Those events are nowhere
        else."""
        ...
