"""A server and a worker in the process of a user, for as long as a command or a client is open.

A caller gets only the parts that it needs.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from noetl import settings
from noetl.model.errors import Unavailable
from noetl.model.identity import Identity
from noetl.runtime import LocalNeed
from noetl.runtime.egress import make_local_guard
from noetl.runtime.home import HomePorts, open_home, retry_if_embedded
from noetl.runtime.local_services import make_credential_service
from noetl.runtime.server_locks import end_dead_leases, lock_server
from noetl.runtime.server_settings import make_server_settings
from noetl.runtime.tools import add_usual_pools, make_extra_tools
from noetl.runtime.worker import WiredWorker, WorkerOptions, make_embedded_worker, make_options
from noetl.runtime.worker_locks import WorkerLocks
from noetl.server.node import Server

# Seconds that commands of other executions may still run when this process ends.
COMMAND_DRAIN_S = 3.0
# Seconds that a statement waits for the embedded database: the process that started it may end.
DATABASE_PATIENCE_S = 5.0


@dataclass(frozen=True, slots=True)
class LocalSite:
    """The open home, and the server in this process."""

    ports: HomePorts
    server: Server
    tasks: tuple["asyncio.Future[None]", ...] = ()  # of the server and the worker, if they run
    has_other_server: bool = False  # another process runs one, which does what this caller asks for


@asynccontextmanager
async def open_local_site(
    home: Path, need: LocalNeed, pools: tuple[str, ...] = ()
) -> AsyncIterator[LocalSite]:
    """A home, with the parts of a server and a worker that the caller needs.

    Reading needs neither. A change needs a server only if no other process runs one. The worker
    also serves `pools`.
    """
    async with open_home(home, patience_s=DATABASE_PATIENCE_S) as ports:
        server = _make_server(ports)
        if need == "read":
            yield LocalSite(ports, server)
            return
        if need == "change" and await ports.leases.count_servers():
            yield LocalSite(ports, server, has_other_server=True)
            return
        worker = None
        if need == "run":
            worker = make_embedded_worker(server, _make_worker_options(ports, pools))
        database = await retry_if_embedded(
            ports.data is not None, partial(end_dead_leases, home, ports.leases)
        )
        with lock_server(home, database, server.keeper):
            async with _run_server_and_worker(server, worker, ports) as tasks:
                yield LocalSite(ports, server, tasks)


def _make_server(ports: HomePorts) -> Server:
    async def reveal(identity: Identity, name: str) -> dict[str, Any]:
        return await make_credential_service(ports).reveal(identity, name)

    return Server(
        ports.stores,
        ports.leases,
        ports.bus,
        ports.catalog,
        ports.clock,
        make_server_settings(ports.shards),
        reveal=reveal,
        worker_locks=WorkerLocks(ports.home),
    )


def _make_worker_options(ports: HomePorts, more: tuple[str, ...]) -> WorkerOptions:
    """Options of a worker that lives as long as its caller. It also serves the pools in `more`."""
    usual_options = make_options(
        ports.home,
        settings.read_settings(settings.WorkerProcessSettings),
        settings.read_settings(settings.ShardSettings),
        settings.read_settings(settings.StorageSettings),
    )
    pools = dict.fromkeys((*add_usual_pools(usual_options.pools), *more))
    return replace(
        usual_options,
        pools=tuple(pools),
        drain=COMMAND_DRAIN_S,
        find_data=lambda: ports.data,
        tools=make_extra_tools(ports.home),
        guard=make_local_guard(ports.home),
    )


@asynccontextmanager
async def _run_server_and_worker(
    server: Server, worker: WiredWorker | None, ports: HomePorts
) -> AsyncIterator[tuple["asyncio.Future[None]", ...]]:
    """Run a server, and a worker if there is one. Yields their tasks."""
    is_embedded = ports.data is not None
    # gets a node number and shards before the first request
    await retry_if_embedded(is_embedded, server.keeper.run_once)
    leaving = asyncio.Event()
    serving = asyncio.ensure_future(server.run())
    tasks = [serving]
    if worker is not None:
        tasks.append(asyncio.ensure_future(worker.run(leaving)))
    try:
        yield tuple(tasks)
    finally:
        leaving.set()
        if worker is not None:
            await asyncio.wait(tasks[1:])
            await _release_commands(worker, ports)
        with suppress(Unavailable):  # the next list of executions should show how this one ended
            await server.projector.write_all_rows()
        serving.cancel()
        await asyncio.wait((serving,))


async def _release_commands(worker: WiredWorker, ports: HomePorts) -> None:
    """Give the worker's commands back, so that others need not wait until its lease runs out."""
    if worker.held_count:
        with suppress(Unavailable):
            await ports.stores.queue.end_leases(worker.holder)
