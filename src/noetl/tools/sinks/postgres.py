"""A table in Postgres. Whatever the mode, the target changes in one transaction or not at all.

    insert    adds the rows; its key goes into `noetl_sink` in the same transaction, and a key that is there already adds nothing
    upsert    rows replace those with the same `key`; of several in the data, the last
    replace   the table has these rows and no others
    staged    rows are first collected in a table beside the target, batch by batch, then moved by one statement: as `upsert` when
              there is a `key`, else as `insert`. For loads too long for one transaction

A batch is one statement. More of them are copied into a temporary table, and moved by one statement.
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
LOCK = 7_201_402_613  # of whoever makes `noetl_sink`: making it twice at once fails
SHAPES: dict[str, Shape] = {"json": "json", "jsonb": "json", "bytea": "bytes"}
ROWS = "pg_temp.noetl_rows"
ROW = "noetl_row"  # a column of its own in tables of rows: their order
_PLACE = re.compile(r"COPY \S+, line (\d+), column (.+?)(?:: |, null|$)", re.DOTALL)

Connection = AsyncConnection[Any]


async def write(
    connection: Connection, target: SinkTarget, call: Call, value: Any
) -> dict[str, Any]:
    writing = await _described(connection, target, call)
    if target.keyed and not writing.ready:
        await _make_keys(connection)
    if target.mode == "staged":
        return await writing.staged(value)
    try:
        async with connection.transaction():
            return await writing.directly(value)
    except DataError:
        await writing.explain()
        raise


async def _described(
    connection: Connection, target: SinkTarget, call: Call
) -> "PostgresSinkWriter":
    """Names as written, or else as SQL folds them."""
    parts = name_parts(target.table)
    names = [
        ".".join(map(identifier, spelled)) for spelled in (parts, [part.lower() for part in parts])
    ]
    rows = await (await _do(connection, DESCRIBE, names)).fetchall()
    if not rows:
        message = f"there is no table {target.table}, or this user does not see it; create it before it is written to"
        raise SinkError("SINK_TABLE", message, kind="config", table=target.table)
    columns = [
        SinkColumn(name, kind, SHAPES.get(base, "plain"), array)
        for _, _, name, kind, base, array, _ in rows
    ]
    table = SinkTable(rows[0][0], {column.name: column for column in columns})
    if unknown := [name for name in target.key if name not in table.columns]:
        raise SinkError(
            "SINK_COLUMN",
            f"{table.name} has no column {unknown[0]!r}, which is part of `key`",
            kind="config",
        )
    return PostgresSinkWriter(connection, target, call, table, rows[0][1], rows[0][6])


async def _make_keys(connection: Connection) -> None:
    try:
        async with connection.transaction():
            await _do(connection, "SELECT pg_advisory_xact_lock($1)", [LOCK])
            await connection.execute(keys.MAKE)
    except InsufficientPrivilege:
        raise SinkError("SINK_FORBIDDEN", keys.FORBIDDEN, kind="auth") from None


@dataclass(slots=True)
class PostgresSinkWriter:
    connection: Connection
    target: SinkTarget
    call: Call
    table: SinkTable
    schema: str
    ready: bool  # there is a table for keys
    used: dict[str, SinkColumn] = field(default_factory=dict)  # columns that some row had
    seen: int = 0  # rows
    only: list[Record] = field(default_factory=list)  # the one batch there was

    # ---- in one transaction ----------------------------------------------------------------------------------------------

    async def directly(self, value: Any) -> dict[str, Any]:
        await self._limited()
        if self.target.keyed and not await self._first_time():
            return {"row_count": 0, "repeated": True}
        if self.target.mode == "replace":
            await self.connection.execute(f"DELETE FROM {self.table.name}".encode())
        found = batches(value)
        first, second = await anext(found, None), await anext(found, None)
        if first is None:
            return {"row_count": 0}
        if second is None:
            return {"row_count": await self._insert(first)}
        await self._make("TEMP TABLE", ROWS, "ON COMMIT DROP")
        await self._copied(ROWS, first)
        await self._copied(ROWS, second)
        async for batch in found:
            await self._copied(ROWS, batch)
        return {"row_count": await self._move(ROWS)}

    async def _limited(self) -> None:
        """Should this worker vanish, the server stops by itself."""
        if self.call.timeout is not None:
            milliseconds = str(max(1, self.call.timeout // 1_000))
            await _do(
                self.connection, "SELECT set_config('statement_timeout', $1, true)", [milliseconds]
            )

    async def _first_time(self) -> bool:
        """False: this very call has been done. Another that is about to be is waited for."""
        identity = self.call.identity
        try:
            kept = await _do(
                self.connection,
                KEEP_KEY,
                [self.call.key, str(identity.execution_id), identity.step],
            )
        except InsufficientPrivilege:
            raise SinkError("SINK_FORBIDDEN", keys.FORBIDDEN, kind="auth") from None
        return kept.rowcount == 1

    # ---- few rows ------------------------------------------------------------------------------------------------------------

    async def _insert(self, batch: list[Record]) -> int:
        self.only = batch
        columns = self.table.used(batch, 0, self._key)
        texts = self.table.texts(batch, columns, 0)
        names = [f"c{number}" for number in range(len(columns))]
        given = ", ".join(f"${number + 1}::text[]" for number in range(len(columns)))
        rows = f"unnest({given}) WITH ORDINALITY AS rows({', '.join([*names, ROW])})"
        values = {
            column.name: f"{name}::{column.type}"
            for name, column in zip(names, columns, strict=True)
        }
        done = await self._stored(values, rows, [list(found) for found in zip(*texts, strict=True)])
        return max(done.rowcount, 0)

    async def explain(self) -> None:
        """Raises what is wrong with the one batch, if COPY can tell: it says which value of which row the server refuses."""
        try:
            async with self.connection.transaction(force_rollback=True):
                await self._make("TEMP TABLE", ROWS, "ON COMMIT DROP")
                await self._copied(ROWS, self.only)
        except psycopg.Error:  # it may make no tables: then the first error says it all
            return

    # ---- many rows -----------------------------------------------------------------------------------------------------------

    async def _make(self, kind: str, name: str, more: str = "") -> None:
        """A table of the target's columns, without what the target asks of them."""
        await self.connection.execute(
            f"CREATE {kind} {name} {more} AS SELECT * FROM {self.table.name} WITH NO DATA".encode()
        )
        await self.connection.execute(f"ALTER TABLE {name} ADD COLUMN {ROW} bigserial".encode())

    async def _copied(self, rows: str, batch: list[Record]) -> None:
        columns = self.table.used(batch, self.seen, self._key)
        texts = self.table.texts(batch, columns, self.seen)
        statement = f"COPY {rows} ({quoted([column.name for column in columns])}) FROM STDIN"
        try:
            async with self.connection.cursor() as cursor, cursor.copy(statement.encode()) as copy:
                for row in texts:
                    await copy.write_row(row)
        except DataError as error:
            raise self._placed(error) or error from None
        self.used |= {column.name: column for column in columns}
        self.seen += len(batch)

    def _placed(self, error: DataError) -> SinkError | None:
        place = _PLACE.search(error.diag.context or "")
        if place is None:
            return None
        row = self.seen + int(place[1]) - 1
        return self.table.refused(place[2], row, f"does not fit: {error.diag.message_primary}")

    async def _move(self, rows: str) -> int:
        values = {name: identifier(name) for name in self.table.columns if name in self.used}
        return max((await self._stored(values, rows, [])).rowcount, 0)

    # ---- into the target -----------------------------------------------------------------------------------------------------

    async def _stored(
        self, values: dict[str, str], rows: str, given: Sequence[Any]
    ) -> AsyncRawCursor[Any]:
        """`values` are the columns with the expressions over `rows` that give them."""
        listed, chosen = quoted(list(values)), ", ".join(values.values())
        statement = f"INSERT INTO {self.table.name} ({listed}) SELECT {chosen} FROM {rows}"
        if self.target.upserts:
            key = ", ".join(values[name] for name in self._key)
            rest = [name for name in values if name not in self._key]
            update = ", ".join(f"{identifier(name)} = EXCLUDED.{identifier(name)}" for name in rest)
            statement = (
                f"INSERT INTO {self.table.name} ({listed}) SELECT DISTINCT ON ({key}) {chosen} FROM {rows} "
                f"ORDER BY {key}, {ROW} DESC "
                f"ON CONFLICT ({quoted(self._key)}) DO {f'UPDATE SET {update}' if update else 'NOTHING'}"
            )
        try:
            return await _do(self.connection, statement, given)
        except InvalidColumnReference:
            if not self.target.upserts:
                raise
            unique = f"CREATE UNIQUE INDEX ON {self.table.name} ({quoted(self._key)})"
            message = f"{self.table.name} has no unique index on its key ({', '.join(self._key)}): {unique}"
            raise SinkError(
                "SINK_KEY_NOT_UNIQUE", message, kind="config", table=self.table.name
            ) from None

    @property
    def _key(self) -> list[str]:
        return self.target.key if self.target.upserts else []

    # ---- staged --------------------------------------------------------------------------------------------------------------

    async def staged(self, value: Any) -> dict[str, Any]:
        """The lock is the connection's: whoever was at this call before and still lives is waited for."""
        await _do(
            self.connection, "SELECT pg_advisory_lock(hashtextextended($1, 0))", [self.call.key]
        )
        rows = f"{identifier(self.schema)}.{identifier(f'noetl_stage_{self.call.key[:32]}')}"
        await self.connection.execute(
            f"DROP TABLE IF EXISTS {rows}".encode()
        )  # of an attempt that is no more
        await self._make("UNLOGGED TABLE", rows)
        async for batch in batches(value):
            await self._copied(rows, batch)
        async with self.connection.transaction():
            await self._limited()
            repeated = self.target.keyed and not await self._first_time()
            moved = 0 if repeated or not self.used else await self._move(rows)
            await self.connection.execute(f"DROP TABLE {rows}".encode())
        return {"row_count": moved, "repeated": True} if repeated else {"row_count": moved}


async def _do(connection: Connection, statement: str, given: Sequence[Any]) -> AsyncRawCursor[Any]:
    """With `$1`, `$2` … for what is given."""
    return await AsyncRawCursor(connection).execute(statement.encode(), given or None)
