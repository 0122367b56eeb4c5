"""The catalog in memory."""

from hashlib import sha256

from noetl.catalog.port import Entry


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
