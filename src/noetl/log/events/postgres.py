"""The event log in Postgres."""

from collections.abc import Collection, Iterable, Iterator
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
MAX_PARTS_PER_READ = 500  # a part has about six events


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
        while len(found) < limit:
            parts = min(limit - len(found), MAX_PARTS_PER_READ)
            rows = await self._main.read(
                _SQL["read_events"], execution_id=int(execution_id), after=position, limit=parts
            )
            if rows and rows[-1]["path"] is not None:
                moved = await self._cold.read_cold_events(rows[-1]["path"], execution_id)
                found += [recorded for recorded in moved if recorded.seq > position]
                break
            for row in rows:
                events = _unpack_row(row, execution_id)
                found += [recorded for recorded in events if recorded.seq > after]
            if len(rows) < parts:
                break
            position = rows[-1]["last_seq"]
        return found[:limit]

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

    async def read_manifest(self, manifest: str) -> list[AddPart]:
        rows = await self._main.read(_SQL["read_manifest"], manifest=manifest)
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

    async def list_pinned_playbooks(self) -> list[str]:
        rows = await self._background.read(_SQL["list_pinned_playbooks"])
        return [row["playbook"] for row in rows]

    async def find_tenant(self, execution_id: ExecutionId) -> Tenant | None:
        rows = await self._main.read(_SQL["find_tenant"], execution_id=int(execution_id))
        return Tenant(rows[0]["tenant"]) if rows else None


def _unpack_row(row: Record, execution_id: ExecutionId) -> Iterator[RecordedEvent]:
    return unpack_events(execution_id, row["shard"], row["last_seq"], row["epoch"], row["events"])


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
