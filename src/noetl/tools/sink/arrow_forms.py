"""Writes rows to files in the formats that Arrow encodes: CSV and Parquet."""

import asyncio
from contextlib import suppress
from typing import IO, Any

from noetl.results.formats.exported import (
    ColumnTypes,
    ParquetWriter,
    encode_csv_batch,
    encode_csv_header,
    encode_csv_records,
    make_batch,
)
from noetl.results.formats.values import list_columns
from noetl.tools.sink.files import FileForm
from noetl.tools.sink.records import Record, SinkError, find_record, read_record_batches


class CsvForm(FileForm):
    """CSV with the columns of the schema, or else of the first batch."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file)
        self._columns: list[str] = []

    def begin(self, schema: Any) -> None:
        self._write_header(schema.names)

    def _write_header(self, columns: list[str]) -> None:
        self._columns = columns
        self._file.write(encode_csv_header(columns))

    def add_records(self, batch: list[Record], first: int) -> None:
        if not first:
            self._write_header(list_columns(batch))
        _refuse_new_columns(batch, self._columns, first)
        self._file.write(encode_csv_records(batch, self._columns))

    def add_columns(self, batch: Any, first: int) -> None:
        self._file.write(encode_csv_batch(batch))


class ParquetForm(FileForm):
    typed = True

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file)
        self._parquet_writer: Any = None

    async def infer_schema(self, rows: Any) -> Any:
        """The schema of all rows. Rows that are not in memory are read twice."""
        kinds = ColumnTypes()
        async for batch in read_record_batches(rows):
            await asyncio.to_thread(kinds.observe_records, batch)
        if not kinds.schema.names:
            raise SinkError("SINK_DATA", "no rows: a Parquet file has the columns of its rows")
        return kinds.schema

    def begin(self, schema: Any) -> None:
        self._schema = schema
        self._parquet_writer = ParquetWriter(self._file, schema)

    def add_records(self, batch: list[Record], first: int) -> None:
        self._parquet_writer.add(make_batch(batch, self._schema, first))

    def add_columns(self, batch: Any, first: int) -> None:
        self._parquet_writer.add(batch)

    def end(self) -> None:
        self._parquet_writer.close()

    def close(self) -> None:
        if self._parquet_writer is not None:
            with suppress(OSError):
                self._parquet_writer.close()


def _refuse_new_columns(
    batch: list[Record],
    columns: list[str],
    first: int,
) -> None:
    """Refuse a column that the first batch does not have."""
    for name in list_columns(batch):
        if name not in columns:
            row = first + find_record(batch, name)
            message = f"rows[{row}] has a column {name!r}, which the rows before it have not ({', '.join(columns)})"
            raise SinkError("SINK_COLUMN", message, column=name, row=row)
