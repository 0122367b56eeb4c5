"""Lists of executions: by page, by filter, by tenant."""

from typing import Any

import pytest

from noetl.log.projections import memory as list_memory
from noetl.log.projections import postgres as list_postgres
from noetl.log.projections.port import (
    MAX_LISTED_RETRIES,
    ExecutionFilter,
    Projection,
    ShardRows,
    StatusCount,
    WalkEnd,
)
from noetl.model.decisions import StartChild
from noetl.model.events import Parent
from noetl.model.ids import DEFAULT_TENANT, ExecutionId, Tenant, get_first_id, shard_of
from noetl.model.live_summary import AwaitedThing, LiveSummary, LoopProgress
from noetl.model.messages import Start
from noetl.model.statuses import STATUSES
from tests.conformance.conftest import SHARDS, PortWorld
from tests.conformance.shard_owner import ShardOwner, make_start, owner, signal_like

OTHER = Tenant(2)
SECOND = 1_000_000  # microseconds


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
    assert await ids(world, ExecutionFilter(statuses=("failed",))) == ["3", "1"]
    assert await ids(world, ExecutionFilter(path="q")) == ["3", "2"]
    assert await ids(world, ExecutionFilter(parent=ExecutionId("1"))) == ["2"]
    assert await ids(world, ExecutionFilter(since=60)) == ["3", "2"]
    assert await ids(world, ExecutionFilter(statuses=("failed",), path="q", since=60)) == ["3"]
    assert await ids(
        world, ExecutionFilter(statuses=("failed",)), before=ExecutionId("3"), limit=1
    ) == ["1"]


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
    assert await ids(world, ExecutionFilter(path="etl/*", statuses=("failed",))) == ["1"]
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
        await ids(
            world, ExecutionFilter(roots=True, statuses=("running",)), before=ExecutionId("30")
        )
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


async def test_a_list_of_several_statuses_is_one_list(world: PortWorld) -> None:
    owned = await owner(world)
    for number, status in enumerate(("failed", "running", "completed", "failed", "running"), 1):
        await project(owned, ExecutionId(str(number)), status=status)
    both = ExecutionFilter(statuses=("running", "failed"))
    assert await ids(world, both) == ["5", "4", "2", "1"]
    assert await ids(world, both, limit=2) == ["5", "4"]
    assert await ids(world, both, before=ExecutionId("4"), limit=2) == ["2", "1"]
    assert await ids(world, ExecutionFilter(statuses=("running", "failed"), roots=True)) == [
        "5",
        "4",
        "2",
        "1",
    ]


async def test_a_list_ends_before_until(world: PortWorld) -> None:
    owned = await owner(world)
    old, new = get_first_id(SECOND * 1_800_000_000), get_first_id(SECOND * (1_800_000_000 + 10))
    await project(owned, ExecutionId(str(old)), started_at=SECOND * 1_800_000_000)
    await project(owned, ExecutionId(str(new)), started_at=SECOND * (1_800_000_000 + 10))
    window = ExecutionFilter(since=SECOND * 1_800_000_000, until=SECOND * (1_800_000_000 + 10))
    assert await ids(world, window) == [str(old)]
    assert await ids(world, ExecutionFilter(until=SECOND * (1_800_000_000 + 11))) == [
        str(new),
        str(old),
    ]


async def test_a_list_finds_the_beginning_of_an_id(world: PortWorld) -> None:
    owned = await owner(world)
    for number in (7, 72, 721, 820, 72_450_000_000_000_000):
        await project(owned, ExecutionId(str(number)))
    assert await ids(world, ExecutionFilter(id_prefix="72")) == ["72450000000000000", "721", "72"]
    assert await ids(world, ExecutionFilter(id_prefix="72"), limit=1) == ["72450000000000000"]
    assert await ids(world, ExecutionFilter(id_prefix="8")) == ["820"]
    for nothing in ("0", "07", "99999999999999999999", "9999999999999999999"):
        assert await ids(world, ExecutionFilter(id_prefix=nothing)) == []


async def test_a_list_finds_the_beginning_of_a_path_and_words_of_the_error(
    world: PortWorld,
) -> None:
    owned = await owner(world)
    await project(owned, ExecutionId("1"), path="Etl/score")
    await project(owned, ExecutionId("2"), error="PYTHON_ERROR: Cannot score 'x' 100%")
    await project(owned, ExecutionId("3"), error="TIMEOUT: too slow")
    for text, found in (
        ("etl/", ["1"]),
        ("SCORE cannot", ["2"]),
        ("100%", ["2"]),
        ("_", ["2"]),
        ("score slow", []),
        ("p", ["3", "2"]),
        ("\\", []),
    ):
        assert await ids(world, ExecutionFilter(text=text)) == found, text
    assert await ids(world, ExecutionFilter(text="score", statuses=("failed",))) == []


async def test_a_list_of_what_waits_for_a_person(world: PortWorld) -> None:
    owned = await owner(world)
    live = LiveSummary(AwaitedThing("approval", "ask", "go", 5), LoopProgress("each", 3, 1, 9))
    await project(owned, ExecutionId("1"), live=live, waiting=True)
    await project(owned, ExecutionId("2"), live=LiveSummary(AwaitedThing("child", "call")))
    waiting = ExecutionFilter(waiting=True)
    assert await ids(world, waiting) == ["1"]
    (row,) = await world.projections.list_executions(DEFAULT_TENANT, waiting, None, 10)
    assert (row.live, row.waiting) == (live, True)
    assert await ids(world, ExecutionFilter(waiting=True, path="other")) == []


async def test_a_list_looks_at_a_bounded_number_of_rows(
    world: PortWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (list_memory, list_postgres):
        monkeypatch.setattr(module, "MAX_WALKED_ROWS", 3)
    owned = await owner(world)
    for number in range(1, 9):
        path = "needle" if number == 2 else "p"
        await project(owned, ExecutionId(str(number)), path=path)
    wanted = ExecutionFilter(path="need*")
    assert await ids(world, wanted) == []
    end = await world.projections.find_walk_end(DEFAULT_TENANT, wanted, None)
    assert end == WalkEnd(3, ExecutionId("6"))
    assert await ids(world, wanted, before=ExecutionId("3")) == ["2"]
    end = await world.projections.find_walk_end(DEFAULT_TENANT, wanted, ExecutionId("3"))
    assert end == WalkEnd(2, None)


async def test_the_lane_that_is_cut_first_ends_the_walk(
    world: PortWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (list_memory, list_postgres):
        monkeypatch.setattr(module, "MAX_WALKED_ROWS", 2)
    owned = await owner(world)
    for number in range(1, 7):
        await project(owned, ExecutionId(str(number)), status="running" if number > 2 else "failed")
    wanted = ExecutionFilter(path="q*")
    end = await world.projections.find_walk_end(DEFAULT_TENANT, wanted, None)
    assert end == WalkEnd(4, ExecutionId("5"))


async def test_executions_are_counted_by_status(
    world: PortWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    owned = await owner(world)
    statuses = ("failed", "running", "completed", "completed", "paused")
    for number, status in enumerate(statuses, 1):
        await project(
            owned,
            ExecutionId(str(number)),
            status=status,
            path="etl/a" if number > 2 else "etl/b",
            parent=ExecutionId("1") if number == 4 else None,
            waiting=status == "paused",
        )
    await project(owned, ExecutionId("9"), status="failed", tenant=OTHER)

    async def count(**wanted: Any) -> dict[str, int]:
        counts = await world.projections.count_executions(DEFAULT_TENANT, ExecutionFilter(**wanted))
        assert set(counts) == {*STATUSES, "waiting"}
        return {name: each.n for name, each in counts.items() if each.n}

    assert await count() == {"failed": 1, "running": 1, "completed": 2, "paused": 1, "waiting": 1}
    assert await count(path="etl/a") == {"completed": 2, "paused": 1, "waiting": 1}
    assert await count(path="*b") == {"failed": 1, "running": 1}
    assert await count(roots=True, path="etl/a") == {"completed": 1, "paused": 1, "waiting": 1}
    assert await count(until=1) == {}
    for module in (list_memory, list_postgres):
        monkeypatch.setattr(module, "MAX_COUNTED_ROWS", 1)
    counts = await world.projections.count_executions(DEFAULT_TENANT, ExecutionFilter())
    assert (counts["completed"], counts["failed"]) == (StatusCount(1, True), StatusCount(1, False))


async def test_a_histogram_has_a_bucket_for_every_execution(
    world: PortWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    owned = await owner(world)
    start = SECOND * 1_800_000_000
    for number in range(8):
        execution_id = ExecutionId(str(get_first_id(start + number * SECOND)))
        await project(owned, execution_id, status="failed" if number == 6 else "completed")
    histogram = await world.projections.make_histogram(
        DEFAULT_TENANT, ExecutionFilter(since=start), start + 8 * SECOND, 4
    )
    assert (histogram.start_ms, histogram.width_ms, histogram.reaches_back_to) == (
        start // 1000,
        2000,
        None,
    )
    assert histogram.by_status["completed"] == [2, 2, 2, 1]
    assert histogram.by_status["failed"] == [0, 0, 0, 1]
    whole = await world.projections.make_histogram(
        DEFAULT_TENANT, ExecutionFilter(), start + 8 * SECOND, 8
    )
    assert (whole.start_ms, whole.width_ms) == (start // 1000, 1000)
    assert sum(map(sum, whole.by_status.values())) == 8
    for module in (list_memory, list_postgres):
        monkeypatch.setattr(module, "MAX_HISTOGRAM_ROWS", 3)
    newest = await world.projections.make_histogram(
        DEFAULT_TENANT, ExecutionFilter(since=start), start + 8 * SECOND, 3
    )
    assert newest.reaches_back_to == start + 5 * SECOND
    assert newest.by_status["completed"] == [1, 0, 1]
    assert newest.by_status["failed"] == [0, 1, 0]
    nothing = await world.projections.make_histogram(
        DEFAULT_TENANT, ExecutionFilter(path="q"), start, 3
    )
    assert sum(map(sum, nothing.by_status.values())) == 0


async def test_retries_of_an_execution_are_listed_newest_first(world: PortWorld) -> None:
    owned = await owner(world)
    for number in range(2, 30):
        await project(owned, ExecutionId(str(number)), retry_of=ExecutionId("1"))
    retries = await world.projections.list_retries(ExecutionId("1"))
    assert retries == [str(number) for number in range(29, 29 - MAX_LISTED_RETRIES, -1)]
    assert await world.projections.list_retries(ExecutionId("2")) == []
