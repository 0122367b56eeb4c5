"""An LRU cache of encoded payloads in this process's memory, bounded by bytes."""

from collections import OrderedDict

ENTRY_OVERHEAD_BYTES = 400  # approximate bytes that an entry takes in addition to its payload


class MemoryCache:
    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._entries: OrderedDict[str, tuple[bytes, str]] = OrderedDict()
        self.bytes = 0

    def get(self, uri: str) -> tuple[bytes, str] | None:
        """Return the payload and its checksum."""
        entry = self._entries.get(uri)
        if entry is not None:
            self._entries.move_to_end(uri)
        return entry

    def add(self, uri: str, data: bytes, sha256: str) -> None:
        """Cache a payload, unless it takes more than a quarter of the limit."""
        if len(data) + ENTRY_OVERHEAD_BYTES > self._limit // 4:
            return
        self.drop(uri)
        self._entries[uri] = data, sha256
        self.bytes += len(data) + ENTRY_OVERHEAD_BYTES
        while self.bytes > self._limit:
            self.drop(next(iter(self._entries)))

    def drop(self, uri: str) -> None:
        entry = self._entries.pop(uri, None)
        if entry is not None:
            self.bytes -= len(entry[0]) + ENTRY_OVERHEAD_BYTES
