"""What the twins have no counterpart for: a killed server seen at once, hints between processes, connections that return."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from noetl.bus.postgres import BusPostgres
from noetl.leases.postgres import LeasesPostgres
from noetl.model.errors import Unavailable
from noetl.postgres.pool import Database, connect
from tests.integration.log.conftest import HOUR, SHARDS, store
from tests.waiting import HANG_LIMIT_S, wait_until

KILL = "select pg_terminate_backend(pid) from pg_stat_activity where pid <> pg_backend_pid() and query like $1"


async def test_a_server_whose_connection_is_gone_is_dead_at_once_whatever_its_lease(
    migrated: str,
) -> None:
    async with store(migrated) as here:
        first, second = LeasesPostgres(here.database), LeasesPostgres(here.database)
        one = await first.register("one", "http://one", HOUR)
        await first.claim(one.runtime_id, SHARDS)
        two = await second.register("two", None, HOUR)
        assert await second.claim(two.runtime_id, SHARDS) == []
        await first.close()  # as the kernel does for a killed process
        await wait_until(lambda: second.count_servers(), 1)  # the backend notices
        assert [each.epoch for each in await second.claim(two.runtime_id, SHARDS)] == [2] * SHARDS
        await second.close()


async def test_a_server_that_comes_back_lives_again(migrated: str) -> None:
    async with store(migrated) as here:
        leases, peer = LeasesPostgres(here.database), LeasesPostgres(here.database)
        one = await leases.register("one", None, HOUR)
        other = await connect(migrated)
        await other.fetch(
            "select pg_terminate_backend(pid) from pg_locks where locktype = 'advisory' and objsubid = 2"
        )
        await wait_until(lambda: peer.count_servers(), 0)
        try:
            renewed = await leases.renew(one.runtime_id, HOUR)
        except Unavailable:
            renewed = await leases.renew(one.runtime_id, HOUR)
        assert renewed
        assert await peer.count_servers() == 1
        for each in (other, leases, peer):
            await each.close()


async def test_after_a_restart_of_the_database_leases_count_until_they_are_renewed(
    migrated: str,
) -> None:
    """Locks are gone with the old server; nobody may take that for a death."""
    async with store(migrated) as here:
        leases, peer = LeasesPostgres(here.database), LeasesPostgres(here.database)
        await leases.register("one", None, HOUR)
        await leases.close()
        async with here.database.main.open_write_transaction() as session:
            await session.execute(
                "update noetl.runtime set renewed_at = pg_postmaster_start_time() - interval '1 s'"
            )
        assert await peer.count_servers() == 1
        await peer.close()


async def test_a_statement_of_the_lease_ends_before_a_third_of_it(migrated: str) -> None:
    async with store(migrated) as here:
        leases = LeasesPostgres(here.database, lease=600_000)
        one = await leases.register("one", None, HOUR)
        other = await connect(migrated)
        holder = other.transaction()
        await holder.start()
        await other.execute("select from noetl.runtime for update")
        loop = asyncio.get_running_loop()
        begun = loop.time()
        with pytest.raises(Unavailable):
            await leases.renew(one.runtime_id, HOUR)
        assert loop.time() - begun < 5
        await holder.rollback()
        assert await leases.renew(one.runtime_id, HOUR)
        await other.close()
        await leases.close()


async def test_hints_reach_other_processes_and_survive_a_lost_connection(migrated: str) -> None:
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(
            Database(migrated, main_size=1, background_size=1)
        )
        here, there = [await stack.enter_async_context(BusPostgres(database)) for _ in range(2)]
        hints = there.subscribe("a", "b")
        for subject in ("a", "b", "a"):
            await here.publish(subject)
        assert {await anext(hints), await anext(hints)} == {"a", "b"}
        other = await connect(migrated)
        await other.fetch(KILL, "LISTEN%")
        await other.fetch(KILL, "%pg_notify%")
        assert {await anext(hints), await anext(hints)} == {
            "a",
            "b",
        }  # it came back: look everywhere
        await asyncio.wait_for(here.connected.wait(), HANG_LIMIT_S)
        await asyncio.wait_for(there.connected.wait(), HANG_LIMIT_S)
        await here.publish("b")
        assert await asyncio.wait_for(anext(hints), HANG_LIMIT_S) == "b"
        await other.close()


async def test_publishing_never_fails(migrated: str) -> None:
    async with Database(migrated, main_size=1, background_size=1) as database:
        bus = BusPostgres(database)  # not even started
        hints = bus.subscribe("a")
        await bus.publish("a")
        assert await anext(hints) == "a"
