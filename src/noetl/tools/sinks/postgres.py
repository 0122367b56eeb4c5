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

from noetl.tools.port import Call
from noetl.tools.sinks import keys
from noetl.tools.sinks.records import (
    Record,
    Shape,
    SinkColumn,
    SinkError,
    SinkTable,
    SinkTarget,
    batches,
    conflict_action,
    name_parts,
    quoted,
)
from noetl.tools.sql import identifier

DESCRIBE = """
SELECT c.oid::regclass::text AS table, n.nspname AS schema, a.attname AS name, format_type(a.atttypid, -1) AS type,
       coalesce(e.typname, b.typname) AS base, b.typelem <> 0 AND b.typcategory = 'A' AS array,
       to_regclass('noetl_sink') IS NOT NULL AS ready
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
JOIN pg_type t ON t.oid = a.atttypid JOIN pg_type b ON b.oid = coalesce(nullif(t.typbasetype, 0), t.oid)
LEFT JOIN pg_type e ON e.oid = b.typelem AND b.typcategory = 'A'
WHERE c.oid = coalesce(to_regclass($1), to_regclass($2)) ORDER BY a.attnum
"""
KEEP_KEY = keys.keep("$1", "$2", "$3")
LOCK = 7_201_402_613  # held while `noetl_sink` is created: creating it twice at once fails
SHAPES: dict[str, Shape] = {"json": "json", "jsonb": "json", "bytea": "bytes"}
ROWS = "pg_temp.noetl_rows"
ROW = "noetl_row"  # an extra column of the temporary table: the order of the rows
_PLACE = re.compile(r"COPY \S+, line (\d+), column (.+?)(?:: |, null|$)", re.DOTALL)

Connection = AsyncConnection[Any]


async def write(
    connection: Connection, target: SinkTarget, call: Call, value: Any
) -> dict[str, Any]:
    writer = await _described(connection, target, call)
    if target.keyed and not writer.ready:
        await _make_keys(connection)
    if target.mode == "staged":
        return await writer.staged(value)
    try:
        async with connection.transaction():
            return await writer.directly(value)
    except DataError:
        await writer.explain()
        raise


async def _described(
    connection: Connection, target: SinkTarget, call: Call
) -> "PostgresSinkWriter":
    """A writer with the columns of the target.

    The table's name is tried as written, then in lower case, as SQL folds it.
    """
    parts = name_parts(target.table)
    exact_name = ".".join(map(identifier, parts))
    folded_name = ".".join(identifier(part.lower()) for part in parts)
    cursor = await _do(connection, DESCRIBE, [exact_name, folded_name])
    rows = await cursor.fetchall()
    if not rows:
        message = f"there is no table {target.table}, or this user does not see it; create it before it is written to"
        raise SinkError("SINK_TABLE", message, kind="config", table=target.table)
    columns: dict[str, SinkColumn] = {}
    for _, _, name, kind, base, array, _ in rows:
        shape = SHAPES.get(base, "plain")
        columns[name] = SinkColumn(name, kind, shape, array)
    table_name, schema, _, _, _, _, ready = rows[0]
    table = SinkTable(table_name, columns)
    table.check_key(target.key)
    return PostgresSinkWriter(connection, target, call, table, schema, ready)


async def _make_keys(connection: Connection) -> None:
    try:
        async with connection.transaction():
            await _do(connection, "SELECT pg_advisory_xact_lock($1)", [LOCK])
            await connection.execute(keys.MAKE)
    except InsufficientPrivilege:
        raise SinkError("SINK_FORBIDDEN", keys.FORBIDDEN, kind="auth") from None


@dataclass(slots=True)
class PostgresSinkWriter:
    """Writes the rows of one call."""

    connection: Connection
    target: SinkTarget
    call: Call
    table: SinkTable
    schema: str
    ready: bool  # the table of keys exists
    used: dict[str, SinkColumn] = field(default_factory=dict)  # the columns of all rows so far
    seen: int = 0  # number of rows
    only: list[Record] = field(default_factory=list)  # the batch, if there is only one

    # ---- in one transaction ----------------------------------------------------------------------

    async def directly(self, value: Any) -> dict[str, Any]:
        """Write the rows in the caller's transaction."""
        await self._limited()
        if self.target.keyed and not await self._first_time():
            return {"row_count": 0, "repeated": True}
        if self.target.mode == "replace":
            await self.connection.execute(f"DELETE FROM {self.table.name}".encode())
        record_batches = batches(value)
        first = await anext(record_batches, None)
        second = await anext(record_batches, None)
        if first is None:
            return {"row_count": 0}
        if second is None:
            return {"row_count": await self._insert(first)}
        await self._make("TEMP TABLE", ROWS, "ON COMMIT DROP")
        await self._copied(ROWS, first)
        await self._copied(ROWS, second)
        async for batch in record_batches:
            await self._copied(ROWS, batch)
        return {"row_count": await self._move(ROWS)}

    async def _limited(self) -> None:
        """Set a timeout in the server, which holds even if this worker dies."""
        if self.call.timeout is None:
            return
        milliseconds = str(max(1, self.call.timeout // 1_000))
        statement = "SELECT set_config('statement_timeout', $1, true)"
        await _do(self.connection, statement, [milliseconds])

    async def _first_time(self) -> bool:
        """Store the key of the call. False if it is stored already.

        Waits for a transaction that is about to store the same key.
        """
        identity = self.call.identity
        key_fields = [self.call.key, str(identity.execution_id), identity.step]
        try:
            cursor = await _do(self.connection, KEEP_KEY, key_fields)
        except InsufficientPrivilege:
            raise SinkError("SINK_FORBIDDEN", keys.FORBIDDEN, kind="auth") from None
        return cursor.rowcount == 1

    # ---- a single batch --------------------------------------------------------------------------

    async def _insert(self, batch: list[Record]) -> int:
        self.only = batch
        columns = self.table.used(batch, 0, self._key)
        texts = self.table.texts(batch, columns, 0)
        names = [f"c{number}" for number in range(len(columns))]
        arrays = ", ".join(f"${number + 1}::text[]" for number in range(len(columns)))
        rows = f"unnest({arrays}) WITH ORDINALITY AS rows({', '.join([*names, ROW])})"
        expressions = {
            column.name: f"{name}::{column.type}"
            for name, column in zip(names, columns, strict=True)
        }
        texts_by_column = [list(column_texts) for column_texts in zip(*texts, strict=True)]
        cursor = await self._stored(expressions, rows, texts_by_column)
        return max(cursor.rowcount, 0)

    async def explain(self) -> None:
        """Raise an error that names the refused value of a single batch.

        COPY is repeated for that, because its error names the row and the column.
        """
        try:
            async with self.connection.transaction(force_rollback=True):
                await self._make("TEMP TABLE", ROWS, "ON COMMIT DROP")
                await self._copied(ROWS, self.only)
        except psycopg.Error:  # the user may not create tables: the caller raises the first error
            return

    # ---- many batches ----------------------------------------------------------------------------

    async def _make(self, kind: str, name: str, more: str = "") -> None:
        """Create a table with the target's columns, without its constraints."""
        create = f"CREATE {kind} {name} {more} AS SELECT * FROM {self.table.name} WITH NO DATA"
        await self.connection.execute(create.encode())
        await self.connection.execute(f"ALTER TABLE {name} ADD COLUMN {ROW} bigserial".encode())

    async def _copied(self, rows: str, batch: list[Record]) -> None:
        columns = self.table.used(batch, self.seen, self._key)
        texts = self.table.texts(batch, columns, self.seen)
        names = quoted([column.name for column in columns])
        statement = f"COPY {rows} ({names}) FROM STDIN"
        try:
            async with self.connection.cursor() as cursor, cursor.copy(statement.encode()) as copy:
                for row in texts:
                    await copy.write_row(row)
        except DataError as error:
            raise self._placed(error) or error from None
        self.used |= {column.name: column for column in columns}
        self.seen += len(batch)

    def _placed(self, error: DataError) -> SinkError | None:
        """The error with the row and the column that COPY names."""
        place = _PLACE.search(error.diag.context or "")
        if place is None:
            return None
        row = self.seen + int(place[1]) - 1
        return self.table.refused(place[2], row, f"does not fit: {error.diag.message_primary}")

    async def _move(self, rows: str) -> int:
        expressions = {name: identifier(name) for name in self.table.columns if name in self.used}
        cursor = await self._stored(expressions, rows, [])
        return max(cursor.rowcount, 0)

    # ---- into the target -------------------------------------------------------------------------

    async def _stored(
        self, expressions: dict[str, str], rows: str, parameters: Sequence[Any]
    ) -> AsyncRawCursor[Any]:
        """Insert into the target. `expressions` gives the value of each column, over `rows`."""
        names = quoted(list(expressions))
        values = ", ".join(expressions.values())
        statement = f"INSERT INTO {self.table.name} ({names}) SELECT {values} FROM {rows}"
        if self.target.upserts:
            key = ", ".join(expressions[name] for name in self._key)
            action = conflict_action(list(expressions), self._key)
            statement = (
                f"INSERT INTO {self.table.name} ({names}) SELECT DISTINCT ON ({key}) {values} FROM {rows} "
                f"ORDER BY {key}, {ROW} DESC "
                f"ON CONFLICT ({quoted(self._key)}) DO {action}"
            )
        try:
            return await _do(self.connection, statement, parameters)
        except InvalidColumnReference:
            if not self.target.upserts:
                raise
            index = f"CREATE UNIQUE INDEX ON {self.table.name} ({quoted(self._key)})"
            key = ", ".join(self._key)
            message = f"{self.table.name} has no unique index on its key ({key}): {index}"
            raise SinkError(
                "SINK_KEY_NOT_UNIQUE", message, kind="config", table=self.table.name
            ) from None

    @property
    def _key(self) -> list[str]:
        return self.target.key if self.target.upserts else []

    # ---- staged ----------------------------------------------------------------------------------

    async def staged(self, value: Any) -> dict[str, Any]:
        """Collect the rows in a staging table, and move them into the target.

        The lock belongs to the connection: it waits for an earlier attempt that still runs.
        """
        lock = "SELECT pg_advisory_lock(hashtextextended($1, 0))"
        await _do(self.connection, lock, [self.call.key])
        table = f"noetl_stage_{self.call.key[:32]}"
        rows = f"{identifier(self.schema)}.{identifier(table)}"
        # An earlier attempt that has ended may have left the table.
        await self.connection.execute(f"DROP TABLE IF EXISTS {rows}".encode())
        await self._make("UNLOGGED TABLE", rows)
        async for batch in batches(value):
            await self._copied(rows, batch)
        result: dict[str, Any] = {"row_count": 0}
        async with self.connection.transaction():
            await self._limited()
            if self.target.keyed and not await self._first_time():
                result["repeated"] = True
            elif self.used:
                result["row_count"] = await self._move(rows)
            await self.connection.execute(f"DROP TABLE {rows}".encode())
        return result


async def _do(
    connection: Connection, statement: str, parameters: Sequence[Any]
) -> AsyncRawCursor[Any]:
    """Execute a statement with `$1`, `$2` … for the values of `parameters`."""
    return await AsyncRawCursor(connection).execute(statement.encode(), parameters or None)
