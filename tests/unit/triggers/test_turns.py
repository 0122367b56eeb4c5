"""What a schedule does when it is due, by its policies."""

from typing import Any

import pytest

from noetl.model.ids import DEFAULT_TENANT
from noetl.triggers.port import DueSchedule, Every, Schedule
from noetl.triggers.turns import MAX_TURN_SLOTS, decide_turn

MINUTE = 60_000_000


def schedule(**fields: Any) -> Schedule:
    """Due at minute 10 of a minute's rule."""
    usual = {
        "tenant": DEFAULT_TENANT, "name": "s", "path": "p", "rule": Every(MINUTE, 0), "schedule_id": 1,
        "next_at": 10 * MINUTE, "created_at": 0, "changed_at": 0,
    }  # fmt: skip
    return Schedule(**{**usual, **fields})


def at(row: Schedule, minute: float, *, busy: bool = False) -> tuple[list[float], Schedule]:
    made = decide_turn(DueSchedule(row, round(minute * MINUTE), busy))
    return [slot / MINUTE for slot in made.starts], made.after


def test_a_slot_that_has_come_starts_and_the_next_one_is_due() -> None:
    starts, after = at(schedule(), 10)
    assert (starts, after.next_at) == ([10], 11 * MINUTE)


@pytest.mark.parametrize(
    ("catch_up", "starts"),
    [("skip", []), ("last", [14]), ("all", [10, 11, 12, 13, 14])],
)
def test_missed_slots_are_left_out_or_run_once_or_each(catch_up: str, starts: list[float]) -> None:
    begun, after = at(schedule(catch_up=catch_up), 14.5)
    assert (begun, after.next_at) == (starts, 15 * MINUTE)


@pytest.mark.parametrize("catch_up", ["skip", "last"])
def test_a_slot_that_is_hardly_late_was_not_missed(catch_up: str) -> None:
    assert at(schedule(catch_up=catch_up), 14.1)[0] == [14]
    seconds = schedule(catch_up=catch_up, rule=Every(1_000_000, 0))
    assert len(at(seconds, 10.05)[0]) == 4  # a second each, and three seconds late


def test_many_missed_slots_are_run_a_few_at_a_time() -> None:
    begun, after = at(schedule(catch_up="all"), 10_000)
    assert (len(begun), after.next_at) == (MAX_TURN_SLOTS, (10 + MAX_TURN_SLOTS) * MINUTE)


def test_a_slot_is_skipped_while_the_one_before_runs() -> None:
    begun, after = at(schedule(overlap="skip"), 10, busy=True)
    assert (begun, after.skipped, after.next_at, after.waiting) == ([], 1, 11 * MINUTE, ())
    begun, after = at(schedule(overlap="skip", catch_up="all"), 12.1)
    assert (begun, after.skipped) == ([10], 2)


def test_a_slot_waits_while_the_one_before_runs_and_slots_keep_their_order() -> None:
    _, after = at(schedule(overlap="queue"), 10, busy=True)
    _, after = at(after, 11, busy=True)
    assert ([slot / MINUTE for slot in after.waiting], after.skipped) == ([10, 11], 0)
    begun, after = at(after, 11.5)
    assert (begun, [slot / MINUTE for slot in after.waiting]) == ([10], [11])
    begun, after = at(after, 12)
    assert (begun, [slot / MINUTE for slot in after.waiting], after.next_at) == (
        [11],
        [12],
        13 * MINUTE,
    )


def test_no_slot_is_lost_when_no_more_can_wait() -> None:
    row = schedule(overlap="queue", catch_up="all")
    _, full = at(row, 10_000, busy=True)
    assert (len(full.waiting), full.next_at) == (MAX_TURN_SLOTS, (10 + MAX_TURN_SLOTS) * MINUTE)
    assert decide_turn(DueSchedule(full, 10_000 * MINUTE, True)).after == full
    begun, seen = list[float](), full
    for _ in range(3 * MAX_TURN_SLOTS):
        started, seen = at(seen, 10_000)
        begun += started
    assert begun == [10 + number for number in range(3 * MAX_TURN_SLOTS)]


def test_side_by_side_is_side_by_side() -> None:
    assert at(schedule(), 10, busy=True)[0] == [10]
