"""Server processes that are gone lose their leases when the next one starts, and living ones keep theirs."""

import asyncio
from pathlib import Path

from noetl.leases.postgres import LeasesPostgres
from noetl.model.ids import Micros
from noetl.postgres.migrations import migrate
from noetl.postgres.pool import Database, connect
from noetl.runtime.clock import SystemClock
from noetl.runtime.server_locks import hold_server_lock, lock_server, release_dead_servers
from noetl.server.clock import StoreClock
from noetl.server.dispatch.shards import OwnedShards, ShardKeeper
from noetl.server.settings import ServerSettings
from tests.postgres import server

LEASE: Micros = 300_000_000


def make_keeper(leases: LeasesPostgres) -> ShardKeeper:
    settings = ServerSettings(lease=LEASE)
    return ShardKeeper(leases, OwnedShards(settings.shards), StoreClock(SystemClock()), settings)


async def fill_database(dsn: str) -> None:
    connection = await connect(dsn)
    await migrate(connection)
    await connection.close()


def test_lease_of_a_dead_server_ends_when_the_next_one_starts(tmp_path: Path) -> None:
    async def run(dsn: str) -> None:
        await fill_database(dsn)
        async with Database(dsn) as database:
            leases = LeasesPostgres(database, LEASE)
            database_id = await leases.read_database_id()
            with lock_server(tmp_path, database_id, keeper := make_keeper(leases)):
                await keeper.run_once()
                (file,) = (tmp_path / "servers").iterdir()
                kept = file.read_bytes()
                await release_dead_servers(tmp_path, leases, database_id)
                assert await leases.count_servers() == 1  # it lives
                await release_dead_servers(tmp_path, leases, "another database")
            assert not file.exists()  # it has ended in order
            file.write_bytes(kept)  # as a killed process leaves it
            await release_dead_servers(tmp_path, leases, "another database")
            assert await leases.count_servers() == 1
            async with hold_server_lock(tmp_path, leases, make_keeper(leases)):
                assert await leases.count_servers() == 0
                assert not file.exists()
            await leases.close()

    with server().database() as dsn:
        asyncio.run(run(dsn))
