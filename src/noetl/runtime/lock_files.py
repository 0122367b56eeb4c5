"""Lock files by which processes of one machine know which of them are gone.

A process locks its file before others can see it. The kernel keeps the lock while the process
exists, also if it is stopped or hangs, and releases it when the process ends in any way. So a file
that is not locked proves that its process is gone.

A lock proves nothing on another machine: file systems of a network need not pass it on. So only
files of this boot of this machine are judged.
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from noetl.private_folders import make_private_folder

BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")  # Linux only
LOCK_SUFFIX = ".lock"
DRAFT_SUFFIX = ".draft"  # not locked yet, so nobody judges it
MAX_FOREIGN_AGE_S = 86_400.0  # after that, files that cannot be judged are removed


class LockContent(msgspec.Struct, frozen=True, kw_only=True):
    """What a lock file says. `boot` is the boot of the machine on which its process runs."""

    boot: str


Content = TypeVar("Content", bound=LockContent)


class LockFile:
    """The lock file of one process."""

    def __init__(self, folder: Path, name: str) -> None:
        self.path = folder / f"{name}{LOCK_SUFFIX}"
        self._descriptor: int | None = None

    def acquire(self, content: LockContent) -> None:
        """Lock the file before it gets its name, so that nobody sees it without a lock."""
        make_private_folder(self.path.parent)
        draft = self.path.with_suffix(DRAFT_SUFFIX)
        self._descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(self._descriptor, msgspec.json.encode(content))
        draft.rename(self.path)

    def remove(self) -> None:
        """Remove the file: others need not learn that this process is gone."""
        with suppress(OSError):
            self.path.unlink(missing_ok=True)

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def read_boot_id() -> str | None:
    """The id of this boot of this machine. None if the system has none."""
    try:
        return BOOT_ID_FILE.read_text().strip()
    except OSError:
        return None


def list_dead_files(folder: Path, kind: type[Content]) -> Iterator[tuple[Path, Content]]:
    """The files of this boot whose processes are gone for certain."""
    boot = read_boot_id()
    try:
        names = os.listdir(folder)
    except OSError:  # no process has made the folder yet
        return
    for name in sorted(names):
        file = folder / name
        content = _read_lock_file(file, kind)
        if content is None or content.boot != boot:
            _remove_if_old(file)
        elif not _is_locked(file):
            yield file, content


def list_live_files(folder: Path, kind: type[Content]) -> Iterator[tuple[Path, Content]]:
    """The files of this boot with processes that exist."""
    boot = read_boot_id()
    try:
        names = os.listdir(folder)
    except OSError:  # no process has made the folder yet
        return
    for name in names:
        file = folder / name
        content = _read_lock_file(file, kind)
        if content is not None and content.boot == (boot or "") and _is_locked(file):
            yield file, content


def _read_lock_file(file: Path, kind: type[Content]) -> Content | None:
    """None for a draft, and for a file that is not ours or that is gone."""
    if file.suffix != LOCK_SUFFIX:
        return None
    try:
        return msgspec.json.decode(file.read_bytes(), type=kind)
    except (OSError, msgspec.MsgspecError):
        return None


def _is_locked(file: Path) -> bool:
    """Whether its process holds the lock. True also if that cannot be found out."""
    try:
        descriptor = os.open(file, os.O_RDONLY)
    except OSError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    else:
        return False
    finally:
        os.close(descriptor)


def _remove_if_old(file: Path) -> None:
    with suppress(OSError):
        if time.time() - file.stat().st_mtime > MAX_FOREIGN_AGE_S:
            file.unlink(missing_ok=True)
