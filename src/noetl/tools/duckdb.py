"""`duckdb`: runs statements over local data in one transaction.

The value is `{rows, row_count, columns}` of the last statement. Each call has its own connection
and thread. When it is cancelled, the statement is interrupted and has ended when `run` returns.
`database` is a file; without it the database is in memory and lost afterwards. `inputs` are tables
of rows, or of a stored row set, which is scanned in its files. Rows go to the store in batches.
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

# Few threads, because a worker runs several calls at the same time.
SETTINGS: dict[str, str | bool | int | float | list[str]] = {"threads": 2}
BATCH = 10_000  # rows
CHANGING = frozenset(("INSERT", "UPDATE", "DELETE", "MERGE", "CREATE", "COPY", "WITH"))


class Duckdb:
    kind = "duckdb"
    raw = RAW | {"inputs"}

    async def run(self, call: Call) -> Outcome:
        statements = await prepared(call, "duckdb")
        if isinstance(statements, Failure):
            return Failed(statements)
        session: _Session | None = None
        try:
            async with _inputs(call) as inputs:
                session = _Session(call, statements, inputs)
                value = await in_thread(session.run, session.interrupt, "duckdb")
        except SqlError as error:
            return Failed(error.failure)
        except duckdb.Error as error:
            statement = None if session is None else session.current
            return Failed(failure(error, statement))
        return Success(value, {"pg": {"statements": len(statements)}})


class _Session:
    """The connection of one call, used by its thread; only `interrupt` is called by another one."""

    def __init__(self, call: Call, statements: list[Statement], inputs: dict[str, Any]) -> None:
        self._call = call
        self._inputs = inputs
        self._statements = statements
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._interrupted = False
        self.current: Statement | None = None  # the statement that runs

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
            for name, value in self._inputs.items():
                stack.enter_context(registered(connection, name, value, self._call.tables.staging))
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
        relation = self._execute(connection, last)
        if relation is None:
            return changed(0)
        if relation.columns == ["Count"] and last.first in CHANGING:  # the number of changed rows
            return changed(sum(count for (count,) in relation.fetchall()))
        return self._rows(relation)

    def _execute(
        self, connection: duckdb.DuckDBPyConnection, statement: Statement
    ) -> duckdb.DuckDBPyRelation | None:
        self.current = statement
        return connection.sql(statement.written(_written))

    def _check(self) -> None:
        if self._interrupted:
            raise duckdb.InterruptException("interrupted")

    def _rows(self, relation: duckdb.DuckDBPyRelation) -> Any:
        reader = _carried(relation).to_arrow_reader(BATCH)
        names = column_names(relation.columns)
        columns = zip(names, relation.types, reader.schema.types, strict=True)
        fields = [_field(name, str(kind), arrow) for name, kind, arrow in columns]
        writer = Writer(pa.schema(fields), self._call.tables)
        return writer.all(self._unless_interrupted(reader))

    def _unless_interrupted(self, reader: Any) -> Iterator[pa.RecordBatch]:
        for batch in reader:
            self._check()
            yield batch


NATIVE = {"JSON": pa.json_(), "UUID": pa.uuid()}  # DuckDB gives these as text
NUMBERS = dict.fromkeys(("UHUGEINT", "BIGNUM"), "VARCHAR")
# Types that are cast to others: Arrow has no right type for them, or Parquet none with an infinity.
CARRIED = NUMBERS | {"BIT": "VARCHAR", "TIME WITH TIME ZONE": "VARCHAR", "TIMESTAMP_S": "TIMESTAMP"}


def _field(name: str, kind: str, arrow: pa.DataType) -> pa.Field:
    metadata = NUMERIC if kind in NUMBERS else None
    return pa.field(name, NATIVE.get(kind, arrow), metadata=metadata)


def _carried(relation: duckdb.DuckDBPyRelation) -> duckdb.DuckDBPyRelation:
    """Cast the columns of types that Arrow or Parquet cannot hold."""
    if not any(map(_changes, relation.types)):
        return relation
    columns = [
        f"CAST(#{number} AS {_type(kind)})" for number, kind in enumerate(relation.types, start=1)
    ]
    return relation.project(", ".join(columns))


def _changes(kind: Any) -> bool:
    if str(kind) in CARRIED:
        return True
    return any(_changes(part) for _, part in _parts(kind))


def _type(kind: Any) -> str:
    """The SQL text of the type to cast to."""
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
            members = ", ".join(f"{identifier(name)} {part}" for name, part in parts)
            return f"{kind.id}({members})"
        case _:
            return CARRIED[str(kind)]


def _parts(kind: Any) -> list[tuple[str, Any]]:
    """The types inside a nested type, with their names."""
    match kind.id:
        case "list" | "array":
            return [kind.children[0]]  # the second child of an array is its size
        case "map" | "struct":
            return list(kind.children)
        case "union":
            return list(kind.children[1:])  # the first child is the tag
        case _:
            return []


def _rollback(connection: duckdb.DuckDBPyConnection) -> bool:
    """Roll back. False if there was no transaction: an error or a statement may have ended it."""
    try:
        connection.rollback()
    except duckdb.Error:
        return False
    return True


def _double(value: float) -> str:
    """A literal with an exponent. Without one it would be a decimal, which has fewer digits."""
    text = repr(value)
    if "e" not in text:
        text += "e0"
    if value >= 0:
        return text
    return f"({text})"


def _written(parameter: Parameter) -> str:
    if parameter.in_list and isinstance(parameter.value, list):
        return listed(parameter, _written)
    return literal(parameter.value)


def literal(value: Any) -> str:
    known = scalar(value)
    if known is not None:
        if isinstance(value, float):
            return _double(value)
        return known
    if isinstance(value, list):
        return "[" + ", ".join(literal(part) for part in value) + "]"
    if "\0" in value:  # no text of a statement can hold it
        texts = map(quoted, value.split("\0"))
        return "(" + " || chr(0) || ".join(texts) + ")"
    return quoted(value)


# ---- inputs --------------------------------------------------------------------------------------


@asynccontextmanager
async def _inputs(call: Call) -> AsyncIterator[dict[str, Any]]:
    """The inputs: values, and readers of stored row sets, which are closed afterwards."""
    templates = call.config.get("inputs") or {}
    inputs: dict[str, Any] = {}
    try:
        for name, template in templates.items():
            if call.rendering is None:
                inputs[name] = template
            else:
                inputs[name] = await call.rendering.source(template)
        yield inputs
    finally:
        for value in inputs.values():
            if isinstance(value, Reader):
                await asyncio.to_thread(value.close)


@contextmanager
def registered(
    connection: duckdb.DuckDBPyConnection, name: str, value: Any, staging: Staging
) -> Iterator[None]:
    """Make an input a view of the connection."""
    if not isinstance(value, Reader):
        _view(connection, name, table(rows_of(name, value)))
        yield
        return
    with value.local(staging) as paths:
        if not paths:
            rows = pa.Table.from_batches(value.batches(), value.schema)
            _view(connection, name, rows)
        else:
            scanned = scan([str(path) for path in paths], value.schema)
            connection.execute(f"CREATE TEMP VIEW {identifier(name)} AS {scanned}")
        yield


def _view(connection: duckdb.DuckDBPyConnection, name: str, rows: pa.Table) -> None:
    registered_name = f"noetl_input_{name}"
    connection.register(registered_name, rows)
    connection.execute(f"CREATE TEMP VIEW {identifier(name)} AS FROM {identifier(registered_name)}")


def scan(paths: Sequence[str], schema: pa.Schema) -> str:
    """The query that reads Parquet files.

    Parquet has no type for an interval: it stores a number of microseconds.
    """
    intervals = [identifier(field.name) for field in schema if field.type == pa.duration("us")]
    columns = "*"
    if intervals:
        casts = ", ".join(f"to_microseconds({column}) AS {column}" for column in intervals)
        columns = f"* REPLACE ({casts})"
    return f"FROM read_parquet({literal(list(paths))}) SELECT {columns}"


# ---- errors --------------------------------------------------------------------------------------

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
    kind = _kind(error)
    message = str(error).strip()
    if statement is not None and kind != "timeout":
        position = None
        match = _LINE.search(message)
        if match is not None:
            position = _position(match, statement.written(_written))
        message = f"{_LINE.sub('', message).strip()}\n{statement.excerpt(position, _written)}"
    return Failure(
        code="SQL_ERROR",
        kind=kind,
        message=message,
        retryable=kind in ("conflict", "resource", "timeout"),
    )


def _kind(error: duckdb.Error) -> str:
    for error_type, kind in _KINDS:
        if isinstance(error, error_type):
            return kind
    return "sql"


def _position(match: re.Match[str], sent: str) -> int | None:
    """The position in the statement, from 1, to which the caret of a message points.

    DuckDB shows only a part of a long line, with dots on both sides.
    """
    line_number = int(match[1])
    label = f"LINE {match[1]}: "
    shown = match[2]
    indent = match[3]
    lines = sent.split("\n")
    if line_number > len(lines):
        return None
    after_dots = shown.removeprefix("...")
    offset = lines[line_number - 1].find(after_dots.removesuffix("..."))
    if offset < 0:
        return None
    dots = len(shown) - len(after_dots)
    column = len(indent) - len(label) - dots
    line_start = sum(len(line) + 1 for line in lines[: line_number - 1])
    return line_start + offset + column + 1
