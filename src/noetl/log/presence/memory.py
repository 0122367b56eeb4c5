"""The memory twin of the presence of workers. Every method is one critical section."""

import msgspec

from noetl.log.presence.port import WorkerPresence
from noetl.log.tables import MemoryDatabase, WorkerRow
from noetl.model import codec
from noetl.model.ids import Micros, Tenant

_present = msgspec.json.Decoder(WorkerPresence)


class PresenceMemory:
    def __init__(self, database: MemoryDatabase) -> None:
        self._db = database

    async def note_worker(self, worker: WorkerPresence, lease: Micros) -> None:
        now = self._db.clock.now()
        key = (worker.tenant, worker.worker)
        self._db.workers[key] = WorkerRow(codec.encode(worker), now, now + lease)

    async def list_workers(self, tenant: Tenant) -> list[WorkerPresence]:
        now = self._db.clock.now()
        found: list[WorkerPresence] = []
        for row in self._db.workers.values():
            if row.until <= now:
                continue
            worker = _present.decode(row.data)
            if worker.tenant == tenant:
                found.append(msgspec.structs.replace(worker, age=now - row.seen_at))
        return sorted(found, key=lambda worker: worker.worker)
