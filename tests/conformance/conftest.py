"""One suite per port, run on every world in `WORLDS`. A real store joins by adding one factory here."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, fields
from typing import Any

import pytest

from noetl.accounts.memory import TokensMemory
from noetl.accounts.port import TokenStore
from noetl.accounts.postgres import TokensPostgres
from noetl.accounts.tenants import TenantStore
from noetl.accounts.tenants_memory import TenantsMemory
from noetl.accounts.tenants_postgres import TenantsPostgres
from noetl.accounts.users import UserStore
from noetl.accounts.users_memory import UsersMemory
from noetl.accounts.users_postgres import UsersPostgres
from noetl.audit.memory import AuditMemory
from noetl.audit.port import AuditLog
from noetl.audit.postgres import AuditPostgres
from noetl.bus.memory import BusMemory
from noetl.bus.port import Bus
from noetl.bus.postgres import BusPostgres
from noetl.catalog.memory import CatalogMemory, VaultMemory
from noetl.catalog.port import Catalog, Vault
from noetl.catalog.postgres import CatalogPostgres, VaultPostgres
from noetl.leases.memory import LeasesMemory
from noetl.leases.port import Leases
from noetl.leases.postgres import LeasesPostgres
from noetl.log.events.port import EventLog
from noetl.log.inbox.port import Inbox
from noetl.log.lifetimes.port import ResultLifetimes
from noetl.log.lineage.port import Lineage
from noetl.log.memory import make_memory_stores
from noetl.log.payloads.port import PayloadStore
from noetl.log.playbook_state.port import PlaybookStateStore
from noetl.log.postgres import make_postgres_stores
from noetl.log.presence.port import WorkerDirectory
from noetl.log.projections.port import Projections
from noetl.log.queue.port import CommandQueue
from noetl.log.snapshots.port import SnapshotStore
from noetl.log.step_logs.port import StepLogStore
from noetl.log.stores import Stores
from noetl.log.tables import MemoryDatabase
from noetl.log.tenant_usage.port import UsageMeter
from noetl.postgres.migrations import migrate
from noetl.postgres.pool import Database as Postgres
from noetl.postgres.pool import connect
from noetl.postgres.roles import APP_ROLE
from noetl.results.port import ResultStore
from noetl.results.tiers.memory import ResultsMemory
from noetl.shard_rows import make_shard_rows
from noetl.triggers.memory import HooksMemory, SchedulesMemory
from noetl.triggers.port import Hooks, Schedules
from noetl.triggers.postgres import HooksPostgres, SchedulesPostgres
from tests.postgres import server
from tests.waiting import HANG_LIMIT_S

SHARDS = 4


class ManualClock:
    def __init__(self) -> None:
        self.time = 1_750_000_000_000_000

    def now(self) -> int:
        return self.time


@dataclass
class PortWorld:
    """Ports over one empty store. `pass_time` makes the store's own clock go on."""

    log: EventLog
    inbox: Inbox
    queue: CommandQueue
    projections: Projections
    payloads: PayloadStore
    lifetimes: ResultLifetimes
    lineage: Lineage
    step_logs: StepLogStore
    presence: WorkerDirectory
    state: PlaybookStateStore
    snapshots: SnapshotStore
    usage: UsageMeter
    leases: Leases
    bus: Bus
    results: ResultStore
    catalog: Catalog
    vault: Vault
    schedules: Schedules
    hooks: Hooks
    tokens: TokenStore
    tenants: TenantStore
    users: UserStore
    audit: AuditLog
    clock: ManualClock

    async def pass_time(self, micros: int) -> None:
        self.clock.time += micros


def by_name(stores: Stores) -> dict[str, Any]:
    return {each.name: getattr(stores, each.name) for each in fields(Stores)}


@asynccontextmanager
async def memory() -> AsyncIterator[PortWorld]:
    clock, shards = ManualClock(), make_shard_rows(SHARDS)
    stores = make_memory_stores(MemoryDatabase(shards, clock))
    users = UsersMemory(clock)
    yield PortWorld(
        **by_name(stores),
        leases=LeasesMemory(shards, clock),
        bus=BusMemory(),
        results=ResultsMemory(),
        catalog=CatalogMemory(),
        vault=VaultMemory(clock),
        schedules=SchedulesMemory(stores.log, stores.inbox, clock),
        hooks=HooksMemory(clock),
        tenants=TenantsMemory(clock),
        tokens=TokensMemory(clock, users),
        users=users,
        audit=AuditMemory(clock),
        clock=clock,
    )


# Postgres with a clock that stands still: a `now()` that is found before the real one.
CLOCK = """
create schema standstill;
create table standstill.clock (micros bigint not null);
create function standstill.now() returns timestamptz language sql stable
as $$ select timestamptz 'epoch' + c.micros * interval '1 microsecond' from standstill.clock c $$;
grant usage on schema standstill to noetl_app;
grant select on standstill.clock to noetl_app;
"""


@dataclass
class PostgresWorld(PortWorld):
    owner: Postgres  # with the rights of the owner, which the ports do not have

    async def pass_time(self, micros: int) -> None:
        await super().pass_time(micros)
        async with self.owner.main.open_write_transaction() as session:
            await session.execute("update standstill.clock set micros = $1", self.clock.time)


# Rows go, the schema stays: a fraction of the time that a new database takes.
EMPTY = """
do $$ declare name text; begin
    for name in select c.oid::regclass::text from pg_class c join pg_namespace n on n.oid = c.relnamespace
        where n.nspname = 'noetl' and c.relkind in ('r', 'p') and not c.relispartition
            and c.relname not in ('schema_version', 'execution_shard')
    loop execute 'delete from ' || name; end loop;
    update noetl.execution_shard set owner = null, epoch = 0, last_seq = 0;
    insert into noetl.tenant (tenant, name, created_at) values (1, 'default', pg_catalog.now());
    delete from standstill.clock;
end $$
"""


async def fill(dsn: str) -> None:
    connection = await connect(dsn)
    await migrate(connection, shards=SHARDS)
    await connection.execute(CLOCK)
    await connection.close()


@asynccontextmanager
async def postgres() -> AsyncIterator[PortWorld]:
    dsn = server().address(server().template("standstill", fill))
    settings = {"search_path": "standstill, pg_catalog"}
    as_server = {**settings, "role": APP_ROLE}
    async with (
        Postgres(dsn, main_size=1, background_size=1, settings=settings) as owner,
        Postgres(dsn, main_size=4, background_size=2, settings=as_server) as database,
    ):
        clock, leases = ManualClock(), LeasesPostgres(database)
        async with owner.main.open_write_transaction() as session:
            await session.execute(EMPTY)
            await session.execute("insert into standstill.clock values ($1)", clock.time)
        async with BusPostgres(database) as bus:
            yield PostgresWorld(
                **by_name(make_postgres_stores(database, SHARDS, sweep_every=1)),
                leases=leases,
                bus=bus,
                results=ResultsMemory(),
                catalog=CatalogPostgres(database),
                vault=VaultPostgres(database),
                schedules=SchedulesPostgres(database, SHARDS),
                hooks=HooksPostgres(database),
                tokens=TokensPostgres(database),
                tenants=TenantsPostgres(database),
                users=UsersPostgres(database),
                audit=AuditPostgres(database),
                clock=clock,
                owner=owner,
            )
        await leases.close()


WORLDS: dict[str, Callable[[], AbstractAsyncContextManager[PortWorld]]] = {
    "memory": memory,
    "postgres": postgres,
}


@pytest.fixture(params=list(WORLDS))
def world(request: pytest.FixtureRequest) -> Callable[[], AbstractAsyncContextManager[PortWorld]]:
    """Opened by the hook below, inside the test's own event loop: the test receives the `World`."""
    return WORLDS[request.param]


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    wanted = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}

    async def run() -> None:
        if "world" not in wanted:
            return await asyncio.wait_for(test(**wanted), HANG_LIMIT_S)
        async with wanted.pop("world")() as world:
            await asyncio.wait_for(test(world=world, **wanted), HANG_LIMIT_S)

    asyncio.run(run())
    return True
