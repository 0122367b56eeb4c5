"""The kv tier: payloads up to 1 MB, kept by the servers in the log's database."""

from typing import Final, Protocol

from noetl.model.errors import NotFound
from noetl.model.ids import RefId
from noetl.model.reference import Home, Reference, parse_uri
from noetl.results.encoding import checksum, ref_id_of, reference_to, verify

LARGEST = 1024 * 1024


class Blobs(Protocol):
    """The way to the servers' payloads: a worker's channel, or a server itself. Raises `Unavailable`, and `Expired` of a
    reference to whatever tier."""

    async def payload(self, ref_id: RefId, uri: str) -> bytes | None: ...

    async def put_payload(self, reference: Reference, payload: bytes) -> None: ...


class PayloadCache(Protocol):
    """A cache that several processes share. It may have nothing, and what it has may be anything: both are no failure."""

    async def get(self, uri: str) -> bytes | None: ...

    def add(self, uri: str, data: bytes) -> None: ...

    async def close(self) -> None: ...


class Kv:
    home: Final[Home] = "kv"

    def __init__(self, blobs: Blobs, near: PayloadCache | None = None) -> None:
        self._blobs = blobs
        self._near = near

    def reference(self, uri: str, data: bytes, rows: int | None) -> Reference:
        return reference_to(uri, self.home, checksum(data), len(data), rows)

    async def write(self, reference: Reference, data: bytes) -> None:
        await self._blobs.put_payload(reference, data)

    async def ask(self, reference: Reference) -> bytes | None:
        """Of any tier: `Expired` when the servers know that it was there."""
        parse_uri(reference.uri)
        return await self._blobs.payload(ref_id_of(reference.uri), reference.uri)

    async def read(self, reference: Reference) -> tuple[bytes, str]:
        """The payload and its checksum. Without one in the reference nothing near can be believed."""
        if self._near is not None and reference.sha256 is not None:
            data = await self._near.get(reference.uri)
            if data is not None and checksum(data) == reference.sha256:
                return data, reference.sha256
        data = await self.ask(reference)
        if data is None:
            raise NotFound(f"{reference.uri} is gone", hint="its execution may be past retention")
        found = checksum(data)
        verify(reference, found)
        if self._near is not None:
            self._near.add(reference.uri, data)
        return data, found
