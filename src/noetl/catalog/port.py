"""The contract of the catalog. A content hash names one text for ever."""

from typing import Protocol

from msgspec import Struct


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
