"""The memory twin of the usage. Every method is one critical section."""

import msgspec

from noetl.log.projections.port import Projection
from noetl.log.tables import MemoryDatabase
from noetl.log.tenant_usage.port import NO_BOUND, OPEN_STATUSES, TenantUsage
from noetl.model.ids import ExecutionId, Tenant
from noetl.model.messages import StoredRef
from noetl.model.reference import parse_uri

_row = msgspec.json.Decoder(Projection)
_stored_ref = msgspec.json.Decoder(StoredRef)


class UsageMemory:
    def __init__(self, database: MemoryDatabase) -> None:
        self._db = database

    async def measure_usage(
        self,
        tenant: Tenant,
        started: list[ExecutionId],
        most_running: int = NO_BOUND,
        most_queued: int = NO_BOUND,
        *,
        sums_bytes: bool = True,
    ) -> TenantUsage:
        rows = [_row.decode(data) for data in self._db.projections.values()]
        running = [row for row in rows if row.tenant == tenant and row.status in OPEN_STATUSES]
        queued = [
            row
            for row in self._db.commands.values()
            if row.tenant == tenant
            and row.status == "queued"
            and row.available_at <= self._db.clock.now()
        ]
        unseen = tuple(each for each in started if each not in self._db.projections)
        return TenantUsage(
            min(len(running), most_running) + len(unseen),
            min(len(queued), most_queued),
            self._sum_bytes(tenant),
            unseen,
        )

    def _sum_bytes(self, tenant: Tenant) -> int:
        total = 0
        for ref_id, data in self._db.refs.items():
            reference = _stored_ref.decode(data).reference
            owner = parse_uri(reference.uri).execution_id
            if ref_id not in self._db.expired and self._db.find_tenant(owner) == tenant:
                total += reference.bytes or 0
        return total
