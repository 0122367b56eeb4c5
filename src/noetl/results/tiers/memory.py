"""The memory twins: a result store that keeps encoded payloads by URI, and a tier.

Every read checks the payload against its reference.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, TypeVar

from msgspec.structs import replace

from noetl.model.errors import Conflict, NotFound
from noetl.model.ids import ExecutionId
from noetl.model.reference import (
    Address,
    Home,
    Reference,
    check_execution_id,
    make_address,
    parse_uri,
)
from noetl.results.formats.encoding import (
    compute_payload_checksum,
    count_rows,
    decode_payload,
    decode_slice,
    encode,
    make_json_reference,
    verify_checksum,
)
from noetl.results.formats.tables import EncodedTable
from noetl.results.port import ByteSource, StoredObject
from noetl.results.sources import MemorySource
from noetl.results.staging import StagedPayload, Staging

T = TypeVar("T")


class ResultsMemory:
    def __init__(self) -> None:
        self._payloads: dict[str, bytes] = {}

    @property
    def staging(self) -> Staging:
        return Staging(None)

    async def retry_unavailable(self, act: Callable[[], Awaitable[T]]) -> T:
        return await act()

    async def put(self, address: Address, value: Any) -> Reference:
        if isinstance(value, EncodedTable):
            data = b"".join(value.staged.read_parts())
            reference = self._store_payload(str(address), data, value.rows)
            return replace(reference, format=value.format, rows_at=value.head.at)
        return self._store_payload(str(address), encode(value), count_rows(value))

    def _store_payload(self, uri: str, data: bytes, rows: int | None) -> Reference:
        stored = self._payloads.setdefault(uri, data)
        if stored != data:
            raise _conflict_error(uri)
        return make_json_reference(uri, "memory", compute_payload_checksum(data), len(data), rows)

    async def resolve(self, reference: Reference) -> Any:
        return decode_payload(self._read_checked(reference), reference.uri)

    async def read_rows(
        self,
        reference: Reference,
        start: int,
        stop: int,
    ) -> list[Any]:
        return decode_slice(self._read_checked(reference), reference.uri, start, stop)

    async def open(self, reference: Reference) -> ByteSource:
        return MemorySource(self._read_checked(reference))

    def _read_checked(self, reference: Reference) -> bytes:
        parse_uri(reference.uri)
        data = self._payloads.get(reference.uri)
        if data is None:
            raise _gone_error(reference.uri)
        verify_checksum(reference, compute_payload_checksum(data))
        return data


class TierMemory:
    """It has no clock, so everything in it counts as old."""

    home: Final[Home] = "memory"

    def __init__(self) -> None:
        self._payloads: dict[Address, bytes] = {}

    @property
    def staging(self) -> Staging:
        return Staging(None)

    async def write(self, address: Address, staged: StagedPayload) -> None:
        address = _check_address(address)
        data = b"".join(staged.read_parts())
        if self._payloads.setdefault(address, data) != data:
            raise _conflict_error(str(address))

    async def open(self, reference: Reference, size: int | None = None) -> ByteSource:
        data = self._payloads.get(parse_uri(reference.uri))
        if data is None:
            raise _gone_error(reference.uri)
        return MemorySource(data)

    async def delete(self, address: Address) -> None:
        self._payloads.pop(_check_address(address), None)

    async def list_objects(
        self, execution_id: ExecutionId | None = None
    ) -> AsyncIterator[StoredObject]:
        wanted = None if execution_id is None else check_execution_id(execution_id)
        for where, data in list(self._payloads.items()):
            if wanted in (None, where.execution_id):
                yield StoredObject(where, len(data), 0.0)


def _check_address(where: Address) -> Address:
    return make_address(where.execution_id, where.kind, where.step, where.key)


def _conflict_error(uri: str) -> Conflict:
    return Conflict(
        f"{uri} holds another payload", hint="a result is written once; use another key"
    )


def _gone_error(uri: str) -> NotFound:
    return NotFound(f"{uri} is gone", hint="its execution may be past retention")
