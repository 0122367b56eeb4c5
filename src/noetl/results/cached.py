"""A tier in front of a remote tier: blocks that were read are cached on the local disk.

A payload is written to the remote tier first; the staged file then stays here as a cache entry.
There are two pools, so that a scan of much data does not evict what every reader needs first: a
file's size, its checksums, and its end, where indexes and footers are.
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
# The least and the most bytes that count as a file's end; between them, a thousandth of the file.
_ENDS = (64 << 10, 4 << 20)


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
        cached_size = await asyncio.to_thread(self._pools.size, name)
        if size is None:
            size = cached_size
        remote = await self._tier.open(reference, size=size)
        return await asyncio.to_thread(self._pools.source, name, remote)

    async def delete(self, address: Address) -> None:
        await self._tier.delete(address)
        await asyncio.to_thread(self._pools.drop, _name(str(address)))

    def listed(self, execution_id: ExecutionId | None = None) -> AsyncIterator[StoredObject]:
        return self._tier.listed(execution_id)


class Pools:
    """The cache entries of a file, by name: `-size`, `-sums` of its blocks, and `-whole` or block
    numbers.
    """

    def __init__(self, meta: FilePool, data: FilePool) -> None:
        self._meta = meta
        self._data = data

    def size(self, name: str) -> int | None:
        data = self._meta.get(f"{name}-size")
        return None if data is None else int(_SIZE.unpack(data)[0])

    def source(self, name: str, remote: ByteSource) -> ByteSource:
        if self.size(name) is None:
            self._meta.add(f"{name}-size", _SIZE.pack(remote.size))
        return self._whole(name, remote) or CachedFile(self, name, remote)

    def _whole(self, name: str, remote: ByteSource) -> "Checked | None":
        """The whole file if it is cached here with all of its checksums."""
        entry = self._data.file(f"{name}-whole")
        if entry is None:
            return None
        local = Opened(*entry)
        sums = array("I", self._meta.get(f"{name}-sums") or b"")
        if local.size == remote.size and len(sums) == -(-local.size // BLOCK):
            return Checked(self, name, local, sums, remote)
        local.close()
        return None

    def block(self, name: str, number: int, size: int) -> bytes | None:
        data = self._of(number, size).get(f"{name}-{number}")
        if data is None or len(data) != min(BLOCK, size - number * BLOCK):
            return None
        return data

    def keep(self, name: str, number: int, size: int, data: bytes) -> None:
        self._of(number, size).add(f"{name}-{number}", data)

    def _of(self, number: int, size: int) -> FilePool:
        """The pool of a block: the end of a file counts as metadata."""
        end = min(max(size >> 10, _ENDS[0]), _ENDS[1])
        if (number + 1) * BLOCK > size - end:
            return self._meta
        return self._data

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
    """A file that is cached whole. A block that does not match its checksum is read from the remote
    tier, and the cached file is dropped.
    """

    def __init__(
        self, pools: Pools, name: str, local: Opened, sums: "array[int]", remote: ByteSource
    ) -> None:
        self.size = local.size
        self.path: Path | None = local.path
        self._pools = pools
        self._name = name
        self._local = local
        self._sums = sums
        self._remote = remote

    def read(self, offset: int, length: int) -> bytes:
        first, last = _blocks(offset, min(length, self.size - offset))
        data = self._local.read(first * BLOCK, (last - first) * BLOCK)
        view = memoryview(data)
        for number in range(first, last):
            begin = (number - first) * BLOCK
            if crc32(view[begin : begin + BLOCK]) != self._sums[number]:
                self._pools.drop(self._name)
                return self._remote.read(offset, length)
        return _cut(data, offset - first * BLOCK, length)

    def close(self) -> None:
        self._local.close()
        self._remote.close()


class CachedFile:
    """A remote file with some blocks cached here. One request reads everything from the first to
    the last missing block.
    """

    path: Path | None = None

    def __init__(self, pools: Pools, name: str, remote: ByteSource) -> None:
        self.size = remote.size
        self._pools = pools
        self._name = name
        self._remote = remote

    def read(self, offset: int, length: int) -> bytes:
        first, last = _blocks(offset, min(length, self.size - offset))
        get_block = self._pools.block
        parts = [get_block(self._name, number, self.size) for number in range(first, last)]
        missing = [number for number, part in enumerate(parts, first) if part is None]
        if missing:
            begin, end = missing[0], missing[-1] + 1
            parts[begin - first : end - first] = self._fetched(begin, end)
        data = b"".join(part or b"" for part in parts)
        return _cut(data, offset - first * BLOCK, length)

    def _fetched(self, begin: int, end: int) -> list[bytes | None]:
        data = self._remote.read(begin * BLOCK, (end - begin) * BLOCK)
        parts: list[bytes | None] = []
        for number in range(begin, end):
            part = _cut(data, (number - begin) * BLOCK, BLOCK)
            if len(part) == min(BLOCK, self.size - number * BLOCK):
                self._pools.keep(self._name, number, self.size, part)
            parts.append(part)
        return parts

    def signed(self, lasts: timedelta) -> str | None:
        if isinstance(self._remote, Afar):
            return self._remote.signed(lasts)
        return None

    def close(self) -> None:
        self._remote.close()


def _blocks(offset: int, length: int) -> tuple[int, int]:
    """The number of the first block of a range, and the number behind its last block."""
    if length <= 0:
        return 0, 0
    return offset // BLOCK, -(-(offset + length) // BLOCK)


def _cut(data: bytes, offset: int, length: int) -> bytes:
    return data[offset : offset + length]


def _name(uri: str) -> str:
    return sha256(uri.encode()).hexdigest()[:40]
