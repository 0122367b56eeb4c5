"""Every port keeps tenants apart: what one has does not exist for another."""

import pytest

from noetl.accounts.tenants import TenantQuotas
from noetl.log.presence.port import WorkerPresence
from noetl.model.decisions import AddPart
from noetl.model.errors import NotFound
from noetl.model.exchange import LeaseKey
from noetl.model.ids import DEFAULT_TENANT, CommandId, ExecutionId, RefId, Tenant
from noetl.model.messages import Start, StoredRef
from noetl.model.reference import Reference
from tests.conformance.conftest import PortWorld
from tests.conformance.shard_owner import (
    LEASE,
    execution,
    make_completed,
    make_start,
    owner,
    report,
    signal_like,
)
from tests.conformance.test_lifetimes import DAY, home

OURS, THEIRS = DEFAULT_TENANT, Tenant(2)
C1 = CommandId("c1")
HELD = (LeaseKey(C1, 1),)


def make_reference(execution_id: ExecutionId, ref_id: str, kind: str = "result") -> Reference:
    uri = f"noetl://execution/{execution_id}/{kind}/s/k"
    return Reference(ref_id=RefId(ref_id), type="kv", uri=uri, bytes=7, format="json")


async def start(world: PortWorld, execution_id: ExecutionId, tenant: Tenant) -> None:
    begun = Start(
        execution_id=execution_id, path="p", playbook="hash", tenant=tenant, start_key="same"
    )
    assert await world.inbox.start_execution(begun, {}) == execution_id


async def test_a_worker_claims_renews_and_loses_commands_of_its_tenant_only(
    world: PortWorld,
) -> None:
    one, id_ = await owner(world), execution(0)
    await one.issue(id_, "c1")
    queue = world.queue
    assert await queue.claim_commands(THEIRS, "w1", ("cpu",), 9, LEASE) == []
    (claimed,) = await queue.claim_commands(OURS, "w1", ("cpu",), 9, LEASE)
    assert claimed.command_id == C1
    assert await queue.list_leased_commands(THEIRS, "w1") == []
    assert len(await queue.list_leased_commands(OURS, "w1")) == 1
    assert (await queue.renew_leases(THEIRS, "w1", HELD, LEASE)).lost == HELD
    assert (await queue.renew_leases(OURS, "w1", HELD, LEASE)).lost == ()
    assert await queue.end_leases("w1", THEIRS) == 0
    assert await queue.end_leases("w1", OURS) == 1


async def test_a_report_of_a_worker_of_another_tenant_is_stale(world: PortWorld) -> None:
    one, id_ = await owner(world), execution(0)
    await start(world, id_, OURS)
    await one.issue(id_, "c1")
    await world.queue.claim_commands(OURS, "w1", ("cpu",), 9, LEASE)
    ended = report(id_, make_completed())
    assert not await world.inbox.accept_report(THEIRS, ended)
    assert await world.inbox.accept_report(OURS, ended)
    assert not await world.inbox.accept_report(THEIRS, ended), "also if it is known"


async def test_start_keys_belong_to_a_tenant(world: PortWorld) -> None:
    first, second = execution(0), execution(1)
    assert await world.inbox.find_started(OURS, "same") is None
    await start(world, first, OURS)
    await start(world, second, THEIRS)
    assert await world.inbox.find_started(OURS, "same") == first
    assert await world.inbox.find_started(THEIRS, "same") == second


async def test_payloads_and_logs_belong_to_the_tenant_of_their_execution(
    world: PortWorld,
) -> None:
    id_ = execution(0)
    await start(world, id_, OURS)
    stored = make_reference(id_, "1")
    with pytest.raises(NotFound):
        await world.payloads.put_payload(THEIRS, stored, b"1")
    await world.payloads.put_payload(OURS, stored, b"1")
    assert await world.payloads.read_payload(THEIRS, stored.ref_id, stored.uri) is None
    assert await world.payloads.read_payload(OURS, stored.ref_id, stored.uri) == b"1"
    with pytest.raises(NotFound):
        await world.payloads.put_payload(THEIRS, stored, b"1")  # nor that it is there
    part = StoredRef(reference=make_reference(id_, "2", "log"), payload=b"[]")
    await world.step_logs.put_parts(THEIRS, (part,))
    assert await world.step_logs.read_last_number(id_) == 0
    await world.step_logs.put_parts(OURS, (part,))
    assert await world.step_logs.read_last_number(id_) == 1


async def test_payloads_that_came_with_a_report_belong_to_a_tenant_too(world: PortWorld) -> None:
    one, id_ = await owner(world), execution(0)
    await start(world, id_, OURS)
    stored = make_reference(id_, "1")
    refs = (StoredRef(reference=stored, payload=b"1"),)
    await one.write(id_, make_start(id_), refs=refs)
    assert await world.payloads.read_payload(THEIRS, stored.ref_id, stored.uri) is None
    assert await world.payloads.read_payload(OURS, stored.ref_id, stored.uri) == b"1"


async def test_manifests_belong_to_a_tenant(world: PortWorld) -> None:
    one, id_ = await owner(world), execution(0)
    part = AddPart("m", 0, 10, make_reference(id_, "1"), failed=1)
    await one.write(id_, make_start(id_), effects=(part,))
    log = world.log
    for tenant, found in ((OURS, [part]), (THEIRS, [])):
        assert await log.read_manifest(tenant, "m") == found
        assert await log.read_manifest_page(tenant, "m", -1, 9) == found
        assert await log.find_parts_before(tenant, "m", 5, 9) == found
        assert await log.find_failed_parts(tenant, "m", -1, 9) == found


async def test_workers_of_two_tenants_may_have_the_same_name(world: PortWorld) -> None:
    for tenant, free in ((OURS, 1), (THEIRS, 2)):
        present = WorkerPresence(worker="w/1", server="s", tenant=tenant, free=free)
        await world.presence.note_worker(present, LEASE)
    assert [each.free for each in await world.presence.list_workers(OURS)] == [1]
    assert [each.free for each in await world.presence.list_workers(THEIRS)] == [2]


async def test_tenants_have_names_and_quotas(world: PortWorld) -> None:
    (first,) = await world.tenants.list_tenants()
    assert (first.tenant, first.name) == (OURS, "default")
    made = await world.tenants.add_tenant("acme")
    assert made is not None
    assert await world.tenants.add_tenant("acme") is None
    assert made.tenant > OURS
    assert await world.tenants.find_named_tenant("acme") == made
    assert await world.tenants.find_tenant(made.tenant) == made
    assert await world.tenants.find_named_tenant("Acme") is None
    quotas = TenantQuotas(1, None, 1 << 40)
    changed = await world.tenants.set_quotas(made.tenant, quotas)
    assert changed is not None
    assert changed.quotas == quotas
    assert await world.tenants.set_quotas(Tenant(99_999), quotas) is None
    assert await world.tenants.list_tenants() == [first, changed]


# Bytes are summed up when they are asked for, or counted from the first quota for them on.
BYTE_QUOTAS = pytest.mark.parametrize("quota", ["none", "before", "after"])
COUNTED = TenantQuotas(None, None, 1 << 40)


@BYTE_QUOTAS
async def test_usage_is_measured_by_tenant(world: PortWorld, quota: str) -> None:
    here = await home(world)
    if quota == "before":
        await world.tenants.set_quotas(OURS, COUNTED)
    id_ = await here.begin()
    one = await here.store(id_)
    if quota == "after":
        await world.tenants.set_quotas(OURS, COUNTED)
    size = one.bytes or 0
    await here.one.issue(id_, "c9")
    unseen = execution(3)
    usage = await world.usage.measure_usage(OURS, [id_, unseen])
    assert (usage.running, usage.queued, usage.bytes) == (2, 1, size)
    assert usage.unseen == (unseen,)
    bounded = await world.usage.measure_usage(OURS, [], 0, 0)
    assert (bounded.running, bounded.queued) == (0, 0)
    theirs = await world.usage.measure_usage(THEIRS, [])
    assert (theirs.running, theirs.queued, theirs.bytes) == (0, 0, 0)
    await here.end(id_)
    assert (await world.usage.measure_usage(OURS, [])).running == 0
    assert (await here.judge(2 * DAY)).expired == 1
    assert (await world.usage.measure_usage(OURS, [])).bytes == 0


@BYTE_QUOTAS
async def test_bytes_of_a_report_that_another_server_accepts_are_counted_once(
    world: PortWorld, quota: str
) -> None:
    one, id_ = await owner(world), execution(0)
    if quota == "before":
        await world.tenants.set_quotas(OURS, COUNTED)
    await start(world, id_, OURS)
    await one.issue(id_, "c1")
    await world.queue.claim_commands(OURS, "w1", ("cpu",), 9, LEASE)
    refs = (StoredRef(reference=make_reference(id_, "1"), payload=b"1234567"),)
    ended = report(id_, make_completed(), refs=refs)
    for _ in range(2):
        assert await world.inbox.accept_report(OURS, ended)
    if quota == "after":
        await world.tenants.set_quotas(OURS, COUNTED)
    await one.write(id_, signal_like("a"), refs=refs)
    assert (await world.usage.measure_usage(OURS, [])).bytes == 7
