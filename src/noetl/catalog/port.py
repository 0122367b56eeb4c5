"""The contracts of the catalog and of the vault.

A content hash names one text for ever. A credential has only its last value.
"""

from hashlib import sha256
from typing import Protocol

from msgspec import Struct

from noetl.model.ids import DEFAULT_TENANT, Micros, Tenant


class CatalogEntry(Struct, frozen=True):
    path: str
    version: int
    hash: str
    text: str


class Catalog(Protocol):
    """Stored playbooks. Paths and versions belong to a tenant."""

    async def register(self, path: str, text: str, tenant: Tenant = DEFAULT_TENANT) -> CatalogEntry:
        """Add a version of the path, unless its latest version has the same text. Returns the
        latest."""
        ...

    async def find(
        self,
        path: str,
        version: int | None = None,
        tenant: Tenant = DEFAULT_TENANT,
    ) -> CatalogEntry | None:
        """The entry of a version; of the latest if `version` is None."""
        ...

    async def find_by_hash(self, content: str, tenant: Tenant | None = None) -> CatalogEntry | None:
        """The last entry with this text. Without a tenant, of any: executions pin only the hash."""
        ...

    async def list_latest_entries(
        self,
        prefix: str = "",
        after: str = "",
        limit: int = 100,
        tenant: Tenant = DEFAULT_TENANT,
    ) -> list[CatalogEntry]:
        """The latest version of each path with this prefix, ordered by path, after the path
        `after`."""
        ...

    async def list_path_versions(
        self,
        path: str,
        before: int | None = None,
        limit: int = 50,
        tenant: Tenant = DEFAULT_TENANT,
    ) -> list[CatalogEntry]:
        """The versions of the path before `before`, newest first."""
        ...


class SealedCredential(Struct, frozen=True):
    """A stored credential. `data` is encrypted, and names its version."""

    name: str
    kind: str
    data: bytes
    version: int
    created_at: Micros
    changed_at: Micros


class Vault(Protocol):
    """Stored credentials."""

    async def reserve_version(self) -> int:
        """The version of a credential that will be stored. None is given twice."""
        ...

    async def put(
        self,
        tenant: Tenant,
        name: str,
        kind: str,
        data: bytes,
        version: int,
    ) -> SealedCredential:
        """Store a credential, and replace an earlier version of the same name."""
        ...

    async def reseal(
        self, tenant: Tenant, before: SealedCredential, data: bytes, version: int
    ) -> bool:
        """Store the same value sealed otherwise. False if it was replaced since it was read."""
        ...

    async def find(self, tenant: Tenant, name: str) -> SealedCredential | None: ...

    async def list_sealed_credentials(self, tenant: Tenant) -> list[SealedCredential]:
        """All credentials of the tenant, ordered by name."""
        ...

    async def delete(self, tenant: Tenant, name: str) -> bool:
        """Delete a credential. False if there was none of this name."""
        ...


def hash_text(text: str) -> str:
    """The content hash of a playbook: what executions and workers know its text by."""
    return sha256(text.encode()).hexdigest()
