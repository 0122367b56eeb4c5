"""The tenant of the payloads that a process stores and reads. Each tenant has a folder in every store.

The default tenant has the top folder, where payloads were before there were other tenants.
"""

from noetl.model.ids import DEFAULT_TENANT, Tenant

TENANTS_FOLDER = "tenants"  # no execution id, so no payload of the default tenant has this address


class StoreTenant:
    """The tenant of a store. A worker learns its tenant with its first command, before it stores
    anything."""

    def __init__(self, tenant: Tenant = DEFAULT_TENANT) -> None:
        self.tenant = tenant

    @property
    def folders(self) -> tuple[str, ...]:
        """The folders above those of the executions."""
        if self.tenant == DEFAULT_TENANT:
            return ()
        return TENANTS_FOLDER, str(self.tenant)

    def make_cache_key(self, uri: str) -> str:
        """The key of a payload in a cache that processes of several tenants may share."""
        return "/".join((*self.folders, uri))
