"""A lock file for each worker process of a home, by which servers of this machine know that it is gone.

The worker locks its file before it asks for the first command. The kernel keeps the lock while the
process exists, also if it is stopped or hangs, and releases it when the process ends in any way. So
a file that is not locked proves that its worker is gone, and its leases need not run out.

    home/workers/
      a91e04bd.lock    the name of the holder, and the boot of the machine on which it runs

A lock proves nothing on another machine: file systems of a network need not pass it on. So only
files of this boot of this machine are judged. Leases decide about the others.
"""

import asyncio
import fcntl
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from noetl.model.exchange import make_holder_name
from noetl.worker.spool import has_spooled_reports

log = logging.getLogger(__name__)

BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")  # Linux only
LOCK_SUFFIX = ".lock"
DRAFT_SUFFIX = ".draft"  # not locked yet, so nobody judges it
MAX_FOREIGN_AGE_S = 86_400.0  # after that, files of another boot and drafts are removed


class LockedWorker(msgspec.Struct, frozen=True):
    """The content of a lock file."""

    worker: str
    incarnation: str
    boot: str

    @property
    def holder(self) -> str:
        return make_holder_name(self.worker, self.incarnation)


@contextmanager
def lock_worker(home: Path, worker: str, incarnation: str) -> Iterator["WorkerLock"]:
    """Hold the lock of a worker process."""
    lock = WorkerLock(home / "workers", worker, incarnation)
    try:
        lock.acquire()
    except OSError as error:  # without a lock, the loss of this worker is noticed by its leases
        log.warning("worker not locked", extra={"error": str(error)})
    try:
        yield lock
    finally:
        lock.release()


class WorkerLock:
    """The lock file of one worker process."""

    def __init__(self, folder: Path, worker: str, incarnation: str) -> None:
        self._file = folder / f"{incarnation}{LOCK_SUFFIX}"
        self._content = LockedWorker(worker, incarnation, read_boot_id() or "")
        self._descriptor: int | None = None
        self.is_drained = False  # it holds no command any more

    def acquire(self) -> None:
        """Lock the file before it gets its name, so that nobody sees it without a lock."""
        self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = self._file.with_suffix(DRAFT_SUFFIX)
        self._descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(self._descriptor, msgspec.json.encode(self._content))
        draft.rename(self._file)

    def release(self) -> None:
        """Release the lock. The file stays, for servers to find, if the worker may hold commands."""
        if self._descriptor is None:
            return
        if self.is_drained:
            with suppress(OSError):
                self._file.unlink(missing_ok=True)
        os.close(self._descriptor)
        self._descriptor = None


class WorkerLocks:
    """The lock files of a home, as servers read them."""

    def __init__(self, home: Path) -> None:
        self._folder = home / "workers"
        self._spools = home / "spool"
        self._boot = read_boot_id()

    async def find_dead_holders(self) -> list[str]:
        """The holders whose processes are gone for certain. In a thread, because the disk may hang."""
        return await asyncio.to_thread(self._find_dead_holders)

    async def forget(self, holder: str) -> None:
        """Remove the file of a holder that is gone."""
        incarnation = holder.rpartition("/")[2]
        with suppress(OSError):
            file = self._folder / f"{incarnation}{LOCK_SUFFIX}"
            await asyncio.to_thread(file.unlink, missing_ok=True)

    def _find_dead_holders(self) -> list[str]:
        """The holders whose files of this boot are not locked.

        A worker with spooled reports is left out: the next worker of its name delivers them first,
        so that finished commands do not run again.
        """
        dead: list[str] = []
        for file in self._list_files():
            locked = _read_lock_file(file)
            if locked is None or locked.boot != self._boot:
                _remove_if_old(file)
            elif not _is_locked(file) and not has_spooled_reports(self._spools / locked.worker):
                dead.append(locked.holder)
        return dead

    def _list_files(self) -> list[Path]:
        try:
            names = os.listdir(self._folder)
        except OSError:  # no worker of this home has run yet
            return []
        return [self._folder / name for name in sorted(names)]


def read_boot_id() -> str | None:
    """The id of this boot of this machine. None if the system has none."""
    try:
        return BOOT_ID_FILE.read_text().strip()
    except OSError:
        return None


def _read_lock_file(file: Path) -> LockedWorker | None:
    """None for a draft, and for a file that is not ours or that is gone."""
    if file.suffix != LOCK_SUFFIX:
        return None
    try:
        return msgspec.json.decode(file.read_bytes(), type=LockedWorker)
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
