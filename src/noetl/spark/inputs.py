"""From what a step names as an input to files that Spark can read: rows of a result where they are, small ones and values as a
file of their own, a query of a database as the rows it gives.

Credentials stay in the worker: a query is run here, and Spark sees its rows only; files in an object store are read by the data
source `noetl`, whose tasks ask here for an address of each.
"""

import asyncio
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from noetl.model.errors import Failure, InvalidInput
from noetl.pipeline.failures import Failing
from noetl.results.encoding import PARQUET
from noetl.results.rowsets import NUMERIC, InFile, Reader, reader_of
from noetl.results.tables import EncodedTable
from noetl.spark.arrow import converted, is_foreign, native_schema
from noetl.spark.paths import format_of, located, reading
from noetl.spark.profiles import Profile
from noetl.spark.tickets import TicketRefused
from noetl.tools.port import Call, Failed, Success
from noetl.tools.postgres import Postgres
from noetl.tools.sql import identifier
from noetl.tools.tabular import listed, table

NOETL = "noetl"  # the data source
LASTS = timedelta(hours=1)  # an address of a file: a task asks for its own


class InputError(Exception):
    """An input that cannot be had."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


@dataclass(frozen=True, slots=True)
class LoadedInput:
    """What the data source reads by one name."""

    schema: pa.Schema
    files: list[InFile | Path]


class Inputs:
    """Of one call, as long as the block lasts: `named` says how each is read. `folder` is for files made for it. Up to `copied`
    bytes that are afar are brought here first: planning a read by the data source takes longer."""

    def __init__(
        self, call: Call, where: Profile, folder: Path, postgres: Postgres, copied: int
    ) -> None:
        self._call = call
        self._where = where
        self._copied = copied
        self._folder = folder
        self._postgres = postgres
        self._stack = AsyncExitStack()
        self._loaded: dict[str, LoadedInput] = {}
        self._loading = asyncio.Lock()
        self.named: dict[str, dict[str, Any]] = {}

    async def __aenter__(self) -> Self:
        try:
            for name, written in (self._call.config.get("inputs") or {}).items():
                self.named[name] = await self._input(name, written)
            return self
        except BaseException:
            await self._stack.aclose()
            raise

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def _input(self, name: str, written: Any) -> dict[str, Any]:
        if isinstance(written, dict):
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
        more = {field: given[field] for field in ("columns", "partition") if given.get(field)}
        if "path" in given:
            return {**self._paths(name, given), **more}
        if "kind" in given:
            return {**await self._postgres_rows(name, given), **more}
        return {"table": str(given["table"]), **more}

    def _paths(self, name: str, given: dict[str, Any]) -> dict[str, Any]:
        """One, or several that are read as one."""
        paths = given["path"] if isinstance(given["path"], list) else [given["path"]]
        try:
            paths = [located(str(path or ""), self._where) for path in paths]
        except InvalidInput as error:
            raise _wrong(name, f"{error}; {error.hint}" if error.hint else str(error)) from error
        formats = {format_of(path, given.get("format")) for path in paths}
        if len(formats) != 1:
            raise _wrong(
                name,
                "its paths are of several formats; say `format`" if formats else "it names no path",
            )
        (format,) = formats
        return {"format": format, "paths": paths, "options": reading(format, given.get("options"))}

    async def _postgres_rows(self, name: str, given: dict[str, Any]) -> dict[str, Any]:
        if given["kind"] != "postgres":
            raise _wrong(name, f"unknown kind {given['kind']!r}: the only one is postgres")
        call = self._call
        auth = (
            given.get("auth")
            if call.credential is None
            else await call.credential(given.get("auth"))
        )
        query, rendering = given.get("query"), call.rendering
        if query is None:  # a name is no template
            query, rendering = f"select * from {identifier(str(given['table']).split('.'))}", None  # noqa: S608 - quoted
        config = {"query": query, "database": given.get("database")}
        outcome = await self._postgres.run(
            Call(
                config,
                {},
                call.key,
                call.identity,
                auth=auth,
                rendering=rendering,
                tables=call.tables,
            )
        )
        if isinstance(outcome, Failed):
            raise InputError(_named(name, outcome.failure))
        assert isinstance(outcome, Success)
        if not isinstance(rows := outcome.value, EncodedTable):
            raise _wrong(name, "its query gives no rows")
        self._stack.callback(rows.close)
        return await self._rows(name, reader_of(rows))

    async def _rows(self, name: str, reader: Reader) -> dict[str, Any]:
        numeric = [
            field.name
            for field in reader.schema
            if (field.metadata or {}).items() >= NUMERIC.items()
        ]
        decimals = {"decimals": numeric} if numeric else {}
        files = await asyncio.to_thread(_readable, reader)
        if sum(file.size for file in files if file.path is None) > self._copied:
            self._loaded[name] = LoadedInput(reader.schema, [*files])
            schema = reader.schema.serialize().to_pybytes().hex()
            return {"format": NOETL, "paths": [name], "schema": schema, **decimals}
        if not any(is_foreign(field.type) for field in reader.schema) and (
            paths := await self._here(reader)
        ):
            return {"format": PARQUET, "paths": [str(path) for path in paths], **decimals}
        made = await asyncio.to_thread(self._file, name, reader.schema, reader.batches())
        return {**made, **decimals}

    async def _here(self, reader: Reader) -> list[Path]:
        stack = ExitStack()
        self._stack.push_async_callback(asyncio.to_thread, stack.close)
        staging = self._call.tables.staging
        return await asyncio.to_thread(lambda: stack.enter_context(reader.local(staging)))

    def _file(self, name: str, schema: pa.Schema, batches: Any) -> dict[str, Any]:
        """Rows as a file of their own, in types that Spark has."""
        path = self._folder / f"input-{name}.parquet"
        wanted = native_schema(schema)
        with pq.ParquetWriter(path, wanted, compression="zstd") as writer:
            for batch in batches:
                writer.write_batch(converted(batch, wanted))
        return {"format": PARQUET, "paths": [str(path)]}

    # ---- what tasks ask ----------------------------------------------------------------------------------------------------

    async def answer(self, question: dict[str, Any]) -> Any:
        """`of` an input or an address: its schema and how many files it has; with `file`, where one of these is."""
        name = str(question.get("of"))
        async with self._loading:
            if name not in self._loaded:
                self._loaded[name] = await self._load(name)
        loaded = self._loaded[name]
        if "file" not in question:
            return {
                "schema": loaded.schema.serialize().to_pybytes().hex(),
                "count": len(loaded.files),
            }
        return await asyncio.to_thread(_whereabouts, loaded.files[int(question["file"])])

    async def _load(self, address: str) -> LoadedInput:
        if self._call.rendering is None or address in self.named:
            raise TicketRefused(_failure(address, "it is read as a view of that name"))
        try:
            found = await self._call.rendering.fetched(address)
        except Failing as failing:
            raise TicketRefused(failing.failure) from failing
        if not isinstance(found, Reader):
            raise TicketRefused(
                _failure(
                    address, "it is no row set of one file; name the step's result among the inputs"
                )
            )
        self._stack.push_async_callback(asyncio.to_thread, found.close)
        if files := await asyncio.to_thread(_readable, found):
            return LoadedInput(found.schema, [*files])
        made = await asyncio.to_thread(
            self._file, f"{len(self._loaded)}-loaded", found.schema, found.batches()
        )
        return LoadedInput(native_schema(found.schema), [Path(made["paths"][0])])


def _readable(reader: Reader) -> list[InFile]:
    """The files of a row set, when tasks can read each of them: here, or afar."""
    files = reader.files()
    whole = sum(file.count for file in files) == reader.count
    return files if whole and all(_whereabouts(file) is not None for file in files) else []


def _whereabouts(file: InFile | Path) -> dict[str, Any] | None:
    path = file if isinstance(file, Path) else file.path
    if path is not None or isinstance(file, Path):
        return {"path": str(path)}
    url = file.signed(LASTS)
    return None if url is None else {"url": url, "size": file.size}


def _wrong(name: str, why: str) -> InputError:
    return InputError(_failure(name, why))


def _failure(name: str, why: str) -> Failure:
    return Failure(code="SPARK_INPUT", kind="config", message=f"input {name}: {why}")


def _named(name: str, failure: Failure) -> Failure:
    return Failure(
        code=failure.code,
        kind=failure.kind,
        message=f"input {name}: {failure.message}",
        retryable=failure.retryable,
        sqlstate=failure.sqlstate,
        detail=failure.detail,
    )
