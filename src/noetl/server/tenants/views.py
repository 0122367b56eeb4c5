"""The structs that answers about tenants have."""

from typing import Annotated

from noetl.accounts.tenants import StoredTenant
from noetl.log.tenant_usage.port import TenantUsage
from noetl.model.clock import format_iso
from noetl.server.http.structs import View, describe


class QuotasView(View, frozen=True):
    running: Annotated[int | None, describe("executions that have not ended; null: no quota")]
    queued: Annotated[int | None, describe("commands that wait for a worker; null: no quota")]
    bytes: Annotated[int | None, describe("of stored results; null: no quota")]


class TenantView(View, frozen=True):
    name: Annotated[str, describe(example="acme")]
    number: Annotated[int, describe("the column `tenant` of tables", example=2)]
    created_at: str
    quotas: QuotasView


class TenantUsageView(View, frozen=True):
    running: int
    queued: int
    bytes: int


class TenantDetailsView(TenantView, frozen=True):
    usage: TenantUsageView


class TenantsView(View, frozen=True):
    tenants: list[TenantView]


def make_tenant_view(tenant: StoredTenant) -> TenantView:
    quotas = tenant.quotas
    return TenantView(
        name=tenant.name,
        number=tenant.tenant,
        created_at=format_iso(tenant.created_at),
        quotas=QuotasView(quotas.running, quotas.queued, quotas.bytes),
    )


def make_usage_view(usage: TenantUsage) -> TenantUsageView:
    return TenantUsageView(usage.running, usage.queued, usage.bytes)
