"""The event log in Postgres."""

from collections.abc import Collection, Iterable, Iterator
from math import ceil
from pathlib import Path

import msgspec

from noetl.log.columns import read_seq, to_execution_id
from noetl.log.events.append_arguments import AppendArguments
from noetl.log.events.cold import ColdEvents, HistoryFiles
from noetl.log.events.packing import encode_key, unpack_events
from noetl.log.events.port import (
    AppendBatch,
    EventName,
    Outcome,
    PinnedExecution,
    RecordedChange,
    RecordedEvent,
)
from noetl.model.decisions import AddPart
from noetl.model.errors import NoetlError
from noetl.model.ids import ExecutionId, RefId, Tenant
from noetl.postgres.arrays import format_numbers
from noetl.postgres.pool import Database, RaisedBySqlFunction, Record, UniqueViolation
from noetl.postgres.queries import load_queries

_SQL = load_queries(Path(__file__).with_name("events.sql"))
_part = msgspec.json.Decoder(AddPart)
LAST_SEQ = (1 << 63) - 1
MAX_PARTS_PER_READ = 500
USUAL_PART_EVENTS = 4  # events of a part, before one was read


class LogPostgres:
    def __init__(
        self,
        database: Database,
        shards: int,
        lake: HistoryFiles | None = None,
        time_slice_s: float | None = None,
    ) -> None:
        """`shards` must be the number that the database was created with; `migrate` returns it.

        `lake` holds the events that were moved to files. `time_slice_s`: seconds of computing
        before other tasks get a turn.
        """
        self._main = database.main
        self._background = database.background
        self._shards = shards
        self._cold = ColdEvents(lake)
        self._time_slice_s = time_slice_s

    async def append(self, batch: AppendBatch) -> list[Outcome]:
        if not batch.parts:
            return []
        writes = await AppendArguments.from_batch(batch, self._shards, self._time_slice_s)
        try:
            (answer,) = await self._main.write(_SQL["append"], *writes.encode_arguments())
        except UniqueViolation as error:
            raise NoetlError(
                f"{error.table_name}: {error.detail}", hint="it was written already"
            ) from error
        except RaisedBySqlFunction as error:
            raise NoetlError(str(error)) from error
        return writes.decode_outcomes(answer)

    async def read_events(
        self, execution_id: ExecutionId, after: int = 0, limit: int = 10_000
    ) -> list[RecordedEvent]:
        found: list[RecordedEvent] = []
        position = after
        parts = _count_parts(limit, USUAL_PART_EVENTS)
        while len(found) < limit:
            rows = await self._main.read(
                _SQL["read_events"], execution_id=int(execution_id), after=position, limit=parts
            )
            if rows and rows[-1]["path"] is not None:
                path = rows[-1]["path"]
                return await self._cold.read_cold_page(path, execution_id, after, limit)
            events = _unpack_rows(rows, execution_id)
            found += [recorded for recorded in events if recorded.seq > after]
            if len(rows) < parts:
                break
            position = rows[-1]["last_seq"]
            parts = _count_parts(limit - len(found), len(events) / parts)
        return found[:limit]

    async def read_events_between(
        self, execution_id: ExecutionId, after: int, upto: int, limit: int
    ) -> list[RecordedEvent]:
        found: list[RecordedEvent] = []
        position = after
        parts = _count_parts(limit, USUAL_PART_EVENTS)
        while len(found) < limit:
            rows = await self._main.read(
                _SQL["read_events_between"],
                execution_id=int(execution_id),
                after=position,
                upto=upto,
                limit=parts,
            )
            if rows and rows[-1]["path"] is not None:
                path = rows[-1]["path"]
                moved = await self._cold.read_cold_page(path, execution_id, after, limit)
                return [recorded for recorded in moved if recorded.seq <= upto]
            events = _unpack_rows(rows, execution_id)
            found += [recorded for recorded in events if after < recorded.seq <= upto]
            if len(rows) < parts:
                break
            position = rows[-1]["last_seq"]
            parts = _count_parts(limit - len(found), len(events) / parts)
        return found[:limit]

    async def read_events_before(
        self, execution_id: ExecutionId, before: int, limit: int
    ) -> list[RecordedEvent]:
        found: list[RecordedEvent] = []
        position = before
        parts = _count_parts(limit, USUAL_PART_EVENTS)
        while len(found) < limit:
            rows = await self._main.read(
                _SQL["read_parts_before"],
                execution_id=int(execution_id),
                before=position,
                limit=parts,
            )
            if rows and rows[-1]["path"] is not None:
                path = rows[-1]["path"]
                return await self._cold.read_cold_page_before(path, execution_id, before, limit)
            events = _unpack_rows(rows, execution_id)
            older = [recorded for recorded in events if recorded.seq < position]
            found = older + found
            if len(rows) < parts or not older:
                break
            position = older[0].seq
            parts = _count_parts(limit - len(found), len(events) / len(rows))
        return found[-limit:]

    async def read_grouped_events(
        self,
        execution_id: ExecutionId,
        groups: int,
        *,
        after: int = 0,
        before: int | None = None,
        limit: int,
    ) -> list[RecordedEvent]:
        numbers = {"execution_id": int(execution_id), "groups": groups}
        parts = min(limit, MAX_PARTS_PER_READ)
        if before is None:
            rows = await self._main.read(
                _SQL["read_grouped_parts"], **numbers, after=after, limit=parts
            )
        else:
            rows = await self._main.read(
                _SQL["read_grouped_parts_before"], **numbers, before=before, limit=parts
            )
        if rows and rows[-1]["path"] is not None:
            path = rows[-1]["path"]
            if before is None:
                return await self._cold.read_cold_page(path, execution_id, after, limit)
            return await self._cold.read_cold_page_before(path, execution_id, before, limit)
        rows = _cut_at_last_grouped(rows, parts, newest_first=before is not None)
        upto = LAST_SEQ if before is None else before
        return [
            recorded for recorded in _unpack_rows(rows, execution_id) if after < recorded.seq < upto
        ]

    async def count_events(
        self, execution_id: ExecutionId, ranges: list[tuple[int, int]]
    ) -> list[int]:
        if not ranges:
            return []
        rows = await self._main.read(
            _SQL["count_events"],
            execution_id=int(execution_id),
            after=[after for after, _ in ranges],
            upto=[upto for _, upto in ranges],
        )
        if rows[0]["path"] is not None:
            return await self._cold.count_cold_events(rows[0]["path"], execution_id, ranges)
        return [row["count"] for row in rows]

    async def read_named_events(
        self, names: Collection[EventName], refs: Collection[RefId] = ()
    ) -> list[RecordedEvent]:
        wanted = set(names)
        found: dict[EventName, RecordedEvent] = {}
        if refs:
            numbers = [int(ref_id) for ref_id in refs]
            rows = await self._main.read(_SQL["read_recorded_parts"], refs=numbers)
            found = _find_named(rows, wanted)
            reached = {ref_id for row in rows for ref_id in row["refs"]}
            if reached.issuperset(numbers):
                return list(found.values())
        missing = wanted - found.keys()
        if not missing:
            return list(found.values())
        rows = await self._main.read(
            _SQL["search_parts"],
            executions=list({int(name.execution_id) for name in missing}),
            texts=list({encode_key(name.key) for name in missing}),
        )
        found |= _find_named(rows, missing)
        moved = await self._read_moved_events(missing - found.keys())
        return [*found.values(), *moved]

    async def _read_moved_events(self, names: set[EventName]) -> list[RecordedEvent]:
        """Look up events that are not in the log in the files of moved events."""
        if not names:
            return []
        executions = [int(name.execution_id) for name in names]
        rows = await self._main.read(_SQL["moved"], executions=executions)
        found: list[RecordedEvent] = []
        for row in rows:
            events = await self._cold.read_cold_events(
                row["path"], to_execution_id(row["execution_id"])
            )
            found += [event for event in events if (event.execution_id, event.event.key) in names]
        return found

    async def find_lost_history(self, limit: int) -> list[str]:
        rows = await self._background.read(_SQL["cold_files"], limit=limit)
        return await self._cold.find_unreadable([row["path"] for row in rows])

    async def follow_shard(
        self,
        shard: int,
        after: int,
        limit: int,
    ) -> list[RecordedEvent]:
        found: list[RecordedEvent] = []
        position = after
        while len(found) < limit:
            parts = min(limit - len(found), MAX_PARTS_PER_READ)
            rows = await self._background.read(
                _SQL["follow_shard"], shard=shard, after=position, limit=parts
            )
            for row in rows:
                events = _unpack_row(row, to_execution_id(row["execution_id"]))
                found += [recorded for recorded in events if recorded.seq > after]
            if len(rows) < parts:
                break
            position = rows[-1]["last_seq"]
        return found[:limit]

    async def read_changes(self, after: dict[int, int], limit: int) -> list[RecordedChange]:
        rows = await self._background.read(
            _SQL["read_changes"],
            shards=format_numbers(list(after)),
            after=format_numbers(list(after.values())),
            limit=limit,
        )
        return [
            RecordedChange(
                row["shard"], row["seq"], to_execution_id(row["execution_id"]), row["events"]
            )
            for row in rows
        ]

    async def read_manifest(self, tenant: Tenant, manifest: str) -> list[AddPart]:
        rows = await self._main.read(_SQL["read_manifest"], tenant=tenant, manifest=manifest)
        return [_part.decode(row["body"]) for row in rows]

    async def read_manifest_page(
        self, tenant: Tenant, manifest: str, after: int, limit: int
    ) -> list[AddPart]:
        rows = await self._main.read(
            _SQL["read_manifest_page"], tenant=tenant, manifest=manifest, after=after, limit=limit
        )
        return [_part.decode(row["body"]) for row in rows]

    async def find_parts_before(
        self, tenant: Tenant, manifest: str, position: int, limit: int
    ) -> list[AddPart]:
        rows = await self._main.read(
            _SQL["find_parts_before"],
            tenant=tenant,
            manifest=manifest,
            position=position,
            limit=limit,
        )
        return [_part.decode(row["body"]) for row in rows]

    async def find_failed_parts(
        self, tenant: Tenant, manifest: str, after: int, limit: int
    ) -> list[AddPart]:
        rows = await self._main.read(
            _SQL["find_failed_parts"], tenant=tenant, manifest=manifest, after=after, limit=limit
        )
        return [_part.decode(row["body"]) for row in rows]

    async def read_last_seq(self, execution_id: ExecutionId) -> int:
        rows = await self._main.read(_SQL["read_last_seq"], execution_id=int(execution_id))
        return read_seq(rows)

    async def read_pinned(self, execution_id: ExecutionId) -> PinnedExecution | None:
        rows = await self._main.read(_SQL["read_pinned_executions"], executions=[int(execution_id)])
        return _decode_pinned(rows[0]) if rows else None

    async def read_pinned_executions(
        self, execution_ids: list[ExecutionId]
    ) -> dict[ExecutionId, PinnedExecution]:
        executions = [int(execution_id) for execution_id in execution_ids]
        rows = await self._main.read(_SQL["read_pinned_executions"], executions=executions)
        return {pinned.execution_id: pinned for pinned in map(_decode_pinned, rows)}

    async def list_pinned_playbooks(self) -> list[tuple[Tenant, str]]:
        rows = await self._background.read(_SQL["list_pinned_playbooks"])
        return [(Tenant(row["tenant"]), row["playbook"]) for row in rows]

    async def find_children(
        self, tenant: Tenant, parent: ExecutionId, calls: Collection[str]
    ) -> dict[str, ExecutionId]:
        keys = [f"child:{parent}:{call}" for call in calls]
        rows = await self._main.read(_SQL["find_children"], tenant=tenant, keys=keys)
        return {row["key"].rpartition(":")[2]: to_execution_id(row["execution_id"]) for row in rows}

    async def find_tenant(self, execution_id: ExecutionId) -> Tenant | None:
        rows = await self._main.read(_SQL["find_tenant"], execution_id=int(execution_id))
        return Tenant(rows[0]["tenant"]) if rows else None


def _unpack_row(row: Record, execution_id: ExecutionId) -> Iterator[RecordedEvent]:
    return unpack_events(execution_id, row["shard"], row["last_seq"], row["epoch"], row["events"])


def _unpack_rows(rows: Iterable[Record], execution_id: ExecutionId) -> list[RecordedEvent]:
    """The events of these parts in order. A part may be among them twice."""
    parts = {row["last_seq"]: row for row in rows}
    found: list[RecordedEvent] = []
    for last_seq in sorted(parts):
        found += _unpack_row(parts[last_seq], execution_id)
    return found


def _count_parts(events: int, events_per_part: float) -> int:
    """How many parts to read for so many events, if a part has so many of them."""
    return min(max(ceil(events / events_per_part), 1), MAX_PARTS_PER_READ)


def _cut_at_last_grouped(rows: list[Record], limit: int, *, newest_first: bool) -> list[Record]:
    """The rows up to the last one of the page.

    The last two rows are the first and the last part of the execution. If the page is full, a part
    beyond it belongs to a later page.
    """
    if len(rows) < limit + 2:
        return rows
    last = rows[limit - 1]["last_seq"]
    if newest_first:
        return [row for row in rows if row["last_seq"] >= last]
    return [row for row in rows if row["last_seq"] <= last]


def _find_named(rows: Iterable[Record], names: set[EventName]) -> dict[EventName, RecordedEvent]:
    """The events of these parts that have one of the names."""
    found: dict[EventName, RecordedEvent] = {}
    for row in rows:
        for recorded in _unpack_row(row, to_execution_id(row["execution_id"])):
            name = EventName(recorded.execution_id, recorded.event.key)
            if name in names:
                found[name] = recorded
    return found


def _decode_pinned(row: Record) -> PinnedExecution:
    return PinnedExecution(
        to_execution_id(row["execution_id"]),
        Tenant(row["tenant"]),
        row["playbook"],
        msgspec.json.decode(row["data"]),
    )
