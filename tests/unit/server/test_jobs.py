"""Jobs over the log: one server at a time, also when one of them dies over it."""

import asyncio

import pytest

from noetl.leases.memory import LeasesMemory
from noetl.server.clock import StoreClock
from noetl.server.dispatch.shards import OwnedShards, ShardKeeper
from noetl.server.duties.jobs import JOB_INTERVAL_US, LakeJobDuty
from noetl.server.settings import ServerSettings
from noetl.shard_rows import ShardRow


class Now:
    def __init__(self) -> None:
        self.at = 1_000_000

    def now(self) -> int:
        return self.at


class JobServers:
    """Keepers that share a store; what each ran."""

    def __init__(self) -> None:
        self.clock = Now()
        self.leases = LeasesMemory([ShardRow(0)], self.clock)
        self.ran: list[str] = []

    async def job(self, name: str, fails: bool = False) -> LakeJobDuty:
        settings = ServerSettings(name=name, shards=1)
        keeper = ShardKeeper(self.leases, OwnedShards(1), StoreClock(self.clock), settings)
        await keeper.run_once()

        async def run() -> None:
            self.ran.append(name)
            if fails:
                raise ValueError("no")

        return LakeJobDuty("sweep", run, self.leases, keeper)


def test_one_of_two_servers_runs_it_and_again_when_the_time_has_come() -> None:
    async def play() -> list[str]:
        servers = JobServers()
        one, two = await servers.job("one"), await servers.job("two")
        done = [(await each.run_once()).done for each in (one, two, one)]
        assert done == [1, 0, 0]
        servers.clock.at += JOB_INTERVAL_US
        three = await servers.job("three")
        assert (await three.run_once()).done == 1
        return servers.ran

    assert asyncio.run(play()) == ["one", "three"]


def test_one_that_fails_is_left_alone_for_a_while() -> None:
    async def play() -> list[str]:
        servers = JobServers()
        one = await servers.job("one", fails=True)
        with pytest.raises(ValueError, match="no"):
            await one.run_once()
        assert (await one.run_once()).done == 0
        return servers.ran

    assert asyncio.run(play()) == ["one"]


def test_without_a_lease_nothing_is_run() -> None:
    async def play() -> None:
        servers = JobServers()
        keeper = ShardKeeper(
            servers.leases, OwnedShards(1), StoreClock(servers.clock), ServerSettings(shards=1)
        )

        async def never() -> None:
            raise AssertionError

        assert (await LakeJobDuty("sweep", never, servers.leases, keeper).run_once()).done == 0

    asyncio.run(play())
