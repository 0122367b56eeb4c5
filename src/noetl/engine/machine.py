"""The machine: `interpret` turns a message into facts, `decide` says what follows from one, `advance` goes on until nothing does.

`advance` folds a fact, decides, folds what was decided, and so on; when the queue of facts is empty, `settle` looks at the state
as a whole (joins, the end), so that it never decides from a state that lacks a fact already made.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from noetl.engine import inheriting, journals, lifecycle, loops, playbook_state, steps, waits
from noetl.engine.fold import evolve
from noetl.engine.issuing import Made, requeue
from noetl.engine.sites import Moment
from noetl.engine.state import Activation, Execution, PinnedPlaybook
from noetl.engine.unhandled import is_unhandled
from noetl.model import events as e
from noetl.model import messages as m
from noetl.model.commands import MAX_LEASES
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
from noetl.model.envelope import failed, without_rows
from noetl.model.errors import Failure
from noetl.model.ids import Micros, call_id, timer_id
from noetl.model.playbook_state import StateValue
from noetl.playbook.children import asks_latest
from noetl.playbook.durations import micros

MANY = 30_000  # events one message may lead to: beyond it steps that wait for nobody go round in circles


class Refusal(Struct, frozen=True):
    """Nothing to record. stale: another attempt has the command; known: it is recorded already; terminal: it came after the
    end; unknown: there is no such thing; full: too many wait."""

    reason: Literal["stale", "known", "terminal", "unknown", "full"]


class Advance(Struct, frozen=True):
    state: Execution
    events: tuple[e.Event, ...]
    effects: tuple[Effect, ...]


# ---- messages ---------------------------------------------------------------------------


def interpret(
    fixed: PinnedPlaybook,
    state: Execution,
    message: m.Message,
    at: Micros,
    *,
    retried: Execution | None = None,
    stored: dict[str, StateValue] | None = None,
) -> tuple[e.Event, ...] | Refusal:
    """The facts a message becomes. Time never goes back within an execution. `stored`: the state that the playbook has when
    the execution is admitted; None: this message admits none. `retried`: the ended execution that a start goes on from, rewound
    if it names a step."""
    at = max(at, state.last_at)
    match message:
        case m.Start():
            return _start(fixed, state, message, at, retried, stored)
        case _ if state.status == "new":
            return Refusal("unknown")
        case _ if state.terminal:
            return Refusal("terminal")
        case m.Report():
            return _report(state, message, at)
        case m.LeaseLost():
            return _lease_lost(state, message, at)
        case m.Stopped():
            return _stopped(state, message, at)
        case m.TimerDue():
            return (
                (e.TimerFired(at=at, timer=message.timer),)
                if message.timer in state.timers
                else Refusal("known")
            )
        case m.Notice():
            return (
                (replace(message.event, at=at),)
                if waits.expected(state, message.event.call)
                else Refusal("known")
            )
        case m.Admitted():
            admitted = e.WorkflowInitialized(at=at)
            reads = playbook_state.read(fixed, state, stored, at) if stored is not None else ()
            return (*reads, admitted) if state.status == "pending" else Refusal("known")
        case _:
            return _request(fixed, state, message, at)


def _start(
    fixed: PinnedPlaybook,
    state: Execution,
    start: m.Start,
    at: Micros,
    retried: Execution | None,
    stored: dict[str, StateValue] | None,
) -> tuple[e.Event, ...] | Refusal:
    if state.status != "new":
        return Refusal("known")
    timeout = fixed.plan.playbook.executor.spec.timeout
    begin, *more = inheriting.start_parts(fixed.plan, retried) if retried is not None else [()]
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
        start_at=begin or (e.StartAt(fixed.plan.entry),),
        timeout=None if timeout is None else micros(timeout),
        pins=start.pins,
        workload_by_reference=start.workload_by_reference,
    )
    taken_over: list[e.Event] = []
    if retried is not None:
        taken_over += [
            e.ArrivalsInherited(at=at, start_at=part, part=number)
            for number, part in enumerate(more)
        ]
        taken_over += inheriting.inherited(fixed.plan, retried, at)
        taken_over += playbook_state.inherit(fixed, retried, at)
    if stored is None:
        return (first, *taken_over)
    known = state
    for event in (first, *taken_over):
        known = evolve(known, event)
    return (first, *taken_over, *playbook_state.read(fixed, known, stored, at))


def _request(
    fixed: PinnedPlaybook, state: Execution, request: m.Request, at: Micros
) -> tuple[e.Event, ...] | Refusal:
    match request:
        case m.Cancel():
            cancelling = e.ExecutionCancelling(at=at, reason=request.reason, by=request.by)
            stopping = state.status == "cancelling" and not lifecycle.nothing_left(state)
            known = stopping or state.reason == request.reason  # the final step of a cancelled one
            return Refusal("known") if known else (cancelling,)
        case m.Pause():
            idle = state.paused or state.status != "running"
            return (
                Refusal("known")
                if idle
                else (e.PlaybookPaused(at=at, request=request.request, by=request.by),)
            )
        case m.Resume():
            resumed = e.PlaybookResumed(at=at, request=request.request, by=request.by)
            return (resumed,) if state.paused else Refusal("known")
        case m.Release():
            released = e.ExecutionReleased(at=at, request=request.request, by=request.by)
            return (released,) if state.quarantined is not None else Refusal("known")
        case m.Signal():
            if state.waiting_signals >= fixed.limits.signals:
                return Refusal("full")
            sent = e.SignalReceived(
                at=at,
                name=request.name,
                request=request.request,
                payload=request.payload,
                by=request.by,
            )
            return (sent,)
        case m.Start() | m.Admitted():
            return Refusal("known")


def _report(state: Execution, report: m.Report, at: Micros) -> tuple[e.Event, ...] | Refusal:
    live = state.commands.get(report.command_id)
    if live is None or live.attempt != report.attempt or live.parked is not None:
        return Refusal("stale")
    if journals.knows(live, report.event):
        return Refusal("known")
    if isinstance(report.event, e.CommandCancelled) and not waits.being_stopped(state, live):
        return Refusal("stale")
    filled = replace(
        report.event,
        at=at,
        command_id=live.id,
        attempt=live.attempt,
        step=live.step,
        activation=live.activation,
    )
    items = getattr(filled, "items", None)
    if items is not None and live.shift:
        filled = replace(filled, items=_shifted(items, live.shift))
    filled = replace(filled, worker=report.worker) if hasattr(filled, "worker") else filled
    return (_without_rows(filled),)


def _without_rows(event: e.Reported) -> e.Reported:
    """Whatever a worker sends, no list or map of a payload gets into the log with its envelope."""
    result = getattr(event, "result", None)
    if result is None or (context := without_rows(result.context)) is result.context:
        return event
    return replace(event, result=replace(result, context=context))


def _shifted(items: e.Items, shift: int) -> e.Items:
    """Counted from the loop's first row instead of the frame's."""
    first_failed = None if items.first_failed is None else items.first_failed + shift
    return replace(items, first=items.first + shift, first_failed=first_failed, shift=shift)


def _lease_lost(state: Execution, lost: m.LeaseLost, at: Micros) -> tuple[e.Event, ...] | Refusal:
    live = state.commands.get(lost.command_id)
    if live is None or live.attempt != lost.attempt or live.parked is not None:
        return Refusal("known")
    where: dict[str, Any] = {
        "at": at,
        "command_id": live.id,
        "step": live.step,
        "activation": live.activation,
    }
    if waits.being_stopped(state, live):
        return (e.CommandCancelled(attempt=live.attempt, **where),)
    if live.lost + 1 >= MAX_LEASES:
        return (e.CommandDead(attempt=live.lost + 1, **where),)
    return (e.CommandReclaimed(attempt=live.attempt + 1, worker=lost.worker, **where),)


def _stopped(state: Execution, stopped: m.Stopped, at: Micros) -> tuple[e.Event, ...] | Refusal:
    live = state.commands.get(stopped.command_id)
    if live is None:
        return Refusal("known")
    ended = e.CommandCancelled(
        at=at, command_id=live.id, attempt=live.attempt, step=live.step, activation=live.activation
    )
    return (ended,)


def with_conflicts(
    state: Execution, given: tuple[e.Event, ...], found: dict[str, e.StateConflict], at: Micros
) -> tuple[e.Event, ...]:
    """The facts of a message with the conflicts that the last append found: before what was reported, which may write; after what
    is read when the execution begins, which may be newer."""
    begins = isinstance(given[0], e.PlaybookInitialized | e.WorkflowInitialized | e.StateRead)
    if not begins:
        return (*playbook_state.conflicts(state, found, at), *given)
    for event in given:
        state = evolve(state, event)
    return (*given, *playbook_state.conflicts(state, found, at))


# ---- decisions --------------------------------------------------------------------------


def decide(fixed: PinnedPlaybook, state: Execution, event: e.Event, moment: Moment) -> Made:
    """What follows from an event that the state already contains."""
    rule = RULES.get(type(event))
    return iter(()) if rule is None else rule(fixed, state, event, moment)


def advance(fixed: PinnedPlaybook, state: Execution, *given: e.Event) -> Advance:
    """Fold and decide until nothing follows. The events come in the order in which they were folded: the log's order."""
    queue: deque[e.Event] = deque(given)
    events: list[e.Event] = []
    effects: list[Effect] = []

    def take(made: Made) -> None:
        for thing in made:
            if isinstance(thing, e.Base):
                queue.append(thing)
            else:
                effects.append(thing)

    while queue:
        event = queue.popleft()
        before, state = state, evolve(state, event)
        events.append(event)
        if state.playbook_state is not before.playbook_state:
            effects.extend(playbook_state.effects(before, state, event))
        if len(events) == MANY and state.status == "running":
            queue.append(_circles(event))
        if len(events) > 2 * MANY:
            raise RuntimeError(
                f"{event.type} of {state.execution_id} led to more than {2 * MANY} events"
            )
        moment = Moment(event.key, event.at)
        take(decide(fixed, state, event, moment))
        if not queue:
            take(lifecycle.settle(fixed, state, moment))
    return Advance(state, tuple(events), tuple(effects))


def _circles(event: e.Event) -> e.ExecutionCancelling:
    message = f"{MANY} events followed from one, and no step had anything to wait for: a cycle without an end?"
    runaway = Failure(code="RUNAWAY", kind="runaway", message=message)
    return e.ExecutionCancelling(
        at=event.at, reason="failed", error=runaway, step=getattr(event, "step", None)
    )


def quarantine(state: Execution, error: str, cause: str, at: Micros) -> e.ExecutionQuarantined:
    return e.ExecutionQuarantined(at=max(at, state.last_at), error=error[:1000], cause=cause)


def _on(state: Execution, activation_id: Any) -> Activation | None:
    """The activation, unless the execution is being cancelled: then a report is recorded and routes nothing."""
    return state.activations.get(activation_id) if state.status == "running" else None


def _entered(fixed: PinnedPlaybook, state: Execution, event: e.Event, moment: Moment) -> Made:
    activation = _on(state, getattr(event, "activation", None))
    if activation is not None:
        yield from steps.proceed(fixed, state, activation, moment)


def _called(
    fixed: PinnedPlaybook,
    state: Execution,
    event: e.CallDone | e.CallError | e.LoopDone,
    moment: Moment,
) -> Made:
    if fixed.plan.steps[event.step].step.spec.timeout is not None:
        yield ClearTimer(timer_id(event.activation, "timeout"))
    yield from _entered(fixed, state, event, moment)


def _ended(
    fixed: PinnedPlaybook,
    state: Execution,
    event: e.CommandCompleted | e.CommandFailed,
    moment: Moment,
) -> Made:
    yield Finish(event.command_id)
    yield from loops.part(event)
    activation = _on(state, event.activation)
    if activation is None:
        return
    if activation.phase == "loop":
        yield from loops.go_on(fixed, state, activation, moment)
    else:
        yield from steps.called(state, activation, event, moment)


def _dead(fixed: PinnedPlaybook, state: Execution, event: e.CommandDead, moment: Moment) -> Made:
    yield Finish(event.command_id, "dead")
    activation = _on(state, event.activation)
    if activation is None:
        return
    if activation.phase == "loop":
        yield from loops.go_on(fixed, state, activation, moment)
    elif activation.broken is not None:
        yield from steps.proceed(fixed, state, activation, moment)
    elif activation.outcome is not None and activation.outcome.error is not None:
        yield steps.call_error(activation, activation.outcome.error, moment)


def _cancelled(
    fixed: PinnedPlaybook, state: Execution, event: e.CommandCancelled, moment: Moment
) -> Made:
    yield Finish(event.command_id, "cancelled")
    activation = _on(state, event.activation)
    if activation is None:
        return
    yield from lifecycle.cancel_children_of(state, event.command_id)
    if activation.phase == "loop":
        yield from loops.go_on(fixed, state, activation, moment)
    else:
        yield steps.call_error(activation, steps.stopped_by(fixed, activation), moment)


def _expression(
    fixed: PinnedPlaybook, state: Execution, event: e.ExpressionEvaluated, moment: Moment
) -> Made:
    yield Finish(event.command_id)
    yield from _entered(fixed, state, event, moment)


def _reclaimed(
    fixed: PinnedPlaybook, state: Execution, event: e.CommandReclaimed, moment: Moment
) -> Made:
    yield requeue(state.commands[event.command_id])


def _returned(
    fixed: PinnedPlaybook, state: Execution, event: e.CommandReturned, moment: Moment
) -> Made:
    live = state.commands[event.command_id]
    yield Park(live.id)
    yield Stop((live.id,)) if waits.being_stopped(state, live) else requeue(live)


def _parked(
    fixed: PinnedPlaybook, state: Execution, event: e.CommandParked, moment: Moment
) -> Made:
    live = state.commands[event.command_id]
    yield Park(live.id)
    if waits.being_stopped(state, live):
        yield Stop((live.id,))
        return
    if event.reason == "retry":
        yield requeue(live, moment.at + (event.delay or 0))
        return
    if live.parked is None:  # the signal it waits for was there already
        yield requeue(live)
        return
    if live.parked.timer is not None:
        yield SetTimer(live.parked.timer, waits.due_at(event))
    if live.parked.timeout is not None:
        yield SetTimer(live.parked.timeout, moment.at + (event.timeout or 0))
    if live.parked.call is not None and event.child is not None:
        yield _child(fixed, state, live.parked.call, event.child, moment)


def _child(
    fixed: PinnedPlaybook, state: Execution, call: str, request: e.ChildRequest, moment: Moment
) -> Effect:
    if state.depth + 1 > fixed.limits.depth:
        message = f"children are nested more than {fixed.limits.depth} deep: a playbook that calls itself?"
        answer = failed(Failure(code="RUNAWAY", kind="runaway", message=message))
        return Send(
            state.execution_id, m.Notice(event=e.ChildEnded(call=call, child=None, result=answer))
        )
    pinned = state.pins.get(request.path) if asks_latest(request.version) else None
    return StartChild(
        parent=e.Parent(state.execution_id, call, request.iter),
        path=request.path,
        version=request.version if pinned is None else str(pinned),
        workload=request.workload,
        reference=request.reference,
        return_step=request.return_step,
        depth=state.depth + 1,
        detached=not request.wait,
        pins=state.pins,
    )


def _resolved(fixed: PinnedPlaybook, state: Execution, event: e.Event, moment: Moment) -> Made:
    """Something a parked command waited for came: whichever command has an answer and is not parked any more goes back."""
    for live in _answered(state, event):
        yield requeue(live)
        for timer in (
            timer_id(live.id, f"wait:{live.attempt - 1}"),
            timer_id(live.id, f"timeout:{live.attempt - 1}"),
        ):
            yield ClearTimer(timer)


def _answered(state: Execution, event: e.Event) -> list[Any]:
    """Commands that this very event resolved: an answer, a new attempt, not running yet."""
    return [
        live
        for live in sorted(state.commands.values(), key=lambda live: live.order)
        if live.resolved_by == event.key and live.parked is None
    ]


def _timer(fixed: PinnedPlaybook, state: Execution, event: e.TimerFired, moment: Moment) -> Made:
    if event.timer == timer_id(state.execution_id, "execution"):
        if state.status in ("pending", "running"):
            limit = fixed.plan.playbook.executor.spec.timeout
            message = (
                f"the execution ran longer than its timeout of {limit}{_not_begun(state, moment)}"
            )
            late = Failure(code="TIMEOUT", kind="timeout", message=message)
            yield e.ExecutionCancelling(at=moment.at, reason="timeout", error=late)
        return
    stopped = [
        a
        for a in state.activations.values()
        if a.stopped and timer_id(a.id, "timeout") == event.timer
    ]
    for activation in stopped:
        yield from _step_timeout(fixed, state, activation, moment)
    if stopped:
        return
    for live in state.commands.values():
        if live.resolved_by == event.key:  # its child, if it waited for one, takes too long
            yield from lifecycle.cancel_children_of(state, live.id)
    yield from _resolved(fixed, state, event, moment)


def _not_begun(state: Execution, moment: Moment) -> str:
    """The step that has waited longest for a worker, if there is one: it may be why the execution took so long."""
    live = sorted(state.activations.values(), key=lambda activation: activation.order)
    waiting = [each for each in live if waits.nobody_took(state, each, moment.at)]
    return (
        f"; step {waiting[0].step} did not begin: {waits.no_worker(waiting[0])}" if waiting else ""
    )


def _step_timeout(
    fixed: PinnedPlaybook, state: Execution, activation: Activation, moment: Moment
) -> Made:
    """The backstop of a worker that did not enforce it: stop the step's commands, and with them their children."""
    if any(live.activation == activation.id for live in state.commands.values()):
        yield loops.stop(state, activation)
    elif activation.loop is not None:
        yield from loops.go_on(fixed, state, activation, moment)
    else:
        yield steps.call_error(activation, steps.stopped_by(fixed, activation), moment)


def _routed(
    fixed: PinnedPlaybook, state: Execution, event: e.NextEvaluated, moment: Moment
) -> Made:
    record = state.steps[event.step]
    error = (record.result.error if record.result is not None else None) or event.error
    unhandled = error is not None and not event.chosen
    final = state.final_done and fixed.plan.final == event.step
    fast = fixed.plan.steps[event.step].step.spec.policy.failure == "fail_fast"
    if unhandled and fast and not final and state.status == "running":
        yield e.ExecutionCancelling(at=moment.at, reason="failed", error=error, step=event.step)


def _skipped(fixed: PinnedPlaybook, state: Execution, event: e.StepSkipped, moment: Moment) -> Made:
    """Fail the execution if the skipped step should have handled a failure and no other step handles it."""
    for step in event.failed_origins:
        fast = fixed.plan.steps[step].step.spec.policy.failure == "fail_fast"
        if fast and state.status == "running" and not state.finished and is_unhandled(state, step):
            result = state.steps[step].result
            error = result.error if result is not None else None
            yield e.ExecutionCancelling(at=moment.at, reason="failed", error=error, step=step)
            return


def _cancelling(
    fixed: PinnedPlaybook, state: Execution, event: e.ExecutionCancelling, moment: Moment
) -> Made:
    yield from lifecycle.cancelling(state)


def _resumed(fixed: PinnedPlaybook, state: Execution, event: e.Event, moment: Moment) -> Made:
    """Everything that was held back goes on, oldest first."""
    yield from _resolved(fixed, state, event, moment)
    busy = {live.activation for live in state.commands.values()}
    for activation in sorted(state.activations.values(), key=lambda activation: activation.order):
        if activation.phase == "loop" or activation.id not in busy:
            yield from steps.proceed(fixed, state, activation, moment)


def _child_started(
    fixed: PinnedPlaybook, state: Execution, event: e.ChildStarted, moment: Moment
) -> Made:
    call = state.calls.get(event.call)
    unwanted = state.status == "cancelling" or (
        call is not None and call.command not in state.commands
    )
    if call is not None and unwanted:
        yield lifecycle.cancel_child(state, event.child)
    yield from _resolved(fixed, state, event, moment)


def _stop_if_unwritten(state: Execution, activation_id: Any) -> Made:
    """What the entry assigns to state was refused: nothing after it may run."""
    activation = _on(state, activation_id)
    if activation is None:
        return
    refused = activation.unwritten or (activation.loop is not None and activation.loop.broken)
    if refused:
        yield loops.stop(state, activation)


def _retry_started(
    fixed: PinnedPlaybook, state: Execution, event: e.RetryStarted, moment: Moment
) -> Made:
    yield from _stop_if_unwritten(state, event.activation)


def _task_done(fixed: PinnedPlaybook, state: Execution, event: e.TaskDone, moment: Moment) -> Made:
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


def _progress(
    fixed: PinnedPlaybook, state: Execution, event: e.CommandProgress, moment: Moment
) -> Made:
    yield from loops.part(event)
    activation = _on(state, event.activation)
    if activation is not None and activation.loop is not None and activation.loop.stopping:
        yield loops.stop(state, activation)


def _page(fixed: PinnedPlaybook, state: Execution, event: e.CallPage, moment: Moment) -> Made:
    if event.result.reference is not None:
        yield AddPart(
            call_id(event.command_id, event.task, event.run), event.page, 1, event.result.reference
        )
    yield from _stop_if_unwritten(state, event.activation)


Rule = Callable[[PinnedPlaybook, Execution, Any, Moment], Made]

RULES: dict[type, Rule] = {
    e.PlaybookInitialized: lifecycle.begin,
    e.PlaybookResumed: _resumed,
    e.ExecutionReleased: _resumed,
    e.ExecutionCancelling: _cancelling,
    e.StepEnter: _entered,
    e.CallDone: _called,
    e.CallError: _called,
    e.StepExit: _entered,
    e.LoopStarted: _entered,
    e.LoopDone: _called,
    e.ExpressionEvaluated: _expression,
    e.NextEvaluated: _routed,
    e.StepSkipped: _skipped,
    e.TimerFired: _timer,
    e.SignalReceived: _resolved,
    e.ChildStarted: _child_started,
    e.ChildEnded: _resolved,
    e.CommandCompleted: _ended,
    e.CommandFailed: _ended,
    e.CommandParked: _parked,
    e.CommandReturned: _returned,
    e.CommandReclaimed: _reclaimed,
    e.CommandDead: _dead,
    e.CommandCancelled: _cancelled,
    e.TaskDone: _task_done,
    e.CallPage: _page,
    e.RetryStarted: _retry_started,
    e.CommandProgress: _progress,
}
