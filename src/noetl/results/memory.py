"""The result store in memory: encoded payloads by URI, checked against their reference whenever they are read."""

from typing import Any

from noetl.model.errors import Conflict, NotFound
from noetl.model.reference import Address, Reference, parse_uri
from noetl.results.encoding import checksum, decoded, encode, reference_to, rows_in, sliced, verify


class ResultsMemory:
    def __init__(self) -> None:
        self._payloads: dict[str, bytes] = {}

    async def put(self, address: Address, value: Any) -> Reference:
        uri, data = str(address), encode(value)
        stored = self._payloads.setdefault(uri, data)
        if stored != data:
            raise Conflict(f"{uri} holds another payload", hint="a result is written once; use another key")
        return reference_to(uri, "memory", checksum(data), len(data), rows_in(value))

    async def resolve(self, reference: Reference) -> Any:
        return decoded(self._checked(reference), reference.uri)

    async def rows(self, reference: Reference, start: int, stop: int) -> list[Any]:
        return sliced(self._checked(reference), reference.uri, start, stop)

    def _checked(self, reference: Reference) -> bytes:
        parse_uri(reference.uri)
        data = self._payloads.get(reference.uri)
        if data is None:
            raise NotFound(f"{reference.uri} is gone", hint="its execution may be past retention")
        verify(reference, checksum(data))
        return data
