"""Many rows at once: one query by `COPY`, which ADBC turns into Arrow without making a Python object of any value.

It has a connection of its own, so it is for a statement that is its own transaction. Columns whose types it knows no good Arrow
for are left to the cursor: then nothing was run.
"""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import adbc_driver_manager
import adbc_driver_postgresql.dbapi as adbc  # type: ignore[import-untyped]  # it has no types
import pyarrow as pa
import pyarrow.compute as pc

from noetl.results.rowsets import NUMERIC, Writer
from noetl.results.tables import EncodedTable, Tables
from noetl.tools.postgres_types import decimal, unfit
from noetl.tools.sql import column_names

FINE = frozenset(
    "bool int2 int4 int8 float4 float8 text varchar bpchar name date time timestamp timestamptz bytea uuid json jsonb".split()
)


class BulkError(Exception):
    def __init__(self, sqlstate: str | None, message: str) -> None:
        super().__init__(message)
        self.sqlstate = sqlstate


class Bulk:
    """One read, in a thread; only `interrupt` comes from elsewhere."""

    def __init__(self, conninfo: str, query: str, timeout: int | None, tables: Tables) -> None:
        self._conninfo = conninfo
        self._query = query
        self._timeout = (
            timeout  # milliseconds: should this worker vanish, the server stops by itself
        )
        self._tables = tables
        self._cursor: Any = None
        self._interrupted = False

    def interrupt(self) -> None:
        self._interrupted = True
        if self._cursor is not None:
            with suppress(adbc_driver_manager.Error):
                self._cursor.adbc_cancel()

    def run(self) -> EncodedTable | None:
        """None: not all of its columns can come this way."""
        try:
            with (
                adbc.connect(self._conninfo, autocommit=True) as connection,
                connection.cursor() as cursor,
            ):
                self._cursor = cursor
                try:
                    return self._read(cursor)
                finally:
                    self._cursor = None
        except adbc_driver_manager.Error as error:
            raise BulkError(getattr(error, "sqlstate", None), server_message(str(error))) from error
        except OSError as error:  # while rows were coming
            raise BulkError(None, server_message(str(error))) from error

    def _read(self, cursor: Any) -> EncodedTable | None:
        schema = _schema(cursor.adbc_execute_schema(self._query))
        if schema is None:
            return None
        if self._timeout is not None:
            cursor.execute(f"SET statement_timeout = {self._timeout}")
        cursor.execute(self._query)
        return Writer(schema, self._tables).all(
            self._unless_interrupted(cursor.fetch_record_batch())
        )

    def _unless_interrupted(self, reader: Any) -> Iterator[pa.RecordBatch]:
        for batch in reader:
            if self._interrupted:
                raise BulkError("57014", "interrupted")
            _check(batch)
            yield batch


def _check(batch: pa.RecordBatch) -> None:
    """Infinity overflows in ADBC, to what is long before the first day of Postgres."""
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        is_day = pa.types.is_date32(column.type)
        if is_day or pa.types.is_timestamp(column.type):
            first = pc.min(column.cast(pa.int32() if is_day else pa.int64())).as_py()
            if first is not None and first < (-(2**30) if is_day else -(2**62)):
                raise BulkError("22008", unfit(name))


def _schema(found: pa.Schema) -> pa.Schema | None:
    fields = [
        _field(name, field) for name, field in zip(column_names(found.names), found, strict=True)
    ]
    return pa.schema(fields) if fields and all(field is not None for field in fields) else None


def _field(name: str, field: pa.Field) -> pa.Field | None:
    metadata = field.metadata or {}
    kind = metadata.get(b"POSTGRESQL:type", b"").decode()
    if kind == "numeric":
        exact = decimal(int(metadata.get(b"POSTGRESQL:typmod", b"-1")))
        return (
            pa.field(name, pa.string(), metadata=NUMERIC)
            if exact is None
            else pa.field(name, exact)
        )
    return (
        pa.field(name, field.type) if kind in FINE or pa.types.is_string(field.type) else None
    )  # an enum is text


def server_message(message: str) -> str:
    """Postgres's own words."""
    _, found, rest = message.partition("ERROR:")
    first = (rest if found else message).strip().splitlines()
    return first[0] if first else message


LOST = (
    "server closed the connection",
    "terminating connection",
    "no connection to the server",
    "could not receive data",
)


def is_lost(message: str) -> bool:
    return any(words in message for words in LOST)
