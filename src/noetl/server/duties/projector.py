"""Keeps the rows people read. It follows the log of each owned shard from its checkpoint, so a new owner goes on where the
last one stopped; what it writes is under the shard's epoch, never ahead of the log and never back."""

import logging
from collections.abc import Iterable

from noetl.engine.state import Execution, encode
from noetl.faults import fault
from noetl.log.port import EventLog, Projection
from noetl.model.ids import DEFAULT_TENANT, ExecutionId
from noetl.server.duties.loop import Counts
from noetl.server.shards import Shards
from noetl.server.states import Loaded, States, Unfoldable, state_hash

log = logging.getLogger(__name__)

LOOK_EVERY = 10  # runs between looks at shards in which this server has written nothing


class Projector:
    name = "projector"

    def __init__(self, eventlog: EventLog, states: States, shards: Shards, limit: int) -> None:
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
        done, left = 0, False
        for shard, epoch in self._shards.epochs().items():
            if look or shard in self._changed or shard not in self._projected:
                self._changed.discard(shard)
                try:
                    counts = await self._project(shard, epoch)
                except BaseException:
                    self._changed.add(shard)
                    raise
                done, left = done + counts.done, left or counts.left
        return Counts(done, left)

    async def _project(self, shard: int, epoch: int) -> Counts:
        if shard not in self._projected:
            self._projected[shard] = await self._log.checkpoint(shard)
        after = self._projected[shard]
        events = await self._log.follow(shard, after, self._limit)
        if not events:
            return Counts()
        changed = {recorded.execution_id: recorded.seq for recorded in events}
        rows = [row for row in [await self._row(each, shard, seq) for each, seq in changed.items()] if row is not None]
        fault("project.before")
        if not await self._log.project(shard, epoch, rows, events[-1].seq):
            self._shards.drop(shard, epoch)
            return Counts()
        fault("project.after")
        if self._shards.epochs().get(shard) == epoch:
            self._projected[shard] = events[-1].seq
        left = len(events) == self._limit
        if left:
            self._changed.add(shard)
        return Counts(len(rows), left)

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


def projection(loaded: Loaded, shard: int) -> Projection:
    state, data = loaded.state, encode(loaded.state)
    failure = state.failure if state.status == "failed" else None
    return Projection(
        execution_id=loaded.fixed.execution_id,
        shard=shard,
        tenant=loaded.fixed.tenant,
        path=state.path,
        status=status(state),
        last_seq=loaded.seq,
        started_at=state.started_at,
        updated_at=state.last_at,
        ended_at=state.ended_at,
        parent=None if state.parent is None else state.parent.execution_id,
        retry_of=state.retry_of,
        error=state.quarantined or (f"{failure.code}: {failure.message}" if failure is not None else None),
        steps=len(state.steps),
        state=data,
        state_hash=state_hash(data),
    )


def broken(error: Unfoldable, execution_id: ExecutionId, shard: int) -> Projection:
    """What can be said of an execution whose log does not fold; without a state, so that nobody goes on from it."""
    state = error.state
    return Projection(
        execution_id=execution_id,
        shard=shard,
        tenant=DEFAULT_TENANT,
        path=state.path,
        status="quarantined",
        last_seq=error.seq,
        started_at=state.started_at,
        updated_at=state.last_at,
        error=str(error),
        steps=len(state.steps),
    )


def status(state: Execution) -> str:
    if state.quarantined is not None:
        return "quarantined"
    return "paused" if state.paused and state.status == "running" else state.status
