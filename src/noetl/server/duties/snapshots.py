"""Stores snapshots of long executions while the server is idle, so that their past can be shown at once.

A server does it for the executions in its memory: those of its shards that go on. Folds of one log are
the same everywhere, so two servers that do the same only do it twice.
"""

from collections.abc import Callable

from noetl.caches import LruCache
from noetl.engine.execution_fold import SNAPSHOT_INTERVAL_EVENTS
from noetl.model.ids import ExecutionId
from noetl.server.dispatch.states import States, Unfoldable
from noetl.server.duties.loop import Counts
from noetl.server.inspection.folds import ExecutionFolds

MIN_LONG_EVENTS = 10_000  # an execution with so many events gets snapshots before anybody asks
MAX_FOLDED_EVENTS = 4_000  # in one run
MAX_REMEMBERED = 1_000  # executions of which it is known how far their snapshots reach


class SnapshotWriter:
    name = "snapshots"

    def __init__(self, states: States, folds: ExecutionFolds, is_idle: Callable[[], bool]) -> None:
        self._states = states
        self._folds = folds
        self._is_idle = is_idle
        self._reached: LruCache[ExecutionId, int] = LruCache(MAX_REMEMBERED)  # events folded

    async def run_once(self) -> Counts:
        """Fold the next events of the longest execution that has gone on."""
        if not self._is_idle():
            return Counts()
        execution_id = self._find_behind()
        if execution_id is None:
            return Counts()
        try:
            fold = await self._folds.read_newest(execution_id, MAX_FOLDED_EVENTS)
        except Unfoldable:
            self._reached.put(execution_id, 1 << 62)  # it will not get further
            return Counts()
        self._reached.put(execution_id, fold.state.events)
        return Counts(1, has_more=True)

    def _find_behind(self) -> ExecutionId | None:
        """The execution with the most events that no snapshot covers; None if all are covered."""
        found: ExecutionId | None = None
        most = SNAPSHOT_INTERVAL_EVENTS
        for execution_id, events in self._states.list_long(MIN_LONG_EVENTS):
            uncovered = events - (self._reached.peek(execution_id) or 0)
            if uncovered >= most:
                found, most = execution_id, uncovered
        return found
