"""The result store in memory: encoded payloads by URI, checked against their reference whenever they are read."""

from hashlib import sha256
from typing import Any

import msgspec

from noetl.model.errors import Conflict, CorruptLog, InvalidInput, NotFound
from noetl.model.ids import RefId, derive
from noetl.model.reference import Address, Reference, parse_uri


class ResultsMemory:
    def __init__(self) -> None:
        self._payloads: dict[str, bytes] = {}

    async def put(self, address: Address, value: Any) -> Reference:
        uri, data = str(address), msgspec.json.encode(value)
        stored = self._payloads.setdefault(uri, data)
        if stored != data:
            raise Conflict(f"{uri} holds another payload", hint="a result is written once; use another key")
        return Reference(
            ref_id=RefId(str(int(derive("ref", uri), 16) >> 65)),  # 63 bits, the same for the same address
            type="memory",
            uri=uri,
            sha256=sha256(data).hexdigest(),
            bytes=len(data),
            rows=len(value) if isinstance(value, list) else None,
            format="json",
        )

    async def resolve(self, reference: Reference) -> Any:
        return msgspec.json.decode(self._checked(reference))

    async def rows(self, reference: Reference, start: int, stop: int) -> list[Any]:
        value = msgspec.json.decode(self._checked(reference))
        if not isinstance(value, list):
            raise InvalidInput(f"{reference.uri} is not a list", hint="resolve it whole")
        return value[max(start, 0) : max(stop, 0)]

    def _checked(self, reference: Reference) -> bytes:
        parse_uri(reference.uri)
        data = self._payloads.get(reference.uri)
        if data is None:
            raise NotFound(f"{reference.uri} is gone", hint="its execution may be past retention")
        if reference.sha256 is not None and sha256(data).hexdigest() != reference.sha256:
            raise CorruptLog(f"{reference.uri} does not match its checksum")
        return data
