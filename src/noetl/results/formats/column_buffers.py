"""Writes records as Arrow buffers into shared memory, and reads them back, without Arrow.

A Python child hands long lists of flat records to its worker in this form, and gets them from it. Only
the standard library is used, because loading Arrow would make every child slower and larger. The worker
wraps the same buffers as Arrow arrays without a copy (`shared_records.py`, which has the layouts as
structs).

A column is shared only if that is exact: one type of bool, int (64 bits), float (finite) or text, and
null. A list that has another column goes as JSON.
"""

import fcntl
import json
import os
from array import array
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import accumulate, chain, islice, pairwise
from math import isfinite
from typing import Any, Self, TypedDict

MIN_SHARED_RECORDS = 1_000  # records: for shorter lists JSON is as fast
MAX_DISPLAYED_COLUMNS = 64  # columns up to which the dicts of a row are made by compiled code
SAMPLE_ROWS = 16
SPLIT_ROWS = 4_096  # rows that are split into columns at once
ALIGNMENT_BYTES = 64  # of every buffer, as Arrow recommends
KINDS_BY_TYPE = {bool: "bool", int: "int64", float: "float64", str: "string"}
FILLERS: dict[str, Any] = {"bool": False, "int64": 0, "float64": 0.0, "string": ""}
MAX_FLOAT_CHARS, MAX_BOOL_CHARS = 24, 5  # characters in JSON
MAX_ESCAPE_BYTES = 5  # bytes that escaping adds to a character in JSON, at most
PLAIN_BYTES = bytes(code for code in range(32, 256) if code not in b'"\\')  # JSON escapes the rest
SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE

BufferPlace = tuple[int, int]  # offset and size in bytes


class ColumnFields(TypedDict):
    """`mask` has a byte per row, which is 1 for null. The value beside it has no meaning."""

    kind: str
    mask: BufferPlace | None
    offsets: BufferPlace | None
    data: BufferPlace | None


class BatchFields(TypedDict):
    rows: int
    columns: list[ColumnFields]


class RecordsFields(TypedDict):
    names: list[str]
    batches: list[BatchFields]


class InexactColumn(Exception):
    """The values of a column cannot be shared exactly."""


class BufferWriter:
    """Writes buffers to new shared memory, which nobody can change after the block.

    The caller closes the descriptor, unless the block raises.
    """

    def __init__(self) -> None:
        self.descriptor = os.memfd_create("noetl-rows", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self._end = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._seal()
        except OSError:
            os.close(self.descriptor)
            raise
        if kind is not None:
            os.close(self.descriptor)

    def add(self, data: Any) -> BufferPlace:
        """Write a buffer at the next aligned offset."""
        view = memoryview(data).cast("B")
        offset = -(-self._end // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        at = 0
        while at < len(view):
            at += os.pwrite(self.descriptor, view[at:], offset + at)
        self._end = offset + at
        return offset, at

    def _seal(self) -> None:
        os.ftruncate(self.descriptor, self._end)  # an empty buffer may be the last one
        fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, SEALS)


# ---- writing -------------------------------------------------------------------------------------


def find_long_list(value: Any) -> tuple[list[Any], str | None] | None:
    """The list to share, and the member of the map that it is: the value, or the only long list in it."""
    if type(value) is list:
        return (value, None) if len(value) >= MIN_SHARED_RECORDS else None
    if type(value) is not dict:
        return None
    found: tuple[list[Any], str | None] | None = None
    for name, part in value.items():
        if type(part) is list and len(part) >= MIN_SHARED_RECORDS:
            if found is not None or type(name) is not str:
                return None
            found = part, name
    return found


def share_records(rows: list[Any], limit: int) -> tuple[int, RecordsFields] | None:
    """Write records into shared memory. None if that is not exact, or if their JSON may exceed `limit`.

    Returns the descriptor, which the caller closes, and the layout.
    """
    first = rows[0]
    if type(first) is not dict or not first:
        return None
    names = tuple(first)
    if not fits_columns(list(islice(rows, SAMPLE_ROWS)), names):
        return None
    columns = split_columns(rows, names)
    if columns is None:
        return None
    try:
        with BufferWriter() as writer:
            layout = _write_batch(writer, columns, names, limit)
    except (InexactColumn, OverflowError, UnicodeError, OSError):
        return None
    return writer.descriptor, layout


def fits_columns(rows: list[Any], names: tuple[Any, ...]) -> bool:
    """Whether these rows fit columns. Most lists that do not fit show it early."""
    if any(type(name) is not str for name in names):
        return False
    if any(type(row) is not dict or tuple(row) != names for row in rows):
        return False
    for name in names:
        kinds = {type(row[name]) for row in rows} - {type(None)}
        if len(kinds) > 1 or not kinds <= KINDS_BY_TYPE.keys():
            return False
    return True


def split_columns(rows: list[Any], names: tuple[str, ...]) -> list[list[Any]] | None:
    """The values of each column. None unless all rows are dicts with these keys, in this order."""
    if set(map(type, rows)) != {dict} or set(map(len, rows)) != {len(names)}:
        return None
    columns: list[list[Any]] = [[] for _ in names]
    expected = list(names) * SPLIT_ROWS
    for first in range(0, len(rows), SPLIT_ROWS):
        part = rows[first : first + SPLIT_ROWS]
        keys = list(chain.from_iterable(part))
        if keys != expected[: len(keys)]:
            return None
        values = list(chain.from_iterable(map(dict.values, part)))
        for number, column in enumerate(columns):
            column += values[number :: len(names)]
    return columns


def _write_batch(
    writer: BufferWriter, columns: list[list[Any]], names: tuple[str, ...], limit: int
) -> RecordsFields:
    "".join(names).encode()  # a lone surrogate raises UnicodeError
    rows = len(columns[0])
    layouts: list[ColumnFields] = []
    json_bytes = len(json.dumps(names)) + 8  # of the names in one row, and the braces
    json_bytes *= rows
    for values in columns:
        layout, column_bytes = write_column(writer, values)
        layouts.append(layout)
        json_bytes += column_bytes
        if json_bytes > limit:
            raise InexactColumn("the JSON encoder decides whether the value is too large")
    return {"names": list(names), "batches": [{"rows": rows, "columns": layouts}]}


def write_column(writer: BufferWriter, values: list[Any]) -> tuple[ColumnFields, int]:
    """Write a column. Returns its layout, and a bound for the bytes of its values in JSON."""
    kinds = set(map(type, values))
    has_nulls = type(None) in kinds
    kinds.discard(type(None))
    column: ColumnFields = {"kind": "null", "mask": None, "offsets": None, "data": None}
    if not kinds:
        return column, 4 * len(values)
    kind = KINDS_BY_TYPE.get(kinds.pop())
    if kind is None or kinds:
        raise InexactColumn
    column["kind"] = kind
    if has_nulls:
        column["mask"] = writer.add(bytes([value is None for value in values]))
        filler = FILLERS[kind]
        values = [filler if value is None else value for value in values]
    return column, _WRITERS[kind](writer, column, values)


def _write_ints(writer: BufferWriter, column: ColumnFields, values: list[int]) -> int:
    column["data"] = writer.add(array("q", values))
    longest = max(len(str(min(values))), len(str(max(values))), 4)
    return longest * len(values)


def _write_floats(writer: BufferWriter, column: ColumnFields, values: list[float]) -> int:
    if not all(map(isfinite, values)):
        raise InexactColumn
    column["data"] = writer.add(array("d", values))
    return MAX_FLOAT_CHARS * len(values)


def _write_bools(writer: BufferWriter, column: ColumnFields, values: list[bool]) -> int:
    column["data"] = writer.add(bytes(values))
    return MAX_BOOL_CHARS * len(values)


def _write_texts(writer: BufferWriter, column: ColumnFields, values: list[str]) -> int:
    text = "".join(values)
    data = text.encode()
    lengths = map(len, values)
    if len(data) != len(text):
        lengths = map(len, map(str.encode, values))
    column["offsets"] = writer.add(array("i", accumulate(lengths, initial=0)))
    column["data"] = writer.add(data)
    escaped = len(data.translate(None, PLAIN_BYTES))
    return len(data) + MAX_ESCAPE_BYTES * escaped + 4 * len(values)


_WRITERS: dict[str, Callable[[BufferWriter, ColumnFields, Any], int]] = {
    "int64": _write_ints,
    "float64": _write_floats,
    "bool": _write_bools,
    "string": _write_texts,
}


# ---- reading -------------------------------------------------------------------------------------


def read_shared_records(descriptor: int, layout: RecordsFields) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    names = tuple(layout["names"])
    for batch in layout["batches"]:
        columns = [_read_column(descriptor, column, batch["rows"]) for column in batch["columns"]]
        rows += make_rows(names, columns)
    return rows


def _read_column(descriptor: int, column: ColumnFields, count: int) -> list[Any]:
    kind = column["kind"]
    if kind == "null":
        return [None] * count
    data = _read_buffer(descriptor, column["data"])
    values: list[Any]
    if kind == "json":
        values = json.loads(data)
    elif kind == "bool":
        values = list(map(bool, data))
    elif kind == "string":
        offsets = array("i", _read_buffer(descriptor, column["offsets"]))
        values = list(_split_text(data, offsets))
    else:
        values = array("q" if kind == "int64" else "d", data).tolist()
    if column["mask"] is None:
        return values
    mask = _read_buffer(descriptor, column["mask"])
    return [None if is_null else value for value, is_null in zip(values, mask, strict=True)]


def _split_text(data: bytes, offsets: "array[int]") -> Iterator[str]:
    if data.isascii():
        text = data.decode("ascii")
        return (text[start:stop] for start, stop in pairwise(offsets))
    return (data[start:stop].decode() for start, stop in pairwise(offsets))


def _read_buffer(descriptor: int, place: BufferPlace | None) -> bytes:
    if place is None:
        return b""
    offset, size = place
    parts: list[bytes] = []
    while size > 0:
        data = os.pread(descriptor, size, offset)
        if not data:
            raise EOFError("the shared memory is shorter than its layout")
        parts.append(data)
        offset += len(data)
        size -= len(data)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def make_rows(names: tuple[str, ...], columns: list[list[Any]]) -> list[dict[str, Any]]:
    """The rows of columns that have the same length."""
    if not names:
        return []
    if len(names) > MAX_DISPLAYED_COLUMNS:
        return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
    rows: list[dict[str, Any]] = _compile_rows(names)(columns)
    return rows


@lru_cache(maxsize=32)
def _compile_rows(names: tuple[str, ...]) -> Any:
    """A function that makes the rows. A dict display with constant keys is the fastest way."""
    variables = [f"v{number}" for number in range(len(names))]
    members = ", ".join(f"{name!r}: {v}" for name, v in zip(names, variables, strict=True))
    source = f"lambda columns: [{{{members}}} for {', '.join(variables)}, in zip(*columns)]"
    return eval(source)  # noqa: S307 - the names are quoted
