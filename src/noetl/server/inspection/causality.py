"""Which event led to which, among the events of a part of the log. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from noetl.log.events.port import RecordedEvent
from noetl.model import events as e
from noetl.model.ids import ActivationId, CommandId

_ADMITTED_KEY = "admitted"  # causes of first steps name it with a number


@dataclass(slots=True)
class EventLinks:
    """By sequence number: the events that led to an event, and those that it led to."""

    causes: dict[int, list[int]] = field(default_factory=dict)
    led_to: dict[int, list[int]] = field(default_factory=dict)

    def add(self, seq: int, cause: int | None) -> None:
        if cause is not None:
            self.causes.setdefault(seq, []).append(cause)
            self.led_to.setdefault(cause, []).append(seq)


@dataclass(slots=True)
class _LastSeen:
    """The last events of each kind that may be a cause."""

    keys: dict[str, int] = field(default_factory=dict)
    commands: dict[CommandId, int] = field(default_factory=dict)  # issued, parked, queued again
    ends: dict[CommandId, int] = field(default_factory=dict)
    last_ends: dict[ActivationId, int] = field(default_factory=dict)
    entered: dict[ActivationId, int] = field(default_factory=dict)
    loops: dict[ActivationId, int] = field(default_factory=dict)
    outcomes: dict[ActivationId, int] = field(default_factory=dict)  # of the call or the loop
    exits: dict[ActivationId, int] = field(default_factory=dict)
    start: int | None = None
    last_routed: int | None = None


def link_events(events: Iterable[RecordedEvent]) -> EventLinks:
    """Link events in the order of the log. Causes that are not among them are left out."""
    links = EventLinks()
    seen = _LastSeen()
    for recorded in events:
        links.add(recorded.seq, _find_cause(seen, recorded.event))
        _remember(seen, recorded.seq, recorded.event)
    return links


def _find_cause(seen: _LastSeen, event: e.Event) -> int | None:
    match event:
        case e.WorkflowInitialized() | e.StepInherited() | e.CtxInherited() | e.StateRead():
            return seen.start
        case e.StepEnter():
            if event.cause.startswith(_ADMITTED_KEY):
                return seen.keys.get(_ADMITTED_KEY)
            return seen.keys.get(event.cause)
        case e.StepSkipped() | e.LoopStarted():
            return seen.last_ends.get(event.activation) or seen.entered.get(event.activation)
        case e.CommandIssued():
            return seen.loops.get(event.activation) or seen.entered.get(event.activation)
        case e.CallDone() | e.CallError() | e.SinkProcessed():
            return seen.ends.get(event.command_id or CommandId(""))
        case e.LoopDone():
            return seen.last_ends.get(event.activation) or seen.loops.get(event.activation)
        case e.StepExit():
            return seen.outcomes.get(event.activation)
        case e.NextEvaluated():
            return seen.exits.get(event.activation) or seen.outcomes.get(event.activation)
        case e.ChildStarted() | e.ChildEnded():
            return seen.keys.get(f"child:{event.call}:started")
        case e.PlaybookCompleted() | e.PlaybookFailed() | e.ExecutionCancelled():
            return seen.last_routed
        case _:
            command_id = getattr(event, "command_id", None)
            return None if command_id is None else seen.commands.get(command_id)


def _remember(seen: _LastSeen, seq: int, event: e.Event) -> None:
    seen.keys[event.key] = seq
    match event:
        case e.PlaybookInitialized():
            seen.start = seq
        case e.StepEnter():
            seen.entered[event.activation] = seq
        case e.LoopStarted():
            seen.loops[event.activation] = seq
        case e.CommandIssued() | e.CommandParked() | e.CommandReturned() | e.CommandReclaimed():
            seen.commands[event.command_id] = seq
        case (
            e.CommandCompleted()
            | e.CommandFailed()
            | e.CommandDead()
            | e.CommandCancelled()
            | e.ExpressionEvaluated()
        ):
            seen.ends[event.command_id] = seq
            seen.last_ends[event.activation] = seq
        case e.CallDone() | e.CallError() | e.LoopDone():
            seen.outcomes[event.activation] = seq
        case e.StepExit():
            seen.exits[event.activation] = seq
        case e.NextEvaluated() | e.StepSkipped() | e.ExecutionCancelling():
            seen.last_routed = seq
        case _:
            pass
