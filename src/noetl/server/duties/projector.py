"""Writes the projection: the rows that people read.

The projector follows the log of its shards from their checkpoints, so a new owner continues where
the last one stopped. It writes under the shard's epoch. Its rows are never ahead of the log, and
they never go back to an older state.
"""

import logging
from collections.abc import Iterable
from itertools import groupby

from noetl.engine import summary as summaries
from noetl.engine.summary import summarise_execution
from noetl.faults import hit_fault_point
from noetl.log.events.port import EventLog, RecordedChange
from noetl.log.projections.port import Projection, Projections, ShardRows
from noetl.model.ids import DEFAULT_TENANT, ExecutionId
from noetl.server.dispatch.shards import OwnedShards
from noetl.server.dispatch.states import LoadedState, States, Unfoldable
from noetl.server.duties.loop import Counts
from noetl.server.executions.rows import RowCache
from noetl.server.observer import CommitObserver
from noetl.time_slice import TimeSlice

log = logging.getLogger(__name__)

RUNS_PER_FULL_READ = (
    10  # every so many runs it also reads shards in which this server wrote nothing
)


class Projector:
    """The duty that keeps the projection of owned shards."""

    name = "projector"

    def __init__(
        self,
        log: EventLog,
        projections: Projections,
        states: States,
        shards: OwnedShards,
        rows: RowCache,
        observer: CommitObserver,
        limit: int,
        time_slice_s: float | None = None,
    ) -> None:
        self._time_slice_s = time_slice_s
        self._log = log
        self._projections = projections
        self._states = states
        self._shards = shards
        self._rows = rows
        self._observer = observer
        self._limit = limit
        self._changed: set[int] = set()
        self._projected: dict[int, int] = {}  # by shard: the seq up to which it is projected
        self._runs = 0
        shards.on_change.append(self._forget_position)

    def mark_changed(self, shards: Iterable[int]) -> None:
        """Note that these shards may have new events."""
        self._changed.update(shards)

    async def run_once(self) -> Counts:
        self._runs += 1
        reads_all = self._runs % RUNS_PER_FULL_READ == 1
        epochs = {
            shard: epoch
            for shard, epoch in self._shards.copy_epochs().items()
            if reads_all or shard in self._changed or shard not in self._projected
        }
        self._changed.difference_update(epochs)
        try:
            return await self._project_shards(epochs)
        except BaseException:
            self._changed.update(epochs)
            raise

    async def _project_shards(self, epochs: dict[int, int]) -> Counts:
        """Project the changes of these shards: one read and one write for all of them."""
        positions = {shard: await self._read_position(shard) for shard in epochs}
        if not positions:
            return Counts()
        changes = await self._log.read_changes(positions, self._limit)
        if not changes:
            return Counts()
        time_slice = TimeSlice(self._time_slice_s)
        batch = [
            await self._project_shard(shard, epochs[shard], list(part), time_slice)
            for shard, part in groupby(changes, _shard_of_change)
        ]
        hit_fault_point("project.before")
        applied = await self._projections.write_projections(batch)
        self._publish_rows(batch, applied)
        hit_fault_point("project.after")
        for shard_rows, is_applied in zip(batch, applied, strict=True):
            if not is_applied:
                self._shards.drop(shard_rows.shard, shard_rows.epoch)
            elif self._shards.copy_epochs().get(shard_rows.shard) == shard_rows.epoch:
                self._projected[shard_rows.shard] = shard_rows.checkpoint
        at_limit = [
            shard
            for shard, part in groupby(changes, _shard_of_change)
            if sum(change.events for change in part) == self._limit
        ]
        self._changed.update(at_limit)
        written = sum(len(shard_rows.rows) for shard_rows in batch)
        return Counts(written, has_more=bool(at_limit))

    def _publish_rows(self, batch: list[ShardRows], applied: list[bool]) -> None:
        """Cache the rows that were written, and tell the observer."""
        rows: list[Projection] = []
        for shard_rows, is_applied in zip(batch, applied, strict=True):
            if is_applied:
                rows += shard_rows.rows
        if rows:
            self._rows.cache_written(rows)
            self._observer.observe_rows(rows)

    async def _read_position(self, shard: int) -> int:
        if shard not in self._projected:
            self._projected[shard] = await self._projections.read_checkpoint(shard)
        return self._projected[shard]

    async def _project_shard(
        self, shard: int, epoch: int, changes: list[RecordedChange], time_slice: TimeSlice
    ) -> ShardRows:
        rows: list[Projection] = []
        for change in changes:
            row = await self._make_row_as_of(change.execution_id, shard, change.seq)
            if row is not None:
                rows.append(row)
            await time_slice.pause_if_used_up()
        return ShardRows(shard, epoch, changes[-1].seq, tuple(rows))

    async def _make_row_as_of(
        self, execution_id: ExecutionId, shard: int, seq: int
    ) -> Projection | None:
        """The row of a state as of `seq` or later; None if there is no such execution.

        The cached state may be older: an append that the dispatcher gave up may have been written
        after the state was read.
        """
        try:
            loaded = await self._states.get(execution_id)
            if loaded is not None and loaded.seq < seq:
                self._states.forget(execution_id)
                loaded = await self._states.get(execution_id)
        except Unfoldable as error:
            return make_broken_projection(error, execution_id, shard)
        if loaded is None:
            return None
        return make_projection(loaded, shard)

    def _forget_position(self, shard: int) -> None:
        self._projected.pop(shard, None)


def _shard_of_change(change: RecordedChange) -> int:
    return change.shard


def make_projection(loaded: LoadedState, shard: int) -> Projection:
    return Projection(
        execution_id=loaded.fixed.execution_id,
        shard=shard,
        tenant=loaded.fixed.tenant,
        last_seq=loaded.seq,
        **summarise_execution(loaded.state),
    )


def make_broken_projection(error: Unfoldable, execution_id: ExecutionId, shard: int) -> Projection:
    """The row of an execution with a log that cannot be folded."""
    return Projection(
        execution_id=execution_id,
        shard=shard,
        tenant=DEFAULT_TENANT,
        last_seq=error.seq,
        **summaries.summarise_broken(error.state, str(error)),
    )
