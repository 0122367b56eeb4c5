"""The memory twin of the payloads. Every method is one critical section."""

import msgspec

from noetl.log.payloads.port import MAX_BLOB_BYTES
from noetl.log.tables import BlobKey, MemoryDatabase
from noetl.model.errors import Conflict, InvalidInput, NotFound
from noetl.model.ids import ExecutionId, RefId, Tenant
from noetl.model.messages import StoredRef
from noetl.model.reference import Reference, parse_uri

_stored_ref = msgspec.json.Decoder(StoredRef)


class PayloadsMemory:
    def __init__(self, database: MemoryDatabase) -> None:
        self._db = database

    async def put_payload(self, tenant: Tenant, reference: Reference, payload: bytes) -> None:
        if len(payload) > MAX_BLOB_BYTES:
            raise InvalidInput(
                f"the payload is {len(payload)} bytes",
                hint=f"at most {MAX_BLOB_BYTES}: larger ones go to files",
            )
        execution_id = parse_uri(reference.uri).execution_id
        if self._db.find_tenant(execution_id) != tenant:
            raise NotFound(f"no execution {execution_id}")
        name = BlobKey(reference.ref_id, reference.uri)
        if name not in self._db.blobs:
            self._db.puts[name] = execution_id
        if self._db.blobs.setdefault(name, payload) != payload:
            raise Conflict(
                f"{reference.uri} holds another payload",
                hint="a result is written once; use another key",
            )

    async def read_payload(self, tenant: Tenant, ref_id: RefId, uri: str) -> bytes | None:
        if self._db.find_tenant(parse_uri(uri).execution_id) not in (None, tenant):
            return None
        return self._db.blobs.get(BlobKey(ref_id, uri))

    async def find_orphans(
        self, tenant: Tenant, execution_id: ExecutionId, uris: list[str]
    ) -> list[str]:
        rows = self._db.executions.get(execution_id)
        if rows is None or not rows.ended or self._db.find_tenant(execution_id) != tenant:
            return []
        named: set[str] = set()
        for ref_id, data in self._db.refs.items():
            if ref_id not in self._db.expired:
                named.add(_stored_ref.decode(data).reference.uri)
        return [uri for uri in uris if uri not in named]
