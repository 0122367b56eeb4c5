"""Opens a server on the home of this machine, and runs it, alone or with a worker."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from noetl.model.identity import LOCAL_IDENTITY
from noetl.runtime.home import (
    HomePorts,
    make_server_settings,
    open_home,
    open_result_reading,
)
from noetl.runtime.kinds import find_known_kinds
from noetl.runtime.node import Node, ServerPorts, assemble_node
from noetl.runtime.scheduled_jobs import make_scheduled_jobs
from noetl.runtime.serving import format_address, open_listener, serve, stop_on_signals
from noetl.runtime.tools import add_usual_pools, make_extra_tools
from noetl.runtime.worker import WorkerOptions, make_options, serve_worker
from noetl.runtime.worker_locks import WorkerLocks
from noetl.server.credentials.keys import KeyFile
from noetl.settings import (
    HomeSettings,
    ListenSettings,
    ShardSettings,
    StorageSettings,
    WorkerProcessSettings,
    read_settings,
)
from noetl.time_slice import SERVER_TIME_SLICE_S

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OpenServer:
    """A server that does not answer yet, its socket, and the event that stops it."""

    node: Node
    listener: socket.socket
    stop: asyncio.Event
    data: str | None = field(repr=False)  # address of the database for users' tables

    @property
    def address(self) -> str:
        return format_address(self.listener)


@asynccontextmanager
async def open_server(host: str | None, port: int | None) -> AsyncIterator[OpenServer]:
    """A server at this address; without one, at the address of the settings.

    The socket is opened first: a process that cannot have it must not start a database.
    """
    listen_settings = read_settings(ListenSettings, host=host, port=port)
    listener = open_listener(listen_settings.host, listen_settings.port)
    stop = stop_on_signals()
    try:
        home = read_settings(HomeSettings).home_path
        async with open_home(home, SERVER_TIME_SLICE_S) as ports:
            node = _make_node(ports, format_address(listener))
            await _check_credential_keys(node)
            yield OpenServer(node, listener, stop, ports.data)
    finally:
        listener.close()


def make_server_ports(ports: HomePorts) -> ServerPorts:
    return ServerPorts(
        stores=ports.stores,
        leases=ports.leases,
        bus=ports.bus,
        catalog=ports.catalog,
        clock=ports.clock,
        vault=ports.vault,
        keys=KeyFile(ports.home),
        schedules=ports.schedules,
        hooks=ports.hooks,
    )


def _make_node(ports: HomePorts, address: str) -> Node:
    return assemble_node(
        make_server_ports(ports),
        make_server_settings(ports.shards, address, SERVER_TIME_SLICE_S),
        kinds=find_known_kinds(),
        jobs=make_scheduled_jobs(),
        open_results=lambda server: open_result_reading(server, ports.home),
        worker_locks=WorkerLocks(ports.home),
    )


async def _check_credential_keys(node: Node) -> None:
    """Check the key file now, so that a bad one stops the start.

    A credential that was sealed with another key fails only the steps that use it, so it is logged.
    """
    for name in await node.services.credentials.list_unreadable(LOCAL_IDENTITY):
        log.error("credential sealed with another key", extra={"credential": name})


async def run_server(opened: OpenServer) -> None:
    await serve(opened.node, opened.listener, several=True, stop=opened.stop)


async def run_server_and_worker(opened: OpenServer, background: Coroutine[Any, Any, None]) -> None:
    """Run a server, a worker that calls it in this process, and `background`, until one of them ends."""
    stop = opened.stop
    worker_left = asyncio.Event()  # the server runs until the worker has sent its last reports
    serving = asyncio.ensure_future(
        serve(opened.node, opened.listener, several=True, stop=worker_left)
    )
    options = _make_worker_options(opened)
    working = asyncio.ensure_future(serve_worker(opened.node.server, options, stop))
    watching = asyncio.ensure_future(background)
    try:
        await asyncio.wait((serving, working, watching), return_when=asyncio.FIRST_COMPLETED)
    finally:
        stop.set()
        watching.cancel()
        await asyncio.wait((working, watching))
        worker_left.set()
        await asyncio.wait((serving,))
    for task in (serving, working):
        task.result()


def _make_worker_options(opened: OpenServer) -> WorkerOptions:
    options = make_options(
        read_settings(HomeSettings).home_path,
        read_settings(WorkerProcessSettings),
        read_settings(ShardSettings),
        read_settings(StorageSettings),
    )
    return replace(
        options,
        pools=add_usual_pools(options.pools),
        find_data=lambda: opened.data,
        tools=make_extra_tools(options.home),
    )
