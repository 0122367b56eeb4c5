"""Step logs: parts in the order they came, once each, of executions that are there."""

import asyncio

from noetl.log.step_logs.port import LogPart
from noetl.model.ids import DEFAULT_TENANT, CommandId, ExecutionId, RefId
from noetl.model.messages import Start, StoredRef
from noetl.model.reference import Reference
from tests.conformance.conftest import PortWorld
from tests.conformance.shard_owner import execution


def part(
    execution_id: ExecutionId, number: int, step: str = "s", payload: bytes = b"[]"
) -> StoredRef:
    uri = f"noetl://execution/{execution_id}/log/{step}/c-1-{number}"
    ref_id = RefId(str(int(execution_id) * 1_000 + number))
    return StoredRef(reference=Reference(ref_id=ref_id, type="kv", uri=uri), payload=payload)


def keys(parts: list[LogPart]) -> list[tuple[int, str]]:
    return [(each.number, each.uri.rpartition("-")[2]) for each in parts]


async def start_execution(world: PortWorld, number: int = 0) -> ExecutionId:
    return await world.inbox.start_execution(
        Start(execution_id=execution(0, number), path="p", playbook="hash"), {}
    )


async def test_parts_are_read_in_the_order_they_came_from_where_the_reader_stands(
    world: PortWorld,
) -> None:
    one, two = await start_execution(world), await start_execution(world, 1)
    await world.step_logs.put_parts(
        DEFAULT_TENANT, (part(one, 0), part(two, 0), part(one, 1, payload=b"[1]"))
    )
    await world.step_logs.put_parts(DEFAULT_TENANT, (part(one, 2),))
    assert keys(await world.step_logs.read_parts(one, None, 0, 10)) == [
        (1, "0"),
        (2, "1"),
        (3, "2"),
    ]
    assert keys(await world.step_logs.read_parts(one, None, 1, 1)) == [(2, "1")]
    assert keys(await world.step_logs.read_parts(two, None, 0, 10)) == [(1, "0")]
    assert (await world.step_logs.read_parts(one, None, 1, 1))[0].payload == b"[1]"
    assert await world.step_logs.read_parts(one, None, 3, 10) == []
    assert await world.step_logs.read_parts(execution(0, 2), None, 0, 10) == []


async def test_a_part_is_stored_once_and_stays_as_it_is(world: PortWorld) -> None:
    id_ = await start_execution(world)
    await world.step_logs.put_parts(DEFAULT_TENANT, (part(id_, 0, payload=b"[1]"),))
    await world.step_logs.put_parts(DEFAULT_TENANT, (part(id_, 0, payload=b"[2]"), part(id_, 1)))
    assert keys(await world.step_logs.read_parts(id_, None, 0, 10)) == [(1, "0"), (2, "1")]
    assert (await world.step_logs.read_parts(id_, None, 0, 1))[0].payload == b"[1]"
    stored = part(id_, 0).reference
    assert await world.payloads.read_payload(DEFAULT_TENANT, stored.ref_id, stored.uri) == b"[1]"


async def test_one_step_is_read_alone(world: PortWorld) -> None:
    id_ = await start_execution(world)
    await world.step_logs.put_parts(
        DEFAULT_TENANT, (part(id_, 0, "a"), part(id_, 1, "b"), part(id_, 2, "a"))
    )
    assert keys(await world.step_logs.read_parts(id_, "a", 0, 10)) == [(1, "0"), (3, "2")]
    assert keys(await world.step_logs.read_parts(id_, "a", 1, 10)) == [(3, "2")]
    assert await world.step_logs.read_parts(id_, "c", 0, 10) == []


async def test_parts_of_an_execution_that_is_not_there_are_passed_over(world: PortWorld) -> None:
    id_ = await start_execution(world)
    await world.step_logs.put_parts(DEFAULT_TENANT, (part(execution(0, 1), 0), part(id_, 0)))
    assert await world.step_logs.read_parts(execution(0, 1), None, 0, 10) == []
    assert keys(await world.step_logs.read_parts(id_, None, 0, 10)) == [(1, "0")]


async def test_writers_at_once_leave_no_gap_that_a_reader_could_pass(world: PortWorld) -> None:
    one, two = await start_execution(world), await start_execution(world, 1)
    await asyncio.gather(
        *(
            world.step_logs.put_parts(DEFAULT_TENANT, (part(one, number), part(two, number)))
            for number in range(0, 20, 2)
        ),
        *(
            world.step_logs.put_parts(DEFAULT_TENANT, (part(two, number), part(one, number)))
            for number in range(1, 20, 2)
        ),
    )
    for id_ in (one, two):
        assert [
            each.number for each in await world.step_logs.read_parts(id_, None, 0, 100)
        ] == list(range(1, 21))


async def test_the_last_parts_and_the_parts_of_a_command_are_read_alone(world: PortWorld) -> None:
    id_ = await start_execution(world)
    await world.step_logs.put_parts(DEFAULT_TENANT, tuple(part(id_, number) for number in range(3)))
    await world.step_logs.put_parts(DEFAULT_TENANT, (part(id_, 3, step="t"),))
    logs = world.step_logs
    assert keys(await logs.read_last_parts(id_, None, 2)) == [(3, "2"), (4, "3")]
    assert keys(await logs.read_last_parts(id_, "s", 2)) == [(2, "1"), (3, "2")]
    assert len(await logs.read_last_parts(id_, None, 9, CommandId("c"))) == 4
    assert await logs.read_last_parts(id_, None, 9, CommandId("d")) == []
    assert keys(await logs.read_parts(id_, "t", 0, 9, CommandId("c"))) == [(4, "3")]
    assert await logs.read_parts(id_, None, 0, 9, CommandId("1")) == []


async def test_the_number_of_the_last_part_is_known(world: PortWorld) -> None:
    one, two = await start_execution(world), await start_execution(world, 1)
    assert await world.step_logs.read_last_number(one) == 0
    await world.step_logs.put_parts(DEFAULT_TENANT, (part(one, 0), part(one, 1), part(two, 0)))
    assert await world.step_logs.read_last_number(one) == 2
