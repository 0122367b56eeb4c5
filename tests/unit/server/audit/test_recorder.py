"""Entries of changes: written before the change, with the caller, and without what acts on a terminal."""

import pytest

from noetl.audit.memory import AuditMemory
from noetl.audit.port import AuditEntry, AuditFilter, decode_entry
from noetl.model.errors import NotFound, StoreUnavailable
from noetl.model.identity import Identity
from noetl.model.ids import Tenant
from noetl.server.audit.call_origin import CallOrigin, current_origin
from noetl.server.audit.recorder import MAX_TEXT_CHARS, AuditRecorder
from tests.unit.server.audit.test_refusals import FailingAudit
from tests.unit.server.test_credentials import FixedClock

ADA = Identity(Tenant(3), frozenset({"admin"}), "ada", token_id="f3Qk0aLs9ZxY")


async def list_entries(log: AuditMemory) -> list[AuditEntry]:
    found = await log.list_entries(Tenant(3), AuditFilter(), None, 1000)
    return [decode_entry(entry.text) for entry in reversed(found)]


async def test_an_entry_stands_before_its_change_is_made() -> None:
    log = AuditMemory(FixedClock())
    current_origin.set(CallOrigin("10.0.0.7", [(b"x-request-id", b"mine-1")]))
    async with AuditRecorder(log).record(ADA, "credential.add", "gh", version=3, replaced=None):
        (entry,) = await list_entries(log)
    assert entry == AuditEntry(
        operation="credential.add",
        object="gh",
        by="ada",
        token_id="f3Qk0aLs9ZxY",
        address="10.0.0.7",
        request_id="mine-1",
        detail={"version": 3},
    )
    assert await list_entries(log) == [entry]


async def test_a_change_that_fails_gets_a_second_entry() -> None:
    log = AuditMemory(FixedClock())
    with pytest.raises(NotFound):
        async with AuditRecorder(log).record(ADA, "hook.delete", "gone"):
            raise NotFound("no hook")
    allowed, failed = await list_entries(log)
    assert (allowed.outcome, failed.outcome, failed.code) == ("allowed", "failed", "NOT_FOUND")


async def test_a_change_that_cannot_be_recorded_is_not_made() -> None:
    made = False
    with pytest.raises(StoreUnavailable):
        async with AuditRecorder(FailingAudit(FixedClock())).record(ADA, "hook.delete", "gone"):
            made = True
    assert not made


async def test_texts_are_bounded_and_printable() -> None:
    log = AuditMemory(FixedClock())
    text = "\x1b]52;c;aGk=\x07" + "x" * 1000
    async with AuditRecorder(log).record(ADA, "hook.add", text, path=text):
        pass
    (entry,) = await list_entries(log)
    assert entry.object is not None
    assert len(entry.object) == MAX_TEXT_CHARS
    assert entry.object.isprintable()
    assert str(entry.detail["path"]).isprintable()


@pytest.mark.parametrize("sent", [b"", b"two words", b"\x1b[31m", b"x" * 101])
def test_a_request_id_that_is_not_plain_is_replaced(sent: bytes) -> None:
    origin = CallOrigin("10.0.0.7", [(b"x-request-id", sent)])
    assert origin.used_request_id is None
    assert origin.request_id != sent.decode("latin-1")
    assert origin.request_id == origin.used_request_id
