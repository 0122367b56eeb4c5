"""What people read: lists of executions by page, the queue, workers, and what became of a message."""

from noetl.log.port import (
    ExecutionFilter,
    MessageState,
    Projection,
    QueueDepth,
    QueueEntry,
    ShardRows,
    WorkerPresence,
)
from noetl.model.decisions import Finish, StartChild
from noetl.model.events import Parent
from noetl.model.ids import DEFAULT_TENANT, CommandId, ExecutionId, Tenant, shard_of
from noetl.model.messages import Pause, Start
from tests.conformance.conftest import SHARDS, World
from tests.conformance.given import LEASE, Owner, ended, owner, signal_like, started

OTHER = Tenant(2)


async def project(owned: Owner, execution_id: ExecutionId, **fields: object) -> None:
    """An execution with one event, and the row that people read of it."""
    log = owned.world.log
    await owned.write(execution_id, started(execution_id))
    shard = shard_of(execution_id, SHARDS)
    row = Projection(
        execution_id=execution_id, shard=shard, last_seq=await log.last_seq(execution_id),
        **{"tenant": DEFAULT_TENANT, "path": "p", "status": "running", "started_at": 10, "updated_at": 20,
           "state": b"{}", "state_hash": "h", **fields},
    )  # fmt: skip
    assert await log.project([ShardRows(shard, owned.epochs[shard], 0, (row,))]) == [True]


async def ids(
    world: World, wanted: ExecutionFilter, before: ExecutionId | None = None, limit: int = 10
) -> list[str]:
    return [
        row.execution_id
        for row in await world.log.executions(DEFAULT_TENANT, wanted, before, limit)
    ]


async def test_pages_go_from_the_newest_to_the_oldest_and_miss_none(world: World) -> None:
    owned = await owner(world)
    for number in (3, 20, 100, 7):
        await project(owned, ExecutionId(str(number)))
    first = await ids(world, ExecutionFilter(), limit=3)
    assert first == ["100", "20", "7"]
    assert await ids(world, ExecutionFilter(), before=ExecutionId("7"), limit=3) == ["3"]
    assert await ids(world, ExecutionFilter(), before=ExecutionId("3"), limit=3) == []


async def test_a_list_leaves_the_state_where_it_is(world: World) -> None:
    await project(await owner(world), ExecutionId("3"))
    (row,) = await world.log.executions(DEFAULT_TENANT, ExecutionFilter(), None, 10)
    assert (row.state, row.status, row.path, row.started_at) == (None, "running", "p", 10)


async def test_filters_of_the_list_hold_together(world: World) -> None:
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


async def test_a_path_may_have_wildcards(world: World) -> None:
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


async def test_a_list_of_roots_leaves_out_whatever_another_execution_started(world: World) -> None:
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


async def test_a_list_shows_one_tenant_only(world: World) -> None:
    owned = await owner(world)
    await project(owned, ExecutionId("1"))
    await project(owned, ExecutionId("2"), tenant=OTHER)
    assert await ids(world, ExecutionFilter()) == ["1"]
    assert [
        row.execution_id for row in await world.log.executions(OTHER, ExecutionFilter(), None, 10)
    ] == ["2"]


async def test_the_tenant_is_known_from_the_start_on(world: World) -> None:
    start = Start(execution_id=ExecutionId("9"), path="p", playbook="hash", tenant=OTHER)
    assert await world.log.tenant_of(start.execution_id) is None
    await world.log.start(start, {})
    assert await world.log.tenant_of(start.execution_id) == OTHER


async def test_a_key_waits_in_the_inbox_until_it_is_recorded(world: World) -> None:
    owned = await owner(world)
    execution_id = ExecutionId("5")
    await owned.write(execution_id, started(execution_id))
    pause = Pause(request="r")
    assert await world.log.received(execution_id, pause.key) == MessageState()
    await world.log.post(execution_id, pause)
    assert await world.log.received(execution_id, pause.key) == MessageState(waiting=True)
    appended = await owned.write(execution_id, signal_like("c9"))
    assert await world.log.received(execution_id, signal_like("c9").key) == MessageState(
        seq=appended.last_seq
    )
    assert await world.log.received(ExecutionId("6"), pause.key) == MessageState()


async def test_the_queue_is_listed_in_the_order_of_issue(world: World) -> None:
    owned = await owner(world)
    one, two = ExecutionId("1"), ExecutionId("2")
    for execution_id in (one, two):
        await owned.write(execution_id, started(execution_id))
    await owned.issue(one, "a", priority=1)
    await owned.issue(two, "b", pool="gpu")
    await owned.issue(one, "c")
    rows = await world.log.queue(DEFAULT_TENANT)
    assert [row.command_id for row in rows] == ["a", "b", "c"]
    assert [
        row.command_id
        for row in await world.log.queue(DEFAULT_TENANT, after=rows[0].number, limit=1)
    ] == ["b"]
    assert [row.command_id for row in await world.log.queue(DEFAULT_TENANT, pool="gpu")] == ["b"]
    assert [row.command_id for row in await world.log.queue(DEFAULT_TENANT, execution_id=one)] == [
        "a",
        "c",
    ]
    assert await world.log.queue(OTHER) == []


async def test_a_leased_command_says_who_holds_it_and_for_how_long(world: World) -> None:
    owned = await owner(world)
    execution_id = ExecutionId("1")
    await owned.write(execution_id, started(execution_id))
    await owned.leased(execution_id, "a", worker="w1/1")
    (row,) = await world.log.queue(DEFAULT_TENANT, status="leased")
    assert row.lease_until is not None
    expected = QueueEntry(
        number=row.number, command_id=CommandId("a"), execution_id=execution_id, step="s", kind="run", pool="cpu",
        status="leased", attempt=1, worker="w1/1", lease_until=row.lease_until,
    )  # fmt: skip
    assert row == expected
    assert await world.log.queue(DEFAULT_TENANT, status="queued") == []


async def test_depths_count_what_is_not_over(world: World) -> None:
    owned = await owner(world)
    execution_id = ExecutionId("1")
    await owned.write(execution_id, started(execution_id))
    await owned.leased(execution_id, "a")
    await owned.issue(execution_id, "b")
    await owned.issue(execution_id, "c", pool="gpu")
    await owned.issue(execution_id, "d")
    await owned.write(execution_id, ended(), effects=(Finish(CommandId("d"), "cancelled"),))
    expected = [
        QueueDepth("cpu", "leased", 1),
        QueueDepth("cpu", "queued", 1),
        QueueDepth("gpu", "queued", 1),
    ]
    assert await world.log.depths() == expected
    assert await world.log.depths(DEFAULT_TENANT) == expected
    assert await world.log.depths(OTHER) == []


async def test_a_worker_is_listed_until_it_has_been_silent_for_too_long(world: World) -> None:
    first = WorkerPresence(
        worker="w2/1", server="s1", tenant=DEFAULT_TENANT, pools=("cpu", "gpu"), free=3, held=1
    )
    await world.log.note_worker(first, LEASE)
    await world.log.note_worker(
        WorkerPresence(worker="w1/1", server="s1", tenant=DEFAULT_TENANT), LEASE
    )
    await world.log.note_worker(WorkerPresence(worker="w9/1", server="s1", tenant=OTHER), LEASE)
    assert [row.worker for row in await world.log.workers(DEFAULT_TENANT)] == ["w1/1", "w2/1"]
    await world.pass_time(LEASE - 1_000_000)
    await world.log.note_worker(
        WorkerPresence(worker="w2/1", server="s2", tenant=DEFAULT_TENANT, free=4), LEASE
    )
    await world.pass_time(1_000_000)
    (row,) = await world.log.workers(DEFAULT_TENANT)
    assert (row.worker, row.server, row.pools, row.free, row.held) == ("w2/1", "s2", (), 4, 0)
    assert 1_000_000 <= row.age < LEASE
