"""Which moments a rule names: intervals, cron by the wall clock, and what happens where clocks change."""

from datetime import datetime
from itertools import islice, takewhile
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noetl.triggers import calendar
from noetl.triggers.port import Cron, Every

BERLIN = "Europe/Berlin"


def at(text: str, zone: str = "UTC") -> int:
    moment = datetime.fromisoformat(text)
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=ZoneInfo(zone))
    return round(moment.timestamp()) * 1_000_000


def list_upcoming(expression: str, after: str, count: int, zone: str = BERLIN) -> list[str]:
    rule = Cron(expression, zone)
    return [
        calendar.format_local_time(rule, slot)
        for slot in calendar.list_upcoming_slots(rule, at(after, zone), count)
    ]


def test_an_interval_goes_on_from_where_it_was_made() -> None:
    rule = Every(15_000_000, anchor=7)
    assert calendar.list_upcoming_slots(rule, 7, 3) == [15_000_007, 30_000_007, 45_000_007]
    assert calendar.find_next_slot(rule, 15_000_006) == 15_000_007
    assert calendar.find_next_slot(rule, 15_000_007) == 30_000_007


def test_cron_means_the_clock_of_its_zone() -> None:
    assert list_upcoming("0 2 * * *", "2026-01-10T12:00", 2) == [
        "2026-01-11T02:00:00+01:00",
        "2026-01-12T02:00:00+01:00",
    ]
    assert list_upcoming("30 9 * * MON-FRI", "2026-07-03T12:00", 2, "America/New_York") == [
        "2026-07-06T09:30:00-04:00", "2026-07-07T09:30:00-04:00",
    ]  # fmt: skip
    assert list_upcoming("@monthly", "2026-01-10T12:00", 1, "UTC") == ["2026-02-01T00:00:00+00:00"]


def test_a_time_that_is_skipped_comes_right_after_the_gap_and_once() -> None:
    assert list_upcoming("30 2 * * *", "2026-03-28T12:00", 2) == [
        "2026-03-29T03:00:00+02:00",
        "2026-03-30T02:30:00+02:00",
    ]
    assert list_upcoming("0 2,3 * * *", "2026-03-29T01:00", 2) == [
        "2026-03-29T03:00:00+02:00",
        "2026-03-30T02:00:00+02:00",
    ]


def test_a_time_that_comes_twice_is_taken_the_first_time_wherever_one_looks_from() -> None:
    first = "2026-10-25T02:30:00+02:00"
    assert list_upcoming("30 2 * * *", "2026-10-24T12:00", 2) == [
        first,
        "2026-10-26T02:30:00+01:00",
    ]
    assert list_upcoming("30 2 * * *", "2026-10-25T02:10:00+01:00", 1) == [
        "2026-10-26T02:30:00+01:00"
    ]
    assert list_upcoming("30 2 * * *", first, 1) == ["2026-10-26T02:30:00+01:00"]


def test_every_hour_is_every_real_hour_where_clocks_change() -> None:
    assert list_upcoming("15 * * * *", "2026-10-25T01:30", 3) == [
        "2026-10-25T02:15:00+02:00", "2026-10-25T02:15:00+01:00", "2026-10-25T03:15:00+01:00",
    ]  # fmt: skip
    assert list_upcoming("15 * * * *", "2026-03-29T01:00", 2) == [
        "2026-03-29T01:15:00+01:00",
        "2026-03-29T03:15:00+02:00",
    ]


@pytest.mark.parametrize(
    ("rule", "wrong"),
    [
        (Cron("0 2 * *"), "has 4 fields"),
        (Cron("*/10 0 2 * * *"), "has 6 fields"),
        (Cron("61 2 * * *"), "bad minute"),
        (Cron("0 2 30 2 *"), "bad day-of-month"),
        (Cron("@often"), "has 1 fields"),
        (Cron("0 2 * * *", "Mars/Olympus"), "no time zone"),
        (Cron("0 2 * * *", "../etc"), "no time zone"),
        (Cron("0 2 * * *", "Europe"), "no time zone"),
        (Every(999_999, 0), "at least a second"),
    ],
)
def test_a_rule_that_cannot_be_is_refused_in_words(rule: Cron | Every, wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        calendar.check_rule(rule)


RULES = st.one_of(
    st.builds(Every, st.integers(1_000_000, 10**12), st.just(at("2026-01-01T00:00"))),
    st.builds(
        Cron,
        st.sampled_from(["* * * * *", "*/7 * * * *", "30 2 * * *", "0 1-4 * * *", "15 2 25 10 *", "0 0 1 * *", "59 2 * * SUN"]),
        st.sampled_from(["UTC", BERLIN, "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu"]),
    ),
)  # fmt: skip


@given(
    RULES, st.integers(at("2026-01-01T00:00"), at("2028-01-01T00:00")), st.integers(1, 40 * 86_400)
)
def test_slots_are_the_same_wherever_one_begins_and_the_last_one_is_found(
    rule: Cron | Every, begin: int, seconds: int
) -> None:
    until = begin + seconds * 1_000_000
    whole = list(
        takewhile(lambda slot: slot <= until, islice(calendar.iterate_slots(rule, begin), 300))
    )
    assert whole == sorted(set(whole))
    if not whole:
        return
    by_steps, slot = [], begin
    for _ in whole:
        slot = calendar.find_next_slot(rule, slot)
        by_steps.append(slot)
    assert by_steps == whole
    assert calendar.find_last_slot(rule, whole[0], whole[-1]) == whole[-1]
