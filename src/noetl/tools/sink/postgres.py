"""Writes to a table in Postgres. In every mode the target changes in one transaction or not at all.

    insert    adds the rows and stores the call's key in `noetl_sink`, in one transaction. It adds nothing
              if the key is stored already
    upsert    replaces the rows with the same `key`; of several such rows in the data the last one wins
    replace   replaces all rows of the table
    staged    collects the rows in a table beside the target, in batches, and moves them by one statement:
              as `upsert` if there is a `key`, else as `insert`. For loads too long for one transaction

A single batch is inserted by one statement. Several batches are copied into a temporary table, and
moved by one statement.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg import AsyncConnection, AsyncRawCursor
from psycopg.errors import DataError, InsufficientPrivilege, InvalidColumnReference

from noetl.tools.port import Call, Failed, Outcome, Success
from noetl.tools.postgres.tool import make_sql_failure
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

DESCRIBE_TABLE = """
SELECT c.oid::regclass::text AS table, n.nspname AS schema, a.attname AS name, format_type(a.atttypid, -1) AS type,
       coalesce(e.typname, b.typname) AS base, b.typelem <> 0 AND b.typcategory = 'A' AS array,
       to_regclass('noetl_sink') IS NOT NULL AS ready
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
JOIN pg_type t ON t.oid = a.atttypid JOIN pg_type b ON b.oid = coalesce(nullif(t.typbasetype, 0), t.oid)
LEFT JOIN pg_type e ON e.oid = b.typelem AND b.typcategory = 'A'
WHERE c.oid = coalesce(to_regclass($1), to_regclass($2)) ORDER BY a.attnum
"""
INSERT_KEY = keys.make_key_insert("$1", "$2", "$3")
# The advisory lock that is held while `noetl_sink` is created: creating it twice at once fails.
KEY_TABLE_LOCK = 7_201_402_613
SHAPES_BY_TYPE: dict[str, Shape] = {"json": "json", "jsonb": "json", "bytea": "bytes"}
TEMP_ROWS_NAME = "pg_temp.noetl_rows"
ROW_NUMBER_COLUMN = "noetl_row"  # an extra column of the temporary table: the order of the rows
_COPY_ERROR_PATTERN = re.compile(r"COPY \S+, line (\d+), column (.+?)(?:: |, null|$)", re.DOTALL)

Connection = AsyncConnection[Any]


async def write_to_postgres(tool: Any, target: SinkTarget, call: Call, value: Any) -> Outcome:
    """Write to the target over a connection of the tool `postgres`."""
    try:
        async with tool.open_connection(call.auth, target.database) as connection:
            return Success(await write_postgres_table(connection, target, call, value))
    except psycopg.Error as error:
        return Failed(make_sql_failure(error), {"pg": {"sqlstate": error.sqlstate}})


async def write_postgres_table(
    connection: Connection, target: SinkTarget, call: Call, value: Any
) -> dict[str, Any]:
    writer = await _make_sink_writer(connection, target, call)
    if target.needs_key and not writer.has_key_table:
        await _create_key_table(connection)
    if target.mode == "staged":
        return await writer.write_staged(value)
    try:
        async with connection.transaction():
            return await writer.write_directly(value)
    except DataError:
        await writer.raise_bad_value()
        raise


async def _make_sink_writer(
    connection: Connection, target: SinkTarget, call: Call
) -> "PostgresSinkWriter":
    """A writer with the columns of the target.

    The table's name is tried as written, then in lower case, as SQL folds it.
    """
    parts = split_table_name(target.table)
    exact_name = ".".join(map(quote_sql_name, parts))
    folded_name = ".".join(quote_sql_name(part.lower()) for part in parts)
    cursor = await _execute_raw(connection, DESCRIBE_TABLE, [exact_name, folded_name])
    rows = await cursor.fetchall()
    if not rows:
        message = f"there is no table {target.table}, or this user does not see it; create it before it is written to"
        raise SinkError("SINK_TABLE", message, kind="config", table=target.table)
    columns: dict[str, SinkColumn] = {}
    for _, _, name, kind, base, array, _ in rows:
        shape = SHAPES_BY_TYPE.get(base, "plain")
        columns[name] = SinkColumn(name, kind, shape, array)
    table_name, schema, _, _, _, _, ready = rows[0]
    table = SinkTable(table_name, columns)
    table.check_key(target.key)
    return PostgresSinkWriter(connection, target, call, table, schema, ready)


async def _create_key_table(connection: Connection) -> None:
    try:
        async with connection.transaction():
            await _execute_raw(connection, "SELECT pg_advisory_xact_lock($1)", [KEY_TABLE_LOCK])
            await connection.execute(keys.CREATE_KEY_TABLE)
    except InsufficientPrivilege:
        raise SinkError("SINK_FORBIDDEN", keys.KEY_TABLE_FORBIDDEN, kind="auth") from None


@dataclass(slots=True)
class PostgresSinkWriter:
    """Writes the rows of one call."""

    connection: Connection
    target: SinkTarget
    call: Call
    table: SinkTable
    schema: str
    has_key_table: bool  # the table of keys exists
    # The columns of all rows so far.
    used_columns: dict[str, SinkColumn] = field(default_factory=dict)
    seen_count: int = 0  # number of rows
    single_batch: list[Record] = field(default_factory=list)  # the batch, if there is only one

    # ---- in one transaction ----------------------------------------------------------------------

    async def write_directly(self, value: Any) -> dict[str, Any]:
        """Write the rows in the caller's transaction."""
        await self._set_timeout()
        if self.target.needs_key and not await self._store_key():
            return {"row_count": 0, "repeated": True}
        if self.target.mode == "replace":
            await self.connection.execute(f"DELETE FROM {self.table.name}".encode())
        record_batches = read_record_batches(value)
        first = await anext(record_batches, None)
        second = await anext(record_batches, None)
        if first is None:
            return {"row_count": 0}
        if second is None:
            return {"row_count": await self._insert_batch(first)}
        await self._create_table("TEMP TABLE", TEMP_ROWS_NAME, "ON COMMIT DROP")
        await self._copy_batch(TEMP_ROWS_NAME, first)
        await self._copy_batch(TEMP_ROWS_NAME, second)
        async for batch in record_batches:
            await self._copy_batch(TEMP_ROWS_NAME, batch)
        return {"row_count": await self._move_rows(TEMP_ROWS_NAME)}

    async def _set_timeout(self) -> None:
        """Set a timeout in the server, which holds even if this worker dies."""
        if self.call.timeout is None:
            return
        milliseconds = str(max(1, self.call.timeout // 1_000))
        statement = "SELECT set_config('statement_timeout', $1, true)"
        await _execute_raw(self.connection, statement, [milliseconds])

    async def _store_key(self) -> bool:
        """Store the key of the call. False if it is stored already.

        Waits for a transaction that is about to store the same key.
        """
        identity = self.call.identity
        key_fields = [self.call.key, str(identity.execution_id), identity.step]
        try:
            cursor = await _execute_raw(self.connection, INSERT_KEY, key_fields)
        except InsufficientPrivilege:
            raise SinkError("SINK_FORBIDDEN", keys.KEY_TABLE_FORBIDDEN, kind="auth") from None
        return cursor.rowcount == 1

    # ---- a single batch --------------------------------------------------------------------------

    async def _insert_batch(self, batch: list[Record]) -> int:
        self.single_batch = batch
        columns = self.table.find_columns(batch, 0, self._upsert_key)
        texts = self.table.format_rows(batch, columns, 0)
        names = [f"c{number}" for number in range(len(columns))]
        arrays = ", ".join(f"${number + 1}::text[]" for number in range(len(columns)))
        rows = f"unnest({arrays}) WITH ORDINALITY AS rows({', '.join([*names, ROW_NUMBER_COLUMN])})"
        expressions = {
            column.name: f"{name}::{column.type}"
            for name, column in zip(names, columns, strict=True)
        }
        texts_by_column = [list(column_texts) for column_texts in zip(*texts, strict=True)]
        cursor = await self._insert_into_target(expressions, rows, texts_by_column)
        return max(cursor.rowcount, 0)

    async def raise_bad_value(self) -> None:
        """Raise an error that names the refused value of a single batch.

        COPY is repeated for that, because its error names the row and the column.
        """
        try:
            async with self.connection.transaction(force_rollback=True):
                await self._create_table("TEMP TABLE", TEMP_ROWS_NAME, "ON COMMIT DROP")
                await self._copy_batch(TEMP_ROWS_NAME, self.single_batch)
        except psycopg.Error:  # the user may not create tables: the caller raises the first error
            return

    # ---- many batches ----------------------------------------------------------------------------

    async def _create_table(self, kind: str, name: str, more: str = "") -> None:
        """Create a table with the target's columns, without its constraints."""
        create = f"CREATE {kind} {name} {more} AS SELECT * FROM {self.table.name} WITH NO DATA"
        await self.connection.execute(create.encode())
        await self.connection.execute(
            f"ALTER TABLE {name} ADD COLUMN {ROW_NUMBER_COLUMN} bigserial".encode()
        )

    async def _copy_batch(self, rows: str, batch: list[Record]) -> None:
        columns = self.table.find_columns(batch, self.seen_count, self._upsert_key)
        texts = self.table.format_rows(batch, columns, self.seen_count)
        names = quote_sql_names([column.name for column in columns])
        statement = f"COPY {rows} ({names}) FROM STDIN"
        try:
            async with self.connection.cursor() as cursor, cursor.copy(statement.encode()) as copy:
                for row in texts:
                    await copy.write_row(row)
        except DataError as error:
            raise self._locate_copy_error(error) or error from None
        self.used_columns |= {column.name: column for column in columns}
        self.seen_count += len(batch)

    def _locate_copy_error(self, error: DataError) -> SinkError | None:
        """The error with the row and the column that COPY names."""
        place = _COPY_ERROR_PATTERN.search(error.diag.context or "")
        if place is None:
            return None
        row = self.seen_count + int(place[1]) - 1
        return self.table.make_value_error(
            place[2], row, f"does not fit: {error.diag.message_primary}"
        )

    async def _move_rows(self, rows: str) -> int:
        expressions = {
            name: quote_sql_name(name) for name in self.table.columns if name in self.used_columns
        }
        cursor = await self._insert_into_target(expressions, rows, [])
        return max(cursor.rowcount, 0)

    # ---- into the target -------------------------------------------------------------------------

    async def _insert_into_target(
        self, expressions: dict[str, str], rows: str, parameters: Sequence[Any]
    ) -> AsyncRawCursor[Any]:
        """Insert into the target. `expressions` gives the value of each column, over `rows`."""
        names = quote_sql_names(list(expressions))
        values = ", ".join(expressions.values())
        statement = f"INSERT INTO {self.table.name} ({names}) SELECT {values} FROM {rows}"
        if self.target.is_upsert:
            key = ", ".join(expressions[name] for name in self._upsert_key)
            action = make_conflict_action(list(expressions), self._upsert_key)
            statement = (
                f"INSERT INTO {self.table.name} ({names}) SELECT DISTINCT ON ({key}) {values} FROM {rows} "
                f"ORDER BY {key}, {ROW_NUMBER_COLUMN} DESC "
                f"ON CONFLICT ({quote_sql_names(self._upsert_key)}) DO {action}"
            )
        try:
            return await _execute_raw(self.connection, statement, parameters)
        except InvalidColumnReference:
            if not self.target.is_upsert:
                raise
            index = (
                f"CREATE UNIQUE INDEX ON {self.table.name} ({quote_sql_names(self._upsert_key)})"
            )
            key = ", ".join(self._upsert_key)
            message = f"{self.table.name} has no unique index on its key ({key}): {index}"
            raise SinkError(
                "SINK_KEY_NOT_UNIQUE", message, kind="config", table=self.table.name
            ) from None

    @property
    def _upsert_key(self) -> list[str]:
        return self.target.key if self.target.is_upsert else []

    # ---- staged ----------------------------------------------------------------------------------

    async def write_staged(self, value: Any) -> dict[str, Any]:
        """Collect the rows in a staging table, and move them into the target.

        The lock belongs to the connection: it waits for an earlier attempt that still runs.
        """
        lock = "SELECT pg_advisory_lock(hashtextextended($1, 0))"
        await _execute_raw(self.connection, lock, [self.call.key])
        table = f"noetl_stage_{self.call.key[:32]}"
        rows = f"{quote_sql_name(self.schema)}.{quote_sql_name(table)}"
        # An earlier attempt that has ended may have left the table.
        await self.connection.execute(f"DROP TABLE IF EXISTS {rows}".encode())
        await self._create_table("UNLOGGED TABLE", rows)
        async for batch in read_record_batches(value):
            await self._copy_batch(rows, batch)
        result: dict[str, Any] = {"row_count": 0}
        async with self.connection.transaction():
            await self._set_timeout()
            if self.target.needs_key and not await self._store_key():
                result["repeated"] = True
            elif self.used_columns:
                result["row_count"] = await self._move_rows(rows)
            await self.connection.execute(f"DROP TABLE {rows}".encode())
        return result


async def _execute_raw(
    connection: Connection, statement: str, parameters: Sequence[Any]
) -> AsyncRawCursor[Any]:
    """Execute a statement with `$1`, `$2` … for the values of `parameters`."""
    return await AsyncRawCursor(connection).execute(statement.encode(), parameters or None)
