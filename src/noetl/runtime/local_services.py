"""The services of a server in the process of a user, each made at its first use.

A command uses one or two of them, and loading all would take longer than most commands do.
"""

from functools import cached_property
from typing import TYPE_CHECKING

from noetl.pipeline.output.reading import StoredResults
from noetl.runtime.home import HomePorts
from noetl.runtime.kinds import find_known_kinds
from noetl.runtime.result_reading import open_result_reading
from noetl.server.audit.recorder import AuditRecorder
from noetl.server.audit.service import AuditService
from noetl.server.catalog.service import CatalogService
from noetl.server.executions.access import Access
from noetl.server.executions.service import ExecutionService
from noetl.server.hooks.service import HookService
from noetl.server.items.service import ItemService
from noetl.server.logs.service import LogService
from noetl.server.node import Server
from noetl.server.queue.service import QueueService
from noetl.server.results.lineage import LineageService
from noetl.server.results.service import ResultService
from noetl.server.results.usage import UsageService
from noetl.server.schedules.service import ScheduleService
from noetl.server.signals.service import SignalService
from noetl.server.state.service import PlaybookStateService
from noetl.server.streams.live import LiveUpdates

if TYPE_CHECKING:
    from noetl.server.accounts.service import AccountService
    from noetl.server.accounts.users import UserService
    from noetl.server.credentials.service import CredentialService
    from noetl.server.inspection.service import InspectionService
    from noetl.server.tenants.service import TenantService


class LocalServices:
    """The services on an open home. `log_poll_s`: seconds between two reads of printed lines."""

    def __init__(self, ports: HomePorts, server: Server, log_poll_s: float) -> None:
        self._ports = ports
        self._server = server
        self._log_poll_s = log_poll_s
        self._access = Access(ports.stores.log)
        self._audit = AuditRecorder(ports.audit)
        self.stored_results: StoredResults = open_result_reading(server, ports.home)

    @cached_property
    def catalog(self) -> CatalogService:
        ports = self._ports
        return CatalogService(ports.catalog, find_known_kinds(), ports.vault, audit=self._audit)

    @property
    def credentials(self) -> "CredentialService":
        return make_credential_service(self._ports)

    @cached_property
    def accounts(self) -> "AccountService":
        return make_account_services(self._ports)[0]

    @cached_property
    def tenants(self) -> "TenantService":
        from noetl.server.tenants.service import TenantService  # for one group of commands

        ports = self._ports
        return TenantService(ports.tenants, ports.stores.usage, audit=self._audit)

    @cached_property
    def users(self) -> "UserService":
        return make_account_services(self._ports)[1]

    @cached_property
    def executions(self) -> ExecutionService:
        server = self._server
        return ExecutionService(
            self._ports.stores,
            server.rows,
            server.requests,
            server.states,
            server.playbooks,
            server.shards,
            LiveUpdates(),
            self._access,
            server.keeper.new_id,
            audit=self._audit,
        )

    @cached_property
    def inspection(self) -> "InspectionService":
        from noetl.server.inspection.service import InspectionService  # 15 ms, for two commands

        server = self._server
        stores = self._ports.stores
        return InspectionService(
            stores, server.rows, server.folds, server.playbooks, LiveUpdates(), self._access
        )

    @cached_property
    def results(self) -> ResultService:
        stores = self._ports.stores
        return ResultService(
            stores.log,
            stores.lifetimes,
            self.executions,
            self._access,
            lambda tenant: self.stored_results,  # the caller is the one of the home
        )

    @cached_property
    def items(self) -> ItemService:
        stores = self._ports.stores
        states = self._server.states
        return ItemService(stores.log, stores.lineage, states, self._access, self.results)

    @cached_property
    def lineage(self) -> LineageService:
        stores = self._ports.stores
        return LineageService(stores.log, stores.lineage, self.executions)

    @cached_property
    def usage(self) -> UsageService:
        return UsageService(self._ports.stores.lifetimes, self.executions)

    @cached_property
    def logs(self) -> LogService:
        stores = self._ports.stores
        live = LiveUpdates()
        return LogService(stores.log, stores.step_logs, live, self._access, self._log_poll_s)

    @cached_property
    def queue(self) -> QueueService:
        return QueueService(self._ports.stores.queue, self._ports.stores.presence)

    @cached_property
    def schedules(self) -> ScheduleService:
        server = self._server
        return ScheduleService(
            self._ports.schedules, server.playbooks, server.clock, audit=self._audit
        )

    @cached_property
    def playbook_state(self) -> PlaybookStateService:
        return PlaybookStateService(self._ports.stores.state, self.catalog)

    @cached_property
    def hooks(self) -> HookService:
        server = self._server
        reveal = self.credentials.reveal
        return HookService(
            self._ports.hooks,
            server.playbooks,
            server.requests,
            reveal,
            self._ports.tenants,
            audit=self._audit,
        )

    @cached_property
    def signals(self) -> SignalService:
        return SignalService(
            self._ports.stores.inbox, self._server.requests, self._access, audit=self._audit
        )

    @cached_property
    def audit(self) -> AuditService:
        return AuditService(self._ports.audit)


def make_account_services(ports: HomePorts) -> tuple["AccountService", "UserService"]:
    """Made when they are needed, for two groups of commands."""
    from noetl.server.accounts import authenticator, service, users

    known = authenticator.Authenticator(ports.tokens, ports.clock)
    audit = AuditRecorder(ports.audit)
    accounts = service.AccountService(ports.tokens, known, ports.tenants, audit=audit)
    return accounts, users.UserService(ports.users, accounts, known, audit=audit)


def make_credential_service(ports: HomePorts) -> "CredentialService":
    """Made when it is needed, because the encryption library takes time to load."""
    from noetl.server.credentials import keys, service

    audit = AuditRecorder(ports.audit)
    return service.CredentialService(ports.vault, keys.KeyFile(ports.home), audit=audit)
