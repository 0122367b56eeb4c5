"""Staged payloads: encoded into a local file, counted and hashed while they are written, then
handed to a tier.

So a large payload is never in memory, and a put that fails is repeated from the file. The next
process that stages deletes the files that a crash left behind: a live process holds a lock on its
file.
"""

import asyncio
import errno
import fcntl
import io
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any

from noetl.model.errors import StoreUnavailable
from noetl.private_folders import make_private_folder

# Seconds: the process that made a younger file may be about to lock it.
MIN_FORGOTTEN_AGE_S = 3600.0
_BUFFER_BYTES = 1 << 20


class StagedPayload:
    """A finished payload, in memory or in an open file. `size` and `sha256` are of the bytes to be
    stored.
    """

    def __init__(
        self,
        size: int,
        sha256: str,
        *,
        data: bytes | None = None,
        file: "PayloadDraft | None" = None,
    ) -> None:
        self.size = size
        self.sha256 = sha256
        self.data = data
        self._file = file

    @classmethod
    def from_bytes(cls, data: bytes) -> "StagedPayload":
        return cls(len(data), sha256(data).hexdigest(), data=data)

    @property
    def path(self) -> Path | None:
        """The place of the file. A tier may rename the file."""
        return None if self._file is None else self._file.path

    def fileno(self) -> int:
        """The file's descriptor. It stays valid if the file is renamed."""
        assert self._file is not None
        return self._file.fileno()

    def read(self, offset: int, length: int) -> bytes:
        if self.data is not None:
            return self.data[offset : offset + length]
        return os.pread(self.fileno(), length, offset)

    def read_parts(self, size: int = _BUFFER_BYTES) -> Iterator[bytes]:
        for offset in range(0, self.size, size):
            yield self.read(offset, min(size, self.size - offset))


class PayloadDraft(io.RawIOBase):
    """A payload while it is written. It is a file object, so that encoders can write to it."""

    def __init__(self, file: Any, path: Path | None) -> None:
        self._file = file
        self._sha = sha256()
        self._size = 0
        self.path = path

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        size: int = self._file.write(data)
        self._sha.update(data)
        self._size += size
        return size

    def tell(self) -> int:
        return self._size

    def fileno(self) -> int:
        number: int = self._file.fileno()
        return number

    def finish(self) -> StagedPayload:
        """Finish the payload. Nothing may be written after this."""
        if self.path is None:
            return StagedPayload(self._size, self._sha.hexdigest(), data=self._file.getvalue())
        self._file.flush()
        return StagedPayload(self._size, self._sha.hexdigest(), file=self)

    def discard(self) -> None:
        if self.path is not None:
            with suppress(OSError):
                self.path.unlink()  # it is missing if a tier has renamed it
        with suppress(OSError):
            self._file.close()


class Staging:
    """A place for drafts: a folder on the disk of the tier, or memory if there is no folder.

    The folder is created if it is missing, `within` is not. `once` is the folder for payloads that
    cannot be made again: a disk that is available when the tier's disk is away or full.
    """

    def __init__(
        self, folder: Path | None, *, within: Path | None = None, once: Path | None = None
    ) -> None:
        self._folder = folder
        self._within = within
        self.for_unrepeatable: Staging = self if once is None else Staging(once)
        self._numbers = count()
        self._swept = False

    @asynccontextmanager
    async def open_draft(self) -> AsyncIterator[PayloadDraft]:
        """Open a draft. It is deleted at the end of the block unless a tier has taken the file."""
        with translate_disk_errors(self._folder):
            draft = await asyncio.to_thread(self.begin_draft)
            try:
                yield draft
            finally:
                await asyncio.to_thread(draft.discard)

    @property
    def folder(self) -> Path | None:
        return self._folder

    def link_file(self, file: Path, sha256: str) -> tuple[PayloadDraft, StagedPayload]:
        """Link a finished file of this disk under a new name. A tier may rename the link; the file
        stays.
        """
        assert self._folder is not None
        while True:
            path = self._folder / f"{os.getpid()}-{next(self._numbers)}"
            with suppress(FileExistsError):
                os.link(file, path)
                break
        opened = path.open("rb")
        _try_lock(opened.fileno())
        draft = PayloadDraft(opened, path)
        return draft, StagedPayload(os.fstat(opened.fileno()).st_size, sha256, file=draft)

    def begin_draft(self) -> PayloadDraft:
        """Make a draft. Call it in a thread; the caller discards the draft."""
        if self._folder is None:
            return PayloadDraft(io.BytesIO(), None)
        if self._within is not None:
            require_folder(self._within)
        make_private_folder(self._folder)
        while True:
            path = self._folder / f"{os.getpid()}-{next(self._numbers)}"
            with suppress(FileExistsError):
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
                _try_lock(descriptor)
                if not self._swept:
                    self._swept = True
                    _delete_forgotten(self._folder, os.fstat(descriptor).st_mtime)
                return PayloadDraft(os.fdopen(descriptor, "w+b", buffering=_BUFFER_BYTES), path)


def _delete_forgotten(folder: Path, now: float) -> None:
    """Delete old files that no process holds. `now` is by the clock of the disk, which may be
    another machine's.
    """
    for path in folder.iterdir():
        with suppress(OSError):
            if now - path.stat().st_mtime < MIN_FORGOTTEN_AGE_S:
                continue
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                if _try_lock(descriptor):
                    path.unlink()
            finally:
                os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    """Lock the file. False if another process has the lock, or if the file system has no locks;
    then nothing is swept.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


@contextmanager
def translate_disk_errors(folder: Path | None) -> Iterator[None]:
    """Translate errors of the disk into StoreUnavailable."""
    try:
        yield
    except OSError as error:
        raise make_disk_error(folder, error) from error


def require_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise StoreUnavailable(
            f"{folder} is not there", hint="make that directory, or mount its disk"
        )


def make_disk_error(folder: Path | None, error: OSError) -> StoreUnavailable:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StoreUnavailable(
            f"no space left in {folder}",
            hint="free some space there; the result is stored as soon as it fits",
        )
    return StoreUnavailable(f"{folder} cannot be used: {error.strerror or error}")
