"""A lock file for each server process of a home, by which the next one knows that it is gone.

While a database runs, it knows by itself which servers are connected. After its own restart it does
not, and the leases of its servers count. An embedded database ends with the process that started
it, so a server that is started again would wait for the lease of the process that it replaces.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from uuid import uuid4

from msgspec import Struct

from noetl.leases.postgres import LeasesPostgres
from noetl.runtime.lock_files import LockFile, list_dead_files, read_boot_id
from noetl.runtime.running_servers import FOLDER, LockedServer, identify_database_setting
from noetl.server.dispatch.shards import ShardKeeper

log = logging.getLogger(__name__)


class ServerPlace(Struct, frozen=True):
    """Where a server answers requests, and the file of its certificate if it has one."""

    address: str
    certificate: Path | None = None


@asynccontextmanager
async def hold_server_lock(
    home: Path, leases: LeasesPostgres, keeper: ShardKeeper, place: ServerPlace | None = None
) -> AsyncIterator[None]:
    """End the leases of dead servers, then hold the lock of this one."""
    database = await end_dead_leases(home, leases)
    with lock_server(home, database, keeper, place):
        yield


async def end_dead_leases(home: Path, leases: LeasesPostgres) -> str:
    """End the leases of dead servers of this home. Returns the id of the database."""
    database = await leases.read_database_id()
    await release_dead_servers(home, leases, database)
    return database


@contextmanager
def lock_server(
    home: Path, database: str, keeper: ShardKeeper, place: ServerPlace | None = None
) -> Iterator[None]:
    """Hold a lock from the moment when the keeper has a lease."""
    certificate = None
    if place is not None and place.certificate is not None:
        certificate = str(place.certificate.expanduser().absolute())
    files: list[LockFile] = []

    def lock_runtime(runtime_id: int) -> None:
        file = LockFile(home / FOLDER, uuid4().hex)
        content = LockedServer(
            database=database,
            runtime_id=runtime_id,
            boot=read_boot_id() or "",
            address=None if place is None else place.address,
            certificate=certificate,
            database_setting=identify_database_setting(),
        )
        try:
            file.acquire(content)
        except OSError as error:  # without a lock, its lease runs out
            log.warning("server not locked", extra={"error": str(error)})
        files.append(file)

    keeper.on_register = lock_runtime
    try:
        yield
    finally:
        for file in files:
            file.remove()
            file.release()


async def release_dead_servers(home: Path, leases: LeasesPostgres, database: str) -> None:
    """End the leases of servers of this home and database whose processes are gone."""
    for file, locked in await asyncio.to_thread(_list_dead_servers, home):
        if locked.database != database:
            continue
        await leases.leave_cluster(locked.runtime_id)
        log.info("server is gone", extra={"runtime_id": locked.runtime_id})
        await asyncio.to_thread(file.unlink, missing_ok=True)


def _list_dead_servers(home: Path) -> list[tuple[Path, LockedServer]]:
    return list(list_dead_files(home / FOLDER, LockedServer))
