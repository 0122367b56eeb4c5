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
from noetl.results.formats.rowsets import RowSetWriter
from noetl.results.formats.tables import EncodedTable, TableOptions
from noetl.tools.egress.guard import EgressGuard, EgressRefused
from noetl.tools.port import Call, Failed, Outcome, Success
from noetl.tools.postgres.hosts import pin_conninfo_hosts
from noetl.tools.postgres.types import ColumnConversion, make_conversions, register_loaders
from noetl.tools.sql.statements import (
    Parameter,
    SqlError,
    Statement,
    format_in_list,
    format_scalar,
    make_changed_result,
    make_unique_names,
    open_transaction_error,
    quote_sql_text,
)
from noetl.tools.sql.task import RAW_SQL_FIELDS, prepare_statements
from noetl.tools.sql.threads import run_in_thread

MAX_CONNECTIONS = 8  # per credential
MAX_IDLE_CONNECTION_S = 60.0  # seconds until an unused connection is closed
POSTGRES_CONNECT_TIMEOUT_S = 10
CURSOR_BATCH_ROWS = 1_000  # rows
MIN_BULK_ROWS = 20_000  # rows from which on a bulk read is worth its own connection
BULK_STATEMENTS = frozenset(("SELECT", "VALUES", "TABLE"))
# A single statement of these needs no transaction.
READ_ONLY_STATEMENTS = frozenset(("SELECT", "VALUES", "TABLE", "SHOW"))
CONNINFO_FIELDS = {
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
CONNINFO_TEXT_FIELDS = ("dsn", "url", "uri", "connection_string", "conninfo")


class Postgres:
    kind = "postgres"
    raw = RAW_SQL_FIELDS

    def __init__(self, guard: EgressGuard | None = None) -> None:
        self._guard = guard or EgressGuard()
        # The first array loads pandas, if it is installed, for seconds. A tool is made in a thread.
        pa.array([])
        self._pools: dict[str, _ConnectionPool] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    async def close(self) -> None:
        pools, self._pools = self._pools, {}
        if self._loop is asyncio.get_running_loop():
            for pool in pools.values():
                await pool.close()

    async def run(self, call: Call) -> Outcome:
        statements = await prepare_statements(call, "postgres")
        if isinstance(statements, Failure):
            return Failed(statements)
        try:
            conninfo = make_credential_conninfo(call.auth, call.config.get("database"))
            pool = self._get_pool(conninfo)
            async with pool.hold_connection() as connection:
                value = await _run_in_bulk(connection, pool, statements, call)
                if value is None:
                    value = await _run_transaction(connection, statements, call)
        except SqlError as error:
            return Failed(error.failure)
        except StatementFailed as failed:
            facts = {"pg": {"sqlstate": failed.error.sqlstate}}
            return Failed(make_sql_failure(failed.error, failed.excerpt), facts)
        except psycopg.Error as error:
            return Failed(make_sql_failure(error), {"pg": {"sqlstate": error.sqlstate}})
        except pa.ArrowException as error:
            message = f"a value does not fit its column: {error}; cast it in the statement"
            return Failed(Failure(code="SQL_VALUE", kind="data", message=message))
        except UnicodeEncodeError:
            message = "a text in the statement is not valid Unicode"
            return Failed(Failure(code="SQL_VALUE", kind="data", message=message))
        return Success(value, {"pg": {"statements": len(statements)}})

    def open_connection(
        self, auth: Any, database: Any = None
    ) -> AbstractAsyncContextManager[AsyncConnection[Any]]:
        """A connection for another tool that writes to the same databases.

        It is reset afterwards.
        """
        return self._get_pool(make_credential_conninfo(auth, database)).hold_connection()

    def _get_pool(self, conninfo: str) -> "_ConnectionPool":
        loop = asyncio.get_running_loop()
        if self._loop is not loop:  # connections belong to the loop they were made on
            self._loop = loop
            self._pools = {}
        key = hashlib.sha256(conninfo.encode()).hexdigest()
        if key not in self._pools:
            self._pools[key] = _ConnectionPool(conninfo, self._guard)
        return self._pools[key]


def make_credential_conninfo(auth: Any, database: Any = None) -> str:
    """The conninfo of a credential: one text, or host, port, user, password, database ….

    The task's `database` wins.
    """
    if not isinstance(auth, dict):
        message = "postgres needs `auth`: the name of a credential, or of a keychain entry, with host, user, password, database"
        raise SqlError("AUTH_MISSING", message)
    conninfo: dict[str, Any] = {
        "connect_timeout": POSTGRES_CONNECT_TIMEOUT_S,
        "application_name": "noetl",
    }
    for name in CONNINFO_TEXT_FIELDS:
        if isinstance(auth.get(name), str):
            conninfo |= conninfo_to_dict(auth[name])
    for name, value in auth.items():
        if name in CONNINFO_FIELDS and value is not None:
            conninfo[CONNINFO_FIELDS[name]] = value
    if database is not None:
        conninfo["dbname"] = database
    return make_conninfo(**conninfo)


# ---- running -------------------------------------------------------------------------------------


async def _run_in_bulk(
    connection: AsyncConnection[Any],
    pool: "_ConnectionPool",
    statements: list[Statement],
    call: Call,
) -> Any:
    """Read the rows in bulk.

    Returns None, without running anything, if this is not a single query with many rows, or if it
    has columns that a bulk read does not support.
    """
    statement = statements[0]
    if len(statements) > 1 or call.config.get("autocommit"):
        return None
    if (
        statement.first not in BULK_STATEMENTS
        or statement.has_secrets
        or not _has_standard_strings(connection)
    ):
        return None
    query = statement.format_literals(format_postgres_literal)
    if await _estimate_rows(connection, query) < MIN_BULK_ROWS:
        return None
    # Imported here, because it loads a driver that few workers need.
    from noetl.tools.postgres.bulk import BulkError, BulkRead, is_connection_lost

    query += "\n"  # the driver puts it into brackets, and it may end in a comment
    timeout = _timeout_milliseconds(call)
    bulk = BulkRead(await pool.pin_hosts(), query, timeout, call.tables)
    try:
        return await run_in_thread(bulk.run, bulk.interrupt, "postgres")
    except BulkError as error:
        kind = classify_state(error.sqlstate)
        if is_connection_lost(str(error)):
            kind = "connection"
        raise SqlError(
            "SQL_ERROR", str(error), kind, kind in RETRYABLE_KINDS, error.sqlstate
        ) from error


def _timeout_milliseconds(call: Call) -> int | None:
    """The `statement_timeout` of a call, by which the server stops even if this worker dies."""
    if call.timeout is None:
        return None
    return max(1, call.timeout // 1_000)


async def _estimate_rows(connection: AsyncConnection[Any], query: str) -> int:
    """The number of rows that the planner expects; 0 if the query is wrong."""
    explain = f"EXPLAIN (FORMAT JSON) {query}"
    try:
        explained = await connection.execute(explain.encode(connection.info.encoding))
        [(plan,)] = await explained.fetchall()
        return int(plan[0]["Plan"]["Plan Rows"])
    except psycopg.Error:
        return 0


async def _run_transaction(
    connection: AsyncConnection[Any], statements: list[Statement], call: Call
) -> Any:
    is_single_read = len(statements) == 1 and statements[0].first in READ_ONLY_STATEMENTS
    if is_single_read or call.config.get("autocommit"):
        value = await _run_statements(connection, statements, call)
        if connection.pgconn.transaction_status != TransactionStatus.IDLE:
            if isinstance(value, EncodedTable):
                value.close()
            raise open_transaction_error()
        return value
    async with connection.transaction():
        return await _run_statements(connection, statements, call)


async def _run_statements(
    connection: AsyncConnection[Any], statements: list[Statement], call: Call
) -> Any:
    """Run the statements. Returns the value of the last one."""
    timeout = _timeout_milliseconds(call)
    if timeout is not None:
        await connection.execute(
            "SELECT set_config('statement_timeout', %s, false)", (str(timeout),)
        )
    for statement in statements[:-1]:
        await _run_statement(connection, statement, None)
    return await _run_statement(connection, statements[-1], call.tables)


class StatementFailed(Exception):
    """An error of the database, with the line of the statement that it is about."""

    def __init__(self, error: psycopg.Error, statement: Statement) -> None:
        super().__init__(str(error))
        self.error = error
        self.excerpt = ""
        if error.diag.message_primary:  # else it is an error of the driver
            text = error.diag.statement_position
            position = int(text) if text else None
            self.excerpt = statement.format_excerpt(position, format_postgres_literal)


async def _run_statement(
    connection: AsyncConnection[Any], statement: Statement, tables: TableOptions | None
) -> Any:
    try:
        return await _stream_rows(connection, statement, tables)
    except psycopg.Error as error:
        raise StatementFailed(error, statement) from error


async def _stream_rows(
    connection: AsyncConnection[Any], statement: Statement, tables: TableOptions | None
) -> Any:
    """Run a statement. Its rows go to `tables`; without `tables` they are dropped."""
    query, values = _bind_secrets(statement)
    if not _has_standard_strings(connection):  # a backslash must not end a literal
        await connection.execute("SET standard_conforming_strings = on")
    async with _StreamingCursor(connection) as cursor:
        register_loaders(cursor.adapters)
        rows = None if tables is None else _RowWriter(cursor, tables)
        # `stream` is a generator, though it is typed as an iterator. Closing it cancels the statement.
        generator: Any = cursor.stream(query.encode(), values or None, size=CURSOR_BATCH_ROWS)
        try:
            async with aclosing(generator) as stream:
                async for row in stream:
                    if rows is not None:
                        await rows.add_row(row)
            if rows is not None and cursor.description:
                return await rows.finish_table()
        except BaseException:
            if rows is not None:
                rows.discard()
            raise
        result = cursor.pgresult
        return make_changed_result(None if result is None else result.command_tuples)


class _RowWriter:
    """Writes the rows of one result to the store, in batches, in a thread."""

    def __init__(self, cursor: "_StreamingCursor", tables: TableOptions) -> None:
        self._cursor = cursor
        self._tables = tables
        self._waiting: list[Any] = []
        self._columns: list[ColumnConversion] = []
        self._writer: RowSetWriter | None = None

    async def add_row(self, row: Any) -> None:
        self._waiting.append(row)
        if len(self._waiting) >= CURSOR_BATCH_ROWS:
            await asyncio.to_thread(self._write_batch)

    def _write_batch(self) -> RowSetWriter:
        rows = self._waiting
        self._waiting = []
        values_by_column = list(zip(*rows, strict=True))
        if self._writer is None:
            self._writer = self._make_table_writer(values_by_column)
        arrays = [
            column.make_array(values)
            for column, values in zip(self._columns, values_by_column, strict=False)
        ]
        if rows:
            batch = pa.RecordBatch.from_arrays(arrays, schema=self._writer.schema)
            self._writer.write(batch)
        return self._writer

    def _make_table_writer(self, values_by_column: list[Any]) -> RowSetWriter:
        """Make the columns and the writer from the first batch."""
        names = make_unique_names(column.name for column in self._cursor.description or ())
        result = self._cursor.pgresult
        assert result is not None
        kinds = [(result.ftype(number), result.fmod(number)) for number in range(len(names))]
        first_values = values_by_column or [()] * len(names)
        self._columns = make_conversions(names, kinds, first_values)
        schema = pa.schema([column.field for column in self._columns])
        return RowSetWriter(schema, self._tables)

    async def finish_table(self) -> Any:
        """Write the last batch and finish the table. A single batch is too small for a thread."""
        is_single_batch = self._writer is None
        writer = self._write_batch()
        if is_single_batch:
            return writer.finish()
        return await asyncio.to_thread(writer.finish)

    def discard(self) -> None:
        if self._writer is not None:
            self._writer.discard()


class _StreamingCursor(AsyncRawCursor[Any]):
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


def _has_standard_strings(connection: AsyncConnection[Any]) -> bool:
    """Whether a backslash in quotes is a plain character, as in the SQL standard and by default."""
    return connection.pgconn.parameter_status(b"standard_conforming_strings") != b"off"


def _bind_secrets(statement: Statement) -> tuple[str, list[Any]]:
    """The query and its parameters.

    Secrets are parameters, so that no log of the server shows them.
    """
    if statement.has_secrets:
        return statement.format_bound(format_postgres_literal)
    return statement.format_literals(format_postgres_literal), []


# Functions with the type of their argument, which therefore needs a cast.
_TYPED_BY_ARGUMENT = frozenset({"TO_JSON", "TO_JSONB", "JSON_AGG", "JSONB_AGG", "ARRAY_AGG"})


def format_postgres_literal(parameter: Parameter) -> str:
    """The literal that an author would write for the value in its place."""
    value = parameter.value
    if isinstance(value, list):
        if parameter.in_list:
            return format_in_list(parameter, format_postgres_literal)
        return _format_array(parameter)
    known = format_scalar(value)
    if known is not None:
        return known
    if "\0" in value:
        message = f"{parameter.shown}: Postgres has no text with the character zero"
        raise SqlError("SQL_VALUE", message, "data")
    text = quote_sql_text(str(value))
    if parameter.function in _TYPED_BY_ARGUMENT:
        text += "::text"
    return text


def _format_array(parameter: Parameter) -> str:
    """The literal of an array. Texts get the type of the column beside them, if there is one."""
    if any(isinstance(leaf, bool | int | float) for leaf in _walk_leaves(parameter.value)):
        return _format_array_constructor(parameter.value)
    if parameter.typed_by_place:
        return quote_sql_text(_format_array_text(parameter.value))
    if all(leaf is None for leaf in _walk_leaves(parameter.value)):
        return f"{quote_sql_text(_format_array_text(parameter.value))}::text[]"
    return _format_array_constructor(parameter.value)


def _walk_leaves(value: list[Any]) -> Iterator[Any]:
    for part in value:
        if isinstance(part, list):
            yield from _walk_leaves(part)
        else:
            yield part


def _format_array_constructor(value: list[Any]) -> str:
    """An ARRAY constructor."""
    parts: list[str] = []
    for part in value:
        if isinstance(part, list):
            parts.append(_format_array_constructor(part))
        else:
            parts.append(format_postgres_literal(Parameter(part)))
    return f"ARRAY[{', '.join(parts)}]"


def _format_array_text(value: Any) -> str:
    """The text form of an array, which Postgres parses."""
    if value is None:
        return "NULL"
    if isinstance(value, list):
        return "{" + ",".join(map(_format_array_text, value)) + "}"
    if "\0" in value:
        raise SqlError("SQL_VALUE", "Postgres has no text with the character zero", "data")
    escaped = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


# ---- errors --------------------------------------------------------------------------------------

KINDS_BY_CLASS = {
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
KINDS_BY_STATE = {"57014": "timeout", "42501": "auth", "55P03": "conflict"}
# Not null, check, check option: their detail is the whole row, which must not be in an error.
STATES_QUOTING_ROWS = frozenset(("23502", "23514", "44000"))
RETRYABLE_KINDS = frozenset(("connection", "conflict", "resource", "unavailable", "timeout"))


def classify_state(state: str | None) -> str:
    if state is None:
        return "sql"
    if state in KINDS_BY_STATE:
        return KINDS_BY_STATE[state]
    return KINDS_BY_CLASS.get(state[:2], "sql")


def make_sql_failure(error: psycopg.Error, excerpt: str = "") -> Failure:
    state = error.sqlstate
    kind = classify_state(state)
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
        message=_format_error_message(error, kind, excerpt),
        retryable=kind in RETRYABLE_KINDS,
        sqlstate=state,
        detail=_make_error_detail(error),
    )


def _format_error_message(error: psycopg.Error, kind: str, excerpt: str) -> str:
    diag = error.diag
    message = diag.message_primary or str(error).strip().partition("\n")[0]
    if error.sqlstate == "25001":
        message += " (set autocommit: true)"
    elif diag.message_hint:
        message += f" ({diag.message_hint})"
    if excerpt and kind not in ("connection", "timeout", "unavailable"):
        message += f"\n{excerpt}"
    return message


def _make_error_detail(error: psycopg.Error) -> dict[str, Any]:
    diag = error.diag
    detail = {
        "detail": diag.message_detail,
        "position": diag.statement_position,
        "table": diag.table_name,
        "column": diag.column_name,
        "constraint": diag.constraint_name,
    }
    if error.sqlstate in STATES_QUOTING_ROWS:
        del detail["detail"]
    return {name: value for name, value in detail.items() if value is not None}


# ---- connections ---------------------------------------------------------------------------------


@dataclass(slots=True)
class _ConnectionPool:
    conninfo: str
    guard: EgressGuard
    idle: list[tuple[float, AsyncConnection[Any]]] = field(default_factory=list)
    connection_slots: asyncio.Semaphore = field(
        default_factory=lambda: asyncio.Semaphore(MAX_CONNECTIONS)
    )
    sweep_timer: asyncio.TimerHandle | None = None
    closing: set[asyncio.Task[None]] = field(default_factory=set)

    @asynccontextmanager
    async def hold_connection(self) -> AsyncIterator[AsyncConnection[Any]]:
        async with self.connection_slots:
            connection = await self._open_connection()
            try:
                yield connection
            finally:
                await self._give_back(connection)

    async def _open_connection(self) -> AsyncConnection[Any]:
        while self.idle:
            _, connection = self.idle.pop()
            if _is_alive(connection):
                return connection
            await connection.close()
        conninfo = await self.pin_hosts()
        return await AsyncConnection.connect(conninfo, autocommit=True, prepare_threshold=None)

    async def pin_hosts(self) -> str:
        """The conninfo with addresses of its hosts that the guard has checked."""
        try:
            return await pin_conninfo_hosts(self.conninfo, self.guard)
        except EgressRefused as refused:
            failure = refused.to_failure()
            raise SqlError(failure.code, failure.message, failure.kind) from None

    async def _give_back(self, connection: AsyncConnection[Any]) -> None:
        """Reset settings, temporary tables and locks.

        A connection that cannot be reset is closed.
        """
        try:
            if connection.pgconn.transaction_status == TransactionStatus.IDLE:
                await connection.execute("DISCARD ALL")
                self._keep_idle_connection(connection)
                return
        except psycopg.Error:
            pass
        except asyncio.CancelledError:
            await connection.close()
            raise
        await connection.close()

    def _keep_idle_connection(self, connection: AsyncConnection[Any]) -> None:
        loop = asyncio.get_running_loop()
        self.idle.append((loop.time(), connection))
        if self.sweep_timer is None:
            self.sweep_timer = loop.call_later(MAX_IDLE_CONNECTION_S, self._close_idle)

    def _close_idle(self) -> None:
        """Close the connections that have been idle for too long."""
        self.sweep_timer = None
        loop = asyncio.get_running_loop()
        idle_since = loop.time() - MAX_IDLE_CONNECTION_S
        old = [entry for entry in self.idle if entry[0] <= idle_since]
        self.idle = [entry for entry in self.idle if entry[0] > idle_since]
        for _, connection in old:
            task = loop.create_task(connection.close())
            self.closing.add(task)
            task.add_done_callback(self.closing.discard)
        if self.idle:
            self.sweep_timer = loop.call_later(MAX_IDLE_CONNECTION_S, self._close_idle)

    async def close(self) -> None:
        if self.sweep_timer is not None:
            self.sweep_timer.cancel()
        while self.idle:
            _, connection = self.idle.pop()
            await connection.close()


def _is_alive(connection: AsyncConnection[Any]) -> bool:
    """Whether the server still holds the connection: to an idle one it only sends its end."""
    if connection.closed:
        return False
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return not poll.poll(0)
