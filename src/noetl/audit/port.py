"""What the audit trail holds: one entry for each change, and for refused calls.

An entry never holds a secret: it names tokens by their ids and credentials by their names.
"""

from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec
from msgspec import Struct

from noetl.model.ids import Micros, Tenant

# allowed: written before the change is made. failed: the change was allowed and then failed.
# refused: the caller was not known, or may not do this.
AuditOutcome = Literal["allowed", "failed", "refused"]
AuditScalar = str | int | bool | None
MAX_CHAIN_ENTRIES = 1_000  # in one page of the chain


class AuditEntry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who did what. `object` names what was changed, `detail` says more in scalars."""

    operation: str
    object: str | None = None
    outcome: AuditOutcome = "allowed"
    by: str | None = None
    token_id: str | None = None
    address: str | None = None
    request_id: str | None = None
    code: str | None = None  # of the error
    count: int = 1  # calls of the same kind that this entry stands for
    detail: dict[str, AuditScalar] = {}


class NewAuditEntry(Struct, frozen=True):
    """An entry to append, in the form in which it is stored and summed."""

    tenant: Tenant
    text: str


class ChainedEntry(Struct, frozen=True):
    """An entry as it is stored: its place in the chain of its tenant, and its sum in hexadecimal."""

    seq: int
    at: Micros
    text: str
    hash: str


class AuditHead(Struct, frozen=True):
    """The last entry of a chain, as the store remembers it beside the entries."""

    seq: int
    hash: str


class AuditPage(Struct, frozen=True):
    """Entries in the order of the chain, and the head at the moment when they were read."""

    entries: list[ChainedEntry]
    head: AuditHead | None


class AuditFilter(Struct, frozen=True):
    """Which entries to list. None: all."""

    operation: str | None = None  # or the part of it before the dot
    by: str | None = None
    outcome: AuditOutcome | None = None


class AuditLog(Protocol):
    """The chains of all tenants. Entries are appended, and never changed or deleted."""

    async def append_entries(self, entries: Sequence[NewAuditEntry]) -> None:
        """Append entries in this order, each to the chain of its tenant, in one transaction."""
        ...

    async def read_chain(self, tenant: Tenant, after: int, limit: int) -> AuditPage:
        """Entries after this seq, oldest first, and the head: both of the same moment."""
        ...

    async def list_entries(
        self, tenant: Tenant, wanted: AuditFilter, before: int | None, limit: int
    ) -> list[ChainedEntry]:
        """Entries before this seq, newest first."""
        ...


def encode_entry(entry: AuditEntry) -> str:
    """The text that is stored and summed: JSON on one line, its fields in a fixed order."""
    return msgspec.json.encode(entry).decode()


def decode_entry(text: str) -> AuditEntry:
    return _decoder.decode(text)


_decoder = msgspec.json.Decoder(AuditEntry)
