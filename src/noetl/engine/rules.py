"""`decide` says what follows from one event: one rule for each type of event, listed in `RULES`."""

from collections.abc import Callable
from typing import Any

from noetl.engine import lifecycle, loops, steps, waits
from noetl.engine.expressions import Moment
from noetl.engine.issuing import Decision, requeue
from noetl.engine.state import Activation, Execution, OpenCommand, PinnedPlaybook
from noetl.engine.unhandled import is_unhandled
from noetl.model import events as e
from noetl.model import messages as m
from noetl.model.decisions import (
    AddPart,
    ClearTimer,
    Effect,
    Finish,
    Park,
    Send,
    SetTimer,
    StartChild,
    Stop,
)
from noetl.model.envelope import make_failed_envelope
from noetl.model.errors import Failure
from noetl.model.ids import call_id, timer_id
from noetl.playbook.children import asks_latest


def decide(
    pinned: PinnedPlaybook,
    state: Execution,
    event: e.Event,
    moment: Moment,
) -> Decision:
    """The events and effects that follow from an event. The state contains the event already."""
    rule = RULES.get(type(event))
    if rule is None:
        return iter(())
    return rule(pinned, state, event, moment)


def _get_running_activation(state: Execution, activation_id: Any) -> Activation | None:
    """The activation. None if the execution does not run: a report is then recorded only."""
    if state.status != "running":
        return None
    return state.activations.get(activation_id)


def _after_phase_change(
    pinned: PinnedPlaybook, state: Execution, event: e.Event, moment: Moment
) -> Decision:
    activation = _get_running_activation(state, getattr(event, "activation", None))
    if activation is None:
        return iter(())
    return steps.proceed_activation(pinned, state, activation, moment)


def _after_call(
    pinned: PinnedPlaybook,
    state: Execution,
    event: e.CallDone | e.CallError | e.LoopDone,
    moment: Moment,
) -> Decision:
    if pinned.plan.steps[event.step].step.spec.timeout is not None:
        yield ClearTimer(timer_id(event.activation, "timeout"))
    yield from _after_phase_change(pinned, state, event, moment)


def _after_command_ended(
    pinned: PinnedPlaybook,
    state: Execution,
    event: e.CommandCompleted | e.CommandFailed,
    moment: Moment,
) -> Decision:
    yield Finish(event.command_id)
    yield from loops.add_parts(event)
    activation = _get_running_activation(state, event.activation)
    if activation is None:
        return
    if activation.phase == "loop":
        yield from loops.continue_loop(pinned, state, activation, moment)
    else:
        yield from steps.finish_call(state, activation, event, moment)


def _after_command_dead(
    pinned: PinnedPlaybook, state: Execution, event: e.CommandDead, moment: Moment
) -> Decision:
    yield Finish(event.command_id, "dead")
    activation = _get_running_activation(state, event.activation)
    if activation is None:
        return
    if activation.phase == "loop":
        yield from loops.continue_loop(pinned, state, activation, moment)
    elif activation.broken is not None:
        yield from steps.proceed_activation(pinned, state, activation, moment)
    elif activation.outcome is not None and activation.outcome.error is not None:
        yield steps.make_call_error(activation, activation.outcome.error, moment)


def _after_command_cancelled(
    pinned: PinnedPlaybook,
    state: Execution,
    event: e.CommandCancelled,
    moment: Moment,
) -> Decision:
    yield Finish(event.command_id, "cancelled")
    activation = _get_running_activation(state, event.activation)
    if activation is None:
        return
    yield from lifecycle.cancel_children(state, event.command_id)
    if activation.phase == "loop":
        yield from loops.continue_loop(pinned, state, activation, moment)
    else:
        yield steps.make_call_error(activation, steps.find_stop_reason(pinned, activation), moment)


def _after_expression(
    pinned: PinnedPlaybook,
    state: Execution,
    event: e.ExpressionEvaluated,
    moment: Moment,
) -> Decision:
    yield Finish(event.command_id)
    yield from _after_phase_change(pinned, state, event, moment)


def _after_command_reclaimed(
    pinned: PinnedPlaybook,
    state: Execution,
    event: e.CommandReclaimed,
    moment: Moment,
) -> Decision:
    yield requeue(state.commands[event.command_id])


def _after_command_returned(
    pinned: PinnedPlaybook,
    state: Execution,
    event: e.CommandReturned,
    moment: Moment,
) -> Decision:
    command = state.commands[event.command_id]
    yield Park(command.id)
    if waits.is_being_stopped(state, command):
        yield Stop((command.id,))
    else:
        yield requeue(command)


def _after_command_parked(
    pinned: PinnedPlaybook,
    state: Execution,
    event: e.CommandParked,
    moment: Moment,
) -> Decision:
    command = state.commands[event.command_id]
    yield Park(command.id)
    if waits.is_being_stopped(state, command):
        yield Stop((command.id,))
        return
    if event.reason == "retry":
        yield requeue(command, moment.at + (event.delay or 0))
        return
    if command.parked is None:  # the signal that it waits for had come before
        yield requeue(command)
        return
    if command.parked.timer is not None:
        yield SetTimer(command.parked.timer, waits.get_due_at(event))
    if command.parked.timeout is not None:
        yield SetTimer(command.parked.timeout, moment.at + (event.timeout or 0))
    if command.parked.call is not None and event.child is not None:
        yield _make_start_child(pinned, state, command.parked.call, event.child, moment)


def _make_start_child(
    pinned: PinnedPlaybook,
    state: Execution,
    call: str,
    request: e.ChildRequest,
    moment: Moment,
) -> Effect:
    if state.depth + 1 > pinned.limits.depth:
        limit = pinned.limits.depth
        message = f"children are nested more than {limit} deep: a playbook that calls itself?"
        result = make_failed_envelope(Failure(code="RUNAWAY", kind="runaway", message=message))
        notice = m.Notice(event=e.ChildEnded(call=call, child=None, result=result))
        return Send(state.execution_id, notice)
    version = request.version
    if asks_latest(version) and request.path in state.pins:
        version = str(state.pins[request.path])
    return StartChild(
        parent=e.Parent(state.execution_id, call, request.iter),
        path=request.path,
        version=version,
        workload=request.workload,
        reference=request.reference,
        return_step=request.return_step,
        depth=state.depth + 1,
        detached=not request.wait,
        pins=state.pins,
    )


def _after_wait_ended(
    pinned: PinnedPlaybook, state: Execution, event: e.Event, moment: Moment
) -> Decision:
    """Requeue the commands that this event unparked, and clear the timers of their waits."""
    for command in _list_resolved_commands(state, event):
        parked_attempt = command.attempt - 1
        yield requeue(command)
        yield ClearTimer(timer_id(command.id, f"wait:{parked_attempt}"))
        yield ClearTimer(timer_id(command.id, f"timeout:{parked_attempt}"))


def _list_resolved_commands(state: Execution, event: e.Event) -> list[OpenCommand]:
    """The commands that this event resolved and that are not parked any more, oldest first."""
    commands = sorted(state.commands.values(), key=lambda command: command.order)
    return [
        command
        for command in commands
        if command.resolved_by == event.key and command.parked is None
    ]


def _after_timer(
    pinned: PinnedPlaybook, state: Execution, event: e.TimerFired, moment: Moment
) -> Decision:
    if event.timer == timer_id(state.execution_id, "execution"):
        if state.status in ("pending", "running"):
            limit = pinned.plan.playbook.executor.spec.timeout
            message = f"the execution ran longer than its timeout of {limit}{_describe_unclaimed_step(state, moment)}"
            failure = Failure(code="TIMEOUT", kind="timeout", message=message)
            yield e.ExecutionCancelling(at=moment.at, reason="timeout", error=failure)
        return
    timed_out = [
        activation
        for activation in state.activations.values()
        if activation.stopped and timer_id(activation.id, "timeout") == event.timer
    ]
    for activation in timed_out:
        yield from _after_step_timeout(pinned, state, activation, moment)
    if timed_out:
        return
    for command in state.commands.values():
        if command.resolved_by == event.key:  # if it waits for a child, the child takes too long
            yield from lifecycle.cancel_children(state, command.id)
    yield from _after_wait_ended(pinned, state, event, moment)


def _describe_unclaimed_step(state: Execution, moment: Moment) -> str:
    """Name the step that has waited longest for a worker; empty if none waits. It may be the
    reason for the timeout of the execution."""
    activations = sorted(state.activations.values(), key=lambda activation: activation.order)
    for activation in activations:
        if waits.is_unclaimed(state, activation, moment.at):
            return f"; step {activation.step} did not begin: {waits.describe_missing_worker(activation)}"
    return ""


def _after_step_timeout(
    pinned: PinnedPlaybook,
    state: Execution,
    activation: Activation,
    moment: Moment,
) -> Decision:
    """Stop the commands of a step, and their children, if no worker has enforced its timeout."""
    if any(command.activation == activation.id for command in state.commands.values()):
        yield loops.stop_commands(state, activation)
    elif activation.loop is not None:
        yield from loops.continue_loop(pinned, state, activation, moment)
    else:
        yield steps.make_call_error(activation, steps.find_stop_reason(pinned, activation), moment)


def _after_next_evaluated(
    pinned: PinnedPlaybook,
    state: Execution,
    event: e.NextEvaluated,
    moment: Moment,
) -> Decision:
    """Cancel the execution if no arc handles the failure of a step with the policy `fail_fast`."""
    result = state.steps[event.step].result
    error = result.error if result is not None else None
    error = error or event.error
    if error is None or event.chosen or state.status != "running":
        return
    is_final = state.final_done and pinned.plan.final_step == event.step
    policy = pinned.plan.steps[event.step].step.spec.policy.failure
    if policy == "fail_fast" and not is_final:
        yield e.ExecutionCancelling(at=moment.at, reason="failed", error=error, step=event.step)


def _after_step_skipped(
    pinned: PinnedPlaybook,
    state: Execution,
    event: e.StepSkipped,
    moment: Moment,
) -> Decision:
    """Fail the execution if the skipped step was to handle a failure and no other step does."""
    if state.status != "running" or state.finished:
        return
    for step in event.failed_origins:
        policy = pinned.plan.steps[step].step.spec.policy.failure
        if policy == "fail_fast" and is_unhandled(state, step):
            result = state.steps[step].result
            error = result.error if result is not None else None
            yield e.ExecutionCancelling(at=moment.at, reason="failed", error=error, step=step)
            return


def _after_cancelling(
    pinned: PinnedPlaybook,
    state: Execution,
    event: e.ExecutionCancelling,
    moment: Moment,
) -> Decision:
    yield from lifecycle.cancel_live_work(state)


def _after_resume(
    pinned: PinnedPlaybook, state: Execution, event: e.Event, moment: Moment
) -> Decision:
    """Continue everything that was held back, oldest first."""
    yield from _after_wait_ended(pinned, state, event, moment)
    busy_activations = {command.activation for command in state.commands.values()}
    for activation in sorted(state.activations.values(), key=lambda activation: activation.order):
        if activation.phase == "loop" or activation.id not in busy_activations:
            yield from steps.proceed_activation(pinned, state, activation, moment)


def _after_child_started(
    pinned: PinnedPlaybook,
    state: Execution,
    event: e.ChildStarted,
    moment: Moment,
) -> Decision:
    call = state.calls.get(event.call)
    if call is not None:
        stopped = call.command not in state.commands
        if stopped or state.status == "cancelling":
            yield lifecycle.cancel_child(state, event.child)
    yield from _after_wait_ended(pinned, state, event, moment)


def _stop_if_unwritten(state: Execution, activation_id: Any) -> Decision:
    """Stop the step's commands if the journal entry made a write of state that was refused."""
    activation = _get_running_activation(state, activation_id)
    if activation is None:
        return
    broken_loop = activation.loop is not None and activation.loop.broken
    if activation.unwritten or broken_loop:
        yield loops.stop_commands(state, activation)


def _after_retry_started(
    pinned: PinnedPlaybook,
    state: Execution,
    event: e.RetryStarted,
    moment: Moment,
) -> Decision:
    yield from _stop_if_unwritten(state, event.activation)


def _after_task_done(
    pinned: PinnedPlaybook, state: Execution, event: e.TaskDone, moment: Moment
) -> Decision:
    yield from _stop_if_unwritten(state, event.activation)
    if event.transparent and event.result.ok:
        yield e.SinkProcessed(
            at=moment.at,
            step=event.step,
            activation=event.activation,
            command_id=event.command_id,
            task=event.task,
            run=event.run,
        )


def _after_progress(
    pinned: PinnedPlaybook,
    state: Execution,
    event: e.CommandProgress,
    moment: Moment,
) -> Decision:
    yield from loops.add_parts(event)
    activation = _get_running_activation(state, event.activation)
    if activation is not None and activation.loop is not None and activation.loop.stopping:
        yield loops.stop_commands(state, activation)


def _after_page(
    pinned: PinnedPlaybook, state: Execution, event: e.CallPage, moment: Moment
) -> Decision:
    if event.result.reference is not None:
        manifest = call_id(event.command_id, event.task, event.run)
        yield AddPart(manifest, event.page, 1, event.result.reference)
    yield from _stop_if_unwritten(state, event.activation)


Rule = Callable[[PinnedPlaybook, Execution, Any, Moment], Decision]

RULES: dict[type, Rule] = {
    e.PlaybookInitialized: lifecycle.begin_execution,
    e.PlaybookResumed: _after_resume,
    e.ExecutionReleased: _after_resume,
    e.ExecutionCancelling: _after_cancelling,
    e.StepEnter: _after_phase_change,
    e.CallDone: _after_call,
    e.CallError: _after_call,
    e.StepExit: _after_phase_change,
    e.LoopStarted: _after_phase_change,
    e.LoopDone: _after_call,
    e.ExpressionEvaluated: _after_expression,
    e.NextEvaluated: _after_next_evaluated,
    e.StepSkipped: _after_step_skipped,
    e.TimerFired: _after_timer,
    e.SignalReceived: _after_wait_ended,
    e.ChildStarted: _after_child_started,
    e.ChildEnded: _after_wait_ended,
    e.CommandCompleted: _after_command_ended,
    e.CommandFailed: _after_command_ended,
    e.CommandParked: _after_command_parked,
    e.CommandReturned: _after_command_returned,
    e.CommandReclaimed: _after_command_reclaimed,
    e.CommandDead: _after_command_dead,
    e.CommandCancelled: _after_command_cancelled,
    e.TaskDone: _after_task_done,
    e.CallPage: _after_page,
    e.RetryStarted: _after_retry_started,
    e.CommandProgress: _after_progress,
}
