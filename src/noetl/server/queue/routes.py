"""Routes to read the queue, the workers and the pools.

The routes by which older workers took work from the queue answer 410.
"""

from typing import Annotated

from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from noetl.model.clock import format_iso_or_none
from noetl.model.ids import ExecutionId
from noetl.server.http.bodies import View
from noetl.server.http.depends import Has, Who
from noetl.server.http.parameters import EXECUTION_ID_PATTERN, Limit, OfStatus, QueryParameter
from noetl.server.http.problems import make_problem
from noetl.server.http.routing import HttpRouter, Routes

routes = Routes("queue")


class QueuedView(View, frozen=True):
    number: int
    command_id: str
    execution_id: str
    step: str
    kind: str
    pool: str
    status: Annotated[str, Meta(examples=["leased"])]
    attempt: int
    priority: int
    available_at: str | None
    worker: str | None
    lease_until: str | None
    stopping: bool
    progress: Annotated[
        str | None, Meta(description="how far its tool is", examples=["spark 12/48 tasks"])
    ]


class QueueView(View, frozen=True):
    commands: list[QueuedView]
    next: Annotated[int | None, Meta(description="the `after` of the next page")]


class WorkerView(View, frozen=True):
    worker: Annotated[str, Meta(description="name/incarnation", examples=["worker-1/7f3a"])]
    server: str
    pools: list[str]
    free: int
    held: int
    seen_ms_ago: float


class PoolView(View, frozen=True):
    pool: Annotated[str, Meta(examples=["cpu"])]
    workers: int
    free: int
    commands: Annotated[dict[str, int], Meta(examples=[{"queued": 12, "leased": 4}])]


@routes.get("/api/queue")
async def list_queue(
    has: Has,
    who: Who,
    status: OfStatus = None,
    pool: Annotated[
        str | None, QueryParameter(max_length=100, description="of this pool only")
    ] = None,
    execution_id: Annotated[
        str | None,
        QueryParameter(pattern=EXECUTION_ID_PATTERN, description="of this execution only"),
    ] = None,
    after: Annotated[
        int, QueryParameter(ge=0, le=1 << 62, description="`next` of the page before")
    ] = 0,
    limit: Limit = 100,
) -> QueueView:
    """Commands in the order of issue. Finished ones stay for an hour."""
    of_execution = None if execution_id is None else ExecutionId(execution_id)
    rows = await has.queue.list_commands(
        who,
        status=status,
        pool=pool,
        execution_id=of_execution,
        after=after,
        limit=limit,
    )
    commands = [
        QueuedView(
            number=row.number,
            command_id=row.command_id,
            execution_id=row.execution_id,
            step=row.step,
            kind=row.kind,
            pool=row.pool,
            status=row.status,
            attempt=row.attempt,
            priority=row.priority,
            available_at=format_iso_or_none(row.available_at),
            worker=row.worker,
            lease_until=format_iso_or_none(row.lease_until),
            stopping=row.stopping,
            progress=row.progress,
        )
        for row in rows
    ]
    following = rows[-1].number if len(rows) == limit else None
    return QueueView(commands=commands, next=following)


@routes.get("/api/workers")
async def list_workers(has: Has, who: Who) -> list[WorkerView]:
    """Workers that have sent a request within the last 15 seconds."""
    return [
        WorkerView(
            worker=row.worker,
            server=row.server,
            pools=list(row.pools),
            free=row.free,
            held=row.held,
            seen_ms_ago=row.age / 1000,
        )
        for row in await has.queue.read_workers(who)
    ]


@routes.get("/api/pools")
async def list_pools(has: Has, who: Who) -> list[PoolView]:
    """Pools that have a worker or a command."""
    return [
        PoolView(pool=pool.name, workers=pool.workers, free=pool.free, commands=pool.commands)
        for pool in await has.queue.count_pools(who)
    ]


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
                router.add_plain(method, f"{prefix}/queue/{path}", queue_gone)
