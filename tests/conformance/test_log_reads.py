"""What the log says of executions and events besides their order."""

from noetl.log.events.port import EventName, RecordedChange
from noetl.model.exchange import LeaseKey
from noetl.model.ids import DEFAULT_TENANT, CommandId, ExecutionId, RefId, Tenant
from noetl.model.messages import Start, StoredRef
from noetl.model.reference import Reference
from tests.conformance.conftest import PortWorld
from tests.conformance.shard_owner import execution, journal, make_start, owner, signal_like

OTHER = Tenant(2)


async def test_the_tenant_is_known_from_the_start_on(world: PortWorld) -> None:
    start = Start(execution_id=ExecutionId("9"), path="p", playbook="hash", tenant=OTHER)
    assert await world.log.find_tenant(start.execution_id) is None
    await world.inbox.start_execution(start, {})
    assert await world.log.find_tenant(start.execution_id) == OTHER


async def test_events_are_found_by_their_keys(world: PortWorld) -> None:
    one, id_, other = await owner(world), execution(0), execution(1)
    await one.write(id_, make_start(id_), signal_like("a"), signal_like("b"))
    await one.write(other, make_start(other), signal_like("a"))
    key = signal_like("a").key
    found = await world.log.read_named_events(
        [
            EventName(id_, key),
            EventName(id_, "nothing"),
            EventName(other, key),
            EventName(execution(2), key),
        ]
    )
    assert sorted((each.execution_id, each.event.key) for each in found) == sorted(
        [(id_, key), (other, key)]
    )
    assert await world.log.read_named_events([]) == []


async def test_events_are_found_by_references_that_were_recorded_with_them(
    world: PortWorld,
) -> None:
    one, id_ = await owner(world), execution(0)
    await one.issue(id_)
    await world.queue.claim_commands(DEFAULT_TENANT, "w1", ("cpu",), 1, 60_000_000)
    key = f"noetl://execution/{id_}/result/s/k"
    ref = StoredRef(reference=Reference(ref_id=RefId("77"), type="kv", uri=key))
    held = LeaseKey(CommandId("c1"), 1)
    await one.write(id_, journal(), taken=(held,), refs=(ref,))
    await one.write(id_, signal_like("later"))
    names = [EventName(id_, journal().key), EventName(id_, "nothing")]
    for refs in ([RefId("77")], [RefId("77"), RefId("99")]):  # the other is nowhere
        found = await world.log.read_named_events(names, refs)
        assert [each.event.key for each in found] == [journal().key]
    later = EventName(id_, signal_like("later").key)
    found = await world.log.read_named_events([*names, later], [RefId("77"), RefId("99")])
    assert {each.event.key for each in found} == {journal().key, later.key}


async def test_changes_of_several_shards_are_read_at_once(world: PortWorld) -> None:
    one, first, second = await owner(world), execution(0), execution(2)
    await one.write(first, make_start(first))
    await one.write(first, signal_like("a"))
    await one.write(second, make_start(second))
    await one.write(second, signal_like("a"), signal_like("b"))
    changes = await world.log.read_changes({2: 1, 0: 0, 1: 0}, 10)
    assert changes == [RecordedChange(0, 2, first, 2), RecordedChange(2, 3, second, 2)]
    assert [(each.shard, each.seq) for each in await world.log.read_changes({2: 0, 0: 0}, 1)] == [
        (0, 1),
        (2, 1),
    ]
    assert await world.log.read_changes({}, 10) == []


async def test_the_playbooks_of_all_executions_are_listed_once(world: PortWorld) -> None:
    assert await world.log.list_pinned_playbooks() == []
    for number, playbook in enumerate(("b", "a", "b"), 1):
        start = Start(execution_id=ExecutionId(str(number)), path="p", playbook=playbook)
        await world.inbox.start_execution(start, {})
    assert await world.log.list_pinned_playbooks() == [(1, "a"), (1, "b")]
