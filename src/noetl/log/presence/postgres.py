"""The presence of workers in Postgres."""

from pathlib import Path

from noetl.log.presence.port import WorkerPresence
from noetl.model.ids import Micros, Tenant
from noetl.postgres.pool import Database
from noetl.postgres.queries import load_queries

_SQL = load_queries(Path(__file__).with_name("presence.sql"))


class PresencePostgres:
    def __init__(self, database: Database) -> None:
        self._main = database.main
        self._background = database.background

    async def note_worker(self, worker: WorkerPresence, lease: Micros) -> None:
        await self._background.write(
            _SQL["note_worker"],
            worker=worker.worker,
            tenant=worker.tenant,
            server=worker.server,
            pools=list(worker.pools),
            free=worker.free,
            held=worker.held,
            lease=lease,
        )

    async def list_workers(self, tenant: Tenant) -> list[WorkerPresence]:
        rows = await self._main.read(_SQL["list_workers"], tenant=tenant)
        return [WorkerPresence(**{**row, "pools": tuple(row["pools"])}) for row in rows]
