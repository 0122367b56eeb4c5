"""Ownership: every takeover raises the epoch, independent of clocks."""

from noetl.leases.port import ClaimedShard
from tests.conformance.conftest import SHARDS, PortWorld

LEASE = 6_000_000


async def test_free_shards_are_claimed_up_to_the_limit_and_their_epoch_grows(
    world: PortWorld,
) -> None:
    one = await world.leases.register("one", "http://one", LEASE)
    assert await world.leases.claim(one.runtime_id, 3) == [
        ClaimedShard(0, 1),
        ClaimedShard(1, 1),
        ClaimedShard(2, 1),
    ]
    assert await world.leases.claim(one.runtime_id, 3) == [ClaimedShard(3, 1)]
    assert await world.leases.claim(one.runtime_id, 3) == []
    owners = await world.leases.list_owners()
    assert len(owners) == SHARDS
    assert {(each.runtime_id, each.address) for each in owners} == {(one.runtime_id, "http://one")}


async def test_a_shard_has_one_owner_until_its_lease_runs_out(world: PortWorld) -> None:
    one = await world.leases.register("one", None, LEASE)
    await world.leases.claim(one.runtime_id, SHARDS)
    two = await world.leases.register("two", None, 2 * LEASE)
    assert await world.leases.claim(two.runtime_id, SHARDS) == []
    await world.pass_time(LEASE - 1)
    assert await world.leases.renew(one.runtime_id, LEASE)
    await world.pass_time(LEASE - 1)
    assert await world.leases.claim(two.runtime_id, SHARDS) == []
    await world.pass_time(1)
    assert [each.epoch for each in await world.leases.claim(two.runtime_id, SHARDS)] == [2] * SHARDS


async def test_a_lease_that_ran_out_cannot_be_renewed_or_used(world: PortWorld) -> None:
    one = await world.leases.register("one", None, LEASE)
    await world.pass_time(LEASE)
    assert not await world.leases.renew(one.runtime_id, LEASE)
    assert await world.leases.claim(one.runtime_id, 1) == []
    assert not await world.leases.renew(99, LEASE)


async def test_servers_are_counted_by_their_leases(world: PortWorld) -> None:
    one = await world.leases.register("one", None, LEASE)
    await world.leases.register("two", None, LEASE)
    assert await world.leases.count_servers() == 2
    await world.pass_time(LEASE - 1)
    await world.leases.renew(one.runtime_id, LEASE)
    await world.pass_time(1)
    assert await world.leases.count_servers() == 1


async def test_a_released_shard_is_free_and_its_next_owner_has_a_new_epoch(
    world: PortWorld,
) -> None:
    one = await world.leases.register("one", None, LEASE)
    two = await world.leases.register("two", None, LEASE)
    await world.leases.claim(one.runtime_id, SHARDS)
    await world.leases.release_shards(two.runtime_id, [0])  # not its own: nothing happens
    assert await world.leases.claim(two.runtime_id, SHARDS) == []
    await world.leases.release_shards(one.runtime_id, [1])
    assert [each for each in await world.leases.list_owners() if each.runtime_id is None][
        0
    ].shard == 1
    assert await world.leases.claim(two.runtime_id, SHARDS) == [ClaimedShard(1, 2)]


async def test_node_numbers_of_living_servers_differ_and_are_not_reused_soon(
    world: PortWorld,
) -> None:
    one = await world.leases.register("one", None, LEASE)
    two = await world.leases.register("two", None, LEASE)
    await world.pass_time(LEASE)
    three = await world.leases.register("three", None, LEASE)
    assert len({one.node, two.node, three.node}) == 3
    assert len({one.runtime_id, two.runtime_id, three.runtime_id}) == 3
    assert all(0 <= each.node < 1024 for each in (one, two, three))


async def test_the_stores_clock_goes_on(world: PortWorld) -> None:
    before = await world.leases.read_clock()
    await world.pass_time(1_000)
    assert await world.leases.read_clock() >= before + 1_000


async def test_the_owner_of_a_shard_whose_lease_ran_out_is_nobody(world: PortWorld) -> None:
    one = await world.leases.register("one", None, LEASE)
    await world.leases.claim(one.runtime_id, 1)
    await world.pass_time(LEASE)
    assert (await world.leases.list_owners())[0].runtime_id is None


async def test_who_leaves_is_no_server_and_owns_nothing(world: PortWorld) -> None:
    one = await world.leases.register("one", None, LEASE)
    two = await world.leases.register("two", None, LEASE)
    await world.leases.claim(one.runtime_id, SHARDS)
    await world.leases.leave_cluster(one.runtime_id)
    assert await world.leases.count_servers() == 1
    assert not await world.leases.renew(one.runtime_id, LEASE)
    assert await world.leases.claim(one.runtime_id, 1) == []
    assert len(await world.leases.claim(two.runtime_id, SHARDS)) == SHARDS
    await world.leases.leave_cluster(99)  # nobody
    assert (await world.leases.register("one", None, LEASE)).node != one.node


async def test_a_duty_is_done_by_one_server_at_a_time_and_not_too_often(world: PortWorld) -> None:
    one = await world.leases.register("one", None, 100 * LEASE)
    two = await world.leases.register("two", None, 100 * LEASE)
    assert await world.leases.take_duty(one.runtime_id, "sweep", LEASE)
    assert not await world.leases.take_duty(two.runtime_id, "sweep", LEASE)
    assert await world.leases.take_duty(two.runtime_id, "other", LEASE)
    await world.leases.finish_duty(two.runtime_id, "sweep")  # not its own
    assert not await world.leases.take_duty(two.runtime_id, "sweep", LEASE)
    await world.leases.finish_duty(one.runtime_id, "sweep")
    assert not await world.leases.take_duty(two.runtime_id, "sweep", LEASE)
    await world.pass_time(LEASE)
    assert await world.leases.take_duty(two.runtime_id, "sweep", LEASE)


async def test_the_duty_of_a_server_that_is_gone_is_free(world: PortWorld) -> None:
    one = await world.leases.register("one", None, LEASE)
    assert await world.leases.take_duty(one.runtime_id, "sweep", 1)
    await world.pass_time(LEASE)
    two = await world.leases.register("two", None, LEASE)
    assert not await world.leases.take_duty(one.runtime_id, "sweep", 1)
    assert await world.leases.take_duty(two.runtime_id, "sweep", 1)
