"""The memory twin of the queue. Every method is one critical section."""

import heapq
from collections import Counter
from collections.abc import Mapping

from noetl.log.queue.port import NO_PROGRESS, CommandStatus, QueueDepth, QueueEntry, Renewal
from noetl.log.tables import FINISHED, CommandRow, MemoryDatabase
from noetl.model import codec
from noetl.model.commands import Command
from noetl.model.exchange import LeaseKey
from noetl.model.ids import CommandId, ExecutionId, Micros, Tenant


class QueueMemory:
    def __init__(self, database: MemoryDatabase) -> None:
        self._db = database

    async def claim_commands(
        self,
        tenant: Tenant,
        worker: str,
        pools: tuple[str, ...],
        limit: int,
        lease: Micros,
    ) -> list[Command]:
        rows: list[CommandRow] = []
        leased = self._list_leased_rows(worker, tenant)
        holds_suspect = any(row.is_suspect for row in leased)
        if limit > 0 and not holds_suspect:
            suspect = self._db.pop_claimable(tenant, pools, suspect=True)
            if suspect is not None:
                rows.append(suspect)
        while len(rows) < limit:
            row = self._db.pop_claimable(tenant, pools, suspect=False)
            if row is None:
                break
            rows.append(row)
        rows.sort(key=lambda row: (-row.priority, row.number))
        return [self._db.lease_command(row, worker, lease) for row in rows]

    async def renew_leases(
        self,
        tenant: Tenant,
        worker: str,
        held: tuple[LeaseKey, ...],
        lease: Micros,
        progress: Mapping[LeaseKey, str] = NO_PROGRESS,
    ) -> Renewal:
        """A command that is to be stopped keeps its lease while its worker stops it."""
        stop: list[LeaseKey] = []
        lost: list[LeaseKey] = []
        for key in held:
            row = self._db.leased.get(key.command_id)
            if row is None or (row.worker, row.tenant) != (worker, tenant):
                lost.append(key)
                continue
            if row.attempt != key.attempt:
                lost.append(key)
                continue
            row.lease_until = self._db.clock.now() + lease
            row.progress = progress.get(key)
            if row.cancel:
                stop.append(key)
        return Renewal(tuple(stop), tuple(lost))

    async def list_leased_commands(self, tenant: Tenant, worker: str) -> list[Command]:
        return [codec.decode_command(row.data) for row in self._list_leased_rows(worker, tenant)]

    async def expire_leases(self, limit: int) -> int:
        now = self._db.clock.now()
        leased = self._db.leased.values()
        over = [row for row in leased if row.lease_until <= now][:limit]
        for row in over:
            self._db.lose(row)
        self._db.sweep()
        return len(over)

    async def end_leases(self, worker: str, tenant: Tenant | None = None) -> int:
        gone = self._list_leased_rows(worker, tenant)
        for row in gone:
            self._db.lose(row)
        return len(gone)

    def _list_leased_rows(self, worker: str, tenant: Tenant | None) -> list[CommandRow]:
        return [
            row
            for row in self._db.leased.values()
            if row.worker == worker and tenant in (None, row.tenant)
        ]

    async def find_status(self, command_id: CommandId) -> CommandStatus | None:
        row = self._db.commands.get(command_id)
        return None if row is None else CommandStatus(row.status, row.attempt)

    async def list_commands(
        self,
        tenant: Tenant,
        *,
        status: str | None = None,
        pool: str | None = None,
        execution_id: ExecutionId | None = None,
        after: int = 0,
        limit: int = 100,
    ) -> list[QueueEntry]:
        rows = (
            row
            for row in self._db.commands.values()
            if row.number > after
            and status in (None, row.status)
            and pool in (None, row.pool)
            and execution_id in (None, row.execution_id)
        )
        of_tenant = (row for row in rows if row.tenant == tenant)
        first = heapq.nsmallest(limit, of_tenant, key=lambda row: row.number)
        return [_make_queue_entry(row) for row in first]

    async def find_commands(self, command_ids: list[CommandId]) -> list[QueueEntry]:
        found = [self._db.commands[id_] for id_ in set(command_ids) if id_ in self._db.commands]
        return [_make_queue_entry(row) for row in sorted(found, key=lambda row: row.number)]

    async def count_commands(self, tenant: Tenant | None = None) -> list[QueueDepth]:
        rows = [row for row in self._db.commands.values() if row.status not in FINISHED]
        if tenant is not None:
            rows = [row for row in rows if row.tenant == tenant]
        counts = Counter((row.pool, row.status) for row in rows)
        return [QueueDepth(pool, status, count) for (pool, status), count in sorted(counts.items())]


def _make_queue_entry(row: CommandRow) -> QueueEntry:
    command = codec.decode_command(row.data)
    return QueueEntry(
        number=row.number,
        command_id=row.command_id,
        execution_id=row.execution_id,
        step=command.step,
        kind=command.kind,
        pool=row.pool,
        status=row.status,
        attempt=row.attempt,
        priority=row.priority,
        available_at=row.available_at or None,
        worker=row.worker,
        lease_until=row.lease_until or None,
        stopping=row.cancel,
        progress=row.progress if row.status == "leased" else None,
    )
