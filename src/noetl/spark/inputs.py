"""From what a step names as an input to files that Spark can read: rows of a result where they are, small ones and values as a
file of their own, a query of a database as the rows it gives.

Credentials stay in the worker: a query is run here, and Spark sees its rows only.
"""

import asyncio
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa  # type: ignore[import-untyped]  # it has no types
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from noetl.model.errors import Failure
from noetl.results.encoding import PARQUET
from noetl.results.rowsets import NUMERIC, Reader, read
from noetl.results.sources import Held
from noetl.results.staging import Staging
from noetl.results.tables import Table
from noetl.tools.port import Call, Failed, Success
from noetl.tools.postgres import Postgres
from noetl.tools.tabular import listed, table

FIELDS = frozenset(("kind", "auth", "query", "database", "format", "path", "table", "columns", "options"))


class InputError(Exception):
    """An input that cannot be had."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class Inputs:
    """Of one call, as long as the block lasts. `folder` is for files made for it."""

    def __init__(self, call: Call, folder: Path, postgres: Postgres) -> None:
        self._call = call
        self._folder = folder
        self._postgres = postgres
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> dict[str, dict[str, Any]]:
        try:
            named = self._call.config.get("inputs") or {}
            return {name: await self._input(name, written) for name, written in named.items()}
        except BaseException:
            await self._stack.aclose()
            raise

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def _input(self, name: str, written: Any) -> dict[str, Any]:
        if not name.isidentifier():
            raise _wrong(name, "its name must be one that SQL and Python take: letters, digits and _")
        if isinstance(written, dict) and written.keys() <= FIELDS:
            return await self._described(name, written)
        rendering = self._call.rendering
        found = written if rendering is None else await rendering.source(written)
        if not isinstance(found, Reader):
            rows = await asyncio.to_thread(lambda: table(listed(name, found)))
            return await asyncio.to_thread(self._file, name, rows.schema, rows.to_batches())
        self._stack.push_async_callback(asyncio.to_thread, found.close)
        return await self._rows(name, found)

    async def _described(self, name: str, written: dict[str, Any]) -> dict[str, Any]:
        rendering = self._call.rendering
        given = {
            field: value if rendering is None or field == "query" else await rendering.value(value)
            for field, value in written.items()
        }
        more = {field: given[field] for field in ("columns", "options") if given.get(field)}
        if "path" in given:
            return {"format": given.get("format") or PARQUET, "paths": [str(given["path"])], **more}
        if "query" in given:
            return {**await self._query(name, given), **more}
        if "table" in given:
            return {"table": str(given["table"]), **more}
        raise _wrong(name, "it needs a path, a table or a query")

    async def _query(self, name: str, given: dict[str, Any]) -> dict[str, Any]:
        if given.get("kind") != "postgres":
            raise _wrong(name, "a query needs `kind: postgres`")
        call = self._call
        auth = given.get("auth") if call.credential is None else await call.credential(given.get("auth"))
        config = {"query": given["query"], "database": given.get("database")}
        outcome = await self._postgres.run(
            Call(config, {}, call.key, call.identity, auth=auth, rendering=call.rendering, tables=call.tables)
        )
        if isinstance(outcome, Failed):
            raise InputError(_named(name, outcome.failure))
        assert isinstance(outcome, Success)
        rows: Table = outcome.value
        self._stack.callback(rows.close)
        if rows.staged.path is not None:
            return {"format": PARQUET, "paths": [str(rows.staged.path)]}
        assert rows.staged.data is not None
        return await self._rows(name, read(Held(rows.staged.data), name))

    async def _rows(self, name: str, reader: Reader) -> dict[str, Any]:
        numeric = [field.name for field in reader.schema if (field.metadata or {}).items() >= NUMERIC.items()]
        decimals = {"decimals": numeric} if numeric else {}
        if any(_foreign(field.type) for field in reader.schema):
            paths: list[Path] = []
        else:
            stack = ExitStack()
            self._stack.push_async_callback(asyncio.to_thread, stack.close)
            paths = await asyncio.to_thread(_local, stack, reader, self._call.tables.staging)
        if paths:
            return {"format": PARQUET, "paths": [str(path) for path in paths], **decimals}
        made = await asyncio.to_thread(self._file, name, reader.schema, reader.batches())
        return {**made, **decimals}

    def _file(self, name: str, schema: pa.Schema, batches: Any) -> dict[str, Any]:
        """Rows as a file of their own, in types that Spark has."""
        path = self._folder / f"input-{name}.parquet"
        wanted = pa.schema([pa.field(field.name, _native(field.type)) for field in schema])
        with pq.ParquetWriter(path, wanted, compression="zstd") as writer:
            for batch in batches:
                columns = [_converted(column, field.type) for column, field in zip(batch.columns, wanted, strict=True)]
                writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=wanted))
        return {"format": PARQUET, "paths": [str(path)]}


def _local(stack: ExitStack, reader: Reader, staging: Staging) -> list[Path]:
    return stack.enter_context(reader.local(staging))


def _foreign(kind: pa.DataType) -> bool:
    """A type that Spark does not read from Parquet."""
    return not _native(kind).equals(kind) and not isinstance(kind, pa.JsonType)


def _native(kind: pa.DataType) -> pa.DataType:
    if isinstance(kind, pa.UuidType | pa.JsonType) or pa.types.is_null(kind) or pa.types.is_time(kind):
        return pa.string()
    if pa.types.is_duration(kind):
        return pa.int64()
    if pa.types.is_timestamp(kind) and kind.unit != "us":
        return pa.timestamp("us", kind.tz)
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _converted(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if isinstance(column.type, pa.UuidType):
        return pa.array([None if value is None else str(UUID(bytes=value)) for value in column.storage.to_pylist()])
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if pa.types.is_timestamp(kind):
        return column.cast(kind, safe=False)
    return column.cast(kind)


def _wrong(name: str, why: str) -> InputError:
    return InputError(Failure(code="SPARK_INPUT", kind="config", message=f"input {name}: {why}"))


def _named(name: str, failure: Failure) -> Failure:
    return Failure(
        code=failure.code, kind=failure.kind, message=f"input {name}: {failure.message}", retryable=failure.retryable,
        sqlstate=failure.sqlstate, detail=failure.detail,
    )  # fmt: skip
