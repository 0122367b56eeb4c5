"""A small HTTP/1.1 client for one server: requests with a known body, over reused connections.

A worker sends thousands of small requests a second, and a general client takes ten times as long
for each.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

import httptools

from noetl.model.errors import InvalidInput

CONNECT_TIMEOUT_S = 2.0  # seconds to connect
# Seconds that an idle connection is kept. The server keeps it longer, so it never closes a
# connection that is about to be used.
MAX_IDLE_S = 25.0
MAX_IDLE_CONNECTIONS = 8  # idle connections
MAX_RESPONSE_BYTES = 256 * 1024 * 1024  # bytes of a response's body
MAX_HEAD_BYTES = 64 * 1024  # bytes of a response's status line and headers
FIRST_FINAL_STATUS = 200  # statuses below only announce the response


FindTls = Callable[[str], ssl.SSLContext | None]  # the TLS for the server at this address


class NotConnected(Exception):
    """Nothing was sent."""


class ResponseLost(Exception):
    """The request was sent, at least in part, and no complete response came."""


@dataclass(slots=True)
class WireResponse:
    status: int = 0
    kind: str = ""  # the content type
    body: bytes = b""


class HttpConnection(asyncio.Protocol):
    """One connection: it sends a request and parses the response."""

    def __init__(self) -> None:
        self.closed = False
        self.last_used_at = 0.0
        self._transport: asyncio.Transport | None = None
        self._waiting: asyncio.Future[WireResponse] | None = None
        self._answer = WireResponse()
        self._parts: list[bytes] = []
        self._size = 0
        self._head_size = 0  # bytes received before the end of the headers
        self._in_head = True
        self._parser = httptools.HttpResponseParser(self)

    async def send_request(self, head: bytes, body: bytes) -> WireResponse:
        """Send one request and return its response. Only one request runs at a time."""
        assert self._transport is not None
        assert self._waiting is None
        self._begin_response()
        self._parser = httptools.HttpResponseParser(self)
        self._waiting = asyncio.get_running_loop().create_future()
        self._transport.write(head + body)
        return await self._waiting

    def _begin_response(self) -> None:
        self._answer = WireResponse()
        self._parts = []
        self._size = 0
        self._head_size = 0
        self._in_head = True

    def abort(self) -> None:
        self.closed = True
        if self._transport is not None:
            self._transport.abort()

    # -- the transport --

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transport has the methods of this class without inheriting from it
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._fail_request("the connection was closed")

    def data_received(self, data: bytes) -> None:
        if self._waiting is None:  # no request was sent
            return self.abort()
        if self._in_head:
            self._head_size += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail_request(f"not HTTP: {error}")
            self.abort()
        if self._in_head and self._head_size > MAX_HEAD_BYTES:
            self._fail_request("the headers of the answer are too large")
            self.abort()

    def _fail_request(self, why: str) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not waiting.done():
            waiting.set_exception(ResponseLost(why))

    # -- the parser --

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"content-type":
            self._answer.kind = value.decode("latin-1").lower()

    def on_headers_complete(self) -> None:
        self._in_head = False

    def on_body(self, body: bytes) -> None:
        self._size += len(body)
        if self._size > MAX_RESPONSE_BYTES:
            self._fail_request("the answer is too large")
            self.abort()
        else:
            self._parts.append(body)

    def on_message_complete(self) -> None:
        if self._waiting is None:  # a second response to one request
            return self.abort()
        status = self._parser.get_status_code()
        if status < FIRST_FINAL_STATUS:
            return self._begin_response()
        self._answer.status = status
        self._answer.body = b"".join(self._parts)
        if not self._parser.should_keep_alive():
            self.closed = True
        answer, waiting = self._answer, self._waiting
        self._begin_response()  # what may follow is not part of this answer
        self._waiting = None
        if not waiting.done():
            waiting.set_result(answer)


class ServerConnections:
    """The connections to one server."""

    def __init__(self, url: str, find_tls: FindTls | None = None) -> None:
        """Without `find_tls`, servers with TLS have a certificate that the system trusts."""
        parts = urlsplit(url)
        is_http = parts.scheme in ("http", "https")
        if not is_http or not parts.hostname or parts.username or parts.query:
            raise InvalidInput(
                f"{url!r} is not the address of a server", hint="http://127.0.0.1:8082"
            )
        self.url = url.rstrip("/")
        self._host = parts.hostname
        self._find_tls = find_tls
        self._is_secure = parts.scheme == "https"
        default_port = 443 if self._is_secure else 80
        self._port = parts.port or default_port
        self._prefix = parts.path.rstrip("/")
        self._authority = parts.netloc
        self._idle: deque[HttpConnection] = deque()

    async def send_request(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        patience: float = 5.0,
        kind: str = "application/json",
        token: str | None = None,
    ) -> WireResponse:
        """Send a request. Raises NotConnected or BrokenOff if no response comes in time."""
        connection = self._take_idle() or await self._connect()
        lines = f"{method} {self._prefix}{path} HTTP/1.1\r\nHost: {self._authority}\r\nContent-Length: {len(body)}\r\n"
        if body:
            lines += f"Content-Type: {kind}\r\n"
        if token is not None:
            lines += f"Authorization: Bearer {token}\r\n"
        try:
            async with asyncio.timeout(patience):
                answer = await connection.send_request(f"{lines}\r\n".encode("ascii"), body)
        except TimeoutError as error:
            connection.abort()
            raise ResponseLost(f"no answer within {patience} s") from error
        except BaseException:  # also on cancellation: the server sees that nobody waits any more
            connection.abort()
            raise
        self._keep_idle(connection)
        return answer

    def close(self) -> None:
        while self._idle:
            self._idle.pop().abort()

    def _take_idle(self) -> HttpConnection | None:
        """The connection that was used last. Those that were idle for too long are closed."""
        oldest = asyncio.get_running_loop().time() - MAX_IDLE_S
        while self._idle and (self._idle[0].closed or self._idle[0].last_used_at < oldest):
            self._idle.popleft().abort()
        while self._idle:
            connection = self._idle.pop()
            if not connection.closed:
                return connection
        return None

    def _keep_idle(self, connection: HttpConnection) -> None:
        if connection.closed or len(self._idle) >= MAX_IDLE_CONNECTIONS:
            connection.abort()
            return
        connection.last_used_at = asyncio.get_running_loop().time()
        self._idle.append(connection)

    def _make_tls(self) -> ssl.SSLContext:
        found = None if self._find_tls is None else self._find_tls(self.url)
        return found or ssl.create_default_context()

    async def _connect(self) -> HttpConnection:
        loop = asyncio.get_running_loop()
        tls = self._make_tls() if self._is_secure else None
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                _, connection = await loop.create_connection(
                    HttpConnection, self._host, self._port, ssl=tls
                )
        except (OSError, TimeoutError) as error:
            raise NotConnected(f"{self.url}: {type(error).__name__} {error}") from error
        return connection
