"""Records that a Python child has written into shared memory, as Arrow.

A child runs code of a playbook, so what it shares is checked before it is used.
"""

import fcntl
import mmap
import os
from collections.abc import Iterator
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from noetl.results.formats.column_buffers import SEALS, BufferPlace
from noetl.results.formats.rowsets import RowSetWriter, list_rows
from noetl.results.formats.shared_records import ColumnLayout, DamagedRecords, SharedRecords
from noetl.results.formats.tables import ArrowRecords, EncodedTable, TableOptions, ValueHead

TABLE_BATCH_ROWS = 10_000


def map_shared_records(shared: SharedRecords, max_bytes: int) -> ArrowRecords:
    """The records as Arrow, without a copy. Raises DamagedRecords if they are not what was agreed."""
    _check_memory(shared.descriptor, max_bytes)
    layout = shared.layout
    if sum(batch.rows for batch in layout.batches) > max_bytes:  # columns of nulls take no memory
        raise DamagedRecords("it has more rows than a result has bytes")
    memory = _SharedBuffers(shared.descriptor)
    batches: list[pa.RecordBatch] = []
    try:
        for batch in layout.batches:
            arrays = [memory.make_array(column, batch.rows) for column in batch.columns]
            batches.append(pa.RecordBatch.from_arrays(arrays, names=layout.names))
            batches[-1].validate(full=True)
    except (pa.ArrowException, ValueError, OverflowError) as error:
        raise DamagedRecords(str(error)) from error
    if not batches:
        raise DamagedRecords("it has no batch")
    return ArrowRecords(
        shared.head,
        batches,
        value=partial(_make_value, shared.head, batches),
        encode=partial(_encode_batches, shared.head, batches),
    )


def _check_memory(descriptor: int, max_bytes: int) -> None:
    """Raise DamagedRecords unless this is sealed shared memory of at most so many bytes."""
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    except OSError as error:
        raise DamagedRecords("it is no shared memory") from error
    if seals & SEALS != SEALS:
        raise DamagedRecords("its writer can still change it")
    if os.fstat(descriptor).st_size > max_bytes:
        raise DamagedRecords("it is larger than a result may be")


def _make_value(head: ValueHead, batches: list[pa.RecordBatch]) -> Any:
    return head.wrap_rows([row for batch in batches for row in list_rows(batch)])


def _encode_batches(
    head: ValueHead, batches: list[pa.RecordBatch], tables: TableOptions
) -> EncodedTable | None:
    try:
        writer = RowSetWriter(batches[0].schema, tables, head)
        return writer.write_all(_split_batches(batches))
    except (OverflowError, UnicodeError, pa.ArrowException):
        return None
    finally:
        pa.default_memory_pool().release_unused()


def _split_batches(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for first in range(0, batch.num_rows, TABLE_BATCH_ROWS):
            yield batch.slice(first, TABLE_BATCH_ROWS)


class _SharedBuffers:
    """The buffers of shared memory, as Arrow arrays that keep it mapped."""

    def __init__(self, descriptor: int) -> None:
        self._size = os.fstat(descriptor).st_size
        self._memory = pa.py_buffer(b"")
        if self._size:
            self._memory = pa.py_buffer(mmap.mmap(descriptor, 0, prot=mmap.PROT_READ))

    def make_array(self, column: ColumnLayout, rows: int) -> pa.Array:
        if rows < 0:
            raise ValueError("a negative number of rows")
        if column.kind == "null":
            return pa.nulls(rows)
        validity = self._make_validity(column.mask, rows)
        match column.kind:
            case "int64" | "float64":
                kind = pa.int64() if column.kind == "int64" else pa.float64()
                buffers = [validity, self._find_buffer(column.data, 8 * rows)]
            case "bool":
                kind = pa.bool_()
                bits = self._make_bits(column.data, rows)
                buffers = [validity, bits.buffers()[1]]
            case "string":
                kind = pa.string()
                offsets = self._find_buffer(column.offsets, 4 * (rows + 1))
                buffers = [validity, offsets, self._find_buffer(column.data)]
            case _:
                raise ValueError(f"no kind of column is called {column.kind!r}")
        return pa.Array.from_buffers(kind, rows, buffers)

    def _make_validity(self, mask: BufferPlace | None, rows: int) -> pa.Buffer | None:
        if mask is None:
            return None
        return pc.invert(self._make_bits(mask, rows)).buffers()[1]

    def _make_bits(self, place: BufferPlace | None, rows: int) -> pa.Array:
        """Bytes that are 0 or 1 as an array of bools."""
        buffers = [None, self._find_buffer(place, rows)]
        return pa.Array.from_buffers(pa.uint8(), rows, buffers).cast(pa.bool_())

    def _find_buffer(self, place: BufferPlace | None, expected: int | None = None) -> pa.Buffer:
        if place is None:
            raise ValueError("a column without its buffers")
        offset, size = place
        if offset < 0 or size < 0 or offset + size > self._size:
            raise ValueError("a buffer outside of the shared memory")
        if expected is not None and size != expected:
            raise ValueError(f"a buffer of {size} bytes instead of {expected}")
        return self._memory.slice(offset, size)
