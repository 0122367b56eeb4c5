"""Routes for results of steps: show one, download its data, pin it, trace its sources."""

import base64
import re
from collections.abc import AsyncGenerator
from typing import Annotated, Any, Literal

import msgspec
from fastapi import Header, Query, Response
from pydantic import Field
from starlette.responses import StreamingResponse

from noetl.model.errors import InvalidInput
from noetl.model.ids import ExecutionId
from noetl.model.previews import Download
from noetl.server.executions.routes import Name
from noetl.server.http import shapes
from noetl.server.http.bodies import Id, View, make_router
from noetl.server.http.depends import Has, Who
from noetl.server.results.lineage import DEFAULT_TRACE_DEPTH, DEFAULT_TRACE_NODES, MAX_TRACE_DEPTH
from noetl.server.results.usage import DEFAULT_USAGE_PAGE as USAGE_PAGE
from noetl.server.results.usage import MAX_USAGE_PAGE

routes = make_router("results")
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
    Query(description="without one: as it is stored"),
]
Start = Annotated[int, Query(ge=0, le=1 << 62, description="the first row")]
Stop = Annotated[int | None, Query(ge=0, le=1 << 62, description="the row after the last")]


class ColumnView(View):
    name: str
    type: str | None = Field(description="of Arrow; null where values are JSON", examples=["int64"])


class PreviewView(View):
    row_count: int | None
    columns: list[ColumnView]
    rows: list[Any] | None = Field(
        description="the first of them; null: the value is no list of rows"
    )
    value: Any = Field(description="of what has no rows, when it is small")
    cut: bool = Field(description="there is more than is shown")


class ResultView(View):
    """The envelope and the beginning of the data. Keys that name secrets (password, api_key …) are
    left out, long texts cut."""

    execution_id: str
    step: str
    status: str = Field(examples=["ok"])
    reference: dict[str, Any] | None = Field(
        description="where the data is: uri, tier, bytes, rows, format, sha256"
    )
    parent_ref: str | None
    context: dict[str, Any]
    error: dict[str, Any] | None
    meta: dict[str, Any] = Field(description="tool, input and provenance")
    preview: PreviewView | None = Field(
        description="of a failed step: the rows it kept that show what is wrong"
    )
    scope: str = Field(
        description="what its task asks for: step, execution, workflow or permanent",
        examples=["execution"],
    )
    ttl: str | None = Field(
        description="how long it is to stay, from when it was made", examples=["7d"]
    )
    pinned: bool = Field(description="it stays in spite of scope and ttl")


class PinView(View):
    execution_id: str
    step: str
    pinned: bool


class TierView(View):
    count: int
    bytes: int


class UsedView(View):
    execution_id: str
    path: str
    status: str
    tiers: dict[str, TierView] = Field(
        examples=[{"kv": {"count": 3, "bytes": 812}, "disk": {"count": 1, "bytes": 7340032}}]
    )
    count: int = Field(description="payloads, in all tiers")
    bytes: int
    expired: int = Field(description="payloads that are gone")
    pinned: list[str] = Field(description="steps with pinned results")


class UsageView(View):
    executions: list[UsedView]
    next: str | None = Field(description="the `before` of the next page")


class NodeView(View):
    ref_id: str
    depth: int = Field(description="steps back from the result, by the shortest way")
    uri: str
    tier: str
    bytes: int | None
    rows: int | None
    format: str | None
    sha256: str | None
    execution_id: str
    kind: str = Field(examples=["result"])
    step: str
    task: str | None
    command_id: str | None
    attempt: int | None
    at: str
    expired_at: str | None = Field(description="since when its data is gone")
    tool: dict[str, str] | None = Field(examples=[{"kind": "http"}])
    input: dict[str, Any] | None = Field(
        description="what the task was given, without secrets: `value`, or `ref`"
    )
    provenance: dict[str, Any] = Field(description="what the playbook's author says")


class EdgeView(View):
    source: str = Field(description="ref_id of what was used")
    target: str = Field(description="ref_id of what was made from it")
    kind: Literal["parent", "input"] = Field(
        description="parent: the task before it; input: what was read for it"
    )


class TraceView(View):
    execution_id: str
    step: str
    status: str
    reference: dict[str, Any] | None
    roots: list[str] = Field(description="ref_ids of the result itself; of a loop, of its parts")
    nodes: list[NodeView]
    edges: list[EdgeView] = Field(
        description="that lead to nodes of this page; their sources may be on a later one"
    )
    next: str | None = Field(description="the `after` of the next page")


@routes.get("/api/executions/{execution_id}/trace/{step}", response_model=TraceView)
async def trace_result(
    execution_id: Id,
    step: Name,
    has: Has,
    who: Who,
    depth: Annotated[
        int, Query(ge=0, le=MAX_TRACE_DEPTH, description="steps back")
    ] = DEFAULT_TRACE_DEPTH,
    after: Annotated[
        str | None, Query(max_length=40, description="`next` of the page before")
    ] = None,
    limit: Annotated[
        int, Query(ge=1, le=500, description="how many nodes at most")
    ] = DEFAULT_TRACE_NODES,
) -> Response:
    """The sources of the step's result and their sources, across executions, nearest first."""
    trace = await has.lineage.trace(who, ExecutionId(execution_id), step, depth, after, limit)
    return _make_json_response(shapes.dump_trace(ExecutionId(execution_id), step, trace))


@routes.get("/api/executions/{execution_id}/result/{step}", response_model=ResultView)
async def show_result(
    execution_id: Id,
    step: Name,
    has: Has,
    who: Who,
    rows: Annotated[int, Query(ge=1, le=500, description="how many rows at most")] = 20,
) -> Response:
    """The step's result: its envelope, and the beginning of its data."""
    result = await has.results.preview_result(who, ExecutionId(execution_id), step, rows)
    return _make_json_response(shapes.dump_result(ExecutionId(execution_id), step, result))


@routes.post("/api/executions/{execution_id}/result/{step}/pin")
async def pin_result(execution_id: Id, step: Name, has: Has, who: Who) -> PinView:
    """Keep the step's result in spite of its lifetime. 410 if it has expired."""
    await has.results.pin(who, ExecutionId(execution_id), step)
    return PinView(execution_id=execution_id, step=step, pinned=True)


@routes.delete("/api/executions/{execution_id}/result/{step}/pin")
async def unpin_result(execution_id: Id, step: Name, has: Has, who: Who) -> PinView:
    """Remove the pin, so that the lifetime of the result counts again."""
    await has.results.unpin(who, ExecutionId(execution_id), step)
    return PinView(execution_id=execution_id, step=step, pinned=False)


@routes.get("/api/usage", response_model=UsageView)
async def list_usage(
    has: Has,
    who: Who,
    path: Annotated[str | None, Query(max_length=500, description="of this playbook only")] = None,
    before: Annotated[
        str | None, Query(pattern=r"^[1-9][0-9]{0,18}$", description="`next` of the page before")
    ] = None,
    limit: Annotated[
        int, Query(ge=1, le=MAX_USAGE_PAGE, description="how many executions at most")
    ] = USAGE_PAGE,
) -> Response:
    """The space that results of executions take, by tier, newest execution first. Step logs are not
    counted."""
    before_id = None if before is None else ExecutionId(before)
    usages = await has.usage.list_page(who, path, before_id, limit)
    following = usages[-1].row.execution_id if len(usages) == limit else None
    return _make_json_response(
        {"executions": [shapes.dump_usage(usage) for usage in usages], "next": following}
    )


@routes.get("/api/executions/{execution_id}/usage", response_model=UsedView)
async def show_usage(execution_id: Id, has: Has, who: Who) -> Response:
    """The space that the results of this execution take, by tier."""
    usage = await has.usage.get_usage(who, ExecutionId(execution_id))
    return _make_json_response(shapes.dump_usage(usage))


@routes.get(
    "/api/executions/{execution_id}/result/{step}/data",
    response_class=Response,
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
    range_: Annotated[str | None, Header(alias="Range", max_length=100)] = None,
    if_range: Annotated[str | None, Header(alias="If-Range", max_length=100)] = None,
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
    response_class=Response,
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


def _make_json_response(value: Any) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
