"""Two contracts: the result store, and the tiers below it.

The store's `put` makes a reference; `resolve` follows it and checks the payload. A tier stores
bytes under addresses and does not interpret them; the encodings are above the tiers.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

from msgspec import Struct

from noetl.model.ids import ExecutionId
from noetl.model.reference import Address, Home, Reference
from noetl.results.staging import StagedPayload, Staging

T = TypeVar("T")


class ResultStore(Protocol):
    @property
    def staging(self) -> Staging:
        """Where row sets wait until they are put."""
        ...

    async def retry_unavailable(self, act: Callable[[], Awaitable[T]]) -> T:
        """Run `act`, which stages something, and repeat it for a while if there is no room."""
        ...

    async def put(self, address: Address, value: Any) -> Reference:
        """Store a JSON value or an `EncodedTable`. It is durable when this returns. Raises Conflict if the
        address holds a different payload.
        """
        ...

    async def resolve(self, reference: Reference) -> Any:
        """Return the whole value. Raises NotFound if it is gone, CorruptLog if its checksum
        differs.
        """
        ...

    async def read_rows(
        self,
        reference: Reference,
        start: int,
        stop: int,
    ) -> list[Any]:
        """Return the items [start, stop) of a list payload or a row set, without reading the rest."""
        ...

    async def open(self, reference: Reference) -> "ByteSource":
        """Open the stored bytes."""
        ...


class Rider(Struct, frozen=True, eq=False, weakref=True):
    """A payload that travels with a report. The store reads it from memory while the rider is
    referenced.
    """

    payload: bytes
    sha256: str


class Carrier(ABC):
    """A result store that can send small payloads with the report that names them, instead of
    storing them before it.
    """

    @abstractmethod
    async def carry(
        self, address: Address, value: Any, room: int, store: str | None = None
    ) -> tuple[Reference, Rider | None]:
        """Make a reference, and a rider if the payload is to travel with the report.

        With a rider, the payload is durable once a report that brings it is recorded. Without one,
        it is durable already. `store` is the tier that the author of the playbook wishes for.

        `room` is how many bytes the report may still take. A repeated report with the same key must
        carry the same payloads: a known report is acknowledged, and its content is ignored.
        """


class ByteSource(Protocol):
    """Stored bytes, read at positions. Reads may wait for a disk or a network, so they belong in a
    thread.
    """

    size: int
    # a local file with exactly these bytes, for readers that take a path; it may vanish
    path: Path | None

    def read(self, offset: int, length: int) -> bytes:
        """Return the bytes, fewer only at the end. Raises Unavailable if they cannot be read now."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class SignableSource(Protocol):
    """A source in a store that can sign URLs."""

    def sign_url(self, lasts: timedelta) -> str | None:
        """Return a URL that grants read access to this object for that time; None if the store
        cannot sign one.
        """
        ...


class StoredObject(Struct, frozen=True):
    address: Address
    bytes: int
    modified: float  # seconds since 1970


class Tier(Protocol):
    """Every call may raise `StoreUnavailable`: the outcome is unknown, and the call may be
    repeated.
    """

    @property
    def home(self) -> Home:
        """The tier's name in references."""
        ...

    async def write(self, address: Address, staged: StagedPayload) -> None:
        """Store the bytes durably. Writing the same bytes again succeeds, other bytes are a
        `Conflict`.
        """
        ...

    async def open(self, reference: Reference, size: int | None = None) -> ByteSource:
        """Open the stored bytes; the reader checks them. Raises NotFound if they are gone.

        If the caller knows the `size`, a remote tier sends no request before the first read. That
        read may then raise NotFound.
        """
        ...

    async def delete(self, address: Address) -> None:
        """Delete the object. An object that is gone already is no error."""
        ...

    def list_objects(self, execution_id: ExecutionId | None = None) -> AsyncIterator[StoredObject]:
        """List the stored objects of one execution or of all, in no order."""
        ...
