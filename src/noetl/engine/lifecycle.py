"""Begin and end an execution: admission, cancelling, the final step, one terminal event."""

from typing import Any

from msgspec.structs import replace

from noetl.engine import joins
from noetl.engine.expressions import Moment
from noetl.engine.fold import FINAL_CAUSE
from noetl.engine.issuing import Decision
from noetl.engine.state import Execution, PinnedPlaybook
from noetl.model import events as e
from noetl.model.decisions import AskAdmission, ClearTimer, LeaveAdmission, Send, SetTimer, Stop
from noetl.model.envelope import Envelope, make_failed_envelope, make_no_value_context
from noetl.model.errors import Failure
from noetl.model.ids import CommandId, ExecutionId, activation_id, timer_id
from noetl.model.messages import Cancel, Notice


def begin_execution(
    pinned: PinnedPlaybook,
    state: Execution,
    event: e.PlaybookInitialized,
    moment: Moment,
) -> Decision:
    """Admit the execution at once, or ask for one of the `max_concurrent` places."""
    if event.timeout is not None:
        yield SetTimer(timer_id(state.execution_id, "execution"), moment.at + event.timeout)
    limit = pinned.plan.playbook.executor.spec.max_concurrent
    if limit is None:
        yield e.WorkflowInitialized(at=moment.at)
    else:
        yield AskAdmission(state.path, limit)


def settle(pinned: PinnedPlaybook, state: Execution, moment: Moment) -> Decision:
    """Decide what follows from the whole state, when nothing more follows from the event."""
    if state.terminal or state.quarantined is not None:
        return
    if state.status == "cancelling":
        if has_nothing_live(state):
            yield from _finish_execution(pinned, state, moment)
    elif state.status == "running" and not state.paused:
        if state.tokens:
            yield from joins.release_arrivals(pinned, state, moment)
        elif not state.activations and not state.calls:
            yield from _finish_execution(pinned, state, moment)


def has_nothing_live(state: Execution) -> bool:
    """Whether all commands and children that cancelling waits for have ended."""
    return not state.commands and not state.calls


def cancel_live_work(state: Execution) -> Decision:
    """Stop all commands and cancel all children."""
    if state.commands:
        commands = sorted(state.commands.values(), key=lambda command: command.order)
        yield Stop(tuple(command.id for command in commands))
    for _, call in sorted(state.calls.items()):
        if call.child is not None:
            yield cancel_child(state, call.child)


def cancel_children(state: Execution, command: CommandId) -> Decision:
    """Cancel the children of a stopped command. A child that has not started yet is cancelled as
    soon as it has."""
    for _, call in sorted(state.calls.items()):
        if call.command == command and call.child is not None:
            yield cancel_child(state, call.child)


def cancel_child(state: Execution, child: ExecutionId) -> Send:
    return Send(child, Cancel(request=f"parent:{state.execution_id}", reason="parent"))


def _finish_execution(pinned: PinnedPlaybook, state: Execution, moment: Moment) -> Decision:
    """Enter the final step if it has not run; otherwise end the execution."""
    final = pinned.plan.final_step
    if final is not None and state.finished is None and state.activated:
        record = state.steps.get(final)
        runs = record.runs if record is not None else 0
        yield e.StepEnter(
            at=moment.at,
            step=final,
            activation=activation_id(state.execution_id, final, FINAL_CAUSE),
            run=runs + 1,
            cause=FINAL_CAUSE,
        )
        return
    terminal = _make_terminal_event(state, moment)
    yield terminal
    for timer in sorted(state.timers):
        yield ClearTimer(timer)
    if pinned.plan.playbook.executor.spec.max_concurrent is not None:
        yield LeaveAdmission(state.path)
    if state.parent is not None:
        notice = e.ChildEnded(
            call=state.parent.call,
            child=state.execution_id,
            result=_make_parent_answer(state, terminal),
            recovered=state.recovered,
        )
        yield Send(state.parent.execution_id, Notice(event=notice))


def _make_terminal_event(state: Execution, moment: Moment) -> e.Terminal:
    """The one event that ends the execution."""
    cancelled = (
        state.status == "cancelling"
        and state.reason in ("requested", "parent")
        and state.finished != "failed"
    )
    if cancelled or (state.finished == "cancelled" and state.status == "running"):
        return e.ExecutionCancelled(at=moment.at, reason=state.reason or "requested")
    if state.failure is not None:
        return e.PlaybookFailed(at=moment.at, error=state.failure, step=state.failed_step)
    result = None
    if state.last_step is not None:
        record = state.steps.get(state.last_step)
        if record is not None and record.result is not None:
            result = record.result.without_context()
    return e.PlaybookCompleted(at=moment.at, step=state.last_step, result=result)


def _make_parent_answer(state: Execution, terminal: e.Terminal) -> Envelope:
    """The result of the execution for its parent: the step that the parent asked for, or a
    failure."""
    child = state.execution_id
    detail: dict[str, Any] = {"execution_id": child}
    match terminal:
        case e.PlaybookCompleted():
            return _make_completed_answer(state)
        case e.PlaybookFailed():
            error = terminal.error
            detail |= {"code": error.code, "step": terminal.step}
            if error.kind == "runaway":  # every ancestor reports the runaway itself
                return make_failed_envelope(replace(error, detail=detail))
            message = f"child {child} failed at {terminal.step}: {error.message}"
            failure = Failure(code="CHILD_FAILED", kind="child", message=message, detail=detail)
            return make_failed_envelope(failure)
        case e.ExecutionCancelled():
            message = f"child {child} was cancelled"
            failure = Failure(code="CHILD_CANCELLED", kind="child", message=message, detail=detail)
            return make_failed_envelope(failure)


def _make_completed_answer(state: Execution) -> Envelope:
    child = state.execution_id
    step = state.return_step or state.last_step
    result: Envelope | None = None
    if step is not None and step in state.steps:
        result = state.steps[step].result
    if result is None and state.return_step is not None:
        message = f"child {child} ended without running its return_step {state.return_step}"
        detail = {"execution_id": child}
        return make_failed_envelope(
            Failure(code="CHILD_FAILED", kind="child", message=message, detail=detail)
        )
    if result is None:
        return Envelope(status="ok")
    context = {name: value for name, value in result.context.items() if name != "selections"}
    no_value = result.explain_no_value(f"step {step} of child {child}")
    if no_value:
        context |= make_no_value_context(no_value)
    return Envelope(status="ok", reference=result.reference, context=context)
