"""Stores lists of flat records as columns if that loses nothing: the same names in the same order,
and one type of plain value per column.

Readers get exactly the values that were put. Any other list stays JSON: one with a missing name,
with integers among floats or beyond 64 bits, or with lists inside.
"""

import sys
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any

from noetl.results.formats.column_buffers import (
    KINDS_BY_TYPE,
    SAMPLE_ROWS,
    BufferWriter,
    InexactColumn,
    fits_columns,
    split_columns,
    write_column,
)
from noetl.results.formats.shared_records import (
    BatchLayout,
    ColumnLayout,
    RecordsLayout,
    SharedRecords,
    open_shared_records,
)
from noetl.results.formats.tables import ArrowRecords, TableOptions, ValueHead

MIN_RECORDS = 256  # records: shorter lists gain nothing from columns
MAX_HEAD_BYTES = 16 * 1024  # approximate bytes of text beside the records


class Records:
    """The records of a value as columns, and their place in it (`head`)."""

    __slots__ = ("columns", "head")

    def __init__(self, head: ValueHead, columns: dict[str, list[Any]]) -> None:
        self.head = head
        self.columns = columns


def find_encoding(value: Any, tables: TableOptions) -> Callable[[], Any] | None:
    """The function that encodes the value as a table, to be called in a thread; None if it has no records.

    The function returns the value itself, as Python objects, if it cannot be a table. This runs for every
    value, and most are small maps.
    """
    if isinstance(value, ArrowRecords):
        return partial(encode_arrow_records, value, tables)
    found = _find_long_list(value)
    if found is None or not isinstance(found[0][0], dict):
        return None
    return partial(_encode_value, value, tables)


def _encode_value(value: Any, tables: TableOptions) -> Any:
    records = find_records(value)
    if records is None:
        return value
    return encode_table(value, records, tables)


def find_records(value: Any) -> Records | None:
    """Find the records: the value itself, or the only long list in it."""
    found = _find_long_list(value)
    if found is None:
        return None
    rows, at = found
    if at is None:
        return _make_records(rows, ValueHead())
    rest = {**value, at: None}
    if not _is_small(rest):
        return None
    return _make_records(rows, ValueHead(at, rest))


def _find_long_list(value: Any) -> tuple[list[Any], str | None] | None:
    """The value, or the only long list in it and its name."""
    if type(value) is list:
        return (value, None) if len(value) >= MIN_RECORDS else None
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
    return value[at], at


def _make_records(rows: list[Any], head: ValueHead) -> Records | None:
    if not isinstance(rows[0], dict) or not rows[0]:
        return None
    names = tuple(rows[0])
    sample = list(islice(rows, SAMPLE_ROWS))
    if not fits_columns(sample, names):
        return None
    columns = split_columns(rows, names)
    if columns is None or not all(map(_has_plain_type, columns)):
        return None
    return Records(head, dict(zip(names, columns, strict=True)))


def _has_plain_type(values: list[Any]) -> bool:
    """Whether all values, apart from null, have one type that a column can hold."""
    kinds = set(map(type, values)) - {type(None)}
    return len(kinds) <= 1 and kinds <= KINDS_BY_TYPE.keys()


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
    shared = _share_columns(records)
    if shared is None:
        return value
    return open_shared_records(shared, sys.maxsize).encode(tables) or value


def _share_columns(records: Records) -> SharedRecords | None:
    """The columns as Arrow buffers; None if a value does not fit."""
    layouts: list[ColumnLayout] = []
    try:
        "".join(records.columns).encode()
        with BufferWriter() as writer:
            for values in records.columns.values():
                fields, _ = write_column(writer, values)
                layouts.append(ColumnLayout(**fields))
    except (InexactColumn, OverflowError, UnicodeError, OSError):
        return None
    rows = len(next(iter(records.columns.values())))
    layout = RecordsLayout(list(records.columns), [BatchLayout(rows, layouts)])
    return SharedRecords(writer.descriptor, layout, records.head)


def encode_arrow_records(value: ArrowRecords, tables: TableOptions) -> Any:
    """Encode Arrow records as a table; return the value as Python objects if Arrow cannot store it."""
    return value.encode(tables) or value.value()


def is_fitting_head(head: ValueHead) -> bool:
    """Whether the value beside the records may be the head of a row set: it is small, and has no long list."""
    return _find_long_list(head.rest) is None and _is_small(head.rest)
