"""A tier of files below one directory, which machines may share.

`_folder` alone maps an address to its place. It checks the parts of the address again and opens the
directories one below the other without following links, so nothing outside the root is reached. A
file appears under its name whole or not at all: it is written beside, synced and renamed, and its
directory is synced. The names of files that a crash leaves behind begin with a dot; no part of an
address does.
"""

import asyncio
import errno
import os
import stat
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from itertools import count, islice
from pathlib import Path
from typing import Final

from noetl.model.errors import BadReference, Conflict, NotFound
from noetl.model.ids import ExecutionId
from noetl.model.reference import (
    Address,
    Home,
    Reference,
    check_execution_id,
    make_address,
    parse_uri,
)
from noetl.private_folders import make_private_folder
from noetl.results.port import ByteSource, StoredObject
from noetl.results.sources import FileSource
from noetl.results.staging import StagedPayload, Staging, make_disk_error, require_folder
from noetl.results.tenancy import StoreTenant

_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_PART_BYTES = 1 << 20
_LIST_PAGE_FILES = 1000  # files listed in one call of a thread
_sync: Final = getattr(os, "fdatasync", os.fsync)  # macOS has no fdatasync


class FileTier:
    home: Final[Home] = "disk"

    def __init__(
        self,
        root: Path,
        *,
        ours: bool = True,
        once: Path | None = None,
        tenant: StoreTenant | None = None,
    ) -> None:
        """Open a tier below `root`.

        `ours`: this process may create the root. A root that is not ours may be a disk that is not
        mounted now. `once`: see Staging.
        """
        self._root = root
        self._ours = ours
        self._once = once
        self._tenant = tenant or StoreTenant()
        self._numbers = count()

    @property
    def staging(self) -> Staging:
        """Staging on the same disk, so that a payload is written once and renamed."""
        within = None if self._ours else self._root
        return Staging(self._root / ".staging", within=within, once=self._once)

    async def write(self, address: Address, staged: StagedPayload) -> None:
        await asyncio.to_thread(self._write_file, address, staged)

    async def open(self, reference: Reference, size: int | None = None) -> ByteSource:
        return await asyncio.to_thread(self._open_reference, reference)

    async def delete(self, address: Address) -> None:
        await asyncio.to_thread(self._delete_file, address)

    async def list_objects(
        self, execution_id: ExecutionId | None = None
    ) -> AsyncIterator[StoredObject]:
        objects = self._iterate_objects(execution_id)

        def next_page() -> list[StoredObject]:
            return list(islice(objects, _LIST_PAGE_FILES))

        while page := await asyncio.to_thread(next_page):
            for stored in page:
                yield stored

    # ---- writing -------------------------------------------------------------------------------------------------------

    def _write_file(self, where: Address, staged: StagedPayload) -> None:
        with self._translate_errors(str(where)), self._open_folder(where, make=True) as folder:
            if not self._is_stored(folder, where, staged):
                self._move_into_place(folder, where.key, staged)
            os.fsync(folder)

    def _is_stored(self, folder: int, where: Address, staged: StagedPayload) -> bool:
        try:
            source = self._open_in_folder(folder, where)
        except FileNotFoundError:
            return False
        try:
            same = source.size == staged.size and _hash_source(source) == staged.sha256
        finally:
            source.close()
        if not same:
            raise Conflict(
                f"{where} holds another payload", hint="a result is written once; use another key"
            )
        return True

    def _move_into_place(self, folder: int, key: str, staged: StagedPayload) -> None:
        """Put the staged file under its name, synced: by a rename if it is on this disk, else by a
        copy.
        """
        if staged.path is not None:
            _sync(staged.fileno())
            try:
                return os.rename(staged.path, key, dst_dir_fd=folder)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
        part, descriptor = self._create_part(folder, key)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.writelines(staged.read_parts())
                file.flush()
                _sync(file.fileno())
            os.rename(part, key, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with suppress(OSError):
                os.unlink(part, dir_fd=folder)
            raise

    def _create_part(self, folder: int, key: str) -> tuple[str, int]:
        """Create a new temporary file. The loop skips numbers that another process with this id has
        used.
        """
        while True:
            part = f".{key}.{os.getpid()}-{next(self._numbers)}"
            with suppress(FileExistsError):
                return part, os.open(part, _CREATE_FLAGS, 0o600, dir_fd=folder)

    def _delete_file(self, where: Address) -> None:
        with (
            self._translate_errors(str(where)),
            suppress(FileNotFoundError),
            self._open_folder(where, make=False) as folder,
        ):
            os.unlink(where.key, dir_fd=folder)

    # ---- reading -------------------------------------------------------------------------------------------------------

    def _open_reference(self, reference: Reference) -> FileSource:
        where = parse_uri(reference.uri)
        with self._translate_errors(reference.uri):
            try:
                with self._open_folder(where, make=False) as folder:
                    return self._open_in_folder(folder, where)
            except FileNotFoundError as error:
                raise NotFound(
                    f"{where} is gone", hint="its execution may be past retention"
                ) from error

    def _open_in_folder(self, folder: int, where: Address) -> FileSource:
        descriptor = os.open(where.key, _READ_FLAGS, dir_fd=folder)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise BadReference(
                f"{where} is not a file", hint="somebody else has put something there"
            )
        place = self._top / where.execution_id / where.kind / where.step / where.key
        return FileSource(descriptor, place)

    def _iterate_objects(self, execution_id: ExecutionId | None) -> Iterator[StoredObject]:
        """List the stored objects. Files without an address (parts, links, foreign files) are left
        out.
        """
        top, depth = self._top, 4
        if execution_id is not None:
            top, depth = self._top / check_execution_id(execution_id), 3
        if not self._ours:
            require_folder(self._root)
        with self._translate_errors(str(self._root)):
            for path in _iterate_files(top, depth):
                with suppress(BadReference, FileNotFoundError):
                    where = make_address(*path.relative_to(self._top).parts)
                    status = path.stat()
                    yield StoredObject(where, status.st_size, status.st_mtime)

    @property
    def _top(self) -> Path:
        """The folder of the tenant."""
        return self._root.joinpath(*self._tenant.folders)

    # ---- places --------------------------------------------------------------------------------------------------------

    @contextmanager
    def _open_folder(self, where: Address, *, make: bool) -> Iterator[int]:
        """Open the directory that holds the address's file. This is the only way from an address to
        a place.
        """
        where = make_address(
            where.execution_id, where.kind, where.step, where.key
        )  # check it again
        if make and self._ours and not self._root.is_dir():
            make_private_folder(self._root)
            _sync_directory(self._root.parent)
        if not self._ours:
            require_folder(self._root)
        # the root itself may be a link, so O_NOFOLLOW is not set
        folder = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for name in (*self._tenant.folders, where.execution_id, where.kind, where.step):
                inner = _open_below(folder, name, make=make)
                os.close(folder)
                folder = inner
            yield folder
        finally:
            os.close(folder)

    @contextmanager
    def _translate_errors(self, uri: str) -> Iterator[None]:
        """Translate errors of the operating system into NoETL's errors."""
        try:
            yield
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EISDIR):
                raise BadReference(
                    f"{uri} leads to no file", hint=f"links are not followed below {self._root}"
                ) from error
            raise make_disk_error(self._root, error) from error


def _hash_source(source: ByteSource) -> str:
    sha = sha256()
    for offset in range(0, source.size, _PART_BYTES):
        sha.update(source.read(offset, _PART_BYTES))
    return sha.hexdigest()


def _iterate_files(folder: Path, depth: int) -> Iterator[Path]:
    """Yield the regular files exactly `depth` levels below. Links and names that begin with a dot
    are skipped.
    """
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if depth > 1 and entry.is_dir(follow_symlinks=False):
                yield from _iterate_files(Path(entry.path), depth - 1)
            elif depth == 1 and entry.is_file(follow_symlinks=False):
                yield Path(entry.path)


def _open_below(folder: int, name: str, *, make: bool) -> int:
    """Open the directory `name` inside an open directory. With `make`, create it and sync its
    entry.
    """
    try:
        return os.open(name, _DIRECTORY_FLAGS, dir_fd=folder)
    except FileNotFoundError:
        if not make:
            raise
    with suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=folder)
    os.fsync(folder)
    return os.open(name, _DIRECTORY_FLAGS, dir_fd=folder)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
