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
from noetl.results.port import ByteSource, SignableSource, StoredObject, Tier
from noetl.results.sources import FileSource
from noetl.results.staging import StagedPayload
from noetl.results.tenancy import StoreTenant
from noetl.results.tiers.file_pool import FilePool

CACHE_BLOCK_BYTES = 256 << 10
_SIZE_FORMAT = Struct("<Q")
# The least and the most bytes that count as a file's end; between them, a thousandth of the file.
_END_BYTES = (64 << 10, 4 << 20)


class CachedTier:
    def __init__(
        self, tier: Tier, meta: FilePool, data: FilePool, tenant: StoreTenant | None = None
    ) -> None:
        self._tier = tier
        self._tenant = tenant or StoreTenant()
        self._pools = BlockPools(meta, data)

    @property
    def home(self) -> Home:
        return self._tier.home

    async def write(self, address: Address, staged: StagedPayload) -> None:
        await self._tier.write(address, staged)
        if staged.path is not None:
            await asyncio.to_thread(
                self._pools.adopt_staged, self._make_entry_name(str(address)), staged
            )

    async def open(self, reference: Reference, size: int | None = None) -> ByteSource:
        name = self._make_entry_name(reference.uri)
        cached_size = await asyncio.to_thread(self._pools.find_size, name)
        if size is None:
            size = cached_size
        remote = await self._tier.open(reference, size=size)
        return await asyncio.to_thread(self._pools.open_cached_source, name, remote)

    async def delete(self, address: Address) -> None:
        await self._tier.delete(address)
        await asyncio.to_thread(self._pools.drop_blocks, self._make_entry_name(str(address)))

    def list_objects(self, execution_id: ExecutionId | None = None) -> AsyncIterator[StoredObject]:
        return self._tier.list_objects(execution_id)

    def _make_entry_name(self, uri: str) -> str:
        """Processes of several tenants may share the folder of the cache."""
        return sha256(self._tenant.make_cache_key(uri).encode()).hexdigest()[:40]


class BlockPools:
    """The cache entries of a file, by name: `-size`, `-sums` of its blocks, and `-whole` or block
    numbers.
    """

    def __init__(self, meta: FilePool, data: FilePool) -> None:
        self._meta = meta
        self._data = data

    def find_size(self, name: str) -> int | None:
        data = self._meta.get(f"{name}-size")
        return None if data is None else int(_SIZE_FORMAT.unpack(data)[0])

    def open_cached_source(self, name: str, remote: ByteSource) -> ByteSource:
        if self.find_size(name) is None:
            self._meta.add(f"{name}-size", _SIZE_FORMAT.pack(remote.size))
        return self._open_whole(name, remote) or CachedFile(self, name, remote)

    def _open_whole(self, name: str, remote: ByteSource) -> "CheckedFile | None":
        """The whole file if it is cached here with all of its checksums."""
        entry = self._data.open_entry(f"{name}-whole")
        if entry is None:
            return None
        local = FileSource(*entry)
        sums = array("I", self._meta.get(f"{name}-sums") or b"")
        if local.size == remote.size and len(sums) == -(-local.size // CACHE_BLOCK_BYTES):
            return CheckedFile(self, name, local, sums, remote)
        local.close()
        return None

    def get_block(self, name: str, number: int, size: int) -> bytes | None:
        data = self._choose_pool(number, size).get(f"{name}-{number}")
        if data is None or len(data) != min(CACHE_BLOCK_BYTES, size - number * CACHE_BLOCK_BYTES):
            return None
        return data

    def add_block(
        self,
        name: str,
        number: int,
        size: int,
        data: bytes,
    ) -> None:
        self._choose_pool(number, size).add(f"{name}-{number}", data)

    def _choose_pool(self, number: int, size: int) -> FilePool:
        """The pool of a block: the end of a file counts as metadata."""
        end = min(max(size >> 10, _END_BYTES[0]), _END_BYTES[1])
        if (number + 1) * CACHE_BLOCK_BYTES > size - end:
            return self._meta
        return self._data

    def adopt_staged(self, name: str, staged: StagedPayload) -> None:
        assert staged.path is not None
        sums = array("I", (crc32(part) for part in staged.read_parts(CACHE_BLOCK_BYTES)))
        if self._data.adopt_file(f"{name}-whole", staged.path, staged.size):
            self._meta.add(f"{name}-sums", sums.tobytes())
            self._meta.add(f"{name}-size", _SIZE_FORMAT.pack(staged.size))

    def drop_blocks(self, name: str) -> None:
        for pool in (self._meta, self._data):
            pool.drop_entries(f"{name}-")


class CheckedFile:
    """A file that is cached whole. A block that does not match its checksum is read from the remote
    tier, and the cached file is dropped.
    """

    def __init__(
        self,
        pools: BlockPools,
        name: str,
        local: FileSource,
        sums: "array[int]",
        remote: ByteSource,
    ) -> None:
        self.size = local.size
        self.path: Path | None = local.path
        self._pools = pools
        self._name = name
        self._local = local
        self._sums = sums
        self._remote = remote

    def read(self, offset: int, length: int) -> bytes:
        first, last = _find_block_range(offset, min(length, self.size - offset))
        data = self._local.read(first * CACHE_BLOCK_BYTES, (last - first) * CACHE_BLOCK_BYTES)
        view = memoryview(data)
        for number in range(first, last):
            begin = (number - first) * CACHE_BLOCK_BYTES
            if crc32(view[begin : begin + CACHE_BLOCK_BYTES]) != self._sums[number]:
                self._pools.drop_blocks(self._name)
                return self._remote.read(offset, length)
        return _cut_bytes(data, offset - first * CACHE_BLOCK_BYTES, length)

    def close(self) -> None:
        self._local.close()
        self._remote.close()


class CachedFile:
    """A remote file with some blocks cached here. One request reads everything from the first to
    the last missing block.
    """

    path: Path | None = None

    def __init__(self, pools: BlockPools, name: str, remote: ByteSource) -> None:
        self.size = remote.size
        self._pools = pools
        self._name = name
        self._remote = remote

    def read(self, offset: int, length: int) -> bytes:
        first, last = _find_block_range(offset, min(length, self.size - offset))
        get_block = self._pools.get_block
        parts = [get_block(self._name, number, self.size) for number in range(first, last)]
        missing = [number for number, part in enumerate(parts, first) if part is None]
        if missing:
            begin, end = missing[0], missing[-1] + 1
            parts[begin - first : end - first] = self._fetch_blocks(begin, end)
        data = b"".join(part or b"" for part in parts)
        return _cut_bytes(data, offset - first * CACHE_BLOCK_BYTES, length)

    def _fetch_blocks(self, begin: int, end: int) -> list[bytes | None]:
        data = self._remote.read(begin * CACHE_BLOCK_BYTES, (end - begin) * CACHE_BLOCK_BYTES)
        parts: list[bytes | None] = []
        for number in range(begin, end):
            part = _cut_bytes(data, (number - begin) * CACHE_BLOCK_BYTES, CACHE_BLOCK_BYTES)
            if len(part) == min(CACHE_BLOCK_BYTES, self.size - number * CACHE_BLOCK_BYTES):
                self._pools.add_block(self._name, number, self.size, part)
            parts.append(part)
        return parts

    def sign_url(self, lasts: timedelta) -> str | None:
        if isinstance(self._remote, SignableSource):
            return self._remote.sign_url(lasts)
        return None

    def close(self) -> None:
        self._remote.close()


def _find_block_range(offset: int, length: int) -> tuple[int, int]:
    """The number of the first block of a range, and the number behind its last block."""
    if length <= 0:
        return 0, 0
    return offset // CACHE_BLOCK_BYTES, -(-(offset + length) // CACHE_BLOCK_BYTES)


def _cut_bytes(data: bytes, offset: int, length: int) -> bytes:
    return data[offset : offset + length]
