"""The payloads in Postgres."""

from pathlib import Path

from noetl.log.payloads.port import MAX_BLOB_BYTES
from noetl.model.errors import Conflict, InvalidInput, NotFound
from noetl.model.ids import ExecutionId, RefId, Tenant
from noetl.model.reference import Reference, parse_uri
from noetl.postgres.pool import Database
from noetl.postgres.queries import load_queries

_SQL = load_queries(Path(__file__).with_name("payloads.sql"))


class PayloadsPostgres:
    def __init__(self, database: Database) -> None:
        self._main = database.main
        self._background = database.background

    async def put_payload(self, tenant: Tenant, reference: Reference, payload: bytes) -> None:
        if len(payload) > MAX_BLOB_BYTES:
            raise InvalidInput(
                f"the payload is {len(payload)} bytes",
                hint=f"at most {MAX_BLOB_BYTES}: larger ones go to files",
            )
        execution_id = parse_uri(reference.uri).execution_id
        written = await self._main.write(
            _SQL["put_payload"],
            ref_id=int(reference.ref_id),
            uri=reference.uri,
            payload=payload,
            execution_id=int(execution_id),
            tenant=tenant,
        )
        if written or await self.read_payload(tenant, reference.ref_id, reference.uri) == payload:
            return
        if not await self._has_execution(tenant, execution_id):
            raise NotFound(f"no execution {execution_id}")
        raise Conflict(
            f"{reference.uri} holds another payload",
            hint="a result is written once; use another key",
        )

    async def read_payload(self, tenant: Tenant, ref_id: RefId, uri: str) -> bytes | None:
        rows = await self._main.read(
            _SQL["read_payload"],
            ref_id=int(ref_id),
            uri=uri,
            execution_id=int(parse_uri(uri).execution_id),
            tenant=tenant,
        )
        return rows[0]["payload"] if rows else None

    async def find_orphans(
        self, tenant: Tenant, execution_id: ExecutionId, uris: list[str]
    ) -> list[str]:
        rows = await self._background.read(
            _SQL["find_orphans"], tenant=tenant, execution_id=int(execution_id), uris=uris
        )
        return [row["uri"] for row in rows]

    async def _has_execution(self, tenant: Tenant, execution_id: ExecutionId) -> bool:
        rows = await self._main.read(
            _SQL["find_execution"], tenant=tenant, execution_id=int(execution_id)
        )
        return bool(rows)
