"""Which rows the projector writes at once, which wait, and what a checkpoint says meanwhile."""

import pytest

from noetl.model.errors import StoreUnavailable
from noetl.model.ids import ExecutionId
from tests.unit.server.cluster import (
    ClusterNode,
    ServerCluster,
    claim,
    exchange,
    finish,
    open_cluster,
    report_completed,
)

A_MINUTE = 60.0


async def read_row_seq(cluster: ServerCluster, execution_id: ExecutionId) -> int:
    row = await cluster.stores.projections.read_projection(execution_id)
    return 0 if row is None else row.last_seq


async def read_checkpoint(
    cluster: ServerCluster, node: ClusterNode, execution_id: ExecutionId
) -> int:
    shard = node.server.shards.find_shard(execution_id)
    return await cluster.stores.projections.read_checkpoint(shard)


async def start_and_go_on(cluster: ServerCluster, node: ClusterNode) -> tuple[ExecutionId, int]:
    """An execution with a row; then a step of it ends. Returns the last event of the row."""
    execution_id = await cluster.start_execution(node)
    await node.server.projector.run_once()
    written = await read_row_seq(cluster, execution_id)
    assert written == await cluster.stores.log.read_last_seq(execution_id)
    await exchange(node, report_completed(await claim(node)))
    return execution_id, written


async def test_a_row_whose_status_stays_waits_and_so_does_the_checkpoint() -> None:
    async with open_cluster() as cluster:
        node = await cluster.add_node(row_interval=A_MINUTE)
        execution_id, written = await start_and_go_on(cluster, node)
        for _ in range(3):
            await node.server.projector.run_once()
        assert await read_row_seq(cluster, execution_id) == written
        assert await read_checkpoint(cluster, node, execution_id) == written


async def test_a_row_that_waited_is_written_when_the_interval_is_over() -> None:
    async with open_cluster() as cluster:
        node = await cluster.add_node(row_interval=A_MINUTE)
        execution_id, _ = await start_and_go_on(cluster, node)
        await node.server.projector.run_once()
        node.server.projector._row_interval = 0.0
        await node.server.projector.run_once()
        last = await cluster.stores.log.read_last_seq(execution_id)
        assert await read_row_seq(cluster, execution_id) == last
        assert await read_checkpoint(cluster, node, execution_id) == last


async def test_the_end_of_an_execution_is_written_at_once() -> None:
    async with open_cluster() as cluster:
        node = await cluster.add_node(row_interval=A_MINUTE)
        execution_id, _ = await start_and_go_on(cluster, node)
        await node.server.projector.run_once()
        await finish(node, execution_id)
        await node.server.projector.run_once()
        row = await cluster.stores.projections.read_projection(execution_id)
        assert row is not None
        assert row.status == "completed"
        assert row.last_seq == await cluster.stores.log.read_last_seq(execution_id)
        assert await read_checkpoint(cluster, node, execution_id) == row.last_seq


async def test_a_deferred_row_holds_the_checkpoint_while_others_of_its_shard_are_written() -> None:
    async with open_cluster() as cluster:
        node = await cluster.add_node(row_interval=A_MINUTE)
        execution_id, written = await start_and_go_on(cluster, node)
        await node.server.projector.run_once()
        shard = node.server.shards.find_shard(execution_id)
        while True:
            other = await cluster.start_execution(node)
            if node.server.shards.find_shard(other) == shard:
                break
        await node.server.projector.run_once()
        assert await read_row_seq(cluster, other) > 0
        assert await read_checkpoint(cluster, node, execution_id) == written


async def test_the_next_owner_writes_the_rows_that_the_last_one_deferred() -> None:
    async with open_cluster() as cluster:
        one = await cluster.add_node("one", row_interval=A_MINUTE)
        execution_id, written = await start_and_go_on(cluster, one)
        await one.server.projector.run_once()
        cluster.clock.time += 6_000_000
        two = await cluster.add_node("two", row_interval=A_MINUTE)
        await two.server.projector.run_once()
        last = await cluster.stores.log.read_last_seq(execution_id)
        assert last > written
        assert await read_row_seq(cluster, execution_id) == last


async def test_a_write_that_failed_is_repeated_with_the_rows_that_waited() -> None:
    async with open_cluster() as cluster:
        node = await cluster.add_node(row_interval=A_MINUTE)
        execution_id, _ = await start_and_go_on(cluster, node)
        await node.server.projector.run_once()
        await finish(node, execution_id)
        node.stores.fail("write_projections", StoreUnavailable("away"), done=False)
        with pytest.raises(StoreUnavailable):
            await node.server.projector.run_once()
        await node.server.projector.run_once()
        last = await cluster.stores.log.read_last_seq(execution_id)
        assert await read_row_seq(cluster, execution_id) == last
        assert await read_checkpoint(cluster, node, execution_id) == last


async def test_all_rows_are_written_when_a_process_ends() -> None:
    async with open_cluster() as cluster:
        node = await cluster.add_node(row_interval=A_MINUTE)
        execution_id, _ = await start_and_go_on(cluster, node)
        await node.server.projector.run_once()
        await node.server.projector.write_all_rows()
        last = await cluster.stores.log.read_last_seq(execution_id)
        assert await read_row_seq(cluster, execution_id) == last
