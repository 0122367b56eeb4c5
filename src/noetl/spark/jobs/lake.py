"""The lake: a folder of Parquet files that only whole files appear in.

    events/day=2026-01-31/0000000001.parquet      exported, for others to read
    events/_manifests/0000000001.json             which files an export made, and how far it came
    cold/<first>-<last>-<sum>.parquet             events that are nowhere else (`noetl.cold_file` names them)
    _staging/<name>/…                             on their way; what a crash leaves there is swept
    _owner                                        the database it belongs to: what that one does not know is swept

A file is written in staging, brought to the disk, and renamed. What a manifest names and is still in staging is published by
whoever comes next.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

from noetl.model.errors import Conflict
from noetl.spark import folders

STAGING = "_staging"
_BUFFER = 1 << 20


def claim(lake: Path, owner: str) -> None:
    """Conflict when it belongs to another database."""
    file = lake / "_owner"
    if not commit(owner.encode(), file) and (found := file.read_text()) != owner:
        raise Conflict(
            f"the lake {lake} belongs to another database ({found}, not {owner})",
            hint=f"give every database a lake of its own; after a restore from a dump, remove {file}",
        )


@contextmanager
def staging(lake: Path) -> Iterator[Path]:
    """A folder of one's own; locked, so that nobody sweeps it while this process lives. After a failure it stays: a manifest
    may name it already."""
    (lake / STAGING).mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=lake / STAGING, prefix=""))
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield folder
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(descriptor)


def sweep(lake: Path) -> int:
    """Staging folders that nobody holds; how many. Whatever a manifest names is published before."""
    return folders.sweep(lake / STAGING, age=None)


def publish(staged: Path, final: Path) -> None:
    """Under its name, for good. Whoever comes second finds it done."""
    final.parent.mkdir(parents=True, exist_ok=True)
    try:
        staged.rename(final)
    except FileNotFoundError:
        if not final.exists():
            raise
    sync(final.parent)


def commit(text: bytes, final: Path) -> bool:
    """Write a small file whole, unless one of that name is there: False."""
    final.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=final.parent, prefix=".") as part:
        part.write(text)
        part.flush()
        os.fsync(part.fileno())
        try:
            os.link(part.name, final)
        except FileExistsError:
            return False
    sync(final.parent)
    return True


def sync(path: Path) -> None:
    """To the disk: a file's bytes, or a folder's names."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256_of(path: Path) -> str:
    found = sha256()
    with path.open("rb") as file:
        while data := file.read(_BUFFER):
            found.update(data)
    return found.hexdigest()
