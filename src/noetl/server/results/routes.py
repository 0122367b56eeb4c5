"""Routes for results of steps: show one, download its data, pin it, trace its sources."""

import base64
import re
from collections.abc import AsyncGenerator
from typing import Annotated, Any, Literal

from starlette.responses import Response, StreamingResponse

from noetl.model.errors import InvalidInput
from noetl.model.ids import ExecutionId
from noetl.model.previews import Download
from noetl.server.executions.routes import Name
from noetl.server.http.depends import Has, Who
from noetl.server.http.parameters import EXECUTION_ID_PATTERN, HeaderParameter, Id, QueryParameter
from noetl.server.http.routing import Routes
from noetl.server.results.lineage import DEFAULT_TRACE_DEPTH, DEFAULT_TRACE_NODES, MAX_TRACE_DEPTH
from noetl.server.results.usage import DEFAULT_USAGE_PAGE as USAGE_PAGE
from noetl.server.results.usage import MAX_USAGE_PAGE
from noetl.server.results.views import PinView, ResultView, TraceView, UsageView, UsedView

routes = Routes("results")
_RANGE = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})", re.ASCII)
DATA_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "the data; its `Content-Type` says in which format",
        "content": {"*/*": {}},
    },
    206: {
        "description": "the bytes that `Range` asks for; 416 when there are none there",
        "content": {"*/*": {}},
    },
}
HEAD_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {"description": "the headers, and no data", "content": {"*/*": {}}}
}
Format = Annotated[
    Literal["parquet", "csv", "json", "jsonl"] | None,
    QueryParameter("without one: as it is stored"),
]
Start = Annotated[int, QueryParameter("the first row", ge=0, le=1 << 62)]
Stop = Annotated[int | None, QueryParameter("the row after the last", ge=0, le=1 << 62)]


@routes.get("/api/executions/{execution_id}/trace/{step}")
async def trace_result(
    execution_id: Id,
    step: Name,
    has: Has,
    who: Who,
    depth: Annotated[
        int, QueryParameter("steps back", ge=0, le=MAX_TRACE_DEPTH)
    ] = DEFAULT_TRACE_DEPTH,
    after: Annotated[str | None, QueryParameter("`next` of the page before", max_length=40)] = None,
    limit: Annotated[
        int, QueryParameter("how many nodes at most", ge=1, le=500)
    ] = DEFAULT_TRACE_NODES,
    item: Annotated[
        int | None,
        QueryParameter(
            "of a loop: only the part of its result that has this item", ge=0, le=1 << 62
        ),
    ] = None,
) -> TraceView:
    """The sources of the step's result and their sources, across executions, nearest first."""
    execution = ExecutionId(execution_id)
    part = None if item is None else await has.items.find_item_part(who, execution, step, item)
    return await has.lineage.trace(who, execution, step, depth, after, limit, part)


@routes.get("/api/executions/{execution_id}/result/{step}")
async def show_result(
    execution_id: Id,
    step: Name,
    has: Has,
    who: Who,
    rows: Annotated[int, QueryParameter("how many rows at most", ge=1, le=500)] = 20,
) -> ResultView:
    """The step's result: its envelope, and the beginning of its data."""
    return await has.results.preview_result(who, ExecutionId(execution_id), step, rows)


@routes.post("/api/executions/{execution_id}/result/{step}/pin")
async def pin_result(execution_id: Id, step: Name, has: Has, who: Who) -> PinView:
    """Keep the step's result in spite of its lifetime. 410 if it has expired."""
    return await has.results.pin(who, ExecutionId(execution_id), step)


@routes.delete("/api/executions/{execution_id}/result/{step}/pin")
async def unpin_result(execution_id: Id, step: Name, has: Has, who: Who) -> PinView:
    """Remove the pin, so that the lifetime of the result counts again."""
    return await has.results.unpin(who, ExecutionId(execution_id), step)


@routes.get("/api/usage")
async def list_usage(
    has: Has,
    who: Who,
    path: Annotated[str | None, QueryParameter("of this playbook only", max_length=500)] = None,
    before: Annotated[
        str | None, QueryParameter("`next` of the page before", pattern=EXECUTION_ID_PATTERN)
    ] = None,
    limit: Annotated[
        int, QueryParameter("how many executions at most", ge=1, le=MAX_USAGE_PAGE)
    ] = USAGE_PAGE,
) -> UsageView:
    """The space that results of executions take, by tier, newest execution first. Step logs are not
    counted."""
    before_id = None if before is None else ExecutionId(before)
    return await has.usage.list_page(who, path, before_id, limit)


@routes.get("/api/executions/{execution_id}/usage")
async def show_usage(execution_id: Id, has: Has, who: Who) -> UsedView:
    """The space that the results of this execution take, by tier."""
    return await has.usage.get_usage(who, ExecutionId(execution_id))


@routes.get(
    "/api/executions/{execution_id}/result/{step}/data",
    responses=DATA_RESPONSES,
)
async def get_data(
    execution_id: Id,
    step: Name,
    has: Has,
    who: Who,
    format: Format = None,
    start: Start = 0,
    stop: Stop = None,
    range_: Annotated[str | None, HeaderParameter(alias="Range", max_length=100)] = None,
    if_range: Annotated[str | None, HeaderParameter(alias="If-Range", max_length=100)] = None,
) -> Response:
    """The data of the step's result. `Range` (one, in bytes) is honoured for data as it is
    stored."""
    _check_rows(start, stop)
    data = await has.results.download(who, ExecutionId(execution_id), step, format, start, stop)
    headers = _describe_headers(data, execution_id, step)
    if data.size is None:
        body = _iterate_parts(data, 0, None)
        return StreamingResponse(body, media_type=data.media_type, headers=headers)
    applies = if_range in (None, headers.get("ETag"))
    wanted = range_ if applies else None
    first, last = _parse_range(wanted, data.size)
    if first >= last and wanted is not None and data.size:
        return Response(status_code=416, headers={"Content-Range": f"bytes */{data.size}"})
    headers["Content-Length"] = str(last - first)
    status = 200
    if (first, last) != (0, data.size):
        status = 206
        headers["Content-Range"] = f"bytes {first}-{last - 1}/{data.size}"
    body = _iterate_parts(data, first, last)
    return StreamingResponse(body, status, headers, data.media_type)


@routes.head(
    "/api/executions/{execution_id}/result/{step}/data",
    responses=HEAD_RESPONSES,
)
async def look_at_data(
    execution_id: Id,
    step: Name,
    has: Has,
    who: Who,
    format: Format = None,
    start: Start = 0,
    stop: Stop = None,
) -> Response:
    """The headers that `GET` would answer with: the type, and for data as it is stored the length
    and the checksum."""
    _check_rows(start, stop)
    data = await has.results.download(who, ExecutionId(execution_id), step, format, start, stop)
    headers = _describe_headers(data, execution_id, step)
    # A plain Response would set its Content-Length to 0.
    return StreamingResponse(iter(()), media_type=data.media_type, headers=headers)


def _check_rows(start: int, stop: int | None) -> None:
    if stop is not None and stop < start:
        raise InvalidInput(
            f"stop: {stop} is before start, {start}", hint="`stop` is the row after the last"
        )


def _describe_headers(data: Download, execution_id: str, step: str) -> dict[str, str]:
    """The headers that describe the data."""
    name = f'attachment; filename="{execution_id}-{_sanitize_step(step)}.{data.extension}"'
    headers = {"Content-Disposition": name}
    if data.size is None:
        headers["Accept-Ranges"] = "none"
        return headers
    headers["Accept-Ranges"] = "bytes"
    headers["Content-Length"] = str(data.size)
    if data.sha256 is not None:
        headers["ETag"] = f'"{data.sha256}"'
        headers["Repr-Digest"] = _make_digest(data.sha256)
    return headers


async def _iterate_parts(
    data: Download, start: int, stop: int | None
) -> AsyncGenerator[bytes, None]:
    async for part in data.parts(start, stop):
        yield part


def _parse_range(wanted: str | None, size: int) -> tuple[int, int]:
    """The bytes [first, last) of a `Range` header; all bytes if it is missing or not understood."""
    if wanted is None:
        return 0, size
    match = _RANGE.fullmatch(wanted)
    if match is None or match[0] == "bytes=-":
        return 0, size
    first, last = match[1], match[2]
    if not first:
        return max(size - int(last), 0), size
    if not last:
        return int(first), size
    return int(first), min(int(last) + 1, size)


def _make_digest(sha256: str) -> str:
    digest = base64.b64encode(bytes.fromhex(sha256)).decode()
    return f"sha-256=:{digest}:"


def _sanitize_step(step: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]", "_", step)
