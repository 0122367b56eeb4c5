"""Wires one worker from a channel, with its store, tools and spool below home. `serve_worker` runs
it until it is told to stop.

A worker ends in this order: it claims nothing more, running commands may finish within a time
limit, and the rest is stopped and handed back. An ending that no server accepted waits in the spool
for the next worker of this name. A worker does not wait for a server that is gone.
"""

import asyncio
import fcntl
import logging
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from msgspec import Struct, field
from msgspec.structs import asdict

from noetl.model.commands import DEFAULT_POOL
from noetl.model.errors import Conflict
from noetl.model.exchange import make_holder_name
from noetl.pipeline.secrets.redaction import RedactingFilter, Redactor
from noetl.private_folders import make_private_folder
from noetl.results.tenancy import StoreTenant
from noetl.runtime.clock import SystemClock
from noetl.runtime.stores import connect_shared_cache, open_store
from noetl.runtime.tools import read_duckdb_folders, read_step_limits
from noetl.runtime.worker_locks import lock_worker
from noetl.settings import ShardSettings, StorageSettings, WorkerProcessSettings
from noetl.tools import registry
from noetl.tools.credentials.port import (
    ChainedCredentials,
    Credentials,
    EnvCredentials,
    missing_credential,
)
from noetl.tools.egress.guard import EgressGuard
from noetl.tools.processes.limits import StepLimits, make_step_limits
from noetl.worker.channel import Channel
from noetl.worker.credentials import StoredCredentials
from noetl.worker.settings import WorkerSettings
from noetl.worker.spool import FileSpool, MemorySpool, Spool
from noetl.worker.worker import Worker

log = logging.getLogger(__name__)

HAND_BACK_TIMEOUT_S = 2.0  # seconds to stop and hand back the commands that still run
FIRST_SWEEP_DELAY_S = 600.0  # seconds after the start, so that a short-lived process never sweeps
MAX_UNNAMED_WORKERS = 1000  # workers on one machine without a configured name


# Returns the address of the database for users' tables, if there is one.
FindDatabase = Callable[[], str | None]


def find_no_database() -> None:
    """Find no database for users' tables."""


class WorkerOptions(Struct, frozen=True):
    """The options of one worker process."""

    home: Path
    storage: StorageSettings
    name: str | None = None
    pools: tuple[str, ...] = (DEFAULT_POOL,)
    slots: int = 16
    poll: float = 1.5
    drain: float = 30.0  # seconds that running commands have when the worker is told to stop
    lease: float = 6.0  # seconds, as the servers grant it
    limits: StepLimits = field(default_factory=make_step_limits)  # of the processes of steps
    # Tools that the caller adds, by kind.
    tools: Mapping[str, registry.ToolFactory] = field(default_factory=dict)
    # Checks where tools connect to. By default they reach public addresses only.
    guard: EgressGuard = field(default_factory=EgressGuard)
    # The address of the users' database on this machine, with its password.
    find_data: FindDatabase = find_no_database


def make_options(
    home: Path,
    work: WorkerProcessSettings,
    shards: ShardSettings,
    storage: StorageSettings,
) -> WorkerOptions:
    return WorkerOptions(
        home=home,
        storage=storage,
        name=work.worker_id,
        pools=work.worker_pools,
        slots=work.worker_slots,
        poll=work.queue_poll_interval,
        drain=work.worker_drain_sec,
        lease=shards.lease_sec,
        limits=read_step_limits(),
    )


class WiredWorker:
    """A worker with its store, tools, credentials and redactor."""

    def __init__(
        self,
        channel: Channel,
        options: WorkerOptions,
        name: str,
        spool: Spool,
    ) -> None:
        self.name = name
        self.incarnation = uuid4().hex[:8]
        self._options = options
        self._registry = registry.make_registry(
            options.tools,
            options.guard,
            options.limits,
            read_duckdb_folders(options.home),
        )
        settings = WorkerSettings(
            worker_id=name,
            incarnation=self.incarnation,
            pools=options.pools,
            slots=options.slots,
            poll=min(options.poll, options.lease / 4),
            heartbeat=options.lease / 4,
            context_limit=options.storage.event_result_context_max_bytes,
            deadline=options.lease * 2 / 3,  # it stops a tool before another worker may start it
        )
        self._channel = channel
        tenant = StoreTenant()
        near = connect_shared_cache(options.storage, tenant)
        self._store = open_store(channel, options.home, options.storage, near, tenant)
        redactor = Redactor()
        self._clean = RedactingFilter(redactor)
        self._worker = Worker(
            channel,
            self._store,
            self._registry,
            SystemClock(),
            spool,
            settings,
            credentials=make_credentials(channel, options.find_data),
            redactor=redactor,
            store_tenant=tenant,
        )

    @property
    def holder(self) -> str:
        """The name that the leases of its commands carry."""
        return make_holder_name(self.name, self.incarnation)

    @property
    def held_count(self) -> int:
        return len(self._worker.held_leases)

    async def run(self, stop: asyncio.Event) -> None:
        """Run until the worker has drained, or its time to drain is over."""
        # Arrow's own allocator keeps most of the memory that a large row set needed.
        os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
        home = self._options.home
        with _redact_logs(self._clean), lock_worker(home, self.name, self.incarnation) as lock:
            await self._run_until_stopped(stop)
            lock.is_drained = self._worker.is_drained

    async def _run_until_stopped(self, stop: asyncio.Event) -> None:
        log.info(
            "worker started", extra={"worker": self.holder, "pools": ",".join(self._options.pools)}
        )
        # Most steps use this tool, and it takes longest to start.
        await self._registry.start("python")
        running = asyncio.ensure_future(self._worker.run())
        stopping = asyncio.ensure_future(stop.wait())
        sweeping = asyncio.ensure_future(self._sweep_orphans())
        try:
            await asyncio.wait((running, stopping), return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                await self._drain_worker(running)
        finally:
            for task in (running, stopping, sweeping):
                task.cancel()
            await asyncio.wait((running, stopping, sweeping))
            await self._registry.close()
            await self._store.close()
        if not running.cancelled():
            running.result()

    async def _sweep_orphans(self) -> None:
        """From time to time, delete payloads that no reference names from the store of large
        results."""
        storage = self._options.storage
        await asyncio.sleep(min(FIRST_SWEEP_DELAY_S, storage.storage_sweep_sec))
        while True:
            oldest = time.time() - storage.storage_orphan_age_sec
            try:
                swept = await self._store.sweep_orphans(self._channel.find_orphans, oldest)
                log.info("orphans swept", extra=asdict(swept))
            except Exception as error:  # a loop that must survive
                log.warning("orphans not swept", extra={"error": str(error)})
            await asyncio.sleep(storage.storage_sweep_sec)

    async def _drain_worker(self, running: "asyncio.Future[None]") -> None:
        log.info("worker drains", extra={"worker": self.holder, "held": self.held_count})
        self._worker.drain()
        await asyncio.wait((running,), timeout=self._options.drain)
        if running.done():
            return
        log.warning(
            "worker hands work back", extra={"worker": self.holder, "held": self.held_count}
        )
        self._worker.hand_back()
        await asyncio.wait((running,), timeout=HAND_BACK_TIMEOUT_S)
        if not running.done():
            log.warning(
                "worker leaves work behind", extra={"worker": self.holder, "held": self.held_count}
            )


def make_credentials(channel: Channel, find: FindDatabase) -> Credentials:
    """The credentials of the environment, the stored ones, and `local`, the database for users'
    tables."""
    return ChainedCredentials([EnvCredentials(), StoredCredentials(channel), LocalDatabase(find)])


class LocalDatabase:
    """The credential `local`.

    Its address is looked up at each use, because a worker may start before the database.
    """

    def __init__(self, find: FindDatabase) -> None:
        self._find = find

    async def get(self, name: str) -> dict[str, Any]:
        if name != "local":
            raise missing_credential(name)
        dsn = self._find()
        if dsn is None:
            raise missing_credential(name)
        return {"dsn": dsn}


@contextmanager
def _redact_logs(clean: RedactingFilter) -> Iterator[None]:
    """Remove secrets from everything that this process logs meanwhile."""
    handlers = list(logging.getLogger().handlers)
    for handler in handlers:
        handler.addFilter(clean)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(clean)


async def serve_worker(
    channel: Channel,
    options: WorkerOptions,
    stop: asyncio.Event,
) -> None:
    """Run a worker process. Its name, and so its spool, outlives it."""
    with claim_name(options) as (name, folder):
        await WiredWorker(channel, options, name, FileSpool(folder)).run(stop)


def make_embedded_worker(channel: Channel, options: WorkerOptions) -> WiredWorker:
    """A worker inside the process of a user's command. It and its name end with the process."""
    return WiredWorker(channel, options, f"{_host_name()}-{os.getpid()}", MemorySpool())


# ---- names ---------------------------------------------------------------------------------------


@contextmanager
def claim_name(options: WorkerOptions) -> Iterator[tuple[str, Path]]:
    """A name that no running worker of this home has, and its spool.

    Without a configured name it is the first free one, so that a restarted worker finds its spool
    again.
    """
    spools = options.home / "spool"
    if options.name is not None:
        names = [options.name]
    else:
        names = _default_names(options.pools)
    for name in names:
        folder = spools / name
        make_private_folder(folder)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            continue
        try:
            yield name, folder
            return
        finally:
            with suppress(OSError):
                os.close(descriptor)
    raise Conflict(
        f"a worker named {names[0]} runs already",
        hint="stop it, or give this one another name (NOETL_WORKER_ID)",
    )


def _default_names(pools: tuple[str, ...]) -> list[str]:
    first = f"{_host_name()}-{'-'.join(pools)}"
    return [first, *(f"{first}-{number}" for number in range(2, MAX_UNNAMED_WORKERS))]


def _host_name() -> str:
    """The host name with only letters, digits and dashes."""
    name = socket.gethostname().partition(".")[0]
    letters = [letter if letter.isalnum() and letter.isascii() else "-" for letter in name]
    return "".join(letters)[:60] or "worker"
