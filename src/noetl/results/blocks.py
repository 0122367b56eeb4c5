"""The format of a payload's file: its JSON, an index of blocks when it is a list, a trailer.

Read whole, a payload is checked by its sha256. Rows are found by the index, and each block they lie in is checked by its own
sum; the trailer says what the index's sum is. So reading one row costs one block, however large the file is.
"""

from bisect import bisect_right
from dataclasses import dataclass
from hashlib import sha256
from struct import Struct
from typing import Any
from zlib import crc32

from noetl.model.errors import CorruptLog
from noetl.results.encoding import decoded, encode, not_a_list, pieces
from noetl.results.port import ByteSource
from noetl.results.staging import PayloadDraft

_MAGIC = b"noetl/1\n"
_TRAILER = Struct(
    "<QQQ32sI8s"
)  # the payload's bytes, rows, blocks, sha256; the index's sum; the magic word
_BLOCK = Struct("<QQI")  # first row, offset, sum
_NO_ROWS = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Summary:
    """What the trailer says."""

    bytes: int
    rows: int | None
    blocks: int
    sha256: str
    index_sum: int


class _Written:
    """Counts and sums what goes to the file."""

    def __init__(self, file: PayloadDraft) -> None:
        self.file = file
        self.size = 0
        self.sha = sha256()

    def add(self, data: bytes) -> None:
        self.file.write(data)
        self.sha.update(data)
        self.size += len(data)


def write(file: PayloadDraft, value: Any) -> Summary:
    out = _Written(file)
    blocks = bytearray()
    rows: int | None = None
    if isinstance(value, list):
        rows = _write_items(out, value, blocks)
    else:
        out.add(encode(value))
    made = Summary(out.size, rows, len(blocks) // _BLOCK.size, out.sha.hexdigest(), crc32(blocks))
    file.write(blocks)
    count = _NO_ROWS if rows is None else rows
    file.write(
        _TRAILER.pack(made.bytes, count, made.blocks, out.sha.digest(), made.index_sum, _MAGIC)
    )
    return made


def _write_items(out: _Written, items: list[Any], blocks: bytearray) -> int:
    """`[a,b,…]`; the index learns where each piece begins."""
    rows = 0
    out.add(b"[")
    for count, data in pieces(items):
        if rows:
            out.add(b",")
        blocks += _BLOCK.pack(rows, out.size, crc32(data))
        out.add(data)
        rows += count
    out.add(b"]")
    return rows


class Payload:
    """An open file, read at positions. CorruptLog when it is not what was written."""

    def __init__(self, source: ByteSource, uri: str) -> None:
        self._source = source
        self._uri = uri
        self.summary = self._read_summary()

    def whole(self) -> bytes:
        data = self._read(0, self.summary.bytes)
        if sha256(data).hexdigest() != self.summary.sha256:
            raise self._corrupt("its content does not match its checksum")
        return data

    def rows(self, start: int, stop: int) -> list[Any]:
        """Items [start, stop): the blocks that hold them are read, and nothing else."""
        total = self.summary.rows
        if total is None:
            raise not_a_list(self._uri)
        start, stop = max(start, 0), min(stop, total)
        if start >= stop:
            return []
        index = self._read_index()
        first, last = (
            bisect_right(index, row, key=lambda block: block[0]) - 1 for row in (start, stop - 1)
        )
        before = index[first][0]
        found: list[Any] = decoded(b"[" + self._read_blocks(index, first, last) + b"]", self._uri)
        return found[start - before : stop - before]

    def _read_summary(self) -> Summary:
        length = self._source.size
        last = self._read(length - _TRAILER.size, _TRAILER.size) if length > _TRAILER.size else b""
        if last[-len(_MAGIC) :] != _MAGIC:
            raise self._corrupt("its end is missing")
        size, rows, blocks, sha, index_sum, _ = _TRAILER.unpack(last)
        if size + blocks * _BLOCK.size + _TRAILER.size != length:
            raise self._corrupt("a part of it is missing")
        return Summary(size, None if rows == _NO_ROWS else rows, blocks, sha.hex(), index_sum)

    def _read_index(self) -> list[tuple[int, int, int]]:
        data = self._read(self.summary.bytes, self.summary.blocks * _BLOCK.size)
        if crc32(data) != self.summary.index_sum:
            raise self._corrupt("its index does not match its sum")
        return list(_BLOCK.iter_unpack(data))

    def _read_blocks(self, index: list[tuple[int, int, int]], first: int, last: int) -> bytes:
        """A block ends where the comma before the next one stands, the last one before the closing bracket."""
        ends = [offset - 1 for _, offset, _ in index[first + 1 : last + 2]]
        if last + 1 == len(index):
            ends.append(self.summary.bytes - 1)
        begin = index[first][1]
        data = self._read(begin, ends[-1] - begin)
        view = memoryview(data)
        for (_, offset, total), end in zip(index[first : last + 1], ends, strict=True):
            if crc32(view[offset - begin : end - begin]) != total:
                raise self._corrupt("a block does not match its sum")
        return data

    def _read(self, offset: int, size: int) -> bytes:
        data = self._source.read(offset, size)
        if len(data) != size:
            raise self._corrupt("a part of it is missing")
        return data

    def _corrupt(self, why: str) -> CorruptLog:
        return CorruptLog(f"{self._uri}: {why}")
