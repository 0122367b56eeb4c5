"""The snapshots in Postgres."""

from pathlib import Path

from noetl.log.snapshots.port import Snapshot, SnapshotPosition
from noetl.log.stored_json import compress_json, decompress_json
from noetl.model.ids import ExecutionId, Micros
from noetl.postgres.pool import Database, Record
from noetl.postgres.queries import load_queries

_SQL = load_queries(Path(__file__).with_name("snapshots.sql"))


class SnapshotsPostgres:
    def __init__(self, database: Database) -> None:
        self._main = database.main
        self._background = database.background

    async def put_snapshots(self, snapshots: list[Snapshot]) -> None:
        await self._background.write(
            _SQL["put_snapshots"],
            execs=[int(row.execution_id) for row in snapshots],
            seqs=[row.seq for row in snapshots],
            events=[row.events for row in snapshots],
            ats=[row.at for row in snapshots],
            shapes=[row.shape for row in snapshots],
            states=[compress_json(row.state) for row in snapshots],
            bands=[compress_json(row.bands) for row in snapshots],
        )

    async def read_snapshot(
        self, execution_id: ExecutionId, shape: str, seq: int
    ) -> Snapshot | None:
        rows = await self._main.read(
            _SQL["read_snapshot"], execution_id=int(execution_id), shape=shape, seq=seq
        )
        return _decode_snapshot(rows[0], execution_id, shape) if rows else None

    async def find_positions(
        self, execution_id: ExecutionId, shape: str, seqs: list[int]
    ) -> list[SnapshotPosition | None]:
        rows = await self._main.read(
            _SQL["find_positions"], execution_id=int(execution_id), shape=shape, seqs=seqs
        )
        return [None if row["seq"] is None else SnapshotPosition(**row) for row in rows]

    async def find_position_by_number(
        self, execution_id: ExecutionId, shape: str, number: int
    ) -> SnapshotPosition | None:
        rows = await self._main.read(
            _SQL["find_position_by_number"],
            execution_id=int(execution_id),
            shape=shape,
            number=number,
        )
        return SnapshotPosition(**rows[0]) if rows else None

    async def find_position_by_time(
        self, execution_id: ExecutionId, shape: str, before: Micros
    ) -> SnapshotPosition | None:
        rows = await self._main.read(
            _SQL["find_position_by_time"],
            execution_id=int(execution_id),
            shape=shape,
            before=before,
        )
        return SnapshotPosition(**rows[0]) if rows else None

    async def delete_old_snapshots(self, age: Micros, limit: int) -> int:
        (row,) = await self._background.write(_SQL["delete_old_snapshots"], age=age, limit=limit)
        return int(row["deleted"])


def _decode_snapshot(row: Record, execution_id: ExecutionId, shape: str) -> Snapshot | None:
    """The stored snapshot; None if it is damaged: readers fold the log then."""
    try:
        state, bands = decompress_json(row["state"]), decompress_json(row["bands"])
    except ValueError:
        return None
    return Snapshot(
        execution_id=execution_id,
        seq=row["seq"],
        events=row["events"],
        at=row["at"],
        shape=shape,
        state=state,
        bands=bands,
    )
