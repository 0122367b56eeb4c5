"""Effects: what a decision changes beside the log, in the same transaction."""

from noetl.log.events.port import Appended, Handoff
from noetl.model.commands import Journal
from noetl.model.decisions import (
    AddPart,
    AskAdmission,
    ClearTimer,
    Finish,
    Issue,
    LeaveAdmission,
    Park,
    Requeue,
    Send,
    SetTimer,
    StartChild,
    Stop,
)
from noetl.model.events import ChildStarted, Parent
from noetl.model.exchange import LeaseKey
from noetl.model.ids import DEFAULT_TENANT, CommandId, TimerId, shard_of
from noetl.model.messages import Admitted, Cancel, Notice, Start, Stopped
from noetl.model.reference import Reference
from tests.conformance.conftest import SHARDS, PortWorld
from tests.conformance.shard_owner import (
    LEASE,
    command,
    execution,
    make_start,
    messages,
    owner,
    signal_like,
)

C1, C2 = CommandId("c1"), CommandId("c2")


async def test_a_command_is_claimable_as_soon_as_its_event_stands_in_the_log(
    world: PortWorld,
) -> None:
    one, id_ = await owner(world), execution(0)
    made = await one.issue(id_)
    assert await world.queue.claim_commands(DEFAULT_TENANT, "w1", ("cpu",), 5, LEASE) == [made]
    assert await world.queue.claim_commands(DEFAULT_TENANT, "w2", ("cpu",), 5, LEASE) == []


async def test_a_command_handed_off_is_leased_in_the_transaction_that_issues_it(
    world: PortWorld,
) -> None:
    one, id_ = await owner(world), execution(0)
    made = command(id_)
    await one.write(id_, signal_like("a"), effects=(Issue(made),), handoffs=(Handoff(C1, "w1"),))
    assert await world.queue.claim_commands(DEFAULT_TENANT, "w2", ("cpu",), 5, LEASE) == []
    assert await world.queue.list_leased_commands(DEFAULT_TENANT, "w1") == [made]
    assert (
        await world.queue.renew_leases(DEFAULT_TENANT, "w1", (LeaseKey(C1, 1),), LEASE) is not None
    )


async def test_a_command_that_is_not_available_yet_is_not_handed_off(world: PortWorld) -> None:
    one, id_ = await owner(world), execution(0)
    later = Issue(command(id_), available_at=world.clock.now() + 1_000)
    await one.write(id_, signal_like("a"), effects=(later,), handoffs=(Handoff(C1, "w1"),))
    assert await world.queue.find_status(C1) == ("queued", 1)


async def test_a_requeued_command_is_a_new_attempt_with_its_journal(world: PortWorld) -> None:
    one, id_ = await owner(world), execution(0)
    await one.lease_command(id_)
    journal = Journal(goto=3, tries=1)
    again = command(id_, attempt=2, journal=journal)
    later = Requeue(C1, 2, journal, available_at=world.clock.now() + 500)
    await one.write(id_, signal_like("b"), effects=(later,))
    assert await world.queue.claim_commands(DEFAULT_TENANT, "w2", ("cpu",), 5, LEASE) == []
    assert (
        await world.queue.renew_leases(DEFAULT_TENANT, "w1", (LeaseKey(C1, 1),), LEASE)
    ).lost == (LeaseKey(C1, 1),)
    await world.pass_time(500)
    assert await world.queue.claim_commands(DEFAULT_TENANT, "w2", ("cpu",), 5, LEASE) == [again]


async def test_a_parked_command_belongs_to_nobody_until_it_is_requeued(world: PortWorld) -> None:
    one, id_ = await owner(world), execution(0)
    await one.lease_command(id_)
    await one.write(id_, signal_like("b"), effects=(Park(C1),))
    assert await world.queue.list_leased_commands(DEFAULT_TENANT, "w1") == []
    assert await world.queue.claim_commands(DEFAULT_TENANT, "w1", ("cpu",), 5, LEASE) == []
    await world.pass_time(10 * LEASE)
    assert await world.queue.expire_leases(10) == 0
    await one.write(id_, signal_like("c"), effects=(Requeue(C1, 2, Journal()),))
    assert [
        made.attempt
        for made in await world.queue.claim_commands(DEFAULT_TENANT, "w1", ("cpu",), 5, LEASE)
    ] == [2]


async def test_stopping_what_nobody_holds_cancels_it_at_once_and_says_so(world: PortWorld) -> None:
    one, id_ = await owner(world), execution(0)
    await one.lease_command(id_, "parked")
    await one.lease_command(id_, "lost")
    await one.write(id_, signal_like("p"), effects=(Park(CommandId("parked")),))
    await world.pass_time(LEASE)
    await world.queue.expire_leases(10)
    await one.issue(id_, "queued")
    names = tuple(CommandId(name) for name in ("queued", "parked", "lost", "unknown"))
    await one.write(id_, signal_like("stop"), effects=(Stop(names),))
    for name in names[:3]:
        assert await world.queue.find_status(name) == ("cancelled", 1)
    stopped = [each for each in await messages(world, id_) if isinstance(each, Stopped)]
    assert {each.command_id for each in stopped} == set(names[:3])
    assert await world.queue.claim_commands(DEFAULT_TENANT, "w1", ("cpu",), 5, LEASE) == []


async def test_stopping_a_held_command_tells_its_worker_at_the_next_renewal(
    world: PortWorld,
) -> None:
    one, id_ = await owner(world), execution(0)
    await one.lease_command(id_)
    await one.write(id_, signal_like("b"), effects=(Stop((C1,)),))
    assert await world.queue.find_status(C1) == ("leased", 1)
    renewal = await world.queue.renew_leases(DEFAULT_TENANT, "w1", (LeaseKey(C1, 1),), LEASE)
    assert (renewal.stop, renewal.lost) == ((LeaseKey(C1, 1),), ())
    assert await messages(world, id_) == []


async def test_finishing_is_final(world: PortWorld) -> None:
    one, id_ = await owner(world), execution(0)
    await one.lease_command(id_)
    await one.write(id_, signal_like("b"), effects=(Finish(C1, "dead"),))
    await one.write(id_, signal_like("c"), effects=(Finish(C1), Park(C1), Stop((C1,))))
    assert await world.queue.find_status(C1) == ("dead", 1)
    assert await messages(world, id_) == []


async def test_timers_fire_by_the_stores_clock_until_they_are_consumed(world: PortWorld) -> None:
    one, id_ = await owner(world), execution(0)
    now = world.clock.now()
    early, late, cleared = TimerId("early"), TimerId("late"), TimerId("cleared")
    timers = (SetTimer(late, now + 20), SetTimer(early, now + 10), SetTimer(cleared, now + 10))
    await one.write(id_, make_start(id_), effects=timers)
    await one.write(
        id_, signal_like("a"), effects=(ClearTimer(cleared), ClearTimer(TimerId("never set")))
    )
    assert await world.inbox.read_due_timers([0], 10) == []
    assert await world.inbox.find_next_timer([0, 1]) == now + 10
    assert await world.inbox.find_next_timer([1]) is None
    await world.pass_time(20)
    assert await world.inbox.read_due_timers([0], 10) == [(id_, early), (id_, late)]
    assert await world.inbox.read_due_timers([0], 1) == [(id_, early)]
    assert await world.inbox.read_due_timers([1], 10) == []
    await one.write(id_, signal_like("b"), timers=(early,))
    assert await world.inbox.read_due_timers([0], 10) == [(id_, late)]
    assert await world.inbox.find_next_timer([0]) == now + 20


async def test_a_message_is_in_the_other_inbox_when_the_transaction_is(world: PortWorld) -> None:
    one, id_, other = await owner(world), execution(0), execution(1)
    cancel = Cancel(request="r", reason="parent")
    outcome = await one.write(
        id_, make_start(id_), effects=(Send(other, cancel), Send(other, cancel))
    )
    assert await messages(world, other) == [cancel]
    assert outcome.inboxes == (1,)


async def test_a_child_is_started_once_per_call_and_its_parent_is_told(world: PortWorld) -> None:
    one, id_ = await owner(world), execution(0)
    child, second = execution(1), execution(2)
    parent = Parent(id_, "call")
    effect = StartChild(parent=parent, path="child", workload={"a": 1}, depth=1)
    start = Start(execution_id=child, path="child", playbook="hash2", parent=parent, depth=1)
    outcome = await one.write(id_, make_start(id_), effects=(effect,), starts=(start,))
    assert await messages(world, child) == [start]
    assert await messages(world, id_) == [Notice(event=ChildStarted(call="call", child=child))]
    assert outcome.inboxes == (0, 1)
    pinned = await world.log.read_pinned(child)
    assert pinned is not None
    assert (pinned.playbook, pinned.workload) == ("hash2", {"a": 1})
    again = Start(execution_id=second, path="child", playbook="hash2", parent=parent, depth=1)
    await one.write(id_, signal_like("b"), effects=(effect,), starts=(again,))
    assert await world.log.read_pinned(second) is None
    assert len(await messages(world, id_)) == 1
    found = await world.log.find_children(DEFAULT_TENANT, id_, ["other", "call"])
    assert found == {"call": child}
    assert await world.log.find_children(DEFAULT_TENANT, child, ["call"]) == {}


async def test_places_of_a_playbook_are_given_in_the_order_they_were_asked_for(
    world: PortWorld,
) -> None:
    one = await owner(world)
    ids = [execution(0, 0), execution(1, 0), execution(2, 0)]
    for id_ in ids:
        await one.write(id_, make_start(id_), effects=(AskAdmission("p", 1),))
    assert [await messages(world, id_) for id_ in ids] == [[Admitted()], [], []]
    outcome = await one.write(ids[0], signal_like("end"), effects=(LeaveAdmission("p"),))
    assert outcome.inboxes == (shard_of(ids[1], SHARDS),)
    assert [await messages(world, id_) for id_ in ids[1:]] == [[Admitted()], []]
    await one.write(ids[2], signal_like("cancelled while waiting"), effects=(LeaveAdmission("p"),))
    await one.write(ids[1], signal_like("end"), effects=(LeaveAdmission("p"),))
    assert await messages(world, ids[2]) == []


async def test_playbooks_do_not_share_places(world: PortWorld) -> None:
    one, first, second = await owner(world), execution(0), execution(1)
    await one.write(first, make_start(first), effects=(AskAdmission("p", 1),))
    await one.write(second, make_start(second), effects=(AskAdmission("q", 1),))
    assert await messages(world, second) == [Admitted()]


async def test_parts_of_a_manifest_are_read_in_order(world: PortWorld) -> None:
    one, id_ = await owner(world), execution(0)
    reference = Reference(ref_id="1", type="kv", uri=f"noetl://execution/{id_}/result/s/k")  # type: ignore[arg-type]
    second, first = AddPart("m", 10, 5, reference), AddPart("m", 0, 10, reference)
    outcome = await one.write(id_, make_start(id_), effects=(second, first))
    assert isinstance(outcome, Appended)
    assert await world.log.read_manifest(DEFAULT_TENANT, "m") == [first, second]
    assert await world.log.read_manifest(DEFAULT_TENANT, "other") == []


async def test_parts_of_a_manifest_are_found_by_position_and_by_failed_items(
    world: PortWorld,
) -> None:
    one, id_ = await owner(world), execution(0)
    reference = Reference(ref_id="1", type="kv", uri=f"noetl://execution/{id_}/result/s/k")  # type: ignore[arg-type]
    parts = [
        AddPart("m", first, 10, reference, failed=failed)
        for first, failed in ((-1, 0), (0, 0), (10, 2), (20, 0), (30, 1))
    ]
    await one.write(id_, make_start(id_), effects=tuple(reversed(parts)))
    assert await world.log.read_manifest_page(DEFAULT_TENANT, "m", -2, 2) == parts[:2]
    assert await world.log.read_manifest_page(DEFAULT_TENANT, "m", 0, 9) == parts[2:]
    assert await world.log.find_failed_parts(DEFAULT_TENANT, "m", -2, 9) == [parts[2], parts[4]]
    assert await world.log.find_failed_parts(DEFAULT_TENANT, "m", 10, 9) == [parts[4]]
    assert await world.log.find_failed_parts(DEFAULT_TENANT, "m", -2, 1) == [parts[2]]
    assert await world.log.find_parts_before(DEFAULT_TENANT, "m", 19, 2) == [parts[2], parts[1]]
    assert await world.log.find_parts_before(DEFAULT_TENANT, "m", -2, 2) == []
    mended = AddPart("m", 10, 10, reference)
    await one.write(id_, signal_like("again"), effects=(mended,))
    assert await world.log.find_failed_parts(DEFAULT_TENANT, "m", -2, 9) == [parts[4]]
