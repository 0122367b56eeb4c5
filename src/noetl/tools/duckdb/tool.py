"""`duckdb`: runs statements over local data in one transaction.

The value is `{rows, row_count, columns}` of the last statement. Each call has its own connection
and thread. When it is cancelled, the statement is interrupted and has ended when `run` returns.
`database` is a file; without it the database is in memory and lost afterwards. `inputs` are tables
of rows, or of a stored row set, which is scanned in its files. Rows go to the store in batches.

It runs in the worker's process. A tool with `folders` lets SQL reach these folders only; one without
them runs SQL of our own.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from typing import Any

import duckdb
import pyarrow as pa
from pyarrow.dataset import dataset

from noetl.model.errors import Failure
from noetl.results.formats.rowsets import NUMERIC_METADATA, RowSetReader, RowSetWriter
from noetl.results.formats.tables import EncodedTable
from noetl.results.staging import Staging
from noetl.tools.duckdb.access import lock_connection
from noetl.tools.port import Call, Failed, Outcome, Success
from noetl.tools.sql.statements import (
    Parameter,
    SqlError,
    Statement,
    format_in_list,
    format_scalar,
    make_changed_result,
    make_unique_names,
    open_transaction_error,
    quote_sql_name,
    quote_sql_text,
)
from noetl.tools.sql.tabular import list_input_rows as rows_of
from noetl.tools.sql.tabular import make_arrow_table
from noetl.tools.sql.task import RAW_SQL_FIELDS, prepare_statements
from noetl.tools.sql.threads import run_in_thread

# Few threads, because a worker runs several calls at the same time.
CONNECTION_SETTINGS: dict[str, str | bool | int | float | list[str]] = {
    "threads": 2,
    "python_enable_replacements": False,  # the name of a table is not that of a Python variable
}
DUCKDB_BATCH_ROWS = 10_000  # rows
CHANGING_STATEMENTS = frozenset(("INSERT", "UPDATE", "DELETE", "MERGE", "CREATE", "COPY", "WITH"))


class Duckdb:
    kind = "duckdb"
    raw = RAW_SQL_FIELDS | {"inputs"}

    def __init__(self, folders: Sequence[str] | None = None) -> None:
        self._folders = folders

    async def run(self, call: Call) -> Outcome:
        statements = await prepare_statements(call, "duckdb")
        if isinstance(statements, Failure):
            return Failed(statements)
        session: _Session | None = None
        try:
            async with _open_inputs(call) as inputs:
                session = _Session(call, statements, inputs, self._folders)
                value = await run_in_thread(session.run, session.interrupt, "duckdb")
        except SqlError as error:
            return Failed(error.failure)
        except duckdb.Error as error:
            statement = None if session is None else session.current
            return Failed(make_duckdb_failure(error, statement))
        return Success(value, {"pg": {"statements": len(statements)}})


class _Session:
    """The connection of one call, used by its thread; only `interrupt` is called by another one."""

    def __init__(
        self,
        call: Call,
        statements: list[Statement],
        inputs: dict[str, Any],
        folders: Sequence[str] | None,
    ) -> None:
        self._folders = folders
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
            connection = stack.enter_context(duckdb.connect(database, config=CONNECTION_SETTINGS))
            self._connection = connection
            stack.callback(self._drop_connection)
            files: list[str] = []
            # A database file may be open for another call, and then its settings cannot be changed.
            scans_files = database == ":memory:"
            for name, value in self._inputs.items():
                staging = self._call.tables.staging
                registered = register_input(
                    connection, name, value, staging, scans_files=scans_files
                )
                files += stack.enter_context(registered)
            if self._folders is not None:
                lock_connection(connection, self._folders, files)
            return self._run_transaction(connection)

    def _drop_connection(self) -> None:
        self._connection = None

    def _run_transaction(self, connection: duckdb.DuckDBPyConnection) -> Any:
        if self._call.config.get("autocommit"):
            value = self._run_statements(connection)
            if _rollback(connection):
                if isinstance(value, EncodedTable):
                    value.close()
                raise open_transaction_error()
            return value
        connection.begin()
        try:
            value = self._run_statements(connection)
            connection.commit()
        except BaseException:
            _rollback(connection)
            raise
        return value

    def _run_statements(self, connection: duckdb.DuckDBPyConnection) -> Any:
        for statement in self._statements[:-1]:
            self._refuse_if_interrupted()
            self._execute_statement(connection, statement)
        self._refuse_if_interrupted()
        last = self._statements[-1]
        relation = self._execute_statement(connection, last)
        if relation is None:
            return make_changed_result(0)
        if (
            relation.columns == ["Count"] and last.first in CHANGING_STATEMENTS
        ):  # the number of changed rows
            return make_changed_result(sum(count for (count,) in relation.fetchall()))
        return self._store_relation(relation)

    def _execute_statement(
        self, connection: duckdb.DuckDBPyConnection, statement: Statement
    ) -> duckdb.DuckDBPyRelation | None:
        self.current = statement
        return connection.sql(statement.format_literals(_format_parameter))

    def _refuse_if_interrupted(self) -> None:
        if self._interrupted:
            raise duckdb.InterruptException("interrupted")

    def _store_relation(self, relation: duckdb.DuckDBPyRelation) -> Any:
        reader = _cast_columns(relation).to_arrow_reader(DUCKDB_BATCH_ROWS)
        names = make_unique_names(relation.columns)
        columns = zip(names, relation.types, reader.schema.types, strict=True)
        fields = [_make_field(name, str(kind), arrow) for name, kind, arrow in columns]
        writer = RowSetWriter(pa.schema(fields), self._call.tables)
        return writer.write_all(self._yield_until_interrupted(reader))

    def _yield_until_interrupted(self, reader: Any) -> Iterator[pa.RecordBatch]:
        for batch in reader:
            self._refuse_if_interrupted()
            yield batch


NATIVE_TYPES = {"JSON": pa.json_(), "UUID": pa.uuid()}  # DuckDB gives these as text
TEXT_NUMBER_TYPES = dict.fromkeys(("UHUGEINT", "BIGNUM"), "VARCHAR")
# Types that are cast to others: Arrow has no right type for them, or Parquet none with an infinity.
CARRIER_TYPES = TEXT_NUMBER_TYPES | {
    "BIT": "VARCHAR",
    "TIME WITH TIME ZONE": "VARCHAR",
    "TIMESTAMP_S": "TIMESTAMP",
}


def _make_field(name: str, kind: str, arrow: pa.DataType) -> pa.Field:
    metadata = NUMERIC_METADATA if kind in TEXT_NUMBER_TYPES else None
    return pa.field(name, NATIVE_TYPES.get(kind, arrow), metadata=metadata)


def _cast_columns(relation: duckdb.DuckDBPyRelation) -> duckdb.DuckDBPyRelation:
    """Cast the columns of types that Arrow or Parquet cannot hold."""
    if not any(map(_needs_cast, relation.types)):
        return relation
    columns = [
        f"CAST(#{number} AS {_format_type(kind)})"
        for number, kind in enumerate(relation.types, start=1)
    ]
    return relation.project(", ".join(columns))


def _needs_cast(kind: Any) -> bool:
    if str(kind) in CARRIER_TYPES:
        return True
    return any(_needs_cast(part) for _, part in _list_type_parts(kind))


def _format_type(kind: Any) -> str:
    """The SQL text of the type to cast to."""
    if not _needs_cast(kind):
        return str(kind)
    parts = [(name, _format_type(part)) for name, part in _list_type_parts(kind)]
    match kind.id:
        case "list":
            return f"{parts[0][1]}[]"
        case "array":
            return f"{parts[0][1]}[{kind.children[1][1]}]"
        case "map":
            return f"MAP({parts[0][1]}, {parts[1][1]})"
        case "struct" | "union":
            members = ", ".join(f"{quote_sql_name(name)} {part}" for name, part in parts)
            return f"{kind.id}({members})"
        case _:
            return CARRIER_TYPES[str(kind)]


def _list_type_parts(kind: Any) -> list[tuple[str, Any]]:
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


def _format_double(value: float) -> str:
    """A literal with an exponent. Without one it would be a decimal, which has fewer digits."""
    text = repr(value)
    if "e" not in text:
        text += "e0"
    if value >= 0:
        return text
    return f"({text})"


def _format_parameter(parameter: Parameter) -> str:
    if parameter.in_list and isinstance(parameter.value, list):
        return format_in_list(parameter, _format_parameter)
    return format_duckdb_literal(parameter.value)


def format_duckdb_literal(value: Any) -> str:
    known = format_scalar(value)
    if known is not None:
        if isinstance(value, float):
            return _format_double(value)
        return known
    if isinstance(value, list):
        return "[" + ", ".join(format_duckdb_literal(part) for part in value) + "]"
    if "\0" in value:  # no text of a statement can hold it
        texts = map(quote_sql_text, value.split("\0"))
        return "(" + " || chr(0) || ".join(texts) + ")"
    return quote_sql_text(value)


# ---- inputs --------------------------------------------------------------------------------------


@asynccontextmanager
async def _open_inputs(call: Call) -> AsyncIterator[dict[str, Any]]:
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
            if isinstance(value, RowSetReader):
                await asyncio.to_thread(value.close)


@contextmanager
def register_input(
    connection: duckdb.DuckDBPyConnection,
    name: str,
    value: Any,
    staging: Staging,
    *,
    scans_files: bool = True,
) -> Iterator[list[str]]:
    """Make an input a view of the connection. Yields the files that DuckDB itself reads.

    Without `scans_files`, Arrow reads the files for it.
    """
    if not isinstance(value, RowSetReader):
        _create_view(connection, name, make_arrow_table(rows_of(name, value)))
        yield []
        return
    with value.open_local_files(staging) as paths:
        files = [str(path) for path in paths]
        if not files:
            rows = pa.Table.from_batches(value.batches(), value.schema)
            _create_view(connection, name, rows)
            yield []
        elif scans_files:
            scanned = make_parquet_scan(files, value.schema)
            connection.execute(f"CREATE TEMP VIEW {quote_sql_name(name)} AS {scanned}")
            yield files
        else:
            _create_view(connection, name, dataset(files, schema=value.schema, format="parquet"))
            yield []


def _create_view(connection: duckdb.DuckDBPyConnection, name: str, rows: Any) -> None:
    """Make an Arrow table or dataset a view of the connection."""
    registered_name = f"noetl_input_{name}"
    connection.register(registered_name, rows)
    connection.execute(
        f"CREATE TEMP VIEW {quote_sql_name(name)} AS FROM {quote_sql_name(registered_name)}"
    )


def make_parquet_scan(paths: Sequence[str], schema: pa.Schema) -> str:
    """The query that reads Parquet files.

    Parquet has no type for an interval: it stores a number of microseconds.
    """
    intervals = [quote_sql_name(field.name) for field in schema if field.type == pa.duration("us")]
    columns = "*"
    if intervals:
        casts = ", ".join(f"to_microseconds({column}) AS {column}" for column in intervals)
        columns = f"* REPLACE ({casts})"
    return f"FROM read_parquet({format_duckdb_literal(list(paths))}) SELECT {columns}"


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


_ERROR_LINE_PATTERN = re.compile(r"\n\s*LINE (\d+): (.*)\n( *)\^[\s\S]*")


def make_duckdb_failure(error: duckdb.Error, statement: Statement | None = None) -> Failure:
    kind = _classify_error(error)
    message = str(error).strip()
    if statement is not None and kind != "timeout":
        position = None
        match = _ERROR_LINE_PATTERN.search(message)
        if match is not None:
            position = _find_position(match, statement.format_literals(_format_parameter))
        message = f"{_ERROR_LINE_PATTERN.sub('', message).strip()}\n{statement.format_excerpt(position, _format_parameter)}"
    return Failure(
        code="SQL_ERROR",
        kind=kind,
        message=message,
        retryable=kind in ("conflict", "resource", "timeout"),
    )


def _classify_error(error: duckdb.Error) -> str:
    for error_type, kind in _KINDS:
        if isinstance(error, error_type):
            return kind
    return "sql"


def _find_position(match: re.Match[str], sent: str) -> int | None:
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
