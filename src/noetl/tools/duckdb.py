"""`duckdb`: statements over local data in one transaction; `{rows, row_count, columns}` of the last one.

Each call has a connection and a thread of its own; when it is cancelled the statement is interrupted, and over when `run`
returns. `database` is a file, or nothing: then it is in memory and gone afterwards. `inputs` are tables: of rows, or of a stored
row set, which is scanned where it is and never held whole. Rows go to the store one batch after the other.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from typing import Any

import duckdb
import pyarrow as pa

from noetl.model.errors import Failure
from noetl.results.rowsets import NUMERIC, Reader, Writer
from noetl.results.staging import Staging
from noetl.results.tables import EncodedTable
from noetl.tools.port import Call, Failed, Outcome, Success
from noetl.tools.sql import (
    Parameter,
    SqlError,
    Statement,
    changed,
    column_names,
    identifier,
    listed,
    open_transaction,
    quoted,
    scalar,
)
from noetl.tools.sql_task import RAW, prepared
from noetl.tools.tabular import listed as rows_of
from noetl.tools.tabular import table
from noetl.tools.threads import in_thread

SETTINGS: dict[str, str | bool | int | float | list[str]] = {
    "threads": 2
}  # a worker runs several calls at once
BATCH = 10_000  # rows
CHANGING = frozenset(("INSERT", "UPDATE", "DELETE", "MERGE", "CREATE", "COPY", "WITH"))


class Duckdb:
    kind = "duckdb"
    raw = RAW | {"inputs"}

    async def run(self, call: Call) -> Outcome:
        found = await prepared(call, "duckdb")
        if isinstance(found, Failure):
            return Failed(found)
        session: _Session | None = None
        try:
            async with _inputs(call) as inputs:
                session = _Session(call, found, inputs)
                value = await in_thread(session.run, session.interrupt, "duckdb")
        except SqlError as error:
            return Failed(error.failure)
        except duckdb.Error as error:
            return Failed(failure(error, None if session is None else session.current))
        return Success(value, {"pg": {"statements": len(found)}})


class _Session:
    """One call's connection, used by its thread; only `interrupt` comes from elsewhere."""

    def __init__(self, call: Call, found: list[Statement], inputs: dict[str, Any]) -> None:
        self._call = call
        self._inputs = inputs
        self._statements = found
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._interrupted = False
        self.current: Statement | None = None  # the one that is run

    def interrupt(self) -> None:
        self._interrupted = True
        if self._connection is not None:
            self._connection.interrupt()

    def run(self) -> Any:
        database = self._call.config.get("database") or ":memory:"
        with ExitStack() as stack:
            connection = stack.enter_context(duckdb.connect(database, config=SETTINGS))
            self._connection = connection
            stack.callback(self._over)
            for name, given in self._inputs.items():
                stack.enter_context(registered(connection, name, given, self._call.tables.staging))
            return self._transaction(connection)

    def _over(self) -> None:
        self._connection = None

    def _transaction(self, connection: duckdb.DuckDBPyConnection) -> Any:
        if self._call.config.get("autocommit"):
            value = self._all(connection)
            if _rollback(connection):
                if isinstance(value, EncodedTable):
                    value.close()
                raise open_transaction()
            return value
        connection.begin()
        try:
            value = self._all(connection)
            connection.commit()
        except BaseException:
            _rollback(connection)
            raise
        return value

    def _all(self, connection: duckdb.DuckDBPyConnection) -> Any:
        for statement in self._statements[:-1]:
            self._check()
            self._execute(connection, statement)
        self._check()
        last = self._statements[-1]
        found = self._execute(connection, last)
        if found is None:
            return changed(0)
        if (
            found.columns == ["Count"] and last.first in CHANGING
        ):  # such statements answer with one number
            return changed(sum(count for (count,) in found.fetchall()))
        return self._rows(found)

    def _execute(
        self, connection: duckdb.DuckDBPyConnection, statement: Statement
    ) -> duckdb.DuckDBPyRelation | None:
        self.current = statement
        return connection.sql(statement.written(_written))

    def _check(self) -> None:
        if self._interrupted:
            raise duckdb.InterruptException("interrupted")

    def _rows(self, found: duckdb.DuckDBPyRelation) -> Any:
        reader = _carried(found).to_arrow_reader(BATCH)
        kinds = zip(column_names(found.columns), found.types, reader.schema.types, strict=True)
        schema = pa.schema([_field(name, str(kind), made) for name, kind, made in kinds])
        return Writer(schema, self._call.tables).all(self._unless_interrupted(reader))

    def _unless_interrupted(self, reader: Any) -> Iterator[pa.RecordBatch]:
        for batch in reader:
            self._check()
            yield batch


NATIVE = {"JSON": pa.json_(), "UUID": pa.uuid()}  # which DuckDB gives as text
NUMBERS = dict.fromkeys(("UHUGEINT", "BIGNUM"), "VARCHAR")
CARRIED = NUMBERS | {"BIT": "VARCHAR", "TIME WITH TIME ZONE": "VARCHAR", "TIMESTAMP_S": "TIMESTAMP"}
"""What goes as another type: Arrow has none that is right, or Parquet none in which infinity stays what it is."""


def _field(name: str, kind: str, made: pa.DataType) -> pa.Field:
    return pa.field(name, NATIVE.get(kind, made), metadata=NUMERIC if kind in NUMBERS else None)


def _carried(found: duckdb.DuckDBPyRelation) -> duckdb.DuckDBPyRelation:
    if not any(map(_changes, found.types)):
        return found
    columns = [f"CAST(#{at} AS {_type(kind)})" for at, kind in enumerate(found.types, start=1)]
    return found.project(", ".join(columns))


def _changes(kind: Any) -> bool:
    return str(kind) in CARRIED or any(_changes(part) for _, part in _parts(kind))


def _type(kind: Any) -> str:
    """To cast to, as SQL writes it."""
    if not _changes(kind):
        return str(kind)
    parts = [(name, _type(part)) for name, part in _parts(kind)]
    match kind.id:
        case "list":
            return f"{parts[0][1]}[]"
        case "array":
            return f"{parts[0][1]}[{kind.children[1][1]}]"
        case "map":
            return f"MAP({parts[0][1]}, {parts[1][1]})"
        case "struct" | "union":
            return f"{kind.id}({', '.join(f'{identifier(name)} {part}' for name, part in parts)})"
        case _:
            return CARRIED[str(kind)]


def _parts(kind: Any) -> list[tuple[str, Any]]:
    match kind.id:
        case "list" | "array":
            return [kind.children[0]]  # an array has its size beside it
        case "map" | "struct":
            return list(kind.children)
        case "union":
            return list(kind.children[1:])  # the first says which of them it is
        case _:
            return []


def _rollback(connection: duckdb.DuckDBPyConnection) -> bool:
    """Whether there was a transaction: an error, or the statements themselves, may have ended it already."""
    try:
        connection.rollback()
    except duckdb.Error:
        return False
    return True


def _double(value: float) -> str:
    """With an exponent: without one it would be a decimal, whose digits run out."""
    written = repr(value) if "e" in repr(value) else f"{value!r}e0"
    return written if value >= 0 else f"({written})"


def _written(given: Parameter) -> str:
    return (
        listed(given, _written)
        if given.in_list and isinstance(given.value, list)
        else literal(given.value)
    )


def literal(value: Any) -> str:
    known = scalar(value)
    if known is not None:
        return _double(value) if isinstance(value, float) else known
    if isinstance(value, list):
        return "[" + ", ".join(literal(part) for part in value) + "]"
    if "\0" in value:  # which no text of a statement can hold
        return "(" + " || chr(0) || ".join(map(quoted, value.split("\0"))) + ")"
    return quoted(value)


# ---- inputs ------------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def _inputs(call: Call) -> AsyncIterator[dict[str, Any]]:
    """Values, and readers of what is stored; these are closed afterwards."""
    found: dict[str, Any] = {}
    try:
        for name, template in (call.config.get("inputs") or {}).items():
            found[name] = (
                template if call.rendering is None else await call.rendering.source(template)
            )
        yield found
    finally:
        for given in found.values():
            if isinstance(given, Reader):
                await asyncio.to_thread(given.close)


@contextmanager
def registered(
    connection: duckdb.DuckDBPyConnection, name: str, given: Any, staging: Staging
) -> Iterator[None]:
    if not isinstance(given, Reader):
        _view(connection, name, table(rows_of(name, given)))
        yield
        return
    with given.local(staging) as paths:
        if not paths:
            _view(connection, name, pa.Table.from_batches(given.batches(), given.schema))
        else:
            scanned = scan([str(path) for path in paths], given.schema)
            connection.execute(f"CREATE TEMP VIEW {identifier(name)} AS {scanned}")
        yield


def _view(connection: duckdb.DuckDBPyConnection, name: str, rows: pa.Table) -> None:
    connection.register(f"noetl_input_{name}", rows)
    connection.execute(
        f"CREATE TEMP VIEW {identifier(name)} AS FROM {identifier(f'noetl_input_{name}')}"
    )


def scan(paths: Sequence[str], schema: pa.Schema) -> str:
    """Parquet has no type for an interval: it is a number of microseconds there."""
    intervals = [identifier(field.name) for field in schema if field.type == pa.duration("us")]
    mended = ", ".join(f"to_microseconds({column}) AS {column}" for column in intervals)
    chosen = f"* REPLACE ({mended})" if mended else "*"
    return f"FROM read_parquet({literal(list(paths))}) SELECT {chosen}"


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


_LINE = re.compile(r"\n\s*LINE (\d+): (.*)\n( *)\^[\s\S]*")


def failure(error: duckdb.Error, statement: Statement | None = None) -> Failure:
    kind = next((kind for known, kind in _KINDS if isinstance(error, known)), "sql")
    message = str(error).strip()
    if statement is not None and kind != "timeout":
        found = _LINE.search(message)
        position = None if found is None else _position(found, statement.written(_written))
        message = f"{_LINE.sub('', message).strip()}\n{statement.excerpt(position, _written)}"
    return Failure(
        code="SQL_ERROR",
        kind=kind,
        message=message,
        retryable=kind in ("conflict", "resource", "timeout"),
    )


def _position(found: re.Match[str], sent: str) -> int | None:
    """Where in the statement the caret of a message points to, from 1. DuckDB shows a part of a long line."""
    label, shown, indent = f"LINE {found[1]}: ", found[2], found[3]
    line = int(found[1])
    lines = sent.split("\n")
    part = shown.removeprefix("...").removesuffix("...")
    at = lines[line - 1].find(part) if line <= len(lines) else -1
    if at < 0:
        return None
    column = len(indent) - len(label) - (len(shown) - len(shown.removeprefix("...")))
    return sum(len(each) + 1 for each in lines[: line - 1]) + at + column + 1
