"""A cache folder, bounded by bytes. Entries may vanish at any time.

The folder is the index: an entry is found by its name, its modification time says when it was last
used, and entries survive a restart. So several processes can share the folder, and deleting it
costs time only. A read checks the entry and drops a damaged one. Nothing here is synced, and no
method fails: an entry that cannot be stored is not stored.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from struct import Struct
from threading import Lock
from zlib import crc32

from noetl.private_folders import make_private_folder

_SUM_FORMAT = Struct("<I")
_MAX_ENTRY_DIVISOR = 4  # an entry takes at most a quarter of the limit
_EVICTION_TARGET = 0.9  # part of the limit that is still used after a sweep
# The folder is measured again when an eighth of the limit was added: other processes add to it too.
_RECOUNT_DIVISOR = 8


class WriteAllowance:
    """A token bucket of `rate` bytes per second that holds one second's worth. Callers never wait:
    beyond the rate the answer is False.
    """

    def __init__(self, rate: float, now: Callable[[], float]) -> None:
        self._rate = rate
        self._now = now
        self._left = rate
        self._at = now()
        self._lock = Lock()

    def try_take(self, size: int) -> bool:
        with self._lock:
            at = self._now()
            refill = (at - self._at) * self._rate
            self._left = min(self._rate, self._left + refill)
            self._at = at
            if size > self._left:
                return False
            self._left -= size
            return True


class FilePool:
    def __init__(self, folder: Path, limit: int, allowance: WriteAllowance) -> None:
        self._folder = folder
        self._limit = limit
        self._allowance = allowance
        self._lock = Lock()
        # bytes until the folder is measured again; None before the first time
        self._bytes_to_recount: int | None = None
        self._numbers = count()

    def get(self, name: str) -> bytes | None:
        """Return the entry without its checksum; a damaged entry is dropped."""
        path = self._folder / name
        try:
            data = path.read_bytes()
            if not _is_intact(data):
                path.unlink()
                return None
            os.utime(path)
        except OSError:
            return None
        return data[_SUM_FORMAT.size :]

    def add(self, name: str, data: bytes) -> None:
        """Store an entry, unless it is too large or too many bytes were added in the last second."""
        if len(data) > self._limit // _MAX_ENTRY_DIVISOR:
            return
        if not self._allowance.try_take(len(data)):
            return
        part = self._folder / f".{os.getpid()}-{next(self._numbers)}"
        with suppress(OSError):
            try:
                self._make_folder()
                with part.open("xb") as file:
                    file.write(_SUM_FORMAT.pack(crc32(data)))
                    file.write(data)
                os.replace(part, self._folder / name)
            except OSError:
                part.unlink(missing_ok=True)
                raise
            self._count_bytes(len(data))

    def open_entry(self, name: str) -> tuple[int, Path] | None:
        """Open an adopted file. The caller checks its content; the entry has no checksum."""
        path = self._folder / name
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            os.utime(descriptor)
        except OSError:
            return None
        return descriptor, path

    def adopt_file(self, name: str, file: Path, size: int) -> bool:
        """Move the file into the pool as an entry without a checksum, if it is on this disk.
        Nothing is copied.
        """
        if size > self._limit // _MAX_ENTRY_DIVISOR:
            return False
        try:
            self._make_folder()
            os.rename(file, self._folder / name)
        except OSError:
            return False
        self._count_bytes(size)
        return True

    def drop_entries(self, prefix: str) -> None:
        with suppress(OSError), os.scandir(self._folder) as entries:
            for entry in entries:
                if entry.name.startswith(prefix):
                    with suppress(OSError):
                        os.unlink(entry.path)

    def _make_folder(self) -> None:
        if not self._folder.is_dir():
            make_private_folder(self._folder)

    def _count_bytes(self, size: int) -> None:
        with self._lock:
            if self._bytes_to_recount is not None and self._bytes_to_recount >= size:
                self._bytes_to_recount -= size
                return
            left = self._evict_entries()
            self._bytes_to_recount = min(self._limit - left, self._limit // _RECOUNT_DIVISOR)

    def _evict_entries(self) -> int:
        """Delete the entries that were unused for longest while there are too many. Returns the
        bytes left.
        """
        files: list[tuple[float, int, str]] = []
        with os.scandir(self._folder) as entries:
            for entry in entries:
                with suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    files.append((status.st_mtime, status.st_size, entry.path))
        total = sum(size for _, size, _ in files)
        if total <= self._limit:
            return total
        for _, size, path in sorted(files):
            if total <= self._limit * _EVICTION_TARGET:
                break
            with suppress(OSError):
                os.unlink(path)
            total -= size
        return total


def _is_intact(data: bytes) -> bool:
    if len(data) < _SUM_FORMAT.size:
        return False
    (expected,) = _SUM_FORMAT.unpack_from(data)
    return bool(crc32(memoryview(data)[_SUM_FORMAT.size :]) == expected)
