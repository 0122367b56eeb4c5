"""The wall clock as a port, and its readings as text.

Only `at`, leases and timers read this clock; waiting uses the time of the event loop. There is no
calendar library here, because the engine may not import one.
"""

from functools import lru_cache
from typing import Protocol

from noetl.model.ids import Micros


class Clock(Protocol):
    def now(self) -> Micros: ...


def format_iso(at: Micros) -> str:
    """The moment as ISO 8601 text, in UTC."""
    seconds, micro = divmod(at, 1_000_000)
    return f"{_format_whole_second(seconds)}.{micro:06}Z"


def format_iso_or_none(at: Micros | None) -> str | None:
    """The moment as text; None if there is none."""
    return format_iso(at) if at else None


@lru_cache(maxsize=256)  # successive moments mostly share their second
def _format_whole_second(seconds: int) -> str:
    days, rest = divmod(seconds, 86_400)
    year, month, day = _split_days(days)
    return f"{year:04}-{month:02}-{day:02}T{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"


def _split_days(days: int) -> tuple[int, int, int]:
    """Year, month and day of a number of days since 1970 (proleptic Gregorian, eras of 400
    years)."""
    era, day_of_era = divmod(days + 719_468, 146_097)
    leap_days = day_of_era // 1460 - day_of_era // 36_524 + day_of_era // 146_096
    year_of_era = (day_of_era - leap_days) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    months_since_march = (5 * day_of_year + 2) // 153
    day = day_of_year - (153 * months_since_march + 2) // 5 + 1
    year = year_of_era + era * 400
    if months_since_march < 10:
        return year, months_since_march + 3, day
    return year + 1, months_since_march - 9, day
