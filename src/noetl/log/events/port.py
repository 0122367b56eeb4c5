"""The contract of the event log: events, and all that one append covers.

Every method of every port in this package is one transaction: it happened completely, not at all,
or its outcome is unknown. Methods raise `StoreUnavailable` (nothing happened) or `OutcomeUnknown`
(it may have happened: repeat the call, the second is refused as known). Time here is the store's own
clock.

Only the owner of a shard appends to it, fenced by the shard's epoch.
"""

from collections.abc import Collection
from typing import Any, NamedTuple, Protocol, Union

from msgspec import Struct

from noetl.model.decisions import AddPart, Effect
from noetl.model.events import Event
from noetl.model.exchange import LeaseKey
from noetl.model.ids import CommandId, ExecutionId, Micros, RefId, Tenant, TimerId
from noetl.model.messages import Start, StoredRef

MAX_BATCH_EVENTS = 500


class RecordedEvent(Struct, frozen=True):
    """An event in the log. Readers follow (shard, seq): sequence numbers are assigned under a lock."""

    execution_id: ExecutionId
    shard: int
    seq: int
    epoch: int
    event: Event


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
    """At most MAX_BATCH_EVENTS events of any number of executions and shards of one owner."""

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

    `key` is set if that is the only problem: a `KeyedEvent` with this key is in the log, or twice in
    the part. It is not set if a report of the same command waits in the inbox: that report came
    first. Repeats of other events are refused by `after`, or recognised by the state.
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


class PinnedExecution(Struct, frozen=True):
    """What does not change during an execution: stored once at its start, as part of the log."""

    execution_id: ExecutionId
    tenant: Tenant
    playbook: str
    workload: dict[str, Any]


class EventName(NamedTuple):
    """An event by its key, which is unique within its execution."""

    execution_id: ExecutionId
    key: str


class RecordedChange(Struct, frozen=True):
    """Events of an execution were recorded. `seq` is the last of them."""

    shard: int
    seq: int
    execution_id: ExecutionId
    events: int = 1


class EventLog(Protocol):
    async def append(self, batch: AppendBatch) -> list[Outcome]: ...

    async def read_events(
        self, execution_id: ExecutionId, after: int = 0, limit: int = 10_000
    ) -> list[RecordedEvent]: ...

    async def read_events_between(
        self, execution_id: ExecutionId, after: int, upto: int, limit: int
    ) -> list[RecordedEvent]:
        """The first events in (after, upto], in order. No others are decoded."""
        ...

    async def read_events_before(
        self, execution_id: ExecutionId, before: int, limit: int
    ) -> list[RecordedEvent]:
        """The last events before the sequence number `before`, in order."""
        ...

    async def read_grouped_events(
        self,
        execution_id: ExecutionId,
        groups: int,
        *,
        after: int = 0,
        before: int | None = None,
        limit: int,
    ) -> list[RecordedEvent]:
        """Events after `after`, or the last ones before `before`, of appends with one of these groups.

        The bits are those of `model/event_groups.py`. An append with one event of a group is
        returned whole, as are appends of older versions: the caller filters. Returns whole appends
        with at least `limit` events, in order, if there are so many. The first and the last append
        of the execution are always among the candidates.
        """
        ...

    async def count_events(
        self, execution_id: ExecutionId, ranges: list[tuple[int, int]]
    ) -> list[int]:
        """The number of events of the execution in each range (after, upto]."""
        ...

    async def read_named_events(
        self, names: Collection[EventName], refs: Collection[RefId] = ()
    ) -> list[RecordedEvent]:
        """The events with these keys, in no order.

        `refs` are references that were recorded together with the events: they lead to them. If none
        is given, or one does not lead anywhere, all events of the executions are searched.
        """
        ...

    async def follow_shard(
        self,
        shard: int,
        after: int,
        limit: int,
    ) -> list[RecordedEvent]: ...

    async def read_changes(self, after: dict[int, int], limit: int) -> list[RecordedChange]:
        """The changes after a sequence number per shard. If a shard has more changes than are
        returned, these are at least `limit` events.
        """
        ...

    async def read_manifest(self, tenant: Tenant, manifest: str) -> list[AddPart]:
        """The parts of a manifest of the tenant, in order of `first`."""
        ...

    async def read_manifest_page(
        self, tenant: Tenant, manifest: str, after: int, limit: int
    ) -> list[AddPart]:
        """The next parts of a manifest with a `first` beyond `after`, in that order."""
        ...

    async def find_parts_before(
        self, tenant: Tenant, manifest: str, position: int, limit: int
    ) -> list[AddPart]:
        """The parts of a manifest that begin at this position or before it, the last one first."""
        ...

    async def find_failed_parts(
        self, tenant: Tenant, manifest: str, after: int, limit: int
    ) -> list[AddPart]:
        """Of `read_manifest_page`, only parts with failed items.

        Parts that were written before failed items were counted are among them.
        """
        ...

    async def read_last_seq(self, execution_id: ExecutionId) -> int: ...
    async def read_pinned(self, execution_id: ExecutionId) -> PinnedExecution | None: ...

    async def read_pinned_executions(
        self, execution_ids: list[ExecutionId]
    ) -> dict[ExecutionId, PinnedExecution]:
        """`read_pinned` for several executions. Unknown executions are left out."""
        ...

    async def list_pinned_playbooks(self) -> list[tuple[Tenant, str]]:
        """The tenants and playbooks of all executions. This reads every row, so it is for jobs."""
        ...

    async def find_children(
        self, tenant: Tenant, parent: ExecutionId, calls: Collection[str]
    ) -> dict[str, ExecutionId]:
        """The children that these calls of an execution have started, by call."""
        ...

    async def find_tenant(self, execution_id: ExecutionId) -> Tenant | None:
        """None if there is no such execution."""
        ...

    async def find_lost_history(self, limit: int) -> list[str]:
        """The unreadable ones of the `limit` newest files with events of ended executions.

        Those events are nowhere else.
        """
        ...
