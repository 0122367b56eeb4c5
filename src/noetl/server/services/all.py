"""All services together, as the routes get them."""

from dataclasses import dataclass

from noetl.server.services.catalog import CatalogService
from noetl.server.services.credentials import CredentialService
from noetl.server.services.executions import ExecutionService
from noetl.server.services.health import HealthService
from noetl.server.services.hooks import HookService
from noetl.server.services.lineage import LineageService
from noetl.server.services.logs import LogService
from noetl.server.services.playbook_state import PlaybookStateService
from noetl.server.services.queue import QueueService
from noetl.server.services.rendering import RenderService
from noetl.server.services.results import ResultService
from noetl.server.services.schedules import ScheduleService
from noetl.server.services.signals import SignalService
from noetl.server.services.streams import StreamService
from noetl.server.services.usage import UsageService
from noetl.server.services.variables import VariableService


@dataclass(frozen=True, slots=True)
class Services:
    catalog: CatalogService
    credentials: CredentialService
    executions: ExecutionService
    signals: SignalService
    schedules: ScheduleService
    hooks: HookService
    playbook_state: PlaybookStateService
    queue: QueueService
    rendering: RenderService
    streams: StreamService
    logs: LogService
    results: ResultService
    variables: VariableService
    lineage: LineageService
    usage: UsageService
    health: HealthService
