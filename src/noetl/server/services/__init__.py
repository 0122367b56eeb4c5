"""What the API does, without HTTP: one class per subject. Every function takes the `Identity` that asks, and every query its
tenant. Used by the routes, and by commands that work without a server process."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # whoever needs one subject shall not load the others
    from noetl.server.services.catalog import CatalogService
    from noetl.server.services.executions import ExecutionService
    from noetl.server.services.health import HealthService
    from noetl.server.services.queue import QueueService
    from noetl.server.services.rendering import RenderService
    from noetl.server.services.signals import SignalService
    from noetl.server.services.streams import StreamService

__all__ = ["Services"]


@dataclass(frozen=True, slots=True)
class Services:
    catalog: "CatalogService"
    executions: "ExecutionService"
    signals: "SignalService"
    queue: "QueueService"
    rendering: "RenderService"
    streams: "StreamService"
    health: "HealthService"
