"""The home of this machine: starts or finds its database, and opens the ports on it.

Any number of processes may use one home at once. Each is a server among others: they share shards
and commands, and another process continues the work that one leaves unfinished.
"""

import asyncio
import logging
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from noetl import settings
from noetl.accounts.postgres import TokensPostgres
from noetl.accounts.tenants_postgres import TenantsPostgres
from noetl.accounts.users_postgres import UsersPostgres
from noetl.audit.postgres import AuditPostgres
from noetl.bus.postgres import BusPostgres
from noetl.catalog.postgres import CatalogPostgres, VaultPostgres
from noetl.embedded import Dsns, ensure, stop
from noetl.leases.postgres import LeasesPostgres
from noetl.log.postgres import make_postgres_stores
from noetl.log.stores import Stores
from noetl.model.errors import Unavailable
from noetl.pipeline.retries import retry_while_unavailable
from noetl.postgres.migrations import migrate
from noetl.postgres.pool import Database, connect, translate_driver_errors
from noetl.postgres.roles import APP_ROLE
from noetl.runtime.clock import SystemClock, to_micros
from noetl.runtime.lake import open_lake
from noetl.runtime.meanwhile import run_meanwhile
from noetl.triggers.postgres import HooksPostgres, SchedulesPostgres

Got = TypeVar("Got")
log = logging.getLogger(__name__)

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
    tokens: TokensPostgres
    tenants: TenantsPostgres
    users: UsersPostgres
    audit: AuditPostgres
    clock: SystemClock
    shards: int
    control: str = field(repr=False)  # address of this database, with the rights of its owner
    data: str | None = field(repr=False)  # database for users' tables; None for a foreign Postgres


@asynccontextmanager
async def open_home(
    home: Path, time_slice_s: float | None = None, *, patience_s: float = 0.0
) -> AsyncIterator[HomePorts]:
    """Start or find the database of a home, and open its ports.

    `time_slice_s` is the time in seconds that the log may compute before it yields to others.
    `patience_s` is the time in seconds that a statement waits for an embedded database that is
    started again.
    """
    store = settings.read_settings(settings.DatabaseSettings)
    shards = settings.read_settings(settings.ShardSettings)
    if store.db_url is not None:
        patience_s = 0.0
    async with AsyncExitStack() as stack:
        stack.push_async_callback(stop)

        async def connect_home() -> ConnectedHome:
            return await _connect_home(home, store, shards, patience_s)

        connected = await retry_if_embedded(store.db_url is None, connect_home)
        stack.push_async_exit(connected.open_parts)
        leases = LeasesPostgres(connected.database, to_micros(shards.lease_sec))
        stack.push_async_callback(leases.close)
        watching = asyncio.ensure_future(_keep_database_running(home, connected.bus, store))
        stack.callback(watching.cancel)
        lake = open_lake(home, settings.read_settings(settings.StorageSettings))
        database, count = connected.database, connected.shards
        yield HomePorts(
            home=home,
            stores=make_postgres_stores(database, count, lake=lake, time_slice_s=time_slice_s),
            leases=leases,
            bus=connected.bus,
            catalog=CatalogPostgres(database),
            vault=VaultPostgres(database),
            schedules=SchedulesPostgres(database, count),
            hooks=HooksPostgres(database),
            tokens=TokensPostgres(database),
            tenants=TenantsPostgres(database),
            users=UsersPostgres(database),
            audit=AuditPostgres(database),
            clock=SystemClock(),
            shards=count,
            control=connected.dsns.control,
            data=connected.dsns.data,
        )


@dataclass(frozen=True, slots=True)
class ConnectedHome:
    """A home with a database that answers and has the present schema."""

    dsns: Dsns
    database: Database
    bus: BusPostgres
    shards: int
    open_parts: AsyncExitStack  # closes the connections


async def _connect_home(
    home: Path,
    store: settings.DatabaseSettings,
    shards: settings.ShardSettings,
    patience_s: float,
) -> ConnectedHome:
    """Start or find the database, migrate it, and connect to it at the same time."""
    dsns = await ensure(home)
    if dsns.app_role is None and dsns.app == dsns.control:
        log.warning("servers have the rights of the owner of the log", extra={"missing": APP_ROLE})
    # Not with the rights of the owner: what was appended to the log stays as it is.
    role = {} if dsns.app_role is None else {"role": dsns.app_role}
    pools = Database(
        dsns.app,
        main_size=store.postgres_pool_max_size,
        background_size=store.bg_pool_max_size,
        settings=role,
        patience_s=patience_s,
    )
    async with AsyncExitStack() as stack:
        migration = run_meanwhile(_migrate_database(dsns.control, shards))
        migrating = await stack.enter_async_context(migration)
        database = await stack.enter_async_context(pools)
        bus = await stack.enter_async_context(BusPostgres(database))
        count = await migrating
        return ConnectedHome(dsns, database, bus, count, stack.pop_all())


async def retry_if_embedded(is_embedded: bool, call: Callable[[], Awaitable[Got]]) -> Got:
    """Repeat a call that a command begins with while an embedded database is not there.

    The database ends with the process that started it, which may be another short command. The next
    try, or the watch of an open home, starts it again.
    """
    if is_embedded:
        return await retry_while_unavailable(call)
    return await call()


async def _migrate_database(dsn: str, shards: settings.ShardSettings) -> int:
    """Bring the schema up to date. Returns the number of shards of the database."""
    connection = await connect(dsn)
    try:
        # A migration that was interrupted is applied by the next try, or was applied already.
        async with translate_driver_errors(writes=False):
            count = await migrate(connection, shards=shards.count)
    finally:
        connection.terminate()
    if "count" in shards.given_names and shards.count != count:
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
