"""Which workers are there. A worker whose last connection to this server broke, and that does not come back within two seconds,
is lost: its commands are given to others at once instead of when their leases run out.

Only a broken connection counts, never silence: a worker that hangs, or a network that swallows packets, is a matter of leases. A
worker that another server has heard of meanwhile is that server's business.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial

from noetl.bus import port as bus_port
from noetl.bus.port import Bus
from noetl.log.port import EventLog, Present
from noetl.metrics import Metrics
from noetl.model.errors import Unavailable
from noetl.model.exchange import ExchangeRequest
from noetl.model.ids import DEFAULT_TENANT, Micros

log = logging.getLogger(__name__)

GRACE = 2.0  # seconds to come back
NOTED_EVERY, NOTED_EVERY_IDLE = 1.0, 5.0  # seconds between two notes of one worker
KEPT: Micros = 15_000_000  # how long a worker is shown after it was last heard of
ELSEWHERE: Micros = 4_000_000  # heard of by another server so recently: it has moved there

Connection = tuple[str, int]


class Presence:
    def __init__(
        self,
        eventlog: EventLog,
        bus: Bus,
        shards: int,
        server: str,
        metrics: Metrics,
        grace: float = GRACE,
    ) -> None:
        self._log = eventlog
        self._bus = bus
        self._shards = shards
        self._server = server
        self._metrics = metrics
        self._grace = grace
        self._holders: dict[Connection, str] = {}
        self._open: dict[str, set[Connection]] = {}
        self._missing: dict[str, asyncio.TimerHandle] = {}
        self._noted: dict[str, float] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def arrived(self, request: ExchangeRequest, connection: Connection | None) -> None:
        """It speaks, so it is here."""
        worker = request.holder
        if (missing := self._missing.pop(worker, None)) is not None:
            missing.cancel()
        if connection is not None and self._holders.get(connection) != worker:
            self.left(connection)
            self._holders[connection] = worker
            self._open.setdefault(worker, set()).add(connection)
        self._note(worker, request)

    def left(self, connection: Connection | None) -> None:
        """A connection has ended, for whatever reason."""
        worker = None if connection is None else self._holders.pop(connection, None)
        if worker is None or connection is None:
            return
        others = self._open[worker]
        others.discard(connection)
        if others:
            return
        del self._open[worker]
        if not self._closed:
            loop = asyncio.get_running_loop()
            self._missing[worker] = loop.call_later(self._grace, self._give_up, worker)

    def close(self) -> None:
        """This server goes: connections that end now say nothing about workers."""
        self._closed = True
        for timer in self._missing.values():
            timer.cancel()
        self._missing.clear()
        for task in self._tasks:
            task.cancel()

    def _note(self, worker: str, request: ExchangeRequest) -> None:
        now = asyncio.get_running_loop().time()
        every = NOTED_EVERY if request.held else NOTED_EVERY_IDLE
        if now - self._noted.get(worker, float("-inf")) < every:
            return
        self._noted[worker] = now
        present = Present(
            worker=worker,
            server=self._server,
            tenant=DEFAULT_TENANT,
            pools=request.pools,
            free=request.free,
            held=len(request.held),
        )
        self._spawn(partial(self._log.note_worker, present, KEPT))

    def _give_up(self, worker: str) -> None:
        del self._missing[worker]
        self._noted.pop(worker, None)
        self._spawn(partial(self._lose, worker))

    async def _lose(self, worker: str) -> None:
        known = {row.worker: row for row in await self._log.workers(DEFAULT_TENANT)}
        row = known.get(worker)
        if row is not None and row.server != self._server and row.age < ELSEWHERE:
            return
        lost = await self._log.lose(worker)
        log.info("worker lost", extra={"worker": worker, "commands": lost})
        self._metrics.workers_lost.inc()
        if lost:
            for shard in range(self._shards):
                await self._bus.publish(bus_port.inbox(shard))

    def _spawn(self, work: Callable[[], Awaitable[None]]) -> None:
        task = asyncio.ensure_future(_quietly(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _quietly(work: Callable[[], Awaitable[None]]) -> None:
    """When the store is not there: notes are made again, and leases run out by themselves."""
    try:
        await work()
    except Unavailable as error:
        log.warning("presence not written", extra={"error": str(error)})
    except Exception:  # nobody awaits it
        log.exception("presence not written")
