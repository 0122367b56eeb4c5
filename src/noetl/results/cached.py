"""A tier in front of another: what is read from afar is kept on this machine's disk, in blocks.

The durable copy comes first, always; the file it was made from then stays here as it is. Two pools, so that a scan of much data
does not push out what every reader begins with: a file's size, its sums, and its end, where indexes and footers are.
"""

import asyncio
from array import array
from collections.abc import AsyncIterator
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from struct import Struct
from zlib import crc32

from noetl.model.ids import ExecutionId
from noetl.model.reference import Address, Home, Reference
from noetl.results.pool import FilePool
from noetl.results.port import Afar, ByteSource, StoredObject, Tier
from noetl.results.sources import Opened
from noetl.results.staging import Staged

BLOCK = 256 << 10
_SIZE = Struct("<Q")
_ENDS = (
    64 << 10,
    4 << 20,
)  # the least and the most that counts as a file's end; between them, a thousandth of it


class Cached:
    def __init__(self, tier: Tier, meta: FilePool, data: FilePool) -> None:
        self._tier = tier
        self._pools = Pools(meta, data)

    @property
    def home(self) -> Home:
        return self._tier.home

    async def write(self, address: Address, staged: Staged) -> None:
        await self._tier.write(address, staged)
        if staged.path is not None:
            await asyncio.to_thread(self._pools.adopt, _name(str(address)), staged)

    async def open(self, reference: Reference, size: int | None = None) -> ByteSource:
        name = _name(reference.uri)
        known = await asyncio.to_thread(self._pools.size, name)
        far = await self._tier.open(reference, size=known if size is None else size)
        return await asyncio.to_thread(self._pools.source, name, far)

    async def delete(self, address: Address) -> None:
        await self._tier.delete(address)
        await asyncio.to_thread(self._pools.drop, _name(str(address)))

    def listed(self, execution_id: ExecutionId | None = None) -> AsyncIterator[StoredObject]:
        return self._tier.listed(execution_id)


class Pools:
    """What is known of a file, by names: `-size`, `-sums` of its blocks, `-whole` or blocks by number."""

    def __init__(self, meta: FilePool, data: FilePool) -> None:
        self._meta = meta
        self._data = data

    def size(self, name: str) -> int | None:
        found = self._meta.get(f"{name}-size")
        return None if found is None else int(_SIZE.unpack(found)[0])

    def source(self, name: str, far: ByteSource) -> ByteSource:
        if self.size(name) is None:
            self._meta.add(f"{name}-size", _SIZE.pack(far.size))
        return self._whole(name, far) or CachedFile(self, name, far)

    def _whole(self, name: str, far: ByteSource) -> "Checked | None":
        kept = self._data.file(f"{name}-whole")
        if kept is None:
            return None
        near, sums = Opened(*kept), array("I", self._meta.get(f"{name}-sums") or b"")
        if near.size == far.size and len(sums) == -(-near.size // BLOCK):
            return Checked(self, name, near, sums, far)
        near.close()
        return None

    def block(self, name: str, number: int, size: int) -> bytes | None:
        found = self._of(number, size).get(f"{name}-{number}")
        return (
            found if found is not None and len(found) == min(BLOCK, size - number * BLOCK) else None
        )

    def keep(self, name: str, number: int, size: int, data: bytes) -> None:
        self._of(number, size).add(f"{name}-{number}", data)

    def _of(self, number: int, size: int) -> FilePool:
        end = min(max(size >> 10, _ENDS[0]), _ENDS[1])
        return self._meta if (number + 1) * BLOCK > size - end else self._data

    def adopt(self, name: str, staged: Staged) -> None:
        assert staged.path is not None
        sums = array("I", (crc32(part) for part in staged.parts(BLOCK)))
        if self._data.adopt(f"{name}-whole", staged.path, staged.size):
            self._meta.add(f"{name}-sums", sums.tobytes())
            self._meta.add(f"{name}-size", _SIZE.pack(staged.size))

    def drop(self, name: str) -> None:
        for pool in (self._meta, self._data):
            pool.drop(f"{name}-")


class Checked:
    """A whole file that is here. A block that does not match its sum is read from afar, and the file is dropped."""

    def __init__(
        self, pools: Pools, name: str, near: Opened, sums: "array[int]", far: ByteSource
    ) -> None:
        self.size = near.size
        self.path: Path | None = near.path
        self._pools = pools
        self._name = name
        self._near = near
        self._sums = sums
        self._far = far

    def read(self, offset: int, length: int) -> bytes:
        first, last = _blocks(offset, min(length, self.size - offset))
        data = self._near.read(first * BLOCK, (last - first) * BLOCK)
        view = memoryview(data)
        for number in range(first, last):
            begin = (number - first) * BLOCK
            if crc32(view[begin : begin + BLOCK]) != self._sums[number]:
                self._pools.drop(self._name)
                return self._far.read(offset, length)
        return _cut(data, offset - first * BLOCK, length)

    def close(self) -> None:
        self._near.close()
        self._far.close()


class CachedFile:
    """A file afar, of which blocks may be here. What is missing between two of them is asked for at once."""

    path: Path | None = None

    def __init__(self, pools: Pools, name: str, far: ByteSource) -> None:
        self.size = far.size
        self._pools = pools
        self._name = name
        self._far = far

    def read(self, offset: int, length: int) -> bytes:
        first, last = _blocks(offset, min(length, self.size - offset))
        parts = [self._pools.block(self._name, number, self.size) for number in range(first, last)]
        missing = [number for number, part in enumerate(parts, first) if part is None]
        if missing:
            begin, end = missing[0], missing[-1] + 1
            parts[begin - first : end - first] = self._fetched(begin, end)
        return _cut(b"".join(part or b"" for part in parts), offset - first * BLOCK, length)

    def _fetched(self, begin: int, end: int) -> list[bytes | None]:
        data = self._far.read(begin * BLOCK, (end - begin) * BLOCK)
        parts: list[bytes | None] = []
        for number in range(begin, end):
            part = _cut(data, (number - begin) * BLOCK, BLOCK)
            if len(part) == min(BLOCK, self.size - number * BLOCK):
                self._pools.keep(self._name, number, self.size, part)
            parts.append(part)
        return parts

    def signed(self, lasts: timedelta) -> str | None:
        return self._far.signed(lasts) if isinstance(self._far, Afar) else None

    def close(self) -> None:
        self._far.close()


def _blocks(offset: int, length: int) -> tuple[int, int]:
    """Of the first byte, and behind that of the last."""
    return (offset // BLOCK, -(-(offset + length) // BLOCK)) if length > 0 else (0, 0)


def _cut(data: bytes, offset: int, length: int) -> bytes:
    return data[offset : offset + length]


def _name(uri: str) -> str:
    return sha256(uri.encode()).hexdigest()[:40]
