"""Routes for events from outside: the server accepts them at once, and shows their status later."""

from typing import Annotated, Any
from urllib.parse import quote

from msgspec import Meta

from noetl.model.ids import ExecutionId
from noetl.server.executions.views import EXAMPLE_ID, AskedView
from noetl.server.http.depends import Has, Who
from noetl.server.http.parameters import EXECUTION_ID_PATTERN, Key, QueryParameter
from noetl.server.http.routing import Routes
from noetl.server.http.structs import RequestBody, describe
from noetl.server.signals.service import MAX_BATCH_SIGNALS, OutsideSignal
from noetl.server.signals.views import BatchStatusView, EventStatusView, TakenView

routes = Routes("events")

OfExecution = Annotated[str, QueryParameter("execution id", pattern=EXECUTION_ID_PATTERN)]
OfRequest = Annotated[
    str, QueryParameter("what it was answered with, or its Idempotency-Key", max_length=200)
]


class OutsideEvent(RequestBody, frozen=True):
    name: Annotated[str, describe(example="approved", min_length=1, max_length=200)]
    payload: Annotated[Any, describe("at most 8 KB", example={"by": "ada"})] = None


class EventBody(OutsideEvent, frozen=True, kw_only=True):
    execution_id: Annotated[str, describe(example=EXAMPLE_ID, pattern=EXECUTION_ID_PATTERN)]


class BatchBody(RequestBody, frozen=True):
    execution_id: Annotated[str, describe(example=EXAMPLE_ID, pattern=EXECUTION_ID_PATTERN)]
    events: Annotated[list[OutsideEvent], Meta(min_length=1, max_length=MAX_BATCH_SIGNALS)]


@routes.post("/api/events", status=202)
async def post_event(
    body: EventBody,
    has: Has,
    who: Who,
    key: Key = None,
) -> TakenView:
    """Send an event from outside to an execution. It becomes a signal of its name."""
    event = OutsideSignal(body.name, body.payload)
    outcome = await has.signals.send(who, ExecutionId(body.execution_id), event, key)
    return _make_taken_view(outcome, f"/api/events/status?execution_id={outcome.execution_id}")


@routes.post("/api/events/batch", status=202)
async def post_events(
    body: BatchBody,
    has: Has,
    who: Who,
    key: Key = None,
) -> TakenView:
    """Send several events, in order, to one execution. All are checked before the first is
    accepted. The log gets one `signal.received` for each event and none for the batch; `status_url`
    tells the status of the batch."""
    events = [OutsideSignal(event.name, event.payload) for event in body.events]
    outcome = await has.signals.send_batch(who, ExecutionId(body.execution_id), events, key)
    url = f"/api/events/batch/status?execution_id={outcome.execution_id}&count={len(events)}"
    return _make_taken_view(outcome, url)


@routes.get("/api/events/status")
async def get_event_status(
    execution_id: OfExecution, request: OfRequest, has: Has, who: Who
) -> EventStatusView:
    """The status of an event from outside."""
    return await has.signals.read_signal_status(who, ExecutionId(execution_id), request)


@routes.get("/api/events/batch/status")
async def get_batch_status(
    execution_id: OfExecution,
    request: OfRequest,
    count: Annotated[int, QueryParameter("events in the batch", ge=1, le=MAX_BATCH_SIGNALS)],
    has: Has,
    who: Who,
) -> BatchStatusView:
    """The status of a batch, and how many of its events are recorded, accepted and refused."""
    return await has.signals.read_batch_status(who, ExecutionId(execution_id), request, count)


def _make_taken_view(outcome: AskedView, url: str) -> TakenView:
    return TakenView(
        execution_id=outcome.execution_id,
        request=outcome.request,
        status=outcome.status,
        status_url=f"{url}&request={quote(outcome.request, safe='')}",
    )
