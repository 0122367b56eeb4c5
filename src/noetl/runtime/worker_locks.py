"""A lock file for each worker process of a home, by which servers of this machine know that it is gone.

The worker locks its file before it asks for the first command: `home/workers/INCARNATION.lock`. If
its process is gone, its leases need not run out.
"""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from noetl.model.exchange import make_holder_name
from noetl.runtime.lock_files import (
    LOCK_SUFFIX,
    LockContent,
    LockFile,
    list_dead_files,
    read_boot_id,
)
from noetl.worker.spool import has_spooled_reports

log = logging.getLogger(__name__)

FOLDER = "workers"


class LockedWorker(LockContent, frozen=True, kw_only=True):
    worker: str
    incarnation: str

    @property
    def holder(self) -> str:
        return make_holder_name(self.worker, self.incarnation)


class WorkerLock:
    """The lock of one worker process, while it is held."""

    def __init__(self) -> None:
        self.is_drained = False  # the worker has ended and holds no command any more


@contextmanager
def lock_worker(home: Path, worker: str, incarnation: str) -> Iterator[WorkerLock]:
    """Hold the lock of a worker process.

    The file stays, for servers to find, if the worker may hold commands when it ends.
    """
    lock = WorkerLock()
    file = LockFile(home / FOLDER, incarnation)
    boot = read_boot_id() or ""
    try:
        file.acquire(LockedWorker(worker=worker, incarnation=incarnation, boot=boot))
    except OSError as error:  # without a lock, the loss of this worker is noticed by its leases
        log.warning("worker not locked", extra={"error": str(error)})
    try:
        yield lock
    finally:
        if lock.is_drained:
            file.remove()
        file.release()


class WorkerLocks:
    """The locks of the workers of a home, as servers read them."""

    def __init__(self, home: Path) -> None:
        self._folder = home / FOLDER
        self._spools = home / "spool"

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
        """A worker with spooled reports is left out: the next worker of its name delivers them
        first, so that finished commands do not run again."""
        dead: list[str] = []
        for _, locked in list_dead_files(self._folder, LockedWorker):
            if not has_spooled_reports(self._spools / locked.worker):
                dead.append(locked.holder)
        return dead
