"""The kv tier: payloads of up to 1 MB, which the servers store in the log's database."""

from typing import Final, Protocol

from noetl.model.errors import NotFound
from noetl.model.ids import RefId
from noetl.model.reference import Home, Reference, parse_uri
from noetl.results.encoding import checksum, ref_id_of, reference_to, verify

LARGEST = 1024 * 1024


class Blobs(Protocol):
    """Access to the payloads that the servers store: a worker's channel, or a server itself.

    Raises `Unavailable`. Raises `Expired` for a reference of any tier.
    """

    async def payload(self, ref_id: RefId, uri: str) -> bytes | None: ...

    async def put_payload(self, reference: Reference, payload: bytes) -> None: ...


class PayloadCache(Protocol):
    """A cache that several processes share. Missing and wrong entries are no failures."""

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
        """Ask the servers for a payload. For a reference of any tier: raises `Expired` if the
        servers know that it has expired.
        """
        parse_uri(reference.uri)
        return await self._blobs.payload(ref_id_of(reference.uri), reference.uri)

    async def read(self, reference: Reference) -> tuple[bytes, str]:
        """Return the payload and its checksum.

        The cache is used only if the reference has a checksum: without one, a cached payload cannot
        be checked.
        """
        if self._near is not None and reference.sha256 is not None:
            data = await self._near.get(reference.uri)
            if data is not None and checksum(data) == reference.sha256:
                return data, reference.sha256
        data = await self.ask(reference)
        if data is None:
            raise NotFound(f"{reference.uri} is gone", hint="its execution may be past retention")
        sha = checksum(data)
        verify(reference, sha)
        if self._near is not None:
            self._near.add(reference.uri, data)
        return data, sha
