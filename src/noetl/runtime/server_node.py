"""Makes the node of a server process on the ports of its home."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from noetl.model.identity import LOCAL_IDENTITY
from noetl.runtime.home import HomePorts
from noetl.runtime.kinds import find_known_kinds
from noetl.runtime.local_tokens import store_local_tokens
from noetl.runtime.node import Node, ServerPorts, assemble_node
from noetl.runtime.result_reading import open_result_reading
from noetl.runtime.scheduled_jobs import make_scheduled_jobs
from noetl.runtime.server_locks import ServerPlace, hold_server_lock
from noetl.runtime.server_settings import make_server_settings
from noetl.runtime.worker_locks import WorkerLocks
from noetl.server.credentials.keys import KeyFile
from noetl.time_slice import SERVER_TIME_SLICE_S

log = logging.getLogger(__name__)


@asynccontextmanager
async def open_node(
    ports: HomePorts, address: str, certificate: Path | None = None
) -> AsyncIterator[Node]:
    """The node of a server at this address. It does not answer yet."""
    node = _make_node(ports, address)
    await store_local_tokens(ports.home, ports.tokens)
    await _check_credential_keys(node)
    place = ServerPlace(address, certificate)
    async with hold_server_lock(ports.home, ports.leases, node.server.keeper, place):
        yield node


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
        tokens=ports.tokens,
        tenants=ports.tenants,
        users=ports.users,
        audit=ports.audit,
    )


def _make_node(ports: HomePorts, address: str) -> Node:
    return assemble_node(
        make_server_ports(ports),
        make_server_settings(ports.shards, address, SERVER_TIME_SLICE_S),
        kinds=find_known_kinds(),
        jobs=make_scheduled_jobs(),
        open_results=lambda server, tenant: open_result_reading(server, ports.home, tenant),
        worker_locks=WorkerLocks(ports.home),
    )


async def _check_credential_keys(node: Node) -> None:
    """Check the key file now, so that a bad one stops the start.

    A credential that was sealed with another key fails only the steps that use it, so it is logged.
    """
    for name in await node.services.credentials.list_unreadable(LOCAL_IDENTITY):
        log.error("credential sealed with another key", extra={"credential": name})
