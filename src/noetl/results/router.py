"""The result store of a process: it chooses the tier by size and caches small payloads in memory.

  up to 64 KB    rides with the report that names it and is stored in the report's transaction
                 (`carry`), or is put like the next
  up to 1 MB     kv: put through a server, before the report
  above          the large tier: files, or an object store

A task's `output.store` may say `disk`; then size does not matter. The setting of the process
applies to tasks without it. `object` is an older word for `disk`. A reference names its tier; a
reference made from an address alone is looked up in each tier.
"""

import logging
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any, Final, TypeVar
from weakref import WeakValueDictionary

from msgspec import Raw
from msgspec.structs import replace

from noetl.model.errors import Conflict, Expired, NotFound
from noetl.model.reference import Address, Reference
from noetl.results.formats.encoding import (
    count_rows,
    decode_payload,
    decode_slice,
    encode,
    encode_within,
    verify_checksum,
)
from noetl.results.formats.tables import EncodedTable
from noetl.results.port import ByteSource, Carrier, Rider
from noetl.results.sources import MemorySource
from noetl.results.staging import StagedPayload, Staging
from noetl.results.sweeping import FindOrphans, SweepCounts
from noetl.results.tiers.kv import MAX_KV_BYTES, BlobServers, KvTier, PayloadCache
from noetl.results.tiers.large import LargeStore
from noetl.results.tiers.memory_cache import MemoryCache

log = logging.getLogger(__name__)
T = TypeVar("T")

MAX_RIDER_BYTES: Final = 64 * 1024
CACHE_BYTES: Final = 64 * 1024 * 1024
_OLDER_STORES = ("object", "object_store")


@cache
def warn_of_older_store(word: str) -> None:
    log.warning("this store reads as disk", extra={"store": word})


class ResultRouter(Carrier):
    def __init__(
        self,
        blobs: BlobServers,
        large: LargeStore,
        *,
        cache: int = CACHE_BYTES,
        tier: str = "auto",
        near: PayloadCache | None = None,
    ) -> None:
        self._kv = KvTier(blobs, near)
        self._near = near
        self._large = large
        self._tier = tier
        self.staging: Staging = large.staging
        self._memory = MemoryCache(cache)
        # the command holds each rider until its report is sent
        self._riders: WeakValueDictionary[str, Rider] = WeakValueDictionary()

    async def put(self, address: Address, value: Any) -> Reference:
        reference, _ = await self.carry(address, value, 0)
        return reference

    async def carry(
        self, address: Address, value: Any, room: int, store: str | None = None
    ) -> tuple[Reference, Rider | None]:
        if isinstance(value, EncodedTable):
            return await self._carry_table(address, value, room, store)
        if self._is_for_large(store):
            return await self._large.put(address, value), None
        if isinstance(value, list):
            data = encode_within(value, MAX_KV_BYTES)
        else:
            data = encode(value)
        if data is None:
            return await self._large.put(address, value), None
        if len(data) > MAX_KV_BYTES:
            return await self._large.put(address, Raw(data)), None
        reference = self._kv.make_reference(str(address), data, count_rows(value))
        return await self._carry_small(reference, data, room)

    async def _carry_table(
        self, address: Address, table: EncodedTable, room: int, store: str | None
    ) -> tuple[Reference, Rider | None]:
        reference, rider = await self.carry_staged(
            address, table.staged, room, rows=table.rows, format=table.format, store=store
        )
        return replace(reference, rows_at=table.head.at), rider

    async def carry_staged(
        self,
        address: Address,
        staged: StagedPayload,
        room: int,
        *,
        rows: int | None,
        format: str,
        store: str | None = None,
    ) -> tuple[Reference, Rider | None]:
        """`carry` for bytes that are encoded already. Bytes in a file go to the large tier, at any
        size.
        """
        if staged.data is None or staged.size > MAX_KV_BYTES or self._is_for_large(store):
            return await self._large.put_staged(address, staged, rows=rows, format=format), None
        reference = self._kv.make_reference(str(address), staged.data, rows)
        reference = replace(reference, format=format)
        return await self._carry_small(reference, staged.data, room)

    async def put_staged(
        self, address: Address, staged: StagedPayload, *, rows: int | None, format: str
    ) -> Reference:
        reference, _ = await self.carry_staged(address, staged, 0, rows=rows, format=format)
        return reference

    def _is_for_large(self, store: str | None) -> bool:
        """Whether the large tier takes the payload at any size. Unknown words have no effect."""
        chosen = store or self._tier
        if chosen in _OLDER_STORES:
            warn_of_older_store(chosen)
        return chosen == "disk" or chosen in _OLDER_STORES

    async def _carry_small(
        self, reference: Reference, data: bytes, room: int
    ) -> tuple[Reference, Rider | None]:
        rider = None
        if len(data) <= min(room, MAX_RIDER_BYTES):
            rider = self._make_rider(reference, data)
        else:
            await self._kv.write(reference, data)
        self._memory.add(reference.uri, data, reference.sha256 or "")
        return reference, rider

    def _make_rider(self, reference: Reference, data: bytes) -> Rider:
        known = self._find_in_memory(reference.uri)
        if known is not None and known[1] != reference.sha256:
            raise Conflict(
                f"{reference.uri} holds another payload",
                hint="a result is written once; use another key",
            )
        rider = self._riders.get(reference.uri) or Rider(data, reference.sha256 or "")
        self._riders[reference.uri] = rider
        return rider

    async def resolve(self, reference: Reference) -> Any:
        data = await self._read_small(reference)
        if data is not None:
            return decode_payload(data, reference.uri)
        return await self._explain_missing(reference, self._large.resolve(reference))

    async def read_rows(
        self,
        reference: Reference,
        start: int,
        stop: int,
    ) -> list[Any]:
        data = await self._read_small(reference)
        if data is not None:
            return decode_slice(data, reference.uri, start, stop)
        return await self._explain_missing(reference, self._large.read_rows(reference, start, stop))

    async def open(self, reference: Reference) -> ByteSource:
        """Open the stored bytes in their format.

        Small payloads are checked here; a reader checks the parts of large ones that it reads.
        """
        data = await self._read_small(reference)
        if data is not None:
            return MemorySource(data)
        return await self._explain_missing(reference, self._large.open(reference))

    async def _explain_missing(self, reference: Reference, reading: Awaitable[T]) -> T:
        """Await a read. If the payload is gone, ask the servers, which raise Expired if they know
        why.
        """
        try:
            return await reading
        except NotFound:
            await self._kv.ask_servers(reference)
            raise

    async def retry_unavailable(self, act: Callable[[], Awaitable[T]]) -> T:
        return await self._large.retry_unavailable(act)

    async def sweep_orphans(self, orphans: FindOrphans, before: float) -> SweepCounts:
        """Sweep the large tier. The servers sweep the payloads in their database."""
        return await self._large.sweep_orphans(orphans, before)

    async def close(self) -> None:
        if self._near is not None:
            await self._near.close()

    async def _read_small(self, reference: Reference) -> bytes | None:
        """Read a small payload; None if it can only be in the large tier."""
        cached = self._find_in_memory(reference.uri)
        if cached is not None:
            data, sha = cached
            verify_checksum(reference, sha)
            return data
        if reference.type != self._kv.home:
            if reference.type in _OLDER_STORES:
                warn_of_older_store(reference.type)
            return None
        try:
            data, sha = await self._kv.read(reference)
        except Expired:
            raise
        except NotFound:
            if reference.ref_id:
                raise
            return None  # a reference made from an address: its tier is not known
        self._memory.add(reference.uri, data, sha)
        return data

    def _find_in_memory(self, uri: str) -> tuple[bytes, str] | None:
        """The payload and its checksum, if this process has it in memory."""
        rider = self._riders.get(uri)
        if rider is not None:
            return rider.payload, rider.sha256
        return self._memory.get(uri)
