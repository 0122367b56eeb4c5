"""`interpret` turns a message into the events that it records, or refuses it."""

from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from noetl.engine import inheriting, journals, lifecycle, playbook_state, waits
from noetl.engine.fold import evolve
from noetl.engine.state import Execution, PinnedPlaybook
from noetl.model import events as e
from noetl.model import messages as m
from noetl.model.commands import MAX_LOST_LEASES
from noetl.model.envelope import remove_rows
from noetl.model.ids import Micros
from noetl.model.playbook_state import StateValue
from noetl.playbook.durations import parse_micros

WORKER_EVENTS = e.list_types_with("worker")


class Refusal(Struct, frozen=True):
    """Why a message is not recorded.

    stale: another attempt has the command. known: it is recorded already. terminal: the execution
    has ended. unknown: the execution does not exist. full: too many signals wait.
    """

    reason: Literal["stale", "known", "terminal", "unknown", "full"]


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
        retried = inheriting.narrow_retry(retried, start.only)
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
    kinds = tuple(
        kind if kind.first is None else replace(kind, first=kind.first + shift)
        for kind in items.kinds
    )
    return replace(
        items, first=items.first + shift, first_failed=first_failed, shift=shift, kinds=kinds
    )


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
