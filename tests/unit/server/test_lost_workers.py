"""Workers whose processes are gone lose their commands at once, and others lose nothing."""

import asyncio

from noetl.server.duties.lost_workers import FORGET_AFTER_S, RUNS_PER_IDLE_LOOK, LostWorkers
from tests.unit.server.cluster import (
    SHARDS,
    ServerCluster,
    claim,
    exchange,
    make_lease_key,
    open_cluster,
    report_completed,
)


class DeadHolders:
    """The locks of a machine on which these holders are gone."""

    def __init__(self, *holders: str) -> None:
        self.holders = list(holders)

    async def find_dead_holders(self) -> list[str]:
        return list(self.holders)

    async def forget(self, holder: str) -> None:
        self.holders.remove(holder)


def make_duty(cluster: ServerCluster, locks: DeadHolders) -> LostWorkers:
    return LostWorkers(locks, cluster.stores.queue, cluster.bus, SHARDS)


async def test_command_of_a_dead_worker_goes_to_another_and_its_late_report_is_refused() -> None:
    async with open_cluster() as cluster:
        node = await cluster.add_node()
        await cluster.start_execution(node)
        lost = await claim(node, "w1")
        duty = make_duty(cluster, DeadHolders("w1/1"))
        assert (await duty.run_once()).done == 1
        await node.drain()
        again = await claim(node, "w2")
        assert (again.command_id, again.attempt) == (lost.command_id, 2)
        reply = await exchange(node, report_completed(lost))
        assert [ack.status for ack in reply.acks] == ["stale"]


async def test_command_of_a_living_worker_stays_with_it() -> None:
    async with open_cluster() as cluster:
        node = await cluster.add_node()
        await cluster.start_execution(node)
        held = await claim(node, "w1")
        assert (await make_duty(cluster, DeadHolders("w1/0", "w2/1")).run_once()).done == 0
        assert (await exchange(node, holds=(held,))).stop == ()


async def test_lease_that_a_dead_worker_is_given_late_is_ended_too() -> None:
    """A request that it sent before it died is answered after the first look."""
    async with open_cluster() as cluster:
        node = await cluster.add_node()
        duty = make_duty(cluster, DeadHolders("w1/1"))
        assert (await duty.run_once()).done == 0
        await cluster.start_execution(node)
        late = await claim(node, "w1")
        assert (await duty.run_once()).done == 1
        assert (await exchange(node, holds=(late,))).stop == (make_lease_key(late),)


async def test_dead_worker_is_forgotten_after_a_while() -> None:
    async with open_cluster() as cluster:
        locks = DeadHolders("w1/1")
        duty = make_duty(cluster, locks)
        await duty.run_once()
        assert locks.holders == ["w1/1"]
        await asyncio.sleep(FORGET_AFTER_S)
        await duty.run_once()
        assert locks.holders == []


async def test_an_idle_server_looks_less_often() -> None:
    async with open_cluster() as cluster:
        node = await cluster.add_node()
        await cluster.start_execution(node)
        await claim(node, "w1")
        locks = DeadHolders()
        duty = make_duty(cluster, locks)
        await duty.run_once()
        locks.holders.append("w1/1")
        idle = [(await duty.run_once()).done for _ in range(RUNS_PER_IDLE_LOOK)]
        assert idle == [0] * (RUNS_PER_IDLE_LOOK - 1) + [1]


async def test_a_server_that_has_appended_looks_at_once() -> None:
    async with open_cluster() as cluster:
        node = await cluster.add_node()
        await cluster.start_execution(node)
        await claim(node, "w1")
        locks = DeadHolders()
        duty = make_duty(cluster, locks)
        await duty.run_once()
        locks.holders.append("w1/1")
        duty.mark_changed([0])
        assert (await duty.run_once()).done == 1
