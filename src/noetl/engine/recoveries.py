"""Failures that were handled: an execution that completes in spite of them says so.

A failure counts as recovered when something in the playbook let it pass: an error arc that was taken after a failed step, a rule
that went on, broke off or jumped after a task's error when the pipeline (of the step, or of the item) then ended well, or the
failure policy of a loop that completed with failed items. A retry of a success that has no try left is an error of the task
(RETRY_EXHAUSTED) like any other. A try that failed and was retried with success does not count. Events
of older logs do not say it, so they count nothing.
"""

from msgspec.structs import replace

from noetl.engine.state import Execution, Recovery
from noetl.model import events as e
from noetl.model.envelope import Envelope

MAX_RECOVERIES = 20  # kinds that an execution remembers; all are counted
MAX_MESSAGE = 200  # characters
ARC = "arc to "  # how `by` begins when an error arc handled the failure


def by_arc(state: Execution, event: e.NextEvaluated, outcome: Envelope) -> Execution:
    if not event.recovered or outcome.error is None:
        return state
    arcs = ", ".join(chosen.step for chosen in event.chosen)
    error = outcome.error
    return _count(
        state, Recovery(step=event.step, by=f"{ARC}{arcs}", code=error.code, message=error.message)
    )


def without_arc(state: Execution, step: str) -> Execution:
    """The step that an error arc of this step leads to did not run: the failure was not handled after all."""
    known = list(state.recoveries)
    for number, each in enumerate(known):
        if each.step == step and each.by.startswith(ARC):
            known[number] = replace(each, count=each.count - 1)
            break
    left = tuple(each for each in known if each.count)
    return replace(state, recovered=max(state.recovered - 1, 0), recoveries=left)


def by_rule(state: Execution, step: str, found: e.Recovered | None) -> Execution:
    if found is None:
        return state
    made = Recovery(
        step=step,
        by=f"rule: {found.by}",
        code=found.code,
        message=found.message,
        task=found.task,
        count=found.count,
    )
    return _count(state, made)


def by_loop(state: Execution, event: e.LoopDone) -> Execution:
    if not event.recovered:
        return state
    first = state.activations[event.activation].loop
    error = first.first_error if first is not None else None
    message = error.message if error is not None else f"{event.recovered} items failed"
    code = error.code if error is not None else "ITEM_FAILED"
    by = "failure policy of the loop"
    return _count(
        state, Recovery(step=event.step, by=by, code=code, message=message, count=event.recovered)
    )


def _count(state: Execution, new: Recovery) -> Execution:
    """Count it, and remember the first of its kind."""
    known = list(state.recoveries)
    for number, each in enumerate(known):
        if (each.step, each.task, each.by) == (new.step, new.task, new.by):
            known[number] = replace(each, count=each.count + new.count)
            break
    else:
        if len(known) < MAX_RECOVERIES:
            known.append(replace(new, message=new.message[:MAX_MESSAGE]))
    return replace(state, recovered=state.recovered + new.count, recoveries=tuple(known))
