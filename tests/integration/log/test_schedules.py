"""Several servers on one database: each slot of a schedule starts one execution."""

import asyncio

from noetl.bus.memory import BusMemory
from noetl.catalog.postgres import CatalogPostgres
from noetl.model.ids import DEFAULT_TENANT
from noetl.postgres.queries import Query
from noetl.runtime.clock import SystemClock
from noetl.server.node import Server
from noetl.server.settings import ServerSettings
from noetl.triggers.port import Every, ScheduleDefinition
from noetl.triggers.postgres import SchedulesPostgres
from noetl.triggers.turns import MAX_TURN_SLOTS
from tests.integration.log.conftest import SHARDS, store

MINUTE = 60_000_000
SERVERS, SLOTS = 4, 100
PLAYBOOK = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: p, path: p}
workflow: [{step: one}]
"""


async def test_every_slot_starts_one_execution_whatever_the_number_of_servers(
    migrated: str,
) -> None:
    async with store(migrated, connections=8) as here:
        schedules, catalog = (
            SchedulesPostgres(here.database, SHARDS),
            CatalogPostgres(here.database),
        )
        await catalog.register("p", PLAYBOOK)
        servers = [
            Server(here.stores, here.leases, BusMemory(), catalog, SystemClock(),
                   ServerSettings(name=f"s{number}", shards=SHARDS), schedules=schedules)
            for number in range(SERVERS)
        ]  # fmt: skip
        for server in servers:
            await server.keeper.run_once()
        first = (await here.leases.read_clock()) - SLOTS * MINUTE + MINUTE // 2
        wanted = ScheduleDefinition(
            tenant=DEFAULT_TENANT,
            name="s",
            path="p",
            rule=Every(MINUTE, first - MINUTE),
            catch_up="all",
        )
        await schedules.put_schedule(wanted, first)

        async def fire(server: Server) -> int:
            assert server.scheduler is not None
            turns = 0
            while (counts := await server.scheduler.run_once()).done or await schedules.list_due(1):
                turns += counts.done
            return turns

        turns = await asyncio.gather(*map(fire, servers))
        rows = await here.database.main.read(
            Query("slots", "select data -> 'schedule' ->> 'slot' as slot from noetl.workload")
        )
        assert len(rows) == len({row["slot"] for row in rows})
        assert len(rows) == SLOTS
        assert sum(turns) == -(-SLOTS // MAX_TURN_SLOTS)
