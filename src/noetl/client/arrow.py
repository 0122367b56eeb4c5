"""Decodes downloaded rows to Arrow tables."""

import pyarrow
from pyarrow import ipc, parquet


def read_stream(data: bytes) -> pyarrow.Table:
    """Rows in the stream format of Arrow."""
    with ipc.open_stream(data) as reader:
        return reader.read_all()


def read_parquet(data: bytes) -> pyarrow.Table:
    return parquet.read_table(pyarrow.BufferReader(data))
