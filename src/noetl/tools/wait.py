"""`wait`: a durable timer, a signal by name, or an approval. It never holds a worker."""

from datetime import UTC, datetime
from typing import Any

from noetl.model.approvals import approval_name
from noetl.model.errors import Failure
from noetl.model.ids import Micros
from noetl.playbook import durations
from noetl.tools.port import Call, Failed, Suspend


class Wait:
    kind = "wait"

    async def run(self, call: Call) -> Suspend | Failed:
        given = {name: value for name, value in call.config.items() if value is not None}
        try:
            return _suspend(given, call)
        except ValueError as error:
            return Failed(Failure(code="WAIT_INVALID", kind="config", message=str(error)))


def _suspend(given: dict[str, Any], call: Call) -> Suspend:
    if "duration" in given:
        return Suspend("time", delay=durations.micros(given["duration"]), timeout=call.timeout)
    if "until" in given:
        return Suspend("time", until=moment(given["until"]), timeout=call.timeout)
    if "signal" in given:
        return Suspend("signal", signal=str(given["signal"]), timeout=call.timeout)
    if "approval" in given:
        return Suspend("approval", signal=approval_name(call.identity.step), timeout=call.timeout)
    raise ValueError("wait takes one of duration, until, signal, approval; all of them are null")


def moment(text: Any) -> Micros:
    """An ISO 8601 moment; without a zone it is UTC."""
    try:
        found = datetime.fromisoformat(str(text))
    except ValueError:
        raise ValueError(f"{text!r} is not a moment: write 2030-01-31T12:00:00Z") from None
    found = found if found.tzinfo else found.replace(tzinfo=UTC)
    return round(found.timestamp() * 1_000_000)
