"""Events from outside: taken at once, told of later."""

from typing import Annotated, Any
from urllib.parse import quote

from fastapi import Query
from pydantic import Field

from noetl.model.ids import ExecutionId
from noetl.server.api.bodies import Key, RequestBody, View, router
from noetl.server.api.depends import Has, Who
from noetl.server.api.executions import ID
from noetl.server.services.requests import Asked, Fate
from noetl.server.services.signals import MOST, Outside

routes = router("events")

OfExecution = Annotated[str, Query(pattern=r"^[1-9][0-9]{0,18}$", description="execution id")]
OfRequest = Annotated[
    str, Query(max_length=200, description="what it was answered with, or its Idempotency-Key")
]


class OutsideEvent(RequestBody):
    name: str = Field(min_length=1, max_length=200, examples=["approved"])
    payload: Any = Field(default=None, examples=[{"by": "ada"}], description="at most 8 KB")


class EventBody(OutsideEvent):
    execution_id: str = Field(pattern=r"^[1-9][0-9]{0,18}$", examples=[ID])


class BatchBody(RequestBody):
    execution_id: str = Field(pattern=r"^[1-9][0-9]{0,18}$", examples=[ID])
    events: list[OutsideEvent] = Field(min_length=1, max_length=MOST)


class TakenView(View):
    execution_id: str
    request: str = Field(description="its key: send it as Idempotency-Key to repeat")
    status: Fate
    status_url: str


class EventStatusView(View):
    execution_id: str
    request: str
    status: Fate = Field(
        description="accepted: not recorded yet; refused: unknown, or the execution did not take it"
    )
    seq: int | None


class BatchStatusView(View):
    execution_id: str
    request: str
    status: Fate
    count: int
    recorded: int
    accepted: int
    refused: int


@routes.post("/api/events", status_code=202)
async def post_event(body: EventBody, has: Has, who: Who, key: Key = None) -> TakenView:
    """An event from outside becomes a signal of its name."""
    asked = await has.signals.send(
        who, ExecutionId(body.execution_id), Outside(body.name, body.payload), key
    )
    return _taken(asked, f"/api/events/status?execution_id={asked.execution_id}")


@routes.post("/api/events/batch", status_code=202)
async def post_events(body: BatchBody, has: Has, who: Who, key: Key = None) -> TakenView:
    """Several, in order, to one execution. All are checked before the first is taken. The log has one `signal.received` for each
    and none for the batch: ask for its status."""
    events = [Outside(each.name, each.payload) for each in body.events]
    asked = await has.signals.send_batch(who, ExecutionId(body.execution_id), events, key)
    return _taken(
        asked, f"/api/events/batch/status?execution_id={asked.execution_id}&count={len(events)}"
    )


@routes.get("/api/events/status")
async def get_event_status(
    execution_id: OfExecution, request: OfRequest, has: Has, who: Who
) -> EventStatusView:
    """What became of an event from outside."""
    found = await has.signals.status(who, ExecutionId(execution_id), request)
    return EventStatusView(
        execution_id=found.execution_id, request=found.request, status=found.status, seq=found.seq
    )


@routes.get("/api/events/batch/status")
async def get_batch_status(
    execution_id: OfExecution,
    request: OfRequest,
    count: Annotated[int, Query(ge=1, le=MOST, description="events in the batch")],
    has: Has,
    who: Who,
) -> BatchStatusView:
    """What became of a batch, and of how many of its events."""
    found = await has.signals.batch_status(who, ExecutionId(execution_id), request, count)
    return BatchStatusView(
        execution_id=found.execution_id,
        request=found.request,
        status=found.status,
        count=found.count,
        recorded=found.recorded,
        accepted=found.accepted,
        refused=found.refused,
    )


def _taken(asked: Asked, url: str) -> TakenView:
    return TakenView(
        execution_id=asked.execution_id,
        request=asked.request,
        status=asked.status,
        status_url=f"{url}&request={quote(asked.request, safe='')}",
    )
