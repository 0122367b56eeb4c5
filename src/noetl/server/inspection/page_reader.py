"""Reads what the page of an execution shows: its fold, and the facts that do not follow from it."""

from noetl.caches import LruCache
from noetl.engine.execution_fold import ExecutionFold
from noetl.engine.state import Execution
from noetl.log.projections.port import ExecutionFilter
from noetl.log.queue.port import QueueEntry
from noetl.log.stores import Stores
from noetl.model.errors import InvalidInput, NotFound
from noetl.model.ids import CommandId, ExecutionId, Micros, Tenant
from noetl.server.dispatch.playbooks import Playbooks
from noetl.server.executions.details import (
    MAX_LISTED_CHILDREN,
    find_first_cause,
    make_children_view,
    strip_workload,
)
from noetl.server.executions.rows import RowCache
from noetl.server.executions.service import decode_row_state
from noetl.server.executions.views import CauseView, ChildrenView
from noetl.server.inspection.folds import ExecutionFolds
from noetl.server.inspection.lines import PlaybookLines
from noetl.server.inspection.page import PageFacts
from noetl.server.inspection.step_views import MAX_LISTED_COMMANDS

MAX_WORKLOAD_KEYS = 200
MAX_CACHED_KEYS = 1_000  # executions of which the names of the workload are cached


class PageReader:
    def __init__(
        self,
        stores: Stores,
        rows: RowCache,
        folds: ExecutionFolds,
        playbooks: Playbooks,
        lines: PlaybookLines,
    ) -> None:
        self._log = stores.log
        self._projections = stores.projections
        self._queue = stores.queue
        self._step_logs = stores.step_logs
        self._rows = rows
        self._folds = folds
        self._playbooks = playbooks
        self._lines = lines
        self._workload_keys: LruCache[ExecutionId, list[str]] = LruCache(MAX_CACHED_KEYS)

    async def read_live(
        self, tenant: Tenant, execution_id: ExecutionId
    ) -> tuple[ExecutionFold, PageFacts]:
        """The newest fold with its facts."""
        fold = await self.read_fold(execution_id)
        facts = await self.read_facts(tenant, fold, is_live=True)
        return fold, facts

    async def read_fold(
        self,
        execution_id: ExecutionId,
        at: int | None = None,
        moment: Micros | None = None,
        number: int | None = None,
    ) -> ExecutionFold:
        """The fold as of an event (its `seq` or its number), as of a moment, or of all events."""
        if [at, moment, number].count(None) < 2:
            raise InvalidInput("at, number and moment name several events", hint="give one of them")
        if at is not None:
            return await self._folds.read_at(execution_id, at)
        if number is not None:
            return await self._folds.read_at_number(execution_id, number)
        if moment is not None:
            return await self._folds.read_at_moment(execution_id, moment)
        fold = await self._folds.read_newest(execution_id)
        if fold.seq:
            return fold
        return await self._make_pending_fold(execution_id)

    async def _make_pending_fold(self, execution_id: ExecutionId) -> ExecutionFold:
        """An accepted execution that its owner has not begun yet."""
        pinned = await self._log.read_pinned(execution_id)
        if pinned is None:
            raise NotFound(f"no execution {execution_id}")
        entry = await self._playbooks.get_catalog_entry(pinned.playbook, pinned.tenant)
        state = Execution(
            execution_id=execution_id,
            status="pending",
            path=entry.path,
            version=entry.version,
            playbook=pinned.playbook,
        )
        return ExecutionFold(state)

    async def read_facts(self, tenant: Tenant, fold: ExecutionFold, *, is_live: bool) -> PageFacts:
        """What the page shows beside the fold. The fold may go forward meanwhile."""
        execution_id = fold.state.execution_id
        events, last_seq = fold.state.events, fold.seq
        if not is_live:
            events, last_seq = await self._read_end(execution_id, fold)
        queued: dict[CommandId, QueueEntry] = {}
        if is_live and fold.state.commands:
            first = sorted(fold.state.commands.values(), key=lambda command: command.order)
            ids = [command.id for command in first[:MAX_LISTED_COMMANDS]]
            queued = {row.command_id: row for row in await self._queue.find_commands(ids)}
        children = await self._read_children(tenant, execution_id)
        retried_by = await self._projections.list_retries(execution_id)
        workload_keys = await self._read_workload_keys(execution_id)
        cause, line = await self._find_cause(tenant, fold.state)
        return PageFacts(
            queued=queued,
            cause=cause,
            line=line,
            children=children,
            retried_by=retried_by,
            workload_keys=workload_keys,
            events=events,
            last_seq=last_seq,
            is_live=is_live,
            logs_part=await self._step_logs.read_last_number(execution_id) if is_live else 0,
        )

    async def _read_end(self, execution_id: ExecutionId, fold: ExecutionFold) -> tuple[int, int]:
        """The number of events that the execution has, and the last of them, as its row says."""
        row = await self._rows.read(execution_id)
        state = None if row is None else decode_row_state(row)
        if row is None or state is None:
            return fold.state.events, fold.seq
        return state.events, row.last_seq

    async def _read_children(self, tenant: Tenant, execution_id: ExecutionId) -> ChildrenView:
        counts = await self._projections.count_children(execution_id)
        if not counts:
            return make_children_view({}, [])
        wanted = ExecutionFilter(parent=execution_id)
        newest = await self._projections.list_executions(tenant, wanted, None, MAX_LISTED_CHILDREN)
        return make_children_view(counts, newest)

    async def _read_workload_keys(self, execution_id: ExecutionId) -> list[str]:
        keys = self._workload_keys.get(execution_id)
        if keys is None:
            pinned = await self._log.read_pinned(execution_id)
            keys = [] if pinned is None else list(strip_workload(pinned.workload))
            keys = keys[:MAX_WORKLOAD_KEYS]
            self._workload_keys.put(execution_id, keys)
        return keys

    async def _find_cause(
        self, tenant: Tenant, state: Execution
    ) -> tuple[CauseView | None, int | None]:
        """The first causal failure, and its line in its playbook: of the code, or of the step."""
        playbooks = {state.execution_id: state.playbook}

        async def read_child(execution_id: ExecutionId) -> Execution | None:
            row = await self._rows.read(execution_id)
            child = None if row is None else decode_row_state(row)
            if child is not None:
                playbooks[execution_id] = child.playbook
            return child

        cause = await find_first_cause(state, read_child)
        if cause is None:
            return None, None
        playbook = playbooks.get(ExecutionId(cause.execution_id), "")
        line = cause.detail.get("line")
        code_line = line if isinstance(line, int) else None
        return cause, await self._lines.find_line(
            tenant, playbook, cause.step, cause.task, code_line
        )
