"""Playbooks that would never end or that kill their workers: they are stopped, and their neighbours do not notice."""

import asyncio
from collections.abc import Iterator
from textwrap import indent

import psycopg
import pytest

from noetl.client.http import HttpClient
from noetl.model import events as e
from noetl.model.ids import ExecutionId
from tests.crash.checks import all_events
from tests.crash.stack import run_crash_stack
from tests.crash.workload import PLAYBOOKS, RESULTS, document, make_effects, outcomes
from tests.e2e.matrix import KILLS_ITS_WORKER
from tests.postgres import server
from tests.projection import assert_projection_equals_fold
from tests.stack import Stack
from tests.waiting import HANG_LIMIT_S, look_again

NEIGHBOURS = ("chain", "loop", "pipeline", "parent")
ACTIVATIONS = 100  # instead of a million

CALLS_ITSELF = "- {step: again, tool: {kind: playbook, path: crash/calls_itself}}"
CYCLES = """
- {step: one, tool: {kind: noop}, next: two}
- {step: two, tool: {kind: noop}, next: one}
"""
KILLS = """
- {step: before, tool: {kind: python, code: "result = 1"}, next: kills}
- step: kills
  tool:
    kind: python
    code: |
"""
KILLS += indent(KILLS_ITS_WORKER, "      ")
KILLS += """  next: [{step: after, when: "{{ error is defined }}"}]
- {step: after, tool: {kind: python, input: {code: "{{ kills.error.code }}"}, code: "result = code"}}
"""


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with server().database() as dsn:
        make_effects(dsn)
        with run_crash_stack(
            dsn, NOETL_CREDENTIAL_EFFECTS=f'{{"dsn": "{dsn}"}}', CRASH_ACTIVATIONS=str(ACTIVATIONS)
        ) as made:
            yield made


async def begin(client: HttpClient, *names: str) -> dict[str, ExecutionId]:
    for text in (
        *PLAYBOOKS,
        document("calls_itself", CALLS_ITSELF),
        document("cycles", CYCLES),
        document("kills", KILLS),
    ):
        await client.register(text)
    return {name: await client.start(f"crash/{name}", None, {}) for name in names}


def test_a_playbook_that_calls_itself_or_cycles_for_ever_is_stopped(stack: Stack) -> None:
    async def run() -> None:
        await stack.become_ready()
        async with stack.open_client() as client:
            started = await begin(client, "calls_itself", "cycles", *NEIGHBOURS)
            told = await asyncio.wait_for(outcomes(client, started), HANG_LIMIT_S)
            for name in ("calls_itself", "cycles"):
                failure = told[name].failure
                assert failure is not None
                assert failure.code == "RUNAWAY", failure
            assert told["cycles"].state.activated == ACTIVATIONS
            assert {name: told[name].result for name in NEIGHBOURS} == RESULTS
            assert len(await client.list_executions(path="crash/calls_itself", limit=100)) == 33
        assert stack.dsn is not None
        await assert_projection_equals_fold(stack.dsn)

    asyncio.run(run())


def test_a_command_that_kills_its_worker_five_times_is_dead(stack: Stack) -> None:
    async def run() -> None:
        await stack.become_ready()
        async with stack.open_client() as client:
            started = await begin(client, "kills", *NEIGHBOURS)
            supervising = asyncio.ensure_future(supervise(stack))
            told = await asyncio.wait_for(outcomes(client, started), HANG_LIMIT_S)
            supervising.cancel()
            assert told["kills"].result == "WORKER_LOST"
            events = [row.event for row in await all_events(client, started["kills"])]
            (dead,) = [event for event in events if isinstance(event, e.CommandDead)]
            assert (dead.step, dead.attempt) == ("kills", 5)
            assert {name: told[name].failure or told[name].result for name in NEIGHBOURS} == RESULTS
        assert stack.dsn is not None
        with psycopg.connect(stack.dsn) as connection:
            found = connection.execute(
                "select status, attempt from noetl.command where command_id = %s", [dead.command_id]
            )
            assert found.fetchall() == [("dead", 5)]
        await assert_projection_equals_fold(stack.dsn)

    asyncio.run(run())


async def supervise(stack: Stack) -> None:
    while True:
        stack.restart_dead()
        await look_again()
