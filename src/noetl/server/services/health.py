"""Is this server there, can it work, and how well does it do."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from noetl.log.port import EventLog
from noetl.metrics import Metrics
from noetl.model.clock import Clock
from noetl.model.errors import InvalidInput, StoreUnavailable, Unavailable
from noetl.server.shards import OwnedShards

HISTORY_FILES = 1_000  # the newest ones are looked for
PATIENCE = 1.0  # seconds for the store to answer
Checks = dict[str, str]


@dataclass(frozen=True, slots=True)
class Readiness:
    ready: bool
    checks: Checks  # "ok", or what is wrong; `history` does not count


class HealthService:
    def __init__(
        self,
        name: str,
        log: EventLog,
        shards: OwnedShards,
        clock: Clock,
        metrics: Metrics,
        has_lease: Callable[[], bool],
    ) -> None:
        self._name = name
        self._log = log
        self._shards = shards
        self._clock = clock
        self._metrics = metrics
        self._has_lease = has_lease

    async def ready(self) -> Readiness:
        owned = len(self._shards.owned())
        checks = {
            "lease": "ok" if self._has_lease() else "no node number yet",
            "shards": "ok" if owned else "owns no shard",
            "store": await self._store(),
        }
        is_ready = all(found == "ok" for found in checks.values())
        return Readiness(is_ready, {**checks, "history": await self._history()})

    async def _store(self) -> str:
        try:
            async with asyncio.timeout(PATIENCE):
                await self._log.checkpoint(0)
        except (Unavailable, TimeoutError):
            return "does not answer"
        return "ok"

    async def _history(self) -> str:
        """A server without it runs executions as any other, so it is ready."""
        try:
            async with asyncio.timeout(PATIENCE):
                return await check_history(self._log)
        except (Unavailable, TimeoutError):
            return "does not answer"

    async def metrics(self) -> bytes:
        """What is measured where it happens, and what is counted when somebody asks."""
        try:
            async with asyncio.timeout(PATIENCE):
                await self._measure()
        except (Unavailable, TimeoutError):
            pass
        return self._metrics.text()

    async def _measure(self) -> None:
        metrics, owned = self._metrics, set(self._shards.owned())
        for shard in range(self._shards.count):
            metrics.shard_owner.labels(str(shard), self._name).set(shard in owned)
        metrics.queue_depth.clear()
        for depth in await self._log.depths():
            metrics.queue_depth.labels(depth.pool, depth.status).set(depth.count)
        for gauge in (metrics.projection_lag_ms, metrics.checkpoint_age_ms):
            gauge.clear()
        for shard in sorted(owned):
            age = await self._age(shard)
            metrics.projection_lag_ms.labels(str(shard)).set(age)
            metrics.checkpoint_age_ms.labels(str(shard)).set(age)

    async def _age(self, shard: int) -> float:
        """Rows and checkpoint are written together: one age for both."""
        waiting = await self._log.follow(shard, await self._log.checkpoint(shard), 1)
        return max(0, self._clock.now() - waiting[0].event.at) / 1000 if waiting else 0.0


async def check_history(log: EventLog) -> str:
    """ "ok", or which compacted history this process cannot read."""
    try:
        lost = await log.lost_history(HISTORY_FILES)
    except (StoreUnavailable, InvalidInput) as error:
        return f"compacted history cannot be read here: {error}"
    return (
        f"{len(lost)} files of compacted history cannot be read here ({lost[0]} …)"
        if lost
        else "ok"
    )
