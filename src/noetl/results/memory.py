"""The memory twins: a result store that keeps encoded payloads by URI, and a tier.

Every read checks the payload against its reference.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, TypeVar

from msgspec.structs import replace

from noetl.model.errors import Conflict, NotFound
from noetl.model.ids import ExecutionId
from noetl.model.reference import Address, Home, Reference, address, execution, parse_uri
from noetl.results.encoding import checksum, decoded, encode, reference_to, rows_in, sliced, verify
from noetl.results.port import ByteSource, StoredObject
from noetl.results.sources import MemorySource
from noetl.results.staging import Staged, Staging
from noetl.results.tables import EncodedTable

T = TypeVar("T")


class ResultsMemory:
    def __init__(self) -> None:
        self._payloads: dict[str, bytes] = {}

    @property
    def staging(self) -> Staging:
        return Staging(None)

    async def patiently(self, act: Callable[[], Awaitable[T]]) -> T:
        return await act()

    async def put(self, address: Address, value: Any) -> Reference:
        if isinstance(value, EncodedTable):
            data = b"".join(value.staged.parts())
            reference = self._kept(str(address), data, value.rows)
            return replace(reference, format=value.format, rows_at=value.head.at)
        return self._kept(str(address), encode(value), rows_in(value))

    def _kept(self, uri: str, data: bytes, rows: int | None) -> Reference:
        stored = self._payloads.setdefault(uri, data)
        if stored != data:
            raise _another(uri)
        return reference_to(uri, "memory", checksum(data), len(data), rows)

    async def resolve(self, reference: Reference) -> Any:
        return decoded(self._checked(reference), reference.uri)

    async def rows(self, reference: Reference, start: int, stop: int) -> list[Any]:
        return sliced(self._checked(reference), reference.uri, start, stop)

    async def open(self, reference: Reference) -> ByteSource:
        return MemorySource(self._checked(reference))

    def _checked(self, reference: Reference) -> bytes:
        parse_uri(reference.uri)
        data = self._payloads.get(reference.uri)
        if data is None:
            raise _gone(reference.uri)
        verify(reference, checksum(data))
        return data


class TierMemory:
    """It has no clock, so everything in it counts as old."""

    home: Final[Home] = "memory"

    def __init__(self) -> None:
        self._kept: dict[Address, bytes] = {}

    @property
    def staging(self) -> Staging:
        return Staging(None)

    async def write(self, address: Address, staged: Staged) -> None:
        address = _checked(address)
        data = b"".join(staged.parts())
        if self._kept.setdefault(address, data) != data:
            raise _another(str(address))

    async def open(self, reference: Reference, size: int | None = None) -> ByteSource:
        data = self._kept.get(parse_uri(reference.uri))
        if data is None:
            raise _gone(reference.uri)
        return MemorySource(data)

    async def delete(self, address: Address) -> None:
        self._kept.pop(_checked(address), None)

    async def listed(self, execution_id: ExecutionId | None = None) -> AsyncIterator[StoredObject]:
        wanted = None if execution_id is None else execution(execution_id)
        for where, data in list(self._kept.items()):
            if wanted in (None, where.execution_id):
                yield StoredObject(where, len(data), 0.0)


def _checked(where: Address) -> Address:
    return address(where.execution_id, where.kind, where.step, where.key)


def _another(uri: str) -> Conflict:
    return Conflict(
        f"{uri} holds another payload", hint="a result is written once; use another key"
    )


def _gone(uri: str) -> NotFound:
    return NotFound(f"{uri} is gone", hint="its execution may be past retention")
