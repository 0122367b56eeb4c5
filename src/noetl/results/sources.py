"""Open sources of stored bytes: in memory, and in a file."""

import os
from pathlib import Path

from noetl.results.staging import translate_disk_errors

_MAX_READ_BYTES = 1 << 30  # one call reads at most 2 GB


class MemorySource:
    """Bytes in memory."""

    path: Path | None = None

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.size = len(data)

    def read(self, offset: int, length: int) -> bytes:
        return self._data[offset : offset + length]

    def close(self) -> None:
        self._data = b""


class FileSource:
    """An open file. The object owns the descriptor."""

    def __init__(self, descriptor: int, path: Path | None) -> None:
        self._descriptor = descriptor
        self.path = path
        self.size = os.fstat(descriptor).st_size

    def read(self, offset: int, length: int) -> bytes:
        parts: list[bytes] = []
        with translate_disk_errors(self.path):
            while length > 0:
                data = os.pread(self._descriptor, min(length, _MAX_READ_BYTES), offset)
                if not data:
                    break
                parts.append(data)
                offset += len(data)
                length -= len(data)
        if len(parts) == 1:
            return parts[0]
        return b"".join(parts)

    def close(self) -> None:
        os.close(self._descriptor)
