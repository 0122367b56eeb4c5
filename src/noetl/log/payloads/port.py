"""The contract of small payloads, which live in the database of the log."""

from typing import Protocol

from noetl.model.ids import ExecutionId, RefId, Tenant
from noetl.model.reference import Reference

MAX_BLOB_BYTES = 1024 * 1024  # bytes of one payload in the log's database


class PayloadStore(Protocol):
    """For a tenant, the executions of others do not exist."""

    async def put_payload(self, tenant: Tenant, reference: Reference, payload: bytes) -> None:
        """Store a payload before the report that names it. The report records its parent and inputs.

        Storing the same payload again succeeds. Raises Conflict if the address holds another
        payload, NotFound if there is no such execution, InvalidInput if it is larger than
        MAX_BLOB_BYTES.
        """
        ...

    async def read_payload(self, tenant: Tenant, ref_id: RefId, uri: str) -> bytes | None:
        """The payload with this id and exactly this address, from `put_payload` or from a report."""
        ...

    async def find_orphans(
        self, tenant: Tenant, execution_id: ExecutionId, uris: list[str]
    ) -> list[str]:
        """The addresses that no unexpired reference of this ended execution names.

        Empty while the execution runs, because a report may still name them. Empty for an unknown
        execution, because another log may know it.
        """
        ...
