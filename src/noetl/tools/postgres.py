"""`postgres`: runs statements in one transaction.

The value is `{rows, row_count, columns}` of the last one. Connections are kept per credential and
reset between calls. Rows go to the store in batches, from a cursor. They go in bulk
(`postgres_bulk.py`) if the task is a single query and the planner expects many rows. When a call is
cancelled or times out, the server cancels the statement before `run` returns.
"""

import asyncio
import hashlib
import select
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import AsyncConnection, AsyncRawCursor
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.generators import fetch
from psycopg.pq import ExecStatus, TransactionStatus

from noetl.model.errors import Failure
from noetl.results.rowsets import Writer
from noetl.results.tables import EncodedTable, Tables
from noetl.tools.port import Call, Failed, Outcome, Success
from noetl.tools.postgres_types import ColumnConversion, as_stored, columns
from noetl.tools.sql import (
    Parameter,
    SqlError,
    Statement,
    changed,
    column_names,
    listed,
    open_transaction,
    quoted,
    scalar,
)
from noetl.tools.sql_task import RAW, prepared
from noetl.tools.threads import in_thread

CONNECTIONS = 8  # per credential
IDLE = 60.0  # seconds until an unused connection is closed
CONNECT_TIMEOUT = 10
BATCH = 1_000  # rows
BULK = 20_000  # rows from which on a bulk read is worth its own connection
COPIED = frozenset(("SELECT", "VALUES", "TABLE"))
# A single statement of these needs no transaction.
READING = frozenset(("SELECT", "VALUES", "TABLE", "SHOW"))
FIELDS = {
    "host": "host",
    "hostname": "host",
    "port": "port",
    "dbname": "dbname",
    "database": "dbname",
    "db": "dbname",
    "user": "user",
    "username": "user",
    "password": "password",
    "sslmode": "sslmode",
    "sslrootcert": "sslrootcert",
    "options": "options",
    "application_name": "application_name",
}
WHOLE = ("dsn", "url", "uri", "connection_string", "conninfo")


class Postgres:
    kind = "postgres"
    raw = RAW

    def __init__(self) -> None:
        # The first array loads pandas, if it is installed, for seconds. A tool is made in a thread.
        pa.array([])
        self._pools: dict[str, _Pool] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    async def close(self) -> None:
        pools, self._pools = self._pools, {}
        if self._loop is asyncio.get_running_loop():
            for pool in pools.values():
                await pool.close()

    async def run(self, call: Call) -> Outcome:
        statements = await prepared(call, "postgres")
        if isinstance(statements, Failure):
            return Failed(statements)
        try:
            conninfo = address(call.auth, call.config.get("database"))
            async with self._pool(conninfo).connection() as connection:
                value = await _in_bulk(connection, conninfo, statements, call)
                if value is None:
                    value = await _run(connection, statements, call)
        except SqlError as error:
            return Failed(error.failure)
        except StatementFailed as failed:
            facts = {"pg": {"sqlstate": failed.error.sqlstate}}
            return Failed(failure(failed.error, failed.excerpt), facts)
        except psycopg.Error as error:
            return Failed(failure(error), {"pg": {"sqlstate": error.sqlstate}})
        except pa.ArrowException as error:
            message = f"a value does not fit its column: {error}; cast it in the statement"
            return Failed(Failure(code="SQL_VALUE", kind="data", message=message))
        except UnicodeEncodeError:
            message = "a text in the statement is not valid Unicode"
            return Failed(Failure(code="SQL_VALUE", kind="data", message=message))
        return Success(value, {"pg": {"statements": len(statements)}})

    def connection(
        self, auth: Any, database: Any = None
    ) -> AbstractAsyncContextManager[AsyncConnection[Any]]:
        """A connection for another tool that writes to the same databases.

        It is reset afterwards.
        """
        return self._pool(address(auth, database)).connection()

    def _pool(self, conninfo: str) -> "_Pool":
        loop = asyncio.get_running_loop()
        if self._loop is not loop:  # connections belong to the loop they were made on
            self._loop = loop
            self._pools = {}
        key = hashlib.sha256(conninfo.encode()).hexdigest()
        if key not in self._pools:
            self._pools[key] = _Pool(conninfo)
        return self._pools[key]


def address(auth: Any, database: Any = None) -> str:
    """The conninfo of a credential: one text, or host, port, user, password, database ….

    The task's `database` wins.
    """
    if not isinstance(auth, dict):
        message = "postgres needs `auth`: the name of a credential, or of a keychain entry, with host, user, password, database"
        raise SqlError("AUTH_MISSING", message)
    conninfo: dict[str, Any] = {"connect_timeout": CONNECT_TIMEOUT, "application_name": "noetl"}
    for name in WHOLE:
        if isinstance(auth.get(name), str):
            conninfo |= conninfo_to_dict(auth[name])
    for name, value in auth.items():
        if name in FIELDS and value is not None:
            conninfo[FIELDS[name]] = value
    if database is not None:
        conninfo["dbname"] = database
    return make_conninfo(**conninfo)


# ---- running -------------------------------------------------------------------------------------


async def _in_bulk(
    connection: AsyncConnection[Any], conninfo: str, statements: list[Statement], call: Call
) -> Any:
    """Read the rows in bulk.

    Returns None, without running anything, if this is not a single query with many rows, or if it
    has columns that a bulk read does not support.
    """
    statement = statements[0]
    if len(statements) > 1 or call.config.get("autocommit"):
        return None
    if statement.first not in COPIED or statement.has_secrets or not _conforms(connection):
        return None
    query = statement.written(literal)
    if await _estimate(connection, query) < BULK:
        return None
    # Imported here, because it loads a driver that few workers need.
    from noetl.tools.postgres_bulk import Bulk, BulkError, is_lost

    query += "\n"  # the driver puts it into brackets, and it may end in a comment
    timeout = _milliseconds(call)
    bulk = Bulk(conninfo, query, timeout, call.tables)
    try:
        return await in_thread(bulk.run, bulk.interrupt, "postgres")
    except BulkError as error:
        kind = error_kind(error.sqlstate)
        if is_lost(str(error)):
            kind = "connection"
        raise SqlError("SQL_ERROR", str(error), kind, kind in RETRYABLE, error.sqlstate) from error


def _milliseconds(call: Call) -> int | None:
    """The `statement_timeout` of a call, by which the server stops even if this worker dies."""
    if call.timeout is None:
        return None
    return max(1, call.timeout // 1_000)


async def _estimate(connection: AsyncConnection[Any], query: str) -> int:
    """The number of rows that the planner expects; 0 if the query is wrong."""
    explain = f"EXPLAIN (FORMAT JSON) {query}"
    try:
        explained = await connection.execute(explain.encode(connection.info.encoding))
        [(plan,)] = await explained.fetchall()
        return int(plan[0]["Plan"]["Plan Rows"])
    except psycopg.Error:
        return 0


async def _run(connection: AsyncConnection[Any], statements: list[Statement], call: Call) -> Any:
    is_single_read = len(statements) == 1 and statements[0].first in READING
    if is_single_read or call.config.get("autocommit"):
        value = await _all(connection, statements, call)
        if connection.pgconn.transaction_status != TransactionStatus.IDLE:
            if isinstance(value, EncodedTable):
                value.close()
            raise open_transaction()
        return value
    async with connection.transaction():
        return await _all(connection, statements, call)


async def _all(connection: AsyncConnection[Any], statements: list[Statement], call: Call) -> Any:
    """Run the statements. Returns the value of the last one."""
    timeout = _milliseconds(call)
    if timeout is not None:
        await connection.execute(
            "SELECT set_config('statement_timeout', %s, false)", (str(timeout),)
        )
    for statement in statements[:-1]:
        await _one(connection, statement, None)
    return await _one(connection, statements[-1], call.tables)


class StatementFailed(Exception):
    """An error of the database, with the line of the statement that it is about."""

    def __init__(self, error: psycopg.Error, statement: Statement) -> None:
        super().__init__(str(error))
        self.error = error
        self.excerpt = ""
        if error.diag.message_primary:  # else it is an error of the driver
            text = error.diag.statement_position
            position = int(text) if text else None
            self.excerpt = statement.excerpt(position, literal)


async def _one(
    connection: AsyncConnection[Any], statement: Statement, tables: Tables | None
) -> Any:
    try:
        return await _streamed(connection, statement, tables)
    except psycopg.Error as error:
        raise StatementFailed(error, statement) from error


async def _streamed(
    connection: AsyncConnection[Any], statement: Statement, tables: Tables | None
) -> Any:
    """Run a statement. Its rows go to `tables`; without `tables` they are dropped."""
    query, values = _bound(statement)
    if not _conforms(connection):  # a backslash must not end a literal
        await connection.execute("SET standard_conforming_strings = on")
    async with _Cursor(connection) as cursor:
        as_stored(cursor.adapters)
        rows = None if tables is None else _Rows(cursor, tables)
        # `stream` is a generator, though it is typed as an iterator. Closing it cancels the statement.
        generator: Any = cursor.stream(query.encode(), values or None, size=BATCH)
        try:
            async with aclosing(generator) as stream:
                async for row in stream:
                    if rows is not None:
                        await rows.add(row)
            if rows is not None and cursor.description:
                return await rows.done()
        except BaseException:
            if rows is not None:
                rows.discard()
            raise
        result = cursor.pgresult
        return changed(None if result is None else result.command_tuples)


class _Rows:
    """Writes the rows of one result to the store, in batches, in a thread."""

    def __init__(self, cursor: "_Cursor", tables: Tables) -> None:
        self._cursor = cursor
        self._tables = tables
        self._waiting: list[Any] = []
        self._columns: list[ColumnConversion] = []
        self._writer: Writer | None = None

    async def add(self, row: Any) -> None:
        self._waiting.append(row)
        if len(self._waiting) >= BATCH:
            await asyncio.to_thread(self._write)

    def _write(self) -> Writer:
        rows = self._waiting
        self._waiting = []
        values_by_column = list(zip(*rows, strict=True))
        if self._writer is None:
            self._writer = self._begun(values_by_column)
        arrays = [
            column.array(values)
            for column, values in zip(self._columns, values_by_column, strict=False)
        ]
        if rows:
            batch = pa.RecordBatch.from_arrays(arrays, schema=self._writer.schema)
            self._writer.write(batch)
        return self._writer

    def _begun(self, values_by_column: list[Any]) -> Writer:
        """Make the columns and the writer from the first batch."""
        names = column_names(column.name for column in self._cursor.description or ())
        result = self._cursor.pgresult
        assert result is not None
        kinds = [(result.ftype(number), result.fmod(number)) for number in range(len(names))]
        first_values = values_by_column or [()] * len(names)
        self._columns = columns(names, kinds, first_values)
        schema = pa.schema([column.field for column in self._columns])
        return Writer(schema, self._tables)

    async def done(self) -> Any:
        """Write the last batch and finish the table. A single batch is too small for a thread."""
        is_single_batch = self._writer is None
        writer = self._write()
        if is_single_batch:
            return writer.done()
        return await asyncio.to_thread(writer.done)

    def discard(self) -> None:
        if self._writer is not None:
            self._writer.discard()


class _Cursor(AsyncRawCursor[Any]):
    """A cursor that can stream a statement without rows.

    It also keeps the columns of a query with an empty result.
    """

    def _stream_fetchone_gen(self, first: bool) -> Any:
        result = yield from fetch(self._pgconn)
        if result is None:
            return None
        if result.status in (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK):
            self.pgresult = result
            while (later := (yield from fetch(self._pgconn))) is not None:
                # The commit that follows the statement may fail.
                if later.status == ExecStatus.FATAL_ERROR:
                    self._raise_for_result(later)
            return None
        if result.status in (ExecStatus.SINGLE_TUPLE, ExecStatus.TUPLES_CHUNK):
            self.pgresult = result
            self._tx.set_pgresult(result, set_loaders=first)
            if first:
                self._make_row = self._make_row_maker()
            return result
        return self._raise_for_result(result)


def _conforms(connection: AsyncConnection[Any]) -> bool:
    """Whether a backslash in quotes is a plain character, as in the SQL standard and by default."""
    return connection.pgconn.parameter_status(b"standard_conforming_strings") != b"off"


def _bound(statement: Statement) -> tuple[str, list[Any]]:
    """The query and its parameters.

    Secrets are parameters, so that no log of the server shows them.
    """
    if statement.has_secrets:
        return statement.bound(literal)
    return statement.written(literal), []


# Functions with the type of their argument, which therefore needs a cast.
_ASK_THEIR_ARGUMENT = frozenset({"TO_JSON", "TO_JSONB", "JSON_AGG", "JSONB_AGG", "ARRAY_AGG"})


def literal(parameter: Parameter) -> str:
    """The literal that an author would write for the value in its place."""
    value = parameter.value
    if isinstance(value, list):
        if parameter.in_list:
            return listed(parameter, literal)
        return _array(parameter)
    known = scalar(value)
    if known is not None:
        return known
    if "\0" in value:
        message = f"{parameter.shown}: Postgres has no text with the character zero"
        raise SqlError("SQL_VALUE", message, "data")
    text = quoted(str(value))
    if parameter.function in _ASK_THEIR_ARGUMENT:
        text += "::text"
    return text


def _array(parameter: Parameter) -> str:
    """The literal of an array. Texts get the type of the column beside them, if there is one."""
    if any(isinstance(leaf, bool | int | float) for leaf in _leaves(parameter.value)):
        return _constructed(parameter.value)
    if parameter.typed_by_place:
        return quoted(_array_text(parameter.value))
    if all(leaf is None for leaf in _leaves(parameter.value)):
        return f"{quoted(_array_text(parameter.value))}::text[]"
    return _constructed(parameter.value)


def _leaves(value: list[Any]) -> Iterator[Any]:
    for part in value:
        if isinstance(part, list):
            yield from _leaves(part)
        else:
            yield part


def _constructed(value: list[Any]) -> str:
    """An ARRAY constructor."""
    parts: list[str] = []
    for part in value:
        if isinstance(part, list):
            parts.append(_constructed(part))
        else:
            parts.append(literal(Parameter(part)))
    return f"ARRAY[{', '.join(parts)}]"


def _array_text(value: Any) -> str:
    """The text form of an array, which Postgres parses."""
    if value is None:
        return "NULL"
    if isinstance(value, list):
        return "{" + ",".join(map(_array_text, value)) + "}"
    if "\0" in value:
        raise SqlError("SQL_VALUE", "Postgres has no text with the character zero", "data")
    escaped = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


# ---- errors --------------------------------------------------------------------------------------

KINDS = {
    "08": "connection",
    "22": "data",
    "23": "constraint",
    "25": "transaction",
    "26": "sql",
    "28": "auth",
    "40": "conflict",
    "42": "syntax",
    "53": "resource",
    "54": "resource",
    "57": "unavailable",
    "58": "unavailable",
}
OWN = {"57014": "timeout", "42501": "auth", "55P03": "conflict"}
# Not null, check, check option: their detail is the whole row, which must not be in an error.
QUOTING_ROWS = frozenset(("23502", "23514", "44000"))
RETRYABLE = frozenset(("connection", "conflict", "resource", "unavailable", "timeout"))


def error_kind(state: str | None) -> str:
    if state is None:
        return "sql"
    if state in OWN:
        return OWN[state]
    return KINDS.get(state[:2], "sql")


def failure(error: psycopg.Error, excerpt: str = "") -> Failure:
    state = error.sqlstate
    kind = error_kind(state)
    code = "SQL_ERROR"
    if state is None:
        if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
            kind = "connection"
            code = "CONNECTION_FAILED"
        elif isinstance(error, psycopg.DataError):
            kind = "data"
    return Failure(
        code=code,
        kind=kind,
        message=_message(error, kind, excerpt),
        retryable=kind in RETRYABLE,
        sqlstate=state,
        detail=_detail(error),
    )


def _message(error: psycopg.Error, kind: str, excerpt: str) -> str:
    diag = error.diag
    message = diag.message_primary or str(error).strip().partition("\n")[0]
    if error.sqlstate == "25001":
        message += " (set autocommit: true)"
    elif diag.message_hint:
        message += f" ({diag.message_hint})"
    if excerpt and kind not in ("connection", "timeout", "unavailable"):
        message += f"\n{excerpt}"
    return message


def _detail(error: psycopg.Error) -> dict[str, Any]:
    diag = error.diag
    detail = {
        "detail": diag.message_detail,
        "position": diag.statement_position,
        "table": diag.table_name,
        "column": diag.column_name,
        "constraint": diag.constraint_name,
    }
    if error.sqlstate in QUOTING_ROWS:
        del detail["detail"]
    return {name: value for name, value in detail.items() if value is not None}


# ---- connections ---------------------------------------------------------------------------------


@dataclass(slots=True)
class _Pool:
    conninfo: str
    idle: list[tuple[float, AsyncConnection[Any]]] = field(default_factory=list)
    places: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(CONNECTIONS))
    sweep: asyncio.TimerHandle | None = None
    closing: set[asyncio.Task[None]] = field(default_factory=set)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[AsyncConnection[Any]]:
        async with self.places:
            connection = await self._open()
            try:
                yield connection
            finally:
                await self._give_back(connection)

    async def _open(self) -> AsyncConnection[Any]:
        while self.idle:
            _, connection = self.idle.pop()
            if _alive(connection):
                return connection
            await connection.close()
        return await AsyncConnection.connect(self.conninfo, autocommit=True, prepare_threshold=None)

    async def _give_back(self, connection: AsyncConnection[Any]) -> None:
        """Reset settings, temporary tables and locks.

        A connection that cannot be reset is closed.
        """
        try:
            if connection.pgconn.transaction_status == TransactionStatus.IDLE:
                await connection.execute("DISCARD ALL")
                self._keep(connection)
                return
        except psycopg.Error:
            pass
        except asyncio.CancelledError:
            await connection.close()
            raise
        await connection.close()

    def _keep(self, connection: AsyncConnection[Any]) -> None:
        loop = asyncio.get_running_loop()
        self.idle.append((loop.time(), connection))
        if self.sweep is None:
            self.sweep = loop.call_later(IDLE, self._sweep)

    def _sweep(self) -> None:
        """Close the connections that have been idle for too long."""
        self.sweep = None
        loop = asyncio.get_running_loop()
        idle_since = loop.time() - IDLE
        old = [entry for entry in self.idle if entry[0] <= idle_since]
        self.idle = [entry for entry in self.idle if entry[0] > idle_since]
        for _, connection in old:
            task = loop.create_task(connection.close())
            self.closing.add(task)
            task.add_done_callback(self.closing.discard)
        if self.idle:
            self.sweep = loop.call_later(IDLE, self._sweep)

    async def close(self) -> None:
        if self.sweep is not None:
            self.sweep.cancel()
        while self.idle:
            _, connection = self.idle.pop()
            await connection.close()


def _alive(connection: AsyncConnection[Any]) -> bool:
    """Whether the server still holds the connection: to an idle one it only sends its end."""
    if connection.closed:
        return False
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return not poll.poll(0)
