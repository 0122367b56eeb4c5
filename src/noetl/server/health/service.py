"""Readiness and metrics of this server."""

import asyncio
from collections.abc import Callable

from noetl.log.events.port import EventLog
from noetl.log.projections.port import Projections
from noetl.log.queue.port import CommandQueue
from noetl.metrics import Metrics
from noetl.model.clock import Clock
from noetl.model.errors import InvalidInput, StoreUnavailable, Unavailable
from noetl.model.identity import Identity, Permission, needs, require_installation
from noetl.server.dispatch.shards import OwnedShards
from noetl.server.health.views import ReadyView

MAX_CHECKED_HISTORY_FILES = 1_000  # files of compacted history that are checked, the newest ones
STORE_TIMEOUT_S = 1.0  # seconds that the store may take to answer


class HealthService:
    def __init__(
        self,
        name: str,
        log: EventLog,
        projections: Projections,
        queue: CommandQueue,
        shards: OwnedShards,
        clock: Clock,
        metrics: Metrics,
        has_lease: Callable[[], bool],
    ) -> None:
        self._name = name
        self._log = log
        self._projections = projections
        self._queue = queue
        self._shards = shards
        self._clock = clock
        self._metrics = metrics
        self._has_lease = has_lease

    async def check_readiness(self) -> ReadyView:
        """Whether the server can work, with the result of each check. History does not count."""
        owned = len(self._shards.list_owned())
        checks = {
            "lease": "ok" if self._has_lease() else "no node number yet",
            "shards": "ok" if owned else "owns no shard",
            "store": await self._check_store(),
        }
        is_ready = all(found == "ok" for found in checks.values())
        return ReadyView(is_ready, {**checks, "history": await self._describe_history()})

    async def _check_store(self) -> str:
        try:
            async with asyncio.timeout(STORE_TIMEOUT_S):
                await self._projections.read_checkpoint(0)
        except (Unavailable, TimeoutError):
            return "does not answer"
        return "ok"

    async def _describe_history(self) -> str:
        """The state of the compacted history. A server runs executions without it too."""
        try:
            async with asyncio.timeout(STORE_TIMEOUT_S):
                return await check_history(self._log)
        except (Unavailable, TimeoutError):
            return "does not answer"

    @needs(Permission.READ)
    async def read_metrics(self, identity: Identity) -> bytes:
        """All metrics as Prometheus text. Some of them are measured only now.

        They are figures of all tenants together, so they are for the installation's own.
        """
        require_installation(identity)
        try:
            async with asyncio.timeout(STORE_TIMEOUT_S):
                await self._measure_store()
        except (Unavailable, TimeoutError):
            pass
        return self._metrics.render_text()

    async def _measure_store(self) -> None:
        """Set the gauges that are read from the store."""
        metrics = self._metrics
        owned = set(self._shards.list_owned())
        for shard in range(self._shards.count):
            metrics.shard_owner.labels(str(shard), self._name).set(shard in owned)
        metrics.queue_depth.clear()
        for depth in await self._queue.count_commands():
            metrics.queue_depth.labels(depth.pool, depth.status).set(depth.count)
        for gauge in (metrics.projection_lag_ms, metrics.checkpoint_age_ms):
            gauge.clear()
        for shard in sorted(owned):
            age = await self._measure_lag_ms(shard)
            metrics.projection_lag_ms.labels(str(shard)).set(age)
            metrics.checkpoint_age_ms.labels(str(shard)).set(age)

    async def _measure_lag_ms(self, shard: int) -> float:
        """Milliseconds since the oldest event that is not projected; 0 if there is none.

        Rows and checkpoint are written together, so both have this age.
        """
        checkpoint = await self._projections.read_checkpoint(shard)
        waiting = await self._log.follow_shard(shard, checkpoint, 1)
        if not waiting:
            return 0.0
        return max(0, self._clock.now() - waiting[0].event.at) / 1000


async def check_history(log: EventLog) -> str:
    """Either "ok" or a sentence on which compacted history this process cannot read."""
    try:
        lost = await log.find_lost_history(MAX_CHECKED_HISTORY_FILES)
    except (StoreUnavailable, InvalidInput) as error:
        return f"compacted history cannot be read here: {error}"
    if not lost:
        return "ok"
    return f"{len(lost)} files of compacted history cannot be read here ({lost[0]} …)"
