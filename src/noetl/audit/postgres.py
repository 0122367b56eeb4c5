"""The audit trail in Postgres."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from noetl.audit.port import (
    AuditFilter,
    AuditHead,
    AuditPage,
    ChainedEntry,
    NewAuditEntry,
)
from noetl.model.ids import Tenant
from noetl.postgres.pool import CallBatcher, Database
from noetl.postgres.queries import load_queries

_SQL = load_queries(Path(__file__).with_name("audit.sql"))
MAX_BATCH_ENTRIES = 200  # in one statement


class AuditPostgres:
    def __init__(self, database: Database) -> None:
        self._pool = database.main
        self._batcher: CallBatcher[Sequence[NewAuditEntry], None] = CallBatcher(
            self._append_all, MAX_BATCH_ENTRIES
        )

    async def append_entries(self, entries: Sequence[NewAuditEntry]) -> None:
        """Callers that wait while a statement runs share the next one: the chain has one head, which
        transactions lock one after the other."""
        await self._batcher(entries, len(entries))

    async def _append_all(self, waiting: list[Sequence[NewAuditEntry]]) -> list[None]:
        entries = [entry for each in waiting for entry in each]
        await self._pool.write(
            _SQL["append_entries"],
            tenants=[entry.tenant for entry in entries],
            texts=[entry.text for entry in entries],
        )
        return [None] * len(waiting)

    async def read_chain(self, tenant: Tenant, after: int, limit: int) -> AuditPage:
        rows = await self._pool.read(_SQL["read_chain"], tenant=tenant, after=after, limit=limit)
        head = None
        if rows and rows[0]["head_seq"] is not None:
            head = AuditHead(rows[0]["head_seq"], rows[0]["head_hash"])
        entries = [_read_entry(row) for row in rows if row["seq"] is not None]
        return AuditPage(entries, head)

    async def list_entries(
        self, tenant: Tenant, wanted: AuditFilter, before: int | None, limit: int
    ) -> list[ChainedEntry]:
        rows = await self._pool.read(
            _SQL["list_entries"],
            tenant=tenant,
            before=before,
            operation=wanted.operation,
            by=wanted.by,
            outcome=wanted.outcome,
            limit=limit,
        )
        return [_read_entry(row) for row in rows]


def _read_entry(row: Any) -> ChainedEntry:
    return ChainedEntry(row["seq"], row["at"], row["entry"], row["hash"])
