"""Schedules and hooks: kept by name, due by the store's clock, and moved on by one."""

import asyncio

from msgspec.structs import replace

from noetl.model.ids import DEFAULT_TENANT, ExecutionId, Tenant
from noetl.model.messages import Start
from noetl.triggers.port import (
    Cron,
    Every,
    HookDefinition,
    Schedule,
    ScheduleDefinition,
    ScheduledStart,
)
from tests.conformance.conftest import PortWorld

MINUTE = 60_000_000


def define_schedule(name: str = "s", **fields: object) -> ScheduleDefinition:
    usual = {
        "tenant": DEFAULT_TENANT,
        "name": name,
        "path": "p",
        "rule": Every(MINUTE, 7),
        "payload": {"a": [1, {"b": "é"}]},
    }
    return ScheduleDefinition(**{**usual, **fields})  # type: ignore[arg-type]


def begin(number: int, key: str) -> ScheduledStart:
    start = Start(execution_id=ExecutionId(str(number)), path="p", playbook="hash", start_key=key)
    return start, {"n": number}


async def find_schedule(world: PortWorld, name: str = "s") -> Schedule:
    row = await world.schedules.find_schedule(DEFAULT_TENANT, name)
    assert row is not None
    return row


async def test_a_schedule_comes_back_as_it_was_put(world: PortWorld) -> None:
    now = world.clock.time
    put = await world.schedules.put_schedule(
        define_schedule(version=3, catch_up="all", overlap="queue"), now + MINUTE
    )
    assert put == await find_schedule(world)
    assert (put.rule, put.payload, put.version) == (Every(MINUTE, 7), {"a": [1, {"b": "é"}]}, 3)
    assert (put.catch_up, put.overlap, put.paused, put.waiting) == ("all", "queue", False, ())
    assert (put.next_at, put.created_at, put.changed_at) == (now + MINUTE, now, now)
    assert await world.schedules.find_schedule(Tenant(2), "s") is None


async def test_one_of_the_same_name_is_replaced_and_stays_what_it_was(world: PortWorld) -> None:
    first = await world.schedules.put_schedule(define_schedule(), world.clock.time)
    await world.schedules.pause(DEFAULT_TENANT, "s")
    await world.pass_time(5)
    again = await world.schedules.put_schedule(
        define_schedule(rule=Cron("0 2 * * *", "Europe/Berlin")), world.clock.time
    )
    assert (again.schedule_id, again.paused, again.created_at) == (
        first.schedule_id,
        True,
        first.created_at,
    )
    assert (again.rule, again.changed_at) == (
        Cron("0 2 * * *", "Europe/Berlin"),
        first.changed_at + 5,
    )
    assert again.revision > first.revision


async def test_schedules_are_listed_by_name_and_tenant_in_pages(world: PortWorld) -> None:
    for name in ("b", "Z", "a_b", "a-b"):
        await world.schedules.put_schedule(define_schedule(name), 1)
    await world.schedules.put_schedule(define_schedule("other", tenant=Tenant(2)), 1)
    assert [row.name for row in await world.schedules.list_schedules(DEFAULT_TENANT)] == [
        "Z",
        "a-b",
        "a_b",
        "b",
    ]
    assert [row.name for row in await world.schedules.list_schedules(DEFAULT_TENANT, "Z", 2)] == [
        "a-b",
        "a_b",
    ]
    assert await world.schedules.delete(DEFAULT_TENANT, "b")
    assert not await world.schedules.delete(DEFAULT_TENANT, "b")
    assert not await world.schedules.delete(DEFAULT_TENANT, "other")


async def test_what_is_due_is_due_by_the_stores_clock_and_not_while_it_is_paused(
    world: PortWorld,
) -> None:
    await world.schedules.put_schedule(define_schedule(), world.clock.time + MINUTE)
    await world.schedules.put_schedule(define_schedule("later"), world.clock.time + 2 * MINUTE)
    assert await world.schedules.list_due(10) == []
    await world.pass_time(MINUTE)
    (due,) = await world.schedules.list_due(10)
    assert (due.schedule, due.now, due.busy) == (
        await find_schedule(world),
        world.clock.time,
        False,
    )
    await world.schedules.pause(DEFAULT_TENANT, "s")
    assert await world.schedules.list_due(10) == []
    resumed = await world.schedules.resume(DEFAULT_TENANT, "s", world.clock.time - 1)
    assert resumed is not None
    assert not resumed.paused
    assert [each.schedule.name for each in await world.schedules.list_due(10)] == ["s"]
    assert await world.schedules.pause(DEFAULT_TENANT, "nobody") is None
    assert await world.schedules.resume(DEFAULT_TENANT, "nobody", None) is None


async def test_of_several_who_move_a_schedule_on_one_does_and_starts_once(world: PortWorld) -> None:
    row = await world.schedules.put_schedule(define_schedule(), world.clock.time)
    tries = [
        world.schedules.commit_turn(replace(row, next_at=row.next_at + number, last_execution=ExecutionId(str(number))),
                             [begin(number, f"schedule:{row.schedule_id}:{row.next_at}")])
        for number in range(101, 106)
    ]  # fmt: skip
    moved = await asyncio.gather(*tries)
    assert moved.count(True) == 1
    winner = 101 + moved.index(True)
    after = await find_schedule(world)
    assert after.last_execution == str(winner)
    assert [
        n for n in range(101, 106) if await world.log.read_pinned(ExecutionId(str(n))) is not None
    ] == [winner]
    pinned = await world.log.read_pinned(ExecutionId(str(winner)))
    assert pinned is not None
    assert pinned.workload == {"n": winner}


async def test_a_change_in_between_is_noticed(world: PortWorld) -> None:
    row = await world.schedules.put_schedule(define_schedule(), world.clock.time)
    await world.schedules.pause(DEFAULT_TENANT, "s")
    assert not await world.schedules.commit_turn(replace(row, next_at=1), [begin(101, "k")])
    assert await world.log.read_pinned(ExecutionId("101")) is None
    await world.schedules.delete(DEFAULT_TENANT, "s")
    assert not await world.schedules.commit_turn(replace(row, next_at=1), [])


async def test_a_slot_that_waits_is_due_when_the_execution_before_it_has_ended(
    world: PortWorld,
) -> None:
    row = await world.schedules.put_schedule(define_schedule(overlap="queue"), world.clock.time)
    after = replace(row, next_at=row.next_at + MINUTE, waiting=(row.next_at,), last_at=row.next_at, skipped=2, error="no",
                    last_execution=ExecutionId("101"))  # fmt: skip
    assert await world.schedules.commit_turn(after, [begin(101, "k")])
    assert await find_schedule(world) == replace(after, revision=after.revision + 1)
    assert await world.schedules.list_due(10) == []  # it runs, and the next slot has not come
    await world.pass_time(MINUTE)
    (due,) = await world.schedules.list_due(10)
    assert due.busy
    gone = replace(
        due.schedule, next_at=None, last_execution=ExecutionId("999")
    )  # one that is not there any more
    assert await world.schedules.commit_turn(gone, [])
    (due,) = await world.schedules.list_due(10)
    assert (due.busy, due.schedule.next_at) == (False, None)


async def test_hooks_are_kept_by_name(world: PortWorld) -> None:
    call = HookDefinition(
        tenant=DEFAULT_TENANT,
        name="h",
        path="p",
        version=2,
        into="order",
        secret="c",
        key_header="X-Key",
    )
    first = await world.hooks.put_hook(call)
    assert first == await world.hooks.find_hook(DEFAULT_TENANT, "h")
    assert (first.into, first.secret, first.signature_header, first.key_header) == (
        "order",
        "c",
        None,
        "X-Key",
    )
    await world.pass_time(5)
    again = await world.hooks.put_hook(
        HookDefinition(tenant=DEFAULT_TENANT, name="h", path="q", signature_header="X-S")
    )
    assert (again.hook_id, again.path, again.into, again.signature_header) == (
        first.hook_id,
        "q",
        None,
        "X-S",
    )
    assert (again.created_at, again.changed_at) == (first.created_at, first.changed_at + 5)
    await world.hooks.put_hook(HookDefinition(tenant=DEFAULT_TENANT, name="a", path="q"))
    assert [each.name for each in await world.hooks.list_hooks(DEFAULT_TENANT)] == ["a", "h"]
    assert [each.name for each in await world.hooks.list_hooks(DEFAULT_TENANT, "a", 5)] == ["h"]
    assert await world.hooks.find_hook(Tenant(2), "h") is None
    assert await world.hooks.delete(DEFAULT_TENANT, "h")
    assert not await world.hooks.delete(DEFAULT_TENANT, "h")
