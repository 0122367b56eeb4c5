"""Opens a server on the home of this machine.

The modules of the server are loaded in a thread while the database is prepared: each takes about as
long as the other.
"""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from noetl.leases.postgres import LeasesPostgres
from noetl.runtime.home import open_home
from noetl.runtime.listening import (
    format_address,
    is_reachable_from_elsewhere,
    open_listener,
    stop_on_signals,
)
from noetl.runtime.meanwhile import load_modules, run_meanwhile
from noetl.runtime.tls import make_server_context
from noetl.settings import HomeSettings, ListenSettings, read_settings
from noetl.time_slice import SERVER_TIME_SLICE_S

if TYPE_CHECKING:
    from noetl.runtime.node import Node


@dataclass(frozen=True, slots=True)
class OpenServer:
    """A server that does not answer yet, its socket, and the event that stops it."""

    node: "Node"
    listener: socket.socket
    stop: asyncio.Event
    tls: ssl.SSLContext | None
    data: str | None = field(repr=False)  # address of the database for users' tables

    @property
    def address(self) -> str:
        return format_address(self.listener, "http" if self.tls is None else "https")

    @property
    def is_exposed(self) -> bool:
        """Whether others can read on the way what callers send."""
        return self.tls is None and is_reachable_from_elsewhere(self.listener)


@asynccontextmanager
async def open_server(
    host: str | None, port: int | None, *modules: str
) -> AsyncIterator[OpenServer]:
    """A server at this address; without one, at the address of the settings.

    The socket is opened first: a process that cannot have it must not start a database. `modules`
    are loaded too, for the caller.
    """
    listen_settings = read_settings(ListenSettings, host=host, port=port)
    tls = make_server_context(listen_settings)
    listener = open_listener(listen_settings.host, listen_settings.port)
    address = format_address(listener, "http" if tls is None else "https")
    stop = stop_on_signals()
    try:
        home = read_settings(HomeSettings).home_path
        async with (
            run_meanwhile(load_modules("noetl.runtime.server_node", *modules)) as loading,
            open_home(home, SERVER_TIME_SLICE_S) as ports,
            run_meanwhile(_read_leases(ports.leases)),
        ):
            server_node, *_ = await loading
            certificate = listen_settings.tls_cert
            async with server_node.open_node(ports, address, certificate) as node:
                yield OpenServer(node, listener, stop, tls, ports.data)
    finally:
        listener.close()


async def _read_leases(leases: LeasesPostgres) -> None:
    """Connect, and read what the first renewal reads too, while modules are loaded.

    The database plans each statement once per connection. A connection that fails is made again
    when it is used.
    """
    await leases.read_clock()
    await leases.count_servers()
    await leases.list_owners()
