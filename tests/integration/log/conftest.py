"""The adapters on a database of their own, migrated, with the real clock. Coroutine tests run in a loop of their own."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from noetl.leases.postgres import LeasesPostgres
from noetl.log.events.port import AppendBatch, Appended, ExecutionPart, Outcome
from noetl.log.postgres import make_postgres_stores
from noetl.log.stores import Stores
from noetl.model.events import Event
from noetl.model.exchange import LEASE_MICROS
from noetl.model.ids import DEFAULT_TENANT, ExecutionId, Micros, shard_of
from noetl.postgres.migrations import migrate
from noetl.postgres.pool import Database, connect
from tests.postgres import Postgres, server
from tests.waiting import HANG_LIMIT_S

SHARDS = 4
HOUR: Micros = 3_600_000_000


async def fill(dsn: str) -> None:
    connection = await connect(dsn)
    await migrate(connection, shards=SHARDS)
    await connection.close()


@pytest.fixture
def migrated(postgres: Postgres) -> Iterator[str]:
    """The address of an empty log."""
    with postgres.database(template=server().template("log", fill)) as dsn:
        yield dsn


@dataclass
class Store:
    database: Database
    stores: Stores
    leases: LeasesPostgres
    epochs: dict[int, int] = field(default_factory=dict)
    runtime_id: int = 0

    async def claim_shards(self, lease: Micros = HOUR) -> None:
        runtime = await self.leases.register("server", None, lease)
        self.runtime_id = runtime.runtime_id
        self.epochs = {
            each.shard: each.epoch for each in await self.leases.claim(runtime.runtime_id, SHARDS)
        }

    def part(self, execution_id: ExecutionId, after: int, *events: Event) -> ExecutionPart:
        shard = shard_of(execution_id, SHARDS)
        return ExecutionPart(
            execution_id=execution_id,
            shard=shard,
            tenant=DEFAULT_TENANT,
            after=after,
            events=events,
        )

    async def append(self, *parts: ExecutionPart) -> list[Outcome]:
        return await self.stores.log.append(
            AppendBatch(epochs=self.epochs, parts=parts, lease=LEASE_MICROS)
        )

    async def write(self, execution_id: ExecutionId, *events: Event) -> Appended:
        (outcome,) = await self.append(
            self.part(execution_id, await self.stores.log.read_last_seq(execution_id), *events)
        )
        assert isinstance(outcome, Appended), outcome
        return outcome


@asynccontextmanager
async def store(dsn: str, connections: int = 4) -> AsyncIterator[Store]:
    async with Database(dsn, main_size=connections, background_size=2) as database:
        leases = LeasesPostgres(database)
        yield Store(database, make_postgres_stores(database, SHARDS), leases)
        await leases.close()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    wanted = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    asyncio.run(asyncio.wait_for(pyfuncitem.obj(**wanted), HANG_LIMIT_S))
    return True
