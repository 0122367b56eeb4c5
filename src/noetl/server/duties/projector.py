"""Writes the projection: the rows that people read.

The projector follows the log of its shards from their checkpoints, so a new owner continues where
the last one stopped. It writes under the shard's epoch. Its rows are never ahead of the log, and
they never go back to an older state.

The row of a new execution and a row with another status are written at once. A row whose status
stays is deferred if it was written a moment ago: a short execution has two rows to write, not one
for every run. A checkpoint never passes an event of a deferred row.
"""

import asyncio
import logging
from collections.abc import Iterable
from itertools import groupby
from typing import NamedTuple

from noetl.engine import summary as summaries
from noetl.engine.summary import get_shown_status, summarise_execution
from noetl.faults import hit_fault_point
from noetl.log.events.port import EventLog, RecordedChange
from noetl.log.projections.port import Projection, Projections, ShardRows
from noetl.model.ids import ExecutionId
from noetl.server.dispatch.shards import OwnedShards
from noetl.server.dispatch.states import LoadedState, States, Unfoldable
from noetl.server.duties.loop import Counts
from noetl.server.executions.rows import RowCache
from noetl.server.observer import CommitObserver
from noetl.time_slice import TimeSlice

log = logging.getLogger(__name__)

# Once in so many runs it also reads shards in which this server wrote nothing.
RUNS_PER_FULL_READ = 10


class WrittenRow(NamedTuple):
    """When the row of an execution was written last, by the clock of the event loop."""

    status: str
    at: float


class DeferredRow(NamedTuple):
    """A row that is to be written later."""

    position: int  # of the shard: the events up to here are in the stored row
    seq: int  # the last event of the execution that is known


class ShardRun(NamedTuple):
    """What one run makes of a shard."""

    rows: ShardRows
    position: int  # the changes up to here were read
    deferred: dict[ExecutionId, DeferredRow]


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
        row_interval: float = 0.0,
    ) -> None:
        """`row_interval`: seconds between two writes of a row whose status stays."""
        self._time_slice_s = time_slice_s
        self._row_interval = row_interval
        self._log = log
        self._projections = projections
        self._states = states
        self._shards = shards
        self._rows = rows
        self._observer = observer
        self._limit = limit
        self._changed: set[int] = set()
        self._projected: dict[int, int] = {}  # by shard: the seq up to which changes were read
        self._deferred: dict[int, dict[ExecutionId, DeferredRow]] = {}  # by shard
        self._written: dict[ExecutionId, WrittenRow] = {}  # of the last interval, oldest first
        self._runs = 0
        shards.on_change.append(self._forget_position)

    def mark_changed(self, shards: Iterable[int]) -> None:
        """Note that these shards may have new events."""
        self._changed.update(shards)

    async def run_once(self) -> Counts:
        return await self._project_changes(self._row_interval)

    async def write_all_rows(self) -> Counts:
        """Project the changes of all shards and defer nothing."""
        self.mark_changed(self._shards.list_owned())
        return await self._project_changes(0.0)

    async def _project_changes(self, row_interval: float) -> Counts:
        self._runs += 1
        reads_all = self._runs % RUNS_PER_FULL_READ == 1
        epochs = {
            shard: epoch
            for shard, epoch in self._shards.copy_epochs().items()
            if reads_all
            or shard in self._changed
            or shard in self._deferred
            or shard not in self._projected
        }
        self._changed.difference_update(epochs)
        self._forget_old_writes()
        try:
            return await self._project_shards(epochs, row_interval)
        except BaseException:
            self._changed.update(epochs)
            raise

    async def _project_shards(self, epochs: dict[int, int], row_interval: float) -> Counts:
        """Project the changes of these shards: one read and one write for all of them."""
        positions = {shard: await self._read_position(shard) for shard in epochs}
        if not positions:
            return Counts()
        changes: dict[int, list[RecordedChange]] = {
            shard: list(part)
            for shard, part in groupby(
                await self._log.read_changes(positions, self._limit), _shard_of_change
            )
        }
        time_slice = TimeSlice(self._time_slice_s)
        runs: list[ShardRun] = []
        for shard in sorted({*changes, *(self._deferred.keys() & epochs.keys())}):
            waiting = self._merge_deferred(shard, positions[shard], changes.get(shard, []))
            position = changes[shard][-1].seq if shard in changes else positions[shard]
            rows, deferred = await self._make_rows(shard, waiting, row_interval, time_slice)
            checkpoint = min([position, *(row.position for row in deferred.values())])
            shard_rows = ShardRows(shard, epochs[shard], checkpoint, tuple(rows))
            runs.append(ShardRun(shard_rows, position, deferred))
        await self._write_runs(runs)
        at_limit = [
            shard
            for shard, part in changes.items()
            if sum(change.events for change in part) >= self._limit
        ]
        self._changed.update(at_limit)
        written = sum(len(run.rows.rows) for run in runs)
        return Counts(written, has_more=bool(at_limit))

    async def _write_runs(self, runs: list[ShardRun]) -> None:
        """Write the rows and the checkpoints of these runs, then remember what is left of them."""
        moved = [run for run in runs if self._has_news(run)]
        if not moved:
            self._finish_runs(runs)
            return
        batch = [run.rows for run in moved]
        hit_fault_point("project.before")
        applied = await self._projections.write_projections(batch)
        self._publish_rows(batch, applied)
        hit_fault_point("project.after")
        lost: set[int] = set()
        for shard_rows, is_applied in zip(batch, applied, strict=True):
            if not is_applied:
                lost.add(shard_rows.shard)
                self._shards.drop(shard_rows.shard, shard_rows.epoch)
        self._finish_runs([run for run in runs if run.rows.shard not in lost])

    def _has_news(self, run: ShardRun) -> bool:
        """Whether there is anything to write. A checkpoint that deferred rows hold back stays."""
        if run.rows.rows:
            return True
        positions = [row.position for row in self._deferred.get(run.rows.shard, {}).values()]
        checkpoint = min([self._projected.get(run.rows.shard, 0), *positions])
        return run.rows.checkpoint > checkpoint

    def _finish_runs(self, runs: list[ShardRun]) -> None:
        epochs = self._shards.copy_epochs()
        for run in runs:
            shard = run.rows.shard
            if epochs.get(shard) != run.rows.epoch:
                continue
            self._projected[shard] = run.position
            self._deferred.pop(shard, None)
            if run.deferred:
                self._deferred[shard] = run.deferred

    def _publish_rows(self, batch: list[ShardRows], applied: list[bool]) -> None:
        """Cache the rows that were written, and tell the observer."""
        rows: list[Projection] = []
        for shard_rows, is_applied in zip(batch, applied, strict=True):
            if is_applied:
                rows += shard_rows.rows
        now = asyncio.get_running_loop().time()
        for row in rows:
            self._written.pop(row.execution_id, None)
            if row.ended_at is None:
                self._written[row.execution_id] = WrittenRow(row.status, now)
        if rows:
            self._rows.cache_written(rows)
            self._observer.observe_rows(rows)

    async def _read_position(self, shard: int) -> int:
        if shard not in self._projected:
            self._projected[shard] = await self._projections.read_checkpoint(shard)
        return self._projected[shard]

    def _merge_deferred(
        self, shard: int, position: int, changes: list[RecordedChange]
    ) -> dict[ExecutionId, DeferredRow]:
        """The executions that changed after `position`, and those whose rows wait."""
        merged = dict(self._deferred.get(shard, {}))
        for change in changes:
            known = merged.get(change.execution_id)
            first = position if known is None else known.position
            merged[change.execution_id] = DeferredRow(first, change.seq)
        return merged

    async def _make_rows(
        self,
        shard: int,
        waiting: dict[ExecutionId, DeferredRow],
        row_interval: float,
        time_slice: TimeSlice,
    ) -> tuple[list[Projection], dict[ExecutionId, DeferredRow]]:
        """The rows to write now, and what is deferred."""
        rows: list[Projection] = []
        deferred: dict[ExecutionId, DeferredRow] = {}
        for execution_id, row in waiting.items():
            loaded = await self._load_state_as_of(execution_id, row.seq)
            match loaded:
                case LoadedState() if self._is_deferred(loaded, row_interval):
                    deferred[execution_id] = row
                case LoadedState():
                    rows.append(make_projection(loaded, shard))
                case Unfoldable():
                    rows.append(make_broken_projection(loaded, execution_id, shard))
            await time_slice.pause_if_used_up()
        return rows, deferred

    def _is_deferred(self, loaded: LoadedState, row_interval: float) -> bool:
        """Whether the row waits: it was written less than an interval ago with the same status."""
        written = self._written.get(loaded.fixed.execution_id)
        if written is None or written.status != get_shown_status(loaded.state):
            return False
        return asyncio.get_running_loop().time() < written.at + row_interval

    def _forget_old_writes(self) -> None:
        oldest = asyncio.get_running_loop().time() - self._row_interval
        outdated: list[ExecutionId] = []
        for execution_id, written in self._written.items():
            if written.at > oldest:
                break
            outdated.append(execution_id)
        for execution_id in outdated:
            del self._written[execution_id]

    async def _load_state_as_of(
        self, execution_id: ExecutionId, seq: int
    ) -> LoadedState | Unfoldable | None:
        """The state as of `seq` or later; None if there is no such execution.

        The cached state may be older: an append that the dispatcher gave up may have been written
        after the state was read.
        """
        try:
            loaded = await self._states.get(execution_id)
            if loaded is not None and loaded.seq < seq:
                self._states.forget(execution_id)
                loaded = await self._states.get(execution_id)
        except Unfoldable as error:
            return error
        return loaded

    def _forget_position(self, shard: int) -> None:
        self._projected.pop(shard, None)
        self._deferred.pop(shard, None)


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
    assert error.tenant is not None
    return Projection(
        execution_id=execution_id,
        shard=shard,
        tenant=error.tenant,
        last_seq=error.seq,
        **summaries.summarise_broken(error.state, str(error)),
    )
