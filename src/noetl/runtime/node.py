"""Wires the parts of one server process: the server, its services and its HTTP application."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from starlette.types import ASGIApp

from noetl.accounts.port import TokenStore
from noetl.accounts.tenants import TenantStore
from noetl.accounts.users import UserStore
from noetl.audit.port import AuditLog
from noetl.bus.port import Bus
from noetl.caches import LruCache
from noetl.catalog.port import Catalog, Vault
from noetl.leases.port import Leases
from noetl.log.stores import Stores
from noetl.metrics import Metrics
from noetl.model.clock import Clock
from noetl.model.errors import Unavailable
from noetl.model.ids import Tenant
from noetl.playbook.validation import Kinds
from noetl.runtime.issuer import make_issuer
from noetl.server.accounts.authenticator import Authenticator
from noetl.server.accounts.service import AccountService
from noetl.server.accounts.users import UserService
from noetl.server.audit.recorder import AuditRecorder
from noetl.server.audit.refusals import RefusedCalls
from noetl.server.audit.service import AuditService
from noetl.server.catalog.service import CatalogService
from noetl.server.credentials.keys import KeyFile
from noetl.server.credentials.service import CredentialService
from noetl.server.duties.jobs import Run
from noetl.server.duties.lost_workers import WorkerLiveness
from noetl.server.executions.access import Access
from noetl.server.executions.bulk import BulkService
from noetl.server.executions.counts import CountService
from noetl.server.executions.service import ExecutionService
from noetl.server.health.service import HealthService
from noetl.server.hooks.service import HookService
from noetl.server.http.application import create_app
from noetl.server.inspection.service import InspectionService
from noetl.server.items.service import ItemService
from noetl.server.logs.search import LogSearchService
from noetl.server.logs.service import LogService
from noetl.server.node import Server
from noetl.server.oidc.port import Issuer
from noetl.server.oidc.service import OidcService
from noetl.server.queue.service import QueueService
from noetl.server.results.lineage import LineageService
from noetl.server.results.opener import OpenResults, Results
from noetl.server.results.service import ResultService
from noetl.server.results.usage import UsageService
from noetl.server.schedules.service import ScheduleService
from noetl.server.services import Services
from noetl.server.settings import ServerSettings
from noetl.server.signals.service import SignalService
from noetl.server.state.service import PlaybookStateService
from noetl.server.streams.live import LiveObserver, LiveUpdates
from noetl.server.streams.service import StreamService
from noetl.server.templates.service import RenderService
from noetl.server.tenants.quotas import QuotaGuard
from noetl.server.tenants.service import TenantService
from noetl.server.variables.service import VariableService
from noetl.server.workers.presence import Presence
from noetl.server.workers.routes import WorkerRoutes
from noetl.triggers.port import Hooks, Schedules

MAX_OPEN_TENANTS = 64  # with open results in a server; each of them has a cache of payloads


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
    tokens: TokenStore
    tenants: TenantStore
    users: UserStore
    audit: AuditLog


@dataclass(frozen=True, slots=True)
class Node:
    """The parts of one server process that its callers use."""

    ports: ServerPorts
    server: Server
    services: Services
    live: LiveUpdates
    observer: LiveObserver
    presence: Presence
    worker_routes: WorkerRoutes
    metrics: Metrics
    app: ASGIApp

    def close(self) -> None:
        """End all polls and streams. May be called again."""
        self.live.close()
        self.worker_routes.close()


def assemble_node(
    ports: ServerPorts,
    settings: ServerSettings,
    metrics: Metrics | None = None,
    *,
    kinds: Kinds | None = None,
    open_results: Callable[[Server, Tenant], Results] | None = None,
    jobs: Mapping[str, Run] | None = None,
    worker_locks: WorkerLiveness | None = None,
) -> Node:
    """Wire the server, its services and its HTTP application.

    `kinds` are the tools of installed packages: the server runs none, but checks their fields when
    a playbook is registered. `open_results` makes the port to stored results of a tenant. `jobs` run over the
    log, by name. `worker_locks` show which workers of this machine are gone.
    """
    metrics = metrics or Metrics()
    live = LiveUpdates()
    observer = LiveObserver(live, metrics, settings.shards)
    audit = AuditRecorder(ports.audit)
    refused_calls = RefusedCalls(ports.audit)
    credential_service = CredentialService(ports.vault, ports.keys, audit=audit)
    quotas = QuotaGuard(ports.tenants, ports.stores.usage)
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
        worker_locks=worker_locks,
        quotas=quotas,
        refused_calls=refused_calls,
    )
    presence = Presence(
        ports.stores.presence,
        ports.stores.queue,
        ports.bus,
        settings.shards,
        settings.name,
        metrics,
    )
    worker_routes = WorkerRoutes(server, presence, metrics)
    playbooks = CatalogService(ports.catalog, kinds, ports.vault, audit=audit)
    results_ = None if open_results is None else _open_once(partial(open_results, server))
    authenticator = Authenticator(ports.tokens, ports.clock)
    services = make_services(
        server,
        ports,
        live,
        metrics,
        playbooks,
        credential_service,
        results_,
        authenticator,
        quotas,
        audit,
        make_issuer(settings.issuer),
    )
    app = create_app(services, metrics, worker_routes, authenticator, settings, refused_calls)
    return Node(ports, server, services, live, observer, presence, worker_routes, metrics, app)


def make_services(
    server: Server,
    ports: ServerPorts,
    live: LiveUpdates,
    metrics: Metrics,
    playbooks: CatalogService,
    credential_service: CredentialService,
    results_: OpenResults | None,
    authenticator: Authenticator,
    quotas: QuotaGuard,
    audit: AuditRecorder,
    issuer: Issuer | None = None,
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
        audit=audit,
    )
    result_service = ResultService(stores.log, stores.lifetimes, executions_, access, results_)
    account_service = AccountService(ports.tokens, authenticator, ports.tenants, audit=audit)
    return Services(
        catalog=playbooks,
        credentials=credential_service,
        executions=executions_,
        counts=CountService(stores.projections),
        bulk=BulkService(executions_),
        inspection=InspectionService(
            stores, server.rows, server.folds, server.playbooks, live, access
        ),
        signals=SignalService(stores.inbox, server.requests, access, audit=audit),
        schedules=ScheduleService(ports.schedules, server.playbooks, server.clock, audit=audit),
        hooks=HookService(
            ports.hooks,
            server.playbooks,
            server.requests,
            credential_service.reveal,
            ports.tenants,
            audit=audit,
        ),
        playbook_state=PlaybookStateService(stores.state, playbooks),
        queue=QueueService(stores.queue, stores.presence),
        rendering=RenderService(stores.log, executions_),
        streams=StreamService(stores.log, stores.projections, live, access),
        logs=LogService(stores.log, stores.step_logs, live, access),
        log_search=LogSearchService(stores.step_logs, access),
        results=result_service,
        items=ItemService(stores.log, stores.lineage, server.states, access, result_service),
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
        tenants=TenantService(ports.tenants, stores.usage, quotas, audit=audit),
        accounts=account_service,
        users=UserService(ports.users, account_service, authenticator, audit=audit),
        oidc=OidcService(
            ports.users, account_service, authenticator, server.settings.issuer, issuer
        ),
        audit=AuditService(ports.audit),
    )


def _open_once(open_results: OpenResults) -> OpenResults:
    """The same, with the results of the tenants that were asked for last in memory."""
    opened: LruCache[Tenant, Results] = LruCache(MAX_OPEN_TENANTS)

    def open_cached(tenant: Tenant) -> Results:
        results = opened.get(tenant)
        if results is None:
            results = open_results(tenant)
            opened.put(tenant, results)
        return results

    return open_cached


def _make_availability_check(draw: Callable[[], Any]) -> Callable[[], bool]:
    """A predicate: whether this call succeeds, or the store is unavailable for it."""

    def is_available() -> bool:
        try:
            draw()
        except Unavailable:
            return False
        return True

    return is_available
