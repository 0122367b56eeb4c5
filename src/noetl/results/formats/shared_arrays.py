"""Writes Arrow batches into shared memory, for Python children that have no Arrow."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec
import pyarrow as pa

from noetl.results.formats.column_buffers import BufferPlace, BufferWriter
from noetl.results.formats.shared_records import (
    BatchLayout,
    ColumnLayout,
    RecordsLayout,
    SharedRecords,
)
from noetl.results.formats.tables import ValueHead

# The values of a column as JSON, or None if Arrow's values are JSON already.
ListValues = Callable[[pa.Array, pa.Field], list[Any] | None]


def share_batches(
    batches: Iterable[pa.RecordBatch], names: list[str], head: ValueHead, list_values: ListValues
) -> SharedRecords:
    """Copy batches into shared memory, with the values that `list_values` gives."""
    with BufferWriter() as writer:
        layouts = [
            BatchLayout(batch.num_rows, list(_write_columns(writer, batch, list_values)))
            for batch in batches
            if batch.num_rows
        ]
    pa.default_memory_pool().release_unused()
    return SharedRecords(writer.descriptor, RecordsLayout(names, layouts), head)


def _write_columns(
    writer: BufferWriter, batch: pa.RecordBatch, list_values: ListValues
) -> Iterator[ColumnLayout]:
    for column, field in zip(batch.columns, batch.schema, strict=True):
        if column.offset:
            column = pa.concat_arrays([column])
        values = list_values(column, field)
        if values is None:
            yield _write_array(writer, column)
        else:
            yield ColumnLayout("json", data=writer.add(msgspec.json.encode(values)))


def _write_array(writer: BufferWriter, column: pa.Array) -> ColumnLayout:
    kind = column.type
    if pa.types.is_null(kind):
        return ColumnLayout("null")
    rows = len(column)
    mask = None
    if column.null_count:
        mask = writer.add(_bytes_of_bits(column.is_null()))
    if pa.types.is_boolean(kind):
        return ColumnLayout("bool", mask, data=writer.add(_bytes_of_bits(column)))
    if pa.types.is_string(kind):
        return _write_text_array(writer, column, mask)
    name = "int64" if pa.types.is_integer(kind) else "float64"
    if name == "int64":
        column = column.cast(pa.int64())
    data = column.buffers()[1]
    return ColumnLayout(name, mask, data=writer.add(data.slice(8 * column.offset, 8 * rows)))


def _write_text_array(
    writer: BufferWriter, column: pa.Array, mask: BufferPlace | None
) -> ColumnLayout:
    _, offsets, data = column.buffers()
    places = writer.add(offsets.slice(0, 4 * (len(column) + 1)))
    end = int.from_bytes(offsets.slice(4 * len(column), 4).to_pybytes(), "little")
    if data is None:
        return ColumnLayout("string", mask, places, writer.add(b""))
    return ColumnLayout("string", mask, places, writer.add(data.slice(0, end)))


def _bytes_of_bits(bits: pa.Array) -> pa.Buffer:
    """Bools as bytes that are 0 or 1. The byte of a null has no meaning."""
    return bits.cast(pa.uint8()).buffers()[1]
