"""A proxy in the worker for libraries that open their connections themselves, such as object stores.

It listens on the loopback address for as long as one call runs, asks for a password that only this
call knows, and connects to addresses that the egress guard has checked. It answers `CONNECT` for
TLS, and forwards one plain request per connection.
"""

import asyncio
import base64
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

from noetl.tools.egress.guard import EgressGuard, EgressRefused

MAX_HEAD_BYTES = 64 << 10
COPY_BYTES = 256 << 10
PROXY_CONNECT_TIMEOUT_S = 10.0
# Headers that end at a proxy.
HOP_HEADERS = (b"proxy-authorization:", b"proxy-connection:", b"connection:", b"keep-alive:")

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def open_egress_proxy(guard: EgressGuard) -> AsyncIterator["EgressProxy"]:
    proxy = EgressProxy(guard)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.close()


class EgressProxy:
    def __init__(self, guard: EgressGuard) -> None:
        self._guard = guard
        self._password = secrets.token_hex(16)
        self._server: asyncio.Server | None = None
        self._running: set[asyncio.Task[None]] = set()
        self._port = 0
        self.refused: EgressRefused | None = None  # the last refusal, which clients cannot see

    @property
    def url(self) -> str:
        return f"http://noetl:{self._password}@127.0.0.1:{self._port}"

    async def start(self) -> None:
        self._server = await asyncio.start_server(
            self._serve_client, "127.0.0.1", 0, limit=MAX_HEAD_BYTES
        )
        self._port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(self._running)

    async def _serve_client(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        task = asyncio.current_task()
        assert task is not None, "asyncio runs this in a task"
        self._running.add(task)
        try:
            with suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                await self._forward(reader, writer)
        finally:
            self._running.discard(task)
            writer.close()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
        if not self._has_password(lines[1:]):
            await _answer(writer, "407 Proxy Authentication Required")
            return
        try:
            method, target, _ = lines[0].decode("ascii").split(" ")
            url = urlsplit(f"//{target}" if method == "CONNECT" else target)
            port = url.port or 80
            host = url.hostname or ""
        except ValueError:
            await _answer(writer, "400 Bad Request")
            return
        try:
            upstream = await self._connect(host, port)
        except EgressRefused as refused:
            self.refused = refused
            await _answer(writer, "403 Forbidden")
            return
        except (OSError, TimeoutError):
            await _answer(writer, "502 Bad Gateway")
            return
        try:
            if method == "CONNECT":
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            else:
                path = url._replace(scheme="", netloc="").geturl() or "/"
                upstream[1].write(_make_plain_head(f"{method} {path} HTTP/1.1", lines[1:]))
            await _copy_both_ways((reader, writer), upstream)
        finally:
            upstream[1].close()

    def _has_password(self, headers: list[bytes]) -> bool:
        login = base64.b64encode(f"noetl:{self._password}".encode())
        for header in headers:
            name, _, value = header.partition(b":")
            if name.lower() == b"proxy-authorization":
                return secrets.compare_digest(value.strip(), b"Basic " + login)
        return False

    async def _connect(self, host: str, port: int) -> Streams:
        async with asyncio.timeout(PROXY_CONNECT_TIMEOUT_S):
            addresses = await self._guard.find_addresses(host, port)
            for address in addresses[:-1]:
                with suppress(OSError):
                    return await asyncio.open_connection(address, port)
            return await asyncio.open_connection(addresses[-1], port)


def _make_plain_head(first: str, headers: list[bytes]) -> bytes:
    """The head of the request for the server, which closes the connection after its answer."""
    kept = [line for line in headers if not line.lower().startswith(HOP_HEADERS)]
    return b"\r\n".join([first.encode("ascii"), *kept, b"Connection: close", b"", b""])


async def _answer(writer: asyncio.StreamWriter, status: str) -> None:
    writer.write(f"HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
    await writer.drain()


async def _copy_both_ways(client: Streams, upstream: Streams) -> None:
    """Copy until the server has closed its side. A client that is done may still wait."""
    sending = asyncio.ensure_future(_copy(client[0], upstream[1]))
    try:
        await _copy(upstream[0], client[1])
    finally:
        sending.cancel()
        await asyncio.wait((sending,))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(COPY_BYTES):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
