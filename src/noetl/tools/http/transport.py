"""The transport by which all tools of a worker connect to other hosts over HTTP."""

import asyncio
import ssl
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

import httpcore
import httpx

from noetl.tools.egress.guard import EgressGuard

if find_spec("sniffio") is None:
    # httpcore imports sniffio for every lock that it takes, and Python does not cache a failed import.
    # Without this entry a small request spends a third of its time on that.
    sys.modules["sniffio"] = None  # type: ignore[assignment]  # the import fails at once

# The extension of a request that has a token for the API of NoETL.
TOKEN_EXTENSION = "noetl_token"
# Seconds after which the next address of a host is tried, too, as in RFC 8305.
NEXT_ADDRESS_DELAY_S = 0.25


class EgressBackend(httpcore.AsyncNetworkBackend):
    """Opens every connection of the http tool, also those of redirects, in `connect_tcp`.

    It connects to an address that the guard has checked. `Host` and the name in TLS stay as they
    are, because httpcore takes them from the request.
    """

    def __init__(
        self, backend: httpcore.AsyncNetworkBackend, guard: EgressGuard, *, has_token: bool
    ) -> None:
        self._backend = backend
        self._guard = guard
        self._has_token = has_token

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        began = time.monotonic()
        try:
            async with asyncio.timeout(timeout):
                addresses = await self._guard.find_addresses(host, port, has_token=self._has_token)
        except TimeoutError as error:
            raise httpcore.ConnectTimeout(f"the address of {host} was not found in time") from error
        except OSError as error:
            raise httpcore.ConnectError(str(error)) from error
        if timeout is not None:
            timeout = max(0.0, timeout - (time.monotonic() - began))

        async def connect(address: str) -> httpcore.AsyncNetworkStream:
            return await self._backend.connect_tcp(
                address, port, timeout, local_address, socket_options
            )

        if len(addresses) == 1:
            return await connect(addresses[0])
        return await _connect_to_any(addresses, connect)

    async def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[Any] | None = None
    ) -> httpcore.AsyncNetworkStream:
        raise httpcore.ConnectError("the http tool opens no local sockets")

    async def sleep(self, seconds: float) -> None:
        await self._backend.sleep(seconds)


Connect = Callable[[str], Awaitable[httpcore.AsyncNetworkStream]]


async def _connect_to_any(addresses: list[str], connect: Connect) -> httpcore.AsyncNetworkStream:
    """Connect to the first address that answers. A slow one does not delay the next for long."""
    attempts: list[asyncio.Future[httpcore.AsyncNetworkStream]] = []
    waiting = list(addresses)
    try:
        while True:
            delay = None
            if waiting:
                attempts.append(asyncio.ensure_future(connect(waiting.pop(0))))
                delay = NEXT_ADDRESS_DELAY_S
            running = [attempt for attempt in attempts if not attempt.done()]
            if running:
                await asyncio.wait(running, timeout=delay, return_when=asyncio.FIRST_COMPLETED)
            for attempt in attempts:
                if attempt.done() and attempt.exception() is None:
                    attempts.remove(attempt)
                    return attempt.result()
            if not waiting and all(attempt.done() for attempt in attempts):
                return attempts[0].result()  # raises the error of the first address
    finally:
        await _close_attempts(attempts)


async def _close_attempts(attempts: list["asyncio.Future[httpcore.AsyncNetworkStream]"]) -> None:
    for attempt in attempts:
        attempt.cancel()
    for attempt in attempts:
        with suppress(httpcore.NetworkError, httpcore.TimeoutException, asyncio.CancelledError):
            stream = await attempt
            await stream.aclose()


class EgressTransport(httpx.AsyncBaseTransport):
    """Sends requests over connections that the guard permits.

    Requests with a token for the API of NoETL have connections of their own: another request must
    not get there over a connection that one of them has opened.
    """

    def __init__(
        self,
        guard: EgressGuard,
        *,
        verify: bool | ssl.SSLContext = True,
        limits: httpx.Limits | None = None,
    ) -> None:
        self._guard = guard
        self._context = httpx.create_ssl_context(verify, trust_env=False)
        self._limits = limits or httpx.Limits()
        self._transports: dict[bool, httpx.AsyncHTTPTransport] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        has_token = TOKEN_EXTENSION in request.extensions
        transport = self._transports.get(has_token)
        if transport is None:
            transport = self._open_transport(has_token=has_token)
            self._transports[has_token] = transport
        return await transport.handle_async_request(request)

    def _open_transport(self, *, has_token: bool) -> httpx.AsyncHTTPTransport:
        transport = httpx.AsyncHTTPTransport(
            verify=self._context, limits=self._limits, trust_env=False
        )
        pool: Any = transport._pool  # httpx has no parameter for the backend of its pool
        pool._network_backend = EgressBackend(
            pool._network_backend, self._guard, has_token=has_token
        )
        return transport

    async def aclose(self) -> None:
        for transport in self._transports.values():
            await transport.aclose()
