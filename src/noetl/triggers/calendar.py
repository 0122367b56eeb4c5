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

SECOND: Micros = 1_000_000
DAY = 86_400 * SECOND
NAMED = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
}


def check(rule: Rule) -> None:
    """Raise ValueError, with the reason, if the rule is not valid."""
    match rule:
        case Every():
            if rule.interval < SECOND:
                raise ValueError("an interval is at least a second")
        case Cron():
            _check_cron(rule)


def _check_cron(rule: Cron) -> None:
    try:
        _zone(rule.zone)
    except (KeyError, ValueError, OSError) as error:
        raise ValueError(
            f"there is no time zone {rule.zone[:100]!r}: write it as Europe/Berlin or UTC"
        ) from error
    fields = len(_spelled(rule).split())
    if fields != 5:
        raise ValueError(
            f"{rule.expression[:100]!r} has {fields} fields: write minute hour day month weekday, or one of {', '.join(NAMED)}"
        )
    try:
        slot = following(rule, 0)
    except CronSimError as error:
        raise ValueError(f"{rule.expression[:100]!r}: {str(error).lower()}") from error
    if slot is None:
        raise ValueError(f"{rule.expression[:100]!r} never comes")


def slots(rule: Rule, after: Micros) -> Iterator[Micros]:
    """Every slot later than `after`, in order."""
    if isinstance(rule, Every):
        return _every(rule, after)
    return _cron(rule, after)


def following(rule: Rule, after: Micros) -> Micros | None:
    """The first slot later than `after`."""
    return next(slots(rule, after), None)


def upcoming(rule: Rule, after: Micros, count: int) -> list[Micros]:
    return list(islice(slots(rule, after), count))


def last(rule: Rule, first: Micros, until: Micros) -> Micros:
    """The last slot up to `until`. `first` is a slot before it.

    Searches the last hours first, and goes further back only if it finds none.
    """
    for span in (DAY // 12, 2 * DAY, 62 * DAY, until - first + 1):
        latest = None
        for slot in slots(rule, until - span):
            if slot > until:
                break
            latest = slot
        if latest is not None:
            return latest
    return first


def local(rule: Rule, at: Micros) -> str:
    """The time in ISO 8601 in the time zone of the rule, to the second."""
    zone = rule.zone if isinstance(rule, Cron) else "UTC"
    return datetime.fromtimestamp(at // SECOND, _zone(zone)).isoformat()


def _every(rule: Every, after: Micros) -> Iterator[Micros]:
    number = (after - rule.anchor) // rule.interval
    while True:
        number += 1
        yield rule.anchor + number * rule.interval


def _cron(rule: Cron, after: Micros) -> Iterator[Micros]:
    """The slots of a cron rule.

    The library uses local time: it may repeat a past slot in an hour that occurs twice.
    """
    latest = after
    start = datetime.fromtimestamp(after // SECOND, _zone(rule.zone))
    for time in CronSim(_spelled(rule), start):
        slot = round(time.timestamp()) * SECOND
        if slot > latest:
            latest = slot
            yield slot


def _spelled(rule: Cron) -> str:
    return NAMED.get(rule.expression.strip().lower(), rule.expression)


@lru_cache(maxsize=64)
def _zone(name: str) -> ZoneInfo:
    return ZoneInfo(name)
