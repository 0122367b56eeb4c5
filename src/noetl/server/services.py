"""All services together, as the routes get them."""

from dataclasses import dataclass

from noetl.server.accounts.service import AccountService
from noetl.server.accounts.users import UserService
from noetl.server.audit.service import AuditService
from noetl.server.catalog.service import CatalogService
from noetl.server.credentials.service import CredentialService
from noetl.server.executions.bulk import BulkService
from noetl.server.executions.counts import CountService
from noetl.server.executions.service import ExecutionService
from noetl.server.health.service import HealthService
from noetl.server.hooks.service import HookService
from noetl.server.inspection.service import InspectionService
from noetl.server.items.service import ItemService
from noetl.server.logs.search import LogSearchService
from noetl.server.logs.service import LogService
from noetl.server.oidc.service import OidcService
from noetl.server.queue.service import QueueService
from noetl.server.results.lineage import LineageService
from noetl.server.results.service import ResultService
from noetl.server.results.usage import UsageService
from noetl.server.schedules.service import ScheduleService
from noetl.server.signals.service import SignalService
from noetl.server.state.service import PlaybookStateService
from noetl.server.streams.service import StreamService
from noetl.server.templates.service import RenderService
from noetl.server.tenants.service import TenantService
from noetl.server.variables.service import VariableService


@dataclass(frozen=True, slots=True)
class Services:
    catalog: CatalogService
    credentials: CredentialService
    executions: ExecutionService
    counts: CountService
    bulk: BulkService
    inspection: InspectionService
    signals: SignalService
    schedules: ScheduleService
    hooks: HookService
    playbook_state: PlaybookStateService
    queue: QueueService
    rendering: RenderService
    streams: StreamService
    logs: LogService
    log_search: LogSearchService
    results: ResultService
    items: ItemService
    variables: VariableService
    lineage: LineageService
    usage: UsageService
    health: HealthService
    accounts: AccountService
    tenants: TenantService
    users: UserService
    oidc: OidcService
    audit: AuditService
