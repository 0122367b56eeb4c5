"""The queue: claiming, renewing, losing, and the lists that people read."""

from noetl.log.queue.port import QueueDepth, QueueEntry
from noetl.model.commands import Journal
from noetl.model.decisions import Finish, Issue, Requeue, Stop
from noetl.model.exchange import LeaseKey
from noetl.model.ids import DEFAULT_TENANT, CommandId, ExecutionId, Tenant
from noetl.model.messages import LeaseLost, Stopped
from tests.conformance.conftest import PortWorld
from tests.conformance.shard_owner import (
    LEASE,
    command,
    execution,
    journal,
    make_completed,
    make_end,
    make_start,
    messages,
    owner,
    report,
    signal_like,
)

C1 = CommandId("c1")
HELD = LeaseKey(C1, 1)
OTHER = Tenant(2)


async def claim(world: PortWorld, limit: int = 10, pools: tuple[str, ...] = ("cpu",)) -> list[str]:
    return [
        each.command_id
        for each in await world.queue.claim_commands(DEFAULT_TENANT, "w1", pools, limit, LEASE)
    ]


async def test_higher_priority_first_then_the_order_of_issue(world: PortWorld) -> None:
    one, id_ = await owner(world), execution(0)
    for name, priority in (("a", 0), ("b", 5), ("c", 0), ("d", 5)):
        await one.issue(id_, name, priority=priority)
    assert await claim(world, 3) == ["b", "d", "a"]
    assert await claim(world) == ["c"]


async def test_a_worker_gets_commands_of_its_pools_only(world: PortWorld) -> None:
    one, id_ = await owner(world), execution(0)
    await one.issue(id_, "a", pool="gpu")
    await one.issue(id_, "b", pool="cpu")
    assert await claim(world, pools=("io",)) == []
    assert await claim(world, pools=("cpu", "gpu")) == ["a", "b"]


async def test_a_command_is_claimable_from_its_moment_on(world: PortWorld) -> None:
    one, id_ = await owner(world), execution(0)
    effect = Issue(command(id_), available_at=world.clock.now() + 1_000)
    await one.write(id_, signal_like("a"), effects=(effect,))
    assert await claim(world) == []
    await world.pass_time(1_000)
    assert await claim(world) == ["c1"]


async def test_of_commands_that_lost_two_workers_a_worker_holds_one(world: PortWorld) -> None:
    """A command that killed both workers runs alone next; the commands beside it do not die with it again."""
    one, id_ = await owner(world), execution(0)
    for name in ("a", "b", "c"):
        await one.issue(id_, name)
    for attempt in (2, 3):
        assert await claim(world) == ["a", "b", "c"]
        assert await world.queue.end_leases("w1") == 3
        requeues = tuple(Requeue(CommandId(name), attempt, Journal()) for name in ("a", "b", "c"))
        await one.write(id_, signal_like(f"lost {attempt}"), effects=requeues)
    await one.issue(id_, "new")
    assert await claim(world) == ["a", "new"]
    await one.issue(id_, "newer")
    assert await claim(world) == ["newer"]
    assert [
        each.command_id
        for each in await world.queue.claim_commands(DEFAULT_TENANT, "w2", ("cpu",), 1, LEASE)
    ] == ["b"]
    await one.write(id_, make_completed("a", 3), effects=(Finish(CommandId("a")),))
    assert await claim(world, 0) == []
    assert await claim(world) == ["c"]


async def test_claiming_does_not_change_the_attempt(world: PortWorld) -> None:
    one, id_ = await owner(world), execution(0)
    assert (await one.lease_command(id_)).attempt == 1
    assert await world.queue.find_status(C1) == ("leased", 1)


async def test_a_renewed_lease_holds_and_one_that_is_not_renewed_is_lost(world: PortWorld) -> None:
    one, id_ = await owner(world), execution(0)
    await one.lease_command(id_)
    await world.pass_time(LEASE - 1)
    assert await world.queue.expire_leases(10) == 0
    await world.queue.renew_leases(DEFAULT_TENANT, "w1", (HELD,), LEASE)
    await world.pass_time(LEASE - 1)
    assert await world.queue.expire_leases(10) == 0
    await world.pass_time(1)
    assert await world.queue.expire_leases(10) == 1
    assert await world.queue.find_status(C1) == ("lost", 1)
    assert await messages(world, id_) == [LeaseLost(command_id=C1, attempt=1, worker="w1")]
    assert await world.queue.expire_leases(10) == 0
    assert await claim(world) == []


async def test_progress_stands_until_the_next_renewal_while_the_lease_does(
    world: PortWorld,
) -> None:
    one, id_ = await owner(world), execution(0)
    await one.lease_command(id_)

    async def list_progress() -> list[str | None]:
        return [
            row.progress
            for row in await world.queue.list_commands(DEFAULT_TENANT, execution_id=id_)
        ]

    await world.queue.renew_leases(
        DEFAULT_TENANT, "w1", (HELD,), LEASE, {HELD: "1/2", LeaseKey(C1, 2): "2/2"}
    )
    assert await list_progress() == ["1/2"]
    await world.queue.renew_leases(DEFAULT_TENANT, "w2", (HELD,), LEASE, {HELD: "another's"})
    assert await list_progress() == ["1/2"]
    await world.queue.renew_leases(DEFAULT_TENANT, "w1", (HELD,), LEASE)
    assert await list_progress() == [None]
    await world.queue.renew_leases(DEFAULT_TENANT, "w1", (HELD,), LEASE, {HELD: "2/2"})
    await world.queue.end_leases("w1")
    assert await list_progress() == [None]


async def test_a_lost_command_can_be_lost_again_as_its_next_attempt(world: PortWorld) -> None:
    one, id_ = await owner(world), execution(0)
    await one.lease_command(id_)
    await world.queue.end_leases("w1")
    await one.write(id_, signal_like("r"), effects=(Requeue(C1, 2, Journal()),))
    assert await claim(world) == ["c1"]
    await world.queue.end_leases("w1")
    assert [each.attempt for each in await messages(world, id_)] == [1, 2]


async def test_what_is_not_held_by_this_worker_as_this_attempt_is_lost_to_it(
    world: PortWorld,
) -> None:
    one, id_ = await owner(world), execution(0)
    await one.lease_command(id_)
    for worker, held in (
        ("w2", HELD),
        ("w1", LeaseKey(C1, 2)),
        ("w1", LeaseKey(CommandId("unknown"), 1)),
    ):
        renewal = await world.queue.renew_leases(DEFAULT_TENANT, worker, (held,), LEASE)
        assert (renewal.stop, renewal.lost) == ((), (held,))


async def test_a_lease_that_runs_out_while_it_is_being_stopped_is_stopped(world: PortWorld) -> None:
    one, id_ = await owner(world), execution(0)
    await one.lease_command(id_)
    await one.write(id_, signal_like("s"), effects=(Stop((C1,)),))
    await world.pass_time(LEASE)
    assert await world.queue.expire_leases(10) == 1
    assert await world.queue.find_status(C1) == ("cancelled", 1)
    assert await messages(world, id_) == [Stopped(command_id=C1, attempt=1)]


async def test_a_worker_that_is_gone_loses_everything_at_once(world: PortWorld) -> None:
    one, id_ = await owner(world), execution(0)
    await one.lease_command(id_, "a", worker="w1")
    await one.lease_command(id_, "b", worker="w2")
    assert await world.queue.end_leases("w1") == 1
    assert await world.queue.find_status(CommandId("a")) == ("lost", 1)
    assert await world.queue.find_status(CommandId("b")) == ("leased", 1)


async def test_what_is_leased_to_a_worker_can_be_sent_to_it_again(world: PortWorld) -> None:
    one, id_ = await owner(world), execution(0)
    made = await one.lease_command(id_)
    assert await world.queue.list_leased_commands(DEFAULT_TENANT, "w1") == [made]
    assert await world.queue.list_leased_commands(DEFAULT_TENANT, "w2") == []
    await one.write(id_, make_completed(), effects=(Finish(C1),), taken=(HELD,))
    assert await world.queue.list_leased_commands(DEFAULT_TENANT, "w1") == []


async def test_a_command_that_is_done_leaves_the_queue_at_once(world: PortWorld) -> None:
    one, id_ = await owner(world), execution(0)
    await one.lease_command(id_)
    await one.write(id_, make_completed(), effects=(Finish(C1),), taken=(HELD,))
    assert await world.queue.find_status(C1) is None
    assert await world.queue.list_commands(DEFAULT_TENANT) == []
    assert await world.inbox.accept_report(DEFAULT_TENANT, report(id_, make_completed()))
    assert not await world.inbox.accept_report(
        DEFAULT_TENANT, report(id_, make_completed(attempt=2))
    )
    assert not await world.inbox.accept_report(DEFAULT_TENANT, report(id_, journal()))


async def test_rows_of_dead_commands_go_after_an_hour(world: PortWorld) -> None:
    one, id_ = await owner(world), execution(0)
    await one.lease_command(id_)
    await one.write(id_, journal(), effects=(Finish(C1, "dead"),), taken=(HELD,))
    assert await world.queue.find_status(C1) == ("dead", 1)
    await world.pass_time(3_600_000_000)
    await world.queue.expire_leases(10)
    assert await world.queue.find_status(C1) is None
    assert not await world.inbox.accept_report(DEFAULT_TENANT, report(id_, make_completed()))


async def test_the_queue_is_listed_in_the_order_of_issue(world: PortWorld) -> None:
    owned = await owner(world)
    one, two = ExecutionId("1"), ExecutionId("2")
    for execution_id in (one, two):
        await owned.write(execution_id, make_start(execution_id))
    await owned.issue(one, "a", priority=1)
    await owned.issue(two, "b", pool="gpu")
    await owned.issue(one, "c")
    rows = await world.queue.list_commands(DEFAULT_TENANT)
    assert [row.command_id for row in rows] == ["a", "b", "c"]
    assert [
        row.command_id
        for row in await world.queue.list_commands(DEFAULT_TENANT, after=rows[0].number, limit=1)
    ] == ["b"]
    assert [
        row.command_id for row in await world.queue.list_commands(DEFAULT_TENANT, pool="gpu")
    ] == ["b"]
    assert [
        row.command_id for row in await world.queue.list_commands(DEFAULT_TENANT, execution_id=one)
    ] == [
        "a",
        "c",
    ]
    assert await world.queue.list_commands(OTHER) == []


async def test_a_leased_command_says_who_holds_it_and_for_how_long(world: PortWorld) -> None:
    owned = await owner(world)
    execution_id = ExecutionId("1")
    await owned.write(execution_id, make_start(execution_id))
    await owned.lease_command(execution_id, "a", worker="w1/1")
    (row,) = await world.queue.list_commands(DEFAULT_TENANT, status="leased")
    assert row.lease_until is not None
    expected = QueueEntry(
        number=row.number, command_id=CommandId("a"), execution_id=execution_id, step="s", kind="run", pool="cpu",
        status="leased", attempt=1, worker="w1/1", lease_until=row.lease_until,
    )  # fmt: skip
    assert row == expected
    assert await world.queue.list_commands(DEFAULT_TENANT, status="queued") == []


async def test_depths_count_what_is_not_over(world: PortWorld) -> None:
    owned = await owner(world)
    execution_id = ExecutionId("1")
    await owned.write(execution_id, make_start(execution_id))
    await owned.lease_command(execution_id, "a")
    await owned.issue(execution_id, "b")
    await owned.issue(execution_id, "c", pool="gpu")
    await owned.issue(execution_id, "d")
    await owned.write(execution_id, make_end(), effects=(Finish(CommandId("d"), "cancelled"),))
    expected = [
        QueueDepth("cpu", "leased", 1),
        QueueDepth("cpu", "queued", 1),
        QueueDepth("gpu", "queued", 1),
    ]
    assert await world.queue.count_commands() == expected
    assert await world.queue.count_commands(DEFAULT_TENANT) == expected
    assert await world.queue.count_commands(OTHER) == []


async def test_commands_are_found_by_their_ids(world: PortWorld) -> None:
    shard = await owner(world)
    id_ = execution(0)
    await shard.write(id_, make_start(id_))
    await shard.issue(id_, "c2")
    await shard.lease_command(id_, "c1", "w1")
    wanted = [CommandId("c1"), CommandId("none"), CommandId("c2")]
    found = await world.queue.find_commands(wanted)
    assert {(row.command_id, row.status) for row in found} == {("c1", "queued"), ("c2", "leased")}
    assert [row.number for row in found] == sorted(row.number for row in found)
    assert await world.queue.find_commands([]) == []
