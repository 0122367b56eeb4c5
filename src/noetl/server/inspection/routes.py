"""Routes that show the inside of an execution."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Any, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from noetl.model.event_groups import EventGroup
from noetl.model.ids import ExecutionId, Micros
from noetl.server.executions.filters import parse_moment
from noetl.server.executions.older_names import check_event_types
from noetl.server.http.depends import Has, Now, Who
from noetl.server.http.parameters import (
    AfterSeq,
    HeaderParameter,
    Id,
    MinSeq,
    PathParameter,
    QueryParameter,
)
from noetl.server.http.routing import Routes
from noetl.server.inspection.event_pages import EventFilter
from noetl.server.inspection.views import (
    ExplanationView,
    PageView,
    RunsView,
    TimelineView,
    ToldEventsView,
)
from noetl.server.inspection.watching import WatchMessage
from noetl.server.streams.routes import EventStream, encode_message, get_readers

routes = Routes("inspection")

WATCH_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "server-sent events",
        "content": {
            "text/event-stream": {
                "example": 'id: 7\nevent: delta\ndata: {"seq": 7, "status": "running"}\n\n'
            }
        },
    }
}

LAST_SEQ = 1 << 62
MAX_TIMELINE_BUCKETS = 1_000
At = Annotated[
    int | None,
    QueryParameter(
        "as of the last event at or before this `seq`; else as of now", ge=1, le=LAST_SEQ
    ),
]
StepName = Annotated[str, PathParameter(max_length=200, pattern=r"^[^\x00-\x1f\x7f]+\Z")]
OfStep = Annotated[
    str | None, QueryParameter("of this step only", max_length=200, pattern=r"^[^\x00-\x1f\x7f]+\Z")
]
MOMENT = "a time, or how long ago: `2026-01-31T08:00:00Z`, `5m`"


@routes.get("/api/executions/{execution_id}/view")
async def view_execution(
    execution_id: Id,
    has: Has,
    who: Who,
    now: Now,
    at: At = None,
    moment: Annotated[
        str | None,
        QueryParameter(
            f"instead of `at`: as of the last event until then; {MOMENT}", max_length=100
        ),
    ] = None,
    number: Annotated[
        int | None,
        QueryParameter(
            "instead of `at`: as of the event with this number; the first one has number 1",
            ge=1,
            le=LAST_SEQ,
        ),
    ] = None,
) -> PageView:
    """An execution as its page shows it, as of now or as of any of its events. At most 64 KB; what
    is left out is said."""
    return await has.inspection.get_page(
        who, ExecutionId(execution_id), at, _parse_moment("moment", moment, now), number
    )


@routes.get("/api/executions/{execution_id}/timeline")
async def get_timeline(
    execution_id: Id,
    has: Has,
    who: Who,
    now: Now,
    from_: Annotated[
        str | None,
        QueryParameter(f"the beginning of the window, {MOMENT}", alias="from", max_length=100),
    ] = None,
    to: Annotated[
        str | None, QueryParameter("the end of the window, as `from`", max_length=100)
    ] = None,
    buckets: Annotated[
        int, QueryParameter("how many per step, at most", ge=1, le=MAX_TIMELINE_BUCKETS)
    ] = 512,
    step: OfStep = None,
) -> TimelineView:
    """What happened when, per step. A window of at most 10 000 events also has a span per attempt of
    a command; a longer one says where to look closer."""
    return await has.inspection.get_timeline(
        who,
        ExecutionId(execution_id),
        _parse_moment("from", from_, now),
        _parse_moment("to", to, now),
        buckets,
        step,
    )


@routes.get("/api/executions/{execution_id}/events")
async def list_events(
    execution_id: Id,
    has: Has,
    who: Who,
    after: AfterSeq = 0,
    before: Annotated[
        int | None,
        QueryParameter("the last events before this `seq`, instead of `after`", ge=1, le=LAST_SEQ),
    ] = None,
    number: Annotated[
        int | None,
        QueryParameter(
            "from the event with this number on, instead of `after`; the first one has number 1",
            ge=1,
            le=LAST_SEQ,
        ),
    ] = None,
    limit: Annotated[int, QueryParameter("how many at most", ge=1, le=1000)] = 500,
    types: Annotated[str, QueryParameter("names, separated by commas", max_length=1000)] = "",
    group: Annotated[
        EventGroup | None, QueryParameter("events of one group, found without reading the others")
    ] = None,
    step: OfStep = None,
    text: Annotated[
        str | None, QueryParameter("a text in the event, in any case", min_length=1, max_length=200)
    ] = None,
    names: Annotated[
        Literal["today", "older"], QueryParameter("older: names of the older documents")
    ] = "today",
    min_seq: MinSeq = None,
) -> ToldEventsView:
    """Events in the order of the log, each with a line that says what happened. One request looks at
    10 000 events at most, so a page with filters may hold fewer than `limit`: go on at `next`."""
    wanted = EventFilter(
        types=frozenset(filter(None, types.split(","))),
        group=group,
        step=step,
        text=text,
        older=names == "older",
    )
    check_event_types(wanted.types, wanted.older)
    if min_seq is not None:
        await has.executions.wait_for_event(who, ExecutionId(execution_id), min_seq)
    return await has.inspection.list_events(
        who,
        ExecutionId(execution_id),
        wanted,
        after=after,
        before=before,
        number=number,
        limit=limit,
    )


@routes.get("/api/executions/{execution_id}/explain/{step}")
async def explain_step(
    execution_id: Id,
    step: StepName,
    has: Has,
    who: Who,
    at: At = None,
    run: Annotated[
        int | None, QueryParameter("as of the end of this run of the step", ge=1, le=LAST_SEQ)
    ] = None,
) -> ExplanationView:
    """Why the step ran, did not run, or waits: causes with the values that were seen, the event and
    the line of the playbook."""
    return await has.inspection.explain(who, ExecutionId(execution_id), step, at, run)


@routes.get("/api/executions/{execution_id}/steps/{step}/runs")
async def list_runs(
    execution_id: Id,
    step: StepName,
    has: Has,
    who: Who,
    before: Annotated[int | None, QueryParameter("runs before this one", ge=1, le=LAST_SEQ)] = None,
    limit: Annotated[int, QueryParameter("how many at most", ge=1, le=20)] = 10,
) -> RunsView:
    """The runs of a step, newest first, with the attempts of their commands. One request reads
    2 000 events at most."""
    return await has.inspection.list_runs(who, ExecutionId(execution_id), step, before, limit)


@routes.get("/api/executions/{execution_id}/watch", responses=WATCH_RESPONSES)
async def watch_execution(
    request: Request,
    execution_id: Id,
    has: Has,
    who: Who,
    after: AfterSeq = 0,
    last_event_id: Annotated[int | None, HeaderParameter(ge=0, le=LAST_SEQ)] = None,
) -> Response:
    """The page of an execution, live: `view` (the whole page, with `logs_part`), then `delta` (what
    has changed since, at most four a second). When much has changed, or the execution has ended, a
    `view` comes instead; the last message is `end`. A reader that has seen the event `after` (or
    Last-Event-ID), and nothing has happened since, gets no `view`. 204: there will be no more."""
    start = after if last_event_id is None else last_event_id
    if await has.inspection.has_ended_before(who, ExecutionId(execution_id), start):
        return Response(status_code=204)
    readers = get_readers(request)
    messages = has.inspection.watch(who, ExecutionId(execution_id), start)
    return EventStream(_encode_messages(messages), readers)


async def _encode_messages(
    messages: AsyncGenerator[WatchMessage | None, None],
) -> AsyncGenerator[bytes, None]:
    async with aclosing(messages):
        async for message in messages:
            if message is None:
                yield b":\n\n"
            else:
                yield encode_message(msgspec.Raw(message.data), message.kind, message.seq)


def _parse_moment(name: str, text: str | None, now: Micros) -> Micros | None:
    return None if text is None else parse_moment(name, text, now)
