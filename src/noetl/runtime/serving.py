"""Answers requests at a socket, and runs a node until it is told to stop.

The shutdown has this order: polls and streams end, the server takes no new request, it answers the
requests under way, and then gives its shards back. A worker repeats an ended poll at another server
or after the restart.
"""

import asyncio
import logging
import socket
import ssl

import uvicorn

from noetl.runtime.http_protocol import make_protocol
from noetl.runtime.node import Node
from noetl.server.streams.live import announce_changes, hear_changes

log = logging.getLogger(__name__)

SHUTDOWN_GRACE_S = 5.0  # seconds for requests under way when the process ends
ACCEPTS_PER_TURN = 8  # connections accepted per turn of the event loop
KEEP_ALIVE_S = 30  # seconds an idle connection is kept: longer than any pause of a worker


async def serve(
    node: Node,
    listener: socket.socket,
    *,
    several: bool = False,
    stop: asyncio.Event | None = None,
    tls: ssl.SSLContext | None = None,
) -> None:
    """Run until `stop` is set or the server fails. `several`: exchange hints with other servers."""
    try:
        await node.server.keeper.run_once()  # a node number and shards before the first request
    except BaseException:
        listener.close()
        raise
    web = _WebServer(node, tls)
    stop = stop or asyncio.Event()
    answering = asyncio.ensure_future(web.answer_requests(listener))
    running = asyncio.ensure_future(node.server.run())
    hints = asyncio.ensure_future(_exchange_hints(node, several))
    ending = asyncio.ensure_future(stop.wait())
    log.info("server listens", extra={"address": node.server.settings.address})
    try:
        await asyncio.wait((answering, running, hints, ending), return_when=asyncio.FIRST_COMPLETED)
    finally:
        web.should_exit = True
        node.close()
        await asyncio.wait((answering,))
        for task in (running, hints, ending):
            task.cancel()
        await asyncio.wait((running, hints, ending))
    for task in (answering, running, hints):
        if not task.cancelled():
            task.result()


async def _exchange_hints(node: Node, several: bool) -> None:
    """Exchange hints with other servers. Without them, live updates of executions at another server
    come at the next poll."""
    if not several:
        await asyncio.Event().wait()
    shards = node.server.settings.shards
    async with asyncio.TaskGroup() as group:
        group.create_task(announce_changes(node.ports.bus, node.ports.leases, node.observer))
        group.create_task(hear_changes(node.ports.bus, node.live, shards))


class _WebServer(uvicorn.Server):
    """The web server of the node."""

    def __init__(self, node: Node, tls: ssl.SSLContext | None) -> None:
        super().__init__(
            uvicorn.Config(
                node.app,
                http=make_protocol(node.presence),
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,  # presence identifies connections by their real address
                ssl_context_factory=None if tls is None else lambda *_: tls,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=round(SHUTDOWN_GRACE_S),
            )
        )
        self._node = node

    async def answer_requests(self, listener: socket.socket) -> None:
        """Answer requests, without signal handlers.

        The event loop accepts one connection per turn and listening descriptor. Several descriptors
        shorten the queue when many clients connect at once.
        """
        duplicates = [listener.dup() for _ in range(ACCEPTS_PER_TURN - 1)]
        await self._serve([listener, *duplicates])

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._node.close()
        await super().shutdown(sockets)
