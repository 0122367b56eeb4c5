"""Projections: written by the owner only, never back, never ahead."""

import pytest
from msgspec.structs import replace

from noetl.log.projections.port import ExecutionFilter, Projection, ShardRows
from noetl.model.errors import NoetlError
from noetl.model.ids import DEFAULT_TENANT, ExecutionId, Tenant, shard_of
from tests.conformance.conftest import SHARDS, PortWorld
from tests.conformance.shard_owner import execution, make_start, owner, signal_like


def row(
    execution_id: ExecutionId,
    last_seq: int,
    status: str = "running",
    tenant: Tenant = DEFAULT_TENANT,
) -> Projection:
    return Projection(
        execution_id=execution_id,
        shard=shard_of(execution_id, SHARDS),
        tenant=tenant,
        path="p",
        status=status,
        last_seq=last_seq,
        started_at=1,
        updated_at=2,
        state=b"{}",
        state_hash="h",
    )


async def project(world: PortWorld, epoch: int, written: Projection, checkpoint: int) -> bool:
    (done,) = await world.projections.write_projections(
        [ShardRows(0, epoch, checkpoint, (written,))]
    )
    return done


async def test_a_projection_goes_forward_only(world: PortWorld) -> None:
    one, id_ = await owner(world), execution(0)
    await one.write(id_, make_start(id_), signal_like("a"))
    assert await world.projections.read_projection(id_) is None
    assert await project(world, one.epochs[0], row(id_, 2, "newer"), 2)
    assert await project(world, one.epochs[0], row(id_, 1, "older"), 1)
    assert await world.projections.read_projection(id_) == row(id_, 2, "newer")
    assert await world.projections.read_checkpoint(0) == 2


async def test_a_former_owner_projects_nothing(world: PortWorld) -> None:
    one, id_ = await owner(world), execution(0)
    await one.write(id_, make_start(id_))
    assert not await project(world, one.epochs[0] - 1, row(id_, 1), 1)
    assert await world.projections.read_projection(id_) is None
    assert await world.projections.read_checkpoint(0) == 0


async def test_a_projection_ahead_of_the_log_is_refused(world: PortWorld) -> None:
    one, id_ = await owner(world), execution(0)
    await one.write(id_, make_start(id_))
    with pytest.raises(NoetlError):
        await project(world, one.epochs[0], row(id_, 2), 1)


async def test_children_are_counted_by_status(world: PortWorld) -> None:
    one, parent = await owner(world), execution(0, 9)
    assert await world.projections.count_children(parent) == {}
    for number, status in enumerate(("running", "failed", "failed")):
        child = execution(0, number)
        await one.write(child, make_start(child))
        written = replace(row(child, number + 1, status), parent=parent)
        await project(world, one.epochs[0], written, number + 1)
    assert await world.projections.count_children(parent) == {"running": 1, "failed": 2}


async def test_executions_are_listed_newest_first_by_tenant(world: PortWorld) -> None:
    one = await owner(world)
    ids = sorted((execution(0, 0), execution(0, 1), execution(0, 2)), key=int)
    for number, id_ in enumerate(ids):
        await one.write(id_, make_start(id_))
        tenant = Tenant(2) if number == 1 else DEFAULT_TENANT
        await project(world, one.epochs[0], row(id_, number + 1, tenant=tenant), number + 1)
    listed = await world.projections.list_executions(DEFAULT_TENANT, ExecutionFilter(), None, 10)
    assert [each.execution_id for each in listed] == [ids[2], ids[0]]
    first = await world.projections.list_executions(DEFAULT_TENANT, ExecutionFilter(), None, 1)
    assert len(first) == 1


async def test_shards_are_projected_together_each_under_its_own_epoch(world: PortWorld) -> None:
    one, ids = await owner(world), [execution(2), execution(0), execution(1)]
    for id_ in ids:
        await one.write(id_, make_start(id_), signal_like("a"))
    stale = ShardRows(0, one.epochs[0] - 1, 2, (row(ids[1], 2),))
    batch = [
        ShardRows(2, one.epochs[2], 2, (row(ids[0], 2),)),
        stale,
        ShardRows(1, one.epochs[1], 1, ()),
    ]
    assert await world.projections.write_projections(batch) == [True, False, True]
    assert await world.projections.read_projection(ids[0]) == row(ids[0], 2)
    assert await world.projections.read_projection(ids[1]) is None
    assert [await world.projections.read_checkpoint(shard) for shard in range(3)] == [0, 1, 2]
    ahead = [
        ShardRows(2, one.epochs[2], 2, (row(ids[0], 3),)),
        ShardRows(1, one.epochs[1], 2, (row(ids[2], 2),)),
    ]
    with pytest.raises(NoetlError):
        await world.projections.write_projections(ahead)
    assert await world.projections.read_projection(ids[2]) is None  # all of them or none
    with pytest.raises(NoetlError):
        await world.projections.write_projections(
            [ShardRows(1, one.epochs[1], 2, (row(ids[0], 2),))]
        )
