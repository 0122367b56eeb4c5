"""Stores a frame in a table of Postgres.

ADBC loads the files into a temporary table, and one statement moves the rows, in one transaction.

    insert, append        adds the rows
    upsert                rows replace those with the same `key`; every row has a key of its own
    replace, overwrite    the table has these rows and no others
    overwrite_partitions  rows replace those with the same values in the columns of `partition_by`
    error                 fails if the table has rows
    ignore                adds nothing if the table has rows

The key of the call goes into `noetl_sink` in the same transaction, so a second try changes nothing:
it neither adds rows twice, nor removes rows that others have written since.

A missing table is made with the columns of the frame. Postgres has no type for structs and maps:
they go into columns of `json` or `jsonb`, and become `jsonb` in a new table. A new table gets a
unique index on its `key`; an existing one must have it already.

A cast would round a fraction in a column of integers, and make every number but 0 true in a column
of booleans. Such values are refused instead.
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
from noetl.results.formats.rowsets import list_column_values
from noetl.spark.messages import FrameManifest, SparkAnswer
from noetl.spark.step.outputs import remove_frame
from noetl.tools.port import Call, Failed, Outcome, Success
from noetl.tools.postgres.bulk import extract_server_message
from noetl.tools.postgres.tool import classify_state, make_credential_conninfo
from noetl.tools.sink import keys
from noetl.tools.sql.statements import SqlError, quote_sql_name
from noetl.tools.sql.threads import run_in_thread

MAKE_TABLE_LOCK = 7_201_402_613  # advisory lock for making a table: two at the same time would fail
TABLE_LOCKS = 720_140  # the first half of the advisory lock of one table
FORBIDDEN_SQLSTATE = "42501"
STAGING_TABLE = "noetl_spark_rows"
JSON_COLUMN_TYPES = ("json", "jsonb")
ADDING_MODES = ("insert", "append", "error", "ignore")
NO_UNIQUE_INDEX_SQLSTATE = "42P10"
INTEGER_COLUMN_TYPES = ("smallint", "integer", "bigint")
FRACTION_COLUMN_TYPES = ("real", "double precision", "numeric")
COLUMN_TYPES_QUERY = """
SELECT a.attname, format_type(a.atttypid, a.atttypmod), format_type(coalesce(nullif(t.typbasetype, 0), t.oid), -1)
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
WHERE a.attrelid = to_regclass($1) AND a.attnum > 0 AND NOT a.attisdropped
"""


async def store_in_postgres(
    call: Call,
    output: dict[str, Any],
    answer: SparkAnswer,
    facts: dict[str, Any],
) -> Outcome:
    """Store the frame of an answer in the table of the output."""
    frame = (answer.frames or {}).get("")
    if frame is None or not frame.columns:
        return Failed(_make_store_failure("the step gives no single DataFrame to store"), facts)
    auth = output.get("auth")
    try:
        if call.credential is not None:
            auth = await call.credential(auth)
        conninfo = make_credential_conninfo(auth)
        writing = SparkToPostgres(conninfo, call, frame, output)
        count = await run_in_thread(writing.run, writing.interrupt, "spark-postgres")
    except SqlError as error:
        return Failed(error.failure, facts)
    except adbc_driver_manager.Error as error:
        return Failed(_make_server_failure(error), facts)
    finally:
        remove_frame(frame)
    value = {
        "table": output["table"],
        "row_count": count or 0,
        "columns": frame.columns,
    }
    if count is None:
        value["skipped"] = True
    return Success(value, facts)


def _make_store_failure(message: str) -> Failure:
    return Failure(code="SPARK_OUTPUT", kind="config", message=message)


def _make_server_failure(error: adbc_driver_manager.Error) -> Failure:
    """The failure for an error of the server. A data exception is a value that does not fit."""
    kind = classify_state(error.sqlstate)
    return Failure(
        code="SINK_VALUE" if kind == "data" else "SQL_ERROR",
        kind=kind,
        message=extract_server_message(str(error)),
        retryable=isinstance(error, adbc_driver_manager.OperationalError),
        sqlstate=error.sqlstate,
    )


@dataclass(frozen=True, slots=True)
class ColumnType:
    """The type of a column: `declared` in the table; `base` without length, precision and domain.

    Values are cast to the base type. A cast to the declared type would silently cut a text that is
    too long; storing the base type fails instead.
    """

    declared: str
    base: str

    @property
    def element_type(self) -> str:
        return self.base.removesuffix("[]")

    @property
    def is_array(self) -> bool:
        return self.base.endswith("[]")


class SparkToPostgres:
    """The write of one frame. `run` runs in a thread; other threads call only `interrupt`."""

    def __init__(
        self,
        conninfo: str,
        call: Call,
        frame: FrameManifest,
        output: dict[str, Any],
    ) -> None:
        self._conninfo = conninfo
        self._call = call
        self._frame = frame
        self._table = quote_sql_name(str(output["table"]).split("."))
        self._mode = str(output.get("mode") or "insert")
        self._key = list(output.get("key") or [])
        self._partition_by = list(output.get("partition_by") or [])
        self._cursor: Any = None

    def interrupt(self) -> None:
        if self._cursor is not None:
            self._cursor.adbc_cancel()

    def run(self) -> int | None:
        """Store the rows. Returns their number, or None if `mode: ignore` finds rows."""
        with (
            adbc.connect(self._conninfo, autocommit=False) as connection,
            connection.cursor() as cursor,
        ):
            self._cursor = cursor
            try:
                count = self._store_frame_rows(cursor)
                if count is None:
                    connection.rollback()  # the key of a call that stored nothing is not recorded
                else:
                    connection.commit()
            finally:
                self._cursor = None
        return count

    def _store_frame_rows(self, cursor: Any) -> int | None:
        self._check_key_columns()
        rows: int = sum(file.rows for file in self._frame.files)
        if self._is_call_done(cursor):
            return rows
        if self._mode in ("error", "ignore") and self._has_rows(cursor):
            if self._mode == "ignore":
                return None
            raise SqlError("SPARK_OUTPUT", f"{self._table} has rows already (mode: error)")
        texts = self._load_staging_table(cursor)
        self._make_target_table(cursor, texts)
        statement = self._make_insert_statement(cursor)
        self._check_values(cursor)
        self._check_keys(cursor)
        if self._mode in ("replace", "overwrite"):
            cursor.execute(f"DELETE FROM {self._table}")  # noqa: S608 - a quoted name
        if self._mode == "overwrite_partitions":
            cursor.execute(self._make_delete_statement(cursor))
        self._insert_staged(cursor, statement)
        return rows

    def _check_key_columns(self) -> None:
        missing = [name for name in self._key if name not in self._frame.columns]
        if missing:
            message = f"the rows have no column {missing[0]!r}, which is part of the key"
            raise SqlError("SINK_KEY_MISSING", message, "data")

    def _load_staging_table(self, cursor: Any) -> set[str]:
        """Load the files into the temporary table. Returns its columns of JSON text."""
        files = [pq.ParquetFile(file.path) for file in self._frame.files]
        schema = files[0].schema_arrow.remove_metadata()
        texts = self._find_json_columns(schema, self._read_column_types(cursor))
        for position, name in enumerate(schema.names):
            if name in texts:
                schema = schema.set(position, pa.field(name, pa.string()))
        batches = (_encode_json_columns(batch, schema, texts) for batch in _read_all_batches(files))
        reader = pa.RecordBatchReader.from_batches(schema, batches)
        cursor.adbc_ingest(STAGING_TABLE, reader, mode="create", temporary=True)
        return texts

    def _insert_staged(self, cursor: Any, statement: str) -> None:
        try:
            cursor.execute(statement)
        except adbc_driver_manager.Error as error:
            if not self._key or error.sqlstate != NO_UNIQUE_INDEX_SQLSTATE:
                raise
            raise SqlError("SINK_KEY_NOT_UNIQUE", self._explain_missing_index(), "config") from None

    def _explain_missing_index(self) -> str:
        names = ", ".join(self._key)
        return f"{self._table} has no unique index on its key ({names}): {self._make_index_statement()}"

    def _make_index_statement(self) -> str:
        return f"CREATE UNIQUE INDEX ON {self._table} ({self._quote_key()})"

    def _quote_key(self) -> str:
        return ", ".join(map(quote_sql_name, self._key))

    def _check_values(self, cursor: Any) -> None:
        """Refuse numbers that the cast to the column's type would change."""
        types, staged = (
            self._read_column_types(cursor),
            self._read_column_types(cursor, STAGING_TABLE),
        )
        for name, given in staged.items():
            wanted = types[name]
            value, rows = quote_sql_name(name), STAGING_TABLE
            if given.is_array:
                value, rows = "item", f"{STAGING_TABLE}, unnest({quote_sql_name(name)}) AS item"
            if (
                given.element_type in FRACTION_COLUMN_TYPES
                and wanted.element_type in INTEGER_COLUMN_TYPES
            ):
                changes, why = f"{value} <> trunc({value})", "is no whole number"
            elif given.element_type in INTEGER_COLUMN_TYPES and wanted.element_type == "boolean":
                changes, why = f"{value} NOT IN (0, 1)", "is neither true nor false"
            else:
                continue
            cursor.execute(f"SELECT {value}::text FROM {rows} WHERE {changes} LIMIT 1")  # noqa: S608 - quoted names
            found = cursor.fetchone()
            if found is not None:
                message = f"column {name!r}: {found[0]} {why}, and in {self._table} it is {wanted.base}; cast it in Spark"
                raise SqlError("SINK_VALUE", message, "data")

    def _check_keys(self, cursor: Any) -> None:
        """Refuse rows without a key, because each try would add them again, and rows with equal
        keys, because it is unknown which of them counts."""
        types = self._read_column_types(cursor)
        for name in self._key:
            without_key = f"SELECT FROM {STAGING_TABLE} WHERE {quote_sql_name(name)} IS NULL"
            cursor.execute(f"SELECT EXISTS ({without_key})")
            if cursor.fetchone()[0]:
                message = (
                    f"{self._table}: a row has no value for {name!r}, which is part of the key"
                )
                raise SqlError("SINK_KEY_MISSING", message, "data")
        if not self._key:
            return
        values = ", ".join(f"{quote_sql_name(name)}::{types[name].declared}" for name in self._key)
        same = f"SELECT ROW({values})::text FROM {STAGING_TABLE} GROUP BY {values} HAVING count(*) > 1 LIMIT 1"  # noqa: S608
        cursor.execute(same)
        found = cursor.fetchone()
        if found is not None:
            key = f"({', '.join(self._key)}) = {found[0]}"
            message = f"{self._table}: several rows have the key {key}; give one row per key, for example by GROUP BY"
            raise SqlError("SINK_KEY_NOT_UNIQUE", message, "data")

    def _has_rows(self, cursor: Any) -> bool:
        """Whether the table has rows. A lock lets steps look one after the other: two that look at
        the same time would both find none."""
        cursor.execute(f"SELECT pg_advisory_xact_lock({TABLE_LOCKS}, hashtext($1))", (self._table,))
        cursor.fetchall()
        if not self._read_column_types(cursor):
            return False
        cursor.execute(f"SELECT EXISTS (SELECT FROM {self._table})")  # noqa: S608 - a quoted name
        return bool(cursor.fetchone()[0])

    def _make_delete_statement(self, cursor: Any) -> str:
        """The statement that deletes the rows of the partitions to write. Null is a value like any
        other."""
        types = self._read_column_types(cursor)
        unknown = [name for name in self._partition_by if name not in self._frame.columns]
        if unknown:
            raise SqlError("SINK_COLUMN", f"partition_by: the rows have no column {unknown[0]!r}")
        names = [(quote_sql_name(name), types[name].declared) for name in self._partition_by]
        staged = ", ".join(f"{name}::{kind} AS {name}" for name, kind in names)
        same = " AND ".join(f"old.{name} IS NOT DISTINCT FROM new.{name}" for name, _ in names)
        return f"DELETE FROM {self._table} old USING (SELECT DISTINCT {staged} FROM {STAGING_TABLE}) new WHERE {same}"  # noqa: S608

    def _is_call_done(self, cursor: Any) -> bool:
        """Whether this call has been done before.

        Modes that add rows fail if the user may not write `noetl_sink`. The other modes go on,
        because they may be repeated.
        """
        if self._mode in ADDING_MODES:
            return not self._record_key(cursor)
        cursor.execute("SAVEPOINT noetl")
        try:
            return not self._record_key(cursor)
        except adbc_driver_manager.Error as error:
            if error.sqlstate != FORBIDDEN_SQLSTATE:
                raise
            cursor.execute("ROLLBACK TO SAVEPOINT noetl")
            return False

    def _record_key(self, cursor: Any) -> bool:
        """Record the key of the call. False if it is recorded already."""
        _make_missing_table(cursor, "noetl_sink", keys.CREATE_KEY_TABLE)
        identity = self._call.identity
        cursor.execute(
            "INSERT INTO noetl_sink (sink_key, execution_id, step) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING RETURNING 1",
            (self._call.key, str(identity.execution_id), identity.step),
        )
        return bool(cursor.fetchall())

    def _read_column_types(self, cursor: Any, table: str | None = None) -> dict[str, ColumnType]:
        """The types of the columns of a table; none if the table does not exist."""
        cursor.execute(COLUMN_TYPES_QUERY, (table or self._table,))
        return {name: ColumnType(declared, base) for name, declared, base in cursor.fetchall()}

    def _find_json_columns(self, schema: pa.Schema, types: dict[str, ColumnType]) -> set[str]:
        """The columns that are written as JSON."""
        texts: set[str] = set()
        for field in schema:
            base = types[field.name].base if field.name in types else "jsonb"
            needs_json = _needs_json_column(field.type)
            is_nested_json = pa.types.is_nested(field.type) and base in JSON_COLUMN_TYPES
            if is_nested_json and (types or needs_json):
                texts.add(field.name)
            elif needs_json:
                why = f"its structs and maps need json or jsonb, and in {self._table} it is {base}"
                raise SqlError("SINK_COLUMN", f"column {field.name!r}: {why}")
        return texts

    def _make_target_table(self, cursor: Any, texts: set[str]) -> None:
        """Make the table if it does not exist."""
        columns = []
        for name in self._frame.columns:
            column = quote_sql_name(name)
            columns.append(f"{column}::jsonb" if name in texts else column)
        empty = f"SELECT {', '.join(columns)} FROM {STAGING_TABLE} WITH NO DATA"  # noqa: S608 - quoted names
        is_new = _make_missing_table(cursor, self._table, f"CREATE TABLE {self._table} AS {empty}")
        if is_new and self._key:
            cursor.execute(self._make_index_statement())

    def _make_insert_statement(self, cursor: Any) -> str:
        """The statement that moves the rows from the temporary table to the table."""
        types = self._read_column_types(cursor)
        columns = self._frame.columns
        unknown = [name for name in columns if name not in types]
        if unknown:
            raise SqlError("SINK_COLUMN", f"{self._table} has no column {unknown[0]!r}")
        names = ", ".join(map(quote_sql_name, columns))
        values = ", ".join(f"{quote_sql_name(name)}::{types[name].base}" for name in columns)
        statement = f"INSERT INTO {self._table} ({names}) SELECT {values} FROM {STAGING_TABLE}"  # noqa: S608 - quoted names
        if not self._key:
            return statement
        others = [quote_sql_name(name) for name in columns if name not in self._key]
        action = "NOTHING"
        if others:
            assignments = ", ".join(f"{name} = EXCLUDED.{name}" for name in others)
            action = f"UPDATE SET {assignments}"
        return f"{statement} ON CONFLICT ({self._quote_key()}) DO {action}"


def _make_missing_table(cursor: Any, table: str, statement: str) -> bool:
    """Make a table if it does not exist. Returns whether it was made. A lock serializes this."""
    if not _is_table_missing(cursor, table):
        return False
    cursor.execute(f"SELECT pg_advisory_xact_lock({MAKE_TABLE_LOCK})")
    cursor.fetchall()
    if not _is_table_missing(cursor, table):  # another transaction has made it meanwhile
        return False
    cursor.execute(statement)
    return True


def _is_table_missing(cursor: Any, table: str) -> bool:
    cursor.execute("SELECT to_regclass($1) IS NULL", (table,))
    return bool(cursor.fetchone()[0])


def _needs_json_column(kind: pa.DataType) -> bool:
    """Whether only a json column can hold the type: a struct, a map, or a list of these or of lists."""
    if not pa.types.is_nested(kind):
        return False
    is_plain_list = pa.types.is_list(kind) and not pa.types.is_nested(kind.value_type)
    return not is_plain_list


def _encode_json_columns(
    batch: pa.RecordBatch,
    schema: pa.Schema,
    texts: set[str],
) -> pa.RecordBatch:
    """The batch with the columns in `texts` as JSON text."""
    columns = []
    for column, field in zip(batch.columns, batch.schema, strict=True):
        if field.name in texts:
            column = pa.array(
                map(_encode_json_text, list_column_values(column, field)), pa.string()
            )
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _encode_json_text(value: Any) -> str | None:
    return None if value is None else json.dumps(value, ensure_ascii=False)


def _read_all_batches(files: list[Any]) -> Iterator[Any]:
    for file in files:
        yield from file.iter_batches()
        file.close()
