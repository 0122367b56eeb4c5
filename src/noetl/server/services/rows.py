"""A cache of projection rows: final ones, and those that this server has written as their owner.

Only the owner of a shard writes its rows. So a row that this server has written stays valid while
it owns the shard. It uses such a row only if its ownership was confirmed within the last second;
otherwise it reads the store. So a server that was suspended for a while shows no outdated rows.
Dropping the cache changes only latency.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Iterable

from noetl.log.port import Projection
from noetl.model.ids import ExecutionId
from noetl.server.shards import OwnedShards

FRESH = 1.0  # seconds for which a confirmation of the shards' owner counts
KEPT = 2_000  # cached rows, at most
KEPT_BYTES = 8 * 1024 * 1024  # of all cached states
LARGEST = 64 * 1024  # bytes of one state; larger rows are not cached


class RowService:
    """The cache of projection rows, by execution id."""

    def __init__(self, shards: OwnedShards) -> None:
        self._shards = shards
        self._kept: OrderedDict[ExecutionId, Projection] = OrderedDict()
        self._bytes = 0
        shards.on_change.append(self._forget)

    def written(self, rows: Iterable[Projection]) -> None:
        """Cache rows that this server has just written to the store."""
        for row in rows:
            if row.ended_at is not None or self._shards.owns(row.shard):
                self._keep(row)

    def read(self, row: Projection) -> None:
        """Cache a row read from the store if it is final: another may have been written since."""
        if row.ended_at is not None:
            self._keep(row)

    def get(self, execution_id: ExecutionId) -> Projection | None:
        row = self._kept.get(execution_id)
        if row is None:
            return None
        if row.ended_at is None and not self._is_ours():
            return None
        self._kept.move_to_end(execution_id)
        return row

    def _is_ours(self) -> bool:
        return asyncio.get_running_loop().time() - self._shards.confirmed < FRESH

    def _keep(self, row: Projection) -> None:
        before = self._drop(row.execution_id)
        if before is not None and before.last_seq > row.last_seq:
            row = before
        if _size(row) > LARGEST:
            return
        self._kept[row.execution_id] = row
        self._bytes += _size(row)
        while len(self._kept) > KEPT or self._bytes > KEPT_BYTES:
            self._drop(next(iter(self._kept)))

    def _drop(self, execution_id: ExecutionId) -> Projection | None:
        row = self._kept.pop(execution_id, None)
        if row is not None:
            self._bytes -= _size(row)
        return row

    def _forget(self, shard: int) -> None:
        """Drop the rows of a shard that was gained or lost."""
        outdated = [row.execution_id for row in self._kept.values() if row.shard == shard]
        for execution_id in outdated:
            self._drop(execution_id)


def _size(row: Projection) -> int:
    return len(row.state or b"")
