"""The contracts of the catalog and of the vault. A content hash names one text for ever; a credential has one value, the last."""

from typing import Protocol

from msgspec import Struct

from noetl.model.ids import DEFAULT_TENANT, Micros, Tenant


class CatalogEntry(Struct, frozen=True):
    path: str
    version: int
    hash: str
    text: str


class Catalog(Protocol):
    """Paths and versions belong to a tenant."""

    async def register(self, path: str, text: str, tenant: Tenant = DEFAULT_TENANT) -> CatalogEntry:
        """A new version, unless the latest version has this text: then that one."""
        ...

    async def find(
        self, path: str, version: int | None = None, tenant: Tenant = DEFAULT_TENANT
    ) -> CatalogEntry | None:
        """Without a version, the latest."""
        ...

    async def by_hash(self, content: str, tenant: Tenant | None = None) -> CatalogEntry | None:
        """The entry registered last with this text; of any tenant for what an execution is pinned to."""
        ...

    async def latest(
        self, prefix: str = "", after: str = "", limit: int = 100, tenant: Tenant = DEFAULT_TENANT
    ) -> list[CatalogEntry]:
        """The latest version of each, by path, beyond the path `after`."""
        ...

    async def versions(
        self, path: str, before: int | None = None, limit: int = 50, tenant: Tenant = DEFAULT_TENANT
    ) -> list[CatalogEntry]:
        """Newest first, older than `before`."""
        ...


class Sealed(Struct, frozen=True):
    """A credential as it is stored: `data` is worth nothing without the key."""

    name: str
    kind: str
    data: bytes
    created_at: Micros
    changed_at: Micros


class Vault(Protocol):
    async def put(
        self, tenant: Tenant, name: str, kind: str, data: bytes
    ) -> Sealed: ...  # in place of one of this name
    async def find(self, tenant: Tenant, name: str) -> Sealed | None: ...
    async def stored(self, tenant: Tenant) -> list[Sealed]: ...  # by name
    async def delete(self, tenant: Tenant, name: str) -> bool: ...  # False: there was none
