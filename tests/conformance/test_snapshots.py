"""Snapshots: the last one at or before an event, of one shape, written once."""

from noetl.log.projections.port import Projection, ShardRows
from noetl.log.snapshots.port import Snapshot, SnapshotPosition
from noetl.model.ids import DEFAULT_TENANT, ExecutionId
from tests.conformance.conftest import PortWorld
from tests.conformance.shard_owner import execution, make_start, owner


def snapshot(seq: int, *, number: int = 0, shape: str = "a", state: bytes = b"{}") -> Snapshot:
    return Snapshot(
        execution_id=execution(0, number),
        seq=seq,
        events=seq // 2,
        at=seq * 10,
        shape=shape,
        state=state,
        bands=b'{"steps":{}}',
    )


ONE: ExecutionId = execution(0)
DAY = 86_400_000_000


async def test_the_last_snapshot_at_or_before_an_event_is_read(world: PortWorld) -> None:
    first, second = snapshot(20), snapshot(40, state=b'{"n":2}')
    await world.snapshots.put_snapshots([second, first, snapshot(30, number=1)])
    assert await world.snapshots.read_snapshot(ONE, "a", 19) is None
    assert await world.snapshots.read_snapshot(ONE, "a", 20) == first
    assert await world.snapshots.read_snapshot(ONE, "a", 39) == first
    assert await world.snapshots.read_snapshot(ONE, "a", 1_000) == second
    positions = await world.snapshots.find_positions(ONE, "a", [39, 5, 40])
    assert positions == [SnapshotPosition(20, 10, 200), None, SnapshotPosition(40, 20, 400)]


async def test_a_snapshot_is_found_by_the_number_of_an_event(world: PortWorld) -> None:
    await world.snapshots.put_snapshots([snapshot(20), snapshot(40), snapshot(60, shape="b")])
    assert await world.snapshots.find_position_by_number(ONE, "a", 9) is None
    first = SnapshotPosition(20, 10, 200)
    assert await world.snapshots.find_position_by_number(ONE, "a", 10) == first
    assert await world.snapshots.find_position_by_number(ONE, "a", 19) == first
    later = await world.snapshots.find_position_by_number(ONE, "a", 1_000)
    assert later == SnapshotPosition(40, 20, 400)


async def test_a_snapshot_is_found_by_time(world: PortWorld) -> None:
    await world.snapshots.put_snapshots([snapshot(20), snapshot(40)])
    assert await world.snapshots.find_position_by_time(ONE, "a", 200) is None
    found = await world.snapshots.find_position_by_time(ONE, "a", 201)
    assert found == SnapshotPosition(20, 10, 200)
    later = await world.snapshots.find_position_by_time(ONE, "a", 10_000)
    assert later == SnapshotPosition(40, 20, 400)


async def test_a_snapshot_is_written_once_and_replaced_by_one_of_another_shape(
    world: PortWorld,
) -> None:
    await world.snapshots.put_snapshots([snapshot(20, state=b'{"n":1}')])
    await world.snapshots.put_snapshots([snapshot(20, state=b'{"n":2}')])
    stored = await world.snapshots.read_snapshot(ONE, "a", 20)
    assert stored is not None
    assert stored.state == b'{"n":1}'
    await world.snapshots.put_snapshots([snapshot(20, shape="b")])
    assert await world.snapshots.read_snapshot(ONE, "a", 20) is None
    assert await world.snapshots.read_snapshot(ONE, "b", 20) == snapshot(20, shape="b")


async def test_snapshots_of_another_shape_are_ignored(world: PortWorld) -> None:
    await world.snapshots.put_snapshots([snapshot(20), snapshot(40, shape="b")])
    assert await world.snapshots.read_snapshot(ONE, "a", 100) == snapshot(20)
    assert await world.snapshots.find_position_by_time(ONE, "a", 1_000) == SnapshotPosition(
        20, 10, 200
    )


async def test_old_snapshots_of_executions_that_ended_long_ago_are_deleted(
    world: PortWorld,
) -> None:
    await world.snapshots.put_snapshots([snapshot(20), snapshot(40), snapshot(20, number=1)])
    await end_execution(world, ONE)
    await world.pass_time(DAY)
    assert await world.snapshots.delete_old_snapshots(2 * DAY, 10) == 0
    assert await world.snapshots.delete_old_snapshots(DAY, 1) == 1
    assert await world.snapshots.delete_old_snapshots(DAY, 10) == 1
    assert await world.snapshots.delete_old_snapshots(DAY, 10) == 0
    assert await world.snapshots.read_snapshot(ONE, "a", 100) is None
    live = await world.snapshots.read_snapshot(execution(0, 1), "a", 100)
    assert live is not None, "its execution has not ended"


async def test_snapshots_that_a_look_at_an_old_execution_wrote_stay(world: PortWorld) -> None:
    await end_execution(world, ONE)
    await world.pass_time(DAY)
    await world.snapshots.put_snapshots([snapshot(20)])
    assert await world.snapshots.delete_old_snapshots(DAY, 10) == 0
    await world.pass_time(DAY)
    assert await world.snapshots.delete_old_snapshots(DAY, 10) == 1


async def end_execution(world: PortWorld, execution_id: ExecutionId) -> None:
    now = world.clock.now()
    one = await owner(world)
    await one.write(execution_id, make_start(execution_id))
    row = Projection(
        execution_id=execution_id, shard=0, tenant=DEFAULT_TENANT, path="p", status="completed", last_seq=1,
        started_at=now, updated_at=now, ended_at=now,
    )  # fmt: skip
    rows = ShardRows(0, one.epochs[0], 1, (row,))
    assert await world.projections.write_projections([rows]) == [True]
