"""Routes for step logs: JSON lines, a page at a time, or live."""

from typing import Annotated, Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from noetl.log.step_logs.port import LogPart
from noetl.model.ids import CommandId, ExecutionId
from noetl.server.http.depends import Has, Who
from noetl.server.http.parameters import HeaderParameter, Id, QueryParameter
from noetl.server.http.routing import Routes
from noetl.server.logs.search import LineFilter
from noetl.server.logs.service import decode_lines
from noetl.server.streams.routes import EventStream, encode_message, encode_pages, get_readers

routes = Routes("logs")
LINES_TYPE = "application/x-ndjson"
LINE_EXAMPLE = (
    '{"part": 1, "step": "greet", "command_id": "5f…", "attempt": 1, "seq": 1, "at": "2026-01-02T03:04:05.678901Z", '
    '"task": "task_0", "item": null, "stream": "stdout", "line": "hello"}'
)
PAGE_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "One line printed per line. `part` of the last one is the `after` of the next page; an empty page: "
        "that was all so far. Within an attempt `seq` grows; the stream `noetl` says what was left out.",
        "content": {LINES_TYPE: {"example": LINE_EXAMPLE}},
    }
}
LIVE_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "server-sent events: `lines`, a list of lines each; `end` after the last",
        "content": {
            "text/event-stream": {"example": f"id: 1\nevent: lines\ndata: [{LINE_EXAMPLE}]\n\n"}
        },
    }
}

OfStep = Annotated[str | None, QueryParameter("of this step only", max_length=200)]
After = Annotated[int, QueryParameter("the part after which to go on", ge=0, le=1 << 62)]


@routes.get("/api/executions/{execution_id}/logs", responses=PAGE_RESPONSES)
async def get_logs(
    execution_id: Id,
    has: Has,
    who: Who,
    step: OfStep = None,
    after: After = 0,
    command_id: Annotated[
        str | None, QueryParameter("of this command only", pattern=r"^[0-9a-f]{1,64}\Z")
    ] = None,
    item: Annotated[
        int | None, QueryParameter("of this item of a loop only, from 0", ge=0, le=1 << 53)
    ] = None,
    text: Annotated[
        str | None, QueryParameter("only lines that have this text", max_length=200)
    ] = None,
    tail: Annotated[
        int | None, QueryParameter("only the last lines, so many at most", ge=1, le=1000)
    ] = None,
) -> Response:
    """The lines that its steps printed, in the order they came. With `tail`, the last ones of the
    newest parts, about a megabyte."""
    wanted = LineFilter(
        step=step,
        command_id=None if command_id is None else CommandId(command_id),
        item=item,
        text=text or None,
    )
    execution = ExecutionId(execution_id)
    if tail is None:
        lines = await has.log_search.list_lines(who, execution, wanted, after)
    else:
        lines = await has.log_search.read_tail(who, execution, wanted, tail)
    body = bytearray()
    for line in lines:
        body += msgspec.json.encode(line) + b"\n"
    return Response(bytes(body), media_type=LINES_TYPE)


@routes.get("/api/executions/{execution_id}/logs/stream", responses=LIVE_RESPONSES)
async def stream_logs(
    request: Request,
    execution_id: Id,
    has: Has,
    who: Who,
    step: OfStep = None,
    after: After = 0,
    last_event_id: Annotated[int | None, HeaderParameter(ge=0, le=1 << 62)] = None,
) -> Response:
    """Lines after `after` (or Last-Event-ID), live. 204: there will be no more."""
    start = after if last_event_id is None else last_event_id
    if await has.logs.is_complete(who, ExecutionId(execution_id), step, start):
        return Response(status_code=204)
    readers = get_readers(request)
    pages = has.logs.follow(who, ExecutionId(execution_id), step, start)

    return EventStream(encode_pages(pages, _encode_part, execution_id), readers)


def _encode_part(part: LogPart) -> bytes:
    return encode_message(list(decode_lines(part)), "lines", part.number)
