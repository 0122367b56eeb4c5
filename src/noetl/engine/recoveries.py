"""Count handled failures, so that an execution that completes in spite of them says so.

A failure counts as recovered in three cases: an error arc was taken after a failed step; a rule
continued, broke off or jumped after the error of a task, and the pipeline of the step or item then
succeeded; a loop completed with failed items because of its failure policy. RETRY_EXHAUSTED is an
error of a task like any other. A failed try does not count if a later try succeeded. Events of
older logs do not carry this information, so they count nothing.
"""

from msgspec.structs import replace

from noetl.engine.state import Execution, Recovery
from noetl.model import events as e
from noetl.model.envelope import Envelope

MAX_RECOVERIES = 20  # kinds of recoveries that an execution lists; it counts all
MAX_RECOVERY_MESSAGE_CHARS = 200  # characters
ARC_PREFIX = "arc to "  # the beginning of `by` if an error arc handled the failure


def count_arc_recovery(state: Execution, event: e.NextEvaluated, outcome: Envelope) -> Execution:
    if not event.recovered or outcome.error is None:
        return state
    targets = ", ".join(chosen.step for chosen in event.chosen)
    error = outcome.error
    recovery = Recovery(
        step=event.step,
        by=f"{ARC_PREFIX}{targets}",
        code=error.code,
        message=error.message,
    )
    return _count_recovery(state, recovery)


def uncount_arc_recovery(state: Execution, step: str) -> Execution:
    """Take back the recovery of a failed step, because the target of its error arc did not run."""
    recoveries = list(state.recoveries)
    for number, recovery in enumerate(recoveries):
        if recovery.step == step and recovery.by.startswith(ARC_PREFIX):
            recoveries[number] = replace(recovery, count=recovery.count - 1)
            break
    left = tuple(recovery for recovery in recoveries if recovery.count)
    return replace(state, recovered=max(state.recovered - 1, 0), recoveries=left)


def count_rule_recovery(state: Execution, step: str, recovered: e.Recovered | None) -> Execution:
    if recovered is None:
        return state
    recovery = Recovery(
        step=step,
        by=f"rule: {recovered.by}",
        code=recovered.code,
        message=recovered.message,
        task=recovered.task,
        count=recovered.count,
    )
    return _count_recovery(state, recovery)


def count_loop_recovery(state: Execution, event: e.LoopDone) -> Execution:
    if not event.recovered:
        return state
    code, message = "ITEM_FAILED", f"{event.recovered} items failed"
    loop = state.activations[event.activation].loop
    if loop is not None and loop.first_error is not None:
        code, message = loop.first_error.code, loop.first_error.message
    recovery = Recovery(
        step=event.step,
        by="failure policy of the loop",
        code=code,
        message=message,
        count=event.recovered,
    )
    return _count_recovery(state, recovery)


def _count_recovery(state: Execution, new: Recovery) -> Execution:
    """Count the recovery, and keep the message of the first of its kind."""
    recoveries = list(state.recoveries)
    for number, known in enumerate(recoveries):
        if (known.step, known.task, known.by) == (new.step, new.task, new.by):
            recoveries[number] = replace(known, count=known.count + new.count)
            break
    else:
        if len(recoveries) < MAX_RECOVERIES:
            recoveries.append(replace(new, message=new.message[:MAX_RECOVERY_MESSAGE_CHARS]))
    return replace(state, recovered=state.recovered + new.count, recoveries=tuple(recoveries))
