"""The audit trail: a chain per tenant, without forks, in which every change shows."""

import asyncio

from noetl.audit.chain import ChainCheck, ChainFault
from noetl.audit.port import AuditEntry, AuditFilter, NewAuditEntry, encode_entry
from noetl.model.ids import Tenant
from tests.conformance.conftest import PortWorld, PostgresWorld

ONE, TWO = Tenant(1), Tenant(2)


def make_entry(operation: str, tenant: Tenant = ONE, **more: str) -> NewAuditEntry:
    entry = AuditEntry(operation=operation, by=more.pop("by", "ada"), **more)  # type: ignore[arg-type]
    return NewAuditEntry(tenant, encode_entry(entry))


async def check_chain(
    world: PortWorld, tenant: Tenant = ONE, expected: str | None = None, page: int = 2
) -> tuple[ChainCheck, ChainFault | None]:
    """Walk the chain in small pages, as `noetl audit verify` does in large ones."""
    check = ChainCheck(tenant, expected)
    while True:
        found = await world.audit.read_chain(tenant, check.seq, page)
        fault = check.check_entries(found.entries)
        if fault is not None:
            return check, fault
        if not found.entries:
            return check, check.check_end(found.head)


async def test_a_chain_without_entries_is_whole(world: PortWorld) -> None:
    assert (await world.audit.read_chain(ONE, 0, 10)).head is None
    check, fault = await check_chain(world)
    assert (check.seq, fault) == (0, None)


async def test_entries_are_chained_in_their_order(world: PortWorld) -> None:
    await world.audit.append_entries([make_entry("token.create"), make_entry("token.revoke")])
    await world.audit.append_entries([make_entry("hook.add", by='"\\ \n é\u2028')])
    found = await world.audit.read_chain(ONE, 0, 10)
    assert [entry.seq for entry in found.entries] == [1, 2, 3]
    assert {entry.at for entry in found.entries} == {world.clock.time}
    assert found.head is not None
    assert (found.head.seq, found.head.hash) == (3, found.entries[-1].hash)
    check, fault = await check_chain(world)
    assert (check.seq, check.hash, fault) == (3, found.head.hash, None)


async def test_every_tenant_has_a_chain_of_its_own(world: PortWorld) -> None:
    await world.audit.append_entries(
        [make_entry("a.b"), make_entry("c.d", TWO), make_entry("e.f"), make_entry("g.h", TWO)]
    )
    for tenant in (ONE, TWO):
        check, fault = await check_chain(world, tenant)
        assert (check.seq, fault) == (2, None)
    listed = await world.audit.list_entries(TWO, AuditFilter(), None, 10)
    assert ["g.h" in entry.text for entry in listed] == [True, False]


async def test_writers_at_once_make_no_forks(world: PortWorld) -> None:
    entries = [make_entry(f"kind.{number}", Tenant(1 + number % 2)) for number in range(40)]
    await asyncio.gather(*(world.audit.append_entries([entry]) for entry in entries))
    for tenant in (ONE, TWO):
        check, fault = await check_chain(world, tenant, page=7)
        assert (check.seq, fault) == (20, None)


async def test_lists_are_filtered_and_newest_first(world: PortWorld) -> None:
    await world.audit.append_entries(
        [
            make_entry("token.create"),
            make_entry("token.revoke", by="bob"),
            make_entry("tokens.other"),
            make_entry("token.revoke", outcome="refused"),
        ]
    )

    async def list_places(before: int | None = None, limit: int = 10, **wanted: str) -> list[int]:
        chosen = AuditFilter(**wanted)  # type: ignore[arg-type]
        found = await world.audit.list_entries(ONE, chosen, before, limit)
        return [entry.seq for entry in found]

    assert await list_places() == [4, 3, 2, 1]
    assert await list_places(limit=2) == [4, 3]
    assert await list_places(before=3) == [2, 1]
    assert await list_places(operation="token") == [4, 2, 1]
    assert await list_places(operation="token.revoke") == [4, 2]
    assert await list_places(by="bob") == [2]
    assert await list_places(outcome="refused") == [4]
    assert await list_places(outcome="allowed", operation="token") == [2, 1]


async def test_a_kept_head_is_found_again(world: PortWorld) -> None:
    await world.audit.append_entries([make_entry("a.b"), make_entry("c.d")])
    kept, _ = await check_chain(world)
    await world.audit.append_entries([make_entry("e.f")])
    _, fault = await check_chain(world, expected=kept.hash)
    assert fault is None
    _, fault = await check_chain(world, expected="0" * 63 + "1")
    assert fault is not None
    assert fault.kind == "removed"


TAMPERING = {
    "changed 2": "update noetl.audit set entry = replace(entry, 'b2', 'xx') where seq = 2",
    "changed 3": "update noetl.audit set at = at + interval '1 second' where seq = 3",
    "changed 4": "update noetl.audit set hash = sha256('x') where seq = 4",
    "removed 3": "delete from noetl.audit where seq = 3",
    "removed 1": "delete from noetl.audit where seq <= 2",
    "removed 5": "delete from noetl.audit where seq = 5",
    # the entries after it were moved one place on, and the new one has the right sum
    "inserted 3": """
        update noetl.audit set seq = seq + 100 where seq >= 3;
        update noetl.audit set seq = seq - 99 where seq > 100;
        update noetl.audit_head set seq = seq + 1;
        insert into noetl.audit select 1, 3, at, entry, sha256(convert_to(concat_ws(E'\n', 1, 3,
            (extract(epoch from at) * 1000000)::bigint, encode(hash, 'hex'), entry), 'UTF8'))
        from noetl.audit where seq = 2""",
    "inserted 6": "insert into noetl.audit select 1, 6, at, entry, hash from noetl.audit where seq = 5",
    "changed 5": "update noetl.audit_head set hash = sha256('x')",
}


async def test_tampering_is_found_and_named(world: PortWorld) -> None:
    if not isinstance(world, PostgresWorld):
        return  # the twin has no table to tamper with
    for wanted, statement in TAMPERING.items():
        async with world.owner.main.open_write_transaction() as session:
            await session.execute("delete from noetl.audit; delete from noetl.audit_head")
        entries = [make_entry(f"b{number}.c") for number in range(1, 6)]
        await world.audit.append_entries(entries)
        async with world.owner.main.open_write_transaction() as session:
            await session.execute(statement)
        _, fault = await check_chain(world)
        assert fault is not None, wanted
        assert f"{fault.kind} {fault.seq}" == wanted
        assert str(fault.seq) in fault.message


async def test_a_cut_chain_with_its_head_set_back_lacks_the_kept_hash(world: PortWorld) -> None:
    if not isinstance(world, PostgresWorld):
        return
    await world.audit.append_entries([make_entry("a.b"), make_entry("c.d")])
    kept, _ = await check_chain(world)
    async with world.owner.main.open_write_transaction() as session:
        await session.execute(
            "delete from noetl.audit where seq = 2;"
            "update noetl.audit_head h set seq = 1, hash = a.hash from noetl.audit a where a.seq = 1"
        )
    _, fault = await check_chain(world)
    assert fault is None  # the chain has no secret: only the kept hash shows it
    _, fault = await check_chain(world, expected=kept.hash)
    assert fault is not None
    assert (fault.kind, fault.seq) == ("removed", 2)
