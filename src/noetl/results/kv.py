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


class Kv:
    home: Final[Home] = "kv"

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs

    def reference(self, uri: str, data: bytes, rows: int | None) -> Reference:
        return reference_to(uri, self.home, checksum(data), len(data), rows)

    async def write(self, reference: Reference, data: bytes) -> None:
        await self._blobs.put_payload(reference, data)

    async def ask(self, reference: Reference) -> bytes | None:
        """Of any tier: `Expired` when the servers know that it was there."""
        parse_uri(reference.uri)
        return await self._blobs.payload(ref_id_of(reference.uri), reference.uri)

    async def read(self, reference: Reference) -> tuple[bytes, str]:
        """The payload and its checksum."""
        data = await self.ask(reference)
        if data is None:
            raise NotFound(f"{reference.uri} is gone", hint="its execution may be past retention")
        found = checksum(data)
        verify(reference, found)
        return data, found
