"""Stored results for people: the first rows, the bytes as they are stored, or rows in a format of their choice.

Everything is streamed: what is in memory is a piece, a batch of rows, or a value too small to matter.
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

PIECE = 256 * 1024  # bytes read at once
BATCH = 1_000  # rows made at once
WHOLE = 64 * 1024  # bytes of a value without rows that a preview opens
SHOWN = 4 << 20  # bytes of rows that a preview opens; one row is shown however large it is
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
    def __init__(self, store: ResultStore, manifests: Manifests) -> None:
        self._store = store
        self._manifests = manifests

    def _payloads(self) -> ResultReader:
        """One for each reader: what it keeps is its own."""
        return ResultReader(self._store, self._manifests)

    async def resolve(self, reference: Reference) -> Any:
        with in_words():
            return await self._payloads().resolve(reference)

    async def preview(self, reference: Reference, rows: int) -> Preview:
        payloads = self._payloads()
        with in_words():
            if reference.rows is None:
                if (reference.bytes or 0) > WHOLE:
                    return Preview(cut=True)
                return Preview(value=stripped(_short(await payloads.resolve(reference))))
            found = await payloads.range(reference, 0, min(rows, _fitting(reference)))
            columns = await _columns(payloads, reference) if is_rowset(reference) else _names(found)
        return Preview(
            row_count=reference.rows,
            columns=tuple(columns),
            rows=[stripped(_short(row)) for row in found],
            cut=reference.rows > len(found),
        )

    # ---- bytes -------------------------------------------------------------------------------------------------------------

    async def download(
        self,
        reference: Reference | None,
        format: str | None,
        start: int = 0,
        stop: int | None = None,
    ) -> Download:
        """Without a format: as it is stored; a loop's result, which is stored in parts, as JSON. Rows [start, stop) of it."""
        stored = JSON if reference is None or is_manifest(reference) else reference.format or JSON
        whole = (start, stop) == (0, None)
        format = format or (JSON if stored == ARROW and not whole else stored)
        if format not in MEDIA_TYPES or (format == ARROW and (stored != ARROW or not whole)):
            raise InvalidInput(
                f"there is no format {format!r}", hint=f"one of {', '.join(FORMATS)}"
            )
        if reference is not None and whole and format == stored and not is_manifest(reference):
            return await self._as_stored(reference, format)
        made = _Made(self._payloads(), reference, start, stop)
        parts = {JSON: made.json, "jsonl": made.lines, "csv": made.csv, PARQUET: made.parquet}[
            format
        ]
        await made.check(format)
        return Download(MEDIA_TYPES[format], format, lambda begin, end: parts())

    async def _as_stored(self, reference: Reference, format: str) -> Download:
        size = await self._size(reference)

        async def parts(start: int, stop: int | None) -> Bytes:
            with in_words():
                source = await self._open(reference)
                try:
                    async for data in _pieces(
                        source, start, size if stop is None else min(stop, size)
                    ):
                        yield data
                finally:
                    await asyncio.to_thread(source.close)

        return Download(MEDIA_TYPES[format], format, parts, size, reference.sha256)

    async def _size(self, reference: Reference) -> int:
        """Of the payload: its file may have more. Opened now, so that who cannot have it is told before the first byte."""
        with in_words():
            source = await self._open(reference)
            try:
                return source.size if reference.bytes is None else min(reference.bytes, source.size)
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


# ---- rows in a format -----------------------------------------------------------------------------------------------------


class _Made:
    """Rows [start, stop) of a result, made into bytes as they are read."""

    def __init__(
        self, payloads: ResultReader, reference: Reference | None, start: int, stop: int | None
    ) -> None:
        self._payloads = payloads
        self._reference = reference
        self._count = None if reference is None else reference.rows
        self._start = start
        self._stop = stop
        self._value: Any = None  # of what has no rows that are known
        self._file: Any = (
            None  # Parquet of rows that are no row set: whether they fit is known when it is made
        )

    async def check(self, format: str) -> None:
        """What cannot be had in this format is refused before the first byte."""
        reference = self._reference
        if self._count is None:
            if reference is not None:
                if (reference.bytes or 0) > IN_MEMORY:
                    raise InvalidInput(
                        "the result has no rows of its own", hint="get it whole, as JSON"
                    )
                with in_words():
                    self._value = await self._payloads.resolve(reference)
            found = self._value.get("rows") if isinstance(self._value, dict) else None
            if not isinstance(found, list) and (
                format != JSON or (self._start, self._stop) != (0, None)
            ):
                raise InvalidInput("the result has no rows", hint="--format json, without --rows")
        if format == PARQUET and not self._is_rowset():
            if reference is not None and (reference.bytes or 0) > IN_MEMORY:
                raise InvalidInput(
                    "the result is stored as JSON, too much of it for columns",
                    hint="--format jsonl",
                )
            with in_words():
                rows = [row async for batch in self._batches() for row in batch]
                like = (
                    rows
                    or [row async for batch in self._batches(whole=True) for row in batch]
                    or [self._names_only()]
                )
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by who reads it
            await asyncio.to_thread(_to_parquet, rows, like, self._file)

    def _names_only(self) -> dict[str, None]:
        """Of rows that there are none of, what stands beside them: `columns`."""
        found = self._value.get("columns") if isinstance(self._value, dict) else None
        return (
            {name: None for name in found if isinstance(name, str)}
            if isinstance(found, list)
            else {}
        )

    def _is_rowset(self) -> bool:
        return self._reference is not None and is_rowset(self._reference)

    async def json(self) -> Bytes:
        """The value whole; of a part of its rows, a list."""
        if self._count is None and (self._start, self._stop) == (0, None):
            yield encode(self._value)
            return
        before, after = await self._around()
        yield before + b"["
        comma = b""
        async with aclosing(self._batches()) as batches:
            async for rows in batches:
                if rows:
                    yield comma + (await asyncio.to_thread(encode, rows))[1:-1]
                    comma = b","
        yield b"]" + after

    async def _around(self) -> tuple[bytes, bytes]:
        """What stands before and after the rows when they are a member of the value."""
        reference = self._reference
        if reference is None or reference.rows_at is None or (self._start, self._stop) != (0, None):
            return b"", b""
        with in_words():
            reader = await self._payloads.open(reference)
        head = dict(reader.head.rest)
        await asyncio.to_thread(reader.close)
        names = list(head)
        place = names.index(reference.rows_at) if reference.rows_at in head else len(names)
        before = b"".join(encode(name) + b":" + encode(head[name]) + b"," for name in names[:place])
        after = b"".join(
            b"," + encode(name) + b":" + encode(head[name]) for name in names[place + 1 :]
        )
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
        """Its end says where its groups are: it is written to a file first."""
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

        def write() -> None:
            from noetl.results.formats import ParquetWriter  # Arrow: it is here already

            with closing(ParquetWriter(file, reader.schema)) as out:
                for batch in reader.batches(self._start, self._stop):
                    out.add(batch)

        try:
            await asyncio.to_thread(write)
        finally:
            await asyncio.to_thread(reader.close)

    async def _batches(self, *, whole: bool = False) -> Rows:
        start, stop = (0, None) if whole else (self._start, self._stop)
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
            with in_words():
                rows = await self._payloads.range(self._reference, at, min(at + BATCH, stop))
            yield rows

    async def _of_rowset(
        self, reference: Reference, made: Callable[[Any, int, int | None], Iterator[Made]]
    ) -> AsyncGenerator[Made, None]:
        with in_words():
            reader = await self._payloads.open(reference)
        found = made(reader, self._start, self._stop)
        try:
            while (part := await asyncio.to_thread(next, found, None)) is not None:
                yield part
        finally:
            await asyncio.to_thread(reader.close)


def _row_batches(reader: Any, start: int, stop: int | None) -> Iterator[list[Any]]:
    from noetl.results.rowsets import as_rows  # Arrow: it is here already

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
    """The names are those of the first rows."""

    def __init__(self) -> None:
        self._names: list[str] = []

    def rows(self, rows: list[Any]) -> bytes:
        from noetl.results.formats import csv_header, csv_records

        records, header = _records(rows), b""
        if not self._names:
            self._names = columns_of(records)
            header = csv_header(self._names)
        for record in records:
            if strange := record.keys() - set(self._names):
                raise InvalidInput(
                    f"a row has the column {min(strange)!r}, which the first ones lack",
                    hint="--format jsonl",
                )
        return header + csv_records(records, self._names)


def _records(rows: list[Any]) -> list[dict[str, Any]]:
    return [row if isinstance(row, dict) else {"value": row} for row in rows]


def _to_parquet(rows: list[Any], like: list[Any], file: Any) -> None:
    """Rows that have the columns of those that are `like` them."""
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


# ---- previews --------------------------------------------------------------------------------------------------------------


async def _columns(payloads: ResultReader, reference: Reference) -> list[ShownColumn]:
    reader = await payloads.open(reference)
    try:
        return [ShownColumn(field.name, str(field.type)) for field in reader.schema]
    finally:
        await asyncio.to_thread(reader.close)


def _fitting(reference: Reference) -> int:
    """So many rows, of average size."""
    count = reference.rows or 0
    each = (reference.bytes or 0) // max(count, 1)
    return min(count, max(1, SHOWN // max(each, 1)))


def _names(rows: list[Any]) -> list[ShownColumn]:
    return [ShownColumn(name) for name in columns_of(row for row in rows if isinstance(row, dict))]


def _short(value: Any, depth: int = 0) -> Any:
    match value:
        case str():
            return value if len(value) <= TEXT else value[:TEXT] + "…"
        case list() | dict() if depth == DEEP:
            return "…"
        case list():
            return [
                *(_short(part, depth + 1) for part in value[:LIST]),
                *(["…"] if len(value) > LIST else []),
            ]
        case dict():
            return {name: _short(part, depth + 1) for name, part in value.items()}
        case _:
            return value


@contextmanager
def in_words() -> Iterator[None]:
    """Here nobody routes on a failure."""
    try:
        yield
    except Failing as failing:
        if isinstance(expired := failing.__cause__, Expired):
            raise expired from failing
        kind = Unavailable if failing.failure.retryable else NotFound
        raise kind(failing.failure.message, hint=ELSEWHERE) from failing
