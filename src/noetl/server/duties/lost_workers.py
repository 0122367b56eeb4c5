"""Ends the leases of workers of this machine whose processes are gone. Others need not wait until
the leases run out.

Several servers may do it at once: only one of them ends each lease. A request that the worker sent
before it died may still be answered with a lease, so a dead worker is looked at for a few seconds.

Leases come with appends. A server that has appended nothing for a while looks less often.
"""

import asyncio
import logging
from collections.abc import Iterable
from typing import Protocol

from noetl.bus import port as bus_port
from noetl.bus.port import Bus
from noetl.log.queue.port import CommandQueue
from noetl.server.duties.loop import Counts

log = logging.getLogger(__name__)

FORGET_AFTER_S = 3.0  # seconds that a dead worker is looked at
ACTIVE_S = 5.0  # seconds after an append in which every run looks
RUNS_PER_IDLE_LOOK = 5


class WorkerLiveness(Protocol):
    """The locks that the workers of this machine hold while their processes exist."""

    async def find_dead_holders(self) -> list[str]:
        """The holders of leases whose processes are gone for certain: not those that are slow or
        stopped."""
        ...

    async def forget(self, holder: str) -> None:
        """Do not list this holder again."""
        ...


class LostWorkers:
    name = "lost workers"

    def __init__(self, locks: WorkerLiveness, queue: CommandQueue, bus: Bus, shards: int) -> None:
        self._locks = locks
        self._queue = queue
        self._bus = bus
        self._shards = shards
        self._found_at: dict[str, float] = {}
        self._runs = 0
        self._active_until = 0.0

    def mark_changed(self, shards: Iterable[int]) -> None:
        """Note an append."""
        self._active_until = asyncio.get_running_loop().time() + ACTIVE_S

    async def run_once(self) -> Counts:
        self._runs += 1
        is_active = asyncio.get_running_loop().time() < self._active_until or self._found_at
        if not is_active and self._runs % RUNS_PER_IDLE_LOOK != 1:
            return Counts()
        lost = 0
        for holder in await self._locks.find_dead_holders():
            lost += await self._release_commands(holder)
        if lost:
            for shard in range(self._shards):
                await self._bus.publish(bus_port.make_inbox_subject(shard))
        return Counts(lost)

    async def _release_commands(self, holder: str) -> int:
        """End the leases of a dead worker. Returns their number."""
        now = asyncio.get_running_loop().time()
        found_at = self._found_at.setdefault(holder, now)
        lost = await self._queue.end_leases(holder)
        if lost or found_at == now:
            log.info("worker is gone", extra={"worker": holder, "commands": lost})
        if now - found_at >= FORGET_AFTER_S:
            await self._locks.forget(holder)
            del self._found_at[holder]
        return lost
