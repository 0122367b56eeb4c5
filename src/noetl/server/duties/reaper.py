"""Ends leases that ran out. Several servers may do it at once: only one of them ends each lease."""

from noetl.bus import port as bus_port
from noetl.bus.port import Bus
from noetl.log.queue.port import CommandQueue
from noetl.server.duties.loop import Counts


class Reaper:
    name = "reaper"

    def __init__(
        self,
        queue: CommandQueue,
        bus: Bus,
        shards: int,
        limit: int,
    ) -> None:
        self._queue = queue
        self._bus = bus
        self._shards = shards
        self._limit = limit

    async def run_once(self) -> Counts:
        expired = await self._queue.expire_leases(self._limit)
        if expired:
            for shard in range(self._shards):
                await self._bus.publish(bus_port.make_inbox_subject(shard))
        return Counts(expired, has_more=expired == self._limit)
