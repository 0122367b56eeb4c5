"""The memory twin of the log. Every method is one critical section."""

from bisect import bisect_left, bisect_right
from collections.abc import Collection

import msgspec

from noetl.log.events.append_memory import PartWrite
from noetl.log.events.port import (
    AppendBatch,
    EventName,
    ExecutionPart,
    Known,
    Outcome,
    PinnedExecution,
    RecordedChange,
    RecordedEvent,
    ShardLost,
    StaleAttempt,
)
from noetl.log.playbook_state.append_memory import StateConflicts
from noetl.log.tables import EventRow, MemoryDatabase
from noetl.model import codec
from noetl.model.decisions import AddPart
from noetl.model.errors import NoetlError
from noetl.model.event_groups import find_groups
from noetl.model.events import KeyedEvent
from noetl.model.ids import ExecutionId, RefId, Tenant

_pinned = msgspec.json.Decoder(PinnedExecution)
_part = msgspec.json.Decoder(AddPart)


class LogMemory:
    def __init__(self, database: MemoryDatabase) -> None:
        self._db = database
        self._conflicts = StateConflicts(database)

    async def append(self, batch: AppendBatch) -> list[Outcome]:
        if len({part.execution_id for part in batch.parts}) != len(batch.parts):
            raise NoetlError(
                "an execution has two parts in one batch", hint="one part per execution"
            )
        refusals = [self._find_refusal(part, batch.epochs) for part in batch.parts]
        refusals = self._conflicts.refuse_parts(batch.parts, refusals)
        # all parts are checked before the first is applied
        writes = [
            PartWrite(self._db, part, batch.lease)
            for part, refusal in zip(batch.parts, refusals, strict=True)
            if refusal is None
        ]
        applied = {write.part.execution_id: write.apply() for write in writes}
        return [
            refusal or applied[part.execution_id]
            for part, refusal in zip(batch.parts, refusals, strict=True)
        ]

    def _find_refusal(self, part: ExecutionPart, epochs: dict[int, int]) -> Outcome | None:
        """Why the part is refused; None if it is not.

        In order: the fence, the last sequence number, what the part consumes, the keys of its events
        that may be repeated.
        """
        db, rows = self._db, self._db.get_execution_rows(part.execution_id)
        if part.shard != db.shard_of(part.execution_id):
            raise NoetlError(f"execution {part.execution_id} is not of shard {part.shard}")
        if db.shards[part.shard].epoch != epochs.get(part.shard):
            return ShardLost(part.execution_id, part.shard)
        if part.after != rows.last_seq:
            return Known(part.execution_id)
        for held in part.taken:
            row = db.commands.get(held.command_id)
            if row is None or row.attempt != held.attempt:
                return StaleAttempt(part.execution_id, held)
            if row.status not in ("leased", "reported"):
                return StaleAttempt(part.execution_id, held)
            if row.status == "reported" or held.command_id in db.reports:
                return Known(part.execution_id)
        if any(inbox_id not in db.inbox[part.shard] for inbox_id in part.inbox):
            return Known(part.execution_id)
        timers = db.timers[part.shard]
        if any((part.execution_id, timer) not in timers for timer in part.timers):
            return Known(part.execution_id)
        keys = [event.key for event in part.events if isinstance(event, KeyedEvent)]
        for number, key in enumerate(keys):
            if key in rows.keys or key in keys[:number]:
                return Known(part.execution_id, key)
        return None

    async def read_events(
        self, execution_id: ExecutionId, after: int = 0, limit: int = 10_000
    ) -> list[RecordedEvent]:
        rows = self._db.get_execution_rows(execution_id).events
        first = bisect_right(rows, after, key=lambda row: row.seq)
        return [self._decode_event_row(row) for row in rows[first : first + limit]]

    async def read_events_between(
        self, execution_id: ExecutionId, after: int, upto: int, limit: int
    ) -> list[RecordedEvent]:
        rows = self._db.get_execution_rows(execution_id).events
        first = bisect_right(rows, after, key=lambda row: row.seq)
        end = bisect_right(rows, upto, key=lambda row: row.seq)
        return [self._decode_event_row(row) for row in rows[first : min(first + limit, end)]]

    async def read_events_before(
        self, execution_id: ExecutionId, before: int, limit: int
    ) -> list[RecordedEvent]:
        rows = self._db.get_execution_rows(execution_id).events
        end = bisect_left(rows, before, key=lambda row: row.seq)
        return [self._decode_event_row(row) for row in rows[max(end - limit, 0) : end]]

    async def read_grouped_events(
        self,
        execution_id: ExecutionId,
        groups: int,
        *,
        after: int = 0,
        before: int | None = None,
        limit: int,
    ) -> list[RecordedEvent]:
        rows = self._db.get_execution_rows(execution_id).events
        end = len(rows) if before is None else bisect_left(rows, before, key=lambda row: row.seq)
        first = bisect_right(rows, after, key=lambda row: row.seq)
        events = [self._decode_event_row(row) for row in rows[first:end]]
        found = [recorded for recorded in events if find_groups(recorded.event) & groups]
        return found[:limit] if before is None else found[-limit:]

    async def count_events(
        self, execution_id: ExecutionId, ranges: list[tuple[int, int]]
    ) -> list[int]:
        rows = self._db.get_execution_rows(execution_id).events
        counts: list[int] = []
        for after, upto in ranges:
            first = bisect_right(rows, after, key=lambda row: row.seq)
            counts.append(max(bisect_right(rows, upto, key=lambda row: row.seq) - first, 0))
        return counts

    async def read_named_events(
        self, names: Collection[EventName], refs: Collection[RefId] = ()
    ) -> list[RecordedEvent]:
        wanted = set(names)
        recorded: list[RecordedEvent] = []
        for execution_id in {name.execution_id for name in names}:
            recorded += map(
                self._decode_event_row, self._db.get_execution_rows(execution_id).events
            )
        return [event for event in recorded if (event.execution_id, event.event.key) in wanted]

    async def follow_shard(
        self,
        shard: int,
        after: int,
        limit: int,
    ) -> list[RecordedEvent]:
        # sequence numbers have no gaps and begin at 1, so a number is a position
        rows = self._db.by_shard[shard][after : after + limit]
        return [self._decode_event_row(row) for row in rows]

    async def read_changes(self, after: dict[int, int], limit: int) -> list[RecordedChange]:
        changes: dict[ExecutionId, RecordedChange] = {}
        for shard, seq in sorted(after.items()):
            for row in self._db.by_shard[shard][seq : seq + limit]:
                earlier = changes.pop(row.execution_id, None)
                count = 1
                if earlier is not None:
                    count += earlier.events
                changes[row.execution_id] = RecordedChange(shard, row.seq, row.execution_id, count)
        return list(changes.values())

    async def read_manifest(self, tenant: Tenant, manifest: str) -> list[AddPart]:
        if self._db.manifest_tenants.get(manifest) != tenant:
            return []
        parts = self._db.manifests.get(manifest, {})
        return [_part.decode(parts[first]) for first in sorted(parts)]

    async def read_manifest_page(
        self, tenant: Tenant, manifest: str, after: int, limit: int
    ) -> list[AddPart]:
        parts = await self.read_manifest(tenant, manifest)
        return [part for part in parts if part.first > after][:limit]

    async def find_parts_before(
        self, tenant: Tenant, manifest: str, position: int, limit: int
    ) -> list[AddPart]:
        parts = [
            part for part in await self.read_manifest(tenant, manifest) if part.first <= position
        ]
        return parts[::-1][:limit]

    async def find_failed_parts(
        self, tenant: Tenant, manifest: str, after: int, limit: int
    ) -> list[AddPart]:
        parts = await self.read_manifest(tenant, manifest)
        return [part for part in parts if part.first > after and part.failed][:limit]

    async def read_last_seq(self, execution_id: ExecutionId) -> int:
        return self._db.get_execution_rows(execution_id).last_seq

    async def read_pinned(self, execution_id: ExecutionId) -> PinnedExecution | None:
        data = self._db.pinned.get(execution_id)
        return None if data is None else _pinned.decode(data)

    async def read_pinned_executions(
        self, execution_ids: list[ExecutionId]
    ) -> dict[ExecutionId, PinnedExecution]:
        known = [execution_id for execution_id in execution_ids if execution_id in self._db.pinned]
        return {
            execution_id: _pinned.decode(self._db.pinned[execution_id]) for execution_id in known
        }

    async def list_pinned_playbooks(self) -> list[tuple[Tenant, str]]:
        pinned = [_pinned.decode(data) for data in self._db.pinned.values()]
        return sorted({(each.tenant, each.playbook) for each in pinned})

    async def find_children(
        self, tenant: Tenant, parent: ExecutionId, calls: Collection[str]
    ) -> dict[str, ExecutionId]:
        found = {call: self._db.children.get((parent, call)) for call in calls}
        return {call: child for call, child in found.items() if child is not None}

    async def find_tenant(self, execution_id: ExecutionId) -> Tenant | None:
        return self._db.find_tenant(execution_id)

    def _decode_event_row(self, row: EventRow) -> RecordedEvent:
        shard = self._db.shard_of(row.execution_id)
        event = codec.decode_event(row.data)
        return RecordedEvent(row.execution_id, shard, row.seq, row.epoch, event)

    async def find_lost_history(self, limit: int) -> list[str]:
        return []  # nothing is ever moved to files
