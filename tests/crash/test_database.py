"""Postgres dies by kill -9 while a loop runs, again and again; the server that it belongs to starts it again."""

import asyncio
import json
import os
import signal
import time

import psycopg
import pytest

from noetl.embedded import EmbeddedPostgres
from noetl.embedded.postgres import read_postmaster
from tests.crash.checks import check
from tests.crash.stack import run_crash_stack
from tests.crash.workload import PLAYBOOKS, make_effects, outcomes
from tests.stack import Stack
from tests.waiting import HANG_LIMIT_S, look_again

PROGRESS = 5.0  # seconds from when the database answers again to the next event


def test_a_database_that_is_killed_costs_nothing() -> None:
    asyncio.run(kill_database(times=2, items=200))


@pytest.mark.long
def test_a_database_that_is_killed_ten_times_costs_nothing() -> None:
    asyncio.run(kill_database(times=10, items=1_000))


async def kill_database(times: int, items: int) -> None:
    with run_crash_stack(None, workers=0) as stack:
        await stack.become_ready()
        database = Database(stack)
        make_effects(database.data)
        stack.start_worker(NOETL_CREDENTIAL_EFFECTS=json.dumps({"dsn": database.data}))
        async with stack.open_client() as client:
            for text in PLAYBOOKS:
                await client.register(text)
            execution_id = await client.start("crash/loop", None, {"count": items, "pause": 0.02})
            for number in range(times):
                await database.reaches(
                    "select count(distinct item) from effect", items * (number + 0.5) / times
                )
                await database.dies_and_comes_back()
            told = (await asyncio.wait_for(outcomes(client, {"loop": execution_id}), HANG_LIMIT_S))[
                "loop"
            ]
            squares = [number * number for number in range(items)]
            assert (told.failure, told.result) == (
                None,
                {"total": sum(squares), "squares": squares},
            )
            await check(database.control, client, [execution_id])
        with psycopg.connect(database.data) as connection:
            marks = connection.execute("select distinct item from effect order by item").fetchall()
        assert [row[0] for row in marks] == list(range(items))


class Database:
    """The embedded database of a stack. Its addresses stay the same over restarts."""

    def __init__(self, stack: Stack) -> None:
        self.embedded = EmbeddedPostgres(stack.home)
        dsns = self.embedded.make_dsns(self.port)
        assert dsns.data is not None
        self.control, self.data = dsns.control, dsns.data

    @property
    def port(self) -> int:
        port = self.embedded.cluster.read_last_port()
        assert port is not None
        return port

    async def dies_and_comes_back(self) -> None:
        postmaster = read_postmaster(self.embedded.cluster.data)
        assert postmaster is not None
        os.kill(postmaster.pid, signal.SIGKILL)
        while (
            again := read_postmaster(self.embedded.cluster.data)
        ) is None or again.pid == postmaster.pid:
            await look_again()
        before, begin = await self.count_events(), time.monotonic()
        while await self.count_events() <= before:
            await look_again()
        assert time.monotonic() - begin < PROGRESS

    async def count_events(self) -> int:
        return await self.ask(self.control, "select sum(last_seq)::int from noetl.execution_shard")

    async def reaches(self, query: str, wanted: float) -> None:
        while await self.ask(self.data, query) < wanted:
            await look_again()

    async def ask(self, dsn: str, query: str) -> int:
        """Asked until it answers."""
        end = time.monotonic() + HANG_LIMIT_S
        while True:
            try:
                async with await psycopg.AsyncConnection.connect(dsn) as connection:
                    row = await (await connection.execute(query)).fetchone()
                    assert row is not None
                    return int(row[0])
            except psycopg.OperationalError:
                assert time.monotonic() < end, "the database does not come back"
                await look_again()
