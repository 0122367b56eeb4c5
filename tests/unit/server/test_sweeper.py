"""The duty that lets results go: it goes on while there is more to look at, and rests when there is not."""

import asyncio

from noetl.log.projections.port import Projection, ShardRows
from noetl.model.ids import DEFAULT_TENANT, ExecutionId, shard_of
from noetl.server.duties.sweeper import MAX_SWEPT_EXECUTIONS
from tests.unit.server.cluster import SHARDS, ServerCluster


def test_the_sweeper_goes_on_while_executions_wait_to_be_judged() -> None:
    async def run() -> None:
        cluster = ServerCluster()
        node = await cluster.add_node(grace=0)
        for number in range(1, MAX_SWEPT_EXECUTIONS + 2):
            await end_execution(cluster, ExecutionId(str(number)))
        assert [(await node.server.sweeper.run_once()).has_more for _ in range(3)] == [
            True,
            False,
            False,
        ]
        await cluster.close()

    asyncio.run(run())


async def end_execution(cluster: ServerCluster, execution_id: ExecutionId) -> None:
    shard = shard_of(execution_id, SHARDS)
    row = Projection(
        execution_id=execution_id, shard=shard, tenant=DEFAULT_TENANT, path="p", status="completed", last_seq=0,
        started_at=1, updated_at=1, ended_at=1,
    )  # fmt: skip
    assert await cluster.stores.projections.write_projections(
        [ShardRows(shard, cluster.database.shards[shard].epoch, 0, (row,))]
    ) == [True]
