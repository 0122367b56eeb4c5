"""The contracts of the catalog and of the vault. A content hash names one text for ever; a credential has one value, the last."""

from typing import Protocol

from msgspec import Struct

from noetl.model.ids import Micros, Tenant


class Entry(Struct, frozen=True):
    path: str
    version: int
    hash: str
    text: str


class Catalog(Protocol):
    async def register(self, path: str, text: str) -> Entry: ...  # equal text: the version it has already
    async def find(self, path: str, version: int | None = None) -> Entry | None: ...  # None: the latest
    async def by_hash(self, content: str) -> Entry | None: ...
    async def paths(self) -> list[Entry]: ...


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
