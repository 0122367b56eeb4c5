"""Writes what callers change into the audit trail.

An entry is written before its change, so that no change is made that the trail does not have. If the
change then fails, a second entry says so.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from noetl.audit.port import AuditEntry, AuditLog, AuditScalar, NewAuditEntry, encode_entry
from noetl.model.errors import NoetlError, Unavailable
from noetl.model.identity import Identity
from noetl.server.audit.call_origin import current_origin

MAX_TEXT_CHARS = 300


class AuditRecorder:
    """What services write entries with."""

    def __init__(self, log: AuditLog) -> None:
        self._log = log

    @asynccontextmanager
    async def record(
        self, identity: Identity, operation: str, changed: str | None = None, **detail: AuditScalar
    ) -> AsyncIterator[None]:
        """Write that this caller makes this change, then let it be made.

        `changed` names what is changed. Neither it nor the details may hold a secret.
        """
        entry = make_entry(identity, operation, changed, detail=clean_detail(detail))
        await self._log.append_entries([_make_row(identity, entry)])
        try:
            yield
        except NoetlError as error:
            failed = make_entry(identity, operation, changed, outcome="failed", code=error.code)
            with suppress(Unavailable):  # the caller gets the error that matters
                await self._log.append_entries([_make_row(identity, failed)])
            raise


def make_entry(identity: Identity, operation: str, changed: str | None, **more: Any) -> AuditEntry:
    """The entry of this caller, with the origin of the present request."""
    address = None
    request_id = None
    origin = current_origin.get()
    if origin is not None:
        address = origin.address
        request_id = origin.request_id
    changed_name = None
    if changed is not None:
        changed_name = clean_text(changed)
    return AuditEntry(
        operation=operation,
        object=changed_name,
        by=clean_text(identity.name),
        token_id=identity.token_id,
        address=address,
        request_id=request_id,
        **more,
    )


def clean_text(text: str) -> str:
    """The text in one line of bounded length, without characters that act on a terminal."""
    return "".join(each if each.isprintable() else "?" for each in text[:MAX_TEXT_CHARS])


def clean_detail(detail: dict[str, AuditScalar]) -> dict[str, AuditScalar]:
    """The details that have a value, their texts cleaned."""
    cleaned: dict[str, AuditScalar] = {}
    for name, value in detail.items():
        if isinstance(value, str):
            cleaned[name] = clean_text(value)
        elif value is not None:
            cleaned[name] = value
    return cleaned


def _make_row(identity: Identity, entry: AuditEntry) -> NewAuditEntry:
    return NewAuditEntry(identity.tenant, encode_entry(entry))
