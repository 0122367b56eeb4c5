"""Waiting without a worker: retries that are far off, moments, signals, approvals, children.

A parked command keeps its place (its journal); what it waits for resolves it, which makes it a new attempt. Signals that come
before anyone waits are kept in order per name; a `wait` takes the oldest. While the execution is paused a resolved command
stays parked, ready; resuming puts it back.
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
from noetl.model.envelope import Envelope, failed
from noetl.model.errors import Failure
from noetl.model.ids import Micros, TimerId, call_id, timer_id

ANNOUNCED_WITHIN: Micros = 6_000_000  # a worker says within that time that it has taken a command


def parked(state: Execution, event: e.CommandParked) -> Execution:
    live = state.commands[event.command_id]
    if event.reason == "retry":
        journal = replace(live.journal, tries=event.tries, resolved=None)
        return _with(state, replace(live, attempt=live.attempt + 1, journal=journal, worker=None))
    run = live.journal.runs.get(event.task, 0) + 1
    wait = ParkedCommand(
        reason=event.reason,
        task=event.task,
        signal=signal_name(event),
        call=call_id(live.id, event.task, run, event.tries) if event.reason == "child" else None,
        request=event.child,
        timer=timer_id(live.id, f"wait:{event.attempt}") if event.reason == "time" else None,
        timeout=timer_id(live.id, f"timeout:{event.attempt}")
        if event.timeout is not None
        else None,
        until=due_at(event) if event.reason == "time" else None,
    )
    state = _with(state, replace(live, parked=wait, worker=None))
    timers = {timer: TimerUse("wait", live.id) for timer in (wait.timer,) if timer is not None}
    timers |= {
        timer: TimerUse("wait.timeout", live.id) for timer in (wait.timeout,) if timer is not None
    }
    state = replace(state, timers={**state.timers, **timers})
    waits_for_child = wait.call is not None and event.child is not None and event.child.wait
    if waits_for_child and not being_stopped(
        state, live
    ):  # a command that is being stopped starts no child
        state = replace(state, calls={**state.calls, wait.call: ChildCall(live.id)})
    if event.child is not None and event.child.pinned is not None:
        state = replace(state, pins={**state.pins, event.child.path: event.child.pinned})
    kept = state.signals.get(wait.signal or "", ())
    return (
        _consume(state, wait.signal, kept, event.key) if wait.signal is not None and kept else state
    )


def due_at(event: e.CommandParked) -> Micros:
    return event.until if event.until is not None else event.at + (event.delay or 0)


def signal_name(event: e.CommandParked) -> str | None:
    if event.reason == "approval":
        return approval_name(event.step)
    return event.signal if event.reason == "signal" else None


def signal_received(state: Execution, event: e.SignalReceived) -> Execution:
    kept = (*state.signals.get(event.name, ()), event.payload)
    state = replace(
        state,
        signals={**state.signals, event.name: kept},
        waiting_signals=state.waiting_signals + 1,
    )
    return _consume(state, event.name, kept, event.key)


def _consume(state: Execution, name: str, kept: tuple[Any, ...], by: str) -> Execution:
    """Give the oldest signal of this name to the command that has waited longest for it."""
    waiting = [
        c
        for c in state.commands.values()
        if c.parked and c.parked.signal == name and not c.parked.ready
    ]
    waiting = [c for c in waiting if not being_stopped(state, c)]
    if not waiting or state.status != "running":
        return state
    live = min(waiting, key=lambda command: command.order)
    signals = {**state.signals, name: kept[1:]}
    if not signals[name]:
        del signals[name]
    state = replace(state, signals=signals, waiting_signals=state.waiting_signals - 1)
    return resolve(state, live, _answer(name, kept[0]), by)


def _answer(name: str, payload: Any) -> Envelope:
    rejection = _rejection(payload) if is_approval(name) else None
    if rejection is not None:
        return failed(Failure(code="REJECTED", kind="rejected", message=rejection))
    return Envelope(status="ok", context={"value": payload})


def _rejection(payload: Any) -> str | None:
    """Why the payload of an approval does not approve: only `approved: true` does."""
    problem = problem_with_approval(payload)
    if problem is not None:
        return f"the approval does not say whether it approves: {problem}"
    if payload["approved"]:
        return None
    return f"the approval was refused: {payload.get('comment') or 'no comment'}"


def timer_fired(state: Execution, event: e.TimerFired) -> Execution:
    use = state.timers.get(event.timer)
    if use is None:
        return state
    state = replace(
        state, timers={timer: kept for timer, kept in state.timers.items() if timer != event.timer}
    )
    match use.purpose:
        case "wait":
            return resolve(
                state,
                state.commands[_command(use)],
                Envelope(status="ok", context={"value": None}),
                event.key,
            )
        case "wait.timeout":
            late = Failure(
                code="TIMEOUT", kind="timeout", message="nothing came before the wait's timeout"
            )
            return resolve(state, state.commands[_command(use)], failed(late), event.key)
        case "step":
            activation = state.activations[_activation(use)]
            activation = _timed_out(activation, nobody_took(state, activation, event.at))
            return replace(state, activations={**state.activations, activation.id: activation})
        case "execution":
            return state


def _timed_out(activation: Activation, unclaimed: bool) -> Activation:
    loop = activation.loop
    if loop is not None:
        message = f"loop {activation.step} ran longer than its step's timeout"
        if unclaimed:
            message = f"loop {activation.step} did not begin within its step's timeout: {no_worker(activation)}"
        loop = replace(
            loop, stopping=True, broken=Failure(code="TIMEOUT", kind="timeout", message=message)
        )
    return replace(activation, stopped=True, timer=None, loop=loop, unclaimed=unclaimed)


def nobody_took(state: Execution, activation: Activation, at: Micros) -> bool:
    """Whether no worker has taken a command of the step, as far as workers have said so by now."""
    commands = [live for live in state.commands.values() if live.activation == activation.id]
    loop = activation.loop
    if not commands or at - activation.entered_at < ANNOUNCED_WITHIN:
        return False
    if loop is not None and (loop.ok or loop.failed or loop.claimed):
        return False
    return all(
        live.worker is None and live.attempt == 1 and live.parked is None for live in commands
    )


def no_worker(activation: Activation) -> str:
    pool = activation.pool
    return f"no worker of pool {pool!r} took its command; `noetl worker start --pool {pool}` starts one"


def child_started(state: Execution, event: e.ChildStarted) -> Execution:
    call = state.calls.get(event.call)
    if call is not None:
        state = replace(state, calls={**state.calls, event.call: replace(call, child=event.child)})
    live = next(
        (
            c
            for c in state.commands.values()
            if c.parked is not None and c.parked.call == event.call
        ),
        None,
    )
    if live is None or live.parked is None:
        return state
    state = _with(state, replace(live, parked=replace(live.parked, child=event.child)))
    if live.parked.request is not None and not live.parked.request.wait:
        started = Envelope(status="ok", context={"value": {"execution_id": event.child}})
        return resolve(state, state.commands[live.id], started, event.key)
    return state


def child_ended(state: Execution, event: e.ChildEnded) -> Execution:
    ended = state.calls.get(event.call)
    state = replace(
        state, calls={key: call for key, call in state.calls.items() if key != event.call}
    )
    live = state.commands.get(ended.command) if ended is not None else None
    return state if live is None else resolve(state, live, event.result, event.key)


def being_stopped(state: Execution, live: OpenCommand) -> bool:
    """It was told to stop: the execution is cancelling, its step timed out, or its loop stops early."""
    if state.status == "cancelling":
        return True
    activation = state.activations[live.activation]
    if activation.phase not in ("call", "loop"):
        return False  # it evaluates for the router: the step's own work is over
    return activation.stopped or (activation.loop is not None and activation.loop.stopping)


def resolve(state: Execution, live: OpenCommand, answer: Envelope, by: str) -> Execution:
    """What the command waited for is here: it becomes a new attempt. One that was told to stop stays parked until it has."""
    if (
        live.parked is None
        or live.parked.ready
        or state.status != "running"
        or being_stopped(state, live)
    ):
        return state
    state = forget(state, live.parked)
    resolved = replace(
        live,
        attempt=live.attempt + 1,
        journal=replace(live.journal, resolved=answer),
        parked=replace(live.parked, ready=True) if state.paused else None,
        resolved_by=by,
    )
    return _with(state, resolved)


def unpark_ready(state: Execution, by: str) -> Execution:
    commands = {
        key: replace(live, parked=None, resolved_by=by)
        if live.parked is not None and live.parked.ready and not being_stopped(state, live)
        else live
        for key, live in state.commands.items()
    }
    return replace(state, commands=commands)


def expected(state: Execution, call: str) -> bool:
    """Someone waits for this child, or an execution being cancelled must see it end."""
    return call in state.calls or any(
        c.parked is not None and c.parked.call == call for c in state.commands.values()
    )


def forget(state: Execution, wait: ParkedCommand) -> Execution:
    """Drop the timers of a wait that is over. A child that was asked for stays known until it has ended."""
    gone = timers_of(wait)
    if not gone:
        return state
    return replace(
        state, timers={timer: use for timer, use in state.timers.items() if timer not in gone}
    )


def timers_of(wait: ParkedCommand) -> tuple[TimerId, ...]:
    return tuple(timer for timer in (wait.timer, wait.timeout) if timer is not None)


def _command(use: TimerUse) -> Any:
    return use.subject


def _activation(use: TimerUse) -> Any:
    return use.subject


def _with(state: Execution, live: OpenCommand) -> Execution:
    return replace(state, commands={**state.commands, live.id: live})
