"""The home of this machine: starts or finds its database, and opens the ports on it.

Any number of processes may use one home at once. Each is a server among others: they share shards
and commands, and another process continues the work that one leaves unfinished.
"""

import asyncio
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from noetl import settings
from noetl.bus.postgres import BusPostgres
from noetl.catalog.postgres import CatalogPostgres, VaultPostgres
from noetl.embedded import ensure, stop
from noetl.leases.postgres import LeasesPostgres
from noetl.log.postgres import make_postgres_stores
from noetl.log.stores import Stores
from noetl.model.errors import Unavailable
from noetl.postgres.migrations import migrate
from noetl.postgres.pool import Database, connect
from noetl.runtime.clock import SystemClock, to_micros
from noetl.runtime.lake import open_lake
from noetl.runtime.meanwhile import run_meanwhile
from noetl.triggers.postgres import HooksPostgres, SchedulesPostgres

DATABASE_CHECK_INTERVAL_S = 0.05  # seconds between checks that the database runs


class SettingsWarning(UserWarning):
    """A setting that has no effect. The first line says why, the second what to do."""


@dataclass(frozen=True, slots=True)
class HomePorts:
    """The open ports of one home."""

    home: Path
    stores: Stores
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
async def open_home(home: Path, time_slice_s: float | None = None) -> AsyncIterator[HomePorts]:
    """Start or find the database of a home, and open its ports.

    `time_slice_s` is the time in seconds that the log may compute before it yields to others.
    """
    store = settings.read_settings(settings.DatabaseSettings)
    shards = settings.read_settings(settings.ShardSettings)
    try:
        dsns = await ensure(home)
        pools = Database(
            dsns.control,
            main_size=store.postgres_pool_max_size,
            background_size=store.bg_pool_max_size,
        )
        async with (
            run_meanwhile(_migrate_database(dsns.control, shards)) as migrating,
            pools as database,
            BusPostgres(database) as bus,
        ):
            count = await migrating
            leases = LeasesPostgres(database, to_micros(shards.lease_sec))
            watching = asyncio.ensure_future(_keep_database_running(home, bus, store))
            try:
                lake = open_lake(home, settings.read_settings(settings.StorageSettings))
                yield HomePorts(
                    home=home,
                    stores=make_postgres_stores(
                        database, count, lake=lake, time_slice_s=time_slice_s
                    ),
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


async def _migrate_database(dsn: str, shards: settings.ShardSettings) -> int:
    """Bring the schema up to date. Returns the number of shards of the database."""
    connection = await connect(dsn)
    try:
        count = await migrate(connection, shards=shards.count)
    finally:
        await connection.close()
    if "count" in shards.model_fields_set and shards.count != count:
        ignored = SettingsWarning(
            f"NOETL_SHARD_COUNT is {shards.count}, and the database was made with {count} shards, which stay\n"
            "the number is fixed when the database is made: remove the variable, or use another database"
        )
        warnings.warn(ignored, stacklevel=2)
    return count


async def _keep_database_running(
    home: Path, bus: BusPostgres, store: settings.DatabaseSettings
) -> None:
    """Start the embedded database again, at the same address, if its process has ended.

    The process that started it may end before this one.
    """
    if store.db_url is not None:
        return
    while True:
        await asyncio.sleep(DATABASE_CHECK_INTERVAL_S)
        if not bus.connected.is_set():
            with suppress(Unavailable):
                await ensure(home)
