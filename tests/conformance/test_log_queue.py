"""The queue: claiming, renewing, losing; and the inbox as everyone but the owner sees it."""

from noetl.log.port import Known, StaleAttempt
from noetl.model.commands import Command, Journal, Scope
from noetl.model.decisions import Finish, Issue, Requeue, Stop
from noetl.model.events import CommandParked
from noetl.model.exchange import LeaseKey
from noetl.model.ids import DEFAULT_TENANT, CommandId, ExecutionId
from noetl.model.messages import (
    LeaseLost,
    Pause,
    Release,
    Report,
    Signal,
    Start,
    Stopped,
    StoredRef,
)
from noetl.model.reference import Reference
from tests.conformance.conftest import World
from tests.conformance.given import (
    LEASE,
    command,
    completed,
    execution,
    journal,
    messages,
    owner,
    report,
    signal_like,
    started,
)

C1 = CommandId("c1")
HELD = LeaseKey(C1, 1)


async def claim(world: World, limit: int = 10, pools: tuple[str, ...] = ("cpu",)) -> list[str]:
    return [each.command_id for each in await world.log.claim("w1", pools, limit, LEASE)]


async def test_higher_priority_first_then_the_order_of_issue(world: World) -> None:
    one, id_ = await owner(world), execution(0)
    for name, priority in (("a", 0), ("b", 5), ("c", 0), ("d", 5)):
        await one.issue(id_, name, priority=priority)
    assert await claim(world, 3) == ["b", "d", "a"]
    assert await claim(world) == ["c"]


async def test_a_worker_gets_commands_of_its_pools_only(world: World) -> None:
    one, id_ = await owner(world), execution(0)
    await one.issue(id_, "a", pool="gpu")
    await one.issue(id_, "b", pool="cpu")
    assert await claim(world, pools=("io",)) == []
    assert await claim(world, pools=("cpu", "gpu")) == ["a", "b"]


async def test_a_command_is_claimable_from_its_moment_on(world: World) -> None:
    one, id_ = await owner(world), execution(0)
    effect = Issue(command(id_), available_at=world.clock.now() + 1_000)
    await one.write(id_, signal_like("a"), effects=(effect,))
    assert await claim(world) == []
    await world.pass_time(1_000)
    assert await claim(world) == ["c1"]


async def test_of_commands_that_lost_two_workers_a_worker_holds_one(world: World) -> None:
    """Whoever killed both is alone with its next one; those that ran beside it do not die with it again."""
    one, id_ = await owner(world), execution(0)
    for name in ("a", "b", "c"):
        await one.issue(id_, name)
    for attempt in (2, 3):
        assert await claim(world) == ["a", "b", "c"]
        assert await world.log.lose("w1") == 3
        requeues = tuple(Requeue(CommandId(name), attempt, Journal()) for name in ("a", "b", "c"))
        await one.write(id_, signal_like(f"lost {attempt}"), effects=requeues)
    await one.issue(id_, "new")
    assert await claim(world) == ["a", "new"]
    await one.issue(id_, "newer")
    assert await claim(world) == ["newer"]
    assert [each.command_id for each in await world.log.claim("w2", ("cpu",), 1, LEASE)] == ["b"]
    await one.write(id_, completed("a", 3), effects=(Finish(CommandId("a")),))
    assert await claim(world, 0) == []
    assert await claim(world) == ["c"]


async def test_claiming_does_not_change_the_attempt(world: World) -> None:
    one, id_ = await owner(world), execution(0)
    assert (await one.leased(id_)).attempt == 1
    assert await world.log.command_status(C1) == ("leased", 1)


async def test_a_renewed_lease_holds_and_one_that_is_not_renewed_is_lost(world: World) -> None:
    one, id_ = await owner(world), execution(0)
    await one.leased(id_)
    await world.pass_time(LEASE - 1)
    assert await world.log.expire_leases(10) == 0
    await world.log.renew("w1", (HELD,), LEASE)
    await world.pass_time(LEASE - 1)
    assert await world.log.expire_leases(10) == 0
    await world.pass_time(1)
    assert await world.log.expire_leases(10) == 1
    assert await world.log.command_status(C1) == ("lost", 1)
    assert await messages(world, id_) == [LeaseLost(command_id=C1, attempt=1, worker="w1")]
    assert await world.log.expire_leases(10) == 0
    assert await claim(world) == []


async def test_progress_stands_until_the_next_renewal_while_the_lease_does(world: World) -> None:
    one, id_ = await owner(world), execution(0)
    await one.leased(id_)

    async def shown() -> list[str | None]:
        return [row.progress for row in await world.log.queue(DEFAULT_TENANT, execution_id=id_)]

    await world.log.renew("w1", (HELD,), LEASE, {HELD: "1/2", LeaseKey(C1, 2): "2/2"})
    assert await shown() == ["1/2"]
    await world.log.renew("w2", (HELD,), LEASE, {HELD: "another's"})
    assert await shown() == ["1/2"]
    await world.log.renew("w1", (HELD,), LEASE)
    assert await shown() == [None]
    await world.log.renew("w1", (HELD,), LEASE, {HELD: "2/2"})
    await world.log.lose("w1")
    assert await shown() == [None]


async def test_a_lost_command_can_be_lost_again_as_its_next_attempt(world: World) -> None:
    one, id_ = await owner(world), execution(0)
    await one.leased(id_)
    await world.log.lose("w1")
    await one.write(id_, signal_like("r"), effects=(Requeue(C1, 2, Journal()),))
    assert await claim(world) == ["c1"]
    await world.log.lose("w1")
    assert [each.attempt for each in await messages(world, id_)] == [1, 2]


async def test_what_is_not_held_by_this_worker_as_this_attempt_is_lost_to_it(world: World) -> None:
    one, id_ = await owner(world), execution(0)
    await one.leased(id_)
    for worker, held in (
        ("w2", HELD),
        ("w1", LeaseKey(C1, 2)),
        ("w1", LeaseKey(CommandId("unknown"), 1)),
    ):
        renewal = await world.log.renew(worker, (held,), LEASE)
        assert (renewal.stop, renewal.lost) == ((), (held,))


async def test_a_lease_that_runs_out_while_it_is_being_stopped_is_stopped(world: World) -> None:
    one, id_ = await owner(world), execution(0)
    await one.leased(id_)
    await one.write(id_, signal_like("s"), effects=(Stop((C1,)),))
    await world.pass_time(LEASE)
    assert await world.log.expire_leases(10) == 1
    assert await world.log.command_status(C1) == ("cancelled", 1)
    assert await messages(world, id_) == [Stopped(command_id=C1, attempt=1)]


async def test_a_worker_that_is_gone_loses_everything_at_once(world: World) -> None:
    one, id_ = await owner(world), execution(0)
    await one.leased(id_, "a", worker="w1")
    await one.leased(id_, "b", worker="w2")
    assert await world.log.lose("w1") == 1
    assert await world.log.command_status(CommandId("a")) == ("lost", 1)
    assert await world.log.command_status(CommandId("b")) == ("leased", 1)


async def test_what_is_leased_to_a_worker_can_be_sent_to_it_again(world: World) -> None:
    one, id_ = await owner(world), execution(0)
    made = await one.leased(id_)
    assert await world.log.leased("w1") == [made]
    assert await world.log.leased("w2") == []
    await one.write(id_, completed(), effects=(Finish(C1),), taken=(HELD,))
    assert await world.log.leased("w1") == []


async def test_finished_rows_go_after_an_hour(world: World) -> None:
    one, id_ = await owner(world), execution(0)
    await one.leased(id_)
    await one.write(id_, completed(), effects=(Finish(C1),), taken=(HELD,))
    await world.pass_time(3_600_000_000)
    await world.log.expire_leases(10)
    assert await world.log.command_status(C1) is None
    assert not await world.log.accept(report(id_, completed()))


# ---- reports taken by a server that does not own the execution ------------------------------------------------------


async def accepted(world: World) -> ExecutionId:
    one, id_ = await owner(world), execution(0)
    await one.leased(id_)
    return id_


async def test_an_ending_report_is_accepted_once_and_ends_the_lease(world: World) -> None:
    id_ = await accepted(world)
    told = report(id_, completed())
    assert await world.log.accept(told)
    assert await world.log.command_status(C1) == ("reported", 1)
    assert await messages(world, id_) == [told]
    assert await world.log.accept(told)
    assert len(await messages(world, id_)) == 1
    assert await world.log.leased("w1") == []
    await world.pass_time(LEASE)
    assert await world.log.expire_leases(10) == 0


async def test_a_parked_command_is_reported_like_an_ended_one(world: World) -> None:
    id_ = await accepted(world)
    assert await world.log.accept(
        report(id_, CommandParked(command_id=C1, attempt=1, task="t", reason="retry"))
    )
    assert await world.log.command_status(C1) == ("reported", 1)


async def test_a_journal_report_is_accepted_while_the_lease_stays(world: World) -> None:
    id_ = await accepted(world)
    assert await world.log.accept(report(id_, journal()))
    assert await world.log.command_status(C1) == ("leased", 1)
    assert len(await messages(world, id_)) == 1


async def test_a_stale_report_is_not_accepted(world: World) -> None:
    id_ = await accepted(world)
    assert not await world.log.accept(report(id_, completed(attempt=2)))
    assert not await world.log.accept(report(id_, completed("unknown")))
    await world.log.lose("w1")
    assert not await world.log.accept(report(id_, completed()))
    assert [type(each) for each in await messages(world, id_)] == [LeaseLost]


async def test_a_report_that_was_folded_is_still_known(world: World) -> None:
    one, id_ = await owner(world), execution(0)
    await one.leased(id_)
    told = report(id_, completed())
    await world.log.accept(told)
    (row,) = await world.log.inbox([0], 10)
    await one.write(id_, completed(), inbox=(row.inbox_id,), effects=(Finish(C1),))
    assert await world.log.command_status(C1) == ("done", 1)
    assert await world.log.accept(told)
    assert await messages(world, id_) == []
    assert not await world.log.accept(report(id_, completed(attempt=2)))


async def test_a_report_does_not_overtake_one_that_waits_in_the_inbox(world: World) -> None:
    one, id_ = await owner(world), execution(0)
    await one.leased(id_)
    await world.log.accept(report(id_, journal()))
    end = await one.part(id_, completed(), taken=(HELD,), effects=(Finish(C1),))
    assert await one.append(end) == [Known(id_)]
    (row,) = await world.log.inbox([0], 10)
    await one.write(id_, journal(), inbox=(row.inbox_id,))
    await one.write(id_, completed(), taken=(HELD,), effects=(Finish(C1),))


async def test_repeating_an_accepted_report_to_the_owner_is_known_not_stale(world: World) -> None:
    one, id_ = await owner(world), execution(0)
    await one.leased(id_)
    await world.log.accept(report(id_, completed()))
    assert await one.append(await one.part(id_, completed(), taken=(HELD,))) == [Known(id_)]
    other = LeaseKey(C1, 2)
    assert await one.append(await one.part(id_, taken=(other,))) == [StaleAttempt(id_, other)]


async def test_stopping_a_reported_command_leaves_its_report_on_the_way(world: World) -> None:
    one, id_ = await owner(world), execution(0)
    await one.leased(id_)
    await world.log.accept(report(id_, completed()))
    await one.write(id_, signal_like("s"), effects=(Stop((C1,)),))
    assert await world.log.command_status(C1) == ("reported", 1)
    assert [type(each) for each in await messages(world, id_)] == [Report]


async def test_references_are_stored_when_the_report_is_accepted_and_do_not_travel_on(
    world: World,
) -> None:
    id_ = await accepted(world)
    reference = Reference(ref_id="1", type="kv", uri=f"noetl://execution/{id_}/result/s/k")  # type: ignore[arg-type]
    await world.log.accept(
        report(id_, completed(), refs=(StoredRef(reference=reference, payload=b"x" * 60_000),))
    )
    (message,) = await messages(world, id_)
    assert message.refs == ()


# ---- requests --------------------------------------------------------------------------------------------------------


async def test_posting_twice_is_posting_once_also_after_it_was_recorded(world: World) -> None:
    one, id_ = await owner(world), execution(0)
    assert await world.log.post(id_, Pause(request="r"))
    assert not await world.log.post(id_, Pause(request="r"))
    assert await world.log.post(execution(1), Pause(request="r"))
    assert await world.log.post(id_, Signal(name="n", request="s"))
    rows = await world.log.inbox([0], 10)
    await one.write(
        id_, started(id_), signal_like("pause:r"), inbox=tuple(row.inbox_id for row in rows)
    )
    assert await world.log.inbox([0], 10) == []


async def test_inboxes_are_read_oldest_first_and_by_shard(world: World) -> None:
    for shard, name in ((1, "a"), (0, "b"), (1, "c")):
        await world.log.post(execution(shard), Pause(request=name))
    rows = await world.log.inbox([0, 1], 10)
    assert [row.message.key for row in rows] == ["pause:a", "pause:b", "pause:c"]
    assert [row.shard for row in await world.log.inbox([0], 10)] == [0]
    assert len(await world.log.inbox([0, 1], 2)) == 2


async def test_of_an_execution_set_aside_only_its_release_is_read(world: World) -> None:
    aside, other = execution(0, 0), execution(0, 1)
    await world.log.post(aside, Pause(request="a"))
    await world.log.post(aside, Release(request="r"))
    await world.log.post(other, Pause(request="b"))
    rows = await world.log.inbox([0], 10, frozenset({aside}))
    assert [row.message.key for row in rows] == ["released:r", "pause:b"]


async def test_a_start_key_names_one_execution_of_its_tenant(world: World) -> None:
    first, second = execution(0), execution(1)
    start = Start(execution_id=first, path="p", playbook="h", start_key="k")
    assert await world.log.start(start, {"a": 1}) == first
    assert await world.log.start(start, {"a": 1}) == first
    again = Start(execution_id=second, path="p", playbook="h", start_key="k")
    assert await world.log.start(again, {"a": 2}) == first
    assert await messages(world, first) == [start]
    assert await messages(world, second) == []
    pinned = await world.log.read_pinned(first)
    assert pinned is not None
    assert (pinned.workload, pinned.tenant) == ({"a": 1}, DEFAULT_TENANT)
    assert await world.log.read_pinned(second) is None


async def test_a_start_repeated_after_it_began_starts_nothing(world: World) -> None:
    one, id_ = await owner(world), execution(0)
    start = Start(execution_id=id_, path="p", playbook="h")
    await world.log.start(start, {})
    (row,) = await world.log.inbox([0], 10)
    await one.write(id_, started(id_), inbox=(row.inbox_id,))
    assert await world.log.start(start, {}) == id_
    assert await messages(world, id_) == []


async def test_what_was_read_cannot_be_changed_in_the_store(world: World) -> None:
    one, id_ = await owner(world), execution(0)
    made: Command = command(id_, scope=Scope(workload={"late": 1}))
    await one.write(id_, signal_like("a"), effects=(Issue(made),))
    made.scope.workload["later"] = 2
    (claimed,) = await world.log.claim("w1", ("cpu",), 1, LEASE)
    assert claimed.scope.workload == {"late": 1}
