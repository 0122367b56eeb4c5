"""What a worker says of a command by itself: that it has it, stopped it, or could not run it."""

from typing import Any

from noetl.model import events as e
from noetl.model.commands import Command
from noetl.model.envelope import failed
from noetl.model.errors import Failure
from noetl.model.exchange import Ack
from noetl.model.messages import Report
from noetl.pipeline import OutgoingEvent

REFUSED = "REPORT_REFUSED"


def report(command: Command, worker: str, sent: OutgoingEvent) -> Report:
    return Report(
        execution_id=command.execution_id,
        command_id=command.command_id,
        attempt=command.attempt,
        worker=worker,
        event=sent.event,
        refs=sent.refs,
    )


def announcements(command: Command, worker: str) -> tuple[OutgoingEvent, OutgoingEvent]:
    named = {**_of(command), "worker": worker}
    return OutgoingEvent(e.CommandClaimed(**named)), OutgoingEvent(e.CommandStarted(**named))


def cancelled(command: Command) -> OutgoingEvent:
    return OutgoingEvent(e.CommandCancelled(**_of(command)))


def returned(command: Command) -> OutgoingEvent:
    return OutgoingEvent(e.CommandReturned(**_of(command)))


def failure(command: Command, worker: str, reason: Failure) -> OutgoingEvent:
    named = {**_of(command), "worker": worker}
    if command.kind in ("evaluate", "plan"):
        return OutgoingEvent(e.ExpressionEvaluated(site=command.site or "", error=reason, **named))
    return OutgoingEvent(e.CommandFailed(result=failed(reason), **named))


def refusal(ack: Ack) -> Failure:
    """What a step fails with when a server will never take a report of it."""
    message = f"the report {ack.key} was refused: {ack.message or 'no reason given'}"
    return Failure(code=ack.code or REFUSED, kind="refused", message=message[:1_000])


def instead_of(refused: Report, ack: Ack) -> Report | None:
    """An ending that can never be recorded becomes a plain failure, once, so that its step does not hang."""
    event = refused.event
    if not isinstance(event, e.CommandCompleted | e.CommandFailed):
        return None
    if event.result.error is not None and event.result.error.kind == "refused":
        return None
    plain = e.CommandFailed(
        command_id=refused.command_id,
        attempt=refused.attempt,
        step=event.step,
        activation=event.activation,
        worker=refused.worker,
        result=failed(refusal(ack)),
    )
    return Report(
        execution_id=refused.execution_id,
        command_id=refused.command_id,
        attempt=refused.attempt,
        worker=refused.worker,
        event=plain,
    )


def _of(command: Command) -> dict[str, Any]:
    return {
        "command_id": command.command_id,
        "attempt": command.attempt,
        "step": command.step,
        "activation": command.activation,
    }
