"""Reads the rows of one query in bulk by `COPY`. ADBC makes Arrow of them without Python objects.

It has its own connection, so the query must be its own transaction. If it does not support the type
of a column, it runs nothing, and the caller uses a cursor.
"""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import adbc_driver_manager
import adbc_driver_postgresql.dbapi as adbc  # type: ignore[import-untyped]  # it has no types
import pyarrow as pa
import pyarrow.compute as pc

from noetl.results.formats.rowsets import NUMERIC_METADATA, RowSetWriter
from noetl.results.formats.tables import EncodedTable, TableOptions
from noetl.tools.postgres.types import describe_unfit_time, find_decimal_type
from noetl.tools.sql.statements import make_unique_names

SUPPORTED_TYPES = frozenset(
    "bool int2 int4 int8 float4 float8 text varchar bpchar name date time timestamp timestamptz bytea uuid json jsonb".split()
)


class BulkError(Exception):
    def __init__(self, sqlstate: str | None, message: str) -> None:
        super().__init__(message)
        self.sqlstate = sqlstate


class BulkRead:
    """One read. It runs in a thread; only `interrupt` is called from another thread."""

    def __init__(
        self, conninfo: str, query: str, timeout: int | None, tables: TableOptions
    ) -> None:
        self._conninfo = conninfo
        self._query = query
        self._timeout = timeout  # in milliseconds, for the server
        self._tables = tables
        self._cursor: Any = None
        self._interrupted = False

    def interrupt(self) -> None:
        self._interrupted = True
        if self._cursor is not None:
            with suppress(adbc_driver_manager.Error):
                self._cursor.adbc_cancel()

    def run(self) -> EncodedTable | None:
        """Run the query. None if it has columns of types that are not supported."""
        try:
            with (
                adbc.connect(self._conninfo, autocommit=True) as connection,
                connection.cursor() as cursor,
            ):
                self._cursor = cursor
                try:
                    return self._read_table(cursor)
                finally:
                    self._cursor = None
        except adbc_driver_manager.Error as error:
            sqlstate = getattr(error, "sqlstate", None)
            raise BulkError(sqlstate, extract_server_message(str(error))) from error
        except OSError as error:  # the connection broke while rows were read
            raise BulkError(None, extract_server_message(str(error))) from error

    def _read_table(self, cursor: Any) -> EncodedTable | None:
        schema = _make_schema(cursor.adbc_execute_schema(self._query))
        if schema is None:
            return None
        if self._timeout is not None:
            cursor.execute(f"SET statement_timeout = {self._timeout}")
        cursor.execute(self._query)
        batches = self._yield_until_interrupted(cursor.fetch_record_batch())
        return RowSetWriter(schema, self._tables).write_all(batches)

    def _yield_until_interrupted(self, reader: Any) -> Iterator[pa.RecordBatch]:
        for batch in reader:
            if self._interrupted:
                raise BulkError("57014", "interrupted")
            _refuse_infinite_times(batch)
            yield batch


def _refuse_infinite_times(batch: pa.RecordBatch) -> None:
    """Refuse an infinite time.

    ADBC overflows it to a time long before the first day of Postgres.
    """
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if pa.types.is_date32(column.type):
            number_type, lowest = pa.int32(), -(2**30)
        elif pa.types.is_timestamp(column.type):
            number_type, lowest = pa.int64(), -(2**62)
        else:
            continue
        first = pc.min(column.cast(number_type)).as_py()
        if first is not None and first < lowest:
            raise BulkError("22008", describe_unfit_time(name))


def _make_schema(source_schema: pa.Schema) -> pa.Schema | None:
    """The schema to store; None if a type is not supported, or if there are no columns."""
    fields: list[pa.Field] = []
    for name, source_field in zip(
        make_unique_names(source_schema.names), source_schema, strict=True
    ):
        field = _make_field(name, source_field)
        if field is None:
            return None
        fields.append(field)
    if not fields:
        return None
    return pa.schema(fields)


def _make_field(name: str, field: pa.Field) -> pa.Field | None:
    metadata = field.metadata or {}
    kind = metadata.get(b"POSTGRESQL:type", b"").decode()
    if kind == "numeric":
        exact = find_decimal_type(int(metadata.get(b"POSTGRESQL:typmod", b"-1")))
        if exact is None:
            return pa.field(name, pa.string(), metadata=NUMERIC_METADATA)
        return pa.field(name, exact)
    if kind in SUPPORTED_TYPES or pa.types.is_string(field.type):  # an enum is text
        return pa.field(name, field.type)
    return None


def extract_server_message(message: str) -> str:
    """The message of Postgres, without the words that ADBC puts around it."""
    _, separator, server_text = message.partition("ERROR:")
    if not separator:
        server_text = message
    lines = server_text.strip().splitlines()
    return lines[0] if lines else message


LOST_CONNECTION_MESSAGES = (
    "server closed the connection",
    "terminating connection",
    "no connection to the server",
    "could not receive data",
)


def is_connection_lost(message: str) -> bool:
    return any(words in message for words in LOST_CONNECTION_MESSAGES)
