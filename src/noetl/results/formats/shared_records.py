"""Records in shared memory, on the worker's side: a Python child writes them or reads them.

`column_buffers.py` has the layouts as typed dicts, because a child loads nothing but the standard
library and orjson. Nothing here needs Arrow: `arrow_records.py` opens what a child has written, and
`shared_arrays.py` writes what a child reads.
"""

import os
import weakref

from msgspec import Struct

from noetl.results.formats.column_buffers import BufferPlace
from noetl.results.formats.tables import ArrowRecords, ValueHead


class ColumnLayout(Struct, frozen=True):
    kind: str
    mask: BufferPlace | None = None
    offsets: BufferPlace | None = None
    data: BufferPlace | None = None


class BatchLayout(Struct, frozen=True):
    rows: int
    columns: list[ColumnLayout]


class RecordsLayout(Struct, frozen=True):
    names: list[str]
    batches: list[BatchLayout]


class DamagedRecords(Exception):
    """The shared memory does not hold what its layout says."""


class SharedRecords:
    """Records in shared memory, and the value around them (`head`). Closes its descriptor."""

    def __init__(self, descriptor: int, layout: RecordsLayout, head: ValueHead) -> None:
        self.descriptor = descriptor
        self.layout = layout
        self.head = head
        self.close = weakref.finalize(self, os.close, descriptor)


def open_shared_records(shared: SharedRecords, max_bytes: int) -> ArrowRecords:
    """The records as Arrow, without a copy. Raises DamagedRecords if a child has written nonsense,
    or more than `max_bytes`."""
    # slow to load, and few values have many records
    from noetl.results.formats.arrow_records import map_shared_records

    return map_shared_records(shared, max_bytes)
