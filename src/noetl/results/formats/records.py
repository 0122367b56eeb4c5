"""Stores lists of flat records as columns if that loses nothing: the same names in the same order,
and one type of plain value per column.

Readers get exactly the values that were put. Any other list stays JSON: one with a missing name,
with integers among floats or beyond 64 bits, or with lists inside.
"""

import math
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from noetl.results.formats.tables import TableOptions, ValueHead

MIN_RECORDS = 256  # records: shorter lists gain nothing from columns
SAMPLE_ROWS = 16
TABLE_BATCH_ROWS = 10_000
MAX_HEAD_BYTES = 16 * 1024  # approximate bytes of text beside the records
_ARROW_TYPES = {bool: "bool_", int: "int64", float: "float64", str: "string"}
_NONE_TYPE = type(None)


class Records:
    """The records of a value, their place in it (`head`), and the name of each column's Arrow type."""

    __slots__ = ("head", "rows", "types")

    def __init__(
        self,
        head: ValueHead,
        rows: list[dict[str, Any]],
        types: dict[str, str],
    ) -> None:
        self.head = head
        self.rows = rows
        self.types = types


def find_records(value: Any) -> Records | None:
    """Find the records: the value itself, or the only long list in it.

    This runs for every value, and most are small maps.
    """
    if type(value) is list:
        return _make_records(value, ValueHead())
    if type(value) is not dict:
        return None
    at = None
    for name, part in value.items():
        if type(part) is list and len(part) >= MIN_RECORDS:
            if at is not None:
                return None
            at = name
    if type(at) is not str:
        return None
    rest = {**value, at: None}
    if not _is_small(rest):
        return None
    return _make_records(value[at], ValueHead(at, rest))


def _make_records(rows: list[Any], head: ValueHead) -> Records | None:
    if len(rows) < MIN_RECORDS or not isinstance(rows[0], dict) or not rows[0]:
        return None
    names = tuple(rows[0])
    for checked_rows in (
        islice(rows, SAMPLE_ROWS),
        rows,
    ):  # most lists that do not fit show it early
        kinds = _find_types(checked_rows, names)
        if kinds is None:
            return None
    assert kinds is not None
    return Records(head, rows, kinds)


def _find_types(rows: Iterable[Any], names: tuple[Any, ...]) -> dict[str, str] | None:
    known: list[set[type]] = [set() for _ in names]
    for row in rows:
        if type(row) is not dict or tuple(row) != names:
            return None
        for kinds, value in zip(known, row.values(), strict=True):
            kinds.add(type(value))
    types: dict[str, str] = {}
    for name, kinds in zip(names, known, strict=True):
        kinds.discard(_NONE_TYPE)
        if type(name) is not str or len(kinds) > 1:
            return None
        if not kinds:
            types[name] = "null"
            continue
        (kind,) = kinds
        if kind not in _ARROW_TYPES:
            return None
        types[name] = _ARROW_TYPES[kind]
    return types


def _is_small(value: Any, left: int = MAX_HEAD_BYTES) -> bool:
    return _estimate_size(value) <= left


def _estimate_size(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(_estimate_size(name) + _estimate_size(part) for name, part in value.items())
    if isinstance(value, list):
        return 8 + sum(map(_estimate_size, value))
    return 8


def encode_table(value: Any, records: Records, tables: TableOptions) -> Any:
    """Encode the records as a table; return the value itself if Arrow cannot hold it exactly."""
    import pyarrow as pa  # slow to load, and few values have many records

    from noetl.results.formats.rowsets import RowSetWriter

    fields = [(name, getattr(pa, kind)()) for name, kind in records.types.items()]
    schema = pa.schema(fields)
    floats = [name for name, kind in records.types.items() if kind == "float64"]

    def make_batches() -> Iterator[pa.RecordBatch]:
        for first in range(0, len(records.rows), TABLE_BATCH_ROWS):
            rows = records.rows[first : first + TABLE_BATCH_ROWS]
            if not all(_is_finite(rows, name) for name in floats):
                raise OverflowError
            columns = [[row[name] for row in rows] for name in records.types]
            arrays = [
                pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    try:
        return RowSetWriter(schema, tables, records.head).write_all(make_batches())
    except (OverflowError, UnicodeError, pa.ArrowException):
        return value


def _is_finite(rows: list[dict[str, Any]], name: str) -> bool:
    """JSON has no infinity and no NaN."""
    return all(math.isfinite(row[name]) for row in rows if row[name] is not None)
