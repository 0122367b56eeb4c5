"""Collects refused calls and writes them into the audit trail: a bounded number of entries, however
many calls there are.

Calls of one caller from one address that were refused for the same reason share an entry. Of those
that do not fit, the number is written.
"""

from collections import Counter

from msgspec import Struct

from noetl.audit.port import AuditEntry, AuditLog, NewAuditEntry, encode_entry
from noetl.model.ids import DEFAULT_TENANT, Tenant
from noetl.server.duties.loop import Counts

MAX_ENTRIES_PER_RUN = 20
REFUSED_OPERATION = "call.refused"
OTHER_CALLERS = "other callers"


class RefusedCaller(Struct, frozen=True):
    """A caller with refused calls, and the reason. Without a known token, only the id in its text."""

    tenant: Tenant
    by: str | None
    token_id: str | None
    address: str | None
    code: str


class RefusedCalls:
    """The duty that writes what was refused since its last run."""

    name = "refused_calls"

    def __init__(self, log: AuditLog) -> None:
        self._log = log
        self._counts: Counter[RefusedCaller] = Counter()
        self._first_calls: dict[RefusedCaller, tuple[str, str]] = {}  # route and request id
        self._left_off = 0

    def note(self, caller: RefusedCaller, route: str, request_id: str) -> None:
        if caller not in self._counts and len(self._counts) >= MAX_ENTRIES_PER_RUN:
            self._left_off += 1
            return
        self._counts[caller] += 1
        self._first_calls.setdefault(caller, (route, request_id))

    async def run_once(self) -> Counts:
        """Write what was noted. If that fails, it stays noted for the next run."""
        if not self._counts:
            return Counts()
        counts = self._counts
        first_calls = self._first_calls
        left_off = self._left_off
        rows: list[NewAuditEntry] = []
        for caller, count in counts.items():
            route, request_id = first_calls[caller]
            rows.append(_make_row(caller, count, route, request_id))
        if left_off:
            more = AuditEntry(
                operation=REFUSED_OPERATION, object=OTHER_CALLERS, outcome="refused", count=left_off
            )
            rows.append(NewAuditEntry(DEFAULT_TENANT, encode_entry(more)))
        self._counts = Counter()
        self._first_calls = {}
        self._left_off = 0
        try:
            await self._log.append_entries(rows)
        except BaseException:
            self._put_back(counts, first_calls, left_off)
            raise
        return Counts(len(rows))

    def _put_back(
        self,
        counts: Counter[RefusedCaller],
        first_calls: dict[RefusedCaller, tuple[str, str]],
        left_off: int,
    ) -> None:
        """Note again what was not written, with what came since. The bound may be passed once."""
        counts.update(self._counts)
        self._counts = counts
        self._first_calls = {**self._first_calls, **first_calls}
        self._left_off += left_off


def _make_row(caller: RefusedCaller, count: int, route: str, request_id: str) -> NewAuditEntry:
    entry = AuditEntry(
        operation=REFUSED_OPERATION,
        object=route,
        outcome="refused",
        by=caller.by,
        token_id=caller.token_id,
        address=caller.address,
        request_id=request_id,
        code=caller.code,
        count=count,
    )
    return NewAuditEntry(caller.tenant, encode_entry(entry))
