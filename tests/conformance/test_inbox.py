"""The inbox: reports taken by a server that does not own the execution, messages from anyone, starts."""

from noetl.log.events.port import Known, StaleAttempt
from noetl.log.inbox.port import MessageState
from noetl.model.commands import Command, Scope
from noetl.model.decisions import Finish, Issue, Stop
from noetl.model.events import CommandParked
from noetl.model.exchange import LeaseKey
from noetl.model.ids import DEFAULT_TENANT, CommandId, ExecutionId
from noetl.model.messages import LeaseLost, Pause, Release, Report, Signal, Start, StoredRef
from noetl.model.reference import Reference
from tests.conformance.conftest import PortWorld
from tests.conformance.shard_owner import (
    LEASE,
    command,
    execution,
    journal,
    make_completed,
    make_start,
    messages,
    owner,
    report,
    signal_like,
)

C1 = CommandId("c1")
HELD = LeaseKey(C1, 1)


async def start_leased(world: PortWorld) -> ExecutionId:
    one, id_ = await owner(world), execution(0)
    await one.lease_command(id_)
    return id_


async def test_an_ending_report_is_accepted_once_and_ends_the_lease(world: PortWorld) -> None:
    id_ = await start_leased(world)
    told = report(id_, make_completed())
    assert await world.inbox.accept_report(DEFAULT_TENANT, told)
    assert await world.queue.find_status(C1) == ("reported", 1)
    assert await messages(world, id_) == [told]
    assert await world.inbox.accept_report(DEFAULT_TENANT, told)
    assert len(await messages(world, id_)) == 1
    assert await world.queue.list_leased_commands(DEFAULT_TENANT, "w1") == []
    await world.pass_time(LEASE)
    assert await world.queue.expire_leases(10) == 0


async def test_a_parked_command_is_reported_like_an_ended_one(world: PortWorld) -> None:
    id_ = await start_leased(world)
    assert await world.inbox.accept_report(
        DEFAULT_TENANT,
        report(id_, CommandParked(command_id=C1, attempt=1, task="t", reason="retry")),
    )
    assert await world.queue.find_status(C1) == ("reported", 1)


async def test_a_journal_report_is_accepted_while_the_lease_stays(world: PortWorld) -> None:
    id_ = await start_leased(world)
    assert await world.inbox.accept_report(DEFAULT_TENANT, report(id_, journal()))
    assert await world.queue.find_status(C1) == ("leased", 1)
    assert len(await messages(world, id_)) == 1


async def test_a_stale_report_is_not_accepted(world: PortWorld) -> None:
    id_ = await start_leased(world)
    assert not await world.inbox.accept_report(
        DEFAULT_TENANT, report(id_, make_completed(attempt=2))
    )
    assert not await world.inbox.accept_report(
        DEFAULT_TENANT, report(id_, make_completed("unknown"))
    )
    await world.queue.end_leases("w1")
    assert not await world.inbox.accept_report(DEFAULT_TENANT, report(id_, make_completed()))
    assert [type(each) for each in await messages(world, id_)] == [LeaseLost]


async def test_a_report_that_was_folded_is_still_known(world: PortWorld) -> None:
    one, id_ = await owner(world), execution(0)
    await one.lease_command(id_)
    told = report(id_, make_completed())
    await world.inbox.accept_report(DEFAULT_TENANT, told)
    (row,) = await world.inbox.read_messages([0], 10)
    await one.write(id_, make_completed(), inbox=(row.inbox_id,), effects=(Finish(C1),))
    assert await world.queue.find_status(C1) is None
    assert await world.inbox.accept_report(DEFAULT_TENANT, told)
    assert await messages(world, id_) == []
    assert not await world.inbox.accept_report(
        DEFAULT_TENANT, report(id_, make_completed(attempt=2))
    )


async def test_a_report_does_not_overtake_one_that_waits_in_the_inbox(world: PortWorld) -> None:
    one, id_ = await owner(world), execution(0)
    await one.lease_command(id_)
    await world.inbox.accept_report(DEFAULT_TENANT, report(id_, journal()))
    end = await one.part(id_, make_completed(), taken=(HELD,), effects=(Finish(C1),))
    assert await one.append(end) == [Known(id_)]
    (row,) = await world.inbox.read_messages([0], 10)
    await one.write(id_, journal(), inbox=(row.inbox_id,))
    await one.write(id_, make_completed(), taken=(HELD,), effects=(Finish(C1),))


async def test_repeating_an_accepted_report_to_the_owner_is_known_not_stale(
    world: PortWorld,
) -> None:
    one, id_ = await owner(world), execution(0)
    await one.lease_command(id_)
    await world.inbox.accept_report(DEFAULT_TENANT, report(id_, make_completed()))
    assert await one.append(await one.part(id_, make_completed(), taken=(HELD,))) == [Known(id_)]
    other = LeaseKey(C1, 2)
    assert await one.append(await one.part(id_, taken=(other,))) == [StaleAttempt(id_, other)]


async def test_stopping_a_reported_command_leaves_its_report_on_the_way(world: PortWorld) -> None:
    one, id_ = await owner(world), execution(0)
    await one.lease_command(id_)
    await world.inbox.accept_report(DEFAULT_TENANT, report(id_, make_completed()))
    await one.write(id_, signal_like("s"), effects=(Stop((C1,)),))
    assert await world.queue.find_status(C1) == ("reported", 1)
    assert [type(each) for each in await messages(world, id_)] == [Report]


async def test_references_are_stored_when_the_report_is_accepted_and_do_not_travel_on(
    world: PortWorld,
) -> None:
    id_ = await start_leased(world)
    reference = Reference(ref_id="1", type="kv", uri=f"noetl://execution/{id_}/result/s/k")  # type: ignore[arg-type]
    await world.inbox.accept_report(
        DEFAULT_TENANT,
        report(
            id_, make_completed(), refs=(StoredRef(reference=reference, payload=b"x" * 60_000),)
        ),
    )
    (message,) = await messages(world, id_)
    assert message.refs == ()


async def test_posting_twice_is_posting_once_also_after_it_was_recorded(world: PortWorld) -> None:
    one, id_ = await owner(world), execution(0)
    assert await world.inbox.post_message(id_, Pause(request="r"))
    assert not await world.inbox.post_message(id_, Pause(request="r"))
    assert await world.inbox.post_message(execution(1), Pause(request="r"))
    assert await world.inbox.post_message(id_, Signal(name="n", request="s"))
    rows = await world.inbox.read_messages([0], 10)
    await one.write(
        id_, make_start(id_), signal_like("pause:r"), inbox=tuple(row.inbox_id for row in rows)
    )
    assert await world.inbox.read_messages([0], 10) == []


async def test_inboxes_are_read_oldest_first_and_by_shard(world: PortWorld) -> None:
    for shard, name in ((1, "a"), (0, "b"), (1, "c")):
        await world.inbox.post_message(execution(shard), Pause(request=name))
    rows = await world.inbox.read_messages([0, 1], 10)
    assert [row.message.key for row in rows] == ["pause:a", "pause:b", "pause:c"]
    assert [row.shard for row in await world.inbox.read_messages([0], 10)] == [0]
    assert len(await world.inbox.read_messages([0, 1], 2)) == 2


async def test_of_an_execution_set_aside_only_its_release_is_read(world: PortWorld) -> None:
    aside, other = execution(0, 0), execution(0, 1)
    await world.inbox.post_message(aside, Pause(request="a"))
    await world.inbox.post_message(aside, Release(request="r"))
    await world.inbox.post_message(other, Pause(request="b"))
    rows = await world.inbox.read_messages([0], 10, frozenset({aside}))
    assert [row.message.key for row in rows] == ["released:r", "pause:b"]


async def test_a_start_key_names_one_execution_of_its_tenant(world: PortWorld) -> None:
    first, second = execution(0), execution(1)
    start = Start(execution_id=first, path="p", playbook="h", start_key="k")
    assert await world.inbox.start_execution(start, {"a": 1}) == first
    assert await world.inbox.start_execution(start, {"a": 1}) == first
    again = Start(execution_id=second, path="p", playbook="h", start_key="k")
    assert await world.inbox.start_execution(again, {"a": 2}) == first
    assert await messages(world, first) == [start]
    assert await messages(world, second) == []
    pinned = await world.log.read_pinned(first)
    assert pinned is not None
    assert (pinned.workload, pinned.tenant) == ({"a": 1}, DEFAULT_TENANT)
    assert await world.log.read_pinned(second) is None


async def test_a_start_repeated_after_it_began_starts_nothing(world: PortWorld) -> None:
    one, id_ = await owner(world), execution(0)
    start = Start(execution_id=id_, path="p", playbook="h")
    await world.inbox.start_execution(start, {})
    (row,) = await world.inbox.read_messages([0], 10)
    await one.write(id_, make_start(id_), inbox=(row.inbox_id,))
    assert await world.inbox.start_execution(start, {}) == id_
    assert await messages(world, id_) == []


async def test_what_was_read_cannot_be_changed_in_the_store(world: PortWorld) -> None:
    one, id_ = await owner(world), execution(0)
    made: Command = command(id_, scope=Scope(workload={"late": 1}))
    await one.write(id_, signal_like("a"), effects=(Issue(made),))
    made.scope.workload["later"] = 2
    (claimed,) = await world.queue.claim_commands(DEFAULT_TENANT, "w1", ("cpu",), 1, LEASE)
    assert claimed.scope.workload == {"late": 1}


async def test_a_key_waits_in_the_inbox_until_it_is_recorded(world: PortWorld) -> None:
    owned = await owner(world)
    execution_id = ExecutionId("5")
    await owned.write(execution_id, make_start(execution_id))
    pause = Pause(request="r")
    assert await world.inbox.find_message(execution_id, pause.key) == MessageState()
    await world.inbox.post_message(execution_id, pause)
    assert await world.inbox.find_message(execution_id, pause.key) == MessageState(waiting=True)
    appended = await owned.write(execution_id, signal_like("c9"))
    assert await world.inbox.find_message(execution_id, signal_like("c9").key) == MessageState(
        seq=appended.last_seq
    )
    assert await world.inbox.find_message(ExecutionId("6"), pause.key) == MessageState()
