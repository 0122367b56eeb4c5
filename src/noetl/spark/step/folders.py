"""Folders that Spark reads and writes: one for the input files of a command, one for each session.

A command holds a lock on its folders. A worker that is killed leaves folders behind; nothing refers
to them, because they were not reported, and a later command sweeps those without a lock.
"""

import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

from noetl.private_folders import make_private_folder
from noetl.results.staging import MIN_FORGOTTEN_AGE_S


@contextmanager
def hold_folder(folder: Path) -> Iterator[None]:
    """Make the folder and hold its lock. An empty folder is removed at the end."""
    make_private_folder(folder)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(OSError):  # on a file system without locks nothing is swept either
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)
        with suppress(OSError):  # fails if files were written
            folder.rmdir()


@contextmanager
def make_temporary_folder(parent: Path) -> Iterator[Path]:
    """A new folder that is removed at the end of the block."""
    folder = parent / uuid4().hex
    with hold_folder(folder):
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def sweep_folders(parent: Path, age: float | None = MIN_FORGOTTEN_AGE_S) -> int:
    """Delete the folders below `parent` that no process holds. Returns how many.

    `age` in seconds spares younger folders; None spares none.
    """
    if not parent.is_dir():
        return 0
    swept = 0
    for folder in parent.iterdir():
        with suppress(OSError):
            if age is not None and time.time() - folder.stat().st_mtime < age:
                continue
            _delete_unheld(folder)
            swept += 1
    return swept


def _delete_unheld(folder: Path) -> None:
    """Delete a folder. OSError if a process holds it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder)
    finally:
        os.close(descriptor)
