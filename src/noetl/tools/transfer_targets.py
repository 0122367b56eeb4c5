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

from noetl.results import moments
from noetl.results.rowsets import Reader
from noetl.results.staging import Staging
from noetl.results.values import to_json
from noetl.tools.duckdb import SETTINGS, registered
from noetl.tools.duckdb_fit import first_misfit
from noetl.tools.port import Call
from noetl.tools.sinks import files, keys
from noetl.tools.sinks.postgres import SHAPES
from noetl.tools.sinks.records import SinkColumn
from noetl.tools.sql import SqlError, identifier, quoted
from noetl.tools.threads import in_thread

MODES = ("insert", "append", "upsert", "replace")
ROWS = "noetl_rows"  # the table or view with the new rows
# Null is empty, and an empty text is quoted.
_CSV = csv.WriteOptions(include_header=False, quoting_style="all_valid")


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
    once: list[str]  # the call's key, its execution and its step
    counted: bool  # the key of the call is stored in the target's database

    @classmethod
    def of(cls, call: Call) -> "TransferTarget":
        config = call.config["target"]
        identity = call.identity
        mode = config.get("mode") or "insert"
        if mode not in MODES:
            raise SqlError("SINK_MODE", f"mode {mode!r} is not one of {', '.join(MODES)}", "config")
        return cls(
            kind=config["kind"],
            table=str(config.get("table") or ""),
            path=str(config.get("path") or ""),
            database=config.get("database"),
            format=config.get("format"),
            mode=mode,
            key=config.get("key") or [],
            once=[call.key, str(identity.execution_id), identity.step],
            counted=mode in ("insert", "append") and not config.get("at_least_once"),
        )

    @property
    def name(self) -> str:
        return identifier(self.table.split("."))

    def rows_without_key(self, columns: Collection[str]) -> Iterator[str]:
        """Queries that return the name of a key column if a row has no value in it.

        Every repetition of an upsert would add such a row again.
        """
        if self.mode != "upsert":
            return
        for name in self.key:
            if name not in columns:
                raise self.key_missing(name)
            yield f"SELECT {quoted(name)} FROM {ROWS} WHERE {identifier(name)} IS NULL LIMIT 1"

    def key_missing(self, column: str) -> SqlError:
        message = f"{self.table}: a row has no value for {column!r}, which is part of the key"
        return SqlError("SINK_KEY_MISSING", message, "data")


# ---- Postgres ------------------------------------------------------------------------------------


async def into_postgres(
    connection: AsyncConnection[Any], target: TransferTarget, reader: Reader, of_json: bool
) -> int | None:
    """Write the rows in one transaction. Returns their number; None if an earlier call wrote them.

    `of_json` says that each value is the JSON text of a file.
    """
    if target.counted:
        # Another call may create the table at the same time.
        created_elsewhere = (psycopg.errors.UniqueViolation, psycopg.errors.DuplicateTable)
        with _allowed(), suppress(*created_elsewhere):
            await connection.execute(keys.MAKE)
    async with connection.transaction():
        if target.counted and not await _first(connection, target):
            return None
        columns = ", ".join(identifier(name) for name in reader.schema.names)
        stage = f"CREATE TEMP TABLE {ROWS} ON COMMIT DROP AS SELECT {columns} FROM {target.name} WITH NO DATA"
        await connection.execute(stage.encode())
        await _copy(connection, columns, reader, of_json)
        for query in target.rows_without_key(reader.schema.names):
            cursor = await connection.execute(query.encode())
            column = await cursor.fetchone()
            if column is not None:
                raise target.key_missing(column[0])
        if target.mode == "replace":
            await connection.execute(f"TRUNCATE {target.name}".encode())
        statement = _merge(target, columns, reader.schema.names)
        return await _merged(connection, target, statement)


async def _merged(connection: AsyncConnection[Any], target: TransferTarget, statement: str) -> int:
    try:
        cursor = await connection.execute(statement.encode())
        return cursor.rowcount
    except psycopg.errors.InvalidColumnReference:
        if target.mode != "upsert":
            raise
        key = ", ".join(map(identifier, target.key))
        index = f"CREATE UNIQUE INDEX ON {target.name} ({key})"
        message = (
            f"{target.table} has no unique index on its key ({', '.join(target.key)}): {index}"
        )
        raise SqlError("SINK_KEY_NOT_UNIQUE", message, "config") from None


async def _first(connection: AsyncConnection[Any], target: TransferTarget) -> bool:
    """Store the key of the call. False if it is stored already."""
    statement = keys.keep("%s", "%s", "%s")
    with _allowed():
        cursor = await connection.execute(statement.encode(), target.once)
        return cursor.rowcount == 1


@contextmanager
def _allowed() -> Iterator[None]:
    """Explain a missing privilege on the table of keys."""
    try:
        yield
    except psycopg.errors.InsufficientPrivilege as error:
        raise SqlError("SINK_FORBIDDEN", keys.FORBIDDEN, "auth") from error


async def _copy(
    connection: AsyncConnection[Any], columns: str, reader: Reader, of_json: bool
) -> None:
    cursor = connection.cursor()
    await cursor.execute(f"SELECT {columns} FROM {ROWS}".encode())
    sink_columns = [_column(column.name, column.type_code) for column in cursor.description or ()]
    async with cursor.copy(f"COPY {ROWS} ({columns}) FROM STDIN (FORMAT csv)".encode()) as copy:
        batches = reader.batches()
        while True:
            data = await asyncio.to_thread(_written, batches, sink_columns, of_json)
            if data is None:
                break
            await copy.write(data)


def _column(name: str, oid: int) -> SinkColumn:
    info = psycopg.adapters.types.get(oid)
    if info is None:
        return SinkColumn(name, "")
    shape = SHAPES.get(info.name, "plain")
    return SinkColumn(name, info.name, shape, array=info.array_oid == oid)


def _written(
    batches: Iterator[pa.RecordBatch], columns: list[SinkColumn], of_json: bool
) -> bytes | None:
    """The next batch of rows as CSV; None at the end."""
    batch = next(batches, None)
    if batch is None:
        return None
    convert = _unquoted if of_json else _text
    texts = [convert(values, column) for values, column in zip(batch.columns, columns, strict=True)]
    out = io.BytesIO()
    text_batch = pa.RecordBatch.from_arrays(texts, names=batch.schema.names)
    csv.write_csv(text_batch, out, _CSV)
    return out.getvalue()


def _text(values: pa.Array, column: SinkColumn) -> pa.Array:
    """Convert values to texts that Postgres reads as the type of the column.

    A text of a file may be an array in JSON, or bytes in base64.
    """
    kind = values.type
    if isinstance(kind, pa.JsonType):
        if not column.array:
            return values.storage
        return _each(values.storage, column, _from_json)
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
        return _each(values, column, lambda column, value: column.text(to_json(value)))
    if pa.types.is_string(kind):
        if column.array:
            return _each(values, column, _from_json)
        if column.shape == "bytes":
            return _each(values, column, SinkColumn.text)
    return moments.texts(values)


def _unquoted(values: pa.Array, column: SinkColumn) -> pa.Array:
    """Convert the JSON texts of a file to texts that Postgres reads.

    A JSON string is used without its quotes, also in a column of numbers: it may be a NaN, or a
    number that no double can hold.
    """
    if not isinstance(values.type, pa.JsonType):
        return _text(values, column)
    if column.shape == "json" and not column.array:
        return _text(values, column)
    return _each(values.storage, column, _said)


def _said(column: SinkColumn, text: str | None) -> str | None:
    if text is not None and text.startswith('"'):
        return column.text(json.loads(text))
    return _from_json(column, text)


def _each(
    values: pa.Array, column: SinkColumn, text: Callable[[SinkColumn, Any], str | None]
) -> pa.Array:
    try:
        texts = [text(column, value) for value in moments.listed(values)]
        return pa.array(texts, pa.string())
    except ValueError as error:
        raise SqlError("SINK_VALUE", f"column {column.name!r}: a value {error}", "data") from None


def _from_json(column: SinkColumn, text: str | None) -> str | None:
    """The text of an array in JSON. Any other text may be an array in the syntax of Postgres."""
    if text is None:
        return None
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        return text
    if isinstance(value, list):
        return column.text(value)
    return text


def _merge(target: TransferTarget, columns: str, names: list[str]) -> str:
    """The statement that moves the new rows into the target."""
    if target.mode != "upsert":
        return f"INSERT INTO {target.name} ({columns}) SELECT {columns} FROM {ROWS}"
    key = ", ".join(map(identifier, target.key))
    others = [identifier(name) for name in names if name not in target.key]
    action = "NOTHING"
    if others:
        action = "UPDATE SET " + ", ".join(f"{name} = excluded.{name}" for name in others)
    last = f"SELECT DISTINCT ON ({key}) {columns} FROM {ROWS} ORDER BY {key}, ctid DESC"
    return f"INSERT INTO {target.name} ({columns}) {last} ON CONFLICT ({key}) DO {action}"


# ---- DuckDB --------------------------------------------------------------------------------------


class _Writing:
    """A connection with the rows as a view. Another thread may call `interrupt` only."""

    def __init__(self, target: TransferTarget, reader: Reader, staging: Staging) -> None:
        self._target = target
        self._reader = reader
        self._staging = staging
        self._connection: duckdb.DuckDBPyConnection | None = None

    def interrupt(self) -> None:
        if self._connection is not None:
            self._connection.interrupt()

    def tables(self) -> int | None:
        """Write the rows. Returns their number; None if an earlier call wrote them."""
        with ExitStack() as stack:
            connection = self._opened(stack, self._target.database or ":memory:")
            connection.begin()
            written = self._insert(connection)
            connection.commit()
            return written

    def _opened(self, stack: ExitStack, database: str) -> duckdb.DuckDBPyConnection:
        connection = stack.enter_context(duckdb.connect(database, config=SETTINGS))
        self._connection = connection
        stack.enter_context(registered(connection, ROWS, self._reader, self._staging))
        return connection

    def _insert(self, connection: duckdb.DuckDBPyConnection) -> int | None:
        target = self._target
        if target.counted:
            connection.execute(keys.MAKE)
            statement = keys.keep("?", "?", "?")
            inserted = connection.execute(statement, target.once).fetchone()
            if inserted == (0,):
                return None
        connection.execute(f"CREATE TABLE IF NOT EXISTS {target.name} AS FROM {ROWS} LIMIT 0")
        self._check(connection)
        if target.mode == "replace":
            connection.execute(f"DELETE FROM {target.name}")
        rows = f"FROM {ROWS}"
        if target.mode == "upsert":
            key = ", ".join(map(identifier, target.key))
            connection.execute(
                f"DELETE FROM {target.name} WHERE ({key}) IN (FROM {ROWS} SELECT ({key}))"
            )
            rows = f"FROM (SELECT *, row_number() OVER () AS noetl_row FROM {ROWS}) SELECT * EXCLUDE (noetl_row)"
            rows += f" QUALIFY row_number() OVER (PARTITION BY {key} ORDER BY noetl_row DESC) = 1"
        result = connection.execute(f"INSERT INTO {target.name} BY NAME ({rows})")
        [count] = result.fetchone() or (0,)
        return int(count)

    def _check(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Refuse rows without a key, and values that DuckDB would change."""
        target = self._target
        known = {name.lower() for name in self._reader.schema.names}  # DuckDB ignores the case
        key_columns = [name for name in target.key if name.lower() in known]
        for query in target.rows_without_key(key_columns):
            key_column = connection.execute(query).fetchone()
            if key_column is not None:
                raise target.key_missing(key_column[0])
        misfit = first_misfit(connection, ROWS, target.name)
        if misfit is not None:
            column, reason = misfit
            message = f"column {column!r}: a value {reason}; cast or round it in the source"
            raise SqlError("SINK_VALUE", message, "data")


async def into_duckdb(target: TransferTarget, reader: Reader, staging: Staging) -> int | None:
    writing = _Writing(target, reader, staging)
    count: int | None = await in_thread(writing.tables, writing.interrupt, "duckdb")
    return count


# ---- files ---------------------------------------------------------------------------------------


async def into_file(target: TransferTarget, reader: Reader) -> int | None:
    path, format = place(target)
    if target.mode != "replace" and await asyncio.to_thread(path.exists):
        return None
    return await files.copied(path, format, reader)


def place(target: TransferTarget) -> tuple[Path, str]:
    """The path and the format of the file to write."""
    if not target.path:
        raise SqlError("SINK_PATH", "a file target needs `path`", "config")
    path = Path(target.path)
    format = (target.format or path.suffix.removeprefix(".") or "parquet").lower()
    if format not in files.FORMATS:
        message = f"a file is parquet, csv, json or jsonl, not {format!r}: say `format`"
        raise SqlError("SINK_FORMAT", message, "config")
    if target.mode == "upsert":
        message = "a file has no rows to write over: use insert, append or replace"
        raise SqlError("SINK_MODE", message, "config")
    if target.mode == "replace":
        return path, format
    key = target.once[0]
    if path.suffix:
        return path.with_stem(f"{path.stem}-{key}"), format
    return path / f"{key}{files.FORMATS[format]}", format
