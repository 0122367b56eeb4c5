"""Timers are looked for when one may be due, and not all the time."""

import pytest

from noetl.model.errors import Unavailable
from noetl.server.duties.timers import RUNS_PER_FULL_READ
from tests.unit.server.cluster import CHAIN, ClusterNode, ServerCluster, open_cluster

HOUR_US = 3_600_000_000
TIMED = CHAIN.replace("workload: {a: 1}", "executor: {spec: {timeout: 1h}}\nworkload: {a: 1}")


async def run_timers(node: ClusterNode, times: int) -> int:
    """How often the store was asked for due timers."""
    before = node.stores.calls["read_due_timers"]
    for _ in range(times):
        await node.server.timers.run_once()
    looks: int = node.stores.calls["read_due_timers"] - before
    return looks


async def pass_time(cluster: ServerCluster, node: ClusterNode, micros: int) -> None:
    """The server learns the time of the store with its next lease."""
    cluster.clock.time += micros
    await node.claim_shards()


async def test_an_idle_server_hardly_asks() -> None:
    async with open_cluster() as cluster:
        node = await cluster.add_node()
        await run_timers(node, 1)
        assert await run_timers(node, 5 * RUNS_PER_FULL_READ) == 5


async def test_a_timer_of_an_append_is_fired_when_it_is_due() -> None:
    async with open_cluster() as cluster:
        node = await cluster.add_node()
        await run_timers(node, 2)
        id_ = await cluster.start_execution(node, "timed", TIMED)
        await run_timers(node, 1)
        assert await run_timers(node, 3) == 0
        await pass_time(cluster, node, HOUR_US + 1)
        assert await run_timers(node, 1) == 1
        await node.drain()
        assert "timer.fired" in await cluster.list_types(id_)


async def test_a_server_that_takes_a_shard_looks_for_its_timers() -> None:
    async with open_cluster() as cluster:
        first = await cluster.add_node("first")
        id_ = await cluster.start_execution(first, "timed", TIMED)
        await first.server.keeper.close()
        second = await cluster.add_node("second")
        await run_timers(second, 3)
        await pass_time(cluster, second, HOUR_US + 1)
        await second.drain()
        assert "timer.fired" in await cluster.list_types(id_)


async def test_a_look_that_fails_is_repeated() -> None:
    async with open_cluster() as cluster:
        node = await cluster.add_node()
        await run_timers(node, 2)
        node.server.timers.mark_changed([0])
        node.stores.fail("read_due_timers", Unavailable("away"), done=False)
        with pytest.raises(Unavailable):
            await run_timers(node, 1)
        assert await run_timers(node, 1) == 1
