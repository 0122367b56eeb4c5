"""The disk tier: a file per payload below one directory, which may be shared between machines.

An address leads to its file by one function, `_folder`: its parts are checked again and opened one below the other without
following links, so nothing outside the root is ever reached. A file appears under its name whole or not at all: written beside,
synced, renamed, its directory synced. What a crash leaves behind begins with a dot, which no part of an address does.
"""

import asyncio
import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, Final

from noetl.model.errors import BadReference, Conflict, CorruptLog, NotFound, StoreUnavailable
from noetl.model.reference import Address, Home, Reference, address, parse_uri
from noetl.results import blocks
from noetl.results.encoding import decoded, reference_to, verify

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FULL = (errno.ENOSPC, errno.EDQUOT)
_BUFFER = 1 << 20
_sync: Final = getattr(os, "fdatasync", os.fsync)  # macOS has none


class Files:
    home: Final[Home] = "disk"

    def __init__(self, root: Path) -> None:
        self._root = root
        self._numbers = count()

    async def put(self, address: Address, value: Any) -> Reference:
        return await asyncio.to_thread(self._put, address, value)

    async def resolve(self, reference: Reference) -> Any:
        return await asyncio.to_thread(self._resolve, reference)

    async def rows(self, reference: Reference, start: int, stop: int) -> list[Any]:
        return await asyncio.to_thread(self._rows, reference, start, stop)

    # ---- writing -------------------------------------------------------------------------------------------------------

    def _put(self, where: Address, value: Any) -> Reference:
        with self._explained(str(where)), self._folder(where, make=True) as folder:
            part, descriptor = self._create(folder, where.key)
            try:
                with os.fdopen(descriptor, "wb", buffering=_BUFFER) as file:
                    made = blocks.write(file, value)
                    file.flush()
                    _sync(file.fileno())
                self._name(folder, part, where, made)
            except BaseException:
                with suppress(OSError):
                    os.unlink(part, dir_fd=folder)
                raise
        return reference_to(str(where), self.home, made.sha256, made.bytes, made.rows)

    def _create(self, folder: int, key: str) -> tuple[str, int]:
        """A new file beside. Another process, or one before this, may have the same number."""
        while True:
            part = f".{key}.{os.getpid()}-{next(self._numbers)}"
            with suppress(FileExistsError):
                return part, os.open(part, _CREATE, 0o600, dir_fd=folder)

    def _name(self, folder: int, part: str, where: Address, made: blocks.Summary) -> None:
        """A file that is there and whole stays: it is the same, or the put is refused."""
        try:
            with self._opened(folder, where) as there:
                known = there.summary.sha256
        except (FileNotFoundError, CorruptLog):
            os.rename(part, where.key, src_dir_fd=folder, dst_dir_fd=folder)
        else:
            if known != made.sha256:
                raise Conflict(f"{where} holds another payload", hint="a result is written once; use another key")
            os.unlink(part, dir_fd=folder)
        os.fsync(folder)

    # ---- reading -------------------------------------------------------------------------------------------------------

    def _resolve(self, reference: Reference) -> Any:
        with self._found(reference) as payload:
            data = payload.whole()
        return decoded(data, reference.uri)

    def _rows(self, reference: Reference, start: int, stop: int) -> list[Any]:
        with self._found(reference) as payload:
            return payload.rows(start, stop)

    @contextmanager
    def _found(self, reference: Reference) -> Iterator[blocks.Payload]:
        where = parse_uri(reference.uri)
        with self._explained(reference.uri):
            try:
                with self._folder(where, make=False) as folder, self._opened(folder, where) as payload:
                    verify(reference, payload.summary.sha256)
                    yield payload
            except FileNotFoundError as error:
                raise NotFound(f"{where} is gone", hint="its execution may be past retention") from error

    # ---- places --------------------------------------------------------------------------------------------------------

    @contextmanager
    def _folder(self, where: Address, *, make: bool) -> Iterator[int]:
        """The directory that the address's file is in, open. The only way from an address to a place."""
        where = address(where.execution_id, where.kind, where.step, where.key)  # whoever made it
        if make and not self._root.is_dir():
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
            _sync_directory(self._root.parent)
        folder = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)  # the root itself may be a link
        try:
            for name in (where.execution_id, where.kind, where.step):
                inner = _below(folder, name, make=make)
                os.close(folder)
                folder = inner
            yield folder
        finally:
            os.close(folder)

    @contextmanager
    def _opened(self, folder: int, where: Address) -> Iterator[blocks.Payload]:
        descriptor = os.open(where.key, _READ, dir_fd=folder)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise BadReference(f"{where} is not a file", hint="somebody else has put something there")
            yield blocks.Payload(descriptor, str(where))
        finally:
            os.close(descriptor)

    @contextmanager
    def _explained(self, uri: str) -> Iterator[None]:
        """What the system says, in our words."""
        try:
            yield
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EISDIR):
                raise BadReference(
                    f"{uri} leads to no file", hint=f"links are not followed below {self._root}"
                ) from error
            if error.errno in _FULL:
                raise StoreUnavailable(
                    f"no space left in {self._root}",
                    hint="free some space there; the result is stored as soon as it fits",
                ) from error
            raise StoreUnavailable(f"{self._root} cannot be used: {error.strerror or error}") from error


def _below(folder: int, name: str, *, make: bool) -> int:
    """The directory of that name in this one, open; made, and its entry synced, when it may be."""
    try:
        return os.open(name, _DIRECTORY, dir_fd=folder)
    except FileNotFoundError:
        if not make:
            raise
    with suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=folder)
    os.fsync(folder)
    return os.open(name, _DIRECTORY, dir_fd=folder)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
