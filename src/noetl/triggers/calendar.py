"""Which moments a rule names. Pure: a moment goes in, moments come out.

Cron by the clock on the wall of a time zone, as Debian's cron does it: a time that is skipped when clocks go forward comes right
after the gap; one that comes twice when they go back is taken the first time. An hour of `*` is every real hour.
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
    """ValueError says what is wrong with it."""
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
        found = following(rule, 0)
    except CronSimError as error:
        raise ValueError(f"{rule.expression[:100]!r}: {str(error).lower()}") from error
    if found is None:
        raise ValueError(f"{rule.expression[:100]!r} never comes")


def slots(rule: Rule, after: Micros) -> Iterator[Micros]:
    """Every slot later than this, in order."""
    return _every(rule, after) if isinstance(rule, Every) else _cron(rule, after)


def following(rule: Rule, after: Micros) -> Micros | None:
    return next(slots(rule, after), None)


def upcoming(rule: Rule, after: Micros, count: int) -> list[Micros]:
    return list(islice(slots(rule, after), count))


def last(rule: Rule, first: Micros, until: Micros) -> Micros:
    """The last slot until then; `first` is one. Looks near the end before it looks further back."""
    for back in (DAY // 12, 2 * DAY, 62 * DAY, until - first + 1):
        found = None
        for slot in slots(rule, until - back):
            if slot > until:
                break
            found = slot
        if found is not None:
            return found
    return first


def local(rule: Rule, at: Micros) -> str:
    """ISO 8601 in the time zone of the rule, to the second."""
    return datetime.fromtimestamp(
        at // SECOND, _zone(rule.zone if isinstance(rule, Cron) else "UTC")
    ).isoformat()


def _every(rule: Every, after: Micros) -> Iterator[Micros]:
    number = (after - rule.anchor) // rule.interval
    while True:
        number += 1
        yield rule.anchor + number * rule.interval


def _cron(rule: Cron, after: Micros) -> Iterator[Micros]:
    """The library reads the wall: where an hour comes twice it may name a moment again that lies behind."""
    latest = after
    for moment in CronSim(
        _spelled(rule), datetime.fromtimestamp(after // SECOND, _zone(rule.zone))
    ):
        at = round(moment.timestamp()) * SECOND
        if at > latest:
            latest = at
            yield at


def _spelled(rule: Cron) -> str:
    return NAMED.get(rule.expression.strip().lower(), rule.expression)


@lru_cache(maxsize=64)
def _zone(name: str) -> ZoneInfo:
    return ZoneInfo(name)
