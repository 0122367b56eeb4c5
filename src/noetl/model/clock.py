"""The wall clock as a port, and its readings as text. Waiting uses the event loop's own time; only `at`, leases and timers ask
the clock. No calendar library: the engine may not import one."""

from functools import lru_cache
from typing import Protocol

from noetl.model.ids import Micros


class Clock(Protocol):
    def now(self) -> Micros: ...


def iso(at: Micros) -> str:
    """ISO 8601, UTC."""
    seconds, micro = divmod(at, 1_000_000)
    return f"{_second(seconds)}.{micro:06}Z"


@lru_cache(maxsize=256)  # moments come close together
def _second(seconds: int) -> str:
    days, rest = divmod(seconds, 86_400)
    year, month, day = _civil(days)
    return f"{year:04}-{month:02}-{day:02}T{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"


def _civil(days: int) -> tuple[int, int, int]:
    """Year, month, day of a count of days since 1970 (proleptic Gregorian, eras of 400 years)."""
    era, of_era = divmod(days + 719_468, 146_097)
    year_of_era = (of_era - of_era // 1460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    shifted = (5 * of_year + 2) // 153
    month = shifted + 3 if shifted < 10 else shifted - 9
    return year_of_era + era * 400 + (month <= 2), month, of_year - (153 * shifted + 2) // 5 + 1
