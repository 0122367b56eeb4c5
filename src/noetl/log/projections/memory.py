"""The memory twin of the projections. Every method is one critical section."""

import re
from collections import Counter
from itertools import islice

import msgspec

from noetl.log.projections.port import ExecutionFilter, Projection, ShardRows, has_wildcard
from noetl.log.tables import MemoryDatabase
from noetl.model import codec
from noetl.model.errors import NoetlError
from noetl.model.ids import ExecutionId, Tenant

_projection = msgspec.json.Decoder(Projection)


class ProjectionsMemory:
    def __init__(self, database: MemoryDatabase) -> None:
        self._db = database

    async def write_projections(self, batch: list[ShardRows]) -> list[bool]:
        """Write all projections, or raise and write none."""
        db = self._db
        owned = [db.shards[shard_rows.shard].epoch == shard_rows.epoch for shard_rows in batch]
        for shard_rows, ours in zip(batch, owned, strict=True):
            for row in shard_rows.rows:
                is_ahead = ours and row.last_seq > db.get_execution_rows(row.execution_id).last_seq
                if is_ahead or row.shard != shard_rows.shard:
                    raise NoetlError(
                        f"projection of {row.execution_id} is ahead of the log or of another shard"
                    )
        for shard_rows, ours in zip(batch, owned, strict=True):
            if ours:
                self._write_projections(shard_rows)
        return owned

    def _write_projections(self, shard_rows: ShardRows) -> None:
        db, shard = self._db, shard_rows.shard
        for row in shard_rows.rows:
            stored = self._read_projection(row.execution_id)
            if stored is None or stored.last_seq < row.last_seq:
                db.projections[row.execution_id] = codec.encode(row)
        checkpoint = min(shard_rows.checkpoint, db.shards[shard].last_seq)
        db.checkpoints[shard] = max(db.checkpoints[shard], checkpoint)

    async def read_projection(self, execution_id: ExecutionId) -> Projection | None:
        return self._read_projection(execution_id)

    async def list_executions(
        self, tenant: Tenant, wanted: ExecutionFilter, before: ExecutionId | None, limit: int
    ) -> list[Projection]:
        execution_ids = sorted(self._db.projections, key=int, reverse=True)
        if before is not None:
            execution_ids = [each for each in execution_ids if int(each) < int(before)]
        if wanted.roots:
            children = set(self._db.children.values())
            execution_ids = [each for each in execution_ids if each not in children]
        found = map(self._read_projection, execution_ids)
        of_tenant = (row for row in found if row is not None and row.tenant == tenant)
        rows = (row for row in of_tenant if _matches_filter(row, wanted))
        return [msgspec.structs.replace(row, state=None) for row in islice(rows, limit)]

    async def count_children(self, parent: ExecutionId) -> dict[str, int]:
        rows = map(self._read_projection, self._db.projections)
        return dict(Counter(row.status for row in rows if row is not None and row.parent == parent))

    async def read_checkpoint(self, shard: int) -> int:
        return self._db.checkpoints[shard]

    def _read_projection(self, execution_id: ExecutionId) -> Projection | None:
        data = self._db.projections.get(execution_id)
        return None if data is None else _projection.decode(data)


def _matches_path(path: str, wanted: str) -> bool:
    if not has_wildcard(wanted):
        return path == wanted
    pattern = ".*".join(map(re.escape, wanted.split("*")))
    return re.fullmatch(pattern, path) is not None


def _matches_filter(row: Projection, wanted: ExecutionFilter) -> bool:
    return (
        wanted.status in (None, row.status)
        and (wanted.path is None or _matches_path(row.path, wanted.path))
        and wanted.parent in (None, row.parent)
        and not (wanted.roots and row.parent is not None)
        and (wanted.since is None or row.started_at >= wanted.since)
    )
