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
from noetl.model.reference import Reference
from noetl.model.secrets import stripped
from noetl.model.shown import Download, Preview, ShownColumn
from noetl.pipeline.data import ResultReader, is_manifest, is_rowset
from noetl.pipeline.environment import Manifests
from noetl.pipeline.failures import Failing
from noetl.results.encoding import ARROW, JSON, PARQUET
from noetl.results.port import ByteSource, ResultStore
from noetl.results.values import Unfit, columns_of

PIECE = 256 * 1024  # bytes per read
BATCH = 1_000  # rows per batch
WHOLE = 64 * 1024  # bytes of a value without rows that a preview opens
SHOWN = 4 << 20  # bytes of rows that a preview opens; it always opens one row
IN_MEMORY = 16 << 20  # bytes of a value that has to be read whole to find its rows
TEXT, LIST, DEEP = 1_000, 100, 50  # characters, items and levels that a preview shows of one value
MEDIA_TYPES = {
    JSON: "application/json",
    "jsonl": "application/x-ndjson",
    "csv": "text/csv; charset=utf-8",
    PARQUET: "application/vnd.apache.parquet",
    ARROW: "application/vnd.apache.arrow.stream",
}
ELSEWHERE = (
    "it lives where its worker has put it: same NOETL_HOME, or the same NOETL_STORAGE_CLOUD_TIER?"
)
FORMATS = (PARQUET, "csv", JSON, "jsonl")

Bytes = AsyncGenerator[bytes, None]
Rows = AsyncGenerator[list[Any], None]
Made = TypeVar("Made", bytes, list[Any])


class Reading:
    """Previews and downloads of stored results."""

    def __init__(self, store: ResultStore, manifests: Manifests) -> None:
        self._store = store
        self._manifests = manifests

    def _payloads(self) -> ResultReader:
        """A new reader for each request: it keeps values in memory."""
        return ResultReader(self._store, self._manifests)

    async def resolve(self, reference: Reference) -> Any:
        with in_words():
            return await self._payloads().resolve(reference)

    async def preview(self, reference: Reference, rows: int) -> Preview:
        """The first rows of a result, or its value if it is small."""
        payloads = self._payloads()
        with in_words():
            if reference.rows is None:
                if (reference.bytes or 0) > WHOLE:
                    return Preview(cut=True)
                value = await payloads.resolve(reference)
                return Preview(value=stripped(_short(value)))
            first_rows = await payloads.range(reference, 0, min(rows, _fitting(reference)))
            if is_rowset(reference):
                columns = await _columns(payloads, reference)
            else:
                columns = _names(first_rows)
        return Preview(
            row_count=reference.rows,
            columns=tuple(columns),
            rows=[stripped(_short(row)) for row in first_rows],
            cut=reference.rows > len(first_rows),
        )

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
            return await self._as_stored(reference, format)
        formatted = _Made(self._payloads(), reference, start, stop)
        by_format = {
            JSON: formatted.json,
            "jsonl": formatted.lines,
            "csv": formatted.csv,
            PARQUET: formatted.parquet,
        }
        parts = by_format[format]
        await formatted.check(format)
        return Download(MEDIA_TYPES[format], format, lambda begin, end: parts())

    async def _as_stored(self, reference: Reference, format: str) -> Download:
        size = await self._size(reference)

        async def read_bytes(start: int, stop: int | None) -> Bytes:
            end = size if stop is None else min(stop, size)
            with in_words():
                source = await self._open(reference)
                try:
                    async for data in _pieces(source, start, end):
                        yield data
                finally:
                    await asyncio.to_thread(source.close)

        return Download(MEDIA_TYPES[format], format, read_bytes, size, reference.sha256)

    async def _size(self, reference: Reference) -> int:
        """The size of the payload, which may be smaller than its file.

        The file is opened now, so that a payload that cannot be read is reported before the first
        byte.
        """
        with in_words():
            source = await self._open(reference)
            try:
                if reference.bytes is None:
                    return source.size
                return min(reference.bytes, source.size)
            finally:
                await asyncio.to_thread(source.close)

    async def _open(self, reference: Reference) -> ByteSource:
        try:
            return await self._store.open(reference)
        except Expired:
            raise
        except NotFound as error:
            raise NotFound(str(error), hint=ELSEWHERE) from error


async def _pieces(source: ByteSource, start: int, stop: int) -> Bytes:
    while start < stop:
        data = await asyncio.to_thread(source.read, start, min(PIECE, stop - start))
        if not data:
            raise Unavailable("the payload is shorter than its reference says", hint="try again")
        start += len(data)
        yield data


# ---- rows in a format ----------------------------------------------------------------------------


class _Made:
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

    async def check(self, format: str) -> None:
        """Refuse a format that the result cannot have, before the first byte is sent."""
        if self._count is None:
            await self._read_value(format)
        if format == PARQUET and not self._is_rowset():
            await self._make_parquet()

    async def _read_value(self, format: str) -> None:
        """Read the whole value, to find its rows."""
        reference = self._reference
        if reference is not None:
            if (reference.bytes or 0) > IN_MEMORY:
                raise InvalidInput(
                    "the result has no rows of its own", hint="get it whole, as JSON"
                )
            with in_words():
                self._value = await self._payloads.resolve(reference)
        if format == JSON and self._is_whole():
            return
        if not isinstance(self._member("rows"), list):
            raise InvalidInput("the result has no rows", hint="--format json, without --rows")

    async def _make_parquet(self) -> None:
        """Make the file now, because only making it shows whether the rows fit columns."""
        reference = self._reference
        if reference is not None and (reference.bytes or 0) > IN_MEMORY:
            raise InvalidInput(
                "the result is stored as JSON, too much of it for columns",
                hint="--format jsonl",
            )
        with in_words():
            rows = [row async for batch in self._batches() for row in batch]
            like = rows
            if not like:
                like = [row async for batch in self._batches(whole=True) for row in batch]
            if not like:
                like = [self._names_only()]
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by the reader
        await asyncio.to_thread(_to_parquet, rows, like, self._file)

    def _is_whole(self) -> bool:
        return (self._start, self._stop) == (0, None)

    def _member(self, name: str) -> Any:
        """A member of the value, if it is a map."""
        if isinstance(self._value, dict):
            return self._value.get(name)
        return None

    def _names_only(self) -> dict[str, None]:
        """The columns of a result without rows, from `columns` beside the rows."""
        columns = self._member("columns")
        if not isinstance(columns, list):
            return {}
        return {name: None for name in columns if isinstance(name, str)}

    def _is_rowset(self) -> bool:
        return self._reference is not None and is_rowset(self._reference)

    async def json(self) -> Bytes:
        """The whole value, or a list of some of its rows."""
        if self._count is None and self._is_whole():
            yield encode(self._value)
            return
        before, after = await self._around()
        yield before + b"["
        comma = b""
        async with aclosing(self._batches()) as batches:
            async for rows in batches:
                if rows:
                    listed = await asyncio.to_thread(encode, rows)
                    yield comma + listed[1:-1]
                    comma = b","
        yield b"]" + after

    async def _around(self) -> tuple[bytes, bytes]:
        """The JSON before and after the rows, if they are a member of the value."""
        reference = self._reference
        if reference is None or reference.rows_at is None or not self._is_whole():
            return b"", b""
        with in_words():
            reader = await self._payloads.open(reference)
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

    async def lines(self) -> Bytes:
        async with aclosing(self._batches()) as batches:
            async for rows in batches:
                yield await asyncio.to_thread(_lines, rows)

    async def csv(self) -> Bytes:
        if self._reference is not None and is_rowset(self._reference):
            parts = self._of_rowset(self._reference, _csv)
        else:
            parts = self._csv_of_records()
        async with aclosing(parts):
            async for part in parts:
                yield part

    async def _csv_of_records(self) -> Bytes:
        written = _Csv()
        async with aclosing(self._batches()) as batches:
            async for rows in batches:
                yield await asyncio.to_thread(written.rows, rows)

    async def parquet(self) -> Bytes:
        """The file is written first, because its end says where its row groups are."""
        with self._file or tempfile.TemporaryFile() as file:
            if self._file is None:
                await self._rowset_to(file)
            file.seek(0)
            while data := await asyncio.to_thread(file.read, PIECE):
                yield data

    async def _rowset_to(self, file: Any) -> None:
        assert self._reference is not None
        with in_words():
            reader = await self._payloads.open(self._reference)

        def write_batches() -> None:
            from noetl.results.formats import ParquetWriter  # needs Arrow, which is loaded by now

            with closing(ParquetWriter(file, reader.schema)) as out:
                for batch in reader.batches(self._start, self._stop):
                    out.add(batch)

        try:
            await asyncio.to_thread(write_batches)
        finally:
            await asyncio.to_thread(reader.close)

    async def _batches(self, *, whole: bool = False) -> Rows:
        """The rows in batches. With `whole`, all rows instead of [start, stop)."""
        start, stop = self._start, self._stop
        if whole:
            start, stop = 0, None
        if self._count is None:
            listed = self._value["rows"][start:stop]
            for at in range(0, len(listed), BATCH):
                yield listed[at : at + BATCH]
            return
        assert self._reference is not None
        if is_rowset(self._reference):
            async with aclosing(self._of_rowset(self._reference, _row_batches)) as batches:
                async for rows in batches:
                    yield rows
            return
        stop = self._count if stop is None else min(stop, self._count)
        for at in range(start, stop, BATCH):
            end = min(at + BATCH, stop)
            with in_words():
                rows = await self._payloads.range(self._reference, at, end)
            yield rows

    async def _of_rowset(
        self, reference: Reference, convert: Callable[[Any, int, int | None], Iterator[Made]]
    ) -> AsyncGenerator[Made, None]:
        """What `convert` makes of the batches of a row set. It runs in a thread."""
        with in_words():
            reader = await self._payloads.open(reference)
        parts = convert(reader, self._start, self._stop)
        try:
            while (part := await asyncio.to_thread(next, parts, None)) is not None:
                yield part
        finally:
            await asyncio.to_thread(reader.close)


def _row_batches(
    reader: Any,
    start: int,
    stop: int | None,
) -> Iterator[list[Any]]:
    from noetl.results.rowsets import as_rows  # needs Arrow, which is loaded by now

    for batch in reader.batches(start, stop):
        for at in range(0, batch.num_rows, BATCH):
            yield as_rows(batch.slice(at, BATCH))


def _csv(reader: Any, start: int, stop: int | None) -> Iterator[bytes]:
    from noetl.results.formats import csv_header, csv_rows

    yield csv_header(reader.schema.names)
    for batch in reader.batches(start, stop):
        yield csv_rows(batch)


def _lines(rows: list[Any]) -> bytes:
    return b"".join(encode(row) + b"\n" for row in rows)


class _Csv:
    """CSV of records. The columns are those of the first rows."""

    def __init__(self) -> None:
        self._names: list[str] = []

    def rows(self, rows: list[Any]) -> bytes:
        from noetl.results.formats import csv_header, csv_records

        records, header = _records(rows), b""
        if not self._names:
            self._names = columns_of(records)
            header = csv_header(self._names)
        for record in records:
            strange = record.keys() - set(self._names)
            if strange:
                raise InvalidInput(
                    f"a row has the column {min(strange)!r}, which the first ones lack",
                    hint="--format jsonl",
                )
        return header + csv_records(records, self._names)


def _records(rows: list[Any]) -> list[dict[str, Any]]:
    return [row if isinstance(row, dict) else {"value": row} for row in rows]


def _to_parquet(rows: list[Any], like: list[Any], file: Any) -> None:
    """Write the rows with the columns and types of the rows in `like`."""
    from noetl.results.formats import Kinds, ParquetWriter, columns

    records, kinds = _records(rows), Kinds()
    try:
        kinds.see(_records(like))
        if not kinds.schema.names:
            raise InvalidInput(
                "the result has no columns, which Parquet needs", hint="--format json"
            )
        with closing(ParquetWriter(file, kinds.schema)) as out:
            out.add(columns(records, kinds.schema))
    except Unfit as error:
        raise InvalidInput(
            f"the rows do not fit columns: {error}", hint="--format jsonl"
        ) from error


# ---- previews ------------------------------------------------------------------------------------


async def _columns(payloads: ResultReader, reference: Reference) -> list[ShownColumn]:
    reader = await payloads.open(reference)
    try:
        return [ShownColumn(field.name, str(field.type)) for field in reader.schema]
    finally:
        await asyncio.to_thread(reader.close)


def _fitting(reference: Reference) -> int:
    """The number of rows that a preview opens, from their average size."""
    count = reference.rows or 0
    row_bytes = (reference.bytes or 0) // max(count, 1)
    return min(count, max(1, SHOWN // max(row_bytes, 1)))


def _names(rows: list[Any]) -> list[ShownColumn]:
    records = (row for row in rows if isinstance(row, dict))
    return [ShownColumn(name) for name in columns_of(records)]


def _short(value: Any, depth: int = 0) -> Any:
    """The value as a preview shows it."""
    match value:
        case str() if len(value) > TEXT:
            return value[:TEXT] + "…"
        case list() | dict() if depth == DEEP:
            return "…"
        case list():
            parts = [_short(part, depth + 1) for part in value[:LIST]]
            if len(value) > LIST:
                parts.append("…")
            return parts
        case dict():
            return {name: _short(part, depth + 1) for name, part in value.items()}
        case _:
            return value


@contextmanager
def in_words() -> Iterator[None]:
    """Turn a failure of the pipeline into an error for a person: no playbook routes on it here."""
    try:
        yield
    except Failing as failing:
        if isinstance(failing.__cause__, Expired):
            raise failing.__cause__ from failing
        kind = Unavailable if failing.failure.retryable else NotFound
        raise kind(failing.failure.message, hint=ELSEWHERE) from failing
