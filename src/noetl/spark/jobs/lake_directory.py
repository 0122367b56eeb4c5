"""A lake in a directory. Files are made in `_staging`, synced to the disk, and renamed.

A staging folder is locked while its process lives, so that only folders of dead processes are
swept.
"""

import asyncio
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from noetl.model.errors import StoreUnavailable
from noetl.spark.jobs.lake import STAGING_FOLDER, Workspace
from noetl.spark.step import folders


class DirectoryLake:
    def __init__(self, root: Path) -> None:
        self._root = root

    @property
    def name(self) -> str:
        return str(self._root)

    def list_files(self, prefix: str) -> list[str]:
        """Leaves out names that begin with a dot: `put_if_absent` has not finished those files."""
        found = (self._root / prefix).rglob("*")
        files = [file for file in found if file.is_file() and not file.name.startswith(".")]
        return sorted(file.relative_to(self._root).as_posix() for file in files)

    def read_file(self, path: str) -> bytes:
        with self.open_file(path) as file:
            return file.read()

    def open_file(self, path: str) -> BinaryIO:
        try:
            return (self._root / path).open("rb")
        except OSError as error:
            raise StoreUnavailable(
                f"{self._root / path} cannot be read: {error.strerror}",
                hint="is the lake where it was? See docs/jobs.md",
            ) from error

    def copy_here(self, path: str, work: Path) -> Path:
        return self._root / path

    def put_if_absent(self, path: str, data: bytes) -> bool:
        final = self._root / path
        final.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=final.parent, prefix=".") as part:
            part.write(data)
            part.flush()
            os.fsync(part.fileno())
            try:
                os.link(part.name, final)
            except FileExistsError:
                return False
        _sync_to_disk(final.parent)
        return True

    def upload(self, file: Path, path: str) -> None:
        _sync_to_disk(file)
        self._rename_durably(file, self._root / path)

    def delete(self, path: str) -> None:
        (self._root / path).unlink(missing_ok=True)

    @contextmanager
    def open_workspace(self, manifest: int = 0) -> Iterator[Workspace]:
        """After a failure the folder stays, because a manifest may name it already."""
        (self._root / STAGING_FOLDER).mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(dir=self._root / STAGING_FOLDER, prefix=""))
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            yield Workspace(folder.name, folder)
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(descriptor)

    def stage(self, workspace: Workspace, paths: Iterable[str]) -> None:
        """They are in `_staging` already."""
        for path in paths:
            _sync_to_disk(workspace.folder / path)

    def publish(self, staging: str, path: str, final: str) -> None:
        if not (self._root / final).exists():
            self._rename_durably(self._root / STAGING_FOLDER / staging / path, self._root / final)

    def sweep_staging(self, last: int) -> None:
        folders.sweep_folders(self._root / STAGING_FOLDER, age=None)

    async def find_unreadable(self, paths: list[str]) -> list[str]:
        def list_unreadable() -> list[str]:
            return [path for path in paths if not os.access(self._root / path, os.R_OK)]

        return await asyncio.to_thread(list_unreadable)

    def _rename_durably(self, file: Path, final: Path) -> None:
        final.parent.mkdir(parents=True, exist_ok=True)
        try:
            file.rename(final)
        except FileNotFoundError:
            if not final.exists():
                raise
        _sync_to_disk(final.parent)


def _sync_to_disk(path: Path) -> None:
    """Sync the bytes of a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
