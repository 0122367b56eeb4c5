"""Writes to a table in a DuckDB file, with the modes of the Postgres sink.

All batches are one transaction, so `staged` needs no table of its own. Only one process at a time
may write to a file: if another one holds the lock, the call fails and may be retried.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import duckdb
import pyarrow as pa

from noetl.tools.duckdb.casts import explain_misfit, find_column_types, may_change
from noetl.tools.duckdb.tool import CONNECTION_SETTINGS, make_duckdb_failure
from noetl.tools.port import Call, Failed, Outcome, Success
from noetl.tools.sink import keys
from noetl.tools.sink.records import (
    Record,
    Shape,
    SinkColumn,
    SinkError,
    SinkTable,
    SinkTarget,
    make_conflict_action,
    quote_sql_names,
    read_record_batches,
    split_table_name,
)
from noetl.tools.sql.statements import quote_sql_name
from noetl.tools.sql.threads import run_in_thread

INSERT_KEY = keys.make_key_insert("?", "?", "?")
REGISTERED_ROWS_NAME = "noetl_rows"
ROW_NUMBER_COLUMN = "noetl_row"


async def write_to_duckdb(target: SinkTarget, call: Call, value: Any) -> Outcome:
    try:
        return Success(await write_duckdb_table(target, call, value))
    except duckdb.Error as error:
        return Failed(make_duckdb_failure(error))


async def write_duckdb_table(
    target: SinkTarget,
    call: Call,
    value: Any,
) -> dict[str, Any]:
    if not target.database:
        message = "a duckdb target needs `database`: the file that keeps its table"
        raise SinkError("SINK_TARGET", message, kind="config")
    writer: DuckdbSinkWriter | None = None

    def interrupt() -> None:
        if writer is not None:
            writer.connection.interrupt()

    async def run(work: Callable[[], Any]) -> Any:
        return await run_in_thread(work, interrupt, "duckdb")

    try:
        writer = await run(lambda: DuckdbSinkWriter.from_target(target, call))
        assert writer is not None
        if await run(writer.is_repeated):
            return {"row_count": 0, "repeated": True}
        async for batch in read_record_batches(value):
            await run(partial(writer.write_batch, batch))
        await run(writer.connection.commit)
        return {"row_count": writer.stored_count}
    finally:
        if writer is not None:
            with suppress(duckdb.Error):
                writer.connection.close()  # rolls back a transaction that is not committed


@dataclass(slots=True)
class DuckdbSinkWriter:
    """Writes the batches of one call in one transaction."""

    connection: duckdb.DuckDBPyConnection
    target: SinkTarget
    call: Call
    table: SinkTable
    checked_types: dict[str, Any]  # the types of columns in which DuckDB would change numbers
    seen_count: int = 0
    stored_count: int = 0

    @classmethod
    def from_target(cls, target: SinkTarget, call: Call) -> "DuckdbSinkWriter":
        assert target.database is not None
        try:
            connection = duckdb.connect(target.database, config=CONNECTION_SETTINGS)
        except duckdb.IOException as error:
            is_locked = "lock" in str(error)
            raise SinkError(
                "SINK_LOCKED", str(error), kind="conflict", retryable=is_locked
            ) from None
        try:
            connection.begin()
            table = describe_table(connection, target)
            kinds = find_column_types(connection, table.name)
            checked = {name: kind for name, kind in kinds.items() if may_change(kind)}
            return cls(connection, target, call, table, checked)
        except BaseException:
            connection.close()
            raise

    def is_repeated(self) -> bool:
        """Store the key of the call, and empty a table that is to be replaced.

        Returns True if an earlier call has stored the key, and so the rows.
        """
        if self.target.mode == "replace":
            self.connection.execute(f"DELETE FROM {self.table.name}")
        if not self.target.needs_key:
            return False
        self.connection.execute(keys.CREATE_KEY_TABLE)
        identity = self.call.identity
        key_fields = [self.call.key, str(identity.execution_id), identity.step]
        inserted = self.connection.execute(INSERT_KEY, key_fields).fetchone()
        return inserted == (0,)

    def write_batch(self, batch: list[Record]) -> None:
        """Write a batch."""
        columns = self.table.find_columns(batch, self.seen_count, self._upsert_key)
        self._refuse_changed_values(batch, columns)
        texts = self.table.format_rows(batch, columns, self.seen_count)
        columns_by_name = {f"c{number}": column for number, column in enumerate(columns)}
        arrays: dict[str, Any] = {}
        texts_by_column = zip(*texts, strict=True)
        for name, values in zip(columns_by_name, texts_by_column, strict=True):
            arrays[name] = pa.array(values, pa.string())
        arrays[ROW_NUMBER_COLUMN] = range(len(batch))
        rows = pa.table(arrays)
        self.connection.register(REGISTERED_ROWS_NAME, rows)
        try:
            expressions = {
                column.name: _make_cast(name, column) for name, column in columns_by_name.items()
            }
            self.stored_count += self._insert_rows(expressions)
        except duckdb.ConversionException as error:
            self._raise_bad_value(rows, columns_by_name, error)
            raise
        finally:
            with suppress(duckdb.Error):
                self.connection.unregister(REGISTERED_ROWS_NAME)
        self.seen_count += len(batch)

    def _refuse_changed_values(self, batch: list[Record], columns: list[SinkColumn]) -> None:
        """Refuse a number that DuckDB would round, as Postgres does."""
        for column in columns:
            kind = self.checked_types.get(column.name)
            if kind is None:
                continue
            for number, record in enumerate(batch):
                reason = explain_misfit(record.get(column.name), kind)
                if reason is not None:
                    row = self.seen_count + number
                    raise self.table.make_value_error(column.name, row, f"{reason}; round it first")

    def _insert_rows(self, expressions: dict[str, str]) -> int:
        """Insert the registered rows. `expressions` gives the value of each column."""
        names = quote_sql_names(list(expressions))
        values = ", ".join(expressions.values())
        statement = (
            f"INSERT INTO {self.table.name} ({names}) SELECT {values} FROM {REGISTERED_ROWS_NAME}"
        )
        if self.target.is_upsert:
            key = ", ".join(expressions[name] for name in self._upsert_key)
            action = make_conflict_action(list(expressions), self._upsert_key)
            statement += (
                f" QUALIFY row_number() OVER (PARTITION BY {key} ORDER BY {ROW_NUMBER_COLUMN} DESC) = 1"
                f" ON CONFLICT ({quote_sql_names(self._upsert_key)}) DO {action}"
            )
        count = self.connection.execute(statement).fetchone()
        return int(count[0]) if count is not None else 0

    def _raise_bad_value(
        self, rows: pa.Table, columns: dict[str, SinkColumn], error: duckdb.Error
    ) -> None:
        """Raise an error that names the value, if it can be found.

        The failure has ended the transaction and dropped the registered rows.
        """
        with suppress(duckdb.Error):
            self.connection.rollback()
            self.connection.register(REGISTERED_ROWS_NAME, rows)
        for name, column in columns.items():
            cast = _make_cast(name, column).replace("CAST(", "TRY_CAST(", 1)
            query = (
                f"SELECT {ROW_NUMBER_COLUMN} FROM {REGISTERED_ROWS_NAME} "
                f"WHERE {name} IS NOT NULL AND {cast} IS NULL ORDER BY {ROW_NUMBER_COLUMN} LIMIT 1"
            )
            with suppress(duckdb.Error):
                bad_row = self.connection.execute(query).fetchone()
                if bad_row is not None:
                    row = self.seen_count + bad_row[0]
                    raise self.table.make_value_error(column.name, row, f"does not fit: {error}")

    @property
    def _upsert_key(self) -> list[str]:
        return self.target.key if self.target.is_upsert else []


def describe_table(connection: duckdb.DuckDBPyConnection, target: SinkTarget) -> SinkTable:
    name = ".".join(map(quote_sql_name, split_table_name(target.table)))
    try:
        rows = connection.execute(f"DESCRIBE {name}").fetchall()
    except duckdb.CatalogException:
        message = f"there is no table {target.table} in {target.database}; create it before it is written to"
        raise SinkError("SINK_TABLE", message, kind="config", table=target.table) from None
    columns: dict[str, SinkColumn] = {}
    for column, kind, *_ in rows:
        shape: Shape = "json" if _is_nested(kind) else "plain"
        columns[column] = SinkColumn(column, kind, shape)
    table = SinkTable(name, columns)
    table.check_key(target.key)
    return table


def _is_nested(kind: str) -> bool:
    if kind == "JSON" or kind.endswith("]"):
        return True
    return kind.startswith(("STRUCT(", "MAP(", "UNION("))


def _make_cast(name: str, column: SinkColumn) -> str:
    """The expression that casts a text to the type of its column."""
    if column.type == "BLOB":
        return f"from_base64({name})"
    if column.shape == "json":
        return f"CAST(CAST({name} AS JSON) AS {column.type})"
    return f"CAST({name} AS {column.type})"
