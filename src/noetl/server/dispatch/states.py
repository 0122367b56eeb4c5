"""States of executions: a read-through cache over the log. Dropping it changes only latency.

The cache loads a state from the projection's snapshot and the events after it, or from the first
event. The dispatcher puts a new state into it only after the append is confirmed. So a cached state
is never ahead of the log; compare-and-set at the append detects one that is behind.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec
from msgspec import Struct

from noetl.caches import LruCache
from noetl.engine.fold import evolve
from noetl.engine.rewinding import ExecutionRewinder, RewoundExecution
from noetl.engine.state import Execution, PinnedPlaybook, decode_execution, make_empty_execution
from noetl.engine.summary import hash_state
from noetl.log.events.port import EventLog, RecordedEvent
from noetl.log.projections.port import Projection
from noetl.model.errors import Conflict, NoetlError, StoreUnavailable, Unavailable
from noetl.model.ids import ExecutionId, Tenant
from noetl.playbook.plan import Plan
from noetl.server.dispatch.playbooks import Playbooks
from noetl.server.executions.rows import RowCache

EVENTS_PER_READ = 10_000
MAX_REWOUND = 8  # rewound executions in memory, from the preview of a rerun until it begins

RewoundKey = tuple[ExecutionId, str, str]  # execution, step, hash of the plan


class LoadedState(Struct, frozen=True):
    """An execution as of the event `seq`."""

    fixed: PinnedPlaybook
    state: Execution
    seq: int


class Unfoldable(NoetlError):
    """The log of an execution cannot be folded, or its playbook cannot be read.

    The dispatcher quarantines such an execution.
    """

    code = "UNFOLDABLE"

    def __init__(
        self,
        state: Execution,
        seq: int,
        cause: str,
        error: Exception,
        tenant: Tenant | None = None,
    ) -> None:
        look = f"noetl exec events {state.execution_id} shows its events"
        super().__init__(
            f"{type(error).__name__}: {error}",
            hint=f"the execution is set aside: {look}; correct the cause, "
            f"then noetl exec release {state.execution_id}",
        )
        self.state = state  # as far as it could be folded
        self.seq = seq  # of the last event in the log
        self.cause = cause
        self.tenant = tenant  # of the execution, if it is to be written


@dataclass(slots=True)
class Fold:
    """How far a log has been folded. `at` names the current place, for the error message."""

    state: Execution
    seq: int = 0
    at: str = "start"


class States:
    """The cache of execution states, by execution id."""

    def __init__(
        self,
        log: EventLog,
        rows: RowCache,
        playbooks: Playbooks,
        limit: int,
    ) -> None:
        self._log = log
        self._rows = rows
        self._playbooks = playbooks
        self._cached_states: LruCache[ExecutionId, LoadedState] = LruCache(limit)
        self._assumed_new: LruCache[ExecutionId, bool] = LruCache(limit)  # assumed to be new once
        self._rewound: LruCache[RewoundKey, RewoundExecution] = LruCache(MAX_REWOUND)

    async def get(self, execution_id: ExecutionId) -> LoadedState | None:
        """None if there is no such execution. Raises `Unfoldable`."""
        cached = self._cached_states.get(execution_id)
        if cached is not None:
            return cached
        loaded = await self.read(execution_id)
        if loaded is not None:
            self.cache_state(execution_id, loaded)
        return loaded

    async def prefetch(self, execution_ids: Iterable[ExecutionId]) -> None:
        """Load the missing ones concurrently. Errors are ignored here: `get` raises them again."""
        cold = [id_ for id_ in dict.fromkeys(execution_ids) if id_ not in self._cached_states]
        if len(cold) > 1:
            await asyncio.gather(*map(self.get, cold), return_exceptions=True)

    async def assume_new(self, execution_ids: Iterable[ExecutionId]) -> None:
        """Cache an empty state for each of these, without reading their events.

        If one is not new after all, compare-and-set fails at the append and the state is read then.
        """
        new = [
            id_
            for id_ in dict.fromkeys(execution_ids)
            if id_ not in self._cached_states and id_ not in self._assumed_new
        ]
        if not new:
            return
        for execution_id, pinned in (await self._log.read_pinned_executions(new)).items():
            try:
                plan = await self._playbooks.get_plan(pinned.playbook, pinned.tenant)
            except NoetlError:
                continue  # `get` raises it again
            fixed = PinnedPlaybook(
                execution_id=execution_id, plan=plan, workload=pinned.workload, tenant=pinned.tenant
            )
            self.cache_state(
                execution_id, LoadedState(fixed, make_empty_execution(execution_id), 0)
            )
            self._assumed_new.put(execution_id, True)

    def cache_state(self, execution_id: ExecutionId, loaded: LoadedState) -> None:
        """Cache a state unless a newer one is there: two readers may finish in any order."""
        cached = self._cached_states.peek(execution_id)
        if cached is None or cached.seq <= loaded.seq:
            self._cached_states.put(execution_id, loaded)

    def forget(self, execution_id: ExecutionId) -> None:
        self._cached_states.pop(execution_id)

    def forget_all(self, execution_ids: Iterable[ExecutionId]) -> None:
        for execution_id in execution_ids:
            self.forget(execution_id)

    def list_cached(self) -> list[ExecutionId]:
        return list(self._cached_states)

    def list_long(self, min_events: int) -> list[tuple[ExecutionId, int]]:
        """The cached executions with at least so many events, and how many they have."""
        return [
            (loaded.state.execution_id, loaded.state.events)
            for loaded in self._cached_states.values()
            if loaded.state.events >= min_events
        ]

    async def read(self, execution_id: ExecutionId) -> LoadedState | None:
        """Read the state from the store, without the cache. None if there is no such execution.

        Any error that concerns only this execution becomes `Unfoldable`.
        """
        pinned = await self._log.read_pinned(execution_id)
        if pinned is None:
            return None
        fold = Fold(make_empty_execution(execution_id))
        try:
            await self._fold_log(execution_id, fold)
            fold.at = "playbook"
            plan = await self._playbooks.get_plan(pinned.playbook, pinned.tenant)
        except Unavailable:
            raise
        except Exception as error:
            last = await self._log.read_last_seq(execution_id)
            raise Unfoldable(fold.state, last, fold.at, error, pinned.tenant) from error
        fixed = PinnedPlaybook(
            execution_id=execution_id, plan=plan, workload=pinned.workload, tenant=pinned.tenant
        )
        return LoadedState(fixed, fold.state, fold.seq)

    async def rewind_execution(
        self, execution_id: ExecutionId, step: str, plan: Plan
    ) -> RewoundExecution | None:
        """An ended execution as of the last entry of the step; None if the step was not entered.

        Reads all events of the execution. Raises `Conflict` if they cannot be read.
        """
        cache_key = (execution_id, step, plan.hash)
        rewound = self._rewound.get(cache_key)
        if rewound is not None:
            return rewound
        rewinding = ExecutionRewinder(plan, execution_id, step)
        seq = 0
        while True:
            page = await self._read_page_to_rewind(execution_id, seq)
            for recorded in page:
                rewinding.fold_event(recorded.event)
                seq = recorded.seq
            if len(page) < EVENTS_PER_READ:
                break
        rewound = rewinding.make_rewound()
        if rewound is not None:
            self._rewound.put(cache_key, rewound)
        return rewound

    async def _read_page_to_rewind(
        self, execution_id: ExecutionId, after: int
    ) -> list[RecordedEvent]:
        try:
            return await self._log.read_events(execution_id, after, EVENTS_PER_READ)
        except StoreUnavailable as error:
            message = f"execution {execution_id} cannot be rerun from a step, because its events cannot be read: {error}"
            raise Conflict(message, hint=f"{error.hint}; or rerun it from the beginning") from error

    async def _fold_log(self, execution_id: ExecutionId, fold: "Fold") -> None:
        snapshot = _decode_snapshot(await self._rows.read(execution_id))
        if snapshot is not None:
            fold.state, fold.seq = snapshot
        while True:
            fold.at = f"read:{fold.seq}"
            page = await self._log.read_events(execution_id, fold.seq, EVENTS_PER_READ)
            for recorded in page:
                fold.at = f"fold:{recorded.seq}"
                fold.state, fold.seq = evolve(fold.state, recorded.event), recorded.seq
            if len(page) < EVENTS_PER_READ:
                return


def _decode_snapshot(row: Projection | None) -> tuple[Execution, int] | None:
    """The row's snapshot and its seq. None if it does not match its hash or has an older shape.

    The log is the source of truth, so such a state is folded from the first event.
    """
    if row is None or row.state is None or row.state_hash != hash_state(row.state):
        return None
    try:
        return decode_execution(row.state), row.last_seq
    except msgspec.DecodeError:
        return None
