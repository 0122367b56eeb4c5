"""Writes to a table in a DuckDB file, with the modes of the Postgres sink.

All batches are one transaction, so `staged` needs no table of its own. Only one process at a time
may write to a file: if another one holds the lock, the call fails and may be retried.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import duckdb
import pyarrow as pa

from noetl.tools.duckdb import SETTINGS
from noetl.tools.duckdb_fit import column_kinds, may_change, misfit
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
from noetl.tools.threads import in_thread

KEEP_KEY = keys.keep("?", "?", "?")
ROWS = "noetl_rows"
ROW = "noetl_row"


async def write(target: SinkTarget, call: Call, value: Any) -> dict[str, Any]:
    if not target.database:
        message = "a duckdb target needs `database`: the file that keeps its table"
        raise SinkError("SINK_TARGET", message, kind="config")
    writer: DuckdbSinkWriter | None = None

    def interrupt() -> None:
        if writer is not None:
            writer.connection.interrupt()

    async def run(work: Callable[[], Any]) -> Any:
        return await in_thread(work, interrupt, "duckdb")

    try:
        writer = await run(lambda: DuckdbSinkWriter.begun(target, call))
        assert writer is not None
        if await run(writer.is_repeated):
            return {"row_count": 0, "repeated": True}
        async for batch in batches(value):
            await run(partial(writer.add, batch))
        await run(writer.connection.commit)
        return {"row_count": writer.stored}
    finally:
        if writer is not None:
            with suppress(duckdb.Error):
                writer.connection.close()  # rolls back a transaction that is not committed


@dataclass(slots=True)
class DuckdbSinkWriter:
    """Writes the batches of one call in one transaction."""

    connection: duckdb.DuckDBPyConnection
    target: SinkTarget
    call: Call
    table: SinkTable
    checked: dict[str, Any]  # the types of columns in which DuckDB would change numbers
    seen: int = 0
    stored: int = 0

    @classmethod
    def begun(cls, target: SinkTarget, call: Call) -> "DuckdbSinkWriter":
        assert target.database is not None
        try:
            connection = duckdb.connect(target.database, config=SETTINGS)
        except duckdb.IOException as error:
            is_locked = "lock" in str(error)
            raise SinkError(
                "SINK_LOCKED", str(error), kind="conflict", retryable=is_locked
            ) from None
        try:
            connection.begin()
            table = described(connection, target)
            kinds = column_kinds(connection, table.name)
            checked = {name: kind for name, kind in kinds.items() if may_change(kind)}
            return cls(connection, target, call, table, checked)
        except BaseException:
            connection.close()
            raise

    def is_repeated(self) -> bool:
        """Store the key of the call, and empty a table that is to be replaced.

        Returns True if an earlier call has stored the key, and so the rows.
        """
        if self.target.mode == "replace":
            self.connection.execute(f"DELETE FROM {self.table.name}")
        if not self.target.keyed:
            return False
        self.connection.execute(keys.MAKE)
        identity = self.call.identity
        key_fields = [self.call.key, str(identity.execution_id), identity.step]
        inserted = self.connection.execute(KEEP_KEY, key_fields).fetchone()
        return inserted == (0,)

    def add(self, batch: list[Record]) -> None:
        """Write a batch."""
        columns = self.table.used(batch, self.seen, self._key)
        self._check(batch, columns)
        texts = self.table.texts(batch, columns, self.seen)
        columns_by_name = {f"c{number}": column for number, column in enumerate(columns)}
        arrays: dict[str, Any] = {}
        texts_by_column = zip(*texts, strict=True)
        for name, values in zip(columns_by_name, texts_by_column, strict=True):
            arrays[name] = pa.array(values, pa.string())
        arrays[ROW] = range(len(batch))
        rows = pa.table(arrays)
        self.connection.register(ROWS, rows)
        try:
            expressions = {
                column.name: _read(name, column) for name, column in columns_by_name.items()
            }
            self.stored += self._store(expressions)
        except duckdb.ConversionException as error:
            self._explain(rows, columns_by_name, error)
            raise
        finally:
            with suppress(duckdb.Error):
                self.connection.unregister(ROWS)
        self.seen += len(batch)

    def _check(self, batch: list[Record], columns: list[SinkColumn]) -> None:
        """Refuse a number that DuckDB would round, as Postgres does."""
        for column in columns:
            kind = self.checked.get(column.name)
            if kind is None:
                continue
            for number, record in enumerate(batch):
                reason = misfit(record.get(column.name), kind)
                if reason is not None:
                    row = self.seen + number
                    raise self.table.refused(column.name, row, f"{reason}; round it first")

    def _store(self, expressions: dict[str, str]) -> int:
        """Insert the registered rows. `expressions` gives the value of each column."""
        names = quoted(list(expressions))
        values = ", ".join(expressions.values())
        statement = f"INSERT INTO {self.table.name} ({names}) SELECT {values} FROM {ROWS}"
        if self.target.upserts:
            key = ", ".join(expressions[name] for name in self._key)
            action = conflict_action(list(expressions), self._key)
            statement += (
                f" QUALIFY row_number() OVER (PARTITION BY {key} ORDER BY {ROW} DESC) = 1"
                f" ON CONFLICT ({quoted(self._key)}) DO {action}"
            )
        count = self.connection.execute(statement).fetchone()
        return int(count[0]) if count is not None else 0

    def _explain(self, rows: pa.Table, columns: dict[str, SinkColumn], error: duckdb.Error) -> None:
        """Raise an error that names the value, if it can be found.

        The failure has ended the transaction and dropped the registered rows.
        """
        with suppress(duckdb.Error):
            self.connection.rollback()
            self.connection.register(ROWS, rows)
        for name, column in columns.items():
            cast = _read(name, column).replace("CAST(", "TRY_CAST(", 1)
            query = f"SELECT {ROW} FROM {ROWS} WHERE {name} IS NOT NULL AND {cast} IS NULL ORDER BY {ROW} LIMIT 1"
            with suppress(duckdb.Error):
                bad_row = self.connection.execute(query).fetchone()
                if bad_row is not None:
                    row = self.seen + bad_row[0]
                    raise self.table.refused(column.name, row, f"does not fit: {error}")

    @property
    def _key(self) -> list[str]:
        return self.target.key if self.target.upserts else []


def described(connection: duckdb.DuckDBPyConnection, target: SinkTarget) -> SinkTable:
    name = ".".join(map(identifier, name_parts(target.table)))
    try:
        rows = connection.execute(f"DESCRIBE {name}").fetchall()
    except duckdb.CatalogException:
        message = f"there is no table {target.table} in {target.database}; create it before it is written to"
        raise SinkError("SINK_TABLE", message, kind="config", table=target.table) from None
    columns: dict[str, SinkColumn] = {}
    for column, kind, *_ in rows:
        shape: Shape = "json" if _is_nested(kind) else "plain"
        columns[column] = SinkColumn(column, kind, shape)
    table = SinkTable(name, columns)
    table.check_key(target.key)
    return table


def _is_nested(kind: str) -> bool:
    if kind == "JSON" or kind.endswith("]"):
        return True
    return kind.startswith(("STRUCT(", "MAP(", "UNION("))


def _read(name: str, column: SinkColumn) -> str:
    """The expression that casts a text to the type of its column."""
    if column.type == "BLOB":
        return f"from_base64({name})"
    if column.shape == "json":
        return f"CAST(CAST({name} AS JSON) AS {column.type})"
    return f"CAST({name} AS {column.type})"
