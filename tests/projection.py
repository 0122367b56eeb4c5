"""The projection is the fold of the log: every execution read from its first event, folded, and compared with its row.

await assert_projection_equals_fold(dsn)     # once the projector has caught up; a living server does that itself
"""

import asyncio
from collections.abc import AsyncIterator

from noetl.catalog.port import Catalog
from noetl.catalog.postgres import CatalogPostgres
from noetl.engine.fold import evolve
from noetl.engine.state import PinnedPlaybook, make_empty_execution
from noetl.leases.port import Leases
from noetl.leases.postgres import LeasesPostgres
from noetl.log.events.port import RecordedEvent
from noetl.log.postgres import make_postgres_stores
from noetl.log.projections.port import Projection
from noetl.log.stores import Stores
from noetl.model.ids import ExecutionId, Micros
from noetl.postgres.pool import Database
from noetl.server.dispatch.playbooks import Playbooks
from noetl.server.dispatch.shards import OwnedShards
from noetl.server.dispatch.states import LoadedState, States, Unfoldable
from noetl.server.duties.projector import Projector, make_broken_projection, make_projection
from noetl.server.executions.rows import RowCache
from noetl.server.observer import NoObserver
from tests.waiting import HANG_LIMIT_S, look_again

LEASE: Micros = 60_000_000
PAGE = 1_000


async def assert_projection_equals_fold(dsn: str) -> None:
    async with Database(dsn, main_size=2, background_size=1) as database:
        async with database.main.open_write_transaction() as session:
            shards: int = await session.fetchval("select count(*)::int from noetl.execution_shard")
        leases = LeasesPostgres(database, LEASE)
        try:
            await compare(
                make_postgres_stores(database, shards), leases, CatalogPostgres(database), shards
            )
        finally:
            await leases.close()


async def compare(stores: Stores, leases: Leases, catalog: Catalog, shards: int) -> None:
    playbooks = Playbooks(catalog, 1_000)
    await catch_up(stores, leases, playbooks, shards)
    for execution_id, shard in (await executions(stores, shards)).items():
        row = await stores.projections.read_projection(execution_id)
        assert row == await fold_execution(stores, playbooks, execution_id, shard), (
            f"{execution_id}: {row}"
        )


async def catch_up(stores: Stores, leases: Leases, playbooks: Playbooks, count: int) -> None:
    """By whichever server lives; without one, here."""
    if not await leases.count_servers():
        await project(stores, leases, playbooks, count)
    async with asyncio.timeout(HANG_LIMIT_S):
        for shard in range(count):
            while await stores.log.follow_shard(
                shard, await stores.projections.read_checkpoint(shard), 1
            ):
                await look_again()


async def project(stores: Stores, leases: Leases, playbooks: Playbooks, count: int) -> None:
    runtime, shards = await leases.register("test", None, LEASE), OwnedShards(count)
    rows = RowCache(stores.projections, shards, 0)
    projector = Projector(
        stores.log,
        stores.projections,
        States(stores.log, rows, playbooks, 1_000),
        shards,
        rows,
        NoObserver(),
        PAGE,
    )
    for each in await leases.claim(runtime.runtime_id, count):
        shards.adopt(each.shard, each.epoch)
    while (await projector.run_once()).has_more:
        pass
    await leases.release_shards(runtime.runtime_id, shards.list_owned())


async def executions(stores: Stores, shards: int) -> dict[ExecutionId, int]:
    """All that the log speaks of, and their shards."""
    return {
        each.execution_id: shard
        for shard in range(shards)
        async for each in read_shard(stores, shard)
    }


async def read_shard(stores: Stores, shard: int) -> AsyncIterator[RecordedEvent]:
    after = 0
    while page := await stores.log.follow_shard(shard, after, PAGE):
        for each in page:
            yield each
        after = page[-1].seq


async def fold_execution(
    stores: Stores, playbooks: Playbooks, execution_id: ExecutionId, shard: int
) -> Projection | None:
    """The row as it should be. None: events that no start came before."""
    pinned = await stores.log.read_pinned(execution_id)
    if pinned is None:
        return None
    state, seq = make_empty_execution(execution_id), 0
    try:
        while page := await stores.log.read_events(execution_id, seq, PAGE):
            for each in page:
                state, seq = evolve(state, each.event), each.seq
        fixed = PinnedPlaybook(
            execution_id,
            await playbooks.get_plan(pinned.playbook, pinned.tenant),
            pinned.workload,
            pinned.tenant,
        )
    except Exception as error:
        return make_broken_projection(
            Unfoldable(
                state, await stores.log.read_last_seq(execution_id), "", error, pinned.tenant
            ),
            execution_id,
            shard,
        )
    return make_projection(LoadedState(fixed, state, seq), shard)
