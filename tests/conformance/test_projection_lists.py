"""Lists of executions: by page, by filter, by tenant."""

from noetl.log.projections.port import ExecutionFilter, Projection, ShardRows
from noetl.model.decisions import StartChild
from noetl.model.events import Parent
from noetl.model.ids import DEFAULT_TENANT, ExecutionId, Tenant, shard_of
from noetl.model.messages import Start
from tests.conformance.conftest import SHARDS, PortWorld
from tests.conformance.shard_owner import ShardOwner, make_start, owner, signal_like

OTHER = Tenant(2)


async def project(owned: ShardOwner, execution_id: ExecutionId, **fields: object) -> None:
    """An execution with one event, and the row that people read of it."""
    world = owned.world
    await owned.write(execution_id, make_start(execution_id))
    shard = shard_of(execution_id, SHARDS)
    row = Projection(
        execution_id=execution_id, shard=shard, last_seq=await world.log.read_last_seq(execution_id),
        **{"tenant": DEFAULT_TENANT, "path": "p", "status": "running", "started_at": 10, "updated_at": 20,
           "state": b"{}", "state_hash": "h", **fields},
    )  # fmt: skip
    assert await world.projections.write_projections(
        [ShardRows(shard, owned.epochs[shard], 0, (row,))]
    ) == [True]


async def ids(
    world: PortWorld, wanted: ExecutionFilter, before: ExecutionId | None = None, limit: int = 10
) -> list[str]:
    return [
        row.execution_id
        for row in await world.projections.list_executions(DEFAULT_TENANT, wanted, before, limit)
    ]


async def test_pages_go_from_the_newest_to_the_oldest_and_miss_none(world: PortWorld) -> None:
    owned = await owner(world)
    for number in (3, 20, 100, 7):
        await project(owned, ExecutionId(str(number)))
    first = await ids(world, ExecutionFilter(), limit=3)
    assert first == ["100", "20", "7"]
    assert await ids(world, ExecutionFilter(), before=ExecutionId("7"), limit=3) == ["3"]
    assert await ids(world, ExecutionFilter(), before=ExecutionId("3"), limit=3) == []


async def test_a_list_leaves_the_state_where_it_is(world: PortWorld) -> None:
    await project(await owner(world), ExecutionId("3"))
    (row,) = await world.projections.list_executions(DEFAULT_TENANT, ExecutionFilter(), None, 10)
    assert (row.state, row.status, row.path, row.started_at) == (None, "running", "p", 10)


async def test_filters_of_the_list_hold_together(world: PortWorld) -> None:
    owned = await owner(world)
    await project(owned, ExecutionId("1"), status="failed", started_at=50)
    await project(owned, ExecutionId("2"), path="q", parent=ExecutionId("1"), started_at=60)
    await project(owned, ExecutionId("3"), status="failed", path="q", started_at=70)
    assert await ids(world, ExecutionFilter(status="failed")) == ["3", "1"]
    assert await ids(world, ExecutionFilter(path="q")) == ["3", "2"]
    assert await ids(world, ExecutionFilter(parent=ExecutionId("1"))) == ["2"]
    assert await ids(world, ExecutionFilter(since=60)) == ["3", "2"]
    assert await ids(world, ExecutionFilter(status="failed", path="q", since=60)) == ["3"]
    assert await ids(world, ExecutionFilter(status="failed"), before=ExecutionId("3"), limit=1) == [
        "1"
    ]


async def test_a_path_may_have_wildcards(world: PortWorld) -> None:
    owned = await owner(world)
    for number, path in enumerate(("etl/a", "etl/b_c", "etlx", "etl/b/d"), 1):
        await project(
            owned,
            ExecutionId(str(number)),
            path=path,
            status="failed" if number % 2 else "completed",
        )
    assert await ids(world, ExecutionFilter(path="etl/*")) == ["4", "2", "1"]
    assert await ids(world, ExecutionFilter(path="*/b_*")) == ["2"]
    assert await ids(world, ExecutionFilter(path="etl/*", status="failed")) == ["1"]
    assert await ids(world, ExecutionFilter(path="etl/*", roots=True), limit=1) == ["4"]


async def test_a_list_of_roots_leaves_out_whatever_another_execution_started(
    world: PortWorld,
) -> None:
    """Also a child that its parent does not wait for: it has no parent, and was started all the same."""
    owned, root = await owner(world), ExecutionId("1")
    waited, detached = ExecutionId("40"), ExecutionId("41")
    for call, child in (("a", waited), ("b", detached)):
        parent = Parent(root, call)
        start = Start(
            execution_id=child, path="p", playbook="h", parent=parent if child == waited else None
        )
        effect = StartChild(parent=parent, path="p", detached=child == detached)
        await owned.write(root, signal_like(call), effects=(effect,), starts=(start,))
    await project(owned, waited, parent=root)
    await project(owned, detached)
    await project(owned, ExecutionId("30"))
    assert await ids(world, ExecutionFilter(roots=True)) == ["30"]
    assert (
        await ids(world, ExecutionFilter(roots=True, status="running"), before=ExecutionId("30"))
        == []
    )


async def test_a_list_shows_one_tenant_only(world: PortWorld) -> None:
    owned = await owner(world)
    await project(owned, ExecutionId("1"))
    await project(owned, ExecutionId("2"), tenant=OTHER)
    assert await ids(world, ExecutionFilter()) == ["1"]
    assert [
        row.execution_id
        for row in await world.projections.list_executions(OTHER, ExecutionFilter(), None, 10)
    ] == ["2"]
