"""The catalog and the vault in memory."""

from hashlib import sha256

from noetl.catalog.port import Entry, Sealed
from noetl.model.clock import Clock
from noetl.model.ids import Tenant


class CatalogMemory:
    def __init__(self) -> None:
        self._paths: dict[str, list[Entry]] = {}
        self._hashes: dict[str, Entry] = {}

    async def register(self, path: str, text: str) -> Entry:
        content = sha256(text.encode()).hexdigest()
        versions = self._paths.setdefault(path, [])
        for known in versions:
            if known.hash == content:
                return known
        entry = Entry(path, len(versions) + 1, content, text)
        versions.append(entry)
        self._hashes.setdefault(content, entry)
        return entry

    async def find(self, path: str, version: int | None = None) -> Entry | None:
        versions = self._paths.get(path, [])
        if version is None:
            return versions[-1] if versions else None
        return versions[version - 1] if 0 < version <= len(versions) else None

    async def by_hash(self, content: str) -> Entry | None:
        return self._hashes.get(content)

    async def paths(self) -> list[Entry]:
        """The latest of each, by path."""
        return [self._paths[path][-1] for path in sorted(self._paths)]


class VaultMemory:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._rows: dict[tuple[Tenant, str], Sealed] = {}

    async def put(self, tenant: Tenant, name: str, kind: str, data: bytes) -> Sealed:
        now, before = self._clock.now(), self._rows.get((tenant, name))
        row = Sealed(name, kind, data, now if before is None else before.created_at, now)
        self._rows[tenant, name] = row
        return row

    async def find(self, tenant: Tenant, name: str) -> Sealed | None:
        return self._rows.get((tenant, name))

    async def stored(self, tenant: Tenant) -> list[Sealed]:
        return [row for (of, _), row in sorted(self._rows.items()) if of == tenant]

    async def delete(self, tenant: Tenant, name: str) -> bool:
        return self._rows.pop((tenant, name), None) is not None
