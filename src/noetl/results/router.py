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
from noetl.results.cache import Cache
from noetl.results.encoding import decoded, encode, encoded_within, rows_in, sliced, verify
from noetl.results.kv import LARGEST, Blobs, Kv, PayloadCache
from noetl.results.large import Large
from noetl.results.port import ByteSource, Carrier, Rider
from noetl.results.sources import MemorySource
from noetl.results.staging import Staged, Staging
from noetl.results.sweeping import Judge, Swept
from noetl.results.tables import EncodedTable

log = logging.getLogger(__name__)
T = TypeVar("T")

RIDING: Final = 64 * 1024
CACHE: Final = 64 * 1024 * 1024
_OLDER = ("object", "object_store")


@cache
def warn_once(word: str) -> None:
    log.warning("this store reads as disk", extra={"store": word})


class ResultRouter(Carrier):
    def __init__(
        self,
        blobs: Blobs,
        large: Large,
        *,
        cache: int = CACHE,
        tier: str = "auto",
        near: PayloadCache | None = None,
    ) -> None:
        self._kv = Kv(blobs, near)
        self._near = near
        self._large = large
        self._tier = tier
        self.staging: Staging = large.staging
        self._memory = Cache(cache)
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
            data = encoded_within(value, LARGEST)
        else:
            data = encode(value)
        if data is None:
            return await self._large.put(address, value), None
        if len(data) > LARGEST:
            return await self._large.put(address, Raw(data)), None
        reference = self._kv.reference(str(address), data, rows_in(value))
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
        staged: Staged,
        room: int,
        *,
        rows: int | None,
        format: str,
        store: str | None = None,
    ) -> tuple[Reference, Rider | None]:
        """`carry` for bytes that are encoded already. Bytes in a file go to the large tier, at any
        size.
        """
        if staged.data is None or staged.size > LARGEST or self._is_for_large(store):
            return await self._large.put_staged(address, staged, rows=rows, format=format), None
        reference = self._kv.reference(str(address), staged.data, rows)
        reference = replace(reference, format=format)
        return await self._carry_small(reference, staged.data, room)

    async def put_staged(
        self, address: Address, staged: Staged, *, rows: int | None, format: str
    ) -> Reference:
        reference, _ = await self.carry_staged(address, staged, 0, rows=rows, format=format)
        return reference

    def _is_for_large(self, store: str | None) -> bool:
        """Whether the large tier takes the payload at any size. Unknown words have no effect."""
        chosen = store or self._tier
        if chosen in _OLDER:
            warn_once(chosen)
        return chosen == "disk" or chosen in _OLDER

    async def _carry_small(
        self, reference: Reference, data: bytes, room: int
    ) -> tuple[Reference, Rider | None]:
        rider = None
        if len(data) <= min(room, RIDING):
            rider = self._ride(reference, data)
        else:
            await self._kv.write(reference, data)
        self._memory.add(reference.uri, data, reference.sha256 or "")
        return reference, rider

    def _ride(self, reference: Reference, data: bytes) -> Rider:
        known = self._here(reference.uri)
        if known is not None and known[1] != reference.sha256:
            raise Conflict(
                f"{reference.uri} holds another payload",
                hint="a result is written once; use another key",
            )
        rider = self._riders.get(reference.uri) or Rider(data, reference.sha256 or "")
        self._riders[reference.uri] = rider
        return rider

    async def resolve(self, reference: Reference) -> Any:
        data = await self._read(reference)
        if data is not None:
            return decoded(data, reference.uri)
        return await self._sought(reference, self._large.resolve(reference))

    async def rows(self, reference: Reference, start: int, stop: int) -> list[Any]:
        data = await self._read(reference)
        if data is not None:
            return sliced(data, reference.uri, start, stop)
        return await self._sought(reference, self._large.rows(reference, start, stop))

    async def open(self, reference: Reference) -> ByteSource:
        """Open the stored bytes in their format.

        Small payloads are checked here; a reader checks the parts of large ones that it reads.
        """
        data = await self._read(reference)
        if data is not None:
            return MemorySource(data)
        return await self._sought(reference, self._large.open(reference))

    async def _sought(self, reference: Reference, reading: Awaitable[T]) -> T:
        """Await a read. If the payload is gone, ask the servers, which raise Expired if they know
        why.
        """
        try:
            return await reading
        except NotFound:
            await self._kv.ask(reference)
            raise

    async def patiently(self, act: Callable[[], Awaitable[T]]) -> T:
        return await self._large.patiently(act)

    async def sweep(self, orphans: Judge, before: float) -> Swept:
        """Sweep the large tier. The servers sweep the payloads in their database."""
        return await self._large.sweep(orphans, before)

    async def close(self) -> None:
        if self._near is not None:
            await self._near.close()

    async def _read(self, reference: Reference) -> bytes | None:
        """Read a small payload; None if it can only be in the large tier."""
        cached = self._here(reference.uri)
        if cached is not None:
            data, sha = cached
            verify(reference, sha)
            return data
        if reference.type != self._kv.home:
            if reference.type in _OLDER:
                warn_once(reference.type)
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

    def _here(self, uri: str) -> tuple[bytes, str] | None:
        """The payload and its checksum, if this process has it in memory."""
        rider = self._riders.get(uri)
        if rider is not None:
            return rider.payload, rider.sha256
        return self._memory.get(uri)
