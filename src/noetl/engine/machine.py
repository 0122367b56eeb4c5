"""The machine: `interpret` turns a message into events, `decide` says what follows from an event.

`advance` folds an event, decides, folds the decided events, and repeats until no event is left.
When its queue is empty, `settle` looks at the whole state (joins, the end of the execution). So
`settle` never decides from a state that lacks a decided event.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from noetl.engine import inheriting, journals, lifecycle, loops, playbook_state, steps, waits
from noetl.engine.expressions import Moment
from noetl.engine.fold import evolve
from noetl.engine.issuing import Decision, requeue
from noetl.engine.state import Activation, Execution, OpenCommand, PinnedPlaybook
from noetl.engine.unhandled import is_unhandled
from noetl.model import events as e
from noetl.model import messages as m
from noetl.model.commands import MAX_LOST_LEASES
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
from noetl.model.envelope import make_failed_envelope, remove_rows
from noetl.model.errors import Failure
from noetl.model.ids import Micros, call_id, timer_id
from noetl.model.playbook_state import StateValue
from noetl.playbook.children import asks_latest
from noetl.playbook.durations import parse_micros

WORKER_EVENTS = e.list_types_with("worker")
MAX_EVENTS_PER_MESSAGE = (
    30_000  # events that one message may lead to; more mean a cycle of steps without a wait
)


class Refusal(Struct, frozen=True):
    """Why a message is not recorded.

    stale: another attempt has the command. known: it is recorded already. terminal: the execution
    has ended. unknown: the execution does not exist. full: too many signals wait.
    """

    reason: Literal["stale", "known", "terminal", "unknown", "full"]


class Advance(Struct, frozen=True):
    state: Execution
    events: tuple[e.Event, ...]
    effects: tuple[Effect, ...]


# ---- messages ---------------------------------------------------------------------------


def interpret(
    pinned: PinnedPlaybook,
    state: Execution,
    message: m.Message,
    at: Micros,
    *,
    retried: Execution | None = None,
    stored: dict[str, StateValue] | None = None,
) -> tuple[e.Event, ...] | Refusal:
    """Turn a message into events. Time never goes back within an execution.

    `stored` is the playbook's state at the admission of the execution; None if this message does
    not admit it. `retried` is the ended execution that a start continues, rewound if the start
    names a step.
    """
    at = max(at, state.last_at)
    match message:
        case m.Start():
            return _interpret_start(pinned, state, message, at, retried, stored)
        case _ if state.status == "new":
            return Refusal("unknown")
        case _ if state.terminal:
            return Refusal("terminal")
        case m.Report():
            return _interpret_report(state, message, at)
        case m.LeaseLost():
            return _interpret_lease_lost(state, message, at)
        case m.Stopped():
            return _interpret_stopped(state, message, at)
        case m.TimerDue():
            if message.timer not in state.timers:
                return Refusal("known")
            return (e.TimerFired(at=at, timer=message.timer),)
        case m.Notice():
            if not waits.is_child_expected(state, message.event.call):
                return Refusal("known")
            return (replace(message.event, at=at),)
        case m.Admitted():
            if state.status != "pending":
                return Refusal("known")
            admitted = e.WorkflowInitialized(at=at)
            if stored is None:
                return (admitted,)
            return (*playbook_state.make_state_reads(pinned, state, stored, at), admitted)
        case _:
            return _interpret_request(pinned, state, message, at)


def _interpret_start(
    pinned: PinnedPlaybook,
    state: Execution,
    start: m.Start,
    at: Micros,
    retried: Execution | None,
    stored: dict[str, StateValue] | None,
) -> tuple[e.Event, ...] | Refusal:
    if state.status != "new":
        return Refusal("known")
    declared_timeout = pinned.plan.playbook.executor.spec.timeout
    timeout = parse_micros(declared_timeout) if declared_timeout is not None else None
    start_parts: list[tuple[e.StartAt, ...]] = [()]
    if retried is not None:
        start_parts = inheriting.split_starts(pinned.plan, retried)
    first = e.PlaybookInitialized(
        at=at,
        execution_id=start.execution_id,
        path=start.path,
        playbook=start.playbook,
        version=start.version,
        start_key=start.start_key,
        by=start.by,
        parent=start.parent,
        depth=start.depth,
        retry_of=start.retry_of,
        from_step=start.from_step,
        return_step=start.return_step,
        start_at=start_parts[0] or (e.StartAt(pinned.plan.entry_step),),
        timeout=timeout,
        pins=start.pins,
        workload_by_reference=start.workload_by_reference,
    )
    events: list[e.Event] = [first]
    if retried is not None:
        events += [
            e.ArrivalsInherited(at=at, start_at=part, part=number)
            for number, part in enumerate(start_parts[1:])
        ]
        events += inheriting.list_inherited(pinned.plan, retried, at)
        events += playbook_state.inherit_state(pinned, retried, at)
    if stored is None:
        return tuple(events)
    for event in events:
        state = evolve(state, event)
    return (*events, *playbook_state.make_state_reads(pinned, state, stored, at))


def _interpret_request(
    pinned: PinnedPlaybook,
    state: Execution,
    request: m.Request,
    at: Micros,
) -> tuple[e.Event, ...] | Refusal:
    match request:
        case m.Cancel():
            if state.status == "cancelling" and not lifecycle.has_nothing_live(state):
                return Refusal("known")
            if state.reason == request.reason:  # the final step of a cancelled execution runs
                return Refusal("known")
            return (e.ExecutionCancelling(at=at, reason=request.reason, by=request.by),)
        case m.Pause():
            if state.paused or state.status != "running":
                return Refusal("known")
            return (e.PlaybookPaused(at=at, request=request.request, by=request.by),)
        case m.Resume():
            if not state.paused:
                return Refusal("known")
            return (e.PlaybookResumed(at=at, request=request.request, by=request.by),)
        case m.Release():
            if state.quarantined is None:
                return Refusal("known")
            return (e.ExecutionReleased(at=at, request=request.request, by=request.by),)
        case m.Signal():
            if state.waiting_signals >= pinned.limits.signals:
                return Refusal("full")
            received = e.SignalReceived(
                at=at,
                name=request.name,
                request=request.request,
                payload=request.payload,
                by=request.by,
            )
            return (received,)
        case m.Start() | m.Admitted():
            return Refusal("known")


def _interpret_report(
    state: Execution, report: m.Report, at: Micros
) -> tuple[e.Event, ...] | Refusal:
    command = state.commands.get(report.command_id)
    if command is None or command.attempt != report.attempt or command.parked is not None:
        return Refusal("stale")
    if journals.has_journal_entry(command, report.event):
        return Refusal("known")
    if isinstance(report.event, e.CommandCancelled) and not waits.is_being_stopped(state, command):
        return Refusal("stale")
    event = replace(
        report.event,
        at=at,
        command_id=command.id,
        attempt=command.attempt,
        step=command.step,
        activation=command.activation,
    )
    if command.shift:
        items = getattr(event, "items", None)
        if items is not None:
            event = replace(event, items=_shift_items(items, command.shift))
    if type(event) in WORKER_EVENTS:
        event = replace(event, worker=report.worker)
    return (_drop_rows(event),)


def _drop_rows(event: e.Reported) -> e.Reported:
    """Remove lists and maps of a payload from the envelope, so that none gets into the log."""
    result = e.get_result(event)
    if result is None:
        return event
    context = remove_rows(result.context)
    if context is result.context:
        return event
    return replace(event, result=replace(result, context=context))


def _shift_items(items: e.Items, shift: int) -> e.Items:
    """The items with indexes counted from the first row of the loop, not of the frame."""
    first_failed = items.first_failed
    if first_failed is not None:
        first_failed += shift
    return replace(items, first=items.first + shift, first_failed=first_failed, shift=shift)


def _interpret_lease_lost(
    state: Execution, lost: m.LeaseLost, at: Micros
) -> tuple[e.Event, ...] | Refusal:
    command = state.commands.get(lost.command_id)
    if command is None or command.attempt != lost.attempt or command.parked is not None:
        return Refusal("known")
    common: dict[str, Any] = {
        "at": at,
        "command_id": command.id,
        "step": command.step,
        "activation": command.activation,
    }
    if waits.is_being_stopped(state, command):
        return (e.CommandCancelled(attempt=command.attempt, **common),)
    if command.lost + 1 >= MAX_LOST_LEASES:
        return (e.CommandDead(attempt=command.lost + 1, **common),)
    return (e.CommandReclaimed(attempt=command.attempt + 1, worker=lost.worker, **common),)


def _interpret_stopped(
    state: Execution, stopped: m.Stopped, at: Micros
) -> tuple[e.Event, ...] | Refusal:
    command = state.commands.get(stopped.command_id)
    if command is None:
        return Refusal("known")
    cancelled = e.CommandCancelled(
        at=at,
        command_id=command.id,
        attempt=command.attempt,
        step=command.step,
        activation=command.activation,
    )
    return (cancelled,)


def add_conflicts(
    state: Execution,
    initial_events: tuple[e.Event, ...],
    conflicts_found: dict[str, e.StateConflict],
    at: Micros,
) -> tuple[e.Event, ...]:
    """Add the conflicts that the last append found to the events of a message.

    Conflicts come before a report, because the report may write state. They come after the events
    that begin an execution, because those read values that may be newer.
    """
    begins = isinstance(
        initial_events[0], e.PlaybookInitialized | e.WorkflowInitialized | e.StateRead
    )
    if not begins:
        return (*playbook_state.list_new_conflicts(state, conflicts_found, at), *initial_events)
    for event in initial_events:
        state = evolve(state, event)
    return (*initial_events, *playbook_state.list_new_conflicts(state, conflicts_found, at))


# ---- decisions --------------------------------------------------------------------------


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


def advance(pinned: PinnedPlaybook, state: Execution, *initial_events: e.Event) -> Advance:
    """Fold and decide until nothing follows. Events are listed in the order of folding, which is
    the order of the log."""
    queue: deque[e.Event] = deque(initial_events)
    events: list[e.Event] = []
    effects: list[Effect] = []

    def collect(decided: Decision) -> None:
        for entry in decided:
            if isinstance(entry, e.Base):
                queue.append(entry)
            else:
                effects.append(entry)

    while queue:
        event = queue.popleft()
        before, state = state, evolve(state, event)
        events.append(event)
        if state.playbook_state is not before.playbook_state:
            effects.extend(playbook_state.list_state_effects(before, state, event))
        if len(events) == MAX_EVENTS_PER_MESSAGE and state.status == "running":
            queue.append(_make_runaway(event))
        if len(events) > 2 * MAX_EVENTS_PER_MESSAGE:
            raise RuntimeError(
                f"{event.type} of {state.execution_id} led to more than {2 * MAX_EVENTS_PER_MESSAGE} events"
            )
        moment = Moment(event.key, event.at)
        collect(decide(pinned, state, event, moment))
        if not queue:
            collect(lifecycle.settle(pinned, state, moment))
    return Advance(state, tuple(events), tuple(effects))


def _make_runaway(event: e.Event) -> e.ExecutionCancelling:
    message = (
        f"{MAX_EVENTS_PER_MESSAGE} events followed from one, and no step had anything to wait for:"
        " a cycle without an end?"
    )
    runaway = Failure(code="RUNAWAY", kind="runaway", message=message)
    return e.ExecutionCancelling(
        at=event.at,
        reason="failed",
        error=runaway,
        step=getattr(event, "step", None),
    )


def make_quarantined(
    state: Execution, error: str, cause: str, at: Micros
) -> e.ExecutionQuarantined:
    return e.ExecutionQuarantined(at=max(at, state.last_at), error=error[:1000], cause=cause)


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
