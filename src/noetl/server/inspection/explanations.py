"""Why a step ran, did not run, or waits: the causes of the engine, and those that only the server knows."""

from msgspec.structs import replace

from noetl.engine.bands import RunBand
from noetl.engine.causes import AnyCause, WaitsCause
from noetl.engine.execution_fold import ExecutionFold
from noetl.engine.explain import Explanation, describe_causes, explain
from noetl.engine.state import Execution, PinnedPlaybook
from noetl.log.stores import Stores
from noetl.model.errors import NotFound, Unavailable
from noetl.model.ids import ExecutionId, Tenant
from noetl.server.dispatch.playbooks import Playbooks
from noetl.server.dispatch.states import Unfoldable
from noetl.server.executions.rows import RowCache
from noetl.server.inspection.folds import ExecutionFolds
from noetl.server.inspection.lines import PlaybookLines

MAX_EXPLAINED_CHILDREN = 5
MAX_EXPLAINED_COMMANDS = 50


class Explanations:
    def __init__(
        self,
        stores: Stores,
        rows: RowCache,
        folds: ExecutionFolds,
        playbooks: Playbooks,
        lines: PlaybookLines,
    ) -> None:
        self._queue = stores.queue
        self._workers = stores.presence
        self._rows = rows
        self._folds = folds
        self._playbooks = playbooks
        self._lines = lines

    async def explain_step(
        self,
        tenant: Tenant,
        fold: ExecutionFold,
        step: str,
        run: int | None = None,
        *,
        is_live: bool,
    ) -> Explanation:
        """Explain a step as of a fold; if it is the newest one, also by the queue and the children."""
        pinned = await self._get_pinned(tenant, fold)
        if step not in pinned.plan.steps:
            raise NotFound(
                f"the playbook has no step {step!r}", hint=f"steps: {', '.join(pinned.plan.steps)}"
            )
        lines = await self._lines.get_lines(tenant, fold.state.playbook)
        state = fold.state
        explanation = explain(pinned, state, step, fold.bands, lines, run)
        if not is_live:
            return explanation
        causes = list(explanation.causes)
        if explanation.verdict == "waiting":
            causes += await self._find_children(state, step)
        if explanation.verdict == "running":
            causes = [*await self._find_queued(tenant, state, step), *causes]
        because = describe_causes(state, step, causes)
        return replace(explanation, causes=tuple(causes), because=because)

    async def _get_pinned(self, tenant: Tenant, fold: ExecutionFold) -> PinnedPlaybook:
        """The playbook of the execution. Raises `Unfoldable` if it cannot be read."""
        state = fold.state
        try:
            plan = await self._playbooks.get_plan(state.playbook, tenant)
        except Unavailable:
            raise
        except Exception as error:
            raise Unfoldable(state, fold.seq, "playbook", error) from error
        return PinnedPlaybook(execution_id=state.execution_id, plan=plan, workload={})

    async def _find_children(self, state: Execution, step: str) -> list[AnyCause]:
        """How the first children that the step waits for are."""
        children: list[ExecutionId] = []
        for live in state.commands.values():
            if live.step == step and live.parked is not None and live.parked.child is not None:
                children.append(live.parked.child)
        causes: list[AnyCause] = []
        for child in children[:MAX_EXPLAINED_CHILDREN]:
            row = await self._rows.read(child)
            if row is not None:
                causes.append(
                    WaitsCause(on="child", child=child, name=row.path, child_status=row.status)
                )
        return causes

    async def _find_queued(self, tenant: Tenant, state: Execution, step: str) -> list[AnyCause]:
        """The pools in which commands of the step wait for a worker."""
        live = [command for command in state.commands.values() if command.step == step]
        ids = [command.id for command in live[:MAX_EXPLAINED_COMMANDS]]
        rows = await self._queue.find_commands(ids)
        pools = sorted({row.pool for row in rows if row.status == "queued"})
        if not pools:
            return []
        workers = await self._workers.list_workers(tenant)
        return [
            WaitsCause(
                on="worker",
                pool=pool,
                workers=len([worker for worker in workers if pool in worker.pools]),
            )
            for pool in pools
        ]


class RunFinder:
    """Finds earlier runs of a step. The bands have the last ones; older ones are in older folds."""

    def __init__(self, folds: ExecutionFolds) -> None:
        self._folds = folds

    async def read_run(self, newest: ExecutionFold, step: str, run: int) -> ExecutionFold:
        """The fold as of the last event of a run."""
        fold = await self.find_fold(newest, step, run)
        found = get_run(fold, step, run)
        if found is not None and found.ended_at is None and fold.seq < newest.seq:
            # The fold stands within the run. When the next one begins, it has ended.
            following = get_run(await self.find_fold(newest, step, run + 1), step, run + 1)
            if following is not None:
                fold = await self._folds.read_at(newest.state.execution_id, following.first_seq)
                found = get_run(fold, step, run)
        if found is None or found.last_seq >= fold.seq:
            return fold
        return await self._folds.read_at(newest.state.execution_id, found.last_seq)

    async def find_fold(self, newest: ExecutionFold, step: str, run: int) -> ExecutionFold:
        """A fold that has a run among the last ones of its step. Raises `NotFound`.

        Runs are numbered in the order of the log, so it halves the part of the log where it can be.
        """
        fold = newest
        band = fold.bands.steps.get(step)
        if band is not None:
            low, high = band.first_seq, band.last_seq
            while get_run(fold, step, run) is None and low < high:
                middle = (low + high) // 2
                fold = await self._folds.read_at(newest.state.execution_id, middle)
                if get_last_run_number(fold, step) < run:
                    low = middle + 1
                else:
                    high = middle
        if get_run(fold, step, run) is None:
            last = get_last_run_number(newest, step)
            hint = f"its last run is {last}" if last else "it has not run"
            raise NotFound(f"step {step!r} has no run {run}", hint=hint)
        return fold


def get_run(fold: ExecutionFold, step: str, number: int) -> RunBand | None:
    band = fold.bands.steps.get(step)
    if band is None:
        return None
    return next((run for run in band.runs if run.run == number), None)


def get_last_run_number(fold: ExecutionFold, step: str) -> int:
    band = fold.bands.steps.get(step)
    if band is None or not band.runs:
        return 0
    return band.runs[-1].run
