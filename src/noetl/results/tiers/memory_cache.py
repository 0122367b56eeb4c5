"""An LRU cache of encoded payloads in this process's memory, bounded by bytes."""

from noetl.caches import WeightedLruCache

ENTRY_OVERHEAD_BYTES = 400  # approximate bytes that an entry takes in addition to its payload


class MemoryCache:
    def __init__(self, limit: int) -> None:
        self._max_entry_bytes = limit // 4
        self._entries: WeightedLruCache[str, tuple[bytes, str]] = WeightedLruCache(
            limit, _count_entry_bytes
        )

    def get(self, uri: str) -> tuple[bytes, str] | None:
        """Return the payload and its checksum."""
        return self._entries.get(uri)

    def add(self, uri: str, data: bytes, sha256: str) -> None:
        """Cache a payload, unless it takes more than a quarter of the limit."""
        if len(data) + ENTRY_OVERHEAD_BYTES <= self._max_entry_bytes:
            self._entries.put(uri, (data, sha256))

    def drop(self, uri: str) -> None:
        self._entries.pop(uri)

    def count_bytes(self) -> int:
        return self._entries.weight


def _count_entry_bytes(entry: tuple[bytes, str]) -> int:
    return len(entry[0]) + ENTRY_OVERHEAD_BYTES
