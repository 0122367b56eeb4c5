"""Durations in playbooks: `100ms`, `2s`, `5m`, `2h`, `1d`; a bare number is seconds."""

import re

_MICROS_PER_UNIT = {
    "ms": 1_000,
    "s": 1_000_000,
    "m": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
}
_DURATION_PATTERN = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?\s*", re.ASCII)
MAX_DURATION_US = 3_650 * _MICROS_PER_UNIT["d"]


def parse_micros(duration: str | int | float) -> int:
    """Parse a duration into microseconds. The message of ValueError shows the valid forms."""
    match = _DURATION_PATTERN.fullmatch(str(duration))
    if match is None:
        raise ValueError(
            f"{duration!r} is not a duration: write 100ms, 2s, 5m, 2h or 1d; a bare number is seconds"
        )
    amount = round(float(match[1]) * _MICROS_PER_UNIT[match[2] or "s"])
    if amount > MAX_DURATION_US:
        raise ValueError(f"{duration!r} is longer than ten years")
    return amount


def write_duration(duration: int) -> str:
    """Write a duration in the largest unit that divides it, or in milliseconds, rounded down."""
    for unit, size in reversed(_MICROS_PER_UNIT.items()):
        if duration % size == 0:
            return f"{duration // size}{unit}"
    return f"{duration // _MICROS_PER_UNIT['ms']}ms"
