"""`duckdb`: statements over local data in one transaction; `{rows, row_count, columns}` of the last one.

Each call has a connection and a thread of its own; when it is cancelled the statement is interrupted, and over when `run`
returns. `database` is a file, or nothing: then it is in memory and gone afterwards. `inputs` are tables made of rows.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import duckdb
import orjson
import pyarrow as pa  # type: ignore[import-untyped]  # it has no types

from noetl.model.errors import Failure
from noetl.tools.port import Call, Failed, Outcome, Success
from noetl.tools.sql import BATCH, PLANNED, Rows, SqlError, Statement, identifier, result, to_json
from noetl.tools.sql_task import RAW, prepared

SETTINGS: dict[str, str | bool | int | float | list[str]] = {"threads": 2}  # a worker runs several calls at once
INTERRUPT_EVERY = 0.05  # seconds: an interrupt between two statements is lost


class Duckdb:
    kind = "duckdb"
    raw = RAW

    async def run(self, call: Call) -> Outcome:
        found = await prepared(call)
        if isinstance(found, Failure):
            return Failed(found)
        session = _Session(call, found)
        try:
            value = await in_thread(session.run, session.interrupt)
        except SqlError as error:
            return Failed(error.failure)
        except duckdb.Error as error:
            return Failed(failure(error))
        return Success(value, {"pg": {"statements": len(found)}})


async def in_thread(run: Callable[[], Any], interrupt: Callable[[], None]) -> Any:
    """The result of `run`, in a thread. Cancelled, it is interrupted until it ends."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[Any] = loop.create_future()

    def work() -> None:
        try:
            value = run()
        except BaseException as error:  # without its frames, which would keep the connection
            loop.call_soon_threadsafe(ended.set_exception, error.with_traceback(None))
        else:
            loop.call_soon_threadsafe(ended.set_result, value)

    threading.Thread(target=work, name="duckdb").start()
    try:
        return await asyncio.shield(ended)
    except asyncio.CancelledError:
        while not ended.done():
            interrupt()
            await asyncio.wait([ended], timeout=INTERRUPT_EVERY)
        ended.exception()  # seen: an interrupted statement says so
        raise


class _Session:
    """One call's connection, used by its thread; only `interrupt` comes from elsewhere."""

    def __init__(self, call: Call, found: list[Statement]) -> None:
        self._call = call
        self._statements = found
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._interrupted = False

    def interrupt(self) -> None:
        self._interrupted = True
        if self._connection is not None:
            self._connection.interrupt()

    def run(self) -> dict[str, Any]:
        database = self._call.config.get("database") or ":memory:"
        with duckdb.connect(database, config=SETTINGS) as connection:
            self._connection = connection
            try:
                for name, rows in (self._call.config.get("inputs") or {}).items():
                    _register(connection, name, rows)
                return self._transaction(connection)
            finally:
                self._connection = None

    def _transaction(self, connection: duckdb.DuckDBPyConnection) -> dict[str, Any]:
        if self._call.config.get("autocommit"):
            return self._all(connection)
        connection.begin()
        try:
            value = self._all(connection)
            connection.commit()
        except BaseException:
            _rollback(connection)
            raise
        return value

    def _all(self, connection: duckdb.DuckDBPyConnection) -> dict[str, Any]:
        for statement in self._statements[:-1]:
            self._check()
            _execute(connection, statement)
        self._check()
        last = self._statements[-1]
        rows = self._rows(_execute(connection, last))
        changed = _changed(last.first, rows)
        return result(rows.columns, rows.rows, None) if changed is None else result([], [], changed)

    def _check(self) -> None:
        if self._interrupted:
            raise duckdb.InterruptException("interrupted")

    def _rows(self, found: duckdb.DuckDBPyRelation | None) -> Rows:
        if found is None:
            return Rows(())
        rows = Rows(found.columns)
        native = [_fetched(str(kind)) for kind in found.types]
        for batch in found.to_arrow_reader(BATCH):
            self._check()
            columns = [column.to_pylist(maps_as_pydicts="lossy") for column in batch.columns]
            for row in zip(*columns, strict=True):
                rows.add([convert(value) for convert, value in zip(native, row, strict=True)])
        return rows


def _execute(connection: duckdb.DuckDBPyConnection, statement: Statement) -> duckdb.DuckDBPyRelation | None:
    if statement.first in PLANNED:
        query, values = statement.bound()
        return connection.sql(query, params=values or None)
    return connection.sql(statement.quoted(literal))


def _fetched(kind: str) -> Callable[[Any], Any]:
    """What Arrow's own conversion leaves to be done."""
    if kind == "JSON":
        return lambda value: None if value is None else orjson.loads(value)
    if kind == "INTERVAL":
        return lambda value: None if value is None else _seconds(value)
    return lambda value: value


def _seconds(value: Any) -> float:
    """A month has thirty days, as Postgres counts too."""
    return float((value.months * 30 + value.days) * 86_400 + value.nanoseconds / 1e9)


def _changed(first: str, rows: Rows) -> int | None:
    """Statements that change rows answer with one number; those that define something answer with nothing useful."""
    if rows.columns == ["Count"] and first in ("INSERT", "UPDATE", "DELETE", "MERGE", "CREATE", "COPY", "WITH"):
        return int(rows.rows[0]["Count"]) if rows.rows else 0
    return None


def _rollback(connection: duckdb.DuckDBPyConnection) -> None:
    with suppress(duckdb.Error):  # the error may have ended the transaction already
        connection.rollback()


def literal(value: Any) -> str:
    """For statements without parameters."""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list):
        return "[" + ", ".join(literal(part) for part in value) + "]"
    if "\0" in value:
        raise SqlError("SQL_VALUE", "a text in this statement cannot hold the character zero")
    return "'" + str(value).replace("'", "''") + "'"


# ---- inputs ------------------------------------------------------------------------------------------------------------


def _register(connection: duckdb.DuckDBPyConnection, name: str, given: Any) -> None:
    rows = given.get("rows", [given]) if isinstance(given, dict) else given
    if not isinstance(rows, list):
        raise SqlError("SQL_INPUT", f"input {name} is not a list of rows")
    rows = [row if isinstance(row, dict) else {"value": row} for row in rows]
    connection.register(f"noetl_input_{name}", table(rows))
    connection.execute(f"CREATE TEMP VIEW {identifier(name)} AS FROM {identifier(f'noetl_input_{name}')}")


def table(rows: list[dict[str, Any]]) -> pa.Table:
    """Columns of all rows in order of appearance; one whose values have no common type is their JSON text."""
    names = list(dict.fromkeys(name for row in rows for name in row)) or ["value"]
    return pa.table({name: _column([row.get(name) for row in rows]) for name in names})


def _column(values: list[Any]) -> pa.Array:
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        return pa.array([None if value is None else _json(value) for value in values])


def _json(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(to_json(value)).decode()


# ---- what went wrong ---------------------------------------------------------------------------------------------------

_KINDS: tuple[tuple[type[Exception], str], ...] = (
    (duckdb.InterruptException, "timeout"),
    (duckdb.ConstraintException, "constraint"),
    (duckdb.TransactionException, "conflict"),
    (duckdb.OutOfMemoryException, "resource"),
    (duckdb.IOException, "io"),
    (duckdb.ConversionException, "data"),
    (duckdb.ParserException, "syntax"),
    (duckdb.BinderException, "syntax"),
    (duckdb.CatalogException, "syntax"),
)


def failure(error: duckdb.Error) -> Failure:
    kind = next((kind for known, kind in _KINDS if isinstance(error, known)), "sql")
    message = str(error).strip()
    return Failure(code="SQL_ERROR", kind=kind, message=message, retryable=kind in ("conflict", "resource", "timeout"))
