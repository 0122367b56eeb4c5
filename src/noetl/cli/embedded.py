"""The home of this machine: opens its database and runs a server and a worker in this process.

A command gets only the parts that it needs. Any number of processes may use one home at once. Each
is a server among others: they share shards and commands, and another process continues the work
that one leaves unfinished.
"""

import asyncio
import dataclasses
import os
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from noetl import settings
from noetl.bus.postgres import BusPostgres
from noetl.catalog.port import CatalogEntry
from noetl.catalog.postgres import CatalogPostgres, VaultPostgres
from noetl.cli.client import Again, Change, Need, Pinning, Row, Span, Turned, pages_of, printed
from noetl.cli.lake import open_lake
from noetl.cli.output import warn
from noetl.cli.tools import tools, usual
from noetl.database import Database, connect
from noetl.embedded import ensure, stop
from noetl.leases.postgres import LeasesPostgres
from noetl.log.port import Projection, Queued, Recorded
from noetl.log.postgres import LogPostgres
from noetl.migrations import migrate
from noetl.model.clock import iso
from noetl.model.errors import NotFound, Unavailable
from noetl.model.identity import LOCAL, Identity
from noetl.model.ids import ExecutionId, Micros
from noetl.model.reference import Reference
from noetl.pipeline.reading import Reading
from noetl.playbook.workload import readable_environment
from noetl.server.node import Server
from noetl.server.requests import RepeatWish
from noetl.server.settings import ServerSettings
from noetl.triggers.port import HookDefinition
from noetl.triggers.postgres import HooksPostgres, SchedulesPostgres
from noetl.worker.app import Options, SystemClock, Wired, open_store, options, within

if TYPE_CHECKING:  # each command loads only the services that it uses: `noetl run` needs few
    from noetl.server.services.catalog import CatalogService
    from noetl.server.services.credentials import CredentialService
    from noetl.server.services.executions import ExecutionService
    from noetl.server.services.hooks import HookService
    from noetl.server.services.playbook_state import PlaybookStateService
    from noetl.server.services.results import ResultService
    from noetl.server.services.schedules import ScheduleService
    from noetl.server.services.signals import SignalService
    from noetl.server.services.usage import UsageService

LOOK_FIRST = 0.01  # shortest and longest seconds between two reads of the log
LOOK_LAST = 0.1
PAGE = 5_000  # events
WATCH_EVERY = 0.05  # seconds between checks that the database runs
SWEEP_EVERY = 60.0  # seconds between a server's searches for expired results
LEAVE = 3.0  # seconds that commands of other executions may still run when this command has ended
MAX_LISTED_ROWS = 100_000  # rows of a list that is not paged


@dataclass(frozen=True, slots=True)
class HomePorts:
    """The open ports of one home."""

    home: Path
    log: LogPostgres
    leases: LeasesPostgres
    bus: BusPostgres
    catalog: CatalogPostgres
    vault: VaultPostgres
    schedules: SchedulesPostgres
    hooks: HooksPostgres
    clock: SystemClock
    shards: int
    control: str = field(repr=False)  # address of this database
    data: str | None = field(repr=False)  # database for users' tables; None for a foreign Postgres


@asynccontextmanager
async def opened(home: Path, at_a_stretch: float | None = None) -> AsyncIterator[HomePorts]:
    """Start or find the database of a home, and open its ports.

    `at_a_stretch` is the time in seconds that the log may compute before it yields to others.
    """
    store = settings.read(settings.Store)
    shards = settings.read(settings.ShardSettings)
    try:
        dsns = await ensure(home)
        count = await _migrated(dsns.control, shards)
        pools = Database(
            dsns.control,
            main_size=store.postgres_pool_max_size,
            background_size=store.bg_pool_max_size,
        )
        async with pools as database, BusPostgres(database) as bus:
            leases = LeasesPostgres(database, micros(shards.lease_sec))
            watching = asyncio.ensure_future(_keep_there(home, bus, store))
            try:
                lake = open_lake(home, settings.read(settings.Storage))
                yield HomePorts(
                    home=home,
                    log=LogPostgres(database, count, lake=lake, at_a_stretch=at_a_stretch),
                    leases=leases,
                    bus=bus,
                    catalog=CatalogPostgres(database),
                    vault=VaultPostgres(database),
                    schedules=SchedulesPostgres(database, count),
                    hooks=HooksPostgres(database),
                    clock=SystemClock(),
                    shards=count,
                    control=dsns.control,
                    data=dsns.data,
                )
            finally:
                watching.cancel()
                await leases.close()
    finally:
        await stop()


async def _migrated(dsn: str, shards: settings.ShardSettings) -> int:
    """Bring the schema up to date. Returns the number of shards of the database."""
    connection = await connect(dsn)
    try:
        count = await migrate(connection, shards=shards.count)
    finally:
        await connection.close()
    if "count" in shards.model_fields_set and shards.count != count:
        warn(
            f"NOETL_SHARD_COUNT is {shards.count}, and the database was made with {count} shards, which stay",
            "the number is fixed when the database is made: remove the variable, or use another database",
        )
    return count


async def _keep_there(home: Path, bus: BusPostgres, store: settings.Store) -> None:
    """Start the embedded database again, at the same address, if its process has ended.

    The process that started it may end before this one.
    """
    if store.db_url is not None:
        return
    while True:
        await asyncio.sleep(WATCH_EVERY)
        if not bus.connected.is_set():
            with suppress(Unavailable):
                await ensure(home)


def server_settings(
    count: int, address: str | None = None, at_a_stretch: float | None = None
) -> ServerSettings:
    shards = settings.read(settings.ShardSettings)
    duties = settings.read(settings.Duties)
    storage = settings.read(settings.Storage)
    retention = None
    if storage.storage_retention_sec is not None:
        retention = micros(storage.storage_retention_sec)
    return ServerSettings(
        name=f"{socket.gethostname()}-{os.getpid()}",
        address=address,
        at_a_stretch=at_a_stretch,
        shards=count,
        lease=micros(shards.lease_sec),
        renew_every=shards.heartbeat_sec,
        projector_interval=duties.projection_poll_ms / 1000,
        sweep_interval=min(SWEEP_EVERY, storage.storage_sweep_sec),
        grace=micros(storage.storage_orphan_age_sec),
        retention=retention,
        env=readable_environment(os.environ),
    )


def opened_results(server: Server, home: Path) -> Reading:
    """The results that this process may read.

    Callers are interactive, so an unavailable store fails at once instead of being retried.
    """
    storage = settings.read(settings.Storage)
    impatient = storage.model_copy(update={"storage_patience_sec": 0.0})
    return Reading(open_store(server, home, impatient), server.manifest)


def micros(seconds: float) -> Micros:
    return round(seconds * 1e6)


# ---- a server and a worker for one command -----------------------------------------------------------------------------


@asynccontextmanager
async def local(home: Path, need: Need, pools: tuple[str, ...] = ()) -> AsyncIterator["Local"]:
    """A client on a home, with the parts of a server and a worker that the command needs.

    Reading needs neither. A change needs a server only if no other process runs one.
    """
    async with opened(home) as ports:
        server = _server(ports)
        if need == "read" or (need == "change" and await ports.leases.servers()):
            yield Local(ports, server, runs=need == "change")
            return
        worker = None
        if need == "run":
            worker = within(server, _for_a_moment(ports, pools))
        async with _running(server, worker, ports) as tasks:
            yield Local(ports, server, tasks)


def _server(ports: HomePorts) -> Server:
    async def reveal(identity: Identity, name: str) -> dict[str, Any]:
        return await stored_credentials(ports).reveal(identity, name)

    return Server(
        ports.log,
        ports.leases,
        ports.bus,
        ports.catalog,
        ports.clock,
        server_settings(ports.shards),
        reveal=reveal,
    )


def stored_credentials(ports: HomePorts) -> "CredentialService":
    """Made when it is needed, because the encryption library takes time to load."""
    from noetl.server.services.credentials import CredentialService
    from noetl.server.services.keys import KeyFile

    return CredentialService(ports.vault, KeyFile(ports.home))


def _for_a_moment(ports: HomePorts, more: tuple[str, ...]) -> Options:
    """Options of a worker that lives as long as one command. It also serves the pools in `more`."""
    usual_options = options(
        ports.home,
        settings.read(settings.WorkerProcessSettings),
        settings.read(settings.ShardSettings),
        settings.read(settings.Storage),
    )
    pools = dict.fromkeys((*usual(usual_options.pools), *more))
    return replace(
        usual_options,
        pools=tuple(pools),
        drain=LEAVE,
        find_data=lambda: ports.data,
        tools=tools(ports.home),
    )


@asynccontextmanager
async def _running(
    server: Server, worker: Wired | None, ports: HomePorts
) -> AsyncIterator[tuple["asyncio.Future[None]", ...]]:
    """Run a server, and a worker if there is one. Yields their tasks."""
    await server.keeper.run_once()  # gets a node number and shards before the first request
    leaving = asyncio.Event()
    serving = asyncio.ensure_future(server.run())
    tasks = [serving]
    if worker is not None:
        tasks.append(asyncio.ensure_future(worker.run(leaving)))
    try:
        yield tuple(tasks)
    finally:
        leaving.set()
        if worker is not None:
            await asyncio.wait(tasks[1:])
            await _release_commands(worker, ports)
        with suppress(Unavailable):  # the next list of executions should show how this one ended
            server.projector.changed(server.shards.owned())
            await server.projector.run_once()
        serving.cancel()
        await asyncio.wait((serving,))


async def _release_commands(worker: Wired, ports: HomePorts) -> None:
    """Give the worker's commands back, so that others need not wait until its lease runs out."""
    if worker.held:
        with suppress(Unavailable):
            await ports.log.lose(worker.holder)


class Local:
    """A client that calls the services in this process."""

    def __init__(
        self,
        ports: HomePorts,
        server: Server,
        tasks: tuple["asyncio.Future[None]", ...] = (),
        *,
        runs: bool = False,
    ) -> None:
        self.runs = runs
        self._ports = ports
        self._server = server
        self._tasks = tasks
        self._delay = LOOK_FIRST
        self._results = opened_results(server, ports.home)

    # -- playbooks --

    async def register(self, text: str, path: str | None = None) -> Row:
        registered = await self._playbooks.register(LOCAL, text, path)
        findings = [finding.to_dict() for finding in registered.findings]
        return {
            **_entry(registered.entry),
            "created": registered.created,
            "findings": findings,
        }

    async def playbooks(self, prefix: str = "") -> list[Row]:
        entries = await self._playbooks.latest(LOCAL, prefix, limit=MAX_LISTED_ROWS)
        return [_entry(entry) for entry in entries]

    async def playbook(self, path: str, version: int | None = None) -> Row:
        entry = await self._playbooks.get(LOCAL, path, version)
        return {**_entry(entry), "content": entry.text}

    async def diff(self, path: str, older: int, newer: int | None = None) -> Row:
        comparison = await self._playbooks.diff(LOCAL, path, older, newer)
        return {
            "path": path,
            "older": comparison.older.version,
            "newer": comparison.newer.version,
            "diff": comparison.diff,
        }

    # -- credentials --

    async def add_credential(self, name: str, kind: str, data: dict[str, Any]) -> Row:
        from noetl.server.api import shapes

        added = await stored_credentials(self._ports).add(LOCAL, name, kind, data)
        return {**shapes.credential(added.row), "created": added.created}

    async def credentials(self) -> list[Row]:
        from noetl.server.api import shapes

        rows = await stored_credentials(self._ports).stored(LOCAL)
        return [shapes.credential(row) for row in rows]

    async def delete_credential(self, name: str) -> Row:
        await stored_credentials(self._ports).delete(LOCAL, name)
        return {"name": name}

    # -- state between executions --

    async def state_values(self, path: str | None) -> list[Row]:
        from noetl.server.api import shapes

        if path is None:
            rows = await self._state.page(LOCAL, limit=MAX_LISTED_ROWS)
        else:
            rows = await self._state.of_path(LOCAL, path)
        return [shapes.state_value(row) for row in rows]

    async def state_value(self, path: str, name: str) -> Row:
        from noetl.server.api import shapes

        row = await self._state.get(LOCAL, path, name)
        return shapes.state_value(row)

    async def set_state(
        self,
        path: str,
        name: str,
        value: Any,
        expected: int | None,
    ) -> Row:
        from noetl.server.api import shapes

        row = await self._state.put(LOCAL, path, name, value, expected)
        return shapes.state_value(row)

    async def unset_state(self, path: str, name: str, expected: int | None) -> Row:
        version = await self._state.unset(LOCAL, path, name, expected)
        return {"path": path, "name": name, "version": version}

    async def state_history(self, path: str, name: str) -> list[Row]:
        from noetl.server.api import shapes

        rows = await self._state.history(LOCAL, path, name)
        return [{**shapes.state_value(row), "unset": row.unset} for row in rows]

    # -- what starts executions --

    async def add_schedule(self, **wanted: Any) -> Row:
        from noetl.server.api import shapes

        added = await self._schedules.add(LOCAL, **wanted)
        return {**shapes.schedule(added.schedule), "created": added.created}

    async def schedules(self) -> list[Row]:
        from noetl.server.api import shapes

        schedules = await self._schedules.page(LOCAL, limit=MAX_LISTED_ROWS)
        return [shapes.schedule(schedule) for schedule in schedules]

    async def schedule(self, name: str) -> Row:
        from noetl.server.api import shapes

        schedule = await self._schedules.get(LOCAL, name)
        return shapes.schedule(schedule)

    async def change_schedule(self, name: str, how: Turned) -> Row:
        from noetl.server.api import shapes

        if how == "pause":
            schedule = await self._schedules.pause(LOCAL, name)
        else:
            schedule = await self._schedules.resume(LOCAL, name)
        return shapes.schedule(schedule)

    async def delete_schedule(self, name: str) -> Row:
        await self._schedules.delete(LOCAL, name)
        return {"name": name}

    async def slots(self, name: str, count: int) -> Row:
        slots = await self._schedules.upcoming(LOCAL, name, count)
        return {"name": name, "slots": slots}

    async def add_hook(self, **call: Any) -> Row:
        from noetl.server.api import shapes

        definition = HookDefinition(tenant=LOCAL.tenant, **call)
        added = await self._hooks.add(LOCAL, definition)
        return {**shapes.hook(added.hook), "created": added.created}

    async def hooks(self) -> list[Row]:
        from noetl.server.api import shapes

        hooks = await self._hooks.page(LOCAL, limit=MAX_LISTED_ROWS)
        return [shapes.hook(hook) for hook in hooks]

    async def delete_hook(self, name: str) -> Row:
        await self._hooks.delete(LOCAL, name)
        return {"name": name}

    # -- executions --

    async def start(self, path: str, version: int | None, payload: dict[str, Any]) -> ExecutionId:
        return await self._server.requests.start(
            path, version=version, payload=payload, by=LOCAL.name
        )

    async def again(self, execution_id: ExecutionId, how: Again, **wish: Any) -> ExecutionId:
        repeat = RepeatWish(how, **wish)
        started = await self._executions.repeat(LOCAL, execution_id, repeat)
        return started.execution_id

    async def preview_again(self, execution_id: ExecutionId, how: Again, **wish: Any) -> Row:
        repeat = RepeatWish(how, **wish)
        return await self._executions.preview(LOCAL, execution_id, repeat)

    async def change(self, execution_id: ExecutionId, how: Change) -> Row:
        executions = self._executions
        request = {
            "cancel": executions.cancel,
            "pause": executions.pause,
            "resume": executions.resume,
            "release": executions.release,
        }[how]
        answer = await request(LOCAL, execution_id)
        return dataclasses.asdict(answer)

    async def signal(self, execution_id: ExecutionId, name: str, payload: Any) -> Row:
        from noetl.server.services.signals import Outside

        signal = Outside(name, payload)
        answer = await self._signals.send(LOCAL, execution_id, signal)
        return {
            "execution_id": execution_id,
            "request": answer.request,
            "status": answer.status,
            "seq": answer.seq,
        }

    async def executions(
        self, *, before: str | None = None, limit: int = 50, **filters: Any
    ) -> list[Row]:
        from noetl.server.api import shapes
        from noetl.server.services.executions import wanted_executions

        older = None if before is None else ExecutionId(before)
        wanted = wanted_executions(SystemClock().now(), **filters)
        rows = await self._ports.log.executions(LOCAL.tenant, wanted, older, limit)
        return [shapes.execution(row) for row in rows]

    async def execution(self, execution_id: ExecutionId, min_seq: int | None = None) -> Row:
        from noetl.server.api import shapes

        with _telling_where_they_are(execution_id):
            detail = await self._executions.detail(LOCAL, execution_id, min_seq)
            return shapes.detailed(detail)

    async def workload(self, execution_id: ExecutionId) -> Row:
        return await self._executions.workload(LOCAL, execution_id)

    async def cause(self, execution_id: ExecutionId, min_seq: int) -> Row | None:
        cause = await self._executions.cause(LOCAL, execution_id)
        if cause is None:
            return None
        return cause.shown()

    async def explain(self, execution_id: ExecutionId, step: str) -> Row:
        explanation = await self._executions.explain(LOCAL, execution_id, step)
        return {
            "step": explanation.step,
            "verdict": explanation.verdict,
            "because": list(explanation.because),
            "runs": explanation.runs,
        }

    async def events(self, execution_id: ExecutionId, after: int = 0) -> list[Recorded]:
        if after == 0:
            await self._row(execution_id)
        return await self._ports.log.events(execution_id, after, PAGE)

    async def events_after(self, execution_id: ExecutionId, after: int) -> list[Recorded]:
        """Waits before each read, longer while nothing happens, so that reading does not slow work.

        Raises the last write error of the server: without it a caller would wait for ever.
        """
        for task in self._tasks:
            if task.done():
                task.result()  # raises the error of a server or worker that has failed
        await asyncio.sleep(self._delay)
        events = await self._ports.log.events(execution_id, after, PAGE)
        if events:
            self._delay = LOOK_FIRST
            return events
        trouble = self._server.dispatcher.trouble()
        if trouble is not None:
            raise trouble
        self._delay = min(self._delay * 1.5, LOOK_LAST)
        return events

    def logs(
        self, execution_id: ExecutionId, step: str | None = None, *, follow: bool = False
    ) -> AsyncGenerator[list[Row], None]:
        from noetl.server.services.access import Access
        from noetl.server.services.live import LiveUpdates
        from noetl.server.services.logs import LogService

        log = self._ports.log
        service = LogService(log, LiveUpdates(), Access(log), LOOK_LAST)
        return printed(service, execution_id, step, follow=follow)

    async def resolve(self, reference: Reference) -> Any:
        return await self._results.resolve(reference)

    async def preview(self, execution_id: ExecutionId, step: str, rows: int) -> Row:
        from noetl.server.api import shapes

        result = await self._result_service.shown(LOCAL, execution_id, step, rows)
        return shapes.result(execution_id, step, result)

    async def download(
        self,
        execution_id: ExecutionId,
        step: str,
        format: str | None,
        rows: Span = (0, None),
    ) -> AsyncGenerator[bytes, None]:
        download = await self._result_service.download(
            LOCAL,
            execution_id,
            step,
            format,
            *rows,
        )
        async with aclosing(download.parts(0, None)) as parts:
            async for part in parts:
                yield part

    async def trace(self, execution_id: ExecutionId, step: str, depth: int) -> Row:
        from noetl.server.api import shapes
        from noetl.server.services.lineage import LineageService

        service = LineageService(self._ports.log, self._executions)

        async def read_page(after: str | None) -> Row:
            graph = await service.trace(LOCAL, execution_id, step, depth, after)
            return shapes.trace(execution_id, step, graph)

        return await pages_of(read_page)

    async def pin(self, execution_id: ExecutionId, step: str, how: Pinning) -> Row:
        if how == "pin":
            await self._result_service.pin(LOCAL, execution_id, step)
        else:
            await self._result_service.unpin(LOCAL, execution_id, step)
        return {"execution_id": execution_id, "step": step, "pinned": how == "pin"}

    async def usage_of(self, execution_id: ExecutionId) -> Row:
        from noetl.server.api import shapes

        usage = await self._usage.of(LOCAL, execution_id)
        return shapes.usage(usage)

    async def usage(self, path: str | None, before: str | None, limit: int) -> Row:
        from noetl.server.api import shapes

        older = None if before is None else ExecutionId(before)
        page = await self._usage.page(LOCAL, path, older, limit)
        following = None
        if len(page) == limit:
            following = page[-1].row.execution_id
        return {"executions": [shapes.usage(usage) for usage in page], "next": following}

    # -- the queue --

    async def queue(
        self, status: str | None = None, execution_id: ExecutionId | None = None
    ) -> list[Row]:
        rows = await self._ports.log.queue(
            LOCAL.tenant, status=status, execution_id=execution_id, limit=500
        )
        return [_queue_row(row) for row in rows]

    async def history(self) -> str:
        from noetl.server.services.health import check_history

        return await check_history(self._ports.log)

    async def workers(self) -> list[Row]:
        return [
            {
                "worker": row.worker,
                "pools": list(row.pools),
                "free": row.free,
                "held": row.held,
            }
            for row in await self._ports.log.workers(LOCAL.tenant)
        ]

    async def lag(self) -> dict[int, float]:
        log = self._ports.log
        lag_ms: dict[int, float] = {}
        for shard in range(self._ports.shards):
            checkpoint = await log.checkpoint(shard)
            waiting = await log.follow(shard, checkpoint, 1)
            if waiting:
                age = self._ports.clock.now() - waiting[0].event.at
                lag_ms[shard] = max(0, age) / 1000
        return lag_ms

    # -- services --

    async def _row(self, execution_id: ExecutionId, min_seq: int | None = None) -> Projection:
        with _telling_where_they_are(execution_id):
            return await self._executions.get(LOCAL, execution_id, min_seq)

    @cached_property
    def _playbooks(self) -> "CatalogService":
        from noetl.cli.language import kinds
        from noetl.server.services.catalog import CatalogService

        return CatalogService(self._ports.catalog, kinds(), self._ports.vault)

    @cached_property
    def _executions(self) -> "ExecutionService":
        from noetl.server.services.access import Access
        from noetl.server.services.executions import ExecutionService
        from noetl.server.services.live import LiveUpdates

        server, log = self._server, self._ports.log
        return ExecutionService(
            log,
            server.requests,
            server.states,
            server.playbooks,
            server.shards,
            LiveUpdates(),
            Access(log),
            server.keeper.new_id,
        )

    @cached_property
    def _result_service(self) -> "ResultService":
        from noetl.server.services.access import Access
        from noetl.server.services.results import ResultService

        log = self._ports.log
        return ResultService(log, self._executions, Access(log), self._results)

    @cached_property
    def _usage(self) -> "UsageService":
        from noetl.server.services.usage import UsageService

        return UsageService(self._ports.log, self._executions)

    @cached_property
    def _schedules(self) -> "ScheduleService":
        from noetl.server.services.schedules import ScheduleService

        server = self._server
        return ScheduleService(self._ports.schedules, server.playbooks, server.clock)

    @cached_property
    def _state(self) -> "PlaybookStateService":
        from noetl.server.services.playbook_state import PlaybookStateService

        return PlaybookStateService(self._ports.log, self._playbooks)

    @cached_property
    def _hooks(self) -> "HookService":
        from noetl.server.services.hooks import HookService

        server = self._server
        return HookService(
            self._ports.hooks,
            server.playbooks,
            server.requests,
            stored_credentials(self._ports).reveal,
        )

    @cached_property
    def _signals(self) -> "SignalService":
        from noetl.server.services.access import Access
        from noetl.server.services.signals import SignalService

        log = self._ports.log
        return SignalService(log, self._server.requests, Access(log))


@contextmanager
def _telling_where_they_are(execution_id: ExecutionId) -> Iterator[None]:
    try:
        yield
    except NotFound as error:
        raise NotFound(
            f"no execution {execution_id}", hint="noetl exec list shows those there are"
        ) from error


def _queue_row(row: Queued) -> Row:
    return {
        "command_id": row.command_id,
        "execution_id": row.execution_id,
        "step": row.step,
        "pool": row.pool,
        "status": row.status,
        "attempt": row.attempt,
        "worker": row.worker,
        "lease_until": row.lease_until and iso(row.lease_until),
        "progress": row.progress,
    }


def _entry(entry: CatalogEntry) -> Row:
    return {
        "path": entry.path,
        "version": entry.version,
        "hash": entry.hash,
    }
