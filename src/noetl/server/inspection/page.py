"""The page of an execution as of one of its events, at most 64 KB. Pure."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec.structs import replace

from noetl.engine.execution_fold import ExecutionFold
from noetl.engine.state import Execution
from noetl.engine.summary import get_shown_status
from noetl.model.clock import format_iso, format_iso_or_none
from noetl.model.failure_kinds import make_failure_shape
from noetl.model.ids import ExecutionId
from noetl.model.reference import Reference
from noetl.playbook.assignments import LITERAL_KEY, is_wrapped
from noetl.server.executions.details import make_use_view
from noetl.server.executions.views import CauseView, ChildrenView, RecoveryView
from noetl.server.http.structs import extend_view
from noetl.server.inspection.step_views import (
    QueueRows,
    make_arc_views,
    make_failures_view,
    make_live_views,
    make_step_views,
)
from noetl.server.inspection.views import PageFailureView, PageView, ResultReferenceView

MAX_PAGE_BYTES = 64 * 1024
MAX_CTX_BYTES = 16 * 1024
MAX_DETAIL_BYTES = 8 * 1024  # of the failure's detail
MAX_STATE_BYTES = 8 * 1024  # of the playbook's state that the execution used
FEW_COMMANDS = 5
FEW_STEPS = 100


@dataclass(frozen=True, slots=True)
class PageFacts:
    """What a page shows that does not follow from the fold."""

    queued: QueueRows
    cause: CauseView | None
    line: int | None
    children: ChildrenView
    retried_by: list[ExecutionId]
    workload_keys: list[str]
    events: int  # of the whole log
    last_seq: int
    is_live: bool
    logs_part: int = 0
    left_out: list[str] = field(default_factory=list)


def make_page(fold: ExecutionFold, facts: PageFacts) -> PageView:
    """The page; parts of it are left out if it would be too large."""
    view = _make_whole_page(fold, facts)
    for leave_out in _REDUCTIONS:
        if len(msgspec.json.encode(view)) <= MAX_PAGE_BYTES:
            break
        view = leave_out(view)
    return view


def _make_whole_page(fold: ExecutionFold, facts: PageFacts) -> PageView:
    state = fold.state
    left_out: list[str] = []
    ctx, ctx_bytes = _show_ctx(state, left_out)
    result, result_step = _find_result(state)
    return PageView(
        execution_id=state.execution_id,
        path=state.path,
        version=state.version,
        playbook=state.playbook or None,
        by=state.by,
        parent=None if state.parent is None else state.parent.execution_id,
        retry_of=state.retry_of,
        retried_by=[*facts.retried_by],
        from_step=state.from_step,
        status=get_shown_status(state),
        started_at=format_iso_or_none(state.started_at),
        ended_at=format_iso_or_none(state.ended_at),
        updated_at=format_iso_or_none(state.last_at),
        error=describe_error(state),
        recovered=state.recovered,
        seq=fold.seq,
        number=state.events,
        at=format_iso(state.last_at),
        events=max(facts.events, state.events),
        last_seq=max(facts.last_seq, fold.seq),
        is_live=facts.is_live,
        failure=make_failure_view(fold, facts, left_out),
        ctx=ctx,
        ctx_bytes=ctx_bytes,
        workload_keys=facts.workload_keys,
        steps=make_step_views(fold, facts.queued),
        arcs=make_arc_views(fold.bands),
        failures=make_failures_view(fold.bands),
        live=make_live_views(fold, facts.queued),
        live_total=len(state.commands),
        result=result,
        result_step=result_step,
        children=facts.children,
        recoveries=[RecoveryView(**msgspec.structs.asdict(each)) for each in state.recoveries],
        state=_show_state(state, left_out),
        left_out=left_out,
    )


def describe_error(state: Execution) -> str | None:
    if state.quarantined is not None:
        return state.quarantined
    if state.status != "failed" or state.failure is None:
        return None
    return f"{state.failure.code}: {state.failure.message}"


def make_failure_view(
    fold: ExecutionFold, facts: PageFacts, left_out: list[str]
) -> PageFailureView | None:
    cause = facts.cause
    if cause is None:
        return None
    if len(msgspec.json.encode(cause.detail)) > MAX_DETAIL_BYTES:
        left_out.append("failure.detail: larger than 8 KB")
        cause = replace(cause, detail={})
    run, seq = None, None
    if cause.execution_id == fold.state.execution_id and cause.step is not None:
        record = fold.state.steps.get(cause.step)
        run = None if record is None else record.runs
        seq = _find_failure_event(fold, cause)
    return extend_view(PageFailureView, cause, run=run, seq=seq, line=facts.line)


def _find_failure_event(fold: ExecutionFold, cause: CauseView) -> int | None:
    """The event that reported a failure first."""
    band = fold.bands.steps.get(cause.step or "")
    if band is None:
        return None
    shape = make_failure_shape(cause.message)
    for kind in band.kinds:
        if kind.code == cause.code and kind.shape == shape:
            return kind.seq
    return band.failed_seq


def _show_ctx(state: Execution, left_out: list[str]) -> tuple[dict[str, Any] | None, int]:
    ctx = {name: _unwrap_literals(value) for name, value in state.ctx.items()}
    size = len(msgspec.json.encode(ctx))
    if size <= MAX_CTX_BYTES:
        return ctx, size
    left_out.append("ctx: larger than 16 KB")
    return None, size


def _unwrap_literals(value: Any) -> Any:
    """The value as its author wrote it. Links to stored values stay links."""
    if isinstance(value, dict):
        if is_wrapped(value):
            return value[LITERAL_KEY]
        return {name: _unwrap_literals(part) for name, part in value.items()}
    return value


def _show_state(state: Execution, left_out: list[str]) -> dict[str, Any]:
    used = {name: make_use_view(known) for name, known in state.playbook_state.items()}
    if len(msgspec.json.encode(used)) <= MAX_STATE_BYTES:
        return used
    left_out.append("state: values, together larger than 8 KB")
    return {name: replace(view, value=None) for name, view in used.items()}


def _find_result(state: Execution) -> tuple[ResultReferenceView | None, str | None]:
    """The result of an execution that has completed, and its step."""
    step = state.return_step or state.last_step
    if state.status != "completed" or step is None:
        return None, None
    record = state.steps.get(step)
    if record is None or record.result is None:
        return None, step
    reference: Reference | None = record.result.reference
    if reference is None:
        return None, step
    view = ResultReferenceView(
        reference.ref_id,
        reference.uri,
        reference.type,
        reference.bytes,
        reference.rows,
        reference.format,
    )
    return view, step


# ---- pages that are too large ---------------------------------------------------------------------


def _leave_out_values(view: PageView) -> PageView:
    """Without the values that guards saw."""
    arcs = {
        name: replace(arc, last=None if arc.last is None else replace(arc.last, saw={}))
        for name, arc in view.arcs.items()
    }
    return replace(view, arcs=arcs, left_out=[*view.left_out, "arcs: values that guards saw"])


def _leave_out_commands(view: PageView) -> PageView:
    note = f"live: {max(len(view.live) - FEW_COMMANDS, 0)} of {view.live_total} commands"
    return replace(view, live=view.live[:FEW_COMMANDS], left_out=[*view.left_out, note])


def _leave_out_ctx(view: PageView) -> PageView:
    return replace(view, ctx=None, left_out=[*view.left_out, "ctx"])


def _leave_out_recoveries(view: PageView) -> PageView:
    note = f"recoveries: {len(view.recoveries)}; state; detail of the failure"
    failure = view.failure
    if failure is not None:
        failure = replace(failure, detail={})
    return replace(view, recoveries=[], state={}, failure=failure, left_out=[*view.left_out, note])


def _leave_out_arcs(view: PageView) -> PageView:
    """Without the arcs that were never taken."""
    arcs = {name: arc for name, arc in view.arcs.items() if arc.taken}
    note = f"arcs: {len(view.arcs) - len(arcs)} that were not taken"
    return replace(view, arcs=arcs, left_out=[*view.left_out, note])


def _leave_out_steps(view: PageView) -> PageView:
    """Only steps that need attention, and the first ones."""
    urgent = [name for name, step in view.steps.items() if step.status != "completed"]
    names = [*urgent, *(name for name in view.steps if name not in set(urgent))][:FEW_STEPS]
    kept = set(names)
    steps = {name: step for name, step in view.steps.items() if name in kept}
    arcs = {name: arc for name, arc in view.arcs.items() if name.rpartition(":")[0] in kept}
    note = f"steps: {len(view.steps) - len(steps)} that have completed; their arcs"
    failures = replace(view.failures, kinds=view.failures.kinds[:FEW_COMMANDS])
    return replace(view, steps=steps, arcs=arcs, failures=failures, left_out=[*view.left_out, note])


_REDUCTIONS: tuple[Callable[[PageView], PageView], ...] = (
    _leave_out_values,
    _leave_out_commands,
    _leave_out_ctx,
    _leave_out_recoveries,
    _leave_out_arcs,
    _leave_out_steps,
)
