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
from msgspec.structs import replace

from noetl.model.errors import Failure, InvalidInput
from noetl.pipeline.failures import TaskFailed
from noetl.results.formats.encoding import PARQUET
from noetl.results.formats.rowsets import (
    NUMERIC_METADATA,
    ParquetReader,
    RowSetReader,
    open_table_reader,
)
from noetl.results.formats.tables import EncodedTable
from noetl.spark.arrow import convert_batch, convert_schema, is_foreign
from noetl.spark.messages import FileLocation, InputFacts, InputSpec, TicketQuestion
from noetl.spark.paths import choose_format, make_reader_options, resolve_path
from noetl.spark.profiles import SparkProfile
from noetl.spark.step.tickets import TicketRefused
from noetl.tools.port import Call, Failed, Success
from noetl.tools.postgres.tool import Postgres
from noetl.tools.sql.statements import quote_sql_name
from noetl.tools.sql.tabular import list_input_rows, make_arrow_table

NOETL = "noetl"  # the name of the data source
SIGNED_URL_LIFETIME = timedelta(hours=1)  # a signed URL; every task asks for its own


class InputError(Exception):
    """An input that cannot be read."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


@dataclass(frozen=True, slots=True)
class LoadedInput:
    """The files that the data source reads for one name."""

    schema: pa.Schema
    files: list[ParquetReader | Path]


class SparkInputs:
    """The inputs of one call, open until the end of the `async with` block.

    Each has a description of how Spark reads it. `folder` is for files made for this call. Up to
    `copied` bytes of an input in an object store are downloaded first, because planning a read by
    the data source takes longer.
    """

    def __init__(
        self,
        call: Call,
        profile: SparkProfile,
        folder: Path,
        postgres: Postgres,
        copied: int,
    ) -> None:
        self._call = call
        self._profile = profile
        self._max_download_bytes = copied
        self._folder = folder
        self._postgres = postgres
        self._stack = AsyncExitStack()
        self._loaded: dict[str, LoadedInput] = {}
        self._loading = asyncio.Lock()
        self.specs: dict[str, InputSpec] = {}

    async def __aenter__(self) -> Self:
        try:
            inputs = self._call.config.get("inputs") or {}
            for name, written in inputs.items():
                self.specs[name] = await self._prepare_input(name, written)
            return self
        except BaseException:
            await self._stack.aclose()
            raise

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def _prepare_input(self, name: str, written: Any) -> InputSpec:
        if isinstance(written, dict):
            return await self._prepare_described(name, written)
        value = written
        if self._call.rendering is not None:
            value = await self._call.rendering.source(written)
        if not isinstance(value, RowSetReader):
            rows = await asyncio.to_thread(lambda: make_arrow_table(list_input_rows(name, value)))
            return await asyncio.to_thread(
                self._write_input_file, name, rows.schema, rows.to_batches()
            )
        self._stack.push_async_callback(asyncio.to_thread, value.close)
        return await self._prepare_rows(name, value)

    async def _prepare_described(self, name: str, written: dict[str, Any]) -> InputSpec:
        """An input that the step describes by a map: a path, a query or a table."""
        rendering = self._call.rendering
        description = dict(written)
        if rendering is not None:
            for field, value in written.items():
                if field != "query":  # the postgres tool renders it
                    description[field] = await rendering.value(value)
        if "path" in description:
            spec = self._resolve_paths(name, description)
        elif "kind" in description:
            spec = await self._query_postgres(name, description)
        else:
            spec = InputSpec(table=str(description["table"]))
        return replace(
            spec,
            columns=description.get("columns") or [],
            partition=description.get("partition") or None,
        )

    def _resolve_paths(self, name: str, description: dict[str, Any]) -> InputSpec:
        """An input of one path, or of several that are read as one."""
        paths = description["path"]
        if not isinstance(paths, list):
            paths = [paths]
        try:
            paths = [resolve_path(str(path or ""), self._profile) for path in paths]
        except InvalidInput as error:
            why = f"{error}; {error.hint}" if error.hint else str(error)
            raise _make_input_error(name, why) from error
        formats = {choose_format(path, description.get("format")) for path in paths}
        if not formats:
            raise _make_input_error(name, "it names no path")
        if len(formats) > 1:
            raise _make_input_error(name, "its paths are of several formats; say `format`")
        (format,) = formats
        options = make_reader_options(format, description.get("options"))
        return InputSpec(format=format, paths=paths, options=options)

    async def _query_postgres(self, name: str, description: dict[str, Any]) -> InputSpec:
        if description["kind"] != "postgres":
            raise _make_input_error(
                name, f"unknown kind {description['kind']!r}: the only one is postgres"
            )
        outcome = await self._postgres.run(await self._make_query_call(description))
        if isinstance(outcome, Failed):
            raise InputError(_name_failed_input(name, outcome.failure))
        assert isinstance(outcome, Success)
        rows = outcome.value
        if not isinstance(rows, EncodedTable):
            raise _make_input_error(name, "its query gives no rows")
        self._stack.callback(rows.close)
        return await self._prepare_rows(name, open_table_reader(rows))

    async def _make_query_call(self, description: dict[str, Any]) -> Call:
        """The call of the postgres tool that reads a query or a whole table."""
        call = self._call
        auth = description.get("auth")
        if call.credential is not None:
            auth = await call.credential(auth)
        query, rendering = description.get("query"), call.rendering
        if query is None:
            table_name = quote_sql_name(str(description["table"]).split("."))
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

    async def _prepare_rows(self, name: str, reader: RowSetReader) -> InputSpec:
        """How Spark reads a row set: by the data source, in its files, or in a converted file."""
        decimals = _find_decimal_columns(reader.schema)
        files = await asyncio.to_thread(_list_readable_files, reader)
        remote_bytes = sum(file.size for file in files if file.path is None)
        if remote_bytes > self._max_download_bytes:
            self._loaded[name] = LoadedInput(reader.schema, [*files])
            schema = reader.schema.serialize().to_pybytes().hex()
            return InputSpec(format=NOETL, paths=[name], schema=schema, decimals=decimals)
        if not any(is_foreign(field.type) for field in reader.schema):
            paths = await self._fetch_files(reader)
            if paths:
                names = [str(path) for path in paths]
                return InputSpec(format=PARQUET, paths=names, decimals=decimals)
        spec = await asyncio.to_thread(
            self._write_input_file, name, reader.schema, reader.batches()
        )
        return replace(spec, decimals=decimals)

    async def _fetch_files(self, reader: RowSetReader) -> list[Path]:
        """The files of a row set on this machine; downloaded if they are elsewhere."""
        stack = ExitStack()
        self._stack.push_async_callback(asyncio.to_thread, stack.close)
        staging = self._call.tables.staging
        return await asyncio.to_thread(
            lambda: stack.enter_context(reader.open_local_files(staging))
        )

    def _write_input_file(self, name: str, schema: pa.Schema, batches: Any) -> InputSpec:
        """Write rows to a file for this command, in types that Spark has."""
        path = self._folder / f"input-{name}.parquet"
        wanted = convert_schema(schema)
        with pq.ParquetWriter(path, wanted, compression="zstd") as writer:
            for batch in batches:
                writer.write_batch(convert_batch(batch, wanted))
        return InputSpec(format=PARQUET, paths=[str(path)])

    # ---- questions of tasks ------------------------------------------------------------------------------------------------

    async def answer_question(self, question: TicketQuestion) -> InputFacts | FileLocation | None:
        """Answer a question of the data source.

        `of` names an input or the address of a result: the answer is its schema and its number of
        files. With `file`, the answer is the path or URL of that file.
        """
        name = str(question.of)
        async with self._loading:
            if name not in self._loaded:
                self._loaded[name] = await self._load_address(name)
        loaded = self._loaded[name]
        if question.file is None:
            schema = loaded.schema.serialize().to_pybytes().hex()
            return InputFacts(schema, len(loaded.files))
        return await asyncio.to_thread(_locate_file, loaded.files[question.file])

    async def _load_address(self, address: str) -> LoadedInput:
        if self._call.rendering is None or address in self.specs:
            raise TicketRefused(_make_input_failure(address, "it is read as a view of that name"))
        try:
            found = await self._call.rendering.fetched(address)
        except TaskFailed as failing:
            raise TicketRefused(failing.failure) from failing
        if not isinstance(found, RowSetReader):
            why = "it is no row set of one file; name the step's result among the inputs"
            raise TicketRefused(_make_input_failure(address, why))
        self._stack.push_async_callback(asyncio.to_thread, found.close)
        files = await asyncio.to_thread(_list_readable_files, found)
        if files:
            return LoadedInput(found.schema, [*files])
        name = f"{len(self._loaded)}-loaded"
        spec = await asyncio.to_thread(self._write_input_file, name, found.schema, found.batches())
        path = Path(spec.paths[0])
        return LoadedInput(convert_schema(found.schema), [path])


def _find_decimal_columns(schema: pa.Schema) -> list[str]:
    """The columns that hold a `numeric` without precision as text."""
    wanted = NUMERIC_METADATA.items()
    return [field.name for field in schema if (field.metadata or {}).items() >= wanted]


def _list_readable_files(reader: RowSetReader) -> list[ParquetReader]:
    """The files of a row set, or none if a task cannot read one of them."""
    files = reader.list_parquet_files()
    is_whole = sum(file.count for file in files) == reader.count
    if is_whole and all(_locate_file(file) is not None for file in files):
        return files
    return []


def _locate_file(file: ParquetReader | Path) -> FileLocation | None:
    """The path or signed URL by which a task opens the file; None if it has neither."""
    if isinstance(file, Path):
        return FileLocation(str(file))
    if file.path is not None:
        return FileLocation(str(file.path))
    url = file.sign_url(SIGNED_URL_LIFETIME)
    if url is None:
        return None
    return FileLocation(url=url, size=file.size)


def _make_input_error(name: str, why: str) -> InputError:
    return InputError(_make_input_failure(name, why))


def _make_input_failure(name: str, why: str) -> Failure:
    return Failure(code="SPARK_INPUT", kind="config", message=f"input {name}: {why}")


def _name_failed_input(name: str, failure: Failure) -> Failure:
    """The failure with the name of the input in its message."""
    return Failure(
        code=failure.code,
        kind=failure.kind,
        message=f"input {name}: {failure.message}",
        retryable=failure.retryable,
        sqlstate=failure.sqlstate,
        detail=failure.detail,
    )
