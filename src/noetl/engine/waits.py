"""Commands that wait without a worker: for a late retry, a moment, a signal, an approval, a child.

A parked command keeps its journal. The awaited thing resolves the command, which then continues as
a new attempt. Signals without a waiting command are kept in order per name; a `wait` takes the
oldest. A command that is resolved while the execution is paused stays parked and is `ready`;
resuming requeues it.
"""

from typing import Any

from msgspec.structs import replace

from noetl.engine.state import (
    Activation,
    ChildCall,
    Execution,
    OpenCommand,
    ParkedCommand,
    TimerUse,
)
from noetl.model import events as e
from noetl.model.approvals import approval_name, is_approval, problem_with_approval
from noetl.model.envelope import Envelope, make_failed_envelope
from noetl.model.errors import Failure
from noetl.model.ids import Micros, TimerId, call_id, timer_id

# A worker reports a long command as claimed within this time.
CLAIM_REPORT_MICROS: Micros = 6_000_000


def fold_parked(state: Execution, event: e.CommandParked) -> Execution:
    command = state.commands[event.command_id]
    if event.reason == "retry":
        journal = replace(command.journal, tries=event.tries, resolved=None)
        return _with_open_command(
            state, replace(command, attempt=command.attempt + 1, journal=journal, worker=None)
        )
    wait = _make_parked_command(command, event)
    state = _with_open_command(state, replace(command, parked=wait, worker=None))
    timers = dict(state.timers)
    if wait.timer is not None:
        timers[wait.timer] = TimerUse("wait", command.id)
    if wait.timeout is not None:
        timers[wait.timeout] = TimerUse("wait.timeout", command.id)
    state = replace(state, timers=timers)
    request = event.child
    waits_for_child = wait.call is not None and request is not None and request.wait
    if waits_for_child and not is_being_stopped(state, command):  # a stopped one starts no child
        state = replace(state, calls={**state.calls, wait.call: ChildCall(command.id)})
    if request is not None and request.pinned is not None:
        state = replace(state, pins={**state.pins, request.path: request.pinned})
    if wait.signal is None or wait.signal not in state.signals:
        return state
    return _consume_signal(state, wait.signal, state.signals[wait.signal], event.key)


def _make_parked_command(command: OpenCommand, event: e.CommandParked) -> ParkedCommand:
    call = timer = timeout = until = None
    if event.reason == "child":
        run = command.journal.runs.get(event.task, 0) + 1
        call = call_id(command.id, event.task, run, event.tries)
    if event.reason == "time":
        timer = timer_id(command.id, f"wait:{event.attempt}")
        until = get_due_at(event)
    if event.timeout is not None:
        timeout = timer_id(command.id, f"timeout:{event.attempt}")
    return ParkedCommand(
        reason=event.reason,
        task=event.task,
        signal=get_signal_name(event),
        call=call,
        request=event.child,
        timer=timer,
        timeout=timeout,
        until=until,
        question=event.question,
    )


def get_due_at(event: e.CommandParked) -> Micros:
    """When the timer of the wait is due."""
    if event.until is not None:
        return event.until
    return event.at + (event.delay or 0)


def get_signal_name(event: e.CommandParked) -> str | None:
    """The signal that the command waits for. None if it waits for something else."""
    if event.reason == "approval":
        return approval_name(event.step)
    if event.reason == "signal":
        return event.signal
    return None


def fold_signal_received(state: Execution, event: e.SignalReceived) -> Execution:
    payloads = (*state.signals.get(event.name, ()), event.payload)
    state = replace(
        state,
        signals={**state.signals, event.name: payloads},
        waiting_signals=state.waiting_signals + 1,
    )
    return _consume_signal(state, event.name, payloads, event.key)


def _consume_signal(
    state: Execution,
    name: str,
    payloads: tuple[Any, ...],
    by: str,
) -> Execution:
    """Give the oldest signal of this name to the command that has waited longest for it."""
    waiting = [
        command
        for command in state.commands.values()
        if command.parked and command.parked.signal == name and not command.parked.ready
    ]
    waiting = [command for command in waiting if not is_being_stopped(state, command)]
    if not waiting or state.status != "running":
        return state
    oldest = min(waiting, key=lambda command: command.order)
    signals = {**state.signals, name: payloads[1:]}
    if not signals[name]:
        del signals[name]
    state = replace(state, signals=signals, waiting_signals=state.waiting_signals - 1)
    return resolve_wait(state, oldest, _make_signal_answer(name, payloads[0]), by)


def _make_signal_answer(name: str, payload: Any) -> Envelope:
    """The result of a wait for this signal. An approval that refuses is a failure."""
    rejection = None
    if is_approval(name):
        rejection = _find_rejection(payload)
    if rejection is not None:
        return make_failed_envelope(Failure(code="REJECTED", kind="rejected", message=rejection))
    return Envelope(status="ok", context={"value": payload})


def _find_rejection(payload: Any) -> str | None:
    """Why the payload does not approve. None for `approved: true`, the only approval."""
    problem = problem_with_approval(payload)
    if problem is not None:
        return f"the approval does not say whether it approves: {problem}"
    if payload["approved"]:
        return None
    return f"the approval was refused: {payload.get('comment') or 'no comment'}"


def fold_timer_fired(state: Execution, event: e.TimerFired) -> Execution:
    use = state.timers.get(event.timer)
    if use is None:
        return state
    timers = dict(state.timers)
    del timers[event.timer]
    state = replace(state, timers=timers)
    match use.purpose:
        case "wait":
            answer = Envelope(status="ok", context={"value": None})
            return resolve_wait(state, state.commands[_get_command_id(use)], answer, event.key)
        case "wait.timeout":
            message = "nothing came before the wait's timeout"
            answer = make_failed_envelope(Failure(code="TIMEOUT", kind="timeout", message=message))
            return resolve_wait(state, state.commands[_get_command_id(use)], answer, event.key)
        case "step":
            activation = state.activations[_get_activation_id(use)]
            activation = _time_out_activation(activation, is_unclaimed(state, activation, event.at))
            return replace(state, activations={**state.activations, activation.id: activation})
        case "execution":
            return state


def _time_out_activation(activation: Activation, unclaimed: bool) -> Activation:
    loop = activation.loop
    if loop is not None:
        message = f"loop {activation.step} ran longer than its step's timeout"
        if unclaimed:
            reason = describe_missing_worker(activation)
            message = f"loop {activation.step} did not begin within its step's timeout: {reason}"
        failure = Failure(code="TIMEOUT", kind="timeout", message=message)
        loop = replace(loop, stopping=True, broken=failure)
    return replace(activation, stopped=True, timer=None, loop=loop, unclaimed=unclaimed)


def is_unclaimed(state: Execution, activation: Activation, at: Micros) -> bool:
    """Whether no worker has taken a command of the step, as far as workers have reported."""
    commands = [
        command for command in state.commands.values() if command.activation == activation.id
    ]
    loop = activation.loop
    if not commands or at - activation.entered_at < CLAIM_REPORT_MICROS:
        return False
    if loop is not None and (loop.ok or loop.failed or loop.claimed):
        return False
    return all(
        command.worker is None and command.attempt == 1 and command.parked is None
        for command in commands
    )


def describe_missing_worker(activation: Activation) -> str:
    pool = activation.pool
    remedy = f"`noetl worker start --pool {pool}` starts one"
    return f"no worker of pool {pool!r} took its command; {remedy}"


def fold_child_started(state: Execution, event: e.ChildStarted) -> Execution:
    call = state.calls.get(event.call)
    if call is not None:
        state = replace(state, calls={**state.calls, event.call: replace(call, child=event.child)})
    for command in state.commands.values():
        wait = command.parked
        if wait is not None and wait.call == event.call:
            break
    else:
        return state
    command = replace(command, parked=replace(wait, child=event.child))
    state = _with_open_command(state, command)
    if wait.request is not None and not wait.request.wait:
        started = Envelope(status="ok", context={"value": {"execution_id": event.child}})
        return resolve_wait(state, command, started, event.key)
    return state


def fold_child_ended(state: Execution, event: e.ChildEnded) -> Execution:
    call = state.calls.get(event.call)
    if call is None:
        return state
    calls = dict(state.calls)
    del calls[event.call]
    state = replace(state, calls=calls)
    command = state.commands.get(call.command)
    if command is None:
        return state
    return resolve_wait(state, command, event.result, event.key)


def is_being_stopped(state: Execution, command: OpenCommand) -> bool:
    """Whether the command is to stop: the execution is cancelling, its step timed out, or its loop
    stops early."""
    if state.status == "cancelling":
        return True
    activation = state.activations[command.activation]
    if activation.phase not in ("call", "loop"):
        return False  # the command evaluates for the router: the step's own work is over
    return activation.stopped or (activation.loop is not None and activation.loop.stopping)


def resolve_wait(state: Execution, command: OpenCommand, answer: Envelope, by: str) -> Execution:
    """End the wait of a command, which becomes a new attempt. A command that is to stop stays
    parked until it has stopped."""
    if command.parked is None or command.parked.ready or state.status != "running":
        return state
    if is_being_stopped(state, command):
        return state
    state = forget_wait_timers(state, command.parked)
    still_parked = replace(command.parked, ready=True) if state.paused else None
    resolved = replace(
        command,
        attempt=command.attempt + 1,
        journal=replace(command.journal, resolved=answer),
        parked=still_parked,
        resolved_by=by,
    )
    return _with_open_command(state, resolved)


def unpark_ready(state: Execution, by: str) -> Execution:
    """Unpark the commands that were resolved during the pause."""
    commands = dict(state.commands)
    for command_id, command in state.commands.items():
        if command.parked is None or not command.parked.ready or is_being_stopped(state, command):
            continue
        commands[command_id] = replace(command, parked=None, resolved_by=by)
    return replace(state, commands=commands)


def is_child_expected(state: Execution, call: str) -> bool:
    """Whether a command waits for this child, or the execution must still see the child end."""
    if call in state.calls:
        return True
    commands = state.commands.values()
    return any(command.parked is not None and command.parked.call == call for command in commands)


def forget_wait_timers(state: Execution, wait: ParkedCommand) -> Execution:
    """Drop the timers of a wait that is over. The child of the wait stays in `calls` until it has
    ended."""
    ended = list_wait_timers(wait)
    if not ended:
        return state
    timers = {timer: use for timer, use in state.timers.items() if timer not in ended}
    return replace(state, timers=timers)


def list_wait_timers(wait: ParkedCommand) -> tuple[TimerId, ...]:
    return tuple(timer for timer in (wait.timer, wait.timeout) if timer is not None)


def _get_command_id(use: TimerUse) -> Any:
    return use.subject


def _get_activation_id(use: TimerUse) -> Any:
    return use.subject


def _with_open_command(state: Execution, command: OpenCommand) -> Execution:
    return replace(state, commands={**state.commands, command.id: command})
