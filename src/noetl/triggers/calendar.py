"""Computes the slots of a rule: the times at which a schedule is due. Pure.

Cron uses the local time of a time zone, as Debian's cron does. A time that is skipped when clocks
go forward comes right after the gap. A time that occurs twice when they go back counts the first
time. An hour of `*` is every real hour.
"""

from collections.abc import Iterator
from datetime import datetime
from functools import lru_cache
from itertools import islice
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from noetl.model.ids import Micros
from noetl.triggers.port import Cron, Every, Rule

SECOND_MICROS: Micros = 1_000_000
DAY_MICROS = 86_400 * SECOND_MICROS
NAMED_EXPRESSIONS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
}


def check_rule(rule: Rule) -> None:
    """Raise ValueError, with the reason, if the rule is not valid."""
    match rule:
        case Every():
            if rule.interval < SECOND_MICROS:
                raise ValueError("an interval is at least a second")
        case Cron():
            _check_cron(rule)


def _check_cron(rule: Cron) -> None:
    try:
        _load_zone(rule.zone)
    except (KeyError, ValueError, OSError) as error:
        raise ValueError(
            f"there is no time zone {rule.zone[:100]!r}: write it as Europe/Berlin or UTC"
        ) from error
    fields = len(_expand_expression(rule).split())
    if fields != 5:
        named = ", ".join(NAMED_EXPRESSIONS)
        raise ValueError(
            f"{rule.expression[:100]!r} has {fields} fields: write minute hour day month weekday, "
            f"or one of {named}"
        )
    try:
        slot = find_next_slot(rule, 0)
    except CronSimError as error:
        raise ValueError(f"{rule.expression[:100]!r}: {str(error).lower()}") from error
    if slot is None:
        raise ValueError(f"{rule.expression[:100]!r} never comes")


def iterate_slots(rule: Rule, after: Micros) -> Iterator[Micros]:
    """Every slot later than `after`, in order."""
    if isinstance(rule, Every):
        return _iterate_interval_slots(rule, after)
    return _iterate_cron_slots(rule, after)


def find_next_slot(rule: Rule, after: Micros) -> Micros | None:
    """The first slot later than `after`."""
    return next(iterate_slots(rule, after), None)


def list_upcoming_slots(rule: Rule, after: Micros, count: int) -> list[Micros]:
    return list(islice(iterate_slots(rule, after), count))


def find_last_slot(rule: Rule, first: Micros, until: Micros) -> Micros:
    """The last slot up to `until`. `first` is a slot before it.

    Searches the last hours first, and goes further back only if it finds none.
    """
    for span in (DAY_MICROS // 12, 2 * DAY_MICROS, 62 * DAY_MICROS, until - first + 1):
        latest = None
        for slot in iterate_slots(rule, until - span):
            if slot > until:
                break
            latest = slot
        if latest is not None:
            return latest
    return first


def format_local_time(rule: Rule, at: Micros) -> str:
    """The time in ISO 8601 in the time zone of the rule, to the second."""
    zone = rule.zone if isinstance(rule, Cron) else "UTC"
    return datetime.fromtimestamp(at // SECOND_MICROS, _load_zone(zone)).isoformat()


def _iterate_interval_slots(rule: Every, after: Micros) -> Iterator[Micros]:
    number = (after - rule.anchor) // rule.interval
    while True:
        number += 1
        yield rule.anchor + number * rule.interval


def _iterate_cron_slots(rule: Cron, after: Micros) -> Iterator[Micros]:
    """The slots of a cron rule.

    The library uses local time: it may repeat a past slot in an hour that occurs twice.
    """
    latest = after
    start = datetime.fromtimestamp(after // SECOND_MICROS, _load_zone(rule.zone))
    for time in CronSim(_expand_expression(rule), start):
        slot = round(time.timestamp()) * SECOND_MICROS
        if slot > latest:
            latest = slot
            yield slot


def _expand_expression(rule: Cron) -> str:
    return NAMED_EXPRESSIONS.get(rule.expression.strip().lower(), rule.expression)


@lru_cache(maxsize=64)
def _load_zone(name: str) -> ZoneInfo:
    return ZoneInfo(name)
