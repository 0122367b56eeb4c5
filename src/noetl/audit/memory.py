"""The audit trail in memory."""

from collections import defaultdict
from collections.abc import Sequence

from noetl.audit.chain import FIRST_HASH, sum_entry
from noetl.audit.port import (
    AuditFilter,
    AuditHead,
    AuditPage,
    ChainedEntry,
    NewAuditEntry,
    decode_entry,
)
from noetl.model.clock import Clock
from noetl.model.ids import Tenant


class AuditMemory:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._chains: dict[Tenant, list[ChainedEntry]] = defaultdict(list)

    async def append_entries(self, entries: Sequence[NewAuditEntry]) -> None:
        at = self._clock.now()
        for entry in entries:
            chain = self._chains[entry.tenant]
            seq = len(chain) + 1
            before = chain[-1].hash if chain else FIRST_HASH
            total = sum_entry(entry.tenant, seq, at, before, entry.text)
            chain.append(ChainedEntry(seq, at, entry.text, total))

    async def read_chain(self, tenant: Tenant, after: int, limit: int) -> AuditPage:
        chain = self._chains[tenant]
        head = AuditHead(chain[-1].seq, chain[-1].hash) if chain else None
        return AuditPage(chain[after : after + limit], head)

    async def list_entries(
        self, tenant: Tenant, wanted: AuditFilter, before: int | None, limit: int
    ) -> list[ChainedEntry]:
        chain = self._chains[tenant]
        older = chain if before is None else chain[: max(before - 1, 0)]
        found = [entry for entry in reversed(older) if _is_wanted(entry, wanted)]
        return found[:limit]


def _is_wanted(entry: ChainedEntry, wanted: AuditFilter) -> bool:
    content = decode_entry(entry.text)
    groups = (content.operation, content.operation.partition(".")[0])
    return (
        wanted.operation in (None, *groups)
        and wanted.by in (None, content.by)
        and wanted.outcome in (None, content.outcome)
    )
