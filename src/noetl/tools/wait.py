"""`wait`: waits for a durable timer, a named signal or an approval, without a worker."""

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
        config = {name: value for name, value in call.config.items() if value is not None}
        try:
            return _make_suspend(config, call)
        except ValueError as error:
            return Failed(Failure(code="WAIT_INVALID", kind="config", message=str(error)))


def _make_suspend(config: dict[str, Any], call: Call) -> Suspend:
    if "duration" in config:
        delay = durations.parse_micros(config["duration"])
        return Suspend("time", delay=delay, timeout=call.timeout)
    if "until" in config:
        until = parse_time(config["until"])
        return Suspend("time", until=until, timeout=call.timeout)
    if "signal" in config:
        signal = str(config["signal"])
        return Suspend("signal", signal=signal, timeout=call.timeout)
    if "approval" in config:
        signal = approval_name(call.identity.step)
        question = config["approval"]
        return Suspend("approval", signal=signal, timeout=call.timeout, question=question)
    raise ValueError("wait takes one of duration, until, signal, approval; all of them are null")


def parse_time(text: Any) -> Micros:
    """Parse an ISO 8601 time. A time without a zone is UTC."""
    try:
        time = datetime.fromisoformat(str(text))
    except ValueError:
        raise ValueError(f"{text!r} is not a moment: write 2030-01-31T12:00:00Z") from None
    if not time.tzinfo:
        time = time.replace(tzinfo=UTC)
    return round(time.timestamp() * 1_000_000)
