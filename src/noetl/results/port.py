"""Two contracts. Of the result store: `put` makes a reference, `resolve` follows it and checks what it finds. Below it, of a
tier: it keeps bytes under addresses and knows nothing of what they mean; encodings stand above any tier.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

from msgspec import Struct

from noetl.model.ids import ExecutionId
from noetl.model.reference import Address, Home, Reference
from noetl.results.staging import Staged, Staging

T = TypeVar("T")


class ResultStore(Protocol):
    @property
    def staging(self) -> Staging:
        """Where row sets wait until they are put."""
        ...

    async def patiently(self, act: Callable[[], Awaitable[T]]) -> T:
        """What stages there, again and again for a while when there is no room."""
        ...

    async def put(self, address: Address, value: Any) -> Reference:
        """A JSON value, or a `Table`. Durable when it returns; the same address again replaces an equal payload only."""
        ...

    async def resolve(self, reference: Reference) -> Any:
        """The whole value. NotFound when it is gone, CorruptLog when its checksum differs."""
        ...

    async def rows(self, reference: Reference, start: int, stop: int) -> list[Any]:
        """Items [start, stop) of a list payload or a row set, without reading the rest."""
        ...

    async def open(self, reference: Reference) -> "ByteSource":
        """The stored bytes."""
        ...


class Rider(Struct, frozen=True, eq=False, weakref=True):
    """A payload on its way with a report. The store that made it reads it from memory for as long as somebody holds it."""

    payload: bytes
    sha256: str


class Carrier(ABC):
    """A result store whose small payloads may travel with the report that names them, instead of being put before it."""

    @abstractmethod
    async def carry(
        self, address: Address, value: Any, room: int, store: str | None = None
    ) -> tuple[Reference, Rider | None]:
        """With a rider: durable once a report that brings its payload is recorded. Without: durable already, it was put.
        `store` is the tier that the author of the playbook wishes for.

        `room` is how many bytes the report may still take. Who repeats a report under the same key must not carry other
        payloads in it: a report that is known already is acknowledged, and what it brings is not looked at.
        """


class ByteSource(Protocol):
    """Stored bytes, read at positions; in a thread, for it may wait for a disk or a network."""

    size: int
    path: (
        Path | None
    )  # of the very bytes as a file of this machine, for readers that take a path; it may vanish

    def read(self, offset: int, length: int) -> bytes:
        """Fewer at the end of the bytes only. Unavailable when they cannot be read now."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class Afar(Protocol):
    """A source in a store that gives others an address of it."""

    def signed(self, lasts: timedelta) -> str | None:
        """By which they may read it, and nothing else, for so long."""
        ...


@dataclass(frozen=True, slots=True)
class StoredObject:
    address: Address
    bytes: int
    modified: float  # seconds since 1970


class Tier(Protocol):
    """Every call may raise `StoreUnavailable`: nothing is said about what was done, and it may be repeated."""

    @property
    def home(self) -> Home:
        """What references to it say."""
        ...

    async def write(self, address: Address, staged: Staged) -> None:
        """Durable when it returns. The same bytes again are fine, others are a `Conflict`."""
        ...

    async def open(self, reference: Reference, size: int | None = None) -> ByteSource:
        """NotFound when it is gone. Whoever reads checks what the bytes are. When the number of bytes is known already, a tier
        that is far away need not be asked before the first read; that may then find it gone."""
        ...

    async def delete(self, address: Address) -> None:
        """What is gone already is fine."""
        ...

    def listed(self, execution_id: ExecutionId | None = None) -> AsyncIterator[StoredObject]:
        """What is kept, of one execution or of all, in no order."""
        ...
