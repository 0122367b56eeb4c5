"""The kv tier: payloads of up to 1 MB, which the servers store in the log's database."""

from typing import Final, Protocol

from noetl.model.errors import NotFound
from noetl.model.ids import RefId
from noetl.model.reference import Home, Reference, derive_ref_id, parse_uri
from noetl.results.formats.encoding import (
    compute_payload_checksum,
    make_json_reference,
    verify_checksum,
)

MAX_KV_BYTES = 1024 * 1024


class BlobServers(Protocol):
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


class KvTier:
    home: Final[Home] = "kv"

    def __init__(self, blobs: BlobServers, near: PayloadCache | None = None) -> None:
        self._blobs = blobs
        self._near = near

    def make_reference(self, uri: str, data: bytes, rows: int | None) -> Reference:
        return make_json_reference(uri, self.home, compute_payload_checksum(data), len(data), rows)

    async def write(self, reference: Reference, data: bytes) -> None:
        await self._blobs.put_payload(reference, data)

    async def ask_servers(self, reference: Reference) -> bytes | None:
        """Ask the servers for a payload. For a reference of any tier: raises `Expired` if the
        servers know that it has expired.
        """
        parse_uri(reference.uri)
        return await self._blobs.payload(derive_ref_id(reference.uri), reference.uri)

    async def read(self, reference: Reference) -> tuple[bytes, str]:
        """Return the payload and its checksum.

        The cache is used only if the reference has a checksum: without one, a cached payload cannot
        be checked.
        """
        if self._near is not None and reference.sha256 is not None:
            data = await self._near.get(reference.uri)
            if data is not None and compute_payload_checksum(data) == reference.sha256:
                return data, reference.sha256
        data = await self.ask_servers(reference)
        if data is None:
            raise NotFound(f"{reference.uri} is gone", hint="its execution may be past retention")
        sha = compute_payload_checksum(data)
        verify_checksum(reference, sha)
        if self._near is not None:
            self._near.add(reference.uri, data)
        return data, sha
