"""The file format of a payload: its JSON, an index of blocks if it is a list, and a trailer.

A payload that is read whole is checked by its sha256. Rows are found by the index, and each block
has its own checksum; the trailer holds the checksum of the index. So reading one row costs one
block, however large the file is.
"""

from bisect import bisect_right
from dataclasses import dataclass
from hashlib import sha256
from struct import Struct
from typing import Any
from zlib import crc32

from noetl.model.errors import CorruptLog
from noetl.results.formats.encoding import decode_payload, encode, encode_pieces, not_a_list_error
from noetl.results.port import ByteSource
from noetl.results.staging import PayloadDraft

_MAGIC = b"noetl/1\n"
# payload bytes, rows, blocks, sha256 of the payload, checksum of the index, magic word
_TRAILER_FORMAT = Struct("<QQQ32sI8s")
_BLOCK_FORMAT = Struct("<QQI")  # first row, offset, checksum
_NO_ROWS = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class PayloadSummary:
    """The content of the trailer."""

    bytes: int
    rows: int | None
    blocks: int
    sha256: str
    index_sum: int


class _HashedOutput:
    """Counts and hashes the bytes that are written to the file."""

    def __init__(self, file: PayloadDraft) -> None:
        self.file = file
        self.size = 0
        self.sha = sha256()

    def add(self, data: bytes) -> None:
        self.file.write(data)
        self.sha.update(data)
        self.size += len(data)


def write_payload(file: PayloadDraft, value: Any) -> PayloadSummary:
    out = _HashedOutput(file)
    blocks = bytearray()
    rows: int | None = None
    if isinstance(value, list):
        rows = _write_items(out, value, blocks)
    else:
        out.add(encode(value))
    block_count = len(blocks) // _BLOCK_FORMAT.size
    summary = PayloadSummary(out.size, rows, block_count, out.sha.hexdigest(), crc32(blocks))
    file.write(blocks)
    trailer = _TRAILER_FORMAT.pack(
        summary.bytes,
        _NO_ROWS if rows is None else rows,
        summary.blocks,
        out.sha.digest(),
        summary.index_sum,
        _MAGIC,
    )
    file.write(trailer)
    return summary


def _write_items(out: _HashedOutput, items: list[Any], blocks: bytearray) -> int:
    """Write `[a,b,…]` and add the start of each piece to the index."""
    rows = 0
    out.add(b"[")
    for count, data in encode_pieces(items):
        if rows:
            out.add(b",")
        blocks += _BLOCK_FORMAT.pack(rows, out.size, crc32(data))
        out.add(data)
        rows += count
    out.add(b"]")
    return rows


class PayloadFile:
    """An open payload file, read at positions. Raises CorruptLog if the content is damaged."""

    def __init__(self, source: ByteSource, uri: str) -> None:
        self._source = source
        self._uri = uri
        self.summary = self._read_summary()

    def read_whole(self) -> bytes:
        data = self._read_exactly(0, self.summary.bytes)
        if sha256(data).hexdigest() != self.summary.sha256:
            raise self._make_corrupt_error("its content does not match its checksum")
        return data

    def read_rows(self, start: int, stop: int) -> list[Any]:
        """Return the items [start, stop). Only the blocks that hold them are read."""
        total = self.summary.rows
        if total is None:
            raise not_a_list_error(self._uri)
        start = max(start, 0)
        stop = min(stop, total)
        if start >= stop:
            return []
        index = self._read_index()
        first = _find_block(index, start)
        last = _find_block(index, stop - 1)
        first_row = index[first][0]
        data = self._read_blocks(index, first, last)
        items: list[Any] = decode_payload(b"[" + data + b"]", self._uri)
        return items[start - first_row : stop - first_row]

    def _read_summary(self) -> PayloadSummary:
        length = self._source.size
        trailer = b""
        if length > _TRAILER_FORMAT.size:
            trailer = self._read_exactly(length - _TRAILER_FORMAT.size, _TRAILER_FORMAT.size)
        if trailer[-len(_MAGIC) :] != _MAGIC:
            raise self._make_corrupt_error("its end is missing")
        size, row_count, blocks, sha, index_sum, _ = _TRAILER_FORMAT.unpack(trailer)
        if size + blocks * _BLOCK_FORMAT.size + _TRAILER_FORMAT.size != length:
            raise self._make_corrupt_error("a part of it is missing")
        rows = None if row_count == _NO_ROWS else row_count
        return PayloadSummary(size, rows, blocks, sha.hex(), index_sum)

    def _read_index(self) -> list[tuple[int, int, int]]:
        data = self._read_exactly(self.summary.bytes, self.summary.blocks * _BLOCK_FORMAT.size)
        if crc32(data) != self.summary.index_sum:
            raise self._make_corrupt_error("its index does not match its sum")
        return list(_BLOCK_FORMAT.iter_unpack(data))

    def _read_blocks(
        self,
        index: list[tuple[int, int, int]],
        first: int,
        last: int,
    ) -> bytes:
        """Read the blocks first to last and check each one.

        A block ends at the comma before the next block, the last one at the closing bracket.
        """
        ends = [offset - 1 for _, offset, _ in index[first + 1 : last + 2]]
        if last + 1 == len(index):
            ends.append(self.summary.bytes - 1)
        begin = index[first][1]
        data = self._read_exactly(begin, ends[-1] - begin)
        view = memoryview(data)
        for (_, offset, checksum), end in zip(index[first : last + 1], ends, strict=True):
            if crc32(view[offset - begin : end - begin]) != checksum:
                raise self._make_corrupt_error("a block does not match its sum")
        return data

    def _read_exactly(self, offset: int, size: int) -> bytes:
        data = self._source.read(offset, size)
        if len(data) != size:
            raise self._make_corrupt_error("a part of it is missing")
        return data

    def _make_corrupt_error(self, why: str) -> CorruptLog:
        return CorruptLog(f"{self._uri}: {why}")


def _find_block(index: list[tuple[int, int, int]], row: int) -> int:
    """The number of the block that holds the row."""
    return bisect_right(index, row, key=lambda block: block[0]) - 1
