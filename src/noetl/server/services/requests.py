"""What became of a request: recorded, waiting in an inbox, or consumed without an effect."""

import asyncio
from dataclasses import dataclass
from typing import Literal
from uuid import uuid4

from noetl.engine.state import Execution
from noetl.log.port import EventLog
from noetl.model.ids import ExecutionId
from noetl.server.services.live import LiveUpdates, events_of

Fate = Literal["recorded", "accepted", "refused"]
PATIENCE = 1.0  # seconds that an answer waits for the request to be recorded
LOOK_EVERY = 0.1


@dataclass(frozen=True, slots=True)
class Asked:
    """`seq` is where it stands in the log: a read with `min_seq` of it shows the effect."""

    execution_id: ExecutionId
    request: str
    status: Fate
    seq: int | None = None
    reason: str | None = None  # why it was refused


NO_EFFECT = {
    "pause": "only a running execution can be paused",
    "resume": "it is not paused",
    "cancel": "it is being cancelled already",
    "released": "it is not quarantined",
}


def why_refused(what: str, state: Execution | None) -> str:
    """Why a request had no effect, from the state as it is now."""
    if state is None:
        return "its events cannot be read"
    if state.terminal:
        return f"the execution had ended: it is {state.status}"
    if what == "pause" and state.paused:
        return "it is paused already"
    return f"{NO_EFFECT[what]}; it is {'paused' if state.paused else state.status}"


def request_key(key: str | None) -> str:
    """The key of a request: what the client chose, so that a repeat is known, or a new one."""
    return key if key is not None else uuid4().hex


async def fate(
    log: EventLog, execution_id: ExecutionId, message_key: str, event_key: str
) -> tuple[Fate, int | None]:
    """The inbox row goes in the transaction that writes the event: look at the event again once the row is gone."""
    recorded = await log.received(execution_id, event_key)
    if recorded.seq is None and (await log.received(execution_id, message_key)).waiting:
        return "accepted", None
    if recorded.seq is None:
        recorded = await log.received(execution_id, event_key)
    return ("refused", None) if recorded.seq is None else ("recorded", recorded.seq)


async def settle(
    log: EventLog, live: LiveUpdates, execution_id: ExecutionId, message_key: str, event_key: str
) -> tuple[Fate, int | None]:
    """Its fate, waiting a moment for one: most requests are recorded within milliseconds."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + PATIENCE
    with live.watch(events_of(execution_id)) as watch:
        while True:
            status, seq = await fate(log, execution_id, message_key, event_key)
            if status != "accepted" or live.closing or (left := deadline - loop.time()) <= 0:
                return status, seq
            await watch.changed(min(left, LOOK_EVERY))
