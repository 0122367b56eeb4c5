"""Columns of Postgres as columns of Arrow, made from what psycopg gives.

A number with a declared precision is a decimal; without one it is text that says so. Arrays are lists when their first rows have
one dimension. What Arrow has no like for (arrays of arrays, of json and of numbers, records) is json; anything else is its text.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psycopg
import pyarrow as pa  # type: ignore[import-untyped]  # it has no types
from psycopg.abc import Buffer
from psycopg.adapt import AdaptersMap
from psycopg.types.datetime import IntervalLoader
from psycopg.types.string import TextLoader

from noetl.results.rowsets import NUMERIC
from noetl.results.values import to_json

MOST_DIGITS = 38
Convert = Callable[[Any], Any]

SIMPLE = {
    "bool": pa.bool_(), "int2": pa.int16(), "int4": pa.int32(), "int8": pa.int64(), "oid": pa.int64(), "float4": pa.float32(),
    "float8": pa.float64(), "text": pa.string(), "varchar": pa.string(), "bpchar": pa.string(), "name": pa.string(),
    "date": pa.date32(), "time": pa.time64("us"), "timestamp": pa.timestamp("us"), "timestamptz": pa.timestamp("us", "UTC"),
    "bytea": pa.binary(), "uuid": pa.uuid(), "interval": pa.duration("us"),
}  # fmt: skip
LISTED = frozenset(SIMPLE) - {"uuid"}  # of which Arrow makes lists from Python's
JSON = ("json", "jsonb")


class Interval(IntervalLoader):
    """A year is twelve months of thirty days, as Postgres counts when it compares; the driver gives it 365."""

    def load(self, data: Buffer) -> timedelta:
        text = bytes(data)
        if text.endswith(b"infinity"):
            raise psycopg.DataError("an interval is infinite, which no result keeps: cast it to text")
        years = _YEARS.match(text)
        return super().load(data) - timedelta(0 if years is None else int(years[1]) * 5)


_YEARS = re.compile(rb"([-+]?\d+) years?")


def as_stored(adapters: AdaptersMap) -> None:
    """Json is kept as it came, not taken apart and put together."""
    for name in JSON:
        adapters.register_loader(name, TextLoader)
    adapters.register_loader("interval", Interval)


@dataclass(frozen=True, slots=True)
class Column:
    field: pa.Field
    convert: Convert | None = None

    def array(self, values: Sequence[Any]) -> pa.Array:
        if self.convert is not None:
            values = [None if value is None else self.convert(value) for value in values]
        return pa.array(values, self.field.type)


def columns(names: Sequence[str], kinds: Sequence[tuple[int, int]], first: Sequence[Sequence[Any]]) -> list[Column]:
    """`kinds` are (oid, modifier) of each column, `first` its first values."""
    return [_column(name, *kind, values) for name, kind, values in zip(names, kinds, first, strict=True)]


def _column(name: str, oid: int, modifier: int, first: Sequence[Any]) -> Column:
    info = psycopg.adapters.types.get(oid)
    kind = "" if info is None else info.name
    if info is not None and info.array_oid == oid:
        return _array(name, kind, first)
    if kind in SIMPLE:
        return Column(pa.field(name, SIMPLE[kind]))
    if kind in JSON:
        return Column(pa.field(name, pa.json_()))
    if kind == "numeric":
        return _number(name, modifier)
    if any(isinstance(value, list | tuple | dict) for value in first):
        return Column(pa.field(name, pa.json_()), _as_json)
    return Column(pa.field(name, pa.string()), _as_text)


def _number(name: str, modifier: int) -> Column:
    kind = decimal(modifier)
    return (
        Column(pa.field(name, pa.string(), metadata=NUMERIC), _plain) if kind is None else Column(pa.field(name, kind))
    )


def _plain(value: Any) -> str:
    """Every digit, as `COPY` gives them too."""
    return f"{value:f}"


def decimal(modifier: int) -> pa.DataType | None:
    """numeric(p, s); None where no precision is declared, or one that Arrow cannot hold."""
    if modifier < 4:
        return None
    precision, scale = (modifier - 4) >> 16 & 0xFFFF, (modifier - 4) & 0x7FF
    return pa.decimal128(precision, scale) if precision <= MOST_DIGITS and scale <= precision else None


def _array(name: str, kind: str, first: Sequence[Any]) -> Column:
    nested = any(isinstance(part, list) for value in first for part in value or ())
    if kind in LISTED and not nested:
        return Column(pa.field(name, pa.list_(SIMPLE[kind])))
    return Column(pa.field(name, pa.json_()), _joined if kind in JSON else _as_json)


def _joined(value: Any) -> str:
    """Texts of json in lists, as one."""
    if isinstance(value, list):
        return "[" + ",".join(map(_joined, value)) + "]"
    return "null" if value is None else str(value)


def _as_json(value: Any) -> str:
    return json.dumps(to_json(value))


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else str(to_json(value))
