"""The one door through which the tools of this worker connect to other hosts over HTTP."""

import sys
from collections.abc import Iterable
from importlib.util import find_spec
from typing import Any

import httpcore
import httpx

if find_spec("sniffio") is None:
    # httpcore imports it at every lock it takes, to know the event loop, and an import that fails is not remembered: until it is
    # told that there is none, a third of a small request's time goes by looking for it
    sys.modules["sniffio"] = None  # type: ignore[assignment]  # means: not to be found


class Egress(httpcore.AsyncNetworkBackend):
    """Every connection of the http tool is opened by `connect_tcp`, redirects included."""

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
        return await self._backend.connect_tcp(
            await permitted(host, port), port, timeout, local_address, socket_options
        )

    async def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[Any] | None = None
    ) -> httpcore.AsyncNetworkStream:
        raise httpcore.ConnectError("the http tool opens no local sockets")

    async def sleep(self, seconds: float) -> None:
        await self._backend.sleep(seconds)


async def permitted(host: str, port: int) -> str:
    """The address to connect to. Here the host will be resolved once, checked, and its address pinned."""
    return host


class Transport(httpx.AsyncHTTPTransport):
    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        pool: Any = self._pool  # httpx has no parameter for the backend of its pool
        pool._network_backend = Egress(pool._network_backend)
