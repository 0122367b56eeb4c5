"""The outcome of a request: recorded, waiting in an inbox, or consumed without an effect."""

import asyncio
from uuid import uuid4

from noetl.engine.state import Execution
from noetl.log.inbox.port import Inbox
from noetl.model.ids import ExecutionId
from noetl.server.executions.views import RequestStatus
from noetl.server.streams.live import LiveUpdates, make_events_topic

RECORD_TIMEOUT_S = 1.0  # seconds that an answer waits for the request to be recorded
RECORD_POLL_S = 0.1  # seconds between reads while it waits without a wake-up


NO_EFFECT_REASONS = {
    "pause": "only a running execution can be paused",
    "resume": "it is not paused",
    "cancel": "it is being cancelled already",
    "released": "it is not quarantined",
}


def explain_no_effect(what: str, state: Execution | None) -> str:
    """Why a request had no effect, judged from the current state."""
    if state is None:
        return "its events cannot be read"
    if state.terminal:
        return f"the execution had ended: it is {state.status}"
    if what == "pause" and state.paused:
        return "it is paused already"
    status = "paused" if state.paused else state.status
    return f"{NO_EFFECT_REASONS[what]}; it is {status}"


def make_request_key(key: str | None) -> str:
    """The client's key, by which a repeat is recognised, or a new one."""
    return uuid4().hex if key is None else key


async def read_request_status(
    inbox: Inbox, execution_id: ExecutionId, message_key: str, event_key: str
) -> tuple[RequestStatus, int | None]:
    """The outcome of a request so far, and the seq of its event.

    The transaction that writes the event deletes the inbox row. So if the row is gone, the event is
    read once more.
    """
    event = await inbox.find_message(execution_id, event_key)
    if event.seq is None:
        message = await inbox.find_message(execution_id, message_key)
        if message.waiting:
            return "accepted", None
        event = await inbox.find_message(execution_id, event_key)
    if event.seq is None:
        return "refused", None
    return "recorded", event.seq


async def wait_for_request_status(
    inbox: Inbox, live: LiveUpdates, execution_id: ExecutionId, message_key: str, event_key: str
) -> tuple[RequestStatus, int | None]:
    """Wait a moment for the outcome: most requests are recorded within milliseconds."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + RECORD_TIMEOUT_S
    with live.watch(make_events_topic(execution_id)) as watch:
        while True:
            status, seq = await read_request_status(inbox, execution_id, message_key, event_key)
            left = deadline - loop.time()
            if status != "accepted" or live.closing or left <= 0:
                return status, seq
            await watch.wait_for_change(min(left, RECORD_POLL_S))
