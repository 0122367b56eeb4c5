"""The sums that link the entries of the trail, and the check that finds where a chain is broken.

The sum of an entry covers its tenant, its place, its time, its text and the sum of the entry before it. So
nobody can change, remove or insert an entry without changing every sum after it. The sums have no
secret: a person who may write the tables can make a new chain. A head that was kept elsewhere shows it.
"""

from collections.abc import Iterable
from hashlib import sha256
from typing import Literal

from msgspec import Struct

from noetl.audit.port import AuditHead, ChainedEntry
from noetl.model.ids import Tenant

FIRST_HASH = "0" * 64  # what stands before the first entry

FaultKind = Literal["changed", "removed", "inserted"]


class ChainFault(Struct, frozen=True):
    """The first place at which a chain is broken."""

    seq: int
    kind: FaultKind
    message: str


def sum_entry(tenant: Tenant, seq: int, at: int, before: str, text: str) -> str:
    """The sum of an entry. `before` is the sum of the entry before it."""
    return sha256(f"{tenant}\n{seq}\n{at}\n{before}\n{text}".encode()).hexdigest()


class ChainCheck:
    """Checks a chain page by page. Holds two sums and no entries."""

    def __init__(self, tenant: Tenant, expected: str | None = None) -> None:
        """`expected` is a hash that was the head at some time: the chain must still have it."""
        self._tenant = tenant
        self._expected = expected
        self._older_hash = FIRST_HASH  # of the entry before the last one
        self.hash = FIRST_HASH  # of the last entry
        self.seq = 0  # of the last entry
        self.has_expected = expected is None

    def check_entries(self, entries: Iterable[ChainedEntry]) -> ChainFault | None:
        """The first fault in these entries, which follow those checked before."""
        for entry in entries:
            fault = self._check_entry(entry)
            if fault is not None:
                return fault
            self._older_hash = self.hash
            self.hash = entry.hash
            self.seq = entry.seq
            if entry.hash == self._expected:
                self.has_expected = True
        return None

    def _check_entry(self, entry: ChainedEntry) -> ChainFault | None:
        wanted = self.seq + 1
        if entry.seq > wanted:
            last = entry.seq - 1
            which = f"entry {wanted} is"
            if last > wanted:
                which = f"entries {wanted} to {last} are"
            return ChainFault(wanted, "removed", f"{which} missing: removed from the trail")
        if sum_entry(self._tenant, wanted, entry.at, self.hash, entry.text) == entry.hash:
            return None
        # The entry fits if it is put one place back: the one before it was put in.
        moved = sum_entry(self._tenant, wanted - 1, entry.at, self._older_hash, entry.text)
        if moved == entry.hash:
            return ChainFault(self.seq, "inserted", f"entry {self.seq} was inserted into the trail")
        message = f"entry {wanted} was changed, or another entry was put in its place"
        return ChainFault(wanted, "changed", message)

    def check_end(self, head: AuditHead | None) -> ChainFault | None:
        """The fault at the end of the chain, when all entries were checked."""
        head_seq = 0 if head is None else head.seq
        if head_seq > self.seq:
            message = f"entries {self.seq + 1} to {head_seq} are missing at the end: removed from the trail"
            return ChainFault(self.seq + 1, "removed", message)
        if head_seq < self.seq:
            message = f"entry {head_seq + 1} stands after the head of the trail: inserted"
            return ChainFault(head_seq + 1, "inserted", message)
        if head is not None and head.hash != self.hash:
            message = f"the head of the trail is not the hash of entry {self.seq}: it was changed"
            return ChainFault(self.seq, "changed", message)
        if not self.has_expected:
            message = (
                f"no entry has the hash {self._expected}: entries were removed at the end, or the trail was "
                "written again"
            )
            return ChainFault(self.seq + 1, "removed", message)
        return None
