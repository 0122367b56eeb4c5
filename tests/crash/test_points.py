"""Kill -9 at every named point of server and worker, and of the processes that tools run in, while executions run."""

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from random import Random
from uuid import uuid4

import httpx
import psycopg
import pytest

from noetl.faults import FAULT_POINTS
from noetl.model.ids import ExecutionId
from tests.crash.checks import check
from tests.crash.stack import run_crash_stack
from tests.crash.workload import ITEMS, PLAYBOOKS, RESULTS, make_effects, outcomes, start
from tests.postgres import server
from tests.stack import NoetlProcess, Stack
from tests.waiting import HANG_LIMIT_S, look_again

AT_SERVER = (
    "append.before",
    "append.after",
    "claim.after",
    "report.after",
    "takeover.after",
    "project.before",
    "project.after",
)
OFTEN = {
    "append.before": 12,
    "append.after": 12,
    "report.after": 8,
    "tool.before": 12,
    "tool.after": 12,
    "persist.after": 6,
}
OF_TOOLS = ("child", "fork server")  # no points of ours: processes beside the worker
PROGRESS = 5.0  # seconds from the beginning of who was started again to the next event


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """One stack for the tests of a file: they kill and start the processes that they need."""
    with server().database() as dsn:
        make_effects(dsn)
        with run_crash_stack(dsn, NOETL_CREDENTIAL_EFFECTS=f'{{"dsn": "{dsn}"}}') as made:
            yield made


@pytest.mark.parametrize("point", [*FAULT_POINTS, *OF_TOOLS])
def test_a_process_that_is_killed_costs_nothing(stack: Stack, point: str) -> None:
    asyncio.run(Killing(stack, point, Random(point)).run())


@pytest.mark.long
@pytest.mark.parametrize("number", range(20))
@pytest.mark.parametrize("point", [*FAULT_POINTS, *OF_TOOLS])
def test_a_process_that_is_killed_again_and_again_costs_nothing(
    stack: Stack, point: str, number: int
) -> None:
    asyncio.run(Killing(stack, point, Random(f"{point} {number}")).run())


class Killing:
    """Executions run, a process dies, is started again, and everything ends as if it had not."""

    def __init__(self, stack: Stack, point: str, random: Random) -> None:
        assert stack.dsn is not None
        self.stack, self.dsn, self.point = stack, stack.dsn, point
        self.nth = random.randint(1, OFTEN.get(point, 1))
        self.key = uuid4().hex
        self.begun = stack.home / f"begun-{self.key}"

    async def run(self) -> None:
        self.stack.restart_dead()
        await self.stack.become_ready()
        async with self.stack.open_client() as client:
            for text in PLAYBOOKS:
                await client.register(text)
        headers = self.stack.command.token_header
        async with httpx.AsyncClient(
            base_url=self.stack.url, trust_env=False, timeout=5, headers=headers
        ) as http:
            starting = asyncio.ensure_future(self.start(http))
            try:
                await asyncio.wait_for(self.kill(starting), HANG_LIMIT_S)
                await self.go_on(starting)
            finally:
                starting.cancel()

    async def start(self, http: httpx.AsyncClient) -> dict[str, ExecutionId]:
        """Only the loop outlives the loss of a tool's process: that is the playbook's business, and only it has a rule."""
        names = ["loop"] if self.point in OF_TOOLS else list(RESULTS)
        more = {"loop": {"begun": str(self.begun)}}
        asked = [start(http, name, f"{name}-{self.key}", **more.get(name, {})) for name in names]
        return dict(zip(names, await asyncio.gather(*asked), strict=True))

    async def kill(self, starting: "asyncio.Future[dict[str, ExecutionId]]") -> None:
        """Returns when somebody is dead."""
        stack = self.stack
        match self.point:
            case "child" | "fork server":
                await self.under_way()
                pid = int(self.begun.read_text().split()[-2])
                os.kill(pid if self.point == "child" else parent(pid), signal.SIGKILL)
            case "claim.after":  # a worker that waits is handed its commands: nobody may wait
                stack.worker.kill()
                await starting
                self.order(stack.server)
                stack.worker.start()
                await stack.server.wait_for_crash()
            case "takeover.after":
                await self.under_way()
                stack.server.kill()
                self.order(stack.server)
                stack.server.start()
                await stack.server.wait_for_crash()
            case "spool.middle":  # an ending that no server takes
                await self.under_way()
                self.order(stack.worker)
                stack.server.kill()
                await stack.worker.wait_for_crash()
            case _:
                victim = stack.server if self.point in AT_SERVER else stack.worker
                self.order(victim)
                await victim.wait_for_crash()

    def order(self, victim: NoetlProcess) -> None:
        victim.die_at(self.point, self.nth)

    async def under_way(self) -> None:
        while not self.begun.exists() or not self.begun.read_text().endswith("\n"):
            await look_again()

    async def go_on(self, starting: "asyncio.Future[dict[str, ExecutionId]]") -> None:
        before, begin = self.count_events(), time.monotonic()
        dead = self.stack.restart_dead()
        end = await self.progress(before)
        took = end - max(
            [process.began_at for process in dead if process.began_at < end], default=begin
        )
        executions = await starting
        await self.stack.become_ready()
        async with self.stack.open_client() as client:
            stories = await asyncio.wait_for(outcomes(client, executions), HANG_LIMIT_S)
            ended = {name: story.failure or story.result for name, story in stories.items()}
            assert ended == {name: RESULTS[name] for name in stories}
            await check(self.dsn, client, executions.values())
        self.every_item_left_its_mark(executions["loop"])
        assert took < PROGRESS

    async def progress(self, before: int) -> float:
        """When something is recorded that was not there before."""
        end = time.monotonic() + HANG_LIMIT_S
        while self.count_events() <= before:
            assert time.monotonic() < end, "nothing goes on"
            await look_again()
        return time.monotonic()

    def count_events(self) -> int:
        with psycopg.connect(self.dsn) as connection:
            row = connection.execute("select sum(last_seq) from noetl.execution_shard").fetchone()
            assert row is not None
            return int(row[0])

    def every_item_left_its_mark(self, execution_id: ExecutionId) -> None:
        with psycopg.connect(self.dsn) as connection:
            items = connection.execute(
                "select distinct item from effect where execution = %s", [int(execution_id)]
            )
            assert sorted(row[0] for row in items) == list(range(ITEMS))
        lines = self.begun.read_text().splitlines()
        if self.point in OF_TOOLS:
            assert len(lines) > ITEMS, "nobody was at work in what was killed"


def parent(pid: int) -> int:
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[1])
