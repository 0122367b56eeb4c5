"""Routes to read the queue, the workers and the pools.

The routes by which older workers took work from the queue answer 410.
"""

from typing import Annotated

from starlette.requests import Request
from starlette.responses import Response

from noetl.model.identity import Permission
from noetl.model.ids import ExecutionId
from noetl.server.http.depends import Has, Who
from noetl.server.http.parameters import EXECUTION_ID_PATTERN, Limit, OfStatus, QueryParameter
from noetl.server.http.problems import make_problem
from noetl.server.http.routing import HttpRouter, Routes
from noetl.server.queue.views import PoolView, QueueView, WorkerView

routes = Routes("queue")


@routes.get("/api/queue")
async def list_queue(
    has: Has,
    who: Who,
    status: OfStatus = None,
    pool: Annotated[str | None, QueryParameter("of this pool only", max_length=100)] = None,
    execution_id: Annotated[
        str | None, QueryParameter("of this execution only", pattern=EXECUTION_ID_PATTERN)
    ] = None,
    after: Annotated[int, QueryParameter("`next` of the page before", ge=0, le=1 << 62)] = 0,
    limit: Limit = 100,
) -> QueueView:
    """Commands in the order of issue. Those that are done are gone: events say how they ended. Dead
    and cancelled ones stay for an hour."""
    of_execution = None if execution_id is None else ExecutionId(execution_id)
    return await has.queue.list_commands(
        who,
        status=status,
        pool=pool,
        execution_id=of_execution,
        after=after,
        limit=limit,
    )


@routes.get("/api/workers")
async def list_workers(has: Has, who: Who) -> list[WorkerView]:
    """Workers that have sent a request within the last 15 seconds."""
    return await has.queue.list_workers(who)


@routes.get("/api/pools")
async def list_pools(has: Has, who: Who) -> list[PoolView]:
    """Pools that have a worker or a command."""
    return await has.queue.count_pools(who)


# -- routes of older workers --


async def queue_gone(request: Request) -> Response:
    """Tell an older worker that this route is gone."""
    return make_problem(
        410,
        "USE_THE_EXCHANGE",
        f"{request.url.path} is gone: workers take commands and report through one call",
        "POST /api/worker/exchange; `noetl worker start` speaks it",
    )


GONE_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
GONE_PATHS = (
    "lease",
    "enqueue",
    "reserve",
    "reap-expired",
    "{id}/complete",
    "{id}/fail",
    "{id}/heartbeat",
    "{id}/ack",
)


def add_gone_routes(router: HttpRouter) -> None:
    for prefix in ("", "/api"):
        for path in GONE_PATHS:
            for method in GONE_METHODS:
                router.add_plain(
                    method, f"{prefix}/queue/{path}", queue_gone, Permission.READ, Permission.WORK
                )
