"""Text for moments that Python's datetime cannot hold: infinity, years before 1 and after 9999, the
hour 24, nanoseconds.

The text is as DuckDB and Postgres read it: `infinity`, `20000-01-01T00:00:00`, `0044-03-15 (BC)`,
`24:00:00`.
"""

from datetime import date, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

UNITS_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}  # per second
DAY_SECONDS = 86_400  # seconds
_EPOCH = date(1970, 1, 1).toordinal()
FIRST_DAY = date.min.toordinal() - _EPOCH  # days since 1970
LAST_DAY = date.max.toordinal() - _EPOCH
CYCLE_DAYS = 146_097  # days of 400 years, after which the calendar repeats itself
INFINITY_BY_BITS = {32: 2**31 - 1, 64: 2**63 - 1}


def list_python_values(column: pa.Array) -> list[Any]:
    """Return the values as Python objects. If one moment of the column is beyond Python's range,
    all moments of that column are text.
    """
    kind = column.type
    if _exceeds_python(column):
        return [_to_python(scalar) for scalar in column]
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        column = column.cast(pa.timestamp("us", kind.tz))
    values: list[Any] = column.to_pylist(maps_as_pydicts="lossy")
    return values


def format_moments(column: pa.Array) -> pa.Array:
    """Replace moments beyond Python's range by text, because Arrow would write wrong text."""
    if not _exceeds_python(column):
        return column
    return pa.array([_to_python(scalar) for scalar in column], pa.string())


def _exceeds_python(column: pa.Array) -> bool:
    """Whether a moment of the column is beyond Python's range or precision."""
    kind = column.type
    if pa.types.is_map(kind):
        return _exceeds_python(column.keys) or _exceeds_python(column.items)
    if pa.types.is_struct(kind):
        return any(map(_exceeds_python, column.flatten()))
    if pa.types.is_nested(kind):
        return any(map(_exceeds_python, _list_nested_columns(column)))
    bounds = _find_python_bounds(kind)
    if bounds is None:
        return False
    integers = column.cast(_find_integer_type(kind))
    extremes = pc.min_max(integers).as_py()
    if extremes["min"] is None:
        return False
    within = bounds[0] <= extremes["min"] <= extremes["max"] <= bounds[1]
    if not within:
        return True
    return getattr(kind, "unit", "") == "ns" and not _fits_microseconds(integers)


def _fits_microseconds(nanoseconds: pa.Array) -> bool:
    micros = pc.multiply(pc.divide(nanoseconds, 1_000), 1_000)
    return bool(pc.all(pc.equal(micros, nanoseconds)).as_py())


def _list_nested_columns(column: pa.Array) -> list[pa.Array]:
    if pa.types.is_union(column.type):
        return [column.field(number) for number in range(column.type.num_fields)]
    return [column.flatten()]


def _find_integer_type(kind: pa.DataType) -> pa.DataType:
    return pa.int32() if kind.bit_width == 32 else pa.int64()


def _find_python_bounds(kind: pa.DataType) -> tuple[int, int] | None:
    """The first and the last moment of the type that Python can hold; None if it has none."""
    if pa.types.is_date32(kind):
        return FIRST_DAY, LAST_DAY
    if pa.types.is_timestamp(kind):
        day = DAY_SECONDS * UNITS_PER_SECOND[kind.unit]
        most = INFINITY_BY_BITS[64] - 1
        return max(FIRST_DAY * day, -most), min((LAST_DAY + 1) * day - 1, most)
    if pa.types.is_time(kind):
        return 0, DAY_SECONDS * UNITS_PER_SECOND[kind.unit] - 1
    return None


def _to_python(scalar: pa.Scalar) -> Any:
    kind = scalar.type
    if not scalar.is_valid:
        return None
    if pa.types.is_map(kind):
        return {str(_to_python(pair[0])): _to_python(pair[1]) for pair in scalar.values}
    if pa.types.is_struct(kind):
        return {name: _to_python(part) for name, part in scalar.items()}
    if pa.types.is_union(kind):
        return _to_python(scalar.value)
    if pa.types.is_nested(kind):
        return [_to_python(part) for part in scalar.values]
    if _find_python_bounds(kind) is None:
        return scalar.as_py()
    if scalar.value in (INFINITY_BY_BITS[kind.bit_width], -INFINITY_BY_BITS[kind.bit_width]):
        return "infinity" if scalar.value > 0 else "-infinity"
    return _format_moment(scalar.value, kind)


def _format_moment(value: int, kind: pa.DataType) -> str:
    if pa.types.is_date(kind):
        return _format_day(value)
    unit = UNITS_PER_SECOND[kind.unit]
    if pa.types.is_time(kind):
        return _format_time(value, unit)
    days, rest = divmod(value, DAY_SECONDS * unit)
    day = _format_day(days)
    separator = " " if day.endswith(")") else "T"
    zone = "" if kind.tz is None else "+00:00"
    return f"{day}{separator}{_format_time(rest, unit)}{zone}"


def _format_day(days: int) -> str:
    """ISO 8601. The calendar repeats itself after 400 years, so Python formats any year."""
    cycles, days = divmod(days, CYCLE_DAYS)
    day = date(1970, 1, 1) + timedelta(days)
    year = day.year + 400 * cycles
    if year > 0:
        return f"{year:04}-{day:%m-%d}"
    return f"{1 - year:04}-{day:%m-%d} (BC)"


def _format_time(value: int, unit: int) -> str:
    seconds, rest = divmod(value, unit)
    nanoseconds = rest * 1_000_000_000 // unit
    clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    if not nanoseconds:
        return clock
    if nanoseconds % 1_000:
        return f"{clock}.{nanoseconds:09}"
    return f"{clock}.{nanoseconds // 1_000:06}"
