"""Read access to the queue, the workers and the pools. Workers use only the exchange."""

from collections import Counter, defaultdict

from noetl.log.presence.port import WorkerDirectory
from noetl.log.queue.port import CommandQueue
from noetl.model.identity import Identity, Permission, needs
from noetl.model.ids import ExecutionId
from noetl.server.queue.views import (
    PoolView,
    QueueView,
    WorkerView,
    make_queued_view,
    make_worker_view,
)


class QueueService:
    def __init__(self, queue: CommandQueue, workers: WorkerDirectory) -> None:
        self._queue = queue
        self._workers = workers

    @needs(Permission.READ)
    async def list_commands(
        self,
        identity: Identity,
        *,
        status: str | None = None,
        pool: str | None = None,
        execution_id: ExecutionId | None = None,
        after: int = 0,
        limit: int = 100,
    ) -> QueueView:
        rows = await self._queue.list_commands(
            identity.tenant,
            status=status,
            pool=pool,
            execution_id=execution_id,
            after=after,
            limit=limit,
        )
        following = rows[-1].number if len(rows) == limit else None
        return QueueView([make_queued_view(row) for row in rows], following)

    @needs(Permission.READ)
    async def list_workers(self, identity: Identity) -> list[WorkerView]:
        return [make_worker_view(row) for row in await self._workers.list_workers(identity.tenant)]

    @needs(Permission.READ)
    async def count_pools(self, identity: Identity) -> list[PoolView]:
        """Every pool that has a worker or a command, sorted by name."""
        workers: Counter[str] = Counter()
        free: Counter[str] = Counter()
        commands: dict[str, dict[str, int]] = defaultdict(dict)  # by pool and status
        for worker in await self._workers.list_workers(identity.tenant):
            for pool in worker.pools:
                workers[pool] += 1
                free[pool] += worker.free
        for depth in await self._queue.count_commands(identity.tenant):
            commands[depth.pool][depth.status] = depth.count
        pools = sorted({*workers, *commands})
        return [PoolView(pool, workers[pool], free[pool], commands[pool]) for pool in pools]
