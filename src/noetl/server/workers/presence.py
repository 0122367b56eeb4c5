"""Detects lost workers. A worker is lost if its last connection to this server breaks and it does
not connect again within two seconds. Other workers then get its commands at once, instead of when
their leases run out.

Only a broken connection counts, never silence: leases handle a worker that hangs and a network that
drops packets. A worker that another server has heard of meanwhile is left to that server.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial

from noetl.bus import port as bus_port
from noetl.bus.port import Bus
from noetl.log.presence.port import WorkerDirectory, WorkerPresence
from noetl.log.queue.port import CommandQueue
from noetl.metrics import Metrics
from noetl.model.errors import Unavailable
from noetl.model.exchange import ExchangeRequest
from noetl.model.ids import Micros, Tenant
from noetl.server.workers.handoff import Holder

log = logging.getLogger(__name__)

RECONNECT_GRACE_S = 2.0  # seconds in which a worker may connect again
NOTE_INTERVAL_S = 1.0  # seconds between two presence rows of one worker
IDLE_NOTE_INTERVAL_S = 5.0  # the same for a worker without commands
WORKER_TTL_US: Micros = 15_000_000  # how long a worker is listed after its last request
MOVED_WORKER_AGE_US: Micros = (
    4_000_000  # a worker with a younger row of another server has moved there
)

Connection = tuple[str, int]


class Presence:
    """Tracks the connections of workers, and releases the commands of lost ones."""

    def __init__(
        self,
        workers: WorkerDirectory,
        queue: CommandQueue,
        bus: Bus,
        shards: int,
        server: str,
        metrics: Metrics,
        grace: float = RECONNECT_GRACE_S,
    ) -> None:
        self._workers = workers
        self._queue = queue
        self._bus = bus
        self._shards = shards
        self._server = server
        self._metrics = metrics
        self._grace = grace
        self._holders: dict[Connection, Holder] = {}
        self._connections: dict[Holder, set[Connection]] = {}
        self._loss_timers: dict[Holder, asyncio.TimerHandle] = {}
        self._noted_at: dict[Holder, float] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def note_request(
        self, tenant: Tenant, request: ExchangeRequest, connection: Connection | None
    ) -> None:
        """Record that this worker has sent a request over this connection."""
        worker = Holder(tenant, request.holder)
        loss_timer = self._loss_timers.pop(worker, None)
        if loss_timer is not None:
            loss_timer.cancel()
        if connection is not None and self._holders.get(connection) != worker:
            self.forget_connection(connection)
            self._holders[connection] = worker
            self._connections.setdefault(worker, set()).add(connection)
        self._note_worker(worker, request)

    def forget_connection(self, connection: Connection | None) -> None:
        """Record that a connection has ended, for any reason."""
        if connection is None:
            return
        worker = self._holders.pop(connection, None)
        if worker is None:
            return
        others = self._connections[worker]
        others.discard(connection)
        if others:
            return
        del self._connections[worker]
        if not self._closed:
            loop = asyncio.get_running_loop()
            self._loss_timers[worker] = loop.call_later(self._grace, self._declare_lost, worker)

    def close(self) -> None:
        """Stop watching: this server ends, so broken connections say nothing about workers."""
        self._closed = True
        for timer in self._loss_timers.values():
            timer.cancel()
        self._loss_timers.clear()
        for task in self._tasks:
            task.cancel()

    def _note_worker(self, worker: Holder, request: ExchangeRequest) -> None:
        now = asyncio.get_running_loop().time()
        interval = NOTE_INTERVAL_S if request.held else IDLE_NOTE_INTERVAL_S
        last_noted = self._noted_at.get(worker, float("-inf"))
        if now - last_noted < interval:
            return
        self._noted_at[worker] = now
        present = WorkerPresence(
            worker=worker.name,
            server=self._server,
            tenant=worker.tenant,
            pools=request.pools,
            free=request.free,
            held=len(request.held),
        )
        self._spawn_task(partial(self._workers.note_worker, present, WORKER_TTL_US))

    def _declare_lost(self, worker: Holder) -> None:
        del self._loss_timers[worker]
        self._noted_at.pop(worker, None)
        self._spawn_task(partial(self._release_lost_worker, worker))

    async def _release_lost_worker(self, worker: Holder) -> None:
        workers = await self._workers.list_workers(worker.tenant)
        rows = {row.worker: row for row in workers}
        row = rows.get(worker.name)
        if row is not None and row.server != self._server and row.age < MOVED_WORKER_AGE_US:
            return
        lost_commands = await self._queue.end_leases(worker.name, worker.tenant)
        log.info("worker lost", extra={"worker": worker.name, "commands": lost_commands})
        self._metrics.workers_lost.inc()
        if lost_commands:
            for shard in range(self._shards):
                await self._bus.publish(bus_port.make_inbox_subject(shard))

    def _spawn_task(self, work: Callable[[], Awaitable[None]]) -> None:
        task = asyncio.ensure_future(_run_quietly(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _run_quietly(work: Callable[[], Awaitable[None]]) -> None:
    """Run it and log its errors. A failure does no harm: the worker is noted again with its next
    request, and leases run out by themselves."""
    try:
        await work()
    except Unavailable as error:
        log.warning("presence not written", extra={"error": str(error)})
    except Exception:  # the task is not awaited, so nobody else would log it
        log.exception("presence not written")
