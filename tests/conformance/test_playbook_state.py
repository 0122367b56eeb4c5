"""State between executions: compare-and-set, written with the event that reports it, by tenant and path."""

from typing import Any

import pytest

from noetl.log.events.port import Appended, Known, StaleAttempt, StateChanged
from noetl.log.playbook_state.port import StateRow
from noetl.model.decisions import Effect, SetState
from noetl.model.errors import Conflict, InvalidInput
from noetl.model.exchange import LeaseKey
from noetl.model.ids import CommandId, Tenant
from noetl.model.playbook_state import MAX_STATE_NAMES, MAX_STATE_VERSIONS, StateValue
from tests.conformance.conftest import PortWorld
from tests.conformance.shard_owner import execution, make_completed, make_start, owner, signal_like

TENANT = Tenant(1)
ETL = "etl/load"


def set_state(
    value: Any, expected: int, *, event: str = "issued:w", name: str = "watermark", path: str = ETL
) -> Effect:
    return SetState(path, name, value, expected, event)


async def current(
    world: PortWorld, path: str = ETL, tenant: Tenant = TENANT
) -> list[tuple[str, int, Any]]:
    return [
        (row.name, row.version, row.value) for row in await world.state.read_state(tenant, path)
    ]


async def test_a_write_is_applied_with_its_event(world: PortWorld) -> None:
    one, id_ = await owner(world), execution(0)
    await one.write(id_, make_start(id_))
    event = signal_like("w")
    applied = await one.write(
        id_, signal_like("before"), event, effects=(set_state(7, 0, event=event.key),)
    )
    (row,) = await world.state.read_state(TENANT, ETL)
    assert (row.path, row.name, row.version, row.value, row.unset) == (
        ETL,
        "watermark",
        1,
        7,
        False,
    )
    assert (row.execution_id, row.seq, row.by) == (id_, applied.last_seq, None)
    assert row.at > 0
    recorded = {each.seq: each.event for each in await world.log.read_events(id_)}
    assert row.seq is not None
    assert recorded[row.seq] == event


async def test_a_write_of_another_version_applies_nothing_of_its_part(world: PortWorld) -> None:
    one, first, second = await owner(world), execution(0), execution(1)
    event = signal_like("w")
    await one.write(first, make_start(first), event, effects=(set_state(1, 0, event=event.key),))
    part = await one.part(
        second, make_start(second), event, effects=(set_state(2, 0, event=event.key),)
    )
    assert await one.append(part) == [StateChanged(second, "watermark", 1, first)]
    assert await world.log.read_events(second) == []
    assert await current(world) == [("watermark", 1, 1)]
    await one.write(second, make_start(second), event, effects=(set_state(2, 1, event=event.key),))
    assert await current(world) == [("watermark", 2, 2)]


async def test_the_rest_of_the_batch_is_applied_when_one_part_conflicts(world: PortWorld) -> None:
    one, first, second, third = await owner(world), execution(0), execution(1), execution(2)
    event = signal_like("w")
    await one.write(first, make_start(first), event, effects=(set_state(1, 0, event=event.key),))
    conflicting = await one.part(
        second, make_start(second), event, effects=(set_state(2, 0, event=event.key),)
    )
    other = await one.part(third, make_start(third))
    refused, applied = await one.append(conflicting, other)
    assert isinstance(refused, StateChanged)
    assert isinstance(applied, Appended)
    assert len(await world.log.read_events(third)) == 1


async def test_of_two_parts_that_write_one_value_the_second_is_decided_again(
    world: PortWorld,
) -> None:
    one, first, second = await owner(world), execution(0), execution(0, 1)
    event = signal_like("w")
    parts = [
        await one.part(
            id_, make_start(id_), event, effects=(set_state(number, 0, event=event.key),)
        )
        for number, id_ in enumerate((first, second))
    ]
    applied, again = await one.append(*parts)
    assert isinstance(applied, Appended)
    assert again == Known(second)
    assert await world.log.read_events(second) == []
    assert await current(world) == [("watermark", 1, 0)]


async def test_a_part_whose_report_is_stale_blocks_nobody_with_its_write(world: PortWorld) -> None:
    one, first, second = await owner(world), execution(0), execution(1)
    await one.write(first, make_start(first))
    event = make_completed("gone")
    held = LeaseKey(CommandId("gone"), 1)
    stale = await one.part(first, event, effects=(set_state(1, 0, event=event.key),), taken=(held,))
    assert await one.append(stale) == [StaleAttempt(first, held)]
    assert await current(world) == []
    write = signal_like("w")
    await one.write(second, make_start(second), write, effects=(set_state(2, 0, event=write.key),))
    assert await current(world) == [("watermark", 1, 2)]


async def test_a_part_that_was_applied_already_is_known_and_no_conflict(world: PortWorld) -> None:
    one, id_ = await owner(world), execution(0)
    event = signal_like("w")
    part = await one.part(id_, make_start(id_), event, effects=(set_state(1, 0, event=event.key),))
    assert isinstance((await one.append(part))[0], Appended)
    assert await one.append(part) == [Known(id_)]
    assert await current(world) == [("watermark", 1, 1)]


async def test_one_part_writes_a_value_twice(world: PortWorld) -> None:
    one, id_ = await owner(world), execution(0)
    first, second = signal_like("a"), signal_like("b")
    effects = (set_state(1, 0, event=first.key), set_state(2, 1, event=second.key))
    await one.write(id_, make_start(id_), first, second, effects=effects)
    assert await current(world) == [("watermark", 2, 2)]
    history = await world.state.read_history(TENANT, ETL, "watermark", 1_000, 10)
    assert [(row.version, row.value, row.seq) for row in history] == [(2, 2, 3), (1, 1, 2)]


async def test_a_part_with_one_conflict_writes_none_of_its_values(world: PortWorld) -> None:
    one, first, second = await owner(world), execution(0), execution(1)
    event = signal_like("w")
    await one.write(first, make_start(first), event, effects=(set_state(1, 0, event=event.key),))
    effects = (set_state(5, 0, event=event.key, name="other"), set_state(2, 0, event=event.key))
    part = await one.part(second, make_start(second), event, effects=effects)
    assert await one.append(part) == [StateChanged(second, "watermark", 1, first)]
    assert await current(world) == [("watermark", 1, 1)]


async def test_paths_names_and_tenants_are_apart(world: PortWorld) -> None:
    one, id_ = await owner(world), execution(0)
    event = signal_like("w")
    names = (set_state(1, 0, event=event.key), set_state(2, 0, event=event.key, name="b"))
    await one.write(
        id_, make_start(id_), event, effects=(*names, set_state(3, 0, event=event.key, path="etl"))
    )
    await world.state.put_state(Tenant(2), ETL, "watermark", StateValue(0, "theirs"), None, "ann")
    assert await current(world) == [("b", 1, 2), ("watermark", 1, 1)]
    assert await current(world, "etl") == [("watermark", 1, 3)]
    assert await current(world, tenant=Tenant(2)) == [("watermark", 1, "theirs")]
    assert [
        row.name for row in await world.state.read_state(TENANT, ETL, ["watermark", "none"])
    ] == ["watermark"]
    listed = await world.state.list_state(TENANT, ("", ""), 10)
    assert [(row.path, row.name) for row in listed] == [
        ("etl", "watermark"),
        (ETL, "b"),
        (ETL, "watermark"),
    ]
    assert await world.state.list_state(TENANT, ("etl", "watermark"), 1) == listed[1:2]


async def test_people_write_with_compare_and_set(world: PortWorld) -> None:
    state = world.state
    assert await state.put_state(TENANT, ETL, "watermark", StateValue(0, 1), None, "ann") == 1
    assert (
        await state.put_state(TENANT, ETL, "watermark", StateValue(0, {"a": None}), 1, "bob") == 2
    )
    with pytest.raises(Conflict, match="has version 2, not 1"):
        await state.put_state(TENANT, ETL, "watermark", StateValue(0, 3), 1, "ann")
    with pytest.raises(Conflict, match="has version 2, not 0"):
        await state.put_state(TENANT, ETL, "watermark", StateValue(0, 3), 0, "ann")
    (row,) = await state.read_state(TENANT, ETL)
    assert (row.version, row.value, row.by, row.execution_id, row.seq) == (
        2,
        {"a": None},
        "bob",
        None,
        None,
    )


async def test_an_execution_conflicts_with_what_a_person_wrote(world: PortWorld) -> None:
    one, id_ = await owner(world), execution(0)
    await world.state.put_state(TENANT, ETL, "watermark", StateValue(0, 1), None, "ann")
    event = signal_like("w")
    part = await one.part(id_, make_start(id_), event, effects=(set_state(2, 0, event=event.key),))
    assert await one.append(part) == [StateChanged(id_, "watermark", 1, "ann")]


async def test_versions_go_on_after_a_value_was_unset(world: PortWorld) -> None:
    state = world.state
    await state.put_state(TENANT, ETL, "watermark", StateValue(0, 1), None, None)
    assert (
        await state.put_state(TENANT, ETL, "watermark", StateValue(0, unset=True), None, None) == 2
    )
    (row,) = await state.read_state(TENANT, ETL)
    assert (row.version, row.unset, row.value) == (2, True, None)
    assert await state.list_state(TENANT, ("", ""), 10) == []
    assert await state.put_state(TENANT, ETL, "watermark", StateValue(0, None), 2, None) == 3
    (row,) = await state.read_state(TENANT, ETL)
    assert (row.version, row.unset, row.value) == (3, False, None)


async def test_history_keeps_the_last_versions_newest_first(world: PortWorld) -> None:
    state = world.state
    for number in range(1, MAX_STATE_VERSIONS + 6):
        await state.put_state(TENANT, ETL, "watermark", StateValue(0, number), number - 1, "ann")
    history = await state.read_history(TENANT, ETL, "watermark", 1_000, 1_000)
    assert [row.version for row in history] == list(range(MAX_STATE_VERSIONS + 5, 5, -1))
    assert all(row.value == row.version for row in history)
    older = await state.read_history(TENANT, ETL, "watermark", 100, 2)
    assert [row.version for row in older] == [99, 98]
    assert await state.read_history(TENANT, ETL, "other", 1_000, 10) == []


async def test_a_path_has_a_bounded_number_of_names(world: PortWorld) -> None:
    state = world.state
    for number in range(MAX_STATE_NAMES):
        await state.put_state(TENANT, ETL, f"n{number}", StateValue(0, 1), None, None)
    with pytest.raises(Conflict, match="100 state values already"):
        await state.put_state(TENANT, ETL, "more", StateValue(0, 1), None, None)
    assert await state.put_state(TENANT, ETL, "n1", StateValue(0, 2), None, None) == 2
    assert await state.put_state(TENANT, "etl/other", "more", StateValue(0, 1), None, None) == 1


async def test_an_execution_cannot_write_one_name_more_than_a_path_may_have(
    world: PortWorld,
) -> None:
    for number in range(MAX_STATE_NAMES - 1):
        await world.state.put_state(TENANT, ETL, f"n{number}", StateValue(0, 1), None, None)
    one, first, second, third = await owner(world), execution(0), execution(1), execution(2)
    event = signal_like("w")
    both = (
        set_state(1, 0, event=event.key, name="last"),
        set_state(1, 0, event=event.key, name="one_more"),
    )
    too_many = await one.part(first, make_start(first), event, effects=both)
    assert await one.append(too_many) == [StateChanged(first, "one_more", 0, None, is_full=True)]
    assert len(await current(world)) == MAX_STATE_NAMES - 1
    parts = [
        await one.part(
            id_,
            make_start(id_),
            event,
            effects=(set_state(1, 0, event=event.key, name=f"of_{id_}"),),
        )
        for id_ in (second, third)
    ]
    applied, again = await one.append(*parts)
    assert (type(applied), again) == (Appended, Known(third))
    full = await one.part(
        third, make_start(third), event, effects=(set_state(1, 0, event=event.key, name="m"),)
    )
    assert await one.append(full) == [StateChanged(third, "m", 0, None, is_full=True)]
    known = (
        set_state(2, 1, event=event.key, name="n1"),
        set_state(3, 2, event=event.key, name="n1"),
    )
    await one.write(third, make_start(third), event, effects=known)
    assert len(await current(world)) == MAX_STATE_NAMES


HOSTILE = [
    "",
    "a b",
    "a.b",
    "x" * 65,
    "1st",
    "é",
    "a'); drop table noetl.event; --",
    "a\x00",
    "$reference",
    "a\n",
]


@pytest.mark.parametrize("name", HOSTILE)
async def test_hostile_names_are_refused(world: PortWorld, name: str) -> None:
    with pytest.raises(InvalidInput, match="cannot name a state value"):
        await world.state.put_state(TENANT, ETL, name, StateValue(0, 1), None, None)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("x" * 4_095, "4097 bytes"),
        ([{"row": 1}], "scalar, or a map or list of scalars"),
        ({"a": {"b": 1}}, "scalar, or a map or list of scalars"),
        ({"$reference": "noetl://execution/1/result/s/k"}, "a reference to a stored result"),
        ("***db.password***", "a secret"),
        ({"token": "Bearer ***api.token***"}, "a secret"),
        (float("nan"), "scalar"),
    ],
)
async def test_values_that_state_does_not_hold_are_refused(
    world: PortWorld, value: Any, message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        await world.state.put_state(TENANT, ETL, "watermark", StateValue(0, value), None, None)
    assert await world.state.read_state(TENANT, ETL) == []


@pytest.mark.parametrize(
    "value",
    [None, True, 0, -1.5, 2**62, "", "'\"\\", "a\x00b", "\ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16"), [], {},
     {"b": 1, "a": [1][0]}, [1, "two", None], "{{ x }}", "x" * 4_094],
)  # fmt: skip
async def test_values_come_back_as_they_were_written(world: PortWorld, value: Any) -> None:
    one, id_ = await owner(world), execution(0)
    event = signal_like("w")
    await one.write(id_, make_start(id_), event, effects=(set_state(value, 0, event=event.key),))
    await world.state.put_state(TENANT, "other", "watermark", StateValue(0, value), None, None)
    rows: list[StateRow] = [
        *await world.state.read_state(TENANT, ETL),
        *await world.state.read_state(TENANT, "other"),
        *await world.state.read_history(TENANT, ETL, "watermark", 100, 1),
    ]
    assert [repr(row.value) for row in rows] == [repr(value)] * 3
