"""Rows of the projection that need not be read from the store: those that are final, and those that this server has written
and that nobody else may write.

A shard's rows are written by its owner alone. So what was written here stays right while the shard is ours; that this is so was
confirmed a moment ago, or the store is asked: a server that was stopped for a while shows nothing older than that moment.
Dropping all of it changes latency, nothing else.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Iterable

from noetl.log.port import Projection
from noetl.model.ids import ExecutionId
from noetl.server.shards import OwnedShards

FRESH = 1.0  # seconds since it was confirmed whose the shards are
KEPT = 2_000
KEPT_BYTES = 8 * 1024 * 1024  # of states
LARGEST = 64 * 1024  # bytes of one state


class RowService:
    def __init__(self, shards: OwnedShards) -> None:
        self._shards = shards
        self._kept: OrderedDict[ExecutionId, Projection] = OrderedDict()
        self._bytes = 0
        shards.on_change.append(self._forget)

    def written(self, rows: Iterable[Projection]) -> None:
        """They are in the store, and the last that were written."""
        for row in rows:
            if row.ended_at is not None or self._shards.owns(row.shard):
                self._keep(row)

    def read(self, row: Projection) -> None:
        """From the store. Another may have been written since, unless it has ended."""
        if row.ended_at is not None:
            self._keep(row)

    def get(self, execution_id: ExecutionId) -> Projection | None:
        row = self._kept.get(execution_id)
        if row is None or (row.ended_at is None and not self._is_ours()):
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
        """It has come or gone: what was known of it was known of another time."""
        for execution_id in [row.execution_id for row in self._kept.values() if row.shard == shard]:
            self._drop(execution_id)


def _size(row: Projection) -> int:
    return len(row.state or b"")
