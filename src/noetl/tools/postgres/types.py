"""Makes Arrow columns of the values that psycopg reads from Postgres.

A `numeric` with a declared precision is a decimal; without one it is text with the metadata
`NUMERIC_METADATA`. An array is a list if its first rows have one dimension, also of `int` and `float`.
Arrays of arrays, of `json` and of `numeric`, and records, are json, because Arrow has no type for
them. A value of any other type is its text.
Times beyond Python's calendar are numbers, as Arrow and `COPY` count them. Infinite times are
refused.
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
from psycopg.abc import Loader as AbstractLoader
from psycopg.adapt import AdaptersMap, Loader
from psycopg.pq import Format
from psycopg.types.datetime import IntervalLoader
from psycopg.types.string import TextLoader

from noetl.results.formats.moments import CYCLE_DAYS, DAY_SECONDS
from noetl.results.formats.rowsets import NUMERIC_METADATA
from noetl.results.formats.values import to_json

MAX_DECIMAL_DIGITS = 38
MICROS_PER_SECOND = 1_000_000
ValueConverter = Callable[[Any], Any]

ARROW_TYPES = {
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
# Arrow makes lists of these from lists of Python.
LIST_ELEMENT_TYPES = frozenset(ARROW_TYPES) - {"uuid"}
JSON_TYPE_NAMES = ("json", "jsonb")
TIME_TYPES = ("date", "time", "timestamp", "timestamptz", "interval")


class MonthlyIntervalLoader(IntervalLoader):
    """Counts a year as 12 months of 30 days, as Postgres does. psycopg counts 365 days."""

    def load(self, data: Buffer) -> timedelta:
        text = bytes(data)
        if text.endswith(b"infinity"):
            raise psycopg.DataError("infinite")  # psycopg would read it as zero
        interval = super().load(data)
        years = _YEARS.match(text)
        if years is None:
            return interval
        return interval - timedelta(int(years[1]) * 5)


class TextFallbackLoader(Loader):
    """Loads a value as its text if Python has no value for it. The column converts that text."""

    def __init__(self, oid: int, context: AdaptContext | None = None) -> None:
        super().__init__(oid, context)
        loader: type[AbstractLoader] | None = MonthlyIntervalLoader
        if oid != _INTERVAL:
            loader = psycopg.adapters.get_loader(oid, Format.TEXT)
        assert loader is not None
        self._known = loader(oid, context)

    def load(self, data: Buffer) -> Any:
        try:
            return self._known.load(data)
        except (psycopg.DataError, OverflowError, ValueError):
            return bytes(data).decode()


_INTERVAL = psycopg.adapters.types["interval"].oid
_YEARS = re.compile(rb"([-+]?\d+) years?")


def register_loaders(adapters: AdaptersMap) -> None:
    """Set up the loaders of a cursor. Json stays text: it is stored without being decoded."""
    for name in JSON_TYPE_NAMES:
        adapters.register_loader(name, TextLoader)
    for name in TIME_TYPES:
        adapters.register_loader(name, TextFallbackLoader)


@dataclass(frozen=True, slots=True)
class ColumnConversion:
    field: pa.Field
    convert: ValueConverter | None = None

    def make_array(self, values: Sequence[Any]) -> pa.Array:
        if self.convert is not None:
            values = [None if value is None else self.convert(value) for value in values]
        try:
            return pa.array(values, self.field.type)
        except (pa.ArrowException, OverflowError) as error:
            raise pa.ArrowInvalid(f"column {self.field.name!r}: {error}") from error


def make_conversions(
    names: Sequence[str], kinds: Sequence[tuple[int, int]], first: Sequence[Sequence[Any]]
) -> list[ColumnConversion]:
    """The conversion of each column. `kinds` has its (oid, modifier), `first` its first values."""
    return [
        _make_conversion(name, oid, modifier, values)
        for name, (oid, modifier), values in zip(names, kinds, first, strict=True)
    ]


def _make_conversion(
    name: str,
    oid: int,
    modifier: int,
    first: Sequence[Any],
) -> ColumnConversion:
    info = psycopg.adapters.types.get(oid)
    kind = "" if info is None else info.name
    if info is not None and info.array_oid == oid:
        return _make_array_conversion(name, kind, first)
    if kind in ARROW_TYPES:
        return _make_plain_conversion(name, kind, ARROW_TYPES[kind])
    if kind in JSON_TYPE_NAMES:
        return ColumnConversion(pa.field(name, pa.json_()))
    if kind == "numeric":
        return _make_number_conversion(name, modifier)
    if any(isinstance(value, list | tuple | dict) for value in first):
        return ColumnConversion(pa.field(name, pa.json_()), _to_json_text)
    return ColumnConversion(pa.field(name, pa.string()), _to_text)


def _make_plain_conversion(name: str, kind: str, arrow_type: pa.DataType) -> ColumnConversion:
    """A column of values that Arrow takes as they are, except times that Python has no value for."""
    convert = partial(_count_far_time, name) if kind in TIME_TYPES else None
    return ColumnConversion(pa.field(name, arrow_type), convert)


def _count_far_time(name: str, value: Any) -> Any:
    """The day or microsecond of a time that Python has no value for. Other values stay the same."""
    if isinstance(value, list):
        return [_count_far_time(name, part) for part in value]
    if not isinstance(value, str):
        return value
    if value == "24:00:00":
        return DAY_SECONDS * MICROS_PER_SECOND
    match = _FAR_TIME_PATTERN.fullmatch(value)
    if match is None:
        raise psycopg.errors.DatetimeFieldOverflow(describe_unfit_time(name))
    count = _count_from_epoch(match)
    if count >= 2**63:
        raise psycopg.errors.DatetimeFieldOverflow(describe_unfit_time(name))
    return count


_FAR_TIME_PATTERN = re.compile(r"(\d+)(-\d\d-\d\d)( \d\d:\d\d:[-+:.\d]+)?( BC)?")
_YEAR_0_DAY = (date(2000, 1, 1) - date(1970, 1, 1)).days - 5 * CYCLE_DAYS  # its first day


def _count_from_epoch(match: re.Match[str]) -> int:
    """The days or microseconds from 1970 to a far time.

    The calendar repeats after 400 years, so this counts from a year that Python knows.
    """
    year_text, day, time, before_christ = match.groups()
    year = int(year_text)
    if before_christ:
        year = 1 - year
    cycles, year_of_cycle = divmod(year, 400)
    near = datetime.fromisoformat(f"{2000 + year_of_cycle}{day}{time or ''}")
    near = near.replace(tzinfo=near.tzinfo or UTC)
    since_2000 = near - datetime(2000, 1, 1, tzinfo=UTC)
    days = _YEAR_0_DAY + cycles * CYCLE_DAYS
    if time is None:
        return days + since_2000.days
    return days * DAY_SECONDS * MICROS_PER_SECOND + since_2000 // timedelta(microseconds=1)


def describe_unfit_time(name: str) -> str:
    return f"column {name!r} has a moment or a span of time that is infinite, or too far: cast it to text"


def _make_number_conversion(name: str, modifier: int) -> ColumnConversion:
    kind = find_decimal_type(modifier)
    if kind is None:
        field = pa.field(name, pa.string(), metadata=NUMERIC_METADATA)
        return ColumnConversion(field, _format_number)
    return ColumnConversion(pa.field(name, kind))


def _format_number(value: Any) -> str:
    """Every digit of a number without an exponent, as `COPY` writes it."""
    return f"{value:f}"


def find_decimal_type(modifier: int) -> pa.DataType | None:
    """The Arrow type of numeric(p, s); None without a precision, or with a too large one."""
    if modifier < 4:
        return None
    precision = (modifier - 4) >> 16 & 0xFFFF
    scale = (modifier - 4) & 0x7FF
    if precision > MAX_DECIMAL_DIGITS or scale > precision:
        return None
    return pa.decimal128(precision, scale)


def _make_array_conversion(name: str, kind: str, first: Sequence[Any]) -> ColumnConversion:
    if kind in LIST_ELEMENT_TYPES and not any(map(_is_nested, first)):
        return _make_plain_conversion(name, kind, pa.list_(ARROW_TYPES[kind]))
    convert = _join_json_texts if kind in JSON_TYPE_NAMES else _to_json_text
    return ColumnConversion(pa.field(name, pa.json_()), convert)


def _is_nested(value: list[Any] | None) -> bool:
    if value is None:
        return False
    return any(isinstance(part, list) for part in value)


def _join_json_texts(value: Any) -> str:
    """Join the json texts in a list to one."""
    if isinstance(value, list):
        return "[" + ",".join(map(_join_json_texts, value)) + "]"
    return "null" if value is None else str(value)


def _to_json_text(value: Any) -> str:
    return json.dumps(to_json(value))


def _to_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return str(to_json(value))
