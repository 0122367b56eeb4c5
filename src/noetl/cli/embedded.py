"""The home of this machine: its database opened, and as much of a server and a worker in this process as a command needs.

Any number of processes may do so at once in one home. Each is a server among others: shards and commands go to whoever is there,
and what one leaves unfinished another goes on with.
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
from noetl.log.port import Projection, Recorded
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

if (
    TYPE_CHECKING
):  # services bring more than `noetl run` needs: they are loaded by the command that asks for one
    from noetl.server.services.catalog import CatalogService
    from noetl.server.services.credentials import CredentialService
    from noetl.server.services.executions import ExecutionService
    from noetl.server.services.hooks import HookService
    from noetl.server.services.playbook_state import PlaybookStateService
    from noetl.server.services.results import ResultService
    from noetl.server.services.schedules import ScheduleService
    from noetl.server.services.signals import SignalService
    from noetl.server.services.usage import UsageService

LOOK_FIRST, LOOK_LAST = 0.01, 0.1  # seconds between looks at the log
PAGE = 5_000
WATCH_EVERY = 0.05  # seconds between looks whether the database is there
SWEEP_EVERY = 60.0  # seconds between a server's looks at what may go
LEAVE = 3.0  # seconds for what this worker runs for others when the command has ended


@dataclass(frozen=True, slots=True)
class HomePorts:
    """Everything durable of one home, open."""

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
    data: str | None = field(
        repr=False
    )  # of the one for users' tables; None: it is not ours to divide


@asynccontextmanager
async def opened(home: Path, at_a_stretch: float | None = None) -> AsyncIterator[HomePorts]:
    """`at_a_stretch`: seconds that may be computed while others wait for an answer."""
    store, shards = settings.read(settings.Store), settings.read(settings.ShardSettings)
    try:
        dsns = await ensure(home)
        connection = await connect(dsns.control)
        try:
            count = await migrate(connection, shards=shards.count)
        finally:
            await connection.close()
        if "count" in shards.model_fields_set and shards.count != count:
            warn(
                f"NOETL_SHARD_COUNT is {shards.count}, and the database was made with {count} shards, which stay",
                "the number is fixed when the database is made: remove the variable, or use another database",
            )
        made = Database(
            dsns.control,
            main_size=store.postgres_pool_max_size,
            background_size=store.bg_pool_max_size,
        )
        async with made as database, BusPostgres(database) as bus:
            leases = LeasesPostgres(database, micros(shards.lease_sec))
            watching = asyncio.ensure_future(_keep_there(home, bus, store))
            try:
                lake = open_lake(home, settings.read(settings.Storage))
                log = LogPostgres(database, count, lake=lake, at_a_stretch=at_a_stretch)
                catalog, vault = CatalogPostgres(database), VaultPostgres(database)
                schedules, hooks = SchedulesPostgres(database, count), HooksPostgres(database)
                yield HomePorts(
                    home,
                    log,
                    leases,
                    bus,
                    catalog,
                    vault,
                    schedules,
                    hooks,
                    SystemClock(),
                    count,
                    dsns.control,
                    dsns.data,
                )
            finally:
                watching.cancel()
                await leases.close()
    finally:
        await stop()


async def _keep_there(home: Path, bus: BusPostgres, store: settings.Store) -> None:
    """The process that started the database may end before this one: then it is ours to start, at the address it had."""
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
    shards, duties = settings.read(settings.ShardSettings), settings.read(settings.Duties)
    storage = settings.read(settings.Storage)
    retention = storage.storage_retention_sec
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
        retention=None if retention is None else micros(retention),
        env=readable_environment(os.environ),
    )


def opened_results(server: Server, home: Path) -> Reading:
    """What this process may read of results. Whoever asks for one waits; a store that is away is not waited for as well."""
    storage = settings.read(settings.Storage).model_copy(update={"storage_patience_sec": 0.0})
    return Reading(open_store(server, home, storage), server.manifest)


def micros(seconds: float) -> Micros:
    return round(seconds * 1e6)


# ---- a server and a worker for one command -----------------------------------------------------------------------------


@asynccontextmanager
async def local(home: Path, need: Need, pools: tuple[str, ...] = ()) -> AsyncIterator["Local"]:
    async with opened(home) as ports:
        server = _server(ports)
        if need == "read" or (need == "change" and await ports.leases.servers()):
            yield Local(ports, server, runs=need == "change")
            return
        worker = within(server, _for_a_moment(ports, pools)) if need == "run" else None
        async with _running(server, worker, ports) as tasks:
            yield Local(ports, server, tasks)


def _server(ports: HomePorts) -> Server:
    async def reveal(identity: Identity, name: str) -> dict[str, Any]:
        return await stored_credentials(ports).reveal(identity, name)

    settings_ = server_settings(ports.shards)
    return Server(
        ports.log, ports.leases, ports.bus, ports.catalog, ports.clock, settings_, reveal=reveal
    )


def stored_credentials(ports: HomePorts) -> "CredentialService":
    """Made by whoever asks for one: what encrypts is not loaded before."""
    from noetl.server.services.credentials import CredentialService
    from noetl.server.services.keys import KeyFile

    return CredentialService(ports.vault, KeyFile(ports.home))


def _for_a_moment(ports: HomePorts, more: tuple[str, ...]) -> Options:
    told = options(
        ports.home,
        settings.read(settings.WorkerProcessSettings),
        settings.read(settings.ShardSettings),
        settings.read(settings.Storage),
    )
    pools = tuple(dict.fromkeys((*usual(told.pools), *more)))
    return replace(
        told, pools=pools, drain=LEAVE, find_data=lambda: ports.data, tools=tools(ports.home)
    )


@asynccontextmanager
async def _running(
    server: Server, worker: Wired | None, ports: HomePorts
) -> AsyncIterator[tuple["asyncio.Future[None]", ...]]:
    await server.keeper.run_once()  # a node number, and shards, before the first request
    leaving = asyncio.Event()
    serving = asyncio.ensure_future(server.run())
    working = asyncio.ensure_future(worker.run(leaving)) if worker is not None else None
    try:
        yield (serving,) if working is None else (serving, working)
    finally:
        leaving.set()
        if worker is not None and working is not None:
            await asyncio.wait((working,))
            if worker.held:
                with suppress(Unavailable):
                    await ports.log.lose(
                        worker.holder
                    )  # others need not wait for the lease to run out
        with suppress(Unavailable):  # whoever lists executions next shall see how this one ended
            server.projector.changed(server.shards.owned())
            await server.projector.run_once()
        serving.cancel()
        await asyncio.wait((serving,))


class Local:
    """`Client` on the ports themselves."""

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
        done = await self._playbooks.register(LOCAL, text, path)
        findings = [finding.to_dict() for finding in done.findings]
        return {**_entry(done.entry), "created": done.created, "findings": findings}

    async def playbooks(self, prefix: str = "") -> list[Row]:
        return [
            _entry(entry) for entry in await self._playbooks.latest(LOCAL, prefix, limit=100_000)
        ]

    async def playbook(self, path: str, version: int | None = None) -> Row:
        entry = await self._playbooks.get(LOCAL, path, version)
        return {**_entry(entry), "content": entry.text}

    async def diff(self, path: str, older: int, newer: int | None = None) -> Row:
        found = await self._playbooks.diff(LOCAL, path, older, newer)
        return {
            "path": path,
            "older": found.older.version,
            "newer": found.newer.version,
            "diff": found.diff,
        }

    # -- credentials --

    async def add_credential(self, name: str, kind: str, data: dict[str, Any]) -> Row:
        from noetl.server.api import shapes

        added = await stored_credentials(self._ports).add(LOCAL, name, kind, data)
        return {**shapes.credential(added.row), "created": added.created}

    async def credentials(self) -> list[Row]:
        from noetl.server.api import shapes

        return [
            shapes.credential(row) for row in await stored_credentials(self._ports).stored(LOCAL)
        ]

    async def delete_credential(self, name: str) -> Row:
        await stored_credentials(self._ports).delete(LOCAL, name)
        return {"name": name}

    # -- state between executions --

    async def state_values(self, path: str | None) -> list[Row]:
        from noetl.server.api import shapes

        state = self._state
        found = await (
            state.page(LOCAL, limit=100_000) if path is None else state.of_path(LOCAL, path)
        )
        return [shapes.state_value(row) for row in found]

    async def state_value(self, path: str, name: str) -> Row:
        from noetl.server.api import shapes

        return shapes.state_value(await self._state.get(LOCAL, path, name))

    async def set_state(self, path: str, name: str, value: Any, expected: int | None) -> Row:
        from noetl.server.api import shapes

        return shapes.state_value(await self._state.put(LOCAL, path, name, value, expected))

    async def unset_state(self, path: str, name: str, expected: int | None) -> Row:
        return {
            "path": path,
            "name": name,
            "version": await self._state.unset(LOCAL, path, name, expected),
        }

    async def state_history(self, path: str, name: str) -> list[Row]:
        from noetl.server.api import shapes

        rows = await self._state.history(LOCAL, path, name)
        return [{**shapes.state_value(row), "unset": row.unset} for row in rows]

    # -- what starts executions --

    async def add_schedule(self, **wanted: Any) -> Row:
        from noetl.server.api import shapes

        kept = await self._schedules.add(LOCAL, **wanted)
        return {**shapes.schedule(kept.schedule), "created": kept.created}

    async def schedules(self) -> list[Row]:
        from noetl.server.api import shapes

        return [shapes.schedule(each) for each in await self._schedules.page(LOCAL, limit=100_000)]

    async def schedule(self, name: str) -> Row:
        from noetl.server.api import shapes

        return shapes.schedule(await self._schedules.get(LOCAL, name))

    async def change_schedule(self, name: str, how: Turned) -> Row:
        from noetl.server.api import shapes

        schedules = self._schedules
        return shapes.schedule(
            await (schedules.pause if how == "pause" else schedules.resume)(LOCAL, name)
        )

    async def delete_schedule(self, name: str) -> Row:
        await self._schedules.delete(LOCAL, name)
        return {"name": name}

    async def slots(self, name: str, count: int) -> Row:
        return {"name": name, "slots": await self._schedules.upcoming(LOCAL, name, count)}

    async def add_hook(self, **call: Any) -> Row:
        from noetl.server.api import shapes

        hooked = await self._hooks.add(LOCAL, HookDefinition(tenant=LOCAL.tenant, **call))
        return {**shapes.hook(hooked.hook), "created": hooked.created}

    async def hooks(self) -> list[Row]:
        from noetl.server.api import shapes

        return [shapes.hook(each) for each in await self._hooks.page(LOCAL, limit=100_000)]

    async def delete_hook(self, name: str) -> Row:
        await self._hooks.delete(LOCAL, name)
        return {"name": name}

    # -- executions --

    async def start(self, path: str, version: int | None, payload: dict[str, Any]) -> ExecutionId:
        return await self._server.requests.start(
            path, version=version, payload=payload, by=LOCAL.name
        )

    async def again(self, execution_id: ExecutionId, how: Again, **wish: Any) -> ExecutionId:
        return (
            await self._executions.repeat(LOCAL, execution_id, RepeatWish(how, **wish))
        ).execution_id

    async def preview_again(self, execution_id: ExecutionId, how: Again, **wish: Any) -> Row:
        return await self._executions.preview(LOCAL, execution_id, RepeatWish(how, **wish))

    async def change(self, execution_id: ExecutionId, how: Change) -> Row:
        executions = self._executions
        ask = {
            "cancel": executions.cancel,
            "pause": executions.pause,
            "resume": executions.resume,
            "release": executions.release,
        }[how]
        return dataclasses.asdict(await ask(LOCAL, execution_id))

    async def signal(self, execution_id: ExecutionId, name: str, payload: Any) -> Row:
        from noetl.server.services.signals import Outside

        asked = await self._signals.send(LOCAL, execution_id, Outside(name, payload))
        return {
            "execution_id": execution_id,
            "request": asked.request,
            "status": asked.status,
            "seq": asked.seq,
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
            return shapes.detailed(await self._executions.detail(LOCAL, execution_id, min_seq))

    async def workload(self, execution_id: ExecutionId) -> Row:
        return await self._executions.workload(LOCAL, execution_id)

    async def cause(self, execution_id: ExecutionId, min_seq: int) -> Row | None:
        found = await self._executions.cause(LOCAL, execution_id)
        return None if found is None else found.shown()

    async def explain(self, execution_id: ExecutionId, step: str) -> Row:
        found = await self._executions.explain(LOCAL, execution_id, step)
        return {
            "step": found.step,
            "verdict": found.verdict,
            "because": list(found.because),
            "runs": found.runs,
        }

    async def events(self, execution_id: ExecutionId, after: int = 0) -> list[Recorded]:
        if after == 0:
            await self._row(execution_id)
        return await self._ports.log.events(execution_id, after, PAGE)

    async def events_after(self, execution_id: ExecutionId, after: int) -> list[Recorded]:
        """Looks more seldom while nothing happens; never without a pause, or telling would take the time of doing.

        What could not be written says why: reading alone would wait for it in silence.
        """
        for task in self._tasks:
            if task.done():
                task.result()  # a server or worker that fell over says why
        await asyncio.sleep(self._delay)
        found = await self._ports.log.events(execution_id, after, PAGE)
        if not found and (trouble := self._server.dispatcher.trouble()) is not None:
            raise trouble
        self._delay = LOOK_FIRST if found else min(self._delay * 1.5, LOOK_LAST)
        return found

    def logs(
        self, execution_id: ExecutionId, step: str | None = None, *, follow: bool = False
    ) -> AsyncGenerator[list[Row], None]:
        from noetl.server.services.access import Access
        from noetl.server.services.live import LiveUpdates
        from noetl.server.services.logs import LogService

        log = self._ports.log
        return printed(
            LogService(log, LiveUpdates(), Access(log), LOOK_LAST),
            execution_id,
            step,
            follow=follow,
        )

    async def resolve(self, reference: Reference) -> Any:
        return await self._results.resolve(reference)

    async def preview(self, execution_id: ExecutionId, step: str, rows: int) -> Row:
        from noetl.server.api import shapes

        return shapes.result(
            execution_id, step, await self._result_service.shown(LOCAL, execution_id, step, rows)
        )

    async def download(
        self, execution_id: ExecutionId, step: str, format: str | None, rows: Span = (0, None)
    ) -> AsyncGenerator[bytes, None]:
        found = await self._result_service.download(LOCAL, execution_id, step, format, *rows)
        async with aclosing(found.parts(0, None)) as parts:
            async for part in parts:
                yield part

    async def trace(self, execution_id: ExecutionId, step: str, depth: int) -> Row:
        from noetl.server.api import shapes
        from noetl.server.services.lineage import LineageService

        service = LineageService(self._ports.log, self._executions)

        async def page(after: str | None) -> Row:
            return shapes.trace(
                execution_id, step, await service.trace(LOCAL, execution_id, step, depth, after)
            )

        return await pages_of(page)

    async def pin(self, execution_id: ExecutionId, step: str, how: Pinning) -> Row:
        results = self._result_service
        await (results.pin if how == "pin" else results.unpin)(LOCAL, execution_id, step)
        return {"execution_id": execution_id, "step": step, "pinned": how == "pin"}

    async def usage_of(self, execution_id: ExecutionId) -> Row:
        from noetl.server.api import shapes

        return shapes.usage(await self._usage.of(LOCAL, execution_id))

    async def usage(self, path: str | None, before: str | None, limit: int) -> Row:
        from noetl.server.api import shapes

        found = await self._usage.page(
            LOCAL, path, None if before is None else ExecutionId(before), limit
        )
        following = found[-1].row.execution_id if len(found) == limit else None
        return {"executions": [shapes.usage(each) for each in found], "next": following}

    # -- the queue --

    async def queue(
        self, status: str | None = None, execution_id: ExecutionId | None = None
    ) -> list[Row]:
        rows = await self._ports.log.queue(
            LOCAL.tenant, status=status, execution_id=execution_id, limit=500
        )
        return [
            {
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
            for row in rows
        ]

    async def history(self) -> str:
        from noetl.server.services.health import check_history

        return await check_history(self._ports.log)

    async def workers(self) -> list[Row]:
        return [
            {"worker": row.worker, "pools": list(row.pools), "free": row.free, "held": row.held}
            for row in await self._ports.log.workers(LOCAL.tenant)
        ]

    async def lag(self) -> dict[int, float]:
        behind: dict[int, float] = {}
        for shard in range(self._ports.shards):
            waiting = await self._ports.log.follow(
                shard, await self._ports.log.checkpoint(shard), 1
            )
            if waiting:
                behind[shard] = max(0, self._ports.clock.now() - waiting[0].event.at) / 1000
        return behind

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

        return ScheduleService(self._ports.schedules, self._server.playbooks, self._server.clock)

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

        return SignalService(self._ports.log, self._server.requests, Access(self._ports.log))


@contextmanager
def _telling_where_they_are(execution_id: ExecutionId) -> Iterator[None]:
    try:
        yield
    except NotFound as error:
        raise NotFound(
            f"no execution {execution_id}", hint="noetl exec list shows those there are"
        ) from error


def _entry(entry: CatalogEntry) -> Row:
    return {"path": entry.path, "version": entry.version, "hash": entry.hash}
