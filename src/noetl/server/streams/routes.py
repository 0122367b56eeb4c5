"""Server-sent events. A reader that does not read is dropped; it may go on by Last-Event-ID."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager
from typing import Annotated, Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from noetl.log.events.port import RecordedEvent
from noetl.log.projections.port import Projection
from noetl.metrics import Metrics
from noetl.model.errors import Unavailable
from noetl.model.ids import ExecutionId
from noetl.server.executions.filters import make_execution_filter
from noetl.server.executions.lists import make_listed_view
from noetl.server.executions.views import make_event_view
from noetl.server.http.depends import Has, Now, Who
from noetl.server.http.parameters import (
    AfterSeq,
    HeaderParameter,
    Id,
    OfParent,
    OfPath,
    OfStatuses,
    OnlyRoots,
    OnlyWaiting,
    QueryParameter,
    Since,
)
from noetl.server.http.routing import Routes
from noetl.server.streams.service import RowGone, StreamEnd, StreamHeartbeat

routes = Routes("streams")
STREAM_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "server-sent events",
        "content": {
            "text/event-stream": {
                "example": 'id: 7\nevent: step.exit\ndata: {"seq": 7, "type": "step.exit"}\n\n'
            }
        },
    }
}

MAX_READERS = 200  # readers of one server, at most
READER_TIMEOUT_S = 30.0  # seconds that a reader may take to receive a part
RECONNECT_MS = 1000  # milliseconds after which a reader connects again
EVENT_STREAM_TYPE = "text/event-stream"
Item = TypeVar("Item")


class TooManyStreams(Unavailable):
    """The server has as many readers as it may have."""

    code = "TOO_MANY_STREAMS"


def encode_message(data: Any, event: str, seq: int | None = None) -> bytes:
    """One server-sent event. Encoded JSON has no line breaks, so one data line is enough."""
    head = b"" if seq is None else b"id: %d\n" % seq
    return head + b"event: " + event.encode() + b"\ndata: " + msgspec.json.encode(data) + b"\n\n"


class StreamReaders:
    """Counts the readers of one server and limits them."""

    def __init__(self, metrics: Metrics, most: int = MAX_READERS) -> None:
        self._metrics = metrics
        self._most = most
        self._count = 0

    def check_room(self) -> None:
        if self._count >= self._most:
            raise TooManyStreams(
                f"{self._most} readers follow events already",
                hint="close some, or ask without a stream",
            )

    @contextmanager
    def hold_place(self) -> Iterator[None]:
        self._count += 1
        self._metrics.streams.set(self._count)
        try:
            yield
        finally:
            self._count -= 1
            self._metrics.streams.set(self._count)


class EventStream(Response):
    """Sends the parts until there are no more, the reader leaves, or it stops receiving."""

    media_type = EVENT_STREAM_TYPE

    def __init__(self, parts: AsyncGenerator[bytes, None], readers: StreamReaders) -> None:
        super().__init__(media_type=EVENT_STREAM_TYPE)
        self._parts = parts
        self._readers = readers
        del self.headers["content-length"]
        self.headers["X-Accel-Buffering"] = "no"  # a proxy must not buffer the stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._readers.hold_place():
            sending = asyncio.ensure_future(self._send_all(send))
            leaving = asyncio.ensure_future(_wait_for_disconnect(receive))
            try:
                await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (sending, leaving):
                    task.cancel()
                await asyncio.gather(sending, leaving, return_exceptions=True)
                await self._parts.aclose()
        if not sending.cancelled():
            sending.result()

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await _send_in_time(send(_make_body_part(b"retry: %d\n\n" % RECONNECT_MS)))
        async for part in self._parts:
            is_received = await _send_in_time(send(_make_body_part(part)))
            if not is_received:
                return  # the unfinished answer closes the connection
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _make_body_part(data: bytes) -> dict[str, Any]:
    return {"type": "http.response.body", "body": data, "more_body": True}


async def _send_in_time(sending: Any) -> bool:
    """Await it; False if it takes too long."""
    try:
        async with asyncio.timeout(READER_TIMEOUT_S):
            await sending
    except TimeoutError:
        return False
    return True


async def _wait_for_disconnect(receive: Receive) -> None:
    """Wait until the client disconnects."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def encode_pages(
    pages: AsyncGenerator[list[Item] | StreamHeartbeat | StreamEnd, None],
    item: Callable[[Item], bytes],
    execution_id: str,
) -> AsyncGenerator[bytes, None]:
    """The pages of a stream of one execution as server-sent events."""
    async with aclosing(pages):
        async for page in pages:
            match page:
                case StreamHeartbeat():
                    yield b":\n\n"
                case StreamEnd():
                    yield encode_message({"execution_id": execution_id}, "end")
                case _:
                    yield b"".join(map(item, page))


@routes.get("/api/executions/stream", responses=STREAM_RESPONSES)
async def stream_executions(
    request: Request,
    has: Has,
    who: Who,
    now: Now,
    status: OfStatuses = None,
    path: OfPath = None,
    parent: OfParent = None,
    since: Since = None,
    waiting: OnlyWaiting = False,
    roots: OnlyRoots = False,
    limit: Annotated[int, QueryParameter("how many rows", ge=1, le=200)] = 50,
) -> Response:
    """The newest rows of the list, then every change among them: `execution` (new or changed),
    `gone`."""
    readers = get_readers(request)
    wanted = make_execution_filter(now, status, path, parent, since, roots, waiting=waiting)
    rows = has.streams.follow_rows(who, wanted, limit)

    async def encode_rows() -> AsyncGenerator[bytes, None]:
        async with aclosing(rows):
            async for change in rows:
                if isinstance(change, StreamHeartbeat):
                    yield b":\n\n"
                else:
                    yield b"".join(map(_encode_row, change))

    return EventStream(encode_rows(), readers)


@routes.get("/api/executions/{execution_id}/stream", responses=STREAM_RESPONSES)
async def stream_events(
    request: Request,
    execution_id: Id,
    has: Has,
    who: Who,
    after: AfterSeq = 0,
    last_event_id: Annotated[int | None, HeaderParameter(ge=0, le=1 << 62)] = None,
) -> Response:
    """Events after `after` (or Last-Event-ID), live, with `end` after the last one. 204: there will
    be no more."""
    start = after if last_event_id is None else last_event_id
    if await has.streams.has_ended_before(who, ExecutionId(execution_id), start):
        return Response(status_code=204)
    readers = get_readers(request)
    pages = has.streams.follow_events(who, ExecutionId(execution_id), start)

    return EventStream(encode_pages(pages, _encode_event, execution_id), readers)


def _encode_row(row: Projection | RowGone) -> bytes:
    if isinstance(row, RowGone):
        return encode_message({"execution_id": row.execution_id}, "gone")
    return encode_message(make_listed_view(row), "execution")


def _encode_event(recorded: RecordedEvent) -> bytes:
    return encode_message(make_event_view(recorded), recorded.event.type, recorded.seq)


def get_readers(request: Request) -> StreamReaders:
    """The readers of this server. Raises `TooManyStreams` if there is no room for one more."""
    readers: StreamReaders = request.app.state.readers
    readers.check_room()
    return readers
