"""Writes rows into a target, so that a repeated call changes nothing.

upsert            replaces the rows with the same `key`; of two rows with the same key the later one wins
insert, append    stores the call's key in the table `noetl_sink` of the target database, in the same
                  transaction. A call that finds its key there writes nothing. `at_least_once: true`
                  does without
replace           deletes the old rows in the same transaction
a file            appears under its name at once. Appended files are in the folder `path`, and their names
                  are the keys of the calls
"""

import asyncio
import io
import json
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pyarrow as pa
import pyarrow.csv as csv
from psycopg import AsyncConnection

from noetl.results.formats import moments
from noetl.results.formats.rowsets import RowSetReader
from noetl.results.formats.values import to_json
from noetl.results.staging import Staging
from noetl.tools.duckdb.casts import find_misfit
from noetl.tools.duckdb.tool import CONNECTION_SETTINGS, register_input
from noetl.tools.port import Call
from noetl.tools.sink import files, keys
from noetl.tools.sink.postgres import SHAPES_BY_TYPE
from noetl.tools.sink.records import SinkColumn
from noetl.tools.sql.statements import SqlError, quote_sql_name, quote_sql_text
from noetl.tools.sql.threads import run_in_thread

TRANSFER_MODES = ("insert", "append", "upsert", "replace")
NEW_ROWS_NAME = "noetl_rows"  # the table or view with the new rows
# Null is empty, and an empty text is quoted.
_CSV_WRITE_OPTIONS = csv.WriteOptions(include_header=False, quoting_style="all_valid")


@dataclass(frozen=True, slots=True)
class TransferTarget:
    """The target as the playbook describes it, and the call that writes to it."""

    kind: str
    table: str
    path: str
    database: str | None
    format: str | None
    mode: str
    key: list[str]
    call_key_fields: list[str]  # the call's key, its execution and its step
    stores_key: bool  # the key of the call is stored in the target's database

    @classmethod
    def from_call(cls, call: Call) -> "TransferTarget":
        config = call.config["target"]
        identity = call.identity
        mode = config.get("mode") or "insert"
        if mode not in TRANSFER_MODES:
            raise SqlError(
                "SINK_MODE", f"mode {mode!r} is not one of {', '.join(TRANSFER_MODES)}", "config"
            )
        return cls(
            kind=config["kind"],
            table=str(config.get("table") or ""),
            path=str(config.get("path") or ""),
            database=config.get("database"),
            format=config.get("format"),
            mode=mode,
            key=config.get("key") or [],
            call_key_fields=[call.key, str(identity.execution_id), identity.step],
            stores_key=mode in ("insert", "append") and not config.get("at_least_once"),
        )

    @property
    def name(self) -> str:
        return quote_sql_name(self.table.split("."))

    def make_missing_key_queries(self, columns: Collection[str]) -> Iterator[str]:
        """Queries that return the name of a key column if a row has no value in it.

        Every repetition of an upsert would add such a row again.
        """
        if self.mode != "upsert":
            return
        for name in self.key:
            if name not in columns:
                raise self.missing_key_error(name)
            yield f"SELECT {quote_sql_text(name)} FROM {NEW_ROWS_NAME} WHERE {quote_sql_name(name)} IS NULL LIMIT 1"

    def missing_key_error(self, column: str) -> SqlError:
        message = f"{self.table}: a row has no value for {column!r}, which is part of the key"
        return SqlError("SINK_KEY_MISSING", message, "data")


# ---- Postgres ------------------------------------------------------------------------------------


async def write_to_postgres(
    connection: AsyncConnection[Any], target: TransferTarget, reader: RowSetReader, of_json: bool
) -> int | None:
    """Write the rows in one transaction. Returns their number; None if an earlier call wrote them.

    `of_json` says that each value is the JSON text of a file.
    """
    if target.stores_key:
        # Another call may create the table at the same time.
        created_elsewhere = (psycopg.errors.UniqueViolation, psycopg.errors.DuplicateTable)
        with _explain_privilege_error(), suppress(*created_elsewhere):
            await connection.execute(keys.CREATE_KEY_TABLE)
    async with connection.transaction():
        if target.stores_key and not await _store_call_key(connection, target):
            return None
        columns = ", ".join(quote_sql_name(name) for name in reader.schema.names)
        stage = f"CREATE TEMP TABLE {NEW_ROWS_NAME} ON COMMIT DROP AS SELECT {columns} FROM {target.name} WITH NO DATA"
        await connection.execute(stage.encode())
        await _copy_rows(connection, columns, reader, of_json)
        for query in target.make_missing_key_queries(reader.schema.names):
            cursor = await connection.execute(query.encode())
            column = await cursor.fetchone()
            if column is not None:
                raise target.missing_key_error(column[0])
        if target.mode == "replace":
            await connection.execute(f"TRUNCATE {target.name}".encode())
        statement = _make_merge_statement(target, columns, reader.schema.names)
        return await _run_merge(connection, target, statement)


async def _run_merge(
    connection: AsyncConnection[Any], target: TransferTarget, statement: str
) -> int:
    try:
        cursor = await connection.execute(statement.encode())
        return cursor.rowcount
    except psycopg.errors.InvalidColumnReference:
        if target.mode != "upsert":
            raise
        key = ", ".join(map(quote_sql_name, target.key))
        index = f"CREATE UNIQUE INDEX ON {target.name} ({key})"
        message = (
            f"{target.table} has no unique index on its key ({', '.join(target.key)}): {index}"
        )
        raise SqlError("SINK_KEY_NOT_UNIQUE", message, "config") from None


async def _store_call_key(connection: AsyncConnection[Any], target: TransferTarget) -> bool:
    """Store the key of the call. False if it is stored already."""
    statement = keys.make_key_insert("%s", "%s", "%s")
    with _explain_privilege_error():
        cursor = await connection.execute(statement.encode(), target.call_key_fields)
        return cursor.rowcount == 1


@contextmanager
def _explain_privilege_error() -> Iterator[None]:
    """Explain a missing privilege on the table of keys."""
    try:
        yield
    except psycopg.errors.InsufficientPrivilege as error:
        raise SqlError("SINK_FORBIDDEN", keys.KEY_TABLE_FORBIDDEN, "auth") from error


async def _copy_rows(
    connection: AsyncConnection[Any], columns: str, reader: RowSetReader, of_json: bool
) -> None:
    cursor = connection.cursor()
    await cursor.execute(f"SELECT {columns} FROM {NEW_ROWS_NAME}".encode())
    sink_columns = [
        _make_sink_column(column.name, column.type_code) for column in cursor.description or ()
    ]
    async with cursor.copy(
        f"COPY {NEW_ROWS_NAME} ({columns}) FROM STDIN (FORMAT csv)".encode()
    ) as copy:
        batches = reader.batches()
        while True:
            data = await asyncio.to_thread(_encode_batch, batches, sink_columns, of_json)
            if data is None:
                break
            await copy.write(data)


def _make_sink_column(name: str, oid: int) -> SinkColumn:
    info = psycopg.adapters.types.get(oid)
    if info is None:
        return SinkColumn(name, "")
    shape = SHAPES_BY_TYPE.get(info.name, "plain")
    return SinkColumn(name, info.name, shape, array=info.array_oid == oid)


def _encode_batch(
    batches: Iterator[pa.RecordBatch], columns: list[SinkColumn], of_json: bool
) -> bytes | None:
    """The next batch of rows as CSV; None at the end."""
    batch = next(batches, None)
    if batch is None:
        return None
    convert = _json_to_postgres_texts if of_json else _to_postgres_texts
    texts = [convert(values, column) for values, column in zip(batch.columns, columns, strict=True)]
    out = io.BytesIO()
    text_batch = pa.RecordBatch.from_arrays(texts, names=batch.schema.names)
    csv.write_csv(text_batch, out, _CSV_WRITE_OPTIONS)
    return out.getvalue()


def _to_postgres_texts(values: pa.Array, column: SinkColumn) -> pa.Array:
    """Convert values to texts that Postgres reads as the type of the column.

    A text of a file may be an array in JSON, or bytes in base64.
    """
    kind = values.type
    if isinstance(kind, pa.JsonType):
        if not column.array:
            return values.storage
        return _convert_values(values.storage, column, _json_array_to_text)
    if isinstance(kind, pa.UuidType):
        texts = [None if value is None else str(value) for value in values.to_pylist()]
        return pa.array(texts, pa.string())
    if pa.types.is_duration(kind):
        durations = values.cast(pa.duration("us"), safe=False)
        micros = durations.cast(pa.int64()).to_pylist()
        texts = [None if value is None else f"{value} microseconds" for value in micros]
        return pa.array(texts, pa.string())
    if pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind):
        texts = [None if value is None else "\\x" + value.hex() for value in values.to_pylist()]
        return pa.array(texts, pa.string())
    if pa.types.is_nested(kind):
        return _convert_values(
            values, column, lambda column, value: column.format_value(to_json(value))
        )
    if pa.types.is_string(kind):
        if column.array:
            return _convert_values(values, column, _json_array_to_text)
        if column.shape == "bytes":
            return _convert_values(values, column, SinkColumn.format_value)
    return moments.format_moments(values)


def _json_to_postgres_texts(values: pa.Array, column: SinkColumn) -> pa.Array:
    """Convert the JSON texts of a file to texts that Postgres reads.

    A JSON string is used without its quotes, also in a column of numbers: it may be a NaN, or a
    number that no double can hold.
    """
    if not isinstance(values.type, pa.JsonType):
        return _to_postgres_texts(values, column)
    if column.shape == "json" and not column.array:
        return _to_postgres_texts(values, column)
    return _convert_values(values.storage, column, _json_to_text)


def _json_to_text(column: SinkColumn, text: str | None) -> str | None:
    if text is not None and text.startswith('"'):
        return column.format_value(json.loads(text))
    return _json_array_to_text(column, text)


def _convert_values(
    values: pa.Array, column: SinkColumn, text: Callable[[SinkColumn, Any], str | None]
) -> pa.Array:
    try:
        texts = [text(column, value) for value in moments.list_python_values(values)]
        return pa.array(texts, pa.string())
    except ValueError as error:
        raise SqlError("SINK_VALUE", f"column {column.name!r}: a value {error}", "data") from None


def _json_array_to_text(column: SinkColumn, text: str | None) -> str | None:
    """The text of an array in JSON. Any other text may be an array in the syntax of Postgres."""
    if text is None:
        return None
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        return text
    if isinstance(value, list):
        return column.format_value(value)
    return text


def _make_merge_statement(target: TransferTarget, columns: str, names: list[str]) -> str:
    """The statement that moves the new rows into the target."""
    if target.mode != "upsert":
        return f"INSERT INTO {target.name} ({columns}) SELECT {columns} FROM {NEW_ROWS_NAME}"
    key = ", ".join(map(quote_sql_name, target.key))
    others = [quote_sql_name(name) for name in names if name not in target.key]
    action = "NOTHING"
    if others:
        action = "UPDATE SET " + ", ".join(f"{name} = excluded.{name}" for name in others)
    last = f"SELECT DISTINCT ON ({key}) {columns} FROM {NEW_ROWS_NAME} ORDER BY {key}, ctid DESC"
    return f"INSERT INTO {target.name} ({columns}) {last} ON CONFLICT ({key}) DO {action}"


# ---- DuckDB --------------------------------------------------------------------------------------


class _DuckdbWrite:
    """A connection with the rows as a view. Another thread may call `interrupt` only."""

    def __init__(self, target: TransferTarget, reader: RowSetReader, staging: Staging) -> None:
        self._target = target
        self._reader = reader
        self._staging = staging
        self._connection: duckdb.DuckDBPyConnection | None = None

    def interrupt(self) -> None:
        if self._connection is not None:
            self._connection.interrupt()

    def write_table(self) -> int | None:
        """Write the rows. Returns their number; None if an earlier call wrote them."""
        with ExitStack() as stack:
            connection = self._open_connection(stack, self._target.database or ":memory:")
            connection.begin()
            written = self._insert_rows(connection)
            connection.commit()
            return written

    def _open_connection(self, stack: ExitStack, database: str) -> duckdb.DuckDBPyConnection:
        connection = stack.enter_context(duckdb.connect(database, config=CONNECTION_SETTINGS))
        self._connection = connection
        scans_files = database == ":memory:"  # the settings of an open file may be locked
        rows = register_input(
            connection, NEW_ROWS_NAME, self._reader, self._staging, scans_files=scans_files
        )
        stack.enter_context(rows)
        return connection

    def _insert_rows(self, connection: duckdb.DuckDBPyConnection) -> int | None:
        target = self._target
        if target.stores_key:
            connection.execute(keys.CREATE_KEY_TABLE)
            statement = keys.make_key_insert("?", "?", "?")
            inserted = connection.execute(statement, target.call_key_fields).fetchone()
            if inserted == (0,):
                return None
        connection.execute(
            f"CREATE TABLE IF NOT EXISTS {target.name} AS FROM {NEW_ROWS_NAME} LIMIT 0"
        )
        self._check_new_rows(connection)
        if target.mode == "replace":
            connection.execute(f"DELETE FROM {target.name}")
        rows = f"FROM {NEW_ROWS_NAME}"
        if target.mode == "upsert":
            key = ", ".join(map(quote_sql_name, target.key))
            connection.execute(
                f"DELETE FROM {target.name} WHERE ({key}) IN (FROM {NEW_ROWS_NAME} SELECT ({key}))"
            )
            rows = f"FROM (SELECT *, row_number() OVER () AS noetl_row FROM {NEW_ROWS_NAME}) SELECT * EXCLUDE (noetl_row)"
            rows += f" QUALIFY row_number() OVER (PARTITION BY {key} ORDER BY noetl_row DESC) = 1"
        result = connection.execute(f"INSERT INTO {target.name} BY NAME ({rows})")
        [count] = result.fetchone() or (0,)
        return int(count)

    def _check_new_rows(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Refuse rows without a key, and values that DuckDB would change."""
        target = self._target
        known = {name.lower() for name in self._reader.schema.names}  # DuckDB ignores the case
        key_columns = [name for name in target.key if name.lower() in known]
        for query in target.make_missing_key_queries(key_columns):
            key_column = connection.execute(query).fetchone()
            if key_column is not None:
                raise target.missing_key_error(key_column[0])
        misfit = find_misfit(connection, NEW_ROWS_NAME, target.name)
        if misfit is not None:
            column, reason = misfit
            message = f"column {column!r}: a value {reason}; cast or round it in the source"
            raise SqlError("SINK_VALUE", message, "data")


async def write_to_duckdb(
    target: TransferTarget, reader: RowSetReader, staging: Staging
) -> int | None:
    writing = _DuckdbWrite(target, reader, staging)
    count: int | None = await run_in_thread(writing.write_table, writing.interrupt, "duckdb")
    return count


# ---- files ---------------------------------------------------------------------------------------


async def write_to_file(target: TransferTarget, reader: RowSetReader) -> int | None:
    path, format = find_file_path(target)
    if target.mode != "replace" and await asyncio.to_thread(path.exists):
        return None
    return await files.copy_rows(path, format, reader)


def find_file_path(target: TransferTarget) -> tuple[Path, str]:
    """The path and the format of the file to write."""
    if not target.path:
        raise SqlError("SINK_PATH", "a file target needs `path`", "config")
    path = Path(target.path)
    format = (target.format or path.suffix.removeprefix(".") or "parquet").lower()
    if format not in files.SUFFIXES_BY_FORMAT:
        message = f"a file is parquet, csv, json or jsonl, not {format!r}: say `format`"
        raise SqlError("SINK_FORMAT", message, "config")
    if target.mode == "upsert":
        message = "a file has no rows to write over: use insert, append or replace"
        raise SqlError("SINK_MODE", message, "config")
    if target.mode == "replace":
        return path, format
    key = target.call_key_fields[0]
    if path.suffix:
        return path.with_stem(f"{path.stem}-{key}"), format
    return path / f"{key}{files.SUFFIXES_BY_FORMAT[format]}", format
