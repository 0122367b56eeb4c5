"""The memory twin of the snapshots. Every method is one critical section."""

import msgspec

from noetl.log.projections.port import Projection
from noetl.log.snapshots.port import Snapshot, SnapshotPosition
from noetl.log.tables import MemoryDatabase
from noetl.model import codec
from noetl.model.ids import ExecutionId, Micros

_snapshot = msgspec.json.Decoder(Snapshot)
_projection = msgspec.json.Decoder(Projection)


class SnapshotsMemory:
    def __init__(self, database: MemoryDatabase) -> None:
        self._db = database

    async def put_snapshots(self, snapshots: list[Snapshot]) -> None:
        for snapshot in snapshots:
            rows = self._db.snapshots.setdefault(snapshot.execution_id, {})
            known = rows.get(snapshot.seq)
            if known is None or _snapshot.decode(known).shape != snapshot.shape:
                rows[snapshot.seq] = codec.encode(snapshot)
                key = (snapshot.execution_id, snapshot.seq)
                self._db.snapshot_times[key] = self._db.clock.now()

    async def read_snapshot(
        self, execution_id: ExecutionId, shape: str, seq: int
    ) -> Snapshot | None:
        earlier = [row for row in self._list_rows(execution_id, shape) if row.seq <= seq]
        return earlier[-1] if earlier else None

    async def find_positions(
        self, execution_id: ExecutionId, shape: str, seqs: list[int]
    ) -> list[SnapshotPosition | None]:
        return [_get_position(await self.read_snapshot(execution_id, shape, seq)) for seq in seqs]

    async def find_position_by_number(
        self, execution_id: ExecutionId, shape: str, number: int
    ) -> SnapshotPosition | None:
        earlier = [row for row in self._list_rows(execution_id, shape) if row.events <= number]
        return _get_position(earlier[-1] if earlier else None)

    async def find_position_by_time(
        self, execution_id: ExecutionId, shape: str, before: Micros
    ) -> SnapshotPosition | None:
        earlier = [row for row in self._list_rows(execution_id, shape) if row.at < before]
        return _get_position(earlier[-1] if earlier else None)

    async def delete_old_snapshots(self, age: Micros, limit: int) -> int:
        latest = self._db.clock.now() - age
        written = sorted(self._db.snapshot_times.items(), key=lambda entry: entry[1])
        old = [key for key, at in written if at <= latest and self._has_ended(key[0], latest)]
        for execution_id, seq in old[:limit]:
            del self._db.snapshots[execution_id][seq]
            del self._db.snapshot_times[execution_id, seq]
        return len(old[:limit])

    def _has_ended(self, execution_id: ExecutionId, latest: Micros) -> bool:
        data = self._db.projections.get(execution_id)
        if data is None:
            return False
        ended_at = _projection.decode(data).ended_at
        return ended_at is not None and ended_at <= latest

    def _list_rows(self, execution_id: ExecutionId, shape: str) -> list[Snapshot]:
        """The snapshots of this shape, in order."""
        rows = self._db.snapshots.get(execution_id, {})
        decoded = [_snapshot.decode(rows[seq]) for seq in sorted(rows)]
        return [row for row in decoded if row.shape == shape]


def _get_position(row: Snapshot | None) -> SnapshotPosition | None:
    if row is None:
        return None
    return SnapshotPosition(row.seq, row.events, row.at)
