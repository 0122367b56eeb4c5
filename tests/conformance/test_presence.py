"""Presence: workers that were seen recently."""

from noetl.log.presence.port import WorkerPresence
from noetl.model.ids import DEFAULT_TENANT, Tenant
from tests.conformance.conftest import PortWorld
from tests.conformance.shard_owner import LEASE

OTHER = Tenant(2)


async def test_a_worker_is_listed_until_it_has_been_silent_for_too_long(world: PortWorld) -> None:
    first = WorkerPresence(
        worker="w2/1", server="s1", tenant=DEFAULT_TENANT, pools=("cpu", "gpu"), free=3, held=1
    )
    await world.presence.note_worker(first, LEASE)
    await world.presence.note_worker(
        WorkerPresence(worker="w1/1", server="s1", tenant=DEFAULT_TENANT), LEASE
    )
    await world.presence.note_worker(
        WorkerPresence(worker="w9/1", server="s1", tenant=OTHER), LEASE
    )
    assert [row.worker for row in await world.presence.list_workers(DEFAULT_TENANT)] == [
        "w1/1",
        "w2/1",
    ]
    await world.pass_time(LEASE - 1_000_000)
    await world.presence.note_worker(
        WorkerPresence(worker="w2/1", server="s2", tenant=DEFAULT_TENANT, free=4), LEASE
    )
    await world.pass_time(1_000_000)
    (row,) = await world.presence.list_workers(DEFAULT_TENANT)
    assert (row.worker, row.server, row.pools, row.free, row.held) == ("w2/1", "s2", (), 4, 0)
    assert 1_000_000 <= row.age < LEASE
