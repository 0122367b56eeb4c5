"""Row sets: rows of one schema as Arrow, written as they arrive and read in parts.

  small    an Arrow IPC stream in memory, so that it may ride with a report
  large    Parquet, zstd, in row groups of about 1 MB: any row costs one group, and DuckDB and Spark
           read the file as it is

Every page of a Parquet file has a checksum, which is verified when the page is read. A row set that
is read whole is checked by its sha256. The rest of the value beside its rows (`columns`, the status
of an answer) is its head, which is in the file's metadata.

Types are those of Arrow, with two conventions: json is the extension type `arrow.json` and uuid is
`arrow.uuid`; a number of unknown precision is text in a field with the metadata `NUMERIC`.
`values.py` converts each type for templates.
"""

import io
import json
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from decimal import Decimal
from hashlib import sha256
from itertools import accumulate
from operator import attrgetter
from pathlib import Path
from threading import Lock
from typing import Any
from uuid import UUID

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from noetl.caches import WeightedLruCache
from noetl.model.errors import CorruptLog
from noetl.results.formats import moments
from noetl.results.formats.column_buffers import make_rows
from noetl.results.formats.encoding import ARROW, PARQUET, PARQUET_MAGIC
from noetl.results.formats.shared_arrays import share_batches
from noetl.results.formats.shared_records import SharedRecords
from noetl.results.formats.tables import EncodedTable, TableOptions, TooManyRows, ValueHead
from noetl.results.formats.values import decimal_to_json, to_json
from noetl.results.port import ByteSource, SignableSource
from noetl.results.staging import PayloadDraft, StagedPayload, Staging, translate_disk_errors

MAX_IN_MEMORY_BYTES = 1 << 20  # encoded bytes
MAX_PENDING_BYTES = 4 << 20  # bytes of rows in memory before a file is opened
GROUP_BYTES = 1 << 20  # encoded bytes of a row group: what reading one row costs
MAX_RAW_GROUP_BYTES = 8 << 20  # the most bytes of rows in one group, before encoding
MIN_COMPRESSED_BYTES = 16 << 10  # bytes: smaller streams are not compressed
MAX_LOADED_ROWS = 200_000  # in one value in memory
MAX_LOADED_BYTES = 64 << 20  # of one value in memory, encoded
MAX_FOOTER_BYTES = 16 << 20  # bytes
NUMERIC_METADATA = {b"noetl": b"numeric"}
_HEAD = b"noetl"
_UTC = "UTC"


# ---- writing -------------------------------------------------------------------------------------------------------------


class RowSetWriter:
    """Encodes batches into an `EncodedTable`. Use it in one thread at a time. Without a head the value is
    `{rows, row_count, columns}`.
    """

    def __init__(
        self, schema: pa.Schema, tables: TableOptions, head: ValueHead | None = None
    ) -> None:
        self.schema = make_storage_schema(schema)
        if tables.clean is not None:  # column names may hold secrets too
            columns = [pa.nulls(0, field.type) for field in self.schema]
            empty = pa.RecordBatch.from_arrays(columns, schema=self.schema)
            self.schema = tables.clean(empty).schema
        self.rows = 0
        self._tables = tables
        self._head = head
        self._pending: list[pa.RecordBatch] = []
        self._pending_rows = 0
        self._pending_bytes = 0
        self._group: int | None = None  # rows of the next group; None until there is a file
        self._draft: PayloadDraft | None = None
        self._file: Any = None

    def write(self, batch: pa.RecordBatch) -> None:
        batch = conform_batch(batch, self.schema)
        if self._tables.clean is not None:
            batch = self._tables.clean(batch)
        self.rows += batch.num_rows
        while batch.num_rows:
            piece = batch.slice(0, self._count_fitting_rows(batch))
            batch = batch.slice(piece.num_rows)
            self._pending.append(piece)
            self._pending_rows += piece.num_rows
            self._pending_bytes += piece.nbytes
            if self._is_full():
                self._write_group()

    def _count_fitting_rows(self, batch: pa.RecordBatch) -> int:
        """The number of rows of the batch that fit into the current group."""
        room: int = batch.num_rows
        if self._group is not None:
            room = min(room, self._group - self._pending_rows)
        while room > 1 and batch.slice(0, room).nbytes > MAX_RAW_GROUP_BYTES:
            room //= 2
        return max(room, 1)

    def _is_full(self) -> bool:
        if self._group is None:
            return self._pending_bytes > MAX_PENDING_BYTES
        return self._pending_rows >= self._group or self._pending_bytes >= MAX_RAW_GROUP_BYTES

    def _write_group(self) -> None:
        file, draft = self._open_file()
        table = pa.Table.from_batches(self._pending, self.schema)
        before = draft.tell()
        size = self._group
        if size is None:  # the first group: guess from the bytes before encoding
            size = max(1, table.num_rows * GROUP_BYTES // max(self._pending_bytes, 1))
        with translate_disk_errors(draft.path):
            file.write_table(table, row_group_size=size)
        encoded = max(draft.tell() - before, 1)
        fitting = max(1, table.num_rows * GROUP_BYTES // encoded)
        self._group = min(fitting, 4 * size)
        self._pending, self._pending_rows, self._pending_bytes = [], 0, 0

    def _open_file(self) -> tuple[Any, PayloadDraft]:
        if self._draft is None:
            self._draft = self._tables.staging.for_unrepeatable.begin_draft()
            self._file = pq.ParquetWriter(
                self._draft,
                self.schema,
                compression="zstd",
                compression_level=1,
                use_dictionary=False,
                write_page_checksum=True,
                store_decimal_as_integer=True,
            )
        return self._file, self._draft

    def write_all(self, batches: Iterable[pa.RecordBatch]) -> EncodedTable:
        """Write all batches and finish. On an error, delete everything that was written."""
        try:
            for batch in batches:
                self.write(batch)
            return self.finish()
        except BaseException:
            self.discard()
            raise

    def finish(self) -> EncodedTable:
        head = self._head or ValueHead(
            "rows", {"rows": None, "row_count": self.rows, "columns": self.schema.names}
        )
        metadata = {_HEAD: msgspec.json.encode(head)}
        if self._draft is None:
            table = pa.Table.from_batches(self._pending, self.schema)
            data = _encode_stream(table, metadata)
            if len(data) <= MAX_IN_MEMORY_BYTES:
                return self._make_table(StagedPayload.from_bytes(data), ARROW, head)
        if self._pending or self._draft is None:
            self._write_group()
        file, draft = self._open_file()
        with translate_disk_errors(draft.path):
            file.add_key_value_metadata(metadata)
            file.close()
            return self._make_table(draft.finish(), PARQUET, head)

    def _make_table(self, staged: StagedPayload, format: str, head: ValueHead) -> EncodedTable:
        rows = self.rows

        def read_value() -> Any:
            if rows > MAX_LOADED_ROWS or staged.size > MAX_LOADED_BYTES:
                raise TooManyRows(
                    f"the result has {rows} rows, too many for one value; select less, or aggregate"
                )
            return open_rowset_reader(_StagedSource(staged), "the result").read_value()

        return EncodedTable(staged, format, rows, self.schema.names, head, read_value, self._draft)

    def discard(self) -> None:
        """Delete everything that was written."""
        if self._draft is not None:
            with suppress(pa.ArrowException, OSError, ValueError):
                self._file.close()
            self._draft.discard()


class _StagedSource:
    """A staged payload as a byte source."""

    def __init__(self, staged: StagedPayload) -> None:
        self.path = staged.path
        self.size = staged.size
        self.read = staged.read

    def close(self) -> None:
        """The payload stays open, because it is still to be stored."""


def _encode_stream(table: pa.Table, metadata: dict[bytes, bytes]) -> bytes:
    codec = pa.Codec("zstd", 1) if table.nbytes > MIN_COMPRESSED_BYTES else None
    out = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=codec)
    schema = table.schema.with_metadata(metadata)
    with pa.ipc.new_stream(out, schema, options=options) as stream:
        stream.write_table(table.combine_chunks())
    return out.getvalue()


# ---- types that are stored -------------------------------------------------------------------------------------------------


def make_storage_schema(schema: pa.Schema) -> pa.Schema:
    return pa.schema([_make_storage_field(field) for field in schema])


def _make_storage_field(field: pa.Field) -> pa.Field:
    """The field as it is stored. Types that Parquet does not know, or that only wrap another, are
    replaced.
    """
    kind = field.type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    elif pa.types.is_interval(kind):
        kind = pa.duration("us")
    elif pa.types.is_union(kind):
        kind = pa.json_()
    elif pa.types.is_timestamp(kind) and kind.tz is not None:
        kind = pa.timestamp(kind.unit, _UTC)
    elif isinstance(kind, pa.OpaqueType):
        kind = kind.storage_type
    metadata = (
        NUMERIC_METADATA if (field.metadata or {}).items() >= NUMERIC_METADATA.items() else None
    )
    return pa.field(field.name, kind, metadata=metadata)


def conform_batch(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The same rows with the types and the names of the schema."""
    if batch.schema.equals(schema, check_metadata=True):
        return batch
    columns = [
        _cast_column(column, field.type)
        for column, field in zip(batch.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _cast_column(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if column.type.equals(kind):
        return column
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if pa.types.is_interval(column.type):
        micros = [None if value is None else _count_micros(value) for value in column.to_pylist()]
        return pa.array(micros, kind)
    if pa.types.is_union(column.type):
        texts = [
            None if value is None else json.dumps(to_json(value))
            for value in moments.list_python_values(column)
        ]
        return pa.array(texts, pa.string()).cast(kind)
    if isinstance(kind, pa.UuidType) and pa.types.is_string(column.type):
        uuids = [None if text is None else UUID(text) for text in column.to_pylist()]
        return pa.array(uuids, kind)
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, column.cast(kind.storage_type))
    return column.cast(kind)


def _count_micros(value: Any) -> int:
    """The microseconds of an interval. A month has thirty days, as in Postgres."""
    return int((value.months * 30 + value.days) * 86_400_000_000 + value.nanoseconds // 1_000)


# ---- values ----------------------------------------------------------------------------------------------------------------


def list_rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Rows as templates see them."""
    names = batch.schema.names
    if not names:
        return []
    columns = [
        list_column_values(column, field)
        for column, field in zip(batch.columns, batch.schema, strict=True)
    ]
    return make_rows(tuple(names), columns)


def list_column_values(column: pa.Array, field: pa.Field) -> list[Any]:
    """The values of a column as templates see them."""
    kind = column.type
    if _is_json(column, field):
        return list(column.to_pylist())  # several times as fast as with an option for maps
    if _is_numeric(field):
        return [
            None if text is None else decimal_to_json(Decimal(text)) for text in column.to_pylist()
        ]
    if isinstance(kind, pa.JsonType):
        texts = column.storage.to_pylist()
        return [None if text is None else to_json(json.loads(text)) for text in texts]
    if pa.types.is_float32(kind) or pa.types.is_float16(kind):  # 1.1, not the double nearest to it
        texts = column.cast(pa.string()).to_pylist()
        return [None if text is None else to_json(float(text)) for text in texts]
    return [to_json(value) for value in moments.list_python_values(column)]


def _list_unlike_json(column: pa.Array, field: pa.Field) -> list[Any] | None:
    """The values of a column, or None if Arrow's values are JSON without a conversion."""
    if _is_json(column, field):
        return None
    return list_column_values(column, field)


def _is_numeric(field: pa.Field) -> bool:
    """Whether the column holds numbers of unknown precision as text."""
    return field.metadata is not None and field.metadata.items() >= NUMERIC_METADATA.items()


def _is_json(column: pa.Array, field: pa.Field) -> bool:
    """Whether Arrow's values are JSON without a conversion."""
    if _is_numeric(field):
        return False
    return _is_plain(column.type) or _is_finite_float(column)


def _is_finite_float(column: pa.Array) -> bool:
    if not pa.types.is_float64(column.type):
        return False
    return pc.all(pc.is_finite(column)).as_py() is not False


def _is_plain(kind: pa.DataType) -> bool:
    if pa.types.is_integer(kind):
        return not pa.types.is_uint64(kind)
    return bool(pa.types.is_boolean(kind) or pa.types.is_string(kind) or pa.types.is_null(kind))


# ---- reading ---------------------------------------------------------------------------------------------------------------


class RowSetReader(ABC):
    """An open row set. Every call may wait for a disk or a network."""

    head: ValueHead
    schema: pa.Schema
    count: int

    def __init__(self, source: ByteSource, uri: str) -> None:
        self._source = source
        self._uri = uri

    @abstractmethod
    def batches(
        self, start: int = 0, stop: int | None = None, columns: Sequence[str] | None = None
    ) -> Iterator[Any]:
        """Yield the rows [start, stop) of the named columns. Nothing else is read."""

    def read_rows(self, start: int, stop: int) -> list[dict[str, Any]]:
        return [row for batch in self.batches(start, stop) for row in list_rows(batch)]

    def read_value(self) -> Any:
        return self.head.wrap_rows(self.read_rows(0, self.count))

    def share_rows(self) -> SharedRecords:
        """Copy the rows into shared memory, with the values that templates see."""
        return share_batches(self.batches(), self.schema.names, self.head, _list_unlike_json)

    def verify_sha256(self, expected: str | None) -> None:
        """Compare the sha256 of the whole file."""
        sha = sha256()
        for data in self._read_pieces():
            sha.update(data)
        if expected is not None and sha.hexdigest() != expected:
            raise CorruptLog(f"{self._uri} does not match its checksum")

    def _read_pieces(self) -> Iterator[bytes]:
        at = 0
        while data := self._source.read(at, GROUP_BYTES):
            yield data
            at += len(data)

    @contextmanager
    def open_local_files(self, staging: Staging) -> Iterator[list[Path]]:
        """Provide local Parquet files with these rows while the block runs; an empty list if the
        rows are in memory.
        """
        yield []

    def list_parquet_files(self) -> list["ParquetReader"]:
        """The Parquet files of the row set; an empty list if it is in memory."""
        return []

    def close(self) -> None:
        self._source.close()


class _ArrowReader(RowSetReader):
    def __init__(self, source: ByteSource, uri: str) -> None:
        super().__init__(source, uri)
        with _translate_errors(uri):
            data = source.read(0, source.size)
            self._table = pa.ipc.open_stream(data).read_all()
            self.head = _read_head(self._table.schema.metadata)
        self.schema = self._table.schema.remove_metadata()
        self.count = self._table.num_rows

    def batches(
        self, start: int = 0, stop: int | None = None, columns: Sequence[str] | None = None
    ) -> Iterator[Any]:
        table = self._table
        if columns is not None:
            table = table.select(list(columns))
        start, stop = _clamp_range(start, stop, self.count)
        rows = table.replace_schema_metadata().slice(start, max(stop - start, 0))
        yield from rows.to_batches()


class ParquetReader(RowSetReader):
    """A Parquet file. `footer` saves a read if an earlier reader of the same file has it."""

    def __init__(self, source: ByteSource, uri: str, footer: Any = None) -> None:
        super().__init__(source, uri)
        with _translate_errors(uri):
            self._file = pq.ParquetFile(
                pa.PythonFile(_SourceFile(source), mode="r"),
                metadata=footer,
                page_checksum_verification=True,
                pre_buffer=True,
            )
            self.footer = self._file.metadata
            self.head = _read_head(self.footer.metadata)
        self.schema = self._file.schema_arrow.remove_metadata()
        self.count = self.footer.num_rows
        groups = range(self.footer.num_row_groups)
        self._ends = list(accumulate(self.footer.row_group(group).num_rows for group in groups))

    def list_parquet_files(self) -> list["ParquetReader"]:
        return [self]

    @property
    def path(self) -> Path | None:
        """The file's path if it is on this machine."""
        return self._source.path

    @property
    def size(self) -> int:
        return self._source.size

    def sign_url(self, lasts: timedelta) -> str | None:
        """A URL by which anyone may read the file for that time; None if it has no such URL."""
        if isinstance(self._source, SignableSource):
            return self._source.sign_url(lasts)
        return None

    @contextmanager
    def open_local_files(self, staging: Staging) -> Iterator[list[Path]]:
        if self._source.path is not None:
            yield [self._source.path]
            return
        draft = staging.begin_draft()
        try:
            with translate_disk_errors(draft.path):
                for data in self._read_pieces():
                    draft.write(data)
                draft.finish()
            yield [] if draft.path is None else [draft.path]
        finally:
            draft.discard()

    def batches(
        self, start: int = 0, stop: int | None = None, columns: Sequence[str] | None = None
    ) -> Iterator[Any]:
        start, stop = _clamp_range(start, stop, self.count)
        names = None if columns is None else list(columns)
        while start < stop:
            group = bisect_right(self._ends, start)
            end = self._ends[group]
            begin = end - self.footer.row_group(group).num_rows
            with _translate_errors(self._uri):
                table = self._file.read_row_group(group, columns=names)
            rows = table.replace_schema_metadata().slice(start - begin, min(stop, end) - start)
            yield from rows.to_batches()
            start = end


class JoinedReader(RowSetReader):
    """The row sets of several files as one."""

    def __init__(self, head: ValueHead, readers: Sequence[RowSetReader]) -> None:
        self.head = head
        self.readers = list(readers)
        self.schema = self.readers[0].schema
        self._ends = list(accumulate(reader.count for reader in self.readers))
        self.count = self._ends[-1]

    def batches(
        self, start: int = 0, stop: int | None = None, columns: Sequence[str] | None = None
    ) -> Iterator[Any]:
        start, stop = _clamp_range(start, stop, self.count)
        for reader, end in zip(self.readers, self._ends, strict=True):
            begin = end - reader.count
            if start < end and stop > begin:
                yield from reader.batches(max(start - begin, 0), stop - begin, columns)

    @contextmanager
    def open_local_files(self, staging: Staging) -> Iterator[list[Path]]:
        with ExitStack() as stack:
            paths: list[Path] = []
            for reader in self.readers:
                paths += stack.enter_context(reader.open_local_files(staging))
            yield paths

    def list_parquet_files(self) -> list[ParquetReader]:
        return [file for reader in self.readers for file in reader.list_parquet_files()]

    def verify_sha256(self, expected: str | None) -> None:
        """Nothing to do: each part has its own checksum, and `expected` is the manifest's."""

    def close(self) -> None:
        for reader in self.readers:
            reader.close()


class _SourceFile(io.RawIOBase):
    """A byte source as a file object for Arrow."""

    def __init__(self, source: ByteSource) -> None:
        self._source = source
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        origins = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._source.size}
        self._at = origins[whence] + offset
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        left = max(self._source.size - self._at, 0)
        if size is None or size < 0:
            size = left
        data = self._source.read(self._at, min(size, left))
        self._at += len(data)
        return data


class FooterCache:
    """An LRU cache of Parquet footers: with the footer, reading a row costs its group only.

    Payloads are read in threads, so a lock guards the cache.
    """

    def __init__(self, limit: int = MAX_FOOTER_BYTES) -> None:
        self._kept: WeightedLruCache[str, Any] = WeightedLruCache(
            limit, attrgetter("serialized_size")
        )
        self._lock = Lock()

    def get(self, uri: str) -> Any:
        with self._lock:
            return self._kept.get(uri)

    def add(self, uri: str, footer: Any) -> None:
        with self._lock:
            if uri not in self._kept:
                self._kept.put(uri, footer)


def open_rowset_reader(
    source: ByteSource, uri: str, footers: FooterCache | None = None
) -> RowSetReader:
    """Open a row set. The caller closes it."""
    if source.read(0, 4) != PARQUET_MAGIC:
        return _ArrowReader(source, uri)
    if footers is None:
        return ParquetReader(source, uri)
    reader = ParquetReader(source, uri, footers.get(uri))
    footers.add(uri, reader.footer)
    return reader


def open_table_reader(table: EncodedTable) -> RowSetReader:
    """Open rows that are not stored yet. The reader works as long as the table is open."""
    return open_rowset_reader(_StagedSource(table.staged), "the rows")


def _read_head(metadata: dict[bytes, bytes] | None) -> ValueHead:
    """The head in a file's metadata. A foreign file has none: the rows are the whole value."""
    data = (metadata or {}).get(_HEAD)
    if data is None:
        return ValueHead()
    return msgspec.json.decode(data, type=ValueHead)


def _clamp_range(
    start: int,
    stop: int | None,
    count: int,
) -> tuple[int, int]:
    """The range [start, stop) cut to the rows that exist."""
    if stop is None:
        stop = count
    return max(start, 0), min(stop, count)


@contextmanager
def _translate_errors(uri: str) -> Iterator[None]:
    """Translate errors of Arrow into CorruptLog."""
    try:
        yield
    except (pa.ArrowException, OSError, KeyError, msgspec.DecodeError) as error:
        raise CorruptLog(f"{uri} is not what was written: {error}") from error
