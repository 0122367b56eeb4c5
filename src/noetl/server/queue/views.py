"""The structs that answers about the queue, workers and pools have."""

from typing import Annotated

from noetl.log.presence.port import WorkerPresence
from noetl.log.queue.port import QueueEntry
from noetl.model.clock import format_iso_or_none
from noetl.server.http.structs import View, describe


class QueuedView(View, frozen=True):
    number: int
    command_id: str
    execution_id: str
    step: str
    kind: str
    pool: str
    status: Annotated[str, describe(example="leased")]
    attempt: int
    priority: int
    available_at: str | None
    worker: str | None
    lease_until: str | None
    stopping: bool
    progress: Annotated[str | None, describe("how far its tool is", example="spark 12/48 tasks")]


class QueueView(View, frozen=True):
    commands: list[QueuedView]
    next: Annotated[int | None, describe("the `after` of the next page")]


class WorkerView(View, frozen=True):
    worker: Annotated[str, describe("name/incarnation", example="worker-1/7f3a")]
    server: str
    pools: list[str]
    free: int
    held: int
    seen_ms_ago: float


class PoolView(View, frozen=True):
    pool: Annotated[str, describe(example="cpu")]
    workers: int
    free: int
    commands: Annotated[dict[str, int], describe(example={"queued": 12, "leased": 4})]


def make_queued_view(row: QueueEntry) -> QueuedView:
    return QueuedView(
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


def make_worker_view(row: WorkerPresence) -> WorkerView:
    return WorkerView(
        worker=row.worker,
        server=row.server,
        pools=list(row.pools),
        free=row.free,
        held=row.held,
        seen_ms_ago=row.age / 1000,
    )
