"""What is stored of tenants: their names and quotas.

A tenant is a group of users with executions, playbooks, credentials and workers of its own. The
installation has the tenant `default`; its administrators make the others.
"""

from typing import Protocol

from msgspec import Struct

from noetl.model.ids import Micros, Tenant

DEFAULT_TENANT_NAME = "default"


class TenantQuotas(Struct, frozen=True):
    """The most that a tenant may have before a start is refused. None: no quota."""

    running: int | None = None  # executions that have not ended
    queued: int | None = None  # commands that wait for a worker
    bytes: int | None = None  # of stored results

    @property
    def has_any(self) -> bool:
        return (self.running, self.queued, self.bytes) != (None, None, None)


class StoredTenant(Struct, frozen=True):
    tenant: Tenant
    name: str
    quotas: TenantQuotas
    created_at: Micros


class TenantStore(Protocol):
    """All tenants of a database."""

    async def add_tenant(self, name: str) -> StoredTenant | None:
        """Add a tenant without quotas. None if there is one with this name."""
        ...

    async def find_tenant(self, tenant: Tenant) -> StoredTenant | None: ...

    async def find_named_tenant(self, name: str) -> StoredTenant | None: ...

    async def list_tenants(self) -> list[StoredTenant]:
        """All tenants, the oldest first."""
        ...

    async def set_quotas(self, tenant: Tenant, quotas: TenantQuotas) -> StoredTenant | None:
        """Replace the quotas of a tenant. None if there is no such tenant."""
        ...
