"""Payloads in this process's memory, encoded, bounded by bytes; the one that was not used for longest leaves first."""

from collections import OrderedDict

ENTRY = 400  # bytes that an entry takes beside its payload, about


class Cache:
    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._entries: OrderedDict[str, tuple[bytes, str]] = OrderedDict()
        self.bytes = 0

    def get(self, uri: str) -> tuple[bytes, str] | None:
        """The payload and its checksum."""
        found = self._entries.get(uri)
        if found is not None:
            self._entries.move_to_end(uri)
        return found

    def add(self, uri: str, data: bytes, sha256: str) -> None:
        """One that would push out most of the others is not kept."""
        if len(data) + ENTRY > self._limit // 4:
            return
        self.drop(uri)
        self._entries[uri] = data, sha256
        self.bytes += len(data) + ENTRY
        while self.bytes > self._limit:
            self.drop(next(iter(self._entries)))

    def drop(self, uri: str) -> None:
        found = self._entries.pop(uri, None)
        if found is not None:
            self.bytes -= len(found[0]) + ENTRY
