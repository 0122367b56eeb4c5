"""The lake: Parquet files of exported and compacted events, in a directory or in an object store.

    events/day=2026-01-31/0000000001.parquet   exported events, for other programs
    events/_manifests/0000000001.json          the files of an export, and its last events
    cold/<first>-<last>-<sum>.parquet          events that are nowhere else (`noetl.cold_file`)
    _staging/<name>/…                          files of an export that has no manifest yet
    _owner                                     the database of this lake; unknown files are swept

Only complete files appear under `events/day=…` and `cold`. An export stages its files, commits by
writing its manifest if no manifest has that number, and then publishes the files. The next job
publishes what a crash has left in staging. Files in `cold` count once the database records them.
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO, Protocol

from msgspec import Struct

from noetl.model.errors import Conflict

STAGING_FOLDER = "_staging"
OWNER_FILE = "_owner"
BUFFER_BYTES = 1 << 20


class Workspace(Struct, frozen=True):
    """A folder of this machine in which one job makes its files. `name` is its name below
    `_staging` in the lake."""

    name: str
    folder: Path


class LakeStore(Protocol):
    """The files of one lake. Paths are relative to it, with `/` between their parts."""

    @property
    def name(self) -> str:
        """The directory or URL, for messages."""
        ...

    def list_files(self, prefix: str) -> list[str]:
        """Paths of the files below a folder, sorted. A folder ends with `/`."""
        ...

    def read_file(self, path: str) -> bytes: ...

    def open_file(self, path: str) -> BinaryIO:
        """Open a file for reads at any position. StoreUnavailable when it cannot be read."""
        ...

    def copy_here(self, path: str, work: Path) -> Path:
        """A local file with the same bytes: the file itself if the lake is a directory, else a copy
        in `work`."""
        ...

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """Write a small file atomically. False if another writer has already written the path."""
        ...

    def upload(self, file: Path, path: str) -> None:
        """Write a file atomically and durably, and replace an existing one. The local file may be
        gone afterwards."""
        ...

    def delete(self, path: str) -> None:
        """Delete a file, if it exists."""
        ...

    def open_workspace(self, manifest: int = 0) -> AbstractContextManager[Workspace]:
        """A folder to make files in. `manifest` is the number that the job is about to commit."""
        ...

    def stage(self, workspace: Workspace, paths: Iterable[str]) -> None:
        """Make files of the workspace durable below `_staging`, so that any later process can
        publish them."""
        ...

    def publish(self, staging: str, path: str, final: str) -> None:
        """Give a staged file its final path. Does nothing if another process has published it."""
        ...

    def sweep_staging(self, last: int) -> None:
        """Delete what dead jobs have staged. All manifests up to number `last` are published."""
        ...

    async def find_unreadable(self, paths: list[str]) -> list[str]:
        """The paths that this process cannot read. StoreUnavailable if the lake is not reachable."""
        ...


def claim_lake(lake: LakeStore, owner: str) -> None:
    """Record the database as the owner of the lake. Conflict if another database owns it."""
    if lake.put_if_absent(OWNER_FILE, owner.encode()):
        return
    found = lake.read_file(OWNER_FILE).decode()
    if found != owner:
        raise Conflict(
            f"the lake {lake.name} belongs to another database ({found}, not {owner})",
            hint=f"give every database a lake of its own; after a restore from a dump, remove {OWNER_FILE} in {lake.name}",
        )


def hash_stream(file: BinaryIO) -> str:
    digest = sha256()
    while data := file.read(BUFFER_BYTES):
        digest.update(data)
    return digest.hexdigest()


def hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hash_stream(file)
