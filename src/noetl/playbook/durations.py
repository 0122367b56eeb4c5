"""Durations in playbooks: `100ms`, `2s`, `5m`, `2h`, `1d`; a bare number is seconds."""

import re

_UNITS = {
    "ms": 1_000,
    "s": 1_000_000,
    "m": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
}
_SPELLED = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?\s*", re.ASCII)
LONGEST = 3_650 * _UNITS["d"]


def micros(duration: str | int | float) -> int:
    """Parse a duration into microseconds. The message of ValueError shows the valid forms."""
    match = _SPELLED.fullmatch(str(duration))
    if match is None:
        raise ValueError(
            f"{duration!r} is not a duration: write 100ms, 2s, 5m, 2h or 1d; a bare number is seconds"
        )
    amount = round(float(match[1]) * _UNITS[match[2] or "s"])
    if amount > LONGEST:
        raise ValueError(f"{duration!r} is longer than ten years")
    return amount


def spelled(duration: int) -> str:
    """Write a duration in the largest unit that divides it, or in milliseconds, rounded down."""
    for unit, size in reversed(_UNITS.items()):
        if duration % size == 0:
            return f"{duration // size}{unit}"
    return f"{duration // _UNITS['ms']}ms"
