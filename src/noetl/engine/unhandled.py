"""Failures that nothing handled, because the target of the error arc was not admitted.

A failure is unhandled if every step that its router chose was skipped. If the rule that skips a
step names a next step, that step has to handle the failure. `step.skipped` lists the failed steps
that led to it. Older logs list none, so their failures stay recovered.
"""

from msgspec.structs import replace

from noetl.engine import recoveries
from noetl.engine.state import Activation, Execution, Unfinished
from noetl.model import events as e


def list_failed_origins(state: Execution, activation: Activation) -> tuple[str, ...]:
    """List the failed steps that led to this activation by their error arcs, directly or through
    skipped steps."""
    failed: list[str] = []
    seen: set[str] = set()
    queue = list(activation.origins)
    while queue:
        step = queue.pop(0)
        record = state.steps.get(step)
        if record is None or step in seen:
            continue
        seen.add(step)
        if record.status == "skipped":
            queue += record.origins
        elif record.status == "error":
            failed.append(step)
    return tuple(failed)


def is_unhandled(state: Execution, failed: str) -> bool:
    """Whether all steps that the router of the failed step chose were skipped."""
    record = state.steps[failed]
    chosen = [verdict.step for verdict in record.verdicts if verdict.verdict == "taken"]
    return bool(chosen) and all(_was_skipped(state, step, record.order) for step in chosen)


def _was_skipped(state: Execution, step: str, since: int) -> bool:
    """Whether the step was skipped after that event, and so was each step that its skip named."""
    seen: set[str] = set()
    current: str | None = step
    while current is not None and current not in seen:
        seen.add(current)
        record = state.steps.get(current)
        if record is None or record.status != "skipped" or record.order < since:
            return False
        current = record.skipped_to
    return True


def fold_unhandled(state: Execution, event: e.StepSkipped) -> Execution:
    """Count unhandled failures as not recovered. A retry begins at their steps."""
    for step in event.failed_origins:
        if not is_unhandled(state, step):
            continue
        record = state.steps[step]
        failure, failed_step = state.failure, state.failed_step
        if failure is None:
            failed_step = step
            if record.result is not None:
                failure = record.result.error
        state = replace(
            recoveries.uncount_arc_recovery(state, step),
            failure=failure,
            failed_step=failed_step,
            unfinished=(*state.unfinished, Unfinished(step, record.args)),
        )
    return state
