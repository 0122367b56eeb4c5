"""Rows into a target, so that a repetition changes nothing.

upsert            by `key`: the row that is there is written over; of two with the same key the later one counts
insert, append    the call's key goes into the table `noetl_sink` of the target database in the same transaction: whoever finds it
                  there writes nothing. `at_least_once: true` does without
replace           what was there leaves in the same transaction
a file            appears under its name at once; appended ones are files named by the call's key in the folder `path`
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
ROWS = "noetl_rows"  # the name of what is written, where it is written from
_CSV = csv.WriteOptions(
    include_header=False, quoting_style="all_valid"
)  # null is empty, an empty text is quoted


@dataclass(frozen=True, slots=True)
class TransferTarget:
    kind: str
    table: str
    path: str
    database: str | None
    format: str | None
    mode: str
    key: list[str]
    once: list[str]  # the call's key, its execution and its step
    counted: bool  # the call is remembered where its rows are

    @classmethod
    def of(cls, call: Call) -> "TransferTarget":
        given, identity = call.config["target"], call.identity
        mode = given.get("mode") or "insert"
        if mode not in MODES:
            raise SqlError("SINK_MODE", f"mode {mode!r} is not one of {', '.join(MODES)}", "config")
        return cls(
            kind=given["kind"],
            table=str(given.get("table") or ""),
            path=str(given.get("path") or ""),
            database=given.get("database"),
            format=given.get("format"),
            mode=mode,
            key=given.get("key") or [],
            once=[call.key, str(identity.execution_id), identity.step],
            counted=mode in ("insert", "append") and not given.get("at_least_once"),
        )

    @property
    def name(self) -> str:
        return identifier(self.table.split("."))

    def rows_without_key(self, columns: Collection[str]) -> Iterator[str]:
        """Queries that give the name of a column of the key if a row has no value in it: an upsert would add it each time."""
        if self.mode != "upsert":
            return
        for name in self.key:
            if name not in columns:
                raise self.key_missing(name)
            yield f"SELECT {quoted(name)} FROM {ROWS} WHERE {identifier(name)} IS NULL LIMIT 1"

    def key_missing(self, column: str) -> SqlError:
        message = f"{self.table}: a row has no value for {column!r}, which is part of the key"
        return SqlError("SINK_KEY_MISSING", message, "data")


# ---- Postgres ----------------------------------------------------------------------------------------------------------------


async def into_postgres(
    connection: AsyncConnection[Any], target: TransferTarget, reader: Reader, of_json: bool
) -> int | None:
    """Rows written, in one transaction; None: they were there already. `of_json`: each value is the JSON of a file."""
    if target.counted:
        made_meanwhile = (psycopg.errors.UniqueViolation, psycopg.errors.DuplicateTable)
        with _allowed(), suppress(*made_meanwhile):
            await connection.execute(keys.MAKE)
    async with connection.transaction():
        if target.counted and not await _first(connection, target):
            return None
        columns = ", ".join(identifier(name) for name in reader.schema.names)
        stage = f"CREATE TEMP TABLE {ROWS} ON COMMIT DROP AS SELECT {columns} FROM {target.name} WITH NO DATA"
        await connection.execute(stage.encode())
        await _copy(connection, columns, reader, of_json)
        for query in target.rows_without_key(reader.schema.names):
            if (found := await (await connection.execute(query.encode())).fetchone()) is not None:
                raise target.key_missing(found[0])
        if target.mode == "replace":
            await connection.execute(f"TRUNCATE {target.name}".encode())
        return await _merged(connection, target, _merge(target, columns, reader.schema.names))


async def _merged(connection: AsyncConnection[Any], target: TransferTarget, statement: str) -> int:
    try:
        return (await connection.execute(statement.encode())).rowcount
    except psycopg.errors.InvalidColumnReference:
        if target.mode != "upsert":
            raise
        unique = f"CREATE UNIQUE INDEX ON {target.name} ({', '.join(map(identifier, target.key))})"
        message = (
            f"{target.table} has no unique index on its key ({', '.join(target.key)}): {unique}"
        )
        raise SqlError("SINK_KEY_NOT_UNIQUE", message, "config") from None


async def _first(connection: AsyncConnection[Any], target: TransferTarget) -> bool:
    with _allowed():
        return (
            await connection.execute(keys.keep("%s", "%s", "%s").encode(), target.once)
        ).rowcount == 1


@contextmanager
def _allowed() -> Iterator[None]:
    try:
        yield
    except psycopg.errors.InsufficientPrivilege as error:
        raise SqlError("SINK_FORBIDDEN", keys.FORBIDDEN, "auth") from error


async def _copy(
    connection: AsyncConnection[Any], columns: str, reader: Reader, of_json: bool
) -> None:
    cursor = connection.cursor()
    asked = await cursor.execute(f"SELECT {columns} FROM {ROWS}".encode())
    found = [_column(column.name, column.type_code) for column in asked.description or ()]
    async with cursor.copy(f"COPY {ROWS} ({columns}) FROM STDIN (FORMAT csv)".encode()) as copy:
        batches = reader.batches()
        while (data := await asyncio.to_thread(_written, batches, found, of_json)) is not None:
            await copy.write(data)


def _column(name: str, oid: int) -> SinkColumn:
    info = psycopg.adapters.types.get(oid)
    kind = "" if info is None else info.name
    return SinkColumn(
        name, kind, SHAPES.get(kind, "plain"), array=info is not None and info.array_oid == oid
    )


def _written(
    batches: Iterator[pa.RecordBatch], columns: list[SinkColumn], of_json: bool
) -> bytes | None:
    """The next rows as CSV."""
    batch = next(batches, None)
    if batch is None:
        return None
    text = _unquoted if of_json else _text
    texts = [text(values, column) for values, column in zip(batch.columns, columns, strict=True)]
    out = io.BytesIO()
    csv.write_csv(pa.RecordBatch.from_arrays(texts, names=batch.schema.names), out, _CSV)
    return out.getvalue()


def _text(values: pa.Array, column: SinkColumn) -> pa.Array:
    """What Postgres reads of values whose own text it would not. Text of a file may be an array in JSON, or bytes in base64."""
    kind = values.type
    if isinstance(kind, pa.JsonType):
        return _each(values.storage, column, _from_json) if column.array else values.storage
    if isinstance(kind, pa.UuidType):
        return pa.array(
            [None if value is None else str(value) for value in values.to_pylist()], pa.string()
        )
    if pa.types.is_duration(kind):
        numbers = values.cast(pa.duration("us"), safe=False).cast(pa.int64()).to_pylist()
        return pa.array(
            [None if value is None else f"{value} microseconds" for value in numbers], pa.string()
        )
    if pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return pa.array(
            [None if value is None else "\\x" + value.hex() for value in values.to_pylist()],
            pa.string(),
        )
    if pa.types.is_nested(kind):
        return _each(values, column, lambda column, value: column.text(to_json(value)))
    if pa.types.is_string(kind) and (column.array or column.shape == "bytes"):
        return _each(values, column, _from_json if column.array else SinkColumn.text)
    return moments.texts(values)


def _unquoted(values: pa.Array, column: SinkColumn) -> pa.Array:
    """A text in JSON stands for what it says, whatever is its column's type: numbers that no double holds are such, and NaN."""
    if not isinstance(values.type, pa.JsonType) or (column.shape == "json" and not column.array):
        return _text(values, column)
    return _each(values.storage, column, _said)


def _said(column: SinkColumn, text: str | None) -> str | None:
    return (
        column.text(json.loads(text))
        if text is not None and text.startswith('"')
        else _from_json(column, text)
    )


def _each(
    values: pa.Array, column: SinkColumn, text: Callable[[SinkColumn, Any], str | None]
) -> pa.Array:
    try:
        return pa.array([text(column, value) for value in moments.listed(values)], pa.string())
    except ValueError as error:
        raise SqlError("SINK_VALUE", f"column {column.name!r}: a value {error}", "data") from None


def _from_json(column: SinkColumn, text: str | None) -> str | None:
    """An array; what is no list in JSON may be one as Postgres writes it."""
    try:
        found = None if text is None else json.loads(text)
    except json.JSONDecodeError:
        return text
    return column.text(found) if isinstance(found, list) else text


def _merge(target: TransferTarget, columns: str, names: list[str]) -> str:
    if target.mode != "upsert":
        return f"INSERT INTO {target.name} ({columns}) SELECT {columns} FROM {ROWS}"
    key = ", ".join(map(identifier, target.key))
    others = [identifier(name) for name in names if name not in target.key]
    update = (
        f"UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in others)}"
        if others
        else "NOTHING"
    )
    last = f"SELECT DISTINCT ON ({key}) {columns} FROM {ROWS} ORDER BY {key}, ctid DESC"
    return f"INSERT INTO {target.name} ({columns}) {last} ON CONFLICT ({key}) DO {update}"


# ---- DuckDB ------------------------------------------------------------------------------------------------------------------


class _Writing:
    """One connection with the rows as a view, used by its thread; only `interrupt` comes from elsewhere."""

    def __init__(self, target: TransferTarget, reader: Reader, staging: Staging) -> None:
        self._target = target
        self._reader = reader
        self._staging = staging
        self._connection: duckdb.DuckDBPyConnection | None = None

    def interrupt(self) -> None:
        if self._connection is not None:
            self._connection.interrupt()

    def tables(self) -> int | None:
        with ExitStack() as stack:
            connection = self._opened(stack, self._target.database or ":memory:")
            connection.begin()
            written = self._insert(connection)
            connection.commit()
            return written

    def _opened(self, stack: ExitStack, database: str) -> duckdb.DuckDBPyConnection:
        self._connection = connection = stack.enter_context(
            duckdb.connect(database, config=SETTINGS)
        )
        stack.enter_context(registered(connection, ROWS, self._reader, self._staging))
        return connection

    def _insert(self, connection: duckdb.DuckDBPyConnection) -> int | None:
        target = self._target
        if target.counted:
            connection.execute(keys.MAKE)
            if connection.execute(keys.keep("?", "?", "?"), target.once).fetchone() == (0,):
                return None
        connection.execute(f"CREATE TABLE IF NOT EXISTS {target.name} AS FROM {ROWS} LIMIT 0")
        known = {
            name.lower() for name in self._reader.schema.names
        }  # DuckDB does not tell capitals from small letters
        for query in target.rows_without_key(
            [name for name in target.key if name.lower() in known]
        ):
            if (lacking := connection.execute(query).fetchone()) is not None:
                raise target.key_missing(lacking[0])
        if (misfit := first_misfit(connection, ROWS, target.name)) is not None:
            column, why = misfit
            raise SqlError(
                "SINK_VALUE",
                f"column {column!r}: a value {why}; cast or round it in the source",
                "data",
            )
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
        [count] = connection.execute(f"INSERT INTO {target.name} BY NAME ({rows})").fetchone() or (
            0,
        )
        return int(count)


async def into_duckdb(target: TransferTarget, reader: Reader, staging: Staging) -> int | None:
    writing = _Writing(target, reader, staging)
    found: int | None = await in_thread(writing.tables, writing.interrupt, "duckdb")
    return found


# ---- files -------------------------------------------------------------------------------------------------------------------


async def into_file(target: TransferTarget, reader: Reader) -> int | None:
    where, kind = place(target)
    if target.mode != "replace" and await asyncio.to_thread(where.exists):
        return None
    return await files.copied(where, kind, reader)


def place(target: TransferTarget) -> tuple[Path, str]:
    if not target.path:
        raise SqlError("SINK_PATH", "a file target needs `path`", "config")
    path = Path(target.path)
    kind = (target.format or path.suffix.removeprefix(".") or "parquet").lower()
    if kind not in files.FORMATS:
        raise SqlError(
            "SINK_FORMAT",
            f"a file is parquet, csv, json or jsonl, not {kind!r}: say `format`",
            "config",
        )
    if target.mode == "upsert":
        raise SqlError(
            "SINK_MODE", "a file has no rows to write over: use insert, append or replace", "config"
        )
    if target.mode == "replace":
        return path, kind
    key = target.once[0]
    named = (
        path.with_stem(f"{path.stem}-{key}")
        if path.suffix
        else path / f"{key}{files.FORMATS[kind]}"
    )
    return named, kind
