"""Routes for liveness, readiness and metrics."""

from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import Response

from noetl.server.health.views import HealthView, ReadyView
from noetl.server.http.depends import Has, Who
from noetl.server.http.routing import Reply, Routes

routes = Routes("health", strict=False)  # probes and scrapers may add parameters of their own

METRICS_RESPONSES: dict[int, dict[str, Any]] = {
    200: {
        "description": "Successful Response",
        "content": {"text/plain": {"schema": {"type": "string"}}},
    }
}


@routes.get("/health", public=True)
@routes.get("/api/health", documented=False, public=True)
async def health() -> HealthView:
    """The process answers."""
    return HealthView(status="ok")


@routes.get("/ready", public=True)
async def ready(has: Has) -> Reply[ReadyView]:
    """200 if it owns shards and the store answers; 503 otherwise."""
    readiness = await has.health.check_readiness()
    return Reply(readiness, 200 if readiness.ready else 503)


@routes.get("/metrics", responses=METRICS_RESPONSES, problem_type="text/plain")
async def metrics(has: Has, who: Who) -> Response:
    """Prometheus text."""
    return Response(await has.health.read_metrics(who), media_type=CONTENT_TYPE_LATEST)
