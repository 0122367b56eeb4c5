"""A table in a DuckDB file, in the modes of the one in Postgres; all batches are one transaction, so `staged` needs no table.

One process at a time may write to a file: another one's lock is a failure that may be tried again.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
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
    SinkColumn,
    SinkError,
    SinkTable,
    SinkTarget,
    batches,
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
        raise SinkError(
            "SINK_TARGET",
            "a duckdb target needs `database`: the file that keeps its table",
            kind="config",
        )
    writing: DuckdbSinkWriter | None = None

    def interrupt() -> None:
        if writing is not None:
            writing.connection.interrupt()

    async def do(work: Callable[[], Any]) -> Any:
        return await in_thread(work, interrupt, "duckdb")

    try:
        writing = await do(lambda: DuckdbSinkWriter.begun(target, call))
        assert writing is not None
        if await do(writing.is_repeated):
            return {"row_count": 0, "repeated": True}
        async for batch in batches(value):
            await do(partial(writing.add, batch))
        await do(writing.connection.commit)
        return {"row_count": writing.stored}
    finally:
        if writing is not None:
            with suppress(duckdb.Error):
                writing.connection.close()  # what was not committed is gone


@dataclass(slots=True)
class DuckdbSinkWriter:
    connection: duckdb.DuckDBPyConnection
    target: SinkTarget
    call: Call
    table: SinkTable
    checked: dict[str, Any] = field(
        default_factory=dict
    )  # the types of columns in which DuckDB would change numbers
    seen: int = 0
    stored: int = 0

    @classmethod
    def begun(cls, target: SinkTarget, call: Call) -> "DuckdbSinkWriter":
        assert target.database is not None
        try:
            connection = duckdb.connect(target.database, config=SETTINGS)
        except duckdb.IOException as error:
            raise SinkError(
                "SINK_LOCKED", str(error), kind="conflict", retryable="lock" in str(error)
            ) from None
        try:
            connection.begin()
            table = described(connection, target)
            kinds = column_kinds(connection, table.name)
            return cls(
                connection,
                target,
                call,
                table,
                {name: kinds[name] for name in kinds if may_change(kinds[name])},
            )
        except BaseException:
            connection.close()
            raise

    def is_repeated(self) -> bool:
        """Has it been done? The key is kept with what is stored, or not at all. The table is empty before it is replaced."""
        if self.target.mode == "replace":
            self.connection.execute(f"DELETE FROM {self.table.name}")
        if not self.target.keyed:
            return False
        self.connection.execute(keys.MAKE)
        identity = self.call.identity
        kept = self.connection.execute(
            KEEP_KEY, [self.call.key, str(identity.execution_id), identity.step]
        ).fetchone()
        return kept == (0,)

    def add(self, batch: list[Record]) -> None:
        columns = self.table.used(batch, self.seen, self._key)
        self._check(batch, columns)
        texts = self.table.texts(batch, columns, self.seen)
        names = [f"c{number}" for number in range(len(columns))]
        listed = zip(names, zip(*texts, strict=True), strict=True)
        rows = pa.table(
            {
                **{name: pa.array(found, pa.string()) for name, found in listed},
                ROW: range(len(batch)),
            }
        )
        self.connection.register(ROWS, rows)
        try:
            self.stored += self._store(
                {
                    column.name: _read(name, column)
                    for name, column in zip(names, columns, strict=True)
                }
            )
        except duckdb.ConversionException as error:
            self._explain(rows, dict(zip(names, columns, strict=True)), error)
            raise
        finally:
            with suppress(duckdb.Error):
                self.connection.unregister(ROWS)
        self.seen += len(batch)

    def _check(self, batch: list[Record], columns: list[SinkColumn]) -> None:
        """Refuse a number that DuckDB would round, as Postgres does."""
        for column in columns:
            if (kind := self.checked.get(column.name)) is None:
                continue
            for number, record in enumerate(batch):
                if (why := misfit(record.get(column.name), kind)) is not None:
                    raise self.table.refused(
                        column.name, self.seen + number, f"{why}; round it first"
                    )

    def _store(self, values: dict[str, str]) -> int:
        statement = f"INSERT INTO {self.table.name} ({quoted(list(values))}) SELECT {', '.join(values.values())} FROM {ROWS}"
        if self.target.upserts:
            key = ", ".join(values[name] for name in self._key)
            rest = [name for name in values if name not in self._key]
            update = ", ".join(f"{identifier(name)} = EXCLUDED.{identifier(name)}" for name in rest)
            statement += (
                f" QUALIFY row_number() OVER (PARTITION BY {key} ORDER BY {ROW} DESC) = 1"
                f" ON CONFLICT ({quoted(self._key)}) DO {f'UPDATE SET {update}' if update else 'NOTHING'}"
            )
        done = self.connection.execute(statement).fetchone()
        return int(done[0]) if done is not None else 0

    def _explain(self, rows: pa.Table, columns: dict[str, SinkColumn], error: duckdb.Error) -> None:
        """Raises which value it is, if one can be found. The failure has ended the transaction, and what was registered in it."""
        with suppress(duckdb.Error):
            self.connection.rollback()
            self.connection.register(ROWS, rows)
        for name, column in columns.items():
            tried = _read(name, column).replace("CAST(", "TRY_CAST(", 1)
            query = f"SELECT {ROW} FROM {ROWS} WHERE {name} IS NOT NULL AND {tried} IS NULL ORDER BY {ROW} LIMIT 1"
            with suppress(duckdb.Error):
                if (found := self.connection.execute(query).fetchone()) is not None:
                    raise self.table.refused(
                        column.name, self.seen + found[0], f"does not fit: {error}"
                    )

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
    columns = {
        row[0]: SinkColumn(row[0], row[1], "json" if _is_nested(row[1]) else "plain")
        for row in rows
    }
    if unknown := [key for key in target.key if key not in columns]:
        raise SinkError(
            "SINK_COLUMN",
            f"{name} has no column {unknown[0]!r}, which is part of `key`",
            kind="config",
        )
    return SinkTable(name, columns)


def _is_nested(kind: str) -> bool:
    return kind == "JSON" or kind.endswith("]") or kind.startswith(("STRUCT(", "MAP(", "UNION("))


def _read(name: str, column: SinkColumn) -> str:
    """A value as its column has it, from its text."""
    if column.type == "BLOB":
        return f"from_base64({name})"
    if column.shape == "json":
        return f"CAST(CAST({name} AS JSON) AS {column.type})"
    return f"CAST({name} AS {column.type})"
