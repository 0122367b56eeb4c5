"""The worker's HTTP client against servers that answer byte by byte, too much, too little or not in HTTP."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest
import uvloop

from noetl.model.errors import InvalidInput
from noetl.worker import wire
from noetl.worker.wire import NotConnected, ResponseLost, ServerConnections, WireResponse
from tests.processes import free_port
from tests.waiting import HANG_LIMIT_S

OK_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
Talk = Callable[[ServerConnections], Coroutine[Any, Any, Any]]


class RawServer:
    """Reads each request whole and lets `answer` write the response. Counts connections and requests."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.connections = 0
        self.requests: list[bytes] = []

    async def serve_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.connections += 1
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while not writer.is_closing():
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.partition(b"Content-Length: ")[2].partition(b"\r\n")[0])
                self.requests.append(head + await reader.readexactly(length))
                await self._answer(reader, writer)
        writer.close()


def write_bytes(*parts: bytes, close: bool = False) -> Answer:
    """An answer that writes these parts one after the other, each in a packet of its own."""

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0)
        if close:
            writer.close()

    return answer


def talk_to(answer: Answer, talk: Talk) -> tuple[RawServer, Any]:
    """Run `talk` against a server that answers like this. Workers run on uvloop."""
    server = RawServer(answer)

    async def run() -> Any:
        listener = await asyncio.start_server(server.serve_connection, "127.0.0.1", 0)
        port = listener.sockets[0].getsockname()[1]
        connections = ServerConnections(f"http://127.0.0.1:{port}/prefix/")
        try:
            async with asyncio.timeout(HANG_LIMIT_S):
                return await talk(connections)
        finally:
            connections.close()
            listener.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return server, runner.run(run())


async def send_one(connections: ServerConnections) -> WireResponse:
    return await connections.send_request("POST", "/x", b"body", HANG_LIMIT_S)


async def send_two(connections: ServerConnections) -> list[WireResponse]:
    return [await send_one(connections), await send_one(connections)]


def expect_lost(answer: Answer, reason: str) -> RawServer:
    """The request fails with this reason, and the connection is not used again."""

    async def talk(connections: ServerConnections) -> None:
        for _ in range(2):
            with pytest.raises(ResponseLost, match=reason):
                await send_one(connections)

    server, _ = talk_to(answer, talk)
    assert server.connections == 2
    return server


# ---- answers that arrive ----


def test_two_requests_use_one_connection() -> None:
    server, answers = talk_to(write_bytes(OK_HEAD + b"Content-Length: 2\r\n\r\n{}"), send_two)
    assert answers == [WireResponse(200, "application/json", b"{}")] * 2
    assert server.connections == 1
    assert server.requests[0].startswith(b"POST /prefix/x HTTP/1.1\r\nHost: 127.0.0.1:")
    assert server.requests[0].endswith(b"\r\n\r\nbody")


def test_an_answer_may_arrive_byte_by_byte() -> None:
    whole = OK_HEAD + b"Content-Length: 5\r\n\r\nhello"
    _, answer = talk_to(write_bytes(*(bytes([byte]) for byte in whole)), send_one)
    assert answer == WireResponse(200, "application/json", b"hello")


def test_a_chunked_answer_is_put_together() -> None:
    chunks = (b"5\r\nhello\r\n", b"6;x=y\r\n world\r\n", b"0\r\nTrailer: z\r\n\r\n")
    head = OK_HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
    server, answers = talk_to(write_bytes(head, *chunks), send_two)
    assert [answer.body for answer in answers] == [b"hello world"] * 2
    assert server.connections == 1


def test_a_server_that_closes_after_its_answer_is_asked_on_a_new_connection() -> None:
    whole = OK_HEAD + b"Connection: close\r\nContent-Length: 2\r\n\r\n{}"
    server, answers = talk_to(write_bytes(whole, close=True), send_two)
    assert [answer.body for answer in answers] == [b"{}"] * 2
    assert server.connections == 2


def test_an_announcement_is_not_the_answer() -> None:
    announced = b"HTTP/1.1 103 Early Hints\r\nContent-Type: text/plain\r\n\r\n"
    _, answer = talk_to(write_bytes(announced, OK_HEAD + b"Content-Length: 2\r\n\r\n{}"), send_one)
    assert answer == WireResponse(200, "application/json", b"{}")


def test_a_second_answer_does_not_change_the_first() -> None:
    second = b"HTTP/1.1 500 No\r\nContent-Type: text/plain\r\nContent-Length: 3\r\n\r\nbad"
    first = OK_HEAD + b"Content-Length: 2\r\n\r\n{}"
    server, answers = talk_to(write_bytes(first + second), send_two)
    assert answers == [WireResponse(200, "application/json", b"{}")] * 2
    assert server.connections == 2


# ---- answers that do not ----


@pytest.mark.parametrize(
    "whole",
    [
        b"",
        b"HTTP/1.1 20",
        OK_HEAD,
        OK_HEAD + b"Content-Length: 5\r\n\r\nhel",
        OK_HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
    ],
    ids=["nothing", "status line", "headers", "body", "chunks"],
)
def test_an_answer_that_ends_early_is_lost(whole: bytes) -> None:
    expect_lost(write_bytes(whole, close=True), "closed")


@pytest.mark.parametrize(
    "whole",
    [
        b"\x16\x03\x01\x02\x00",
        b"HTTP/1.1 abc OK\r\n\r\n",
        OK_HEAD + b"Content-Length: -1\r\n\r\n",
        OK_HEAD + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n",
    ],
    ids=["TLS", "status", "length", "chunk size"],
)
def test_bytes_that_are_not_http_are_refused(whole: bytes) -> None:
    expect_lost(write_bytes(whole), "not HTTP")


def test_headers_without_an_end_are_refused() -> None:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(OK_HEAD)
        with suppress(ConnectionError):
            while not writer.is_closing():
                writer.write(b"X-More: " + b"x" * 4_000 + b"\r\n")
                await writer.drain()

    expect_lost(answer, "headers of the answer are too large")


def test_a_body_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MAX_RESPONSE_BYTES", 100_000)

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(OK_HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        with suppress(ConnectionError):
            while not writer.is_closing():
                writer.write(b"1000\r\n" + b"x" * 0x1000 + b"\r\n")
                await writer.drain()

    expect_lost(answer, "answer is too large")


def test_a_server_that_says_nothing_is_given_up() -> None:
    async def answer(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read()

    async def talk(connections: ServerConnections) -> None:
        with pytest.raises(ResponseLost, match="no answer within"):
            await connections.send_request("GET", "/", patience=0.05)

    talk_to(answer, talk)


def test_a_cancelled_request_closes_its_connection() -> None:
    received, closed = asyncio.Event(), asyncio.Event()

    async def answer(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        received.set()
        with suppress(ConnectionError):
            await reader.read()
        closed.set()

    async def talk(connections: ServerConnections) -> None:
        request = asyncio.create_task(send_one(connections))
        await received.wait()
        request.cancel()
        await closed.wait()

    talk_to(answer, talk)


def test_a_port_without_a_server_is_not_connected() -> None:
    async def run() -> None:
        with pytest.raises(NotConnected, match="ConnectionRefusedError"):
            await ServerConnections(f"http://127.0.0.1:{free_port()}").send_request("GET", "/")

    asyncio.run(run())


@pytest.mark.parametrize(
    "url", ["ftp://host", "http://", "127.0.0.1:8082", "http://a:b@host", "http://host?x"]
)
def test_an_address_that_is_no_server_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput, match="not the address of a server"):
        ServerConnections(url)
