"""What results were made from: walked from any of them, across executions, however the graph looks."""

from noetl.log.lineage.port import LineagePosition, TracedReference
from noetl.model.ids import DEFAULT_TENANT, ExecutionId, RefId, Tenant
from noetl.model.messages import Start, StoredRef
from noetl.model.reference import Reference
from tests.conformance.conftest import PortWorld
from tests.conformance.shard_owner import (
    ShardOwner,
    execution,
    make_completed,
    make_start,
    owner,
    report,
)

Sources = tuple[int | None, tuple[int, ...]]


def ref(execution_id: ExecutionId, number: int) -> Reference:
    uri = f"noetl://execution/{execution_id}/result/s/c-1-t{number}"
    return Reference(
        ref_id=RefId(str(number)),
        type="kv",
        uri=uri,
        sha256="ab",
        bytes=number,
        rows=3,
        format="json",
    )


def make_stored_ref(
    execution_id: ExecutionId, number: int, sources: Sources = (None, ())
) -> StoredRef:
    parent, inputs = sources
    above = None if parent is None else RefId(str(parent))
    return StoredRef(
        reference=ref(execution_id, number),
        parent=above,
        inputs=tuple(RefId(str(n)) for n in inputs),
    )


async def graph(
    world: PortWorld, sources: dict[int, Sources], shard: int = 0
) -> tuple[ShardOwner, ExecutionId]:
    one, id_ = await owner(world), execution(shard)
    await world.inbox.start_execution(Start(execution_id=id_, path="p", playbook="hash"), {})
    await one.write(
        id_,
        make_start(id_),
        refs=tuple(make_stored_ref(id_, number, made) for number, made in sources.items()),
    )
    return one, id_


async def walk_lineage(
    world: PortWorld,
    *roots: int,
    depth: int = 64,
    after: tuple[int, int] | None = None,
    limit: int = 100,
) -> list[TracedReference]:
    beyond = None if after is None else LineagePosition(after[0], RefId(str(after[1])))
    return await world.lineage.trace_references(
        DEFAULT_TENANT, [RefId(str(each)) for each in roots], depth, beyond, limit
    )


def places(found: list[TracedReference]) -> list[tuple[int, int]]:
    return [(each.depth, int(each.reference.ref_id)) for each in found]


async def test_a_result_that_was_made_from_nothing_is_alone(world: PortWorld) -> None:
    _, id_ = await graph(world, {1: (None, ()), 2: (None, ())})
    (found,) = await walk_lineage(world, 1)
    expected = TracedReference(
        depth=0, reference=ref(id_, 1), parent=None, inputs=(), at=world.clock.now()
    )
    assert found == expected


async def test_parents_and_inputs_are_both_walked(world: PortWorld) -> None:
    await graph(world, {1: (None, ()), 2: (None, ()), 3: (1, ()), 4: (3, (2, 1))})
    found = await walk_lineage(world, 4)
    assert places(found) == [(0, 4), (1, 1), (1, 2), (1, 3)]
    assert (found[0].parent, found[0].inputs) == (RefId("3"), (RefId("1"), RefId("2")))


async def test_each_is_there_once_at_its_nearest(world: PortWorld) -> None:
    await graph(world, {1: (None, ()), 2: (1, ()), 3: (2, ()), 4: (3, (1,))})
    assert places(await walk_lineage(world, 4)) == [(0, 4), (1, 1), (1, 3), (2, 2)]
    assert places(await walk_lineage(world, 3, 4)) == [(0, 3), (0, 4), (1, 1), (1, 2)]


async def test_a_cycle_ends(world: PortWorld) -> None:
    await graph(world, {1: (3, ()), 2: (1, (2,)), 3: (2, (1, 3))})
    assert places(await walk_lineage(world, 3)) == [(0, 3), (1, 1), (1, 2)]
    assert places(await walk_lineage(world, 2)) == [(0, 2), (1, 1), (2, 3)]


async def test_depth_bounds_the_walk(world: PortWorld) -> None:
    await graph(world, {n: (n - 1 if n > 1 else None, ()) for n in range(1, 30)})
    assert places(await walk_lineage(world, 29, depth=0)) == [(0, 29)]
    assert places(await walk_lineage(world, 29, depth=3)) == [(0, 29), (1, 28), (2, 27), (3, 26)]
    assert len(await walk_lineage(world, 29)) == 29


async def test_pages_begin_where_the_last_one_ended(world: PortWorld) -> None:
    await graph(
        world, {**dict.fromkeys(range(1, 8), (None, ())), 8: (None, tuple(range(1, 8))), 9: (8, ())}
    )
    whole = places(await walk_lineage(world, 9))
    found: list[tuple[int, int]] = []
    while page := places(await walk_lineage(world, 9, after=found[-1] if found else None, limit=2)):
        assert len(page) <= 2
        found += page
    assert found == whole
    assert len(found) == 9


async def test_ids_are_numbers_not_texts(world: PortWorld) -> None:
    await graph(world, {9: (None, ()), 10: (None, ()), 100: (None, (10, 9))})
    assert places(await walk_lineage(world, 100)) == [(0, 100), (1, 9), (1, 10)]
    assert places(await walk_lineage(world, 100, after=(1, 9))) == [(1, 10)]


async def test_the_walk_goes_on_in_other_executions(world: PortWorld) -> None:
    one, id_ = await graph(world, {1: (None, ()), 2: (1, ())})
    other = execution(1)
    await world.inbox.start_execution(Start(execution_id=other, path="p", playbook="hash"), {})
    await one.write(other, make_start(other), refs=(make_stored_ref(other, 3, (None, (2,))),))
    found = await walk_lineage(world, 3)
    assert places(found) == [(0, 3), (1, 2), (2, 1)]
    assert [each.reference.uri.split("/")[3] for each in found] == [other, id_, id_]


async def test_what_is_gone_and_what_was_never_there_is_left_out(world: PortWorld) -> None:
    await graph(world, {2: (1, (7,))})
    assert places(await walk_lineage(world, 2)) == [(0, 2)]
    assert await walk_lineage(world, 5) == []
    assert await walk_lineage(world) == []


async def test_another_tenant_sees_nothing(world: PortWorld) -> None:
    await graph(world, {1: (None, ()), 2: (1, ())})
    assert (
        await world.lineage.trace_references(Tenant(DEFAULT_TENANT + 1), [RefId("2")], 9, None, 9)
        == []
    )


async def test_what_a_report_at_another_server_brings_is_walked_too(world: PortWorld) -> None:
    one, id_ = await graph(world, {1: (None, ())})
    await one.lease_command(id_)
    assert await world.inbox.accept_report(
        DEFAULT_TENANT, report(id_, make_completed(), (make_stored_ref(id_, 2, (None, (1,))),))
    )
    assert places(await walk_lineage(world, 2)) == [(0, 2), (1, 1)]
