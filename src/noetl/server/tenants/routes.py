"""Routes for tenants: make, list, show, set quotas. For administrators of the installation."""

from typing import Annotated

from msgspec import Meta

from noetl.server.http.depends import Has, Who
from noetl.server.http.parameters import PathParameter
from noetl.server.http.routing import Routes
from noetl.server.http.structs import RequestBody, describe
from noetl.server.tenants.service import MAX_QUOTA, MAX_TENANT_NAME_CHARS
from noetl.server.tenants.views import TenantDetailsView, TenantsView, TenantView

routes = Routes("tenants")

TenantName = Annotated[
    str, PathParameter("of a tenant", max_length=MAX_TENANT_NAME_CHARS, examples=["acme"])
]
QuotaNumber = Annotated[int, Meta(ge=0, le=MAX_QUOTA)]


class TenantBody(RequestBody, frozen=True):
    name: Annotated[
        str,
        describe("small letters, digits and '-'", example="acme", max_length=MAX_TENANT_NAME_CHARS),
    ]


class QuotasBody(RequestBody, frozen=True):
    running: Annotated[
        QuotaNumber | None, describe("executions that have not ended; null: no quota")
    ] = None
    queued: Annotated[
        QuotaNumber | None, describe("commands that wait for a worker; null: no quota")
    ] = None
    bytes: Annotated[QuotaNumber | None, describe("of stored results; null: no quota")] = None


@routes.post("/api/tenants", status=201)
async def create_tenant(body: TenantBody, has: Has, who: Who) -> TenantView:
    """Make a tenant. Its users and workers need tokens of it: POST /api/tokens with `tenant`."""
    return await has.tenants.create(who, body.name)


@routes.get("/api/tenants")
async def list_tenants(has: Has, who: Who) -> TenantsView:
    """All tenants with their quotas, the oldest first."""
    return await has.tenants.list_all(who)


@routes.get("/api/tenants/{tenant}")
async def get_tenant(tenant: TenantName, has: Has, who: Who) -> TenantDetailsView:
    """The quotas of a tenant, and what it uses now."""
    return await has.tenants.get(who, tenant)


@routes.put("/api/tenants/{tenant}/quotas")
async def set_tenant_quotas(tenant: TenantName, body: QuotasBody, has: Has, who: Who) -> TenantView:
    """Replace the quotas of a tenant. A start that exceeds one is refused with 429; what was
    accepted before goes on."""
    return await has.tenants.set_quotas(who, tenant, body.running, body.queued, body.bytes)
