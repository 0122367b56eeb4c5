"""A frame into a table of Postgres: its files by ADBC into a table of this session, then one statement, in one transaction.

    insert, append        adds the rows
    upsert                rows replace those with the same `key`; each has one, and no two have the same
    replace, overwrite    the table has these rows and no others
    overwrite_partitions  rows replace those with the same values in the columns of `partition_by`
    error                 fails if the table has rows
    ignore                adds nothing if the table has rows

The key of the call goes into `noetl_sink` in the same transaction, so a second try changes nothing: neither are rows added
twice, nor are those removed that others have written since.

A table that is not there is made with the columns of the frame. Postgres has no type for structs and maps: they go into
columns of `json` or `jsonb`, and become `jsonb` in a new table. A new table has a unique index on its `key`; an old one
must have it already.

A cast would round a number in a column of integers, and call one true in a column of booleans: such values are refused instead.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import adbc_driver_manager
import adbc_driver_postgresql.dbapi as adbc  # type: ignore[import-untyped]  # it has no types
import pyarrow as pa
import pyarrow.parquet as pq

from noetl.model.errors import Failure
from noetl.results.rowsets import values_of
from noetl.spark.outputs import remove
from noetl.tools.port import Call, Failed, Outcome, Success
from noetl.tools.postgres import address, error_kind
from noetl.tools.postgres_bulk import server_message
from noetl.tools.sinks import keys
from noetl.tools.sql import SqlError, identifier
from noetl.tools.threads import in_thread

LOCK = 7_201_402_613  # of whoever makes a table: making one twice at once fails
TABLE_LOCKS = 720_140  # the first half of the lock of a table
FORBIDDEN = "42501"
STAGED = "noetl_spark_rows"
JSON = ("json", "jsonb")
ADDING = ("insert", "append", "error", "ignore")
NO_UNIQUE_INDEX = "42P10"
INTEGERS = ("smallint", "integer", "bigint")
FRACTIONS = ("real", "double precision", "numeric")
COLUMNS = """
SELECT a.attname, format_type(a.atttypid, a.atttypmod), format_type(coalesce(nullif(t.typbasetype, 0), t.oid), -1)
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
WHERE a.attrelid = to_regclass($1) AND a.attnum > 0 AND NOT a.attisdropped
"""


async def store(
    call: Call, output: dict[str, Any], answer: dict[str, Any], facts: dict[str, Any]
) -> Outcome:
    frame = answer.get("frames", {}).get("")
    if frame is None or not frame["columns"]:
        return Failed(_failure("the step gives no single DataFrame to store"), facts)
    auth = output.get("auth")
    try:
        conninfo = address(auth if call.credential is None else await call.credential(auth))
        writing = SparkToPostgres(conninfo, call, frame, output)
        count = await in_thread(writing.run, writing.interrupt, "spark-postgres")
    except SqlError as error:
        return Failed(error.failure, facts)
    except adbc_driver_manager.Error as error:
        return Failed(_server_failure(error), facts)
    finally:
        remove(frame)
    told = {"table": output["table"], "row_count": count or 0, "columns": frame["columns"]}
    return Success(told if count is not None else {**told, "skipped": True}, facts)


def _failure(message: str) -> Failure:
    return Failure(code="SPARK_OUTPUT", kind="config", message=message)


def _server_failure(error: adbc_driver_manager.Error) -> Failure:
    """In the words of the server. What it calls a data exception is a value that does not fit."""
    kind = error_kind(error.sqlstate)
    return Failure(
        code="SINK_VALUE" if kind == "data" else "SQL_ERROR",
        kind=kind,
        message=server_message(str(error)),
        retryable=isinstance(error, adbc_driver_manager.OperationalError),
        sqlstate=error.sqlstate,
    )


@dataclass(frozen=True, slots=True)
class ColumnType:
    """`declared` is the type as the table has it; `base` is without its length, precision and domain.

    Values are cast to the base: a cast to the declared type would cut a text that is too long, where storing it fails.
    """

    declared: str
    base: str

    @property
    def element(self) -> str:
        return self.base.removesuffix("[]")

    @property
    def is_array(self) -> bool:
        return self.base.endswith("[]")


class SparkToPostgres:
    """In a thread; only `interrupt` comes from elsewhere."""

    def __init__(
        self, conninfo: str, call: Call, frame: dict[str, Any], output: dict[str, Any]
    ) -> None:
        self._conninfo = conninfo
        self._call = call
        self._frame = frame
        self._table = identifier(str(output["table"]).split("."))
        self._mode = str(output.get("mode") or "insert")
        self._key = list(output.get("key") or [])
        self._partition_by = list(output.get("partition_by") or [])
        self._cursor: Any = None

    def interrupt(self) -> None:
        if self._cursor is not None:
            self._cursor.adbc_cancel()

    def run(self) -> int | None:
        """How many rows were stored; None if there were to be none, because the table has rows."""
        with (
            adbc.connect(self._conninfo, autocommit=False) as connection,
            connection.cursor() as cursor,
        ):
            self._cursor = cursor
            try:
                count = self._stored(cursor)
                if count is None:
                    connection.rollback()  # a call that stored nothing is not remembered
                else:
                    connection.commit()
            finally:
                self._cursor = None
        return count

    def _stored(self, cursor: Any) -> int | None:
        if lacking := [name for name in self._key if name not in self._frame["columns"]]:
            message = f"the rows have no column {lacking[0]!r}, which is part of the key"
            raise SqlError("SINK_KEY_MISSING", message, "data")
        rows: int = sum(file["rows"] for file in self._frame["files"])
        if self._is_done(cursor):
            return rows
        if self._mode in ("error", "ignore") and self._has_rows(cursor):
            if self._mode == "ignore":
                return None
            raise SqlError("SPARK_OUTPUT", f"{self._table} has rows already (mode: error)")
        files = [pq.ParquetFile(file["path"]) for file in self._frame["files"]]
        schema = files[0].schema_arrow.remove_metadata()
        texts = self._as_json(schema, self._types(cursor))
        wanted = pa.schema(
            [pa.field(each.name, pa.string()) if each.name in texts else each for each in schema]
        )
        batches = (_with_json(batch, wanted, texts) for batch in _batches(files))
        cursor.adbc_ingest(
            STAGED,
            pa.RecordBatchReader.from_batches(wanted, batches),
            mode="create",
            temporary=True,
        )
        self._made(cursor, texts)
        statement = self._statement(cursor)
        self._check_values(cursor)
        self._check_keys(cursor)
        if self._mode in ("replace", "overwrite"):
            cursor.execute(f"DELETE FROM {self._table}")  # noqa: S608 - a quoted name
        if self._mode == "overwrite_partitions":
            cursor.execute(self._removal(cursor))
        self._insert(cursor, statement)
        return rows

    def _insert(self, cursor: Any, statement: str) -> None:
        try:
            cursor.execute(statement)
        except adbc_driver_manager.Error as error:
            if not self._key or error.sqlstate != NO_UNIQUE_INDEX:
                raise
            raise SqlError("SINK_KEY_NOT_UNIQUE", self._no_unique_index(), "config") from None

    def _no_unique_index(self) -> str:
        unique = f"CREATE UNIQUE INDEX ON {self._table} ({', '.join(map(identifier, self._key))})"
        return f"{self._table} has no unique index on its key ({', '.join(self._key)}): {unique}"

    def _check_values(self, cursor: Any) -> None:
        """Refuse numbers that the cast to the column's type would change."""
        types, staged = self._types(cursor), self._types(cursor, STAGED)
        for name, given in staged.items():
            there = types[name]
            value, rows = identifier(name), STAGED
            if given.is_array:
                value, rows = "item", f"{STAGED}, unnest({identifier(name)}) AS item"
            if given.element in FRACTIONS and there.element in INTEGERS:
                changes, why = f"{value} <> trunc({value})", "is no whole number"
            elif given.element in INTEGERS and there.element == "boolean":
                changes, why = f"{value} NOT IN (0, 1)", "is neither true nor false"
            else:
                continue
            cursor.execute(f"SELECT {value}::text FROM {rows} WHERE {changes} LIMIT 1")  # noqa: S608 - quoted names
            if (found := cursor.fetchone()) is not None:
                message = f"column {name!r}: {found[0]} {why}, and in {self._table} it is {there.base}; cast it in Spark"
                raise SqlError("SINK_VALUE", message, "data")

    def _check_keys(self, cursor: Any) -> None:
        """Refuse rows without a key: they would be added again each time. And rows with the same one: which of them counts?"""
        types = self._types(cursor)
        for name in self._key:
            cursor.execute(f"SELECT EXISTS (SELECT FROM {STAGED} WHERE {identifier(name)} IS NULL)")  # noqa: S608
            if cursor.fetchone()[0]:
                message = (
                    f"{self._table}: a row has no value for {name!r}, which is part of the key"
                )
                raise SqlError("SINK_KEY_MISSING", message, "data")
        if not self._key:
            return
        values = ", ".join(f"{identifier(name)}::{types[name].declared}" for name in self._key)
        same = f"SELECT ROW({values})::text FROM {STAGED} GROUP BY {values} HAVING count(*) > 1 LIMIT 1"  # noqa: S608
        cursor.execute(same)
        if (found := cursor.fetchone()) is not None:
            key = f"({', '.join(self._key)}) = {found[0]}"
            message = f"{self._table}: several rows have the key {key}; give one row per key, for example by GROUP BY"
            raise SqlError("SINK_KEY_NOT_UNIQUE", message, "data")

    def _has_rows(self, cursor: Any) -> bool:
        """Steps look at a table one after the other: two that look at once would both find none."""
        cursor.execute(f"SELECT pg_advisory_xact_lock({TABLE_LOCKS}, hashtext($1))", (self._table,))
        cursor.fetchall()
        if not self._types(cursor):
            return False
        cursor.execute(f"SELECT EXISTS (SELECT FROM {self._table})")  # noqa: S608 - a quoted name
        return bool(cursor.fetchone()[0])

    def _removal(self, cursor: Any) -> str:
        """Of rows whose partition is written anew; null is a value as any other."""
        types = self._types(cursor)
        if unknown := [name for name in self._partition_by if name not in self._frame["columns"]]:
            raise SqlError("SINK_COLUMN", f"partition_by: the rows have no column {unknown[0]!r}")
        names = [(identifier(name), types[name].declared) for name in self._partition_by]
        staged = ", ".join(f"{name}::{kind} AS {name}" for name, kind in names)
        same = " AND ".join(f"old.{name} IS NOT DISTINCT FROM new.{name}" for name, _ in names)
        return f"DELETE FROM {self._table} old USING (SELECT DISTINCT {staged} FROM {STAGED}) new WHERE {same}"  # noqa: S608

    def _is_done(self, cursor: Any) -> bool:
        """This very call has been done. Whoever may not remember it here may only do what can be done twice."""
        if self._mode in ADDING:
            return not self._remembered(cursor)
        cursor.execute("SAVEPOINT noetl")
        try:
            return not self._remembered(cursor)
        except adbc_driver_manager.Error as error:
            if error.sqlstate != FORBIDDEN:
                raise
            cursor.execute("ROLLBACK TO SAVEPOINT noetl")
            return False

    def _remembered(self, cursor: Any) -> bool:
        """False: it was so before."""
        _make(cursor, "noetl_sink", keys.MAKE)
        identity = self._call.identity
        cursor.execute(
            "INSERT INTO noetl_sink (sink_key, execution_id, step) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING RETURNING 1",
            (self._call.key, str(identity.execution_id), identity.step),
        )
        return bool(cursor.fetchall())

    def _types(self, cursor: Any, table: str | None = None) -> dict[str, ColumnType]:
        """Of the columns of the table; none when it is not there."""
        cursor.execute(COLUMNS, (table or self._table,))
        return {name: ColumnType(declared, base) for name, declared, base in cursor.fetchall()}

    def _as_json(self, schema: pa.Schema, types: dict[str, ColumnType]) -> set[str]:
        """Columns that are written as JSON."""
        texts: set[str] = set()
        for field in schema:
            there = types[field.name].base if field.name in types else "jsonb"
            if (
                pa.types.is_nested(field.type)
                and there in JSON
                and (types or _is_record(field.type))
            ):
                texts.add(field.name)
            elif _is_record(field.type):
                why = f"its structs and maps need json or jsonb, and in {self._table} it is {there}"
                raise SqlError("SINK_COLUMN", f"column {field.name!r}: {why}")
        return texts

    def _made(self, cursor: Any, texts: set[str]) -> None:
        names = ", ".join(
            f"{identifier(name)}{'::jsonb' if name in texts else ''}"
            for name in self._frame["columns"]
        )
        empty = f"SELECT {names} FROM {STAGED} WITH NO DATA"  # noqa: S608 - quoted names
        is_new = _make(cursor, self._table, f"CREATE TABLE {self._table} AS {empty}")
        if is_new and self._key:
            cursor.execute(
                f"CREATE UNIQUE INDEX ON {self._table} ({', '.join(map(identifier, self._key))})"
            )

    def _statement(self, cursor: Any) -> str:
        types = self._types(cursor)
        columns = self._frame["columns"]
        if unknown := [name for name in columns if name not in types]:
            raise SqlError("SINK_COLUMN", f"{self._table} has no column {unknown[0]!r}")
        names = ", ".join(map(identifier, columns))
        values = ", ".join(f"{identifier(name)}::{types[name].base}" for name in columns)
        statement = f"INSERT INTO {self._table} ({names}) SELECT {values} FROM {STAGED}"  # noqa: S608 - quoted names
        if not self._key:
            return statement
        rest = [
            f"{identifier(name)} = EXCLUDED.{identifier(name)}"
            for name in columns
            if name not in self._key
        ]
        then = f"UPDATE SET {', '.join(rest)}" if rest else "NOTHING"
        return f"{statement} ON CONFLICT ({', '.join(map(identifier, self._key))}) DO {then}"


def _make(cursor: Any, table: str, statement: str) -> bool:
    """Make a table that is not there, and say whether it was made. Two who would make it at once wait for each other."""
    if not _is_missing(cursor, table):
        return False
    cursor.execute(f"SELECT pg_advisory_xact_lock({LOCK})")
    cursor.fetchall()
    if not _is_missing(cursor, table):  # another made it meanwhile
        return False
    cursor.execute(statement)
    return True


def _is_missing(cursor: Any, table: str) -> bool:
    cursor.execute("SELECT to_regclass($1) IS NULL", (table,))
    return bool(cursor.fetchone()[0])


def _is_record(kind: pa.DataType) -> bool:
    """A type that Postgres has no column for but json: a struct, a map, or a list of these or of lists."""
    return pa.types.is_nested(kind) and not (
        pa.types.is_list(kind) and not pa.types.is_nested(kind.value_type)
    )


def _with_json(batch: pa.RecordBatch, schema: pa.Schema, texts: set[str]) -> pa.RecordBatch:
    columns = [
        pa.array(map(_text, values_of(column, field)), pa.string())
        if field.name in texts
        else column
        for column, field in zip(batch.columns, batch.schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _text(value: Any) -> str | None:
    return None if value is None else json.dumps(value, ensure_ascii=False)


def _batches(files: list[Any]) -> Iterator[Any]:
    for file in files:
        yield from file.iter_batches()
        file.close()
