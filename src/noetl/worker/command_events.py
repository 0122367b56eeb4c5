"""Events of a worker about a command: it claimed, started, stopped or returned it, or could not run
it."""

from typing import Any

from noetl.model import events as e
from noetl.model.commands import Command
from noetl.model.envelope import make_failed_envelope
from noetl.model.errors import Failure
from noetl.model.exchange import Ack
from noetl.model.messages import Report
from noetl.pipeline.environment import OutgoingEvent

DEFAULT_REFUSAL_CODE = "REPORT_REFUSED"


def make_command_report(command: Command, worker: str, sent: OutgoingEvent) -> Report:
    return Report(
        execution_id=command.execution_id,
        command_id=command.command_id,
        attempt=command.attempt,
        worker=worker,
        event=sent.event,
        refs=sent.refs,
    )


def make_announcements(command: Command, worker: str) -> tuple[OutgoingEvent, OutgoingEvent]:
    fields = {**_command_fields(command), "worker": worker}
    return OutgoingEvent(e.CommandClaimed(**fields)), OutgoingEvent(e.CommandStarted(**fields))


def cancelled_event(command: Command) -> OutgoingEvent:
    return OutgoingEvent(e.CommandCancelled(**_command_fields(command)))


def returned_event(command: Command) -> OutgoingEvent:
    return OutgoingEvent(e.CommandReturned(**_command_fields(command)))


def failure_event(command: Command, worker: str, reason: Failure) -> OutgoingEvent:
    fields = {**_command_fields(command), "worker": worker}
    if command.kind in ("evaluate", "plan"):
        return OutgoingEvent(
            e.ExpressionEvaluated(
                site=command.site or "",
                error=reason,
                **fields,
            )
        )
    return OutgoingEvent(e.CommandFailed(result=make_failed_envelope(reason), **fields))


def refusal_failure(ack: Ack) -> Failure:
    """The failure of a step if a server will never accept a report of it."""
    message = f"the report {ack.key} was refused: {ack.message or 'no reason given'}"
    return Failure(code=ack.code or DEFAULT_REFUSAL_CODE, kind="refused", message=message[:1_000])


def replace_refused(refused: Report, ack: Ack) -> Report | None:
    """A plain failure in place of an ending that a server will never record, so that the step does
    not hang. None if the refused report is such a failure already, or no ending."""
    event = refused.event
    if not isinstance(event, e.CommandCompleted | e.CommandFailed):
        return None
    if event.result.error is not None and event.result.error.kind == "refused":
        return None
    failure_event = e.CommandFailed(
        command_id=refused.command_id,
        attempt=refused.attempt,
        step=event.step,
        activation=event.activation,
        worker=refused.worker,
        result=make_failed_envelope(refusal_failure(ack)),
    )
    return Report(
        execution_id=refused.execution_id,
        command_id=refused.command_id,
        attempt=refused.attempt,
        worker=refused.worker,
        event=failure_event,
    )


def _command_fields(command: Command) -> dict[str, Any]:
    return {
        "command_id": command.command_id,
        "attempt": command.attempt,
        "step": command.step,
        "activation": command.activation,
    }
