"""The contract of the result store: `put` makes a reference, `resolve` follows it and checks what it finds."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Protocol

from noetl.model.reference import Address, Reference


class ResultStore(Protocol):
    async def put(self, address: Address, value: Any) -> Reference:
        """Durable when it returns; the same address again replaces an equal payload only."""
        ...

    async def resolve(self, reference: Reference) -> Any:
        """The whole value. NotFound when it is gone, CorruptLog when its checksum differs."""
        ...

    async def rows(self, reference: Reference, start: int, stop: int) -> list[Any]:
        """Items [start, stop) of a list payload, without reading the rest."""
        ...


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Rider:
    """A payload on its way with a report. The store that made it reads it from memory for as long as somebody holds it."""

    payload: bytes
    sha256: str


class Carrier(ABC):
    """A result store whose small payloads may travel with the report that names them, instead of being put before it."""

    @abstractmethod
    async def carry(self, address: Address, value: Any, room: int) -> tuple[Reference, Rider | None]:
        """With a rider: durable once a report that brings its payload is recorded. Without: durable already, it was put.

        `room` is how many bytes the report may still take. Who repeats a report under the same key must not carry other
        payloads in it: a report that is known already is acknowledged, and what it brings is not looked at.
        """
