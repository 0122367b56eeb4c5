"""Reads stored results for people: the first rows, the stored bytes, or rows in another format.

Everything is streamed. Memory holds one piece of bytes, one batch of rows, or one small value.
"""

import asyncio
import tempfile
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, closing, contextmanager
from typing import Any, TypeVar

from noetl.model.codec import encode
from noetl.model.errors import Expired, InvalidInput, NotFound, Unavailable
from noetl.model.previews import Download, Preview, ShownColumn
from noetl.model.reference import Reference
from noetl.model.secrets import strip_secrets
from noetl.pipeline.environment import ReadManifest
from noetl.pipeline.failures import TaskFailed
from noetl.pipeline.scope.results import ResultReader, is_manifest, is_rowset
from noetl.results.formats.encoding import ARROW, JSON, PARQUET
from noetl.results.formats.values import UnfitValue, list_columns
from noetl.results.port import ByteSource, ResultStore

PIECE_BYTES = 256 * 1024  # bytes per read
BATCH_ROWS = 1_000  # rows per batch
MAX_PREVIEW_VALUE_BYTES = 64 * 1024  # bytes of a value without rows that a preview opens
MAX_PREVIEW_ROW_BYTES = 4 << 20  # bytes of rows that a preview opens; it always opens one row
MAX_SORTED_ROWS = 10_000
MAX_VALUE_BYTES_IN_MEMORY = 16 << 20  # bytes of a value that has to be read whole to find its rows
MAX_SHOWN_CHARS, MAX_SHOWN_ITEMS, MAX_SHOWN_DEPTH = (
    1_000,
    100,
    50,
)  # characters, items and levels that a preview shows of one value
MEDIA_TYPES = {
    JSON: "application/json",
    "jsonl": "application/x-ndjson",
    "csv": "text/csv; charset=utf-8",
    PARQUET: "application/vnd.apache.parquet",
    ARROW: "application/vnd.apache.arrow.stream",
}
NOT_FOUND_HINT = (
    "it lives where its worker has put it: same NOETL_HOME, or the same NOETL_STORAGE_CLOUD_TIER?"
)
FORMATS = (PARQUET, "csv", JSON, "jsonl")

Bytes = AsyncGenerator[bytes, None]
Rows = AsyncGenerator[list[Any], None]
FormatPart = TypeVar("FormatPart", bytes, list[Any])


class StoredResults:
    """Previews and downloads of stored results."""

    def __init__(self, store: ResultStore, manifests: ReadManifest) -> None:
        self._store = store
        self._manifests = manifests

    def _make_reader(self) -> ResultReader:
        """A new reader for each request: it keeps values in memory."""
        return ResultReader(self._store, self._manifests)

    async def resolve(self, reference: Reference) -> Any:
        with translate_failures():
            return await self._make_reader().resolve(reference)

    async def preview(
        self,
        reference: Reference,
        rows: int,
        start: int = 0,
        sort: str | None = None,
    ) -> Preview:
        """Rows of a result from `start` on, or its value if it is small."""
        payloads = self._make_reader()
        with translate_failures():
            if reference.rows is None:
                if (reference.bytes or 0) > MAX_PREVIEW_VALUE_BYTES:
                    return Preview(cut=True)
                value = await payloads.resolve(reference)
                return Preview(value=strip_secrets(_shorten_value(value)))
            shown = await _read_shown_rows(payloads, reference, rows, start, sort)
            if is_rowset(reference):
                columns = await _read_columns(payloads, reference)
            else:
                columns = _columns_of_rows(shown)
        return Preview(
            row_count=reference.rows,
            columns=tuple(columns),
            rows=[strip_secrets(_shorten_value(row)) for row in shown],
            cut=reference.rows > len(shown),
        )

    async def read_rows(self, reference: Reference, start: int, stop: int) -> list[Any]:
        """Rows [start, stop) as JSON values, without keys that name secrets."""
        with translate_failures():
            rows = await self._make_reader().read_item_range(reference, start, stop)
        return [strip_secrets(row) for row in rows]

    # ---- downloads -------------------------------------------------------------------------------

    async def download(
        self,
        reference: Reference | None,
        format: str | None,
        start: int = 0,
        stop: int | None = None,
    ) -> Download:
        """Rows [start, stop) of a result in a format.

        Without a format, the bytes are sent as they are stored. The result of a loop is stored in
        parts and sent as JSON.
        """
        stored = JSON
        if reference is not None and not is_manifest(reference):
            stored = reference.format or JSON
        whole = (start, stop) == (0, None)
        if not format:
            format = JSON if stored == ARROW and not whole else stored
        if format not in MEDIA_TYPES or (format == ARROW and (stored != ARROW or not whole)):
            hint = f"one of {', '.join(FORMATS)}"
            raise InvalidInput(f"there is no format {format!r}", hint=hint)
        if reference is not None and whole and format == stored and not is_manifest(reference):
            return await self._download_stored(reference, format)
        formatted = _FormattedRows(self._make_reader(), reference, start, stop)
        by_format = {
            JSON: formatted.stream_json,
            "jsonl": formatted.stream_json_lines,
            "csv": formatted.stream_csv,
            PARQUET: formatted.stream_parquet,
        }
        parts = by_format[format]
        await formatted.check_format(format)
        return Download(MEDIA_TYPES[format], format, lambda begin, end: parts())

    async def _download_stored(self, reference: Reference, format: str) -> Download:
        size = await self._find_size(reference)

        async def read_bytes(start: int, stop: int | None) -> Bytes:
            end = size if stop is None else min(stop, size)
            with translate_failures():
                source = await self._open_source(reference)
                try:
                    async for data in _read_pieces(source, start, end):
                        yield data
                finally:
                    await asyncio.to_thread(source.close)

        return Download(MEDIA_TYPES[format], format, read_bytes, size, reference.sha256)

    async def _find_size(self, reference: Reference) -> int:
        """The size of the payload, which may be smaller than its file.

        The file is opened now, so that a payload that cannot be read is reported before the first
        byte.
        """
        with translate_failures():
            source = await self._open_source(reference)
            try:
                if reference.bytes is None:
                    return source.size
                return min(reference.bytes, source.size)
            finally:
                await asyncio.to_thread(source.close)

    async def _open_source(self, reference: Reference) -> ByteSource:
        try:
            return await self._store.open(reference)
        except Expired:
            raise
        except NotFound as error:
            raise NotFound(str(error), hint=NOT_FOUND_HINT) from error


async def _read_pieces(source: ByteSource, start: int, stop: int) -> Bytes:
    while start < stop:
        data = await asyncio.to_thread(source.read, start, min(PIECE_BYTES, stop - start))
        if not data:
            raise Unavailable("the payload is shorter than its reference says", hint="try again")
        start += len(data)
        yield data


# ---- rows in a format ----------------------------------------------------------------------------


class _FormattedRows:
    """Rows [start, stop) of a result, converted to bytes while they are read."""

    def __init__(
        self,
        payloads: ResultReader,
        reference: Reference | None,
        start: int,
        stop: int | None,
    ) -> None:
        self._payloads = payloads
        self._reference = reference
        self._count = None if reference is None else reference.rows
        self._start = start
        self._stop = stop
        self._value: Any = None  # the whole value, if the reference does not count rows
        self._file: Any = None  # Parquet made of rows that are not a row set

    async def check_format(self, format: str) -> None:
        """Refuse a format that the result cannot have, before the first byte is sent."""
        if self._count is None:
            await self._read_value(format)
        if format == PARQUET and not self._is_rowset():
            await self._make_parquet()

    async def _read_value(self, format: str) -> None:
        """Read the whole value, to find its rows."""
        reference = self._reference
        if reference is not None:
            if (reference.bytes or 0) > MAX_VALUE_BYTES_IN_MEMORY:
                raise InvalidInput(
                    "the result has no rows of its own", hint="get it whole, as JSON"
                )
            with translate_failures():
                self._value = await self._payloads.resolve(reference)
        if format == JSON and self._is_whole():
            return
        if not isinstance(self._value_member("rows"), list):
            raise InvalidInput("the result has no rows", hint="read all of it, in the format json")

    async def _make_parquet(self) -> None:
        """Make the file now, because only making it shows whether the rows fit columns."""
        reference = self._reference
        if reference is not None and (reference.bytes or 0) > MAX_VALUE_BYTES_IN_MEMORY:
            raise InvalidInput(
                "the result is stored as JSON, too much of it for columns",
                hint="use the format jsonl",
            )
        with translate_failures():
            rows = [row async for batch in self._read_batches() for row in batch]
            like = rows
            if not like:
                like = [row async for batch in self._read_batches(whole=True) for row in batch]
            if not like:
                like = [self._columns_without_rows()]
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by the reader
        await asyncio.to_thread(_write_parquet_file, rows, like, self._file)

    def _is_whole(self) -> bool:
        return (self._start, self._stop) == (0, None)

    def _value_member(self, name: str) -> Any:
        """A member of the value, if it is a map."""
        if isinstance(self._value, dict):
            return self._value.get(name)
        return None

    def _columns_without_rows(self) -> dict[str, None]:
        """The columns of a result without rows, from `columns` beside the rows."""
        columns = self._value_member("columns")
        if not isinstance(columns, list):
            return {}
        return {name: None for name in columns if isinstance(name, str)}

    def _is_rowset(self) -> bool:
        return self._reference is not None and is_rowset(self._reference)

    async def stream_json(self) -> Bytes:
        """The whole value, or a list of some of its rows."""
        if self._count is None and self._is_whole():
            yield encode(self._value)
            return
        before, after = await self._json_around_rows()
        yield before + b"["
        comma = b""
        async with aclosing(self._read_batches()) as batches:
            async for rows in batches:
                if rows:
                    listed = await asyncio.to_thread(encode, rows)
                    yield comma + listed[1:-1]
                    comma = b","
        yield b"]" + after

    async def _json_around_rows(self) -> tuple[bytes, bytes]:
        """The JSON before and after the rows, if they are a member of the value."""
        reference = self._reference
        if reference is None or reference.rows_at is None or not self._is_whole():
            return b"", b""
        with translate_failures():
            reader = await self._payloads.open_rowset(reference)
        head = dict(reader.head.rest)
        await asyncio.to_thread(reader.close)
        names = list(head)
        place = len(names)
        if reference.rows_at in head:
            place = names.index(reference.rows_at)
        before, after = b"", b""
        for name in names[:place]:
            before += encode(name) + b":" + encode(head[name]) + b","
        for name in names[place + 1 :]:
            after += b"," + encode(name) + b":" + encode(head[name])
        return b"{" + before + encode(reference.rows_at) + b":", after + b"}"

    async def stream_json_lines(self) -> Bytes:
        async with aclosing(self._read_batches()) as batches:
            async for rows in batches:
                yield await asyncio.to_thread(_encode_lines, rows)

    async def stream_csv(self) -> Bytes:
        if self._reference is not None and is_rowset(self._reference):
            parts = self._read_rowset(self._reference, _encode_csv_batches)
        else:
            parts = self._stream_csv_of_records()
        async with aclosing(parts):
            async for part in parts:
                yield part

    async def _stream_csv_of_records(self) -> Bytes:
        written = _CsvWriter()
        async with aclosing(self._read_batches()) as batches:
            async for rows in batches:
                yield await asyncio.to_thread(written.encode_rows, rows)

    async def stream_parquet(self) -> Bytes:
        """The file is written first, because its end says where its row groups are."""
        with self._file or tempfile.TemporaryFile() as file:
            if self._file is None:
                await self._write_rowset(file)
            file.seek(0)
            while data := await asyncio.to_thread(file.read, PIECE_BYTES):
                yield data

    async def _write_rowset(self, file: Any) -> None:
        assert self._reference is not None
        with translate_failures():
            reader = await self._payloads.open_rowset(self._reference)
        try:
            await asyncio.to_thread(_write_batches, reader, self._start, self._stop, file)
        finally:
            await asyncio.to_thread(reader.close)

    async def _read_batches(self, *, whole: bool = False) -> Rows:
        """The rows in batches. With `whole`, all rows instead of [start, stop)."""
        start, stop = self._start, self._stop
        if whole:
            start, stop = 0, None
        if self._count is None:
            listed = self._value["rows"][start:stop]
            for at in range(0, len(listed), BATCH_ROWS):
                yield listed[at : at + BATCH_ROWS]
            return
        assert self._reference is not None
        if is_rowset(self._reference):
            async with aclosing(self._read_rowset(self._reference, _read_row_batches)) as batches:
                async for rows in batches:
                    yield rows
            return
        stop = self._count if stop is None else min(stop, self._count)
        for at in range(start, stop, BATCH_ROWS):
            end = min(at + BATCH_ROWS, stop)
            with translate_failures():
                rows = await self._payloads.read_item_range(self._reference, at, end)
            yield rows

    async def _read_rowset(
        self,
        reference: Reference,
        convert: Callable[[Any, int, int | None], Iterator[FormatPart]],
    ) -> AsyncGenerator[FormatPart, None]:
        """What `convert` makes of the batches of a row set. It runs in a thread."""
        with translate_failures():
            reader = await self._payloads.open_rowset(reference)
        parts = convert(reader, self._start, self._stop)
        try:
            while (part := await asyncio.to_thread(next, parts, None)) is not None:
                yield part
        finally:
            await asyncio.to_thread(reader.close)


def _write_batches(reader: Any, start: int, stop: int | None, file: Any) -> None:
    from noetl.results.formats.exported import ParquetWriter  # needs Arrow, which is loaded by now

    with closing(ParquetWriter(file, reader.schema)) as out:
        for batch in reader.batches(start, stop):
            out.add(batch)


def _read_row_batches(
    reader: Any,
    start: int,
    stop: int | None,
) -> Iterator[list[Any]]:
    from noetl.results.formats.rowsets import list_rows  # needs Arrow, which is loaded by now

    for batch in reader.batches(start, stop):
        for at in range(0, batch.num_rows, BATCH_ROWS):
            yield list_rows(batch.slice(at, BATCH_ROWS))


def _encode_csv_batches(reader: Any, start: int, stop: int | None) -> Iterator[bytes]:
    from noetl.results.formats.exported import encode_csv_batch, encode_csv_header

    yield encode_csv_header(reader.schema.names)
    for batch in reader.batches(start, stop):
        yield encode_csv_batch(batch)


def _encode_lines(rows: list[Any]) -> bytes:
    return b"".join(encode(row) + b"\n" for row in rows)


class _CsvWriter:
    """CSV of records. The columns are those of the first rows."""

    def __init__(self) -> None:
        self._names: list[str] = []

    def encode_rows(self, rows: list[Any]) -> bytes:
        from noetl.results.formats.exported import encode_csv_header, encode_csv_records

        records, header = _as_records(rows), b""
        if not self._names:
            self._names = list_columns(records)
            header = encode_csv_header(self._names)
        for record in records:
            strange = record.keys() - set(self._names)
            if strange:
                raise InvalidInput(
                    f"a row has the column {min(strange)!r}, which the first ones lack",
                    hint="use the format jsonl",
                )
        return header + encode_csv_records(records, self._names)


def _as_records(rows: list[Any]) -> list[dict[str, Any]]:
    return [row if isinstance(row, dict) else {"value": row} for row in rows]


def _write_parquet_file(rows: list[Any], like: list[Any], file: Any) -> None:
    """Write the rows with the columns and types of the rows in `like`."""
    from noetl.results.formats.exported import ColumnTypes, ParquetWriter, make_batch

    records, kinds = _as_records(rows), ColumnTypes()
    try:
        kinds.observe_records(_as_records(like))
        if not kinds.schema.names:
            raise InvalidInput(
                "the result has no columns, which Parquet needs", hint="use the format json"
            )
        with closing(ParquetWriter(file, kinds.schema)) as out:
            out.add(make_batch(records, kinds.schema))
    except UnfitValue as error:
        raise InvalidInput(
            f"the rows do not fit columns: {error}", hint="use the format jsonl"
        ) from error


# ---- previews ------------------------------------------------------------------------------------


async def _read_shown_rows(
    payloads: ResultReader, reference: Reference, rows: int, start: int, sort: str | None
) -> list[Any]:
    count = reference.rows or 0
    stop = min(start + min(rows, _count_fitting_rows(reference)), count)
    if sort is None:
        return await payloads.read_item_range(reference, min(start, stop), stop)
    too_large = (reference.bytes or 0) > MAX_VALUE_BYTES_IN_MEMORY
    if count > MAX_SORTED_ROWS or too_large:
        raise InvalidInput(
            f"{count} rows are too many to sort here: at most {MAX_SORTED_ROWS}, of {MAX_VALUE_BYTES_IN_MEMORY >> 20} MB",
            hint="a step can sort them, with duckdb; or download them",
        )
    everything = await payloads.read_item_range(reference, 0, count)
    column = sort.removeprefix("-")
    filled = [row for row in everything if _get_member(row, column) is not None]
    empty = [row for row in everything if _get_member(row, column) is None]
    filled.sort(key=lambda row: _make_sort_key(_get_member(row, column)), reverse=column != sort)
    return [*filled, *empty][start:stop]


def _get_member(row: Any, column: str) -> Any:
    return row.get(column) if isinstance(row, dict) else None


def _make_sort_key(value: Any) -> tuple[int, Any]:
    """Numbers come before texts, texts before everything else, which is ordered as JSON."""
    if isinstance(value, int | float):
        return 0, value
    if isinstance(value, str):
        return 1, value
    return 2, encode(value)


async def _read_columns(payloads: ResultReader, reference: Reference) -> list[ShownColumn]:
    reader = await payloads.open_rowset(reference)
    try:
        return [ShownColumn(field.name, str(field.type)) for field in reader.schema]
    finally:
        await asyncio.to_thread(reader.close)


def _count_fitting_rows(reference: Reference) -> int:
    """The number of rows that a preview opens, from their average size."""
    count = reference.rows or 0
    row_bytes = (reference.bytes or 0) // max(count, 1)
    return min(count, max(1, MAX_PREVIEW_ROW_BYTES // max(row_bytes, 1)))


def _columns_of_rows(rows: list[Any]) -> list[ShownColumn]:
    records = (row for row in rows if isinstance(row, dict))
    return [ShownColumn(name) for name in list_columns(records)]


def _shorten_value(value: Any, depth: int = 0) -> Any:
    """The value as a preview shows it."""
    match value:
        case str() if len(value) > MAX_SHOWN_CHARS:
            return value[:MAX_SHOWN_CHARS] + "…"
        case list() | dict() if depth == MAX_SHOWN_DEPTH:
            return "…"
        case list():
            parts = [_shorten_value(part, depth + 1) for part in value[:MAX_SHOWN_ITEMS]]
            if len(value) > MAX_SHOWN_ITEMS:
                parts.append("…")
            return parts
        case dict():
            return {name: _shorten_value(part, depth + 1) for name, part in value.items()}
        case _:
            return value


@contextmanager
def translate_failures() -> Iterator[None]:
    """Turn a failure of the pipeline into an error for a person: no playbook routes on it here."""
    try:
        yield
    except TaskFailed as failing:
        if isinstance(failing.__cause__, Expired):
            raise failing.__cause__ from failing
        kind = Unavailable if failing.failure.retryable else NotFound
        raise kind(failing.failure.message, hint=NOT_FOUND_HINT) from failing
