"""Ownership and projections: shards move, epochs decide, rows follow the log."""

import asyncio

import pytest

from noetl.engine.state import decode_execution
from noetl.leases.port import ClaimedShard
from noetl.model.errors import OutcomeUnknown, StoreUnavailable
from noetl.model.ids import DEFAULT_TENANT
from noetl.server.duties.loop import Counts, DutyLoop
from noetl.server.node import Server
from noetl.server.settings import ServerSettings
from tests.unit.server.cluster import (
    CHAIN,
    SHARDS,
    claim,
    exchange,
    finish,
    list_statuses,
    open_cluster,
    report_completed,
)


async def test_servers_share_the_shards_and_a_newcomer_gets_its_part() -> None:
    async with open_cluster() as cluster:
        one = await cluster.add_node("one")
        assert one.server.shards.list_owned() == [0, 1, 2, 3]
        two = await cluster.add_node("two")
        assert two.server.shards.list_owned() == []
        assert await one.claim_shards() == [0, 1]
        assert await two.claim_shards() == [2, 3]
        three = await cluster.add_node("three")
        assert (await one.claim_shards(), await two.claim_shards(), await three.claim_shards()) == (
            [0, 1],
            [2, 3],
            [],
        )


async def test_shards_of_a_server_that_is_gone_are_taken_over() -> None:
    async with open_cluster() as cluster:
        one, two = await cluster.add_node("one"), await cluster.add_node("two")
        await one.claim_shards()
        await two.claim_shards()
        cluster.clock.time += 5_000_000
        await two.claim_shards()
        cluster.clock.time += 1_000_000
        assert await two.claim_shards() == [0, 1, 2, 3]
        assert await one.claim_shards() == []  # its lease had run out: it begins again


async def test_a_claim_whose_reply_was_lost_is_read_back(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_cluster() as cluster:
        node = await cluster.add_node()
        for shard in node.server.shards.list_owned():
            node.server.shards.drop(shard)
        await cluster.leases.release_shards(1, [0, 1, 2, 3])
        real = cluster.leases.claim

        async def claim_and_fail(runtime_id: int, limit: int) -> list[ClaimedShard]:
            await real(runtime_id, limit)
            raise OutcomeUnknown("reply lost")

        monkeypatch.setattr(cluster.leases, "claim", claim_and_fail)
        with pytest.raises(OutcomeUnknown):
            await node.claim_shards()
        assert node.server.shards.list_owned() == []
        assert await node.claim_shards() == [0, 1, 2, 3]
        assert set(node.server.shards.copy_epochs().values()) == {2}


async def test_what_one_server_began_another_finishes() -> None:
    async with open_cluster() as cluster:
        one = await cluster.add_node("one")
        id_ = await cluster.start_execution(one)
        command = await claim(one)
        cluster.clock.time += 5_000_000
        await cluster.stores.queue.renew_leases(DEFAULT_TENANT, "w1/1", (), 0)
        cluster.database.leased[command.command_id].lease_until += 10_000_000
        cluster.clock.time += 1_000_000
        two = await cluster.add_node("two")
        assert list_statuses((await exchange(two, report_completed(command))).acks) == ["ok"]
        await finish(two, id_)
        assert (await cluster.list_types(id_))[-1] == "playbook.completed"


async def test_times_are_the_stores_whatever_the_servers_clock_says() -> None:
    class Wrong:
        def now(self) -> int:
            return 0

    async with open_cluster() as cluster:
        node = await cluster.add_node()
        node.server.keeper._clock._local = Wrong()
        id_ = await cluster.start_execution(node)
        at = (await cluster.stores.log.read_events(id_))[0].event.at
        assert abs(at - cluster.clock.now()) < 1_000_000


async def test_projections_follow_the_log_and_hold_the_folded_state() -> None:
    async with open_cluster() as cluster:
        node = await cluster.add_node()
        id_ = await cluster.start_execution(node)
        await node.project()
        row = await cluster.stores.projections.read_projection(id_)
        assert row is not None
        assert (row.status, row.path, row.last_seq) == (
            "running",
            "chain",
            await cluster.stores.log.read_last_seq(id_),
        )
        await finish(node, id_)
        await node.project()
        row = await cluster.stores.projections.read_projection(id_)
        assert row is not None
        assert row.status == "completed"
        assert row.state is not None
        node.server.states.forget(id_)
        loaded = await node.server.states.read(id_)
        assert loaded is not None
        assert loaded.state == decode_execution(row.state)
        shard = node.server.shards.find_shard(id_)
        assert await cluster.stores.projections.read_checkpoint(shard) == row.last_seq


async def test_a_state_loaded_from_a_snapshot_equals_one_folded_from_the_beginning() -> None:
    async with open_cluster() as cluster:
        node = await cluster.add_node()
        id_ = await cluster.start_execution(node)
        await node.project()
        await exchange(node, report_completed(await claim(node)))
        node.server.states.forget(id_)
        from_snapshot = await node.server.states.read(id_)
        cluster.database.projections.clear()
        from_log = await node.server.states.read(id_)
        assert from_snapshot is not None
        assert from_log is not None
        assert (from_snapshot.state, from_snapshot.seq) == (from_log.state, from_log.seq)


async def test_a_damaged_snapshot_is_not_used() -> None:
    async with open_cluster() as cluster:
        node = await cluster.add_node()
        id_ = await cluster.start_execution(node)
        await node.project()
        row = cluster.database.projections[id_]
        cluster.database.projections[id_] = row.replace(b'"state_hash":"', b'"state_hash":"0')
        loaded = await node.server.states.read(id_)
        assert loaded is not None
        assert loaded.state.status == "running"


async def test_the_next_owner_projects_what_the_last_one_had_not() -> None:
    async with open_cluster() as cluster:
        one = await cluster.add_node("one")
        id_ = await cluster.start_execution(one)
        cluster.clock.time += 6_000_000
        two = await cluster.add_node("two")
        await one.server.projector.run_once()  # fenced
        assert not one.server.shards.owns(one.server.shards.find_shard(id_))
        assert await cluster.stores.projections.read_projection(id_) is None
        await two.server.projector.run_once()
        assert await cluster.stores.projections.read_projection(id_) is not None


async def test_a_duty_survives_whatever_it_raises() -> None:
    class Stubborn:
        name = "stubborn"

        def __init__(self) -> None:
            self.runs = 0
            self.enough = asyncio.Event()

        async def run_once(self) -> Counts:
            self.runs += 1
            if self.runs == 6:
                self.enough.set()
            if self.runs == 1:
                raise StoreUnavailable("down")
            if self.runs == 2:
                raise ZeroDivisionError
            return Counts(1, has_more=self.runs < 5)

    duty = Stubborn()
    loop = DutyLoop(duty, 0.001)
    task = asyncio.create_task(loop.run())
    await duty.enough.wait()
    task.cancel()
    assert (loop.failures, loop.done >= 3) == (2, True)


async def test_a_whole_server_runs_by_itself() -> None:
    async with open_cluster() as cluster:
        settings = ServerSettings(name="alone", shards=SHARDS)
        server = Server(
            cluster.stores, cluster.leases, cluster.bus, cluster.catalog, cluster.clock, settings
        )
        await cluster.catalog.register("chain", CHAIN)
        task = asyncio.create_task(server.run())
        owner = asyncio.Event()
        server.shards.on_change.append(lambda shard: owner.set())

        class Alone:
            def __init__(self) -> None:
                self.server = server

        node = Alone()
        await owner.wait()
        id_ = await server.requests.start("chain")
        for _ in range(2):
            (command,) = (await exchange(node, free=1, wait=5)).commands  # type: ignore[arg-type]
            assert list_statuses((await exchange(node, report_completed(command))).acks) == ["ok"]  # type: ignore[arg-type]
        assert (await cluster.list_types(id_))[-1] == "playbook.completed"
        assert await server.fetch_playbook(command.playbook) == CHAIN
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert all(owner.runtime_id is None for owner in await cluster.leases.list_owners())
