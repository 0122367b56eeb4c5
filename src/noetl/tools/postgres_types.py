"""Columns of Postgres as columns of Arrow, made from what psycopg gives.

A number with a declared precision is a decimal; without one it is text that says so. Arrays are lists when their first rows have
one dimension. What Arrow has no like for (arrays of arrays, of json and of numbers, records) is json; anything else is its text.
Moments beyond Python's calendar are counted as Arrow counts them, as `COPY` gives them too; infinite ones are refused.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import partial
from typing import Any

import psycopg
import pyarrow as pa
from psycopg.abc import AdaptContext, Buffer
from psycopg.adapt import AdaptersMap, Loader
from psycopg.pq import Format
from psycopg.types.datetime import IntervalLoader
from psycopg.types.string import TextLoader

from noetl.results.moments import CYCLE, DAY
from noetl.results.rowsets import NUMERIC
from noetl.results.values import to_json

MOST_DIGITS = 38
MICROS = 1_000_000  # of a second
Convert = Callable[[Any], Any]

SIMPLE = {
    "bool": pa.bool_(),
    "int2": pa.int16(),
    "int4": pa.int32(),
    "int8": pa.int64(),
    "oid": pa.int64(),
    "float4": pa.float32(),
    "float8": pa.float64(),
    "text": pa.string(),
    "varchar": pa.string(),
    "bpchar": pa.string(),
    "name": pa.string(),
    "date": pa.date32(),
    "time": pa.time64("us"),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
    "bytea": pa.binary(),
    "uuid": pa.uuid(),
    "interval": pa.duration("us"),
}
LISTED = frozenset(SIMPLE) - {"uuid"}  # of which Arrow makes lists from Python's
JSON = ("json", "jsonb")
COUNTED = ("date", "time", "timestamp", "timestamptz", "interval")


class Interval(IntervalLoader):
    """A year is twelve months of thirty days, as Postgres counts when it compares; the driver gives it 365."""

    def load(self, data: Buffer) -> timedelta:
        text = bytes(data)
        if text.endswith(b"infinity"):
            raise psycopg.DataError("infinite")  # which the driver takes for nothing
        years = _YEARS.match(text)
        return super().load(data) - timedelta(0 if years is None else int(years[1]) * 5)


class OrText(Loader):
    """What Python has no value for is its text: who knows the column says what becomes of it."""

    def __init__(self, oid: int, context: AdaptContext | None = None) -> None:
        super().__init__(oid, context)
        known = Interval if oid == _INTERVAL else psycopg.adapters.get_loader(oid, Format.TEXT)
        assert known is not None
        self._known = known(oid, context)

    def load(self, data: Buffer) -> Any:
        try:
            return self._known.load(data)
        except (psycopg.DataError, OverflowError, ValueError):
            return bytes(data).decode()


_INTERVAL = psycopg.adapters.types["interval"].oid
_YEARS = re.compile(rb"([-+]?\d+) years?")


def as_stored(adapters: AdaptersMap) -> None:
    """Json is kept as it came, not taken apart and put together."""
    for name in JSON:
        adapters.register_loader(name, TextLoader)
    for name in COUNTED:
        adapters.register_loader(name, OrText)


@dataclass(frozen=True, slots=True)
class ColumnConversion:
    field: pa.Field
    convert: Convert | None = None

    def array(self, values: Sequence[Any]) -> pa.Array:
        if self.convert is not None:
            values = [None if value is None else self.convert(value) for value in values]
        try:
            return pa.array(values, self.field.type)
        except (pa.ArrowException, OverflowError) as error:
            raise pa.ArrowInvalid(f"column {self.field.name!r}: {error}") from error


def columns(
    names: Sequence[str], kinds: Sequence[tuple[int, int]], first: Sequence[Sequence[Any]]
) -> list[ColumnConversion]:
    """`kinds` are (oid, modifier) of each column, `first` its first values."""
    return [
        _column(name, *kind, values) for name, kind, values in zip(names, kinds, first, strict=True)
    ]


def _column(name: str, oid: int, modifier: int, first: Sequence[Any]) -> ColumnConversion:
    info = psycopg.adapters.types.get(oid)
    kind = "" if info is None else info.name
    if info is not None and info.array_oid == oid:
        return _array(name, kind, first)
    if kind in SIMPLE:
        return ColumnConversion(
            pa.field(name, SIMPLE[kind]), partial(_counted, name) if kind in COUNTED else None
        )
    if kind in JSON:
        return ColumnConversion(pa.field(name, pa.json_()))
    if kind == "numeric":
        return _number(name, modifier)
    if any(isinstance(value, list | tuple | dict) for value in first):
        return ColumnConversion(pa.field(name, pa.json_()), _as_json)
    return ColumnConversion(pa.field(name, pa.string()), _as_text)


def _counted(name: str, value: Any) -> Any:
    """Of a moment that Python has not: its day, or its microsecond."""
    if isinstance(value, list):
        return [_counted(name, part) for part in value]
    if not isinstance(value, str):
        return value
    if value == "24:00:00":
        return DAY * MICROS
    found = _FAR.fullmatch(value)
    count = None if found is None else _count(found)
    if count is None or count >= 2**63:
        raise psycopg.errors.DatetimeFieldOverflow(unfit(name))
    return count


_FAR = re.compile(r"(\d+)(-\d\d-\d\d)( \d\d:\d\d:[-+:.\d]+)?( BC)?")
_YEAR_0 = (date(2000, 1, 1) - date(1970, 1, 1)).days - 5 * CYCLE  # its first day


def _count(found: re.Match[str]) -> int:
    """From a year that the calendar repeats."""
    year, day, time, before_christ = found.groups()
    cycles, like = divmod(1 - int(year) if before_christ else int(year), 400)
    moment = datetime.fromisoformat(f"{2000 + like}{day}{time or ''}")
    apart = moment.replace(tzinfo=moment.tzinfo or UTC) - datetime(2000, 1, 1, tzinfo=UTC)
    days = _YEAR_0 + cycles * CYCLE
    return (
        days + apart.days
        if time is None
        else days * DAY * MICROS + apart // timedelta(microseconds=1)
    )


def unfit(name: str) -> str:
    return f"column {name!r} has a moment or a span of time that is infinite, or too far: cast it to text"


def _number(name: str, modifier: int) -> ColumnConversion:
    kind = decimal(modifier)
    return (
        ColumnConversion(pa.field(name, pa.string(), metadata=NUMERIC), _plain)
        if kind is None
        else ColumnConversion(pa.field(name, kind))
    )


def _plain(value: Any) -> str:
    """Every digit, as `COPY` gives them too."""
    return f"{value:f}"


def decimal(modifier: int) -> pa.DataType | None:
    """numeric(p, s); None where no precision is declared, or one that Arrow cannot hold."""
    if modifier < 4:
        return None
    precision, scale = (modifier - 4) >> 16 & 0xFFFF, (modifier - 4) & 0x7FF
    return (
        pa.decimal128(precision, scale) if precision <= MOST_DIGITS and scale <= precision else None
    )


def _array(name: str, kind: str, first: Sequence[Any]) -> ColumnConversion:
    nested = any(isinstance(part, list) for value in first for part in value or ())
    if kind in LISTED and not nested:
        return ColumnConversion(
            pa.field(name, pa.list_(SIMPLE[kind])),
            partial(_counted, name) if kind in COUNTED else None,
        )
    return ColumnConversion(pa.field(name, pa.json_()), _joined if kind in JSON else _as_json)


def _joined(value: Any) -> str:
    """Texts of json in lists, as one."""
    if isinstance(value, list):
        return "[" + ",".join(map(_joined, value)) + "]"
    return "null" if value is None else str(value)


def _as_json(value: Any) -> str:
    return json.dumps(to_json(value))


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else str(to_json(value))
