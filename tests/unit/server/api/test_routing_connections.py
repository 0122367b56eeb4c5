"""Routes behind the guard: large bodies, encoded addresses, streams, and clients that leave early."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Annotated, Any

import httpx
import pytest
from starlette.responses import Response, StreamingResponse
from starlette.types import Message

from noetl.metrics import Metrics
from noetl.server.http.guard import MAX_HTTP_BODY_BYTES, Guard
from noetl.server.http.parameters import QueryParameter
from noetl.server.http.routing import HttpRouter, Routes
from noetl.server.http.structs import RequestBody, View
from noetl.server.streams.routes import EventStream, StreamReaders

routes = Routes("tests", public=True)
calls: list[str] = []


class Text(RequestBody, frozen=True):
    text: str


class SeenConnections(View, frozen=True):
    value: Any


@routes.post("/api/texts")
async def add_text(body: Text) -> SeenConnections:
    """Add a text."""
    calls.append("add_text")
    return SeenConnections(len(body.text))


@routes.get("/api/named/{name}")
async def get_named(
    name: str, note: Annotated[str | None, QueryParameter()] = None
) -> SeenConnections:
    """A thing by its name."""
    return SeenConnections([name, note])


@routes.get("/api/files/{path:path}")
async def get_file(path: str) -> SeenConnections:
    """A thing by its path."""
    return SeenConnections(path)


@routes.get("/api/parts")
async def get_parts() -> Response:
    """An answer in parts."""

    async def make_parts() -> AsyncIterator[bytes]:
        for number in range(3):
            yield b"%d" % number

    return StreamingResponse(make_parts(), media_type="text/plain")


@routes.get("/api/broken")
async def get_broken() -> SeenConnections:
    """A route with an error."""
    raise ValueError("canary")


def make_app() -> Guard:
    router = HttpRouter()
    router.add_routes(routes.routes)
    return Guard(router, Metrics())


def ask(method: str, url: str, **more: Any) -> httpx.Response:
    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(make_app())
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.request(method, url, **more)

    return asyncio.run(send())


def exchange(method: str, path: str, incoming: list[Message], app: Any = None) -> list[Message]:
    """Send these messages to the application, and return the messages that it answers."""
    sent: list[Message] = []
    pending = iter(incoming)

    async def receive() -> Message:
        return next(pending)

    async def send(message: Message) -> None:
        sent.append(message)

    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": b"",
        "headers": headers,
    }
    asyncio.run((app or make_app())(scope, receive, send))
    return sent


def make_part(data: bytes, more: bool) -> Message:
    return {"type": "http.request", "body": data, "more_body": more}


DISCONNECT: Message = {"type": "http.disconnect"}


# -- bodies --


def test_a_body_may_come_in_parts() -> None:
    sent = exchange(
        "POST", "/api/texts", [make_part(b'{"te', True), make_part(b'xt": "abc"}', False)]
    )
    assert sent[0]["status"] == 200
    assert sent[1]["body"] == b'{"value":3}'


def test_a_body_with_a_length_above_the_limit_is_refused_before_it_is_read() -> None:
    answer = ask("POST", "/api/texts", content=b"x" * (MAX_HTTP_BODY_BYTES + 1))
    assert (answer.status_code, answer.json()["code"]) == (413, "TOO_LARGE")
    assert answer.json()["detail"] == f"the body may have at most {MAX_HTTP_BODY_BYTES} bytes"


@pytest.mark.parametrize("length", ["ten", "-1", "1.5", "٣"])
def test_a_length_that_is_no_number_is_a_bad_request(length: str) -> None:
    answer = ask("POST", "/api/texts", content=b"x", headers={b"Content-Length": length.encode()})
    assert (answer.status_code, answer.json()["code"]) == (400, "BAD_REQUEST")
    assert answer.json()["detail"] == "Content-Length is not a number"


def test_a_body_without_a_length_is_refused_at_the_limit() -> None:
    half = b"x" * (MAX_HTTP_BODY_BYTES // 2 + 1)
    parts = [make_part(half, True), make_part(half, True)]  # a third part is never asked for
    sent = exchange("POST", "/api/texts", parts)
    assert sent[0]["status"] == 413
    assert b"TOO_LARGE" in sent[1]["body"]


def test_a_client_that_leaves_within_a_body_gets_no_answer_and_the_route_is_not_called() -> None:
    calls.clear()
    sent = exchange("POST", "/api/texts", [make_part(b'{"text": "a', True), DISCONNECT])
    assert sent == []
    assert calls == []


# -- addresses --


@pytest.mark.parametrize(
    ("written", "read"),
    [("a%20b", "a b"), ("a+b", "a+b"), ("%C3%A9", "é"), ("%25", "%"), ("%7Bname%7D", "{name}")],
)
def test_a_path_parameter_is_decoded_once(written: str, read: str) -> None:
    assert ask("GET", f"/api/named/{written}").json() == {"value": [read, None]}


@pytest.mark.parametrize(
    ("written", "read"), [("a%20b", "a b"), ("a+b", "a b"), ("%26x%3D1", "&x=1"), ("", "")]
)
def test_a_query_parameter_is_decoded_once(written: str, read: str) -> None:
    assert ask("GET", f"/api/named/n?note={written}").json() == {"value": ["n", read]}


def test_an_encoded_slash_separates_parts_of_a_path() -> None:
    assert ask("GET", "/api/named/a%2Fb").status_code == 404
    assert ask("GET", "/api/files/a%2Fb/c").json() == {"value": "a/b/c"}


def test_a_slash_at_the_end_names_another_path() -> None:
    assert ask("GET", "/api/named/a/").status_code == 404
    assert ask("POST", "/api/texts/", json={"text": "a"}).status_code == 404
    assert ask("GET", "/api/files/a/").json() == {"value": "a/"}


def test_a_nul_character_in_an_address_is_refused() -> None:
    assert ask("GET", "/api/named/a%00b").status_code == 400
    assert ask("GET", "/api/named/a?note=%00").status_code == 400


# -- methods --


def test_allow_names_all_methods_of_a_path() -> None:
    both = Routes("tests", public=True)
    both.get("/api/both")(get_parts)
    both.delete("/api/both")(get_broken)
    router = HttpRouter()
    router.add_routes(both.routes)
    sent = exchange("PUT", "/api/both", [make_part(b"", False)], router)
    assert sent[0]["status"] == 405
    assert (b"allow", b"GET, DELETE") in sent[0]["headers"]


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "PATCH", "TRACE", "BREW"])
def test_a_method_that_no_route_has_is_refused(method: str) -> None:
    answer = ask(method, "/api/named/a")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET")


# -- answers --


def test_an_answer_in_parts_is_sent_part_by_part() -> None:
    sent = exchange("GET", "/api/parts", [make_part(b"", False)])
    assert [each["body"] for each in sent[1:]] == [b"0", b"1", b"2", b""]


def test_an_unexpected_error_is_answered_without_its_text() -> None:
    answer = ask("GET", "/api/broken")
    assert (answer.status_code, answer.json()["code"]) == (500, "INTERNAL")
    assert "canary" not in answer.text


def test_every_answer_forbids_caches_and_sniffing() -> None:
    for url in ("/api/named/a", "/api/nothing", "/api/broken", "/api/parts"):
        headers = ask("GET", url).headers
        assert (headers["cache-control"], headers["x-content-type-options"]) == (
            "no-store",
            "nosniff",
        )


# -- streams --


def make_stream_app(readers: StreamReaders, events: list[str]) -> HttpRouter:
    """An application with one route: a stream that never ends by itself."""
    streams = Routes("tests", public=True)

    @streams.get("/api/stream")
    async def stream() -> Response:
        """A stream without an end."""

        async def make_parts() -> AsyncGenerator[bytes, None]:
            try:
                yield b"data: 1\n\n"
                await asyncio.Event().wait()
            finally:
                events.append("closed")

        return EventStream(make_parts(), readers)

    router = HttpRouter()
    router.add_routes(streams.routes)
    return router


def test_a_stream_ends_and_frees_its_place_when_the_reader_leaves() -> None:
    readers = StreamReaders(Metrics(), most=1)
    events: list[str] = []
    sent: list[Message] = []

    async def follow() -> None:
        has_part = asyncio.Event()

        async def receive() -> Message:
            await has_part.wait()
            return DISCONNECT

        async def send(message: Message) -> None:
            sent.append(message)
            if message.get("body") == b"data: 1\n\n":
                has_part.set()

        scope = {
            "type": "http",
            "method": "GET",
            "path": "/api/stream",
            "query_string": b"",
            "headers": [],
        }
        await make_stream_app(readers, events)(scope, receive, send)

    asyncio.run(follow())
    assert sent[0]["status"] == 200
    assert all(each["more_body"] for each in sent[1:])
    assert events == ["closed"]
    readers.check_room()
