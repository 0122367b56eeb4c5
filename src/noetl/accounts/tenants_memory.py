"""Tenants in memory."""

from msgspec.structs import replace

from noetl.accounts.tenants import DEFAULT_TENANT_NAME, StoredTenant, TenantQuotas
from noetl.model.clock import Clock
from noetl.model.ids import DEFAULT_TENANT, Tenant


class TenantsMemory:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._rows: dict[Tenant, StoredTenant] = {}  # in order of creation
        self._store_row(DEFAULT_TENANT, DEFAULT_TENANT_NAME)

    async def add_tenant(self, name: str) -> StoredTenant | None:
        if await self.find_named_tenant(name) is not None:
            return None
        return self._store_row(Tenant(max(self._rows) + 1), name)

    async def find_tenant(self, tenant: Tenant) -> StoredTenant | None:
        return self._rows.get(tenant)

    async def find_named_tenant(self, name: str) -> StoredTenant | None:
        return next((row for row in self._rows.values() if row.name == name), None)

    async def list_tenants(self) -> list[StoredTenant]:
        return list(self._rows.values())

    async def set_quotas(self, tenant: Tenant, quotas: TenantQuotas) -> StoredTenant | None:
        row = self._rows.get(tenant)
        if row is None:
            return None
        self._rows[tenant] = replace(row, quotas=quotas)
        return self._rows[tenant]

    def _store_row(self, tenant: Tenant, name: str) -> StoredTenant:
        row = StoredTenant(tenant, name, TenantQuotas(), self._clock.now())
        self._rows[tenant] = row
        return row
