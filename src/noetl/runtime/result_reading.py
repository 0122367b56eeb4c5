"""Opens the stored results for a server that shows them."""

from pathlib import Path

from noetl import settings
from noetl.model.decisions import AddPart
from noetl.model.ids import DEFAULT_TENANT, RefId, Tenant
from noetl.model.reference import Reference
from noetl.pipeline.output.reading import StoredResults
from noetl.results.tenancy import StoreTenant
from noetl.runtime.stores import open_store
from noetl.server.node import Server


class TenantPayloads:
    """The small payloads and manifests of a tenant, from the server of this process."""

    def __init__(self, server: Server, tenant: Tenant) -> None:
        self._server = server
        self._tenant = tenant

    async def payload(self, ref_id: RefId, uri: str) -> bytes | None:
        return await self._server.payload(ref_id, uri, self._tenant)

    async def put_payload(self, reference: Reference, payload: bytes) -> None:
        await self._server.put_payload(reference, payload, self._tenant)

    async def list_manifest_parts(self, manifest: str) -> list[AddPart]:
        return await self._server.list_manifest_parts(manifest, self._tenant)


def open_result_reading(
    server: Server, home: Path, tenant: Tenant = DEFAULT_TENANT
) -> StoredResults:
    """The results of a tenant that this process may read.

    Callers are interactive, so an unavailable store fails at once instead of being retried.
    """
    storage = settings.read_settings(settings.StorageSettings)
    impatient = storage.replace(storage_patience_sec=0.0)
    payloads = TenantPayloads(server, tenant)
    store = open_store(payloads, home, impatient, tenant=StoreTenant(tenant))
    return StoredResults(store, payloads.list_manifest_parts)
