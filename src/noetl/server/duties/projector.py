"""Keeps the rows people read. It follows the log of its shards from their checkpoints, so a new owner goes on where the
last one stopped; what it writes is under the shard's epoch, never ahead of the log and never back."""

import logging
from collections.abc import Iterable
from itertools import groupby

from noetl.engine import summary as summaries
from noetl.engine.summary import summary
from noetl.faults import fault
from noetl.log.port import Change, EventLog, Projection, ShardRows
from noetl.model.ids import DEFAULT_TENANT, ExecutionId
from noetl.server.duties.loop import Counts
from noetl.server.shards import OwnedShards
from noetl.server.states import LoadedState, States, Unfoldable
from noetl.turns import TimeSlice

log = logging.getLogger(__name__)

LOOK_EVERY = 10  # runs between looks at shards in which this server has written nothing


class Projector:
    name = "projector"

    def __init__(
        self,
        eventlog: EventLog,
        states: States,
        shards: OwnedShards,
        limit: int,
        at_a_stretch: float | None = None,
    ) -> None:
        self._at_a_stretch = at_a_stretch
        self._log = eventlog
        self._states = states
        self._shards = shards
        self._limit = limit
        self._changed: set[int] = set()
        self._projected: dict[int, int] = {}  # by shard: everything up to here
        self._runs = 0
        shards.on_change.append(self._forget)

    def changed(self, shards: Iterable[int]) -> None:
        self._changed.update(shards)

    async def run_once(self) -> Counts:
        self._runs += 1
        look = self._runs % LOOK_EVERY == 1
        epochs = {
            shard: epoch
            for shard, epoch in self._shards.epochs().items()
            if look or shard in self._changed or shard not in self._projected
        }
        self._changed.difference_update(epochs)
        try:
            return await self._project(epochs)
        except BaseException:
            self._changed.update(epochs)
            raise

    async def _project(self, epochs: dict[int, int]) -> Counts:
        """What has changed in these shards, read at once and written at once."""
        after = {shard: await self._position(shard) for shard in epochs}
        changes = await self._log.changes(after, self._limit) if after else []
        if not changes:
            return Counts()
        stretch = TimeSlice(self._at_a_stretch)
        batch = [
            await self._rows(shard, epochs[shard], list(part), stretch)
            for shard, part in groupby(changes, _shard)
        ]
        fault("project.before")
        done = await self._log.project(batch)
        fault("project.after")
        for each, applied in zip(batch, done, strict=True):
            if not applied:
                self._shards.drop(each.shard, each.epoch)
            elif self._shards.epochs().get(each.shard) == each.epoch:
                self._projected[each.shard] = each.checkpoint
        full = [
            shard
            for shard, part in groupby(changes, _shard)
            if sum(change.events for change in part) == self._limit
        ]
        self._changed.update(full)
        return Counts(sum(len(each.rows) for each in batch), bool(full))

    async def _position(self, shard: int) -> int:
        if shard not in self._projected:
            self._projected[shard] = await self._log.checkpoint(shard)
        return self._projected[shard]

    async def _rows(
        self, shard: int, epoch: int, changes: list[Change], stretch: TimeSlice
    ) -> ShardRows:
        rows: list[Projection] = []
        for change in changes:
            if (row := await self._row(change.execution_id, shard, change.seq)) is not None:
                rows.append(row)
            await stretch.pause_if_over()
        return ShardRows(shard, epoch, changes[-1].seq, tuple(rows))

    async def _row(self, execution_id: ExecutionId, shard: int, seq: int) -> Projection | None:
        """A state as of `seq` or later: an append that was given up may have been written after the state was read."""
        try:
            loaded = await self._states.get(execution_id)
            if loaded is not None and loaded.seq < seq:
                self._states.forget(execution_id)
                loaded = await self._states.get(execution_id)
        except Unfoldable as error:
            return broken(error, execution_id, shard)
        return None if loaded is None else projection(loaded, shard)

    def _forget(self, shard: int) -> None:
        self._projected.pop(shard, None)


def _shard(change: Change) -> int:
    return change.shard


def projection(loaded: LoadedState, shard: int) -> Projection:
    return Projection(
        execution_id=loaded.fixed.execution_id,
        shard=shard,
        tenant=loaded.fixed.tenant,
        last_seq=loaded.seq,
        **summary(loaded.state),
    )


def broken(error: Unfoldable, execution_id: ExecutionId, shard: int) -> Projection:
    """What can be said of an execution whose log does not fold."""
    return Projection(
        execution_id=execution_id,
        shard=shard,
        tenant=DEFAULT_TENANT,
        last_seq=error.seq,
        **summaries.broken(error.state, str(error)),
    )
