"""Read access to the queue, the workers and the pools. Workers use only the exchange."""

from dataclasses import dataclass, field

from noetl.log.presence.port import WorkerDirectory, WorkerPresence
from noetl.log.queue.port import CommandQueue, QueueEntry
from noetl.model.identity import Identity
from noetl.model.ids import ExecutionId


@dataclass(slots=True)
class QueuePool:
    """A pool with its workers, free places and commands."""

    name: str
    workers: int = 0
    free: int = 0
    commands: dict[str, int] = field(default_factory=dict)  # by status


class QueueService:
    def __init__(self, queue: CommandQueue, workers: WorkerDirectory) -> None:
        self._queue = queue
        self._workers = workers

    async def list_commands(
        self,
        identity: Identity,
        *,
        status: str | None = None,
        pool: str | None = None,
        execution_id: ExecutionId | None = None,
        after: int = 0,
        limit: int = 100,
    ) -> list[QueueEntry]:
        return await self._queue.list_commands(
            identity.tenant,
            status=status,
            pool=pool,
            execution_id=execution_id,
            after=after,
            limit=limit,
        )

    async def read_workers(self, identity: Identity) -> list[WorkerPresence]:
        return await self._workers.list_workers(identity.tenant)

    async def count_pools(self, identity: Identity) -> list[QueuePool]:
        """Every pool that has a worker or a command."""
        pools: dict[str, QueuePool] = {}
        for worker in await self._workers.list_workers(identity.tenant):
            for name in worker.pools:
                pool = pools.setdefault(name, QueuePool(name))
                pool.workers += 1
                pool.free += worker.free
        for depth in await self._queue.count_commands(identity.tenant):
            pool = pools.setdefault(depth.pool, QueuePool(depth.pool))
            pool.commands[depth.status] = depth.count
        return [pools[name] for name in sorted(pools)]
