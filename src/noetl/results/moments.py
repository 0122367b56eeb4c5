"""Moments that Python does not count: infinity, years before 1 and after 9999, the hour 24, nanoseconds. They are text.

As DuckDB and Postgres read it: `infinity`, `20000-01-01T00:00:00`, `0044-03-15 (BC)`, `24:00:00`.
"""

from datetime import date, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

UNITS = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}  # of a second
DAY = 86_400  # seconds
FIRST, LAST = (
    day - date(1970, 1, 1).toordinal() for day in (date.min.toordinal(), date.max.toordinal())
)
CYCLE = 146_097  # days of 400 years, after which the calendar repeats itself
INFINITE = {32: 2**31 - 1, 64: 2**63 - 1}


def listed(column: pa.Array) -> list[Any]:
    """The values as Python's; in a column that has a moment beyond those, moments are text wherever they stand in it."""
    kind = column.type
    if _beyond(column):
        return [_value(scalar) for scalar in column]
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        column = column.cast(pa.timestamp("us", kind.tz))
    found: list[Any] = column.to_pylist(maps_as_pydicts="lossy")
    return found


def texts(column: pa.Array) -> pa.Array:
    """Of moments, where Arrow would write some that are none."""
    return (
        pa.array([_value(scalar) for scalar in column], pa.string()) if _beyond(column) else column
    )


def _beyond(column: pa.Array) -> bool:
    kind = column.type
    if pa.types.is_map(kind):
        return _beyond(column.keys) or _beyond(column.items)
    if pa.types.is_struct(kind):
        return any(map(_beyond, column.flatten()))
    if pa.types.is_nested(kind):
        return any(map(_beyond, _parts(column)))
    bounds = _bounds(kind)
    if bounds is None:
        return False
    whole = column.cast(_whole(kind))
    found = pc.min_max(whole).as_py()
    if found["min"] is None:
        return False
    within = bounds[0] <= found["min"] <= found["max"] <= bounds[1]
    return not within or (getattr(kind, "unit", "") == "ns" and not _micros_say_all(whole))


def _micros_say_all(nanoseconds: pa.Array) -> bool:
    micros = pc.multiply(pc.divide(nanoseconds, 1_000), 1_000)
    return bool(pc.all(pc.equal(micros, nanoseconds)).as_py())


def _parts(column: pa.Array) -> list[pa.Array]:
    if pa.types.is_union(column.type):
        return [column.field(number) for number in range(column.type.num_fields)]
    return [column.flatten()]


def _whole(kind: pa.DataType) -> pa.DataType:
    return pa.int32() if kind.bit_width == 32 else pa.int64()


def _bounds(kind: pa.DataType) -> tuple[int, int] | None:
    """The first and the last that Python has."""
    if pa.types.is_date32(kind):
        return FIRST, LAST
    if pa.types.is_timestamp(kind):
        day, most = DAY * UNITS[kind.unit], INFINITE[64] - 1
        return max(FIRST * day, -most), min((LAST + 1) * day - 1, most)
    return (0, DAY * UNITS[kind.unit] - 1) if pa.types.is_time(kind) else None


def _value(scalar: pa.Scalar) -> Any:
    kind = scalar.type
    if not scalar.is_valid:
        return None
    if pa.types.is_map(kind):
        return {str(_value(pair[0])): _value(pair[1]) for pair in scalar.values}
    if pa.types.is_struct(kind):
        return {name: _value(part) for name, part in scalar.items()}
    if pa.types.is_union(kind):
        return _value(scalar.value)
    if pa.types.is_nested(kind):
        return [_value(part) for part in scalar.values]
    if _bounds(kind) is None:
        return scalar.as_py()
    if scalar.value in (INFINITE[kind.bit_width], -INFINITE[kind.bit_width]):
        return "infinity" if scalar.value > 0 else "-infinity"
    return _text(scalar.value, kind)


def _text(value: int, kind: pa.DataType) -> str:
    if pa.types.is_date(kind):
        return _day(value)
    unit = UNITS[kind.unit]
    if pa.types.is_time(kind):
        return _time(value, unit)
    days, rest = divmod(value, DAY * unit)
    day = _day(days)
    zone = "" if kind.tz is None else "+00:00"
    return f"{day}{' ' if day.endswith(')') else 'T'}{_time(rest, unit)}{zone}"


def _day(days: int) -> str:
    cycles, days = divmod(days, CYCLE)
    like = date(1970, 1, 1) + timedelta(days)
    year = like.year + 400 * cycles
    return f"{year:04}-{like:%m-%d}" if year > 0 else f"{1 - year:04}-{like:%m-%d} (BC)"


def _time(value: int, unit: int) -> str:
    seconds, rest = divmod(value, unit)
    nanoseconds = rest * 1_000_000_000 // unit
    clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    if nanoseconds % 1_000:
        return f"{clock}.{nanoseconds:09}"
    return f"{clock}.{nanoseconds // 1_000:06}" if nanoseconds else clock
