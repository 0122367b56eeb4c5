"""Routes for liveness, readiness and metrics."""

from fastapi import Response
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import Field
from starlette.responses import PlainTextResponse

from noetl.server.http.bodies import OpenRoute, View, make_router
from noetl.server.http.depends import Has

routes = make_router("health", OpenRoute)  # probes and scrapers may add parameters of their own


class HealthView(View):
    status: str = Field(examples=["ok"])


class ReadyView(View):
    ready: bool
    checks: dict[str, str] = Field(
        examples=[{"lease": "ok", "shards": "ok", "store": "ok", "history": "ok"}]
    )


@routes.get("/health")
@routes.get("/api/health", include_in_schema=False)
async def health() -> HealthView:
    """The process answers."""
    return HealthView(status="ok")


@routes.get("/ready")
async def ready(has: Has, response: Response) -> ReadyView:
    """200 if it owns shards and the store answers; 503 otherwise."""
    readiness = await has.health.check_readiness()
    response.status_code = 200 if readiness.ready else 503
    return ReadyView(ready=readiness.ready, checks=readiness.checks)


@routes.get("/metrics", response_class=PlainTextResponse)
async def metrics(has: Has) -> Response:
    """Prometheus text."""
    return Response(await has.health.read_metrics(), media_type=CONTENT_TYPE_LATEST)
