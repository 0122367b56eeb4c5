"""The details of one execution: its workload, its steps, its children, the first causal failure."""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from noetl.engine.state import Execution, KnownState
from noetl.log.projections.port import Projection
from noetl.model.errors import Failure
from noetl.model.ids import ExecutionId
from noetl.model.secrets import strip_secrets
from noetl.server.executions.steps import summarize_steps
from noetl.server.executions.views import (
    CauseView,
    ChildrenView,
    ChildView,
    DetailedView,
    RecoveryView,
    StateUseView,
    make_execution_view,
)
from noetl.server.http.structs import extend_view

MAX_LISTED_CHILDREN = 20
# Bytes of a workload that is shown with its execution; a larger one has a route of its own.
MAX_SHOWN_WORKLOAD_BYTES = 64 * 1024
MAX_CAUSE_DEPTH = 40  # children nest at most 32 deep

ReadState = Callable[[ExecutionId], Awaitable[Execution | None]]


def strip_workload(workload: dict[str, Any]) -> dict[str, Any]:
    """The workload without keys that name secrets."""
    public: dict[str, Any] = strip_secrets(workload)
    return public


async def find_first_cause(state: Execution | None, read: ReadState) -> CauseView | None:
    """Follow a failure down: from a loop to its first failed item, from a step to its child."""
    if state is None or state.failure is None or state.status != "failed":
        return None
    cause = _make_cause(state, state.failure)
    for _ in range(MAX_CAUSE_DEPTH):
        if cause.kind != "child":
            return cause
        child_id = cause.detail.get("execution_id")
        if not isinstance(child_id, str):
            return cause
        child = await read(ExecutionId(child_id))
        if child is None or child.failure is None:
            return cause
        cause = _make_cause(child, child.failure)
    return cause


def _make_cause(state: Execution, failure: Failure) -> CauseView:
    """The failure of an execution; of a loop, the failure of its first failed item."""
    item = None
    inner = failure.detail.get("cause")
    if failure.kind == "loop" and isinstance(inner, dict):
        item = failure.detail.get("index")
        failure = Failure(
            code=str(inner.get("code")),
            message=str(inner.get("message")),
            kind=str(inner.get("kind")),
            detail=inner.get("detail") or {},
        )
    return CauseView(
        execution_id=state.execution_id,
        path=state.path,
        step=state.failed_step,
        item=item,
        **failure.to_template_map(),
    )


def make_detailed_view(
    row: Projection,
    state: Execution | None,
    workload: dict[str, Any] | None,
    children: ChildrenView,
    cause: CauseView | None,
) -> DetailedView:
    """An execution with its steps, as the projection's state has them; without them, if the state
    cannot be read."""
    if state is None:
        state = Execution(execution_id=row.execution_id)
    return extend_view(
        DetailedView,
        make_execution_view(row),
        by=state.by,
        version=state.version,
        from_step=state.from_step,
        playbook=state.playbook or None,
        failure=_describe_failure(state),
        cause=cause,
        steps=summarize_steps(state),
        workload=workload,
        children=children,
        recoveries=[RecoveryView(**msgspec.structs.asdict(each)) for each in state.recoveries],
        state={name: make_use_view(known) for name, known in state.playbook_state.items()},
    )


def _describe_failure(state: Execution) -> dict[str, Any] | None:
    if state.status != "failed" or state.failure is None:
        return None
    return {**state.failure.to_template_map(), "step": state.failed_step}


def make_use_view(known: KnownState) -> StateUseView:
    return StateUseView(
        value=known.value,
        unset=known.unset,
        read_version=known.read,
        version=known.version,
        writes=known.writes,
        conflict_version=known.conflict,
        conflict_by=known.conflict_by,
    )


def make_children_view(counts: dict[str, int], newest: list[Projection]) -> ChildrenView:
    children = [
        ChildView(row.execution_id, row.path, row.status, row.recovered, row.error)
        for row in newest
    ]
    return ChildrenView(total=sum(counts.values()), counts=counts, newest=children)
