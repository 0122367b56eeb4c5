"""`postgres`: statements in one transaction, their values bound; `{rows, row_count, columns}` of the last one.

Connections are kept per credential and reset between calls. Rows go to the store one batch after the other: from a cursor; or in
bulk (`postgres_bulk.py`), when there is one query alone and the planner expects many. A call that is cancelled, or whose time is
up, is cancelled in the server before `run` returns.
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
BULK = 20_000  # rows that are worth a connection of their own
COPIED = frozenset(("SELECT", "VALUES", "TABLE"))
READING = frozenset(
    ("SELECT", "VALUES", "TABLE", "SHOW")
)  # such a statement alone is its own transaction
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
        pa.array(
            []
        )  # the first one loads pandas where that is installed: seconds, and here is beside the loop
        self._pools: dict[str, _Pool] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    async def close(self) -> None:
        pools, self._pools = self._pools, {}
        if self._loop is asyncio.get_running_loop():
            for pool in pools.values():
                await pool.close()

    async def run(self, call: Call) -> Outcome:
        found = await prepared(call, "postgres")
        if isinstance(found, Failure):
            return Failed(found)
        try:
            conninfo = address(call.auth, call.config.get("database"))
            async with self._pool(conninfo).connection() as connection:
                value = await _in_bulk(connection, conninfo, found, call)
                if value is None:
                    value = await _run(connection, found, call)
        except SqlError as error:
            return Failed(error.failure)
        except StatementFailed as failed:
            return Failed(
                failure(failed.error, failed.excerpt), {"pg": {"sqlstate": failed.error.sqlstate}}
            )
        except psycopg.Error as error:
            return Failed(failure(error), {"pg": {"sqlstate": error.sqlstate}})
        except pa.ArrowException as error:
            message = f"a value does not fit its column: {error}; cast it in the statement"
            return Failed(Failure(code="SQL_VALUE", kind="data", message=message))
        except UnicodeEncodeError:
            return Failed(
                Failure(
                    code="SQL_VALUE",
                    kind="data",
                    message="a text in the statement is not valid Unicode",
                )
            )
        return Success(value, {"pg": {"statements": len(found)}})

    def connection(
        self, auth: Any, database: Any = None
    ) -> AbstractAsyncContextManager[AsyncConnection[Any]]:
        """For whoever else writes to the same databases: reset before and after."""
        return self._pool(address(auth, database)).connection()

    def _pool(self, conninfo: str) -> "_Pool":
        loop = asyncio.get_running_loop()
        if self._loop is not loop:  # connections belong to the loop they were made on
            self._loop, self._pools = loop, {}
        key = hashlib.sha256(conninfo.encode()).hexdigest()
        if key not in self._pools:
            self._pools[key] = _Pool(conninfo)
        return self._pools[key]


def address(auth: Any, database: Any = None) -> str:
    """A conninfo from a credential: one text, or host, port, user, password, database …; that of the task wins."""
    if not isinstance(auth, dict):
        message = "postgres needs `auth`: the name of a credential, or of a keychain entry, with host, user, password, database"
        raise SqlError("AUTH_MISSING", message)
    found: dict[str, Any] = {}
    for name in WHOLE:
        if isinstance(auth.get(name), str):
            found |= conninfo_to_dict(auth[name])
    found |= {
        FIELDS[name]: auth[name] for name in auth if name in FIELDS and auth[name] is not None
    }
    if database is not None:
        found["dbname"] = database
    return make_conninfo(
        **{"connect_timeout": CONNECT_TIMEOUT, "application_name": "noetl", **found}
    )


# ---- running -----------------------------------------------------------------------------------------------------------


async def _in_bulk(
    connection: AsyncConnection[Any], conninfo: str, found: list[Statement], call: Call
) -> Any:
    """None: it is not one query that gives many rows, or not one whose columns can come that way."""
    if (
        len(found) > 1
        or found[0].first not in COPIED
        or found[0].has_secrets
        or call.config.get("autocommit")
    ):
        return None
    if not _conforms(connection):
        return None
    query = found[0].written(literal)
    if await _estimate(connection, query) < BULK:
        return None
    from noetl.tools.postgres_bulk import (  # its driver is for those who need it
        Bulk,
        BulkError,
        is_lost,
    )

    query += "\n"  # it will stand in brackets, and may end in a comment
    bulk = Bulk(
        conninfo,
        query,
        None if call.timeout is None else max(1, call.timeout // 1_000),
        call.tables,
    )
    try:
        return await in_thread(bulk.run, bulk.interrupt, "postgres")
    except BulkError as error:
        kind = "connection" if is_lost(str(error)) else error_kind(error.sqlstate)
        raise SqlError("SQL_ERROR", str(error), kind, kind in RETRYABLE, error.sqlstate) from error


async def _estimate(connection: AsyncConnection[Any], query: str) -> int:
    """How many rows the planner expects. A statement that is wrong shows what is wrong when it is run."""
    try:
        explained = await connection.execute(
            f"EXPLAIN (FORMAT JSON) {query}".encode(connection.info.encoding)
        )
        [(plan,)] = await explained.fetchall()
        return int(plan[0]["Plan"]["Plan Rows"])
    except psycopg.Error:
        return 0


async def _run(connection: AsyncConnection[Any], found: list[Statement], call: Call) -> Any:
    if call.config.get("autocommit") or (len(found) == 1 and found[0].first in READING):
        value = await _all(connection, found, call)
        if connection.pgconn.transaction_status != TransactionStatus.IDLE:
            if isinstance(value, EncodedTable):
                value.close()
            raise open_transaction()
        return value
    async with connection.transaction():
        return await _all(connection, found, call)


async def _all(connection: AsyncConnection[Any], found: list[Statement], call: Call) -> Any:
    if call.timeout is not None:  # should this worker vanish, the server stops by itself
        milliseconds = str(max(1, call.timeout // 1_000))
        await connection.execute(
            "SELECT set_config('statement_timeout', %s, false)", (milliseconds,)
        )
    for statement in found[:-1]:
        await _one(connection, statement, None)
    return await _one(connection, found[-1], call.tables)


class StatementFailed(Exception):
    """An error of the database, and the line of the statement that it is about."""

    def __init__(self, error: psycopg.Error, statement: Statement) -> None:
        super().__init__(str(error))
        self.error = error
        self.excerpt = ""
        if error.diag.message_primary:  # else it is not the database that complains
            position = error.diag.statement_position
            self.excerpt = statement.excerpt(int(position) if position else None, literal)


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
    """Rows go to the tables, if any."""
    query, values = _bound(statement)
    if not _conforms(connection):  # else a backslash would end what `literal` wrote
        await connection.execute("SET standard_conforming_strings = on")
    async with _Cursor(connection) as cursor:
        as_stored(cursor.adapters)
        rows = None if tables is None else _Rows(cursor, tables)
        found: Any = cursor.stream(
            query.encode(), values or None, size=BATCH
        )  # a generator, though it is typed as an iterator
        try:
            async with aclosing(
                found
            ) as stream:  # closed at once when a row is refused: that cancels the rest
                async for row in stream:
                    if rows is not None:
                        await rows.add(row)
            if rows is not None and cursor.description:
                return await rows.done()
        except BaseException:
            if rows is not None:
                rows.discard()
            raise
        done = cursor.pgresult
        return changed(None if done is None else done.command_tuples)


class _Rows:
    """Rows of one result, in batches to the store. What takes long is done in a thread."""

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
        rows, self._waiting = self._waiting, []
        values = list(zip(*rows, strict=True))
        if self._writer is None:
            self._writer = self._begun(values)
        arrays = [column.array(some) for column, some in zip(self._columns, values, strict=False)]
        if rows:
            self._writer.write(pa.RecordBatch.from_arrays(arrays, schema=self._writer.schema))
        return self._writer

    def _begun(self, values: list[Any]) -> Writer:
        names = column_names(column.name for column in self._cursor.description or ())
        found = self._cursor.pgresult
        assert found is not None
        kinds = [(found.ftype(number), found.fmod(number)) for number in range(len(names))]
        self._columns = columns(names, kinds, values or [()] * len(names))
        return Writer(pa.schema([column.field for column in self._columns]), self._tables)

    async def done(self) -> Any:
        few = self._writer is None
        writer = self._write()
        return writer.done() if few else await asyncio.to_thread(writer.done)

    def discard(self) -> None:
        if self._writer is not None:
            self._writer.discard()


class _Cursor(AsyncRawCursor[Any]):
    """A cursor whose stream may also be empty: of a statement that gives no rows, and keeping the columns when none came."""

    def _stream_fetchone_gen(self, first: bool) -> Any:
        found = yield from fetch(self._pgconn)
        if found is None:
            return None
        if found.status in (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK):
            self.pgresult = found
            while (more := (yield from fetch(self._pgconn))) is not None:
                if (
                    more.status == ExecStatus.FATAL_ERROR
                ):  # the commit that follows the statement has failed
                    self._raise_for_result(more)
            return None
        if found.status in (ExecStatus.SINGLE_TUPLE, ExecStatus.TUPLES_CHUNK):
            self.pgresult = found
            self._tx.set_pgresult(found, set_loaders=first)
            if first:
                self._make_row = self._make_row_maker()
            return found
        return self._raise_for_result(found)


def _conforms(connection: AsyncConnection[Any]) -> bool:
    """Whether a backslash in quotes is a backslash, as in SQL's standard. It is, unless somebody has turned that off."""
    return connection.pgconn.parameter_status(b"standard_conforming_strings") != b"off"


def _bound(statement: Statement) -> tuple[str, list[Any]]:
    """Secrets are parameters where there may be any, so that they stand in no log of the server."""
    return statement.bound(literal) if statement.has_secrets else (statement.written(literal), [])


# of what type an argument is, these ask the argument
_ASK_THEIR_ARGUMENT = frozenset({"TO_JSON", "TO_JSONB", "JSON_AGG", "JSONB_AGG", "ARRAY_AGG"})


def literal(given: Parameter) -> str:
    """As one would write the value there by hand."""
    value = given.value
    if isinstance(value, list):
        return listed(given, literal) if given.in_list else _array(given)
    known = scalar(value)
    if known is not None:
        return known
    if "\0" in value:
        raise SqlError(
            "SQL_VALUE", f"{given.shown}: Postgres has no text with the character zero", "data"
        )
    written = quoted(str(value))
    return f"{written}::text" if given.function in _ASK_THEIR_ARGUMENT else written


def _array(given: Parameter) -> str:
    """Numbers have a type of their own. Texts have that of the column beside them, when there is one."""
    if any(isinstance(part, bool | int | float) for part in _leaves(given.value)):
        return _constructed(given.value)
    if given.typed_by_place:
        return quoted(_array_text(given.value))
    if all(part is None for part in _leaves(given.value)):
        return f"{quoted(_array_text(given.value))}::text[]"
    return _constructed(given.value)


def _leaves(value: list[Any]) -> Iterator[Any]:
    for part in value:
        if isinstance(part, list):
            yield from _leaves(part)
        else:
            yield part


def _constructed(value: list[Any]) -> str:
    parts = (
        _constructed(part) if isinstance(part, list) else literal(Parameter(part)) for part in value
    )
    return f"ARRAY[{', '.join(parts)}]"


def _array_text(value: Any) -> str:
    """As Postgres reads an array from text."""
    if value is None:
        return "NULL"
    if isinstance(value, list):
        return "{" + ",".join(map(_array_text, value)) + "}"
    if "\0" in value:
        raise SqlError("SQL_VALUE", "Postgres has no text with the character zero", "data")
    return '"' + str(value).replace("\\", "\\\\").replace('"', '\\"') + '"'


# ---- what went wrong ---------------------------------------------------------------------------------------------------

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
QUOTING_ROWS = frozenset(
    ("23502", "23514", "44000")
)  # not null, check, check option: their detail is the whole row
RETRYABLE = frozenset(("connection", "conflict", "resource", "unavailable", "timeout"))


def error_kind(state: str | None) -> str:
    return "sql" if state is None else OWN.get(state, KINDS.get(state[:2], "sql"))


def failure(error: psycopg.Error, excerpt: str = "") -> Failure:
    diag, state = error.diag, error.sqlstate
    kind = error_kind(state)
    if state is None:
        broken = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
        kind = "connection" if broken else "data" if isinstance(error, psycopg.DataError) else "sql"
    message = diag.message_primary or str(error).strip().partition("\n")[0]
    hint = f" ({diag.message_hint})" if diag.message_hint else ""
    if state == "25001":
        hint = " (set autocommit: true)"
    where = (
        f"\n{excerpt}" if excerpt and kind not in ("connection", "timeout", "unavailable") else ""
    )
    quoted = None if state in QUOTING_ROWS else diag.message_detail
    detail = {
        "detail": quoted,
        "position": diag.statement_position,
        "table": diag.table_name,
        "column": diag.column_name,
        "constraint": diag.constraint_name,
    }
    return Failure(
        code="CONNECTION_FAILED" if kind == "connection" and state is None else "SQL_ERROR",
        kind=kind,
        message=f"{message}{hint}{where}",
        retryable=kind in RETRYABLE,
        sqlstate=state,
        detail={name: value for name, value in detail.items() if value is not None},
    )


# ---- connections -------------------------------------------------------------------------------------------------------


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
        """Nothing of the call stays: settings, temporary tables, locks. What cannot be reset is closed."""
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
        self.sweep = None
        loop = asyncio.get_running_loop()
        late = loop.time() - IDLE
        old = [found for found in self.idle if found[0] <= late]
        self.idle = [found for found in self.idle if found[0] > late]
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
            await self.idle.pop()[1].close()


def _alive(connection: AsyncConnection[Any]) -> bool:
    """An idle server has nothing to say but that it goes."""
    if connection.closed:
        return False
    waiting = select.poll()
    waiting.register(connection.fileno(), select.POLLIN)
    return not waiting.poll(0)
