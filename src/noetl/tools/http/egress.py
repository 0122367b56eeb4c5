"""The transport by which all tools of a worker connect to other hosts over HTTP."""

import sys
from collections.abc import Iterable
from importlib.util import find_spec
from typing import Any

import httpcore
import httpx

if find_spec("sniffio") is None:
    # httpcore imports sniffio for every lock that it takes, and Python does not cache a failed import.
    # Without this entry a small request spends a third of its time on that.
    sys.modules["sniffio"] = None  # type: ignore[assignment]  # the import fails at once


class EgressBackend(httpcore.AsyncNetworkBackend):
    """Opens every connection of the http tool, also those of redirects, in `connect_tcp`."""

    def __init__(self, backend: httpcore.AsyncNetworkBackend) -> None:
        self._backend = backend

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        address = await find_permitted_address(host, port)
        return await self._backend.connect_tcp(
            address, port, timeout, local_address, socket_options
        )

    async def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[Any] | None = None
    ) -> httpcore.AsyncNetworkStream:
        raise httpcore.ConnectError("the http tool opens no local sockets")

    async def sleep(self, seconds: float) -> None:
        await self._backend.sleep(seconds)


async def find_permitted_address(host: str, port: int) -> str:
    """The address to connect to.

    This is the place to resolve a host once, check its address and pin it. Now it permits every
    host.
    """
    return host


class EgressTransport(httpx.AsyncHTTPTransport):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        pool: Any = self._pool  # httpx has no parameter for the backend of its pool
        pool._network_backend = EgressBackend(pool._network_backend)
