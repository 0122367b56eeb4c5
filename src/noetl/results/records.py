"""Lists of flat records as columns, when nothing is lost by it: same names in the same order, one type of plain value each.

Whoever reads them sees the very values that were put. Anything else (a name that is missing here and there, whole numbers among
fractions or beyond 64 bits, lists inside) stays JSON.
"""

import math
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from noetl.results.tables import Head, Tables

FEWEST = 256  # records: fewer are as well off as JSON
SAMPLE = 16
BATCH = 10_000
LARGEST_HEAD = 16 * 1024  # bytes of text beside the records, about
_TYPES = {bool: "bool_", int: "int64", float: "float64", str: "string"}
_NOTHING = type(None)


class Records:
    """Which part of a value they are, and the name of the Arrow type of each column."""

    __slots__ = ("head", "rows", "types")

    def __init__(self, head: Head, rows: list[dict[str, Any]], types: dict[str, str]) -> None:
        self.head = head
        self.rows = rows
        self.types = types


def found(value: Any) -> Records | None:
    """The value itself, or the only long list in it. Asked of every value: most are small maps."""
    if type(value) is list:
        return _records(value, Head())
    if type(value) is not dict:
        return None
    at = None
    for name, part in value.items():
        if type(part) is list and len(part) >= FEWEST:
            if at is not None:
                return None
            at = name
    if type(at) is not str:
        return None
    rest = {name: None if name == at else part for name, part in value.items()}
    return _records(value[at], Head(at, rest)) if _small(rest) else None


def _records(rows: list[Any], head: Head) -> Records | None:
    if len(rows) < FEWEST or not isinstance(rows[0], dict) or not rows[0]:
        return None
    names = tuple(rows[0])
    for some in (islice(rows, SAMPLE), rows):  # most lists that do not fit show it at once
        kinds = _kinds(some, names)
        if kinds is None:
            return None
    assert kinds is not None
    return Records(head, rows, kinds)


def _kinds(rows: Iterable[Any], names: tuple[Any, ...]) -> dict[str, str] | None:
    known: list[set[type]] = [set() for _ in names]
    for row in rows:
        if type(row) is not dict or tuple(row) != names:
            return None
        for kinds, value in zip(known, row.values(), strict=True):
            kinds.add(type(value))
    types: dict[str, str] = {}
    for name, kinds in zip(names, known, strict=True):
        kinds.discard(_NOTHING)
        if type(name) is not str or len(kinds) > 1 or (kinds and not kinds <= _TYPES.keys()):
            return None
        types[name] = _TYPES[kinds.pop()] if kinds else "null"
    return types


def _small(value: Any, left: int = LARGEST_HEAD) -> bool:
    return _size(value) <= left


def _size(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(_size(name) + _size(part) for name, part in value.items())
    return 8 + sum(map(_size, value)) if isinstance(value, list) else 8


def as_table(value: Any, records: Records, tables: Tables) -> Any:
    """A Table; or the value, when its numbers or texts are such that Arrow has no like."""
    import pyarrow as pa  # only who has many records pays for it

    from noetl.results.rowsets import Writer

    schema = pa.schema([(name, getattr(pa, kind)()) for name, kind in records.types.items()])
    floats = [name for name, kind in records.types.items() if kind == "float64"]

    def batches() -> Iterator[pa.RecordBatch]:
        for first in range(0, len(records.rows), BATCH):
            rows = records.rows[first : first + BATCH]
            if any(
                not math.isfinite(row[name])
                for name in floats
                for row in rows
                if row[name] is not None
            ):
                raise OverflowError
            columns = [[row[name] for row in rows] for name in records.types]
            arrays = [
                pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    try:
        return Writer(schema, tables, records.head).all(batches())
    except (OverflowError, UnicodeError, pa.ArrowException):
        return value
