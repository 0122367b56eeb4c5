"""Makes tenants, shows what they use, and sets their quotas.

Only administrators of the tenant `default`, which is the installation's own, may do this.
"""

import re

from noetl.accounts.tenants import StoredTenant, TenantQuotas, TenantStore
from noetl.log.tenant_usage.port import UsageMeter
from noetl.model.errors import Conflict, InvalidInput, NotFound
from noetl.model.identity import Identity, Permission, needs, require_installation
from noetl.server.audit.recorder import AuditRecorder
from noetl.server.http.structs import extend_view
from noetl.server.tenants.quotas import QuotaGuard
from noetl.server.tenants.views import (
    TenantDetailsView,
    TenantsView,
    TenantView,
    make_tenant_view,
    make_usage_view,
)

MAX_TENANT_NAME_CHARS = 63
MAX_QUOTA = (1 << 53) - 1  # the largest whole number that every reader of JSON keeps
_NAME = re.compile(rf"[a-z0-9][a-z0-9-]{{0,{MAX_TENANT_NAME_CHARS - 1}}}", re.ASCII)


class TenantService:
    def __init__(
        self,
        tenants: TenantStore,
        meter: UsageMeter,
        guard: QuotaGuard | None = None,
        *,
        audit: AuditRecorder,
    ) -> None:
        self._tenants = tenants
        self._meter = meter
        self._guard = guard
        self._audit = audit

    @needs(Permission.ADMINISTER)
    async def create(self, identity: Identity, name: str) -> TenantView:
        require_installation(identity)
        if _NAME.fullmatch(name) is None:
            raise InvalidInput(
                f"{name[:MAX_TENANT_NAME_CHARS]!r} cannot be the name of a tenant",
                hint=f"small letters, digits and '-', at most {MAX_TENANT_NAME_CHARS}",
            )
        async with self._audit.record(identity, "tenant.create", name):
            made = await self._tenants.add_tenant(name)
            if made is None:
                raise Conflict(
                    f"there is a tenant {name}",
                    hint="choose another name; tenants are never deleted",
                )
        return make_tenant_view(made)

    @needs(Permission.ADMINISTER)
    async def list_all(self, identity: Identity) -> TenantsView:
        require_installation(identity)
        return TenantsView([make_tenant_view(each) for each in await self._tenants.list_tenants()])

    @needs(Permission.ADMINISTER)
    async def get(self, identity: Identity, name: str) -> TenantDetailsView:
        """The tenant with its quotas, and what it uses now."""
        require_installation(identity)
        found = await find_named(self._tenants, name)
        usage = await self._meter.measure_usage(found.tenant, [])
        return extend_view(TenantDetailsView, make_tenant_view(found), usage=make_usage_view(usage))

    @needs(Permission.ADMINISTER)
    async def set_quotas(
        self,
        identity: Identity,
        name: str,
        running: int | None,
        queued: int | None,
        most_bytes: int | None,
    ) -> TenantView:
        """Replace the quotas. Other servers use them within seconds."""
        require_installation(identity)
        found = await find_named(self._tenants, name)
        for limit in (running, queued, most_bytes):
            if limit is not None and not 0 <= limit <= MAX_QUOTA:
                raise InvalidInput(f"a quota is a whole number from 0 to {MAX_QUOTA}")
        quotas = TenantQuotas(running, queued, most_bytes)
        async with self._audit.record(
            identity, "tenant.quotas", name, running=running, queued=queued, bytes=most_bytes
        ):
            changed = await self._tenants.set_quotas(found.tenant, quotas)
            if changed is None:
                raise make_missing_tenant(name)
        if self._guard is not None:
            self._guard.forget_quotas(found.tenant)
        return make_tenant_view(changed)


async def find_named(tenants: TenantStore, name: str) -> StoredTenant:
    """The tenant of this name. Raises `NotFound`."""
    found = await tenants.find_named_tenant(name)
    if found is None:
        raise make_missing_tenant(name)
    return found


def make_missing_tenant(name: str) -> NotFound:
    return NotFound(
        f"no tenant {name[:MAX_TENANT_NAME_CHARS]!r}",
        hint="noetl tenant list shows those there are",
    )
