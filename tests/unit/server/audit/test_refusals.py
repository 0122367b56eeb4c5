"""Refused calls: a bounded number of entries, however many calls there are."""

import pytest

from noetl.audit.memory import AuditMemory
from noetl.audit.port import AuditEntry, AuditFilter, decode_entry
from noetl.model.errors import StoreUnavailable
from noetl.model.ids import DEFAULT_TENANT
from noetl.server.audit.refusals import (
    MAX_ENTRIES_PER_RUN,
    OTHER_CALLERS,
    RefusedCaller,
    RefusedCalls,
)
from tests.unit.server.test_credentials import FixedClock


class FailingAudit(AuditMemory):
    is_away = True

    async def append_entries(self, entries) -> None:  # type: ignore[no-untyped-def]
        if self.is_away:
            raise StoreUnavailable("away")
        await super().append_entries(entries)


def make_caller(address: str) -> RefusedCaller:
    return RefusedCaller(DEFAULT_TENANT, None, None, address, "NOT_AUTHENTICATED")


async def list_entries(log: AuditMemory) -> list[AuditEntry]:
    found = await log.list_entries(DEFAULT_TENANT, AuditFilter(), None, 1000)
    return [decode_entry(entry.text) for entry in reversed(found)]


async def test_calls_of_one_caller_share_an_entry() -> None:
    log = AuditMemory(FixedClock())
    refused = RefusedCalls(log)
    for number in range(500):
        refused.note(make_caller("10.0.0.1"), "list_tokens", f"r{number}")
    assert (await refused.run_once()).done == 1
    assert (await refused.run_once()).done == 0
    (entry,) = await list_entries(log)
    assert (entry.count, entry.object, entry.request_id) == (500, "list_tokens", "r0")
    assert (entry.outcome, entry.address, entry.by) == ("refused", "10.0.0.1", None)


async def test_a_flood_from_many_addresses_writes_a_bounded_number_of_entries() -> None:
    log = AuditMemory(FixedClock())
    refused = RefusedCalls(log)
    for number in range(10_000):
        refused.note(make_caller(f"10.0.{number // 256}.{number % 256}"), "list_tokens", "r")
    assert (await refused.run_once()).done == MAX_ENTRIES_PER_RUN + 1
    entries = await list_entries(log)
    assert sum(entry.count for entry in entries) == 10_000
    assert entries[-1].object == OTHER_CALLERS


async def test_what_could_not_be_written_is_written_later() -> None:
    log = FailingAudit(FixedClock())
    refused = RefusedCalls(log)
    refused.note(make_caller("10.0.0.1"), "list_tokens", "r1")
    with pytest.raises(StoreUnavailable):
        await refused.run_once()
    refused.note(make_caller("10.0.0.1"), "list_tokens", "r2")
    log.is_away = False
    await refused.run_once()
    (entry,) = await list_entries(log)
    assert (entry.count, entry.request_id) == (2, "r1")
