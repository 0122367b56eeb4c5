"""Turns the inputs of a step into files that Spark can read.

Spark reads large results where they are stored. Values, small row sets and the rows of a database
query become files for this command.

Credentials stay in the worker. It runs queries itself, so Spark gets only their rows. Files in an
object store are read by the data source `noetl`: its tasks ask the worker for a signed URL of each
file.
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
from noetl.spark.messages import InputSpec, TicketQuestion
from noetl.spark.paths import format_of, located, reading
from noetl.spark.profiles import Profile
from noetl.spark.tickets import TicketRefused
from noetl.tools.port import Call, Failed, Success
from noetl.tools.postgres import Postgres
from noetl.tools.sql import identifier
from noetl.tools.tabular import listed, table

NOETL = "noetl"  # the name of the data source
LASTS = timedelta(hours=1)  # a signed URL; every task asks for its own


class InputError(Exception):
    """An input that cannot be read."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


@dataclass(frozen=True, slots=True)
class LoadedInput:
    """The files that the data source reads for one name."""

    schema: pa.Schema
    files: list[InFile | Path]


class Inputs:
    """The inputs of one call, open until the end of the `async with` block.

    Each has a description of how Spark reads it. `folder` is for files made for this call. Up to
    `copied` bytes of an input in an object store are downloaded first, because planning a read by
    the data source takes longer.
    """

    def __init__(
        self,
        call: Call,
        profile: Profile,
        folder: Path,
        postgres: Postgres,
        copied: int,
    ) -> None:
        self._call = call
        self._profile = profile
        self._copied = copied
        self._folder = folder
        self._postgres = postgres
        self._stack = AsyncExitStack()
        self._loaded: dict[str, LoadedInput] = {}
        self._loading = asyncio.Lock()
        self.named: dict[str, InputSpec] = {}

    async def __aenter__(self) -> Self:
        try:
            inputs = self._call.config.get("inputs") or {}
            for name, written in inputs.items():
                self.named[name] = await self._input(name, written)
            return self
        except BaseException:
            await self._stack.aclose()
            raise

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def _input(self, name: str, written: Any) -> InputSpec:
        if isinstance(written, dict):
            return await self._described(name, written)
        value = written
        if self._call.rendering is not None:
            value = await self._call.rendering.source(written)
        if not isinstance(value, Reader):
            rows = await asyncio.to_thread(lambda: table(listed(name, value)))
            return await asyncio.to_thread(self._file, name, rows.schema, rows.to_batches())
        self._stack.push_async_callback(asyncio.to_thread, value.close)
        return await self._rows(name, value)

    async def _described(self, name: str, written: dict[str, Any]) -> InputSpec:
        """An input that the step describes by a map: a path, a query or a table."""
        rendering = self._call.rendering
        description = dict(written)
        if rendering is not None:
            for field, value in written.items():
                if field != "query":  # the postgres tool renders it
                    description[field] = await rendering.value(value)
        optional = ("columns", "partition")
        more = {field: description[field] for field in optional if description.get(field)}
        if "path" in description:
            return {**self._paths(name, description), **more}
        if "kind" in description:
            return {**await self._postgres_rows(name, description), **more}
        return {"table": str(description["table"]), **more}

    def _paths(self, name: str, description: dict[str, Any]) -> InputSpec:
        """An input of one path, or of several that are read as one."""
        paths = description["path"]
        if not isinstance(paths, list):
            paths = [paths]
        try:
            paths = [located(str(path or ""), self._profile) for path in paths]
        except InvalidInput as error:
            why = f"{error}; {error.hint}" if error.hint else str(error)
            raise _wrong(name, why) from error
        formats = {format_of(path, description.get("format")) for path in paths}
        if not formats:
            raise _wrong(name, "it names no path")
        if len(formats) > 1:
            raise _wrong(name, "its paths are of several formats; say `format`")
        (format,) = formats
        return {
            "format": format,
            "paths": paths,
            "options": reading(format, description.get("options")),
        }

    async def _postgres_rows(self, name: str, description: dict[str, Any]) -> InputSpec:
        if description["kind"] != "postgres":
            raise _wrong(name, f"unknown kind {description['kind']!r}: the only one is postgres")
        outcome = await self._postgres.run(await self._query_call(description))
        if isinstance(outcome, Failed):
            raise InputError(_named(name, outcome.failure))
        assert isinstance(outcome, Success)
        rows = outcome.value
        if not isinstance(rows, EncodedTable):
            raise _wrong(name, "its query gives no rows")
        self._stack.callback(rows.close)
        return await self._rows(name, reader_of(rows))

    async def _query_call(self, description: dict[str, Any]) -> Call:
        """The call of the postgres tool that reads a query or a whole table."""
        call = self._call
        auth = description.get("auth")
        if call.credential is not None:
            auth = await call.credential(auth)
        query, rendering = description.get("query"), call.rendering
        if query is None:
            table_name = identifier(str(description["table"]).split("."))
            query = f"select * from {table_name}"  # noqa: S608 - quoted
            rendering = None  # the name of a table is no template
        return Call(
            {"query": query, "database": description.get("database")},
            {},
            call.key,
            call.identity,
            auth=auth,
            rendering=rendering,
            tables=call.tables,
        )

    async def _rows(self, name: str, reader: Reader) -> InputSpec:
        """How Spark reads a row set: by the data source, in its files, or in a converted file."""
        decimals = _decimal_columns(reader.schema)
        files = await asyncio.to_thread(_readable, reader)
        remote_bytes = sum(file.size for file in files if file.path is None)
        if remote_bytes > self._copied:
            self._loaded[name] = LoadedInput(reader.schema, [*files])
            schema = reader.schema.serialize().to_pybytes().hex()
            return {"format": NOETL, "paths": [name], "schema": schema, **decimals}
        if not any(is_foreign(field.type) for field in reader.schema):
            paths = await self._here(reader)
            if paths:
                names = [str(path) for path in paths]
                return {"format": PARQUET, "paths": names, **decimals}
        spec = await asyncio.to_thread(self._file, name, reader.schema, reader.batches())
        return {**spec, **decimals}

    async def _here(self, reader: Reader) -> list[Path]:
        """The files of a row set on this machine; downloaded if they are elsewhere."""
        stack = ExitStack()
        self._stack.push_async_callback(asyncio.to_thread, stack.close)
        staging = self._call.tables.staging
        return await asyncio.to_thread(lambda: stack.enter_context(reader.local(staging)))

    def _file(self, name: str, schema: pa.Schema, batches: Any) -> InputSpec:
        """Write rows to a file for this command, in types that Spark has."""
        path = self._folder / f"input-{name}.parquet"
        wanted = native_schema(schema)
        with pq.ParquetWriter(path, wanted, compression="zstd") as writer:
            for batch in batches:
                writer.write_batch(converted(batch, wanted))
        return {"format": PARQUET, "paths": [str(path)]}

    # ---- questions of tasks ------------------------------------------------------------------------------------------------

    async def answer(self, question: TicketQuestion) -> Any:
        """Answer a question of the data source.

        `of` names an input or the address of a result: the answer is its schema and its number of
        files. With `file`, the answer is the path or URL of that file.
        """
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
            why = "it is no row set of one file; name the step's result among the inputs"
            raise TicketRefused(_failure(address, why))
        self._stack.push_async_callback(asyncio.to_thread, found.close)
        files = await asyncio.to_thread(_readable, found)
        if files:
            return LoadedInput(found.schema, [*files])
        name = f"{len(self._loaded)}-loaded"
        spec = await asyncio.to_thread(self._file, name, found.schema, found.batches())
        path = Path(spec["paths"][0])
        return LoadedInput(native_schema(found.schema), [path])


def _decimal_columns(schema: pa.Schema) -> dict[str, Any]:
    """The columns that hold a `numeric` without precision as text."""
    wanted = NUMERIC.items()
    names = [field.name for field in schema if (field.metadata or {}).items() >= wanted]
    return {"decimals": names} if names else {}


def _readable(reader: Reader) -> list[InFile]:
    """The files of a row set, or none if a task cannot read one of them."""
    files = reader.files()
    is_whole = sum(file.count for file in files) == reader.count
    if is_whole and all(_whereabouts(file) is not None for file in files):
        return files
    return []


def _whereabouts(file: InFile | Path) -> dict[str, Any] | None:
    """The path or signed URL by which a task opens the file; None if it has neither."""
    if isinstance(file, Path):
        return {"path": str(file)}
    if file.path is not None:
        return {"path": str(file.path)}
    url = file.signed(LASTS)
    if url is None:
        return None
    return {"url": url, "size": file.size}


def _wrong(name: str, why: str) -> InputError:
    return InputError(_failure(name, why))


def _failure(name: str, why: str) -> Failure:
    return Failure(code="SPARK_INPUT", kind="config", message=f"input {name}: {why}")


def _named(name: str, failure: Failure) -> Failure:
    """The failure with the name of the input in its message."""
    return Failure(
        code=failure.code,
        kind=failure.kind,
        message=f"input {name}: {failure.message}",
        retryable=failure.retryable,
        sqlstate=failure.sqlstate,
        detail=failure.detail,
    )
