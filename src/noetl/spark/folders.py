"""Folders that Spark reads and writes, one for the files made for a command and one for every session. Nobody refers to one that
was not reported; what a worker that was killed leaves behind is swept by whoever comes later: the folder of a living command is
locked.
"""

import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

from noetl.results.staging import FORGOTTEN


@contextmanager
def held(folder: Path) -> Iterator[None]:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(OSError):  # a file system without locks: then nothing there is swept either
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)
        with suppress(OSError):  # nothing was written
            folder.rmdir()


@contextmanager
def passing(parent: Path) -> Iterator[Path]:
    """A new one, gone with the block."""
    folder = parent / uuid4().hex
    with held(folder):
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def sweep(parent: Path, age: float | None = FORGOTTEN) -> int:
    """Folders that nobody holds, and that are so old; how many."""
    swept = 0
    for folder in parent.iterdir() if parent.is_dir() else ():
        with suppress(OSError):
            if age is not None and time.time() - folder.stat().st_mtime < age:
                continue
            descriptor = os.open(
                folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            )
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
                swept += 1
            finally:
                os.close(descriptor)
    return swept
