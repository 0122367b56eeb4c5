"""Routes for step logs: JSON lines, a page at a time, or live."""

from typing import Annotated, Any

import msgspec
from fastapi import Header, Query, Request, Response

from noetl.log.port import LogPart
from noetl.model.ids import ExecutionId
from noetl.server.api.bodies import Id, router
from noetl.server.api.depends import Has, Who
from noetl.server.api.streams import EventStream, message, readers_of, told
from noetl.server.services.logs import lines

routes = router("logs")
LINES = "application/x-ndjson"
EXAMPLE = (
    '{"part": 1, "step": "greet", "command_id": "5f…", "attempt": 1, "seq": 1, "at": "2026-01-02T03:04:05.678901Z", '
    '"task": "task_0", "item": null, "stream": "stdout", "line": "hello"}'
)
PAGE: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "One line printed per line. `part` of the last one is the `after` of the next page; an empty page: "
        "that was all so far. Within an attempt `seq` grows; the stream `noetl` says what was left out.",
        "content": {LINES: {"example": EXAMPLE}},
    }
}
LIVE: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "server-sent events: `lines`, a list of lines each; `end` after the last",
        "content": {
            "text/event-stream": {"example": f"id: 1\nevent: lines\ndata: [{EXAMPLE}]\n\n"}
        },
    }
}

OfStep = Annotated[str | None, Query(max_length=200, description="of this step only")]
After = Annotated[int, Query(ge=0, le=1 << 62, description="the part after which to go on")]


@routes.get("/api/executions/{execution_id}/logs", response_class=Response, responses=PAGE)
async def get_logs(
    execution_id: Id, has: Has, who: Who, step: OfStep = None, after: After = 0
) -> Response:
    """The lines that its steps printed, in the order they came."""
    page = await has.logs.page(who, ExecutionId(execution_id), step, after)
    body = bytearray()
    for part in page:
        for line in lines(part):
            body += msgspec.json.encode(line) + b"\n"
    return Response(bytes(body), media_type=LINES)


@routes.get("/api/executions/{execution_id}/logs/stream", response_class=Response, responses=LIVE)
async def stream_logs(
    request: Request,
    execution_id: Id,
    has: Has,
    who: Who,
    step: OfStep = None,
    after: After = 0,
    last_event_id: Annotated[int | None, Header(ge=0, le=1 << 62)] = None,
) -> Response:
    """Lines after `after` (or Last-Event-ID), live. 204: there will be no more."""
    start = after if last_event_id is None else last_event_id
    if await has.logs.over(who, ExecutionId(execution_id), step, start):
        return Response(status_code=204)
    readers = readers_of(request)
    pages = has.logs.follow(who, ExecutionId(execution_id), step, start)

    return EventStream(told(pages, _part, execution_id), readers)


def _part(part: LogPart) -> bytes:
    return message(list(lines(part)), "lines", part.number)
