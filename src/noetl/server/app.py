"""Wires one server process with its HTTP application. `serve` runs it until it is told to stop.

The shutdown has this order: polls and streams end, the server takes no new request, it answers the
requests under way, and then gives its shards back. A worker repeats an ended poll at another server
or after the restart.
"""

import asyncio
import logging
import signal
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import msgspec
import uvicorn
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from noetl.bus.port import Bus
from noetl.catalog.port import Catalog, Vault
from noetl.leases.port import Leases
from noetl.log.stores import Stores
from noetl.metrics import Metrics
from noetl.model.clock import Clock
from noetl.model.errors import InvalidInput, Unavailable
from noetl.model.identity import LOCAL_IDENTITY
from noetl.playbook.validation import Kinds
from noetl.server.catalog import routes as catalog
from noetl.server.catalog.service import CatalogService
from noetl.server.credentials import routes as credentials
from noetl.server.credentials.keys import KeyFile
from noetl.server.credentials.service import CredentialService
from noetl.server.duties.jobs import Run
from noetl.server.executions import routes as executions
from noetl.server.executions.access import Access
from noetl.server.executions.service import ExecutionService
from noetl.server.health import routes as health
from noetl.server.health.service import HealthService
from noetl.server.hooks import routes as hooks
from noetl.server.hooks.service import HookService
from noetl.server.http.guard import Guard, check_bind
from noetl.server.http.openapi import make_document
from noetl.server.http.routing import DocumentedRoute, HttpRouter
from noetl.server.logs import routes as logs
from noetl.server.logs.service import LogService
from noetl.server.node import Server
from noetl.server.queue import routes as queue
from noetl.server.queue.service import QueueService
from noetl.server.results import routes as results
from noetl.server.results.lineage import LineageService
from noetl.server.results.opener import Results
from noetl.server.results.service import ResultService
from noetl.server.results.usage import UsageService
from noetl.server.schedules import routes as schedules
from noetl.server.schedules.service import ScheduleService
from noetl.server.services import Services
from noetl.server.settings import ServerSettings
from noetl.server.signals import routes as events
from noetl.server.signals.service import SignalService
from noetl.server.state import routes as playbook_state
from noetl.server.state.service import PlaybookStateService
from noetl.server.streams import routes as streams
from noetl.server.streams.live import (
    LiveObserver,
    LiveUpdates,
    announce_changes,
    hear_changes,
)
from noetl.server.streams.service import StreamService
from noetl.server.templates import routes as render
from noetl.server.templates.service import RenderService
from noetl.server.variables import routes as vars
from noetl.server.variables.service import VariableService
from noetl.server.workers.presence import Presence
from noetl.server.workers.routes import WorkerRoutes
from noetl.triggers.port import Hooks, Schedules

log = logging.getLogger(__name__)

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8082
SHUTDOWN_GRACE_S = 5.0  # seconds for requests under way when the process ends
ACCEPTS_PER_TURN = 8  # connections accepted per turn of the event loop
KEEP_ALIVE_S = 30  # seconds an idle connection is kept: longer than any pause of a worker


@dataclass(frozen=True, slots=True)
class ServerPorts:
    """The ports of one server."""

    stores: Stores
    leases: Leases
    bus: Bus
    catalog: Catalog
    clock: Clock
    vault: Vault
    keys: KeyFile
    schedules: Schedules
    hooks: Hooks


@dataclass(frozen=True, slots=True)
class Node:
    """The parts of one server process that its callers use."""

    ports: ServerPorts
    server: Server
    services: Services
    live: LiveUpdates
    observer: LiveObserver
    presence: Presence
    door: WorkerRoutes
    metrics: Metrics
    app: ASGIApp

    def close(self) -> None:
        """End all polls and streams. May be called again."""
        self.live.close()
        self.door.close()


def assemble_node(
    ports: ServerPorts,
    settings: ServerSettings,
    metrics: Metrics | None = None,
    *,
    kinds: Kinds | None = None,
    open_results: Callable[[Server], Results] | None = None,
    jobs: Mapping[str, Run] | None = None,
) -> Node:
    """Wire the server, its services and its HTTP application.

    `kinds` are the tools of installed packages: the server runs none, but checks their fields when
    a playbook is registered. `open_results` makes the port to stored results. `jobs` run over the
    log, by name.
    """
    metrics = metrics or Metrics()
    live = LiveUpdates()
    observer = LiveObserver(live, metrics, settings.shards)
    credential_service = CredentialService(ports.vault, ports.keys)
    server = Server(
        ports.stores,
        ports.leases,
        ports.bus,
        ports.catalog,
        ports.clock,
        settings,
        reveal=credential_service.reveal,
        schedules=ports.schedules,
        jobs=jobs,
        observer=observer,
    )
    presence = Presence(
        ports.stores.presence,
        ports.stores.queue,
        ports.bus,
        settings.shards,
        settings.name,
        metrics,
    )
    door = WorkerRoutes(server, presence, metrics)
    playbooks = CatalogService(ports.catalog, kinds, ports.vault)
    results_ = None if open_results is None else open_results(server)
    services = make_services(server, ports, live, metrics, playbooks, credential_service, results_)
    app = create_app(services, metrics, door)
    return Node(ports, server, services, live, observer, presence, door, metrics, app)


def make_services(
    server: Server,
    ports: ServerPorts,
    live: LiveUpdates,
    metrics: Metrics,
    playbooks: CatalogService,
    credential_service: CredentialService,
    results_: Results | None,
) -> Services:
    stores = ports.stores
    access = Access(stores.log)
    keeper = server.keeper
    executions_ = ExecutionService(
        stores,
        server.rows,
        server.requests,
        server.states,
        server.playbooks,
        server.shards,
        live,
        access,
        keeper.new_id,
    )
    result_service = ResultService(stores.log, stores.lifetimes, executions_, access, results_)
    return Services(
        catalog=playbooks,
        credentials=credential_service,
        executions=executions_,
        signals=SignalService(stores.inbox, server.requests, access),
        schedules=ScheduleService(ports.schedules, server.playbooks, server.clock),
        hooks=HookService(
            ports.hooks, server.playbooks, server.requests, credential_service.reveal
        ),
        playbook_state=PlaybookStateService(stores.state, playbooks),
        queue=QueueService(stores.queue, stores.presence),
        rendering=RenderService(stores.log, executions_),
        streams=StreamService(stores.log, stores.projections, live, access),
        logs=LogService(stores.log, stores.step_logs, live, access),
        results=result_service,
        variables=VariableService(executions_, result_service),
        lineage=LineageService(stores.log, stores.lineage, executions_),
        usage=UsageService(stores.lifetimes, executions_),
        health=HealthService(
            server.settings.name,
            stores.log,
            stores.projections,
            stores.queue,
            server.shards,
            ports.clock,
            metrics,
            _make_availability_check(keeper.new_id),
        ),
    )


def _make_availability_check(draw: Callable[[], Any]) -> Callable[[], bool]:
    """A predicate: whether this call succeeds, or the store is unavailable for it."""

    def is_available() -> bool:
        try:
            draw()
        except Unavailable:
            return False
        return True

    return is_available


SUBJECTS = (
    streams,
    catalog,
    credentials,
    executions,
    events,
    logs,
    results,
    vars,
    playbook_state,
    queue,
    render,
    schedules,
    hooks,
    health,
)


def create_app(services: Services, metrics: Metrics, door: WorkerRoutes) -> ASGIApp:
    router = HttpRouter()
    router.state.services = services
    router.state.identity = LOCAL_IDENTITY
    router.state.readers = streams.StreamReaders(metrics)
    door.add_routes(router)
    router.add_routes(list_routes())
    queue.add_gone_routes(router)
    router.add_plain("GET", "/api/openapi.json", _answer_openapi)
    return Guard(router, metrics)


def list_routes() -> list[DocumentedRoute]:
    return [route for subject in SUBJECTS for route in subject.routes.routes]


def make_openapi() -> dict[str, Any]:
    """The document that `noetl openapi` prints. The worker protocol is not part of it."""
    return make_document(list_routes())


async def _answer_openapi(request: Request) -> Response:
    return Response(_encode_openapi(), media_type="application/json")


@cache
def _encode_openapi() -> bytes:
    return msgspec.json.encode(make_openapi())


# ---- serving -----------------------------------------------------------------------------------------------------------


def open_listener(host: str = DEFAULT_HOST, port: int = DEFAULT_PORT) -> socket.socket:
    """A listening socket; port 0 chooses a free port. Raises `InvalidInput` if it cannot listen."""
    check_bind(host)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise InvalidInput(
            f"cannot listen on {host}:{port}: {error.strerror}",
            hint="another server may run already: stop it, or choose another port with --port",
        ) from error
    listener.listen(1024)
    listener.setblocking(False)
    return listener


def format_address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    if ":" in host:
        host = f"[{host}]"
    return f"http://{host}:{port}"


async def serve(
    node: Node, listener: socket.socket, *, several: bool = False, stop: asyncio.Event | None = None
) -> None:
    """Run until `stop` is set or the server fails. `several`: exchange hints with other servers."""
    try:
        await node.server.keeper.run_once()  # a node number and shards before the first request
    except BaseException:
        listener.close()
        raise
    web = _WebServer(node)
    stop = stop or asyncio.Event()
    answering = asyncio.ensure_future(web.answer_requests(listener))
    running = asyncio.ensure_future(node.server.run())
    hints = asyncio.ensure_future(_exchange_hints(node, several))
    ending = asyncio.ensure_future(stop.wait())
    log.info("server listens", extra={"address": format_address(listener)})
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


def stop_on_signals(*numbers: signal.Signals) -> asyncio.Event:
    """An event that the first signal sets.

    The web server does not handle the signals itself, because the shards are given back after it
    has ended.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in numbers or (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    return stop


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

    def __init__(self, node: Node) -> None:
        super().__init__(
            uvicorn.Config(
                node.app,
                http=_make_protocol(node.presence),
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,  # presence identifies connections by their real address
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


def _make_protocol(presence: Presence) -> type[HttpToolsProtocol]:
    """A protocol that tells `presence` of ended connections, so that a dead worker is detected at
    once, even if it has no request under way."""

    class WatchedProtocol(HttpToolsProtocol):
        def connection_lost(self, exc: Exception | None) -> None:
            presence.forget_connection(self.client)
            super().connection_lost(exc)

    return WatchedProtocol
