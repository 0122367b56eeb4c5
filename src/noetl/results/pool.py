"""A folder of entries that may vanish at any time, bounded by bytes.

The folder is the index: an entry is found by its name, its time of change says when it was used last, and what is there when a
process starts is there. So several processes share it, and whoever deletes it costs time only. An entry is checked when it is
read; a bad one is dropped. Nothing here is synced and nothing fails: what cannot be kept is not kept.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from struct import Struct
from threading import Lock
from zlib import crc32

_SUM = Struct("<I")
_LARGEST = 4  # an entry takes at most this part of the pool
_SPARE = 0.9  # of the limit is left after a sweep
_LOOK = (
    8  # the folder is counted again whenever this part of the limit was added: others add to it too
)


class Allowance:
    """So many bytes a second, a second's worth at once. Beyond it the answer is no; nobody waits."""

    def __init__(self, rate: float, now: Callable[[], float]) -> None:
        self._rate = rate
        self._now = now
        self._left = rate
        self._at = now()
        self._lock = Lock()

    def allows(self, size: int) -> bool:
        with self._lock:
            at = self._now()
            self._left = min(self._rate, self._left + (at - self._at) * self._rate)
            self._at = at
            if size > self._left:
                return False
            self._left -= size
            return True


class FilePool:
    def __init__(self, folder: Path, limit: int, allowance: Allowance) -> None:
        self._folder = folder
        self._limit = limit
        self._allowance = allowance
        self._lock = Lock()
        self._unseen: int | None = (
            None  # bytes until the folder is counted again; None before the first time
        )
        self._numbers = count()

    def get(self, name: str) -> bytes | None:
        """Without its sum, which was compared."""
        path = self._folder / name
        try:
            data = path.read_bytes()
            if (
                len(data) < _SUM.size
                or crc32(memoryview(data)[_SUM.size :]) != _SUM.unpack_from(data)[0]
            ):
                path.unlink()
                return None
            os.utime(path)
        except OSError:
            return None
        return data[_SUM.size :]

    def add(self, name: str, data: bytes) -> None:
        """Unless too much was added lately."""
        if len(data) > self._limit // _LARGEST or not self._allowance.allows(len(data)):
            return
        part = self._folder / f".{os.getpid()}-{next(self._numbers)}"
        with suppress(OSError):
            try:
                self._made()
                with part.open("xb") as file:
                    file.write(_SUM.pack(crc32(data)))
                    file.write(data)
                os.replace(part, self._folder / name)
            except OSError:
                part.unlink(missing_ok=True)
                raise
            self._count(len(data))

    def file(self, name: str) -> tuple[int, Path] | None:
        """A file that was adopted, open; whoever reads it knows its sums."""
        path = self._folder / name
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            os.utime(descriptor)
        except OSError:
            return None
        return descriptor, path

    def adopt(self, name: str, file: Path, size: int) -> bool:
        """The file itself becomes an entry, without a sum, when it is on this disk; nothing is written for it."""
        if size > self._limit // _LARGEST:
            return False
        try:
            self._made()
            os.rename(file, self._folder / name)
        except OSError:
            return False
        self._count(size)
        return True

    def drop(self, prefix: str) -> None:
        with suppress(OSError), os.scandir(self._folder) as entries:
            for entry in entries:
                if entry.name.startswith(prefix):
                    with suppress(OSError):
                        os.unlink(entry.path)

    def _made(self) -> None:
        if not self._folder.is_dir():
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def _count(self, size: int) -> None:
        with self._lock:
            if self._unseen is not None and self._unseen >= size:
                self._unseen -= size
                return
            left = self._sweep()
            self._unseen = min(self._limit - left, self._limit // _LOOK)

    def _sweep(self) -> int:
        """The bytes that are left: those longest unused go when there are too many."""
        found: list[tuple[float, int, str]] = []
        with os.scandir(self._folder) as entries:
            for entry in entries:
                with suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    found.append((status.st_mtime, status.st_size, entry.path))
        total = sum(size for _, size, _ in found)
        if total <= self._limit:
            return total
        for _, size, path in sorted(found):
            if total <= self._limit * _SPARE:
                break
            with suppress(OSError):
                os.unlink(path)
            total -= size
        return total
