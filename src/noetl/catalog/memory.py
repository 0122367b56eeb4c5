"""The catalog and the vault in memory."""

from itertools import count

from msgspec.structs import replace

from noetl.catalog.port import CatalogEntry, SealedCredential, hash_text
from noetl.model.clock import Clock
from noetl.model.ids import DEFAULT_TENANT, Tenant


class CatalogMemory:
    def __init__(self) -> None:
        self._paths: dict[tuple[Tenant, str], list[CatalogEntry]] = {}
        self._registered: list[tuple[Tenant, CatalogEntry]] = []  # in order of registration

    async def register(self, path: str, text: str, tenant: Tenant = DEFAULT_TENANT) -> CatalogEntry:
        content = hash_text(text)
        versions = self._paths.setdefault((tenant, path), [])
        if versions and versions[-1].hash == content:
            return versions[-1]
        entry = CatalogEntry(path, len(versions) + 1, content, text)
        versions.append(entry)
        self._registered.append((tenant, entry))
        return entry

    async def find(
        self,
        path: str,
        version: int | None = None,
        tenant: Tenant = DEFAULT_TENANT,
    ) -> CatalogEntry | None:
        versions = self._paths.get((tenant, path), [])
        if version is None:
            version = len(versions)
        if not 0 < version <= len(versions):
            return None
        return versions[version - 1]

    async def find_by_hash(self, content: str, tenant: Tenant | None = None) -> CatalogEntry | None:
        for owner, entry in reversed(self._registered):
            if entry.hash == content and tenant in (None, owner):
                return entry
        return None

    async def list_latest_entries(
        self,
        prefix: str = "",
        after: str = "",
        limit: int = 100,
        tenant: Tenant = DEFAULT_TENANT,
    ) -> list[CatalogEntry]:
        paths = sorted(path for owner, path in self._paths if owner == tenant)
        matching = [path for path in paths if path.startswith(prefix) and path > after]
        return [self._paths[tenant, path][-1] for path in matching[:limit]]

    async def list_path_versions(
        self,
        path: str,
        before: int | None = None,
        limit: int = 50,
        tenant: Tenant = DEFAULT_TENANT,
    ) -> list[CatalogEntry]:
        versions = self._paths.get((tenant, path), [])
        if before is not None:
            versions = versions[: max(0, before - 1)]
        return versions[::-1][:limit]


class VaultMemory:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._rows: dict[tuple[Tenant, str], SealedCredential] = {}
        self._versions = count(1)

    async def reserve_version(self) -> int:
        return next(self._versions)

    async def put(
        self,
        tenant: Tenant,
        name: str,
        kind: str,
        data: bytes,
        version: int,
    ) -> SealedCredential:
        now = created_at = self._clock.now()
        before = self._rows.get((tenant, name))
        if before is not None:
            if before.version > version:
                return before
            created_at = before.created_at
        row = SealedCredential(name, kind, data, version, created_at, now)
        self._rows[tenant, name] = row
        return row

    async def reseal(
        self, tenant: Tenant, before: SealedCredential, data: bytes, version: int
    ) -> bool:
        if self._rows.get((tenant, before.name)) != before:
            return False
        self._rows[tenant, before.name] = replace(before, data=data, version=version)
        return True

    async def find(self, tenant: Tenant, name: str) -> SealedCredential | None:
        return self._rows.get((tenant, name))

    async def list_sealed_credentials(self, tenant: Tenant) -> list[SealedCredential]:
        return [row for (owner, _), row in sorted(self._rows.items()) if owner == tenant]

    async def delete(self, tenant: Tenant, name: str) -> bool:
        return self._rows.pop((tenant, name), None) is not None
