"""Beginning and end of an execution: admission, cancelling, the final step, and exactly one terminal event."""

from msgspec.structs import replace

from noetl.engine import joins
from noetl.engine.fold import FINAL
from noetl.engine.issuing import Made
from noetl.engine.sites import Moment
from noetl.engine.state import Execution, PinnedPlaybook
from noetl.model import events as e
from noetl.model.decisions import AskAdmission, ClearTimer, LeaveAdmission, Send, SetTimer, Stop
from noetl.model.envelope import Envelope, failed, no_value_context
from noetl.model.errors import Failure
from noetl.model.ids import CommandId, ExecutionId, activation_id, timer_id
from noetl.model.messages import Cancel, Notice


def begin(
    fixed: PinnedPlaybook, state: Execution, event: e.PlaybookInitialized, moment: Moment
) -> Made:
    if event.timeout is not None:
        yield SetTimer(timer_id(state.execution_id, "execution"), moment.at + event.timeout)
    limit = fixed.plan.playbook.executor.spec.max_concurrent
    if limit is None:
        yield e.WorkflowInitialized(at=moment.at)
    else:
        yield AskAdmission(state.path, limit)


def settle(fixed: PinnedPlaybook, state: Execution, moment: Moment) -> Made:
    """When nothing follows from an event any more: what follows from the state as a whole."""
    if state.terminal or state.quarantined is not None:
        return
    if state.status == "cancelling":
        if nothing_left(state):
            yield from _finish(fixed, state, moment)
    elif state.status == "running" and not state.paused:
        if state.tokens:
            yield from joins.release(fixed, state, moment)
        elif not state.activations and not state.calls:
            yield from _finish(fixed, state, moment)


def nothing_left(state: Execution) -> bool:
    """Everything that cancelling waits for has ended."""
    return not state.commands and not state.calls


def cancelling(state: Execution) -> Made:
    """Stop everything: queued commands at once, running ones through their workers, children through their inboxes."""
    if state.commands:
        yield Stop(
            tuple(live.id for live in sorted(state.commands.values(), key=lambda live: live.order))
        )
    for _, call in sorted(state.calls.items()):
        if call.child is not None:
            yield cancel_child(state, call.child)


def cancel_children_of(state: Execution, command: CommandId) -> Made:
    """The command was stopped: nobody waits for its children. One that has not started yet is cancelled when it has."""
    for _, call in sorted(state.calls.items()):
        if call.command == command and call.child is not None:
            yield cancel_child(state, call.child)


def cancel_child(state: Execution, child: ExecutionId) -> Send:
    return Send(child, Cancel(request=f"parent:{state.execution_id}", reason="parent"))


def _finish(fixed: PinnedPlaybook, state: Execution, moment: Moment) -> Made:
    final = fixed.plan.final
    if final is not None and state.finished is None and state.activated:
        record = state.steps.get(final)
        yield e.StepEnter(
            at=moment.at,
            step=final,
            activation=activation_id(state.execution_id, final, FINAL),
            run=(record.runs if record is not None else 0) + 1,
            cause=FINAL,
        )
        return
    ended = _terminal(state, moment)
    yield ended
    for timer in sorted(state.timers):
        yield ClearTimer(timer)
    if fixed.plan.playbook.executor.spec.max_concurrent is not None:
        yield LeaveAdmission(state.path)
    if state.parent is not None:
        answer = _answer(state, ended)
        notice = e.ChildEnded(
            call=state.parent.call,
            child=state.execution_id,
            result=answer,
            recovered=state.recovered,
        )
        yield Send(state.parent.execution_id, Notice(event=notice))


def _terminal(state: Execution, moment: Moment) -> e.Terminal:
    cancelled = (
        state.status == "cancelling"
        and state.reason in ("requested", "parent")
        and state.finished != "failed"
    )
    if cancelled or (state.finished == "cancelled" and state.status == "running"):
        return e.ExecutionCancelled(at=moment.at, reason=state.reason or "requested")
    if state.failure is not None:
        return e.PlaybookFailed(at=moment.at, error=state.failure, step=state.failed_step)
    last = state.steps.get(state.last_step) if state.last_step is not None else None
    result = last.result.bare() if last is not None and last.result is not None else None
    return e.PlaybookCompleted(at=moment.at, step=state.last_step, result=result)


def _answer(state: Execution, ended: e.Terminal) -> Envelope:
    """What a parent is told: the result it asked for, or why there is none."""
    where = {"execution_id": state.execution_id}
    match ended:
        case e.PlaybookCompleted():
            wanted = state.return_step or state.last_step
            record = state.steps.get(wanted) if wanted is not None else None
            if state.return_step is not None and (record is None or record.result is None):
                message = f"child {state.execution_id} ended without running its return_step {state.return_step}"
                return failed(
                    Failure(code="CHILD_FAILED", kind="child", message=message, detail=where)
                )
            result = (
                record.result
                if record is not None and record.result is not None
                else Envelope(status="ok")
            )
            context = {
                name: value for name, value in result.context.items() if name != "selections"
            }
            no_value = result.why_no_value(f"step {wanted} of child {state.execution_id}")
            if no_value:
                context |= no_value_context(no_value)
            return Envelope(status="ok", reference=result.reference, context=context)
        case e.PlaybookFailed():
            message = f"child {state.execution_id} failed at {ended.step}: {ended.error.message}"
            detail = {**where, "code": ended.error.code, "step": ended.step}
            if ended.error.kind == "runaway":  # as what it is, however deep it was noticed
                return failed(replace(ended.error, detail=detail))
            return failed(
                Failure(code="CHILD_FAILED", kind="child", message=message, detail=detail)
            )
        case e.ExecutionCancelled():
            message = f"child {state.execution_id} was cancelled"
            return failed(
                Failure(code="CHILD_CANCELLED", kind="child", message=message, detail=where)
            )
