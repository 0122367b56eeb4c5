"""Reads projection rows through a cache of final ones and of those that this server has written.

Only the owner of a shard writes its rows. So a row that this server has written stays valid while
it owns the shard. It uses such a row only if its ownership was confirmed within the last second;
otherwise it reads the store. So a server that was suspended for a while shows no outdated rows.
Dropping the cache changes only latency.
"""

import asyncio
from collections.abc import Iterable

from noetl.caches import WeightedLruCache
from noetl.log.projections.port import Projection, Projections
from noetl.model.ids import ExecutionId
from noetl.server.dispatch.shards import OwnedShards

OWNERSHIP_TTL_S = 1.0  # seconds for which a confirmation of the shards' owner counts
MAX_CACHED_STATE_BYTES = 8 * 1024 * 1024  # of all cached states
MAX_CACHED_ROW_BYTES = 64 * 1024  # bytes of one state; larger rows are not cached


class RowCache:
    """The cache of projection rows, by execution id. It holds at most `limit` of them."""

    def __init__(self, projections: Projections, shards: OwnedShards, limit: int) -> None:
        self._projections = projections
        self._shards = shards
        self._cached_rows: WeightedLruCache[ExecutionId, Projection] = WeightedLruCache(
            MAX_CACHED_STATE_BYTES, _count_state_bytes, max_entries=limit
        )
        shards.on_change.append(self._forget_rows)

    async def read(self, execution_id: ExecutionId) -> Projection | None:
        """The row, from the cache or from the store. None if the execution has none yet."""
        cached = self.get(execution_id)
        if cached is not None:
            return cached
        row = await self._projections.read_projection(execution_id)
        if row is not None:
            self.cache_final(row)
        return row

    def cache_written(self, rows: Iterable[Projection]) -> None:
        """Cache rows that this server has just written to the store."""
        for row in rows:
            if row.ended_at is not None or self._shards.owns(row.shard):
                self._cache_row(row)

    def cache_final(self, row: Projection) -> None:
        """Cache a row read from the store if it is final: another may have been written since."""
        if row.ended_at is not None:
            self._cache_row(row)

    def get(self, execution_id: ExecutionId) -> Projection | None:
        row = self._cached_rows.get(execution_id)
        if row is None:
            return None
        if row.ended_at is None and not self._is_ownership_fresh():
            return None
        return row

    def _is_ownership_fresh(self) -> bool:
        return asyncio.get_running_loop().time() - self._shards.confirmed_at < OWNERSHIP_TTL_S

    def _cache_row(self, row: Projection) -> None:
        before = self._cached_rows.pop(row.execution_id)
        if before is not None and before.last_seq > row.last_seq:
            row = before
        if _count_state_bytes(row) > MAX_CACHED_ROW_BYTES:
            return
        self._cached_rows.put(row.execution_id, row)

    def _forget_rows(self, shard: int) -> None:
        """Drop the rows of a shard that was gained or lost."""
        outdated = [row.execution_id for row in self._cached_rows.values() if row.shard == shard]
        for execution_id in outdated:
            self._cached_rows.pop(execution_id)


def _count_state_bytes(row: Projection) -> int:
    return len(row.state or b"")
