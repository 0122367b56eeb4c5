"""Tenants in Postgres."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from noetl.accounts.tenants import StoredTenant, TenantQuotas
from noetl.model.ids import Tenant
from noetl.postgres.pool import Database
from noetl.postgres.queries import load_queries

_SQL = load_queries(Path(__file__).with_name("tenants.sql"))


class TenantsPostgres:
    def __init__(self, database: Database) -> None:
        self._pool = database.main

    async def add_tenant(self, name: str) -> StoredTenant | None:
        return _read_first(await self._pool.write(_SQL["add_tenant"], name=name))

    async def find_tenant(self, tenant: Tenant) -> StoredTenant | None:
        return _read_first(await self._pool.read(_SQL["find_tenant"], tenant=tenant))

    async def find_named_tenant(self, name: str) -> StoredTenant | None:
        return _read_first(await self._pool.read(_SQL["find_named_tenant"], name=name))

    async def list_tenants(self) -> list[StoredTenant]:
        return [_read_tenant(row) for row in await self._pool.read(_SQL["list_tenants"])]

    async def set_quotas(self, tenant: Tenant, quotas: TenantQuotas) -> StoredTenant | None:
        await self._pool.write(
            _SQL["set_quotas"],
            tenant=tenant,
            running=quotas.running,
            queued=quotas.queued,
            bytes=quotas.bytes,
        )
        return await self.find_tenant(tenant)


def _read_first(rows: Sequence[Any]) -> StoredTenant | None:
    return _read_tenant(rows[0]) if rows else None


def _read_tenant(row: Sequence[Any]) -> StoredTenant:
    tenant, name, running, queued, most_bytes, created_at = row
    return StoredTenant(tenant, name, TenantQuotas(running, queued, most_bytes), created_at)
