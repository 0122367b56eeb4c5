"""The contract of the result store: `put` makes a reference, `resolve` follows it and checks what it finds."""

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
