"""A lake in an object store. The store has neither rename nor locks. Instead:

- A put shows a whole object or none. A manifest is one conditional put, so two exports cannot
  commit the same number.
- A staged file is published by a copy inside the store, and its staged object is deleted.
- The name of a staging folder begins with the number of the manifest that its export wants to
  commit. Once a manifest of that number exists, no other export can commit it. So its staged files
  can be swept, even if it still runs.
"""

import io
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final
from uuid import uuid4

from obstore import exceptions
from obstore.store import ObjectStore

from noetl.model.errors import InvalidInput, StoreUnavailable
from noetl.results.tiers.objects import MAX_REQUEST_BYTES, describe_store_error, is_refused
from noetl.spark.jobs.lake import STAGING_FOLDER, Workspace

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

MAX_COPY_BYTES: Final = 5_000_000_000  # S3 copies no larger object by one request
READ_BYTES: Final = 1 << 20  # the least bytes of one request
UPLOADS_AT_ONCE: Final = 4


class ObjectLake:
    def __init__(self, connect: Callable[[], ObjectStore], name: str) -> None:
        """`connect` returns the store, rooted at the lake. It is called at first use, so that a
        process that never reads history runs even with wrong settings. `name` is the URL."""
        self._connect = connect
        self._name = name

    @cached_property
    def _store(self) -> ObjectStore:
        return self._connect()

    @property
    def name(self) -> str:
        return self._name

    def list_files(self, prefix: str) -> list[str]:
        paths: list[str] = []
        with self._translate_store_errors(prefix):
            for page in self._store.list(prefix):
                paths += [found["path"] for found in page]
        return sorted(paths)

    def read_file(self, path: str) -> bytes:
        with self._translate_store_errors(path):
            return self._store.get(path).bytes().to_bytes()

    def open_file(self, path: str) -> BinaryIO:
        with self._translate_store_errors(path):
            size = self._store.head(path)["size"]
        return io.BufferedReader(_ObjectFile(self, path, size), READ_BYTES)

    def read_range(self, path: str, start: int, length: int) -> bytes:
        with self._translate_store_errors(path):
            return self._store.get_range(path, start=start, length=length).to_bytes()

    def copy_here(self, path: str, work: Path) -> Path:
        here = work / "lake" / path
        here.parent.mkdir(parents=True, exist_ok=True)
        with self._translate_store_errors(path):
            found = self._store.get(path)
            _require_room(work, found.meta["size"], f"{self._name}/{path}")
            with here.open("wb") as file:
                for part in found.stream(min_chunk_size=MAX_REQUEST_BYTES):
                    file.write(part)
        return here

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """A put that is repeated after a lost answer finds its own object: that is a success."""
        with self._translate_store_errors(path):
            try:
                self._store.put(path, data, mode="create")
            except exceptions.AlreadyExistsError:
                return self._store.get(path).bytes().to_bytes() == data
        return True

    def upload(self, file: Path, path: str) -> None:
        with self._translate_store_errors(path):
            self._store.put(
                path, file, chunk_size=MAX_REQUEST_BYTES, max_concurrency=UPLOADS_AT_ONCE
            )

    def delete(self, path: str) -> None:
        with self._translate_store_errors(path):
            try:
                self._store.delete(path)
            except FileNotFoundError:
                return

    @contextmanager
    def open_workspace(self, manifest: int = 0) -> Iterator[Workspace]:
        with tempfile.TemporaryDirectory(prefix="noetl-lake-") as folder:
            yield Workspace(f"{manifest:010}-{uuid4().hex}", Path(folder))

    def stage(self, workspace: Workspace, paths: Iterable[str]) -> None:
        for path in paths:
            self.upload(workspace.folder / path, f"{STAGING_FOLDER}/{workspace.name}/{path}")

    def publish(self, staging: str, path: str, final: str) -> None:
        staged = f"{STAGING_FOLDER}/{staging}/{path}"
        if self._object_exists(final):
            return
        with self._translate_store_errors(staged):
            try:
                self._copy_object(staged, final)
            except FileNotFoundError:
                if not self._object_exists(final):
                    raise
        self.delete(staged)

    def sweep_staging(self, last: int) -> None:
        for path in self.list_files(f"{STAGING_FOLDER}/"):
            if _parse_manifest_number(path) <= last:
                self.delete(path)

    async def find_unreadable(self, paths: list[str]) -> list[str]:
        """Compares with one listing. It also requests the first path, because a key may list
        objects that it may not read."""
        if not paths:
            return []
        folder = paths[0].rpartition("/")[0] + "/"
        existing: set[str] = set()
        with self._translate_store_errors(folder):
            async for page in self._store.list(folder):
                existing.update(found["path"] for found in page)
            if paths[0] in existing:
                await self._store.head_async(paths[0])
        return [path for path in paths if path not in existing]

    def _object_exists(self, path: str) -> bool:
        with self._translate_store_errors(path):
            try:
                self._store.head(path)
            except FileNotFoundError:
                return False
        return True

    def _copy_object(self, staged: str, final: str) -> None:
        if self._store.head(staged)["size"] <= MAX_COPY_BYTES:
            self._store.copy(staged, final)
            return
        with tempfile.TemporaryDirectory(prefix="noetl-lake-") as folder:
            self.upload(self.copy_here(staged, Path(folder)), final)

    @contextmanager
    def _translate_store_errors(self, path: str) -> Iterator[None]:
        """Translate errors of the library to ours."""
        try:
            yield
        except FileNotFoundError as error:
            if is_refused(error):
                raise self._make_refusal(error) from error
            raise StoreUnavailable(
                f"{self._name}/{path} cannot be read: it is not there",
                hint="is the lake where it was? See docs/jobs.md",
            ) from error
        except (exceptions.BaseError, OSError) as error:
            if is_refused(error):
                raise self._make_refusal(error) from error
            raise StoreUnavailable(
                f"{self._name}/{path} cannot be read or written: {describe_store_error(error)}",
                hint="is the object store running and reachable? See docs/jobs.md",
            ) from error

    def _make_refusal(self, error: Exception) -> InvalidInput:
        return InvalidInput(
            f"{self._name} refuses: {describe_store_error(error)}",
            hint="look at NOETL_STORAGE_* and at the rights of its key; the bucket is not made by NoETL",
        )


class _ObjectFile(io.RawIOBase):
    """An object that is read by ranges."""

    def __init__(self, lake: ObjectLake, path: str, size: int) -> None:
        super().__init__()
        self._lake = lake
        self._path = path
        self._size = size
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {
            io.SEEK_SET: 0,
            io.SEEK_CUR: self._position,
            io.SEEK_END: self._size,
        }[whence]
        self._position = start + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: "WriteableBuffer") -> int:
        view = memoryview(buffer).cast("B")
        length = min(len(view), self._size - self._position)
        if length <= 0:
            return 0
        data = self._lake.read_range(self._path, self._position, length)
        view[:length] = data
        self._position += length
        return length


def _parse_manifest_number(path: str) -> int:
    """The number that a staging folder's name begins with."""
    name = path.split("/")[1]
    return int(name.partition("-")[0])


def _require_room(work: Path, size: int, path: str) -> None:
    free = shutil.disk_usage(work).free
    if size > free:
        raise StoreUnavailable(
            f"{path} has {size} bytes, and the disk of {work} has room for {free}",
            hint="jobs copy compacted history from the object store to a folder of TMPDIR: give them a larger disk",
        )
