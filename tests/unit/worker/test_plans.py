"""The cache of plans: what many commands need at once is fetched once."""

import asyncio

import pytest

from noetl.playbook.validation import source_hash
from noetl.worker.plans import PlanCache
from tests.unit.worker.test_worker import TEXT, ScriptedServer
from tests.waiting import run_virtually


class SlowServer(ScriptedServer):
    """Answers when the test lets it."""

    def __init__(self) -> None:
        super().__init__()
        self.may_answer = asyncio.Event()

    async def fetch_playbook(self, content: str) -> str:
        text = await super().fetch_playbook(content)
        await self.may_answer.wait()
        return text


def test_commands_that_need_a_plan_at_once_fetch_it_once() -> None:
    async def test() -> None:
        server = SlowServer()
        plans = PlanCache(server, 8)
        content = source_hash(TEXT)
        waiting = [asyncio.ensure_future(plans.load_plan(content)) for _ in range(16)]
        await asyncio.sleep(0.1)
        server.may_answer.set()
        loaded = await asyncio.gather(*waiting)
        assert server.fetched == 1
        assert all(plan is loaded[0] for plan in loaded)

    run_virtually(test())


def test_a_plan_is_fetched_by_the_next_command_if_the_first_is_cancelled() -> None:
    async def test() -> None:
        server = SlowServer()
        plans = PlanCache(server, 8)
        content = source_hash(TEXT)
        first = asyncio.ensure_future(plans.load_plan(content))
        second = asyncio.ensure_future(plans.load_plan(content))
        await asyncio.sleep(0.1)
        first.cancel()
        server.may_answer.set()
        plan = await second
        assert plan is await plans.load_plan(content)
        assert server.fetched == 2
        with pytest.raises(asyncio.CancelledError):
            await first

    run_virtually(test())
