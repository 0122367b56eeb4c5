"""The catalog and the vault in Postgres."""

from pathlib import Path

from noetl.catalog.port import CatalogEntry, SealedCredential, hash_text
from noetl.model.ids import DEFAULT_TENANT, Tenant
from noetl.postgres.pool import CallBatcher, Database, Record
from noetl.postgres.queries import load_queries

_SQL = load_queries(Path(__file__).with_name("catalog.sql"))
_VAULT = load_queries(Path(__file__).with_name("vault.sql"))
MAX_FINDS = 500  # lookups in one statement


class CatalogPostgres:
    def __init__(self, database: Database) -> None:
        self._pool = database.main
        self._finds = CallBatcher(self._find_all, limit=MAX_FINDS)

    async def register(self, path: str, text: str, tenant: Tenant = DEFAULT_TENANT) -> CatalogEntry:
        """Register under a lock per path, so that versions are numbered one after the other."""
        content = hash_text(text)
        latest = await self.find(path, tenant=tenant)
        if latest is not None and latest.hash == content:
            return latest
        async with self._pool.open_write_transaction() as session:
            lock, register = _SQL["alone"], _SQL["register"]
            await session.fetch(lock.text, *lock.bind(tenant=tenant, path=path))
            values = register.bind(tenant=tenant, path=path, hash=content, text=text)
            added = await session.fetch(register.text, *values)
            if added:
                return CatalogEntry(*added[0])
            # Another process has registered the same text since.
            find = _SQL["find"]
            values = find.bind(tenants=[tenant], paths=[path], versions=[None])
            ((_, *entry),) = await session.fetch(find.text, *values)
            return CatalogEntry(*entry)

    async def find(
        self,
        path: str,
        version: int | None = None,
        tenant: Tenant = DEFAULT_TENANT,
    ) -> CatalogEntry | None:
        return await self._finds((tenant, path, version))

    async def _find_all(
        self, requests: list[tuple[Tenant, str, int | None]]
    ) -> list[CatalogEntry | None]:
        """Find many entries in one statement. Equal requests are read once."""
        keys = list(dict.fromkeys(requests))
        tenants, paths, versions = (list(column) for column in zip(*keys, strict=True))
        rows = await self._pool.read(_SQL["find"], tenants=tenants, paths=paths, versions=versions)
        entries = {keys[number - 1]: CatalogEntry(*entry) for number, *entry in rows}
        return [entries.get(key) for key in requests]

    async def find_by_hash(self, content: str, tenant: Tenant | None = None) -> CatalogEntry | None:
        if tenant is None:
            rows = await self._pool.read(_SQL["by_content"], hash=content)
        else:
            rows = await self._pool.read(_SQL["by_hash"], tenant=tenant, hash=content)
        return _first_entry(rows)

    async def list_latest_entries(
        self,
        prefix: str = "",
        after: str = "",
        limit: int = 100,
        tenant: Tenant = DEFAULT_TENANT,
    ) -> list[CatalogEntry]:
        rows = await self._pool.read(
            _SQL["latest"],
            tenant=tenant,
            prefix=prefix,
            after=after,
            limit=limit,
        )
        return [CatalogEntry(*row) for row in rows]

    async def list_path_versions(
        self,
        path: str,
        before: int | None = None,
        limit: int = 50,
        tenant: Tenant = DEFAULT_TENANT,
    ) -> list[CatalogEntry]:
        rows = await self._pool.read(
            _SQL["versions"],
            tenant=tenant,
            path=path,
            before=before,
            limit=limit,
        )
        return [CatalogEntry(*row) for row in rows]


def _first_entry(rows: list[Record]) -> CatalogEntry | None:
    if not rows:
        return None
    return CatalogEntry(*rows[0])


class VaultPostgres:
    def __init__(self, database: Database) -> None:
        self._pool = database.main

    async def reserve_version(self) -> int:
        ((version,),) = await self._pool.write(_VAULT["reserve_version"])
        return int(version)

    async def put(
        self,
        tenant: Tenant,
        name: str,
        kind: str,
        data: bytes,
        version: int,
    ) -> SealedCredential:
        (row,) = await self._pool.write(
            _VAULT["put"],
            tenant=tenant,
            name=name,
            kind=kind,
            data=data,
            version=version,
        )
        return SealedCredential(*row)

    async def reseal(
        self, tenant: Tenant, before: SealedCredential, data: bytes, version: int
    ) -> bool:
        rows = await self._pool.write(
            _VAULT["reseal"],
            tenant=tenant,
            name=before.name,
            before=before.data,
            data=data,
            version=version,
        )
        return bool(rows)

    async def find(self, tenant: Tenant, name: str) -> SealedCredential | None:
        rows = await self._pool.read(_VAULT["find"], tenant=tenant, name=name)
        if not rows:
            return None
        return SealedCredential(*rows[0])

    async def list_sealed_credentials(self, tenant: Tenant) -> list[SealedCredential]:
        rows = await self._pool.read(_VAULT["stored"], tenant=tenant)
        return [SealedCredential(*row) for row in rows]

    async def delete(self, tenant: Tenant, name: str) -> bool:
        rows = await self._pool.write(_VAULT["delete"], tenant=tenant, name=name)
        return bool(rows)
