"""A worker dies in the middle of a pagination, of a pipeline, and between what a sink commits and what is reported of it."""

import asyncio
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from noetl.model import events as e
from noetl.model.ids import ExecutionId
from tests.api.process import Api, run_api
from tests.crash.checks import all_events, check
from tests.crash.stack import run_crash_stack
from tests.crash.workload import document, outcomes
from tests.postgres import server
from tests.stack import Stack
from tests.waiting import HANG_LIMIT_S, look_again

PATH = "/api/v1/assessments"

PAGES = """
- step: fetch
  tool:
    kind: http
    url: "{{ workload.base }}/api/v1/assessments"
    params: {page: 1, pageSize: 5, total: "{{ workload.total }}"}
    spec:
      paginate:
        when: "{{ response.paging.hasMore }}"
        next_call: {params: {page: "{{ response.paging.page + 1 }}"}}
        max_attempts: 10000
        sink: {target: {kind: postgres, auth: rows, table: page_row}, data: "{{ response.data.data }}"}
"""

# Every task leaves a row behind, each time it runs.
PIPELINE = """
- step: pipe
  tool:
    - {name: one, kind: postgres, auth: rows, query: "insert into mark values ({{ execution_id }}, 'one') returning 1 as n"}
    - {name: two, kind: postgres, auth: rows, query: "insert into mark values ({{ execution_id }}, 'two') returning 2 as n"}
    - {name: three, kind: postgres, auth: rows, query: "insert into mark values ({{ execution_id }}, 'three') returning 3 as n"}
    - {name: four, kind: postgres, auth: rows, query: "insert into mark values ({{ execution_id }}, 'four') returning 4 as n"}
    - name: five
      kind: python
      input: {a: "{{ one.rows[0].n }}", b: "{{ two.rows[0].n }}", c: "{{ three.rows[0].n }}", d: "{{ _prev.rows[0].n }}"}
      code: "result = [a, b, c, d]"
"""

LOOP = """
- step: each
  loop: {in: "{{ range(workload.items) }}", iterator: n, spec: {mode: parallel, max_in_flight: 8, chunk: 10}}
  tool:
    - {name: square, kind: python, input: {n: "{{ n }}"}, code: "result = {'n': n, 'square': n * n}"}
    - {name: keep, kind: sink, target: {kind: postgres, auth: rows, table: item_row}}
"""


# A claim gives more rows than a frame has, or fewer.
CURSOR = """
- step: each
  loop:
    iterator: row
    cursor:
      kind: postgres
      auth: rows
      claim: |
        with taken as (
          update job set claimed = true
          where n in (select n from job where not claimed order by n limit {{ workload.claim }} for update skip locked)
          returning n)
        select n from taken order by n
    spec: {mode: cursor, frame: {size: 5}}
  tool:
    - {name: square, kind: python, input: {n: "{{ row.n }}"}, code: "result = {'n': n, 'square': n * n}"}
    - {name: keep, kind: sink, target: {kind: postgres, auth: rows, table: item_row}}
  next: all
- {step: all, tool: {kind: python, input: {rows: "{{ each.rows }}"}, code: "result = rows"}}
"""


@pytest.fixture(scope="module")
def api() -> Iterator[Api]:
    with run_api() as made:
        yield made


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with server().database() as dsn:
        do(dsn, "create table page_row (id int, name text, score int, remark text); create table item_row (n int, square int);"
                "create table job (n int primary key, claimed bool not null);"
                "create table mark (execution bigint, task text)")  # fmt: skip
        with run_crash_stack(dsn, NOETL_CREDENTIAL_ROWS=f'{{"dsn": "{dsn}"}}') as made:
            yield made


def do(dsn: str | None, query: str) -> list[Any]:
    assert dsn is not None
    with psycopg.connect(dsn, autocommit=True) as connection:
        done = connection.execute(query.encode())
        return done.fetchall() if done.description else []


async def run_and_kill(
    stack: Stack, playbook: str, payload: dict[str, Any], point: str, nth: int
) -> tuple[Any, ExecutionId]:
    """Its result, though its worker died where it was told to."""
    stack.restart_dead()
    await stack.become_ready()
    async with stack.open_client() as client:
        path = (await client.register(playbook))["path"]
        stack.worker.die_at(point, nth)
        execution_id = await client.start(path, None, payload)
        await stack.worker.wait_for_crash()
        stack.restart_dead()
        told = (await asyncio.wait_for(outcomes(client, {"it": execution_id}), HANG_LIMIT_S))["it"]
        assert told.failure is None, told.failure
        assert stack.dsn is not None
        await check(stack.dsn, client, [execution_id])
        return told.result, execution_id


def test_a_pagination_goes_on_at_the_next_page(stack: Stack, api: Api) -> None:
    asyncio.run(page_and_kill(stack, api, pages=60, at=30))


@pytest.mark.long
def test_a_pagination_of_a_thousand_pages_goes_on_at_the_next_page(stack: Stack, api: Api) -> None:
    asyncio.run(page_and_kill(stack, api, pages=1_000, at=500))


async def page_and_kill(stack: Stack, api: Api, pages: int, at: int) -> None:
    """At most one page is fetched twice: the one that was not in the journal yet."""
    api.forget()
    do(stack.dsn, "truncate page_row")
    payload = {"total": 5 * pages, "base": api.url}
    await run_and_kill(
        stack, document("pages", PAGES, base="", total=0), payload, "journal.after", at
    )
    assert pages <= api.calls()[PATH] <= pages + 1
    assert do(stack.dsn, "select id from page_row order by id") == [
        (id,) for id in range(1, 5 * pages + 1)
    ]


def test_a_page_that_was_stored_and_not_reported_is_not_stored_again(
    stack: Stack, api: Api
) -> None:
    """Its call, then its sink: the tenth of both is the fifth page's sink."""
    api.forget()
    do(stack.dsn, "truncate page_row")
    payload = {"total": 50, "base": api.url}
    asyncio.run(
        run_and_kill(stack, document("pages", PAGES, base="", total=0), payload, "tool.after", 10)
    )
    assert api.calls()[PATH] == 11
    assert do(stack.dsn, "select id from page_row order by id") == [(id,) for id in range(1, 51)]


@pytest.mark.parametrize(("point", "again"), [("journal.after", 0), ("tool.after", 1)])
def test_a_pipeline_goes_on_after_its_last_finished_task(
    stack: Stack, point: str, again: int
) -> None:
    """Killed after the third task: what was in the journal runs once, what was not runs again."""
    result, execution_id = asyncio.run(
        run_and_kill(stack, document("tasks", PIPELINE), {}, point, 3)
    )
    assert result == [1, 2, 3, 4]
    ran = dict(
        do(
            stack.dsn,
            f"select task, count(*) from mark where execution = {execution_id} group by 1",
        )
    )
    assert ran == {"one": 1, "two": 1, "three": 1 + again, "four": 1}


@pytest.mark.parametrize("nth", [2, 7, 40, 61])
def test_items_that_were_stored_and_not_reported_are_not_stored_again(
    stack: Stack, nth: int
) -> None:
    do(stack.dsn, "truncate item_row")
    asyncio.run(
        run_and_kill(stack, document("rows", LOOP, items=0), {"items": 40}, "tool.after", nth)
    )
    assert do(stack.dsn, "select n, square from item_row order by n") == [
        (n, n * n) for n in range(40)
    ]


@pytest.mark.parametrize(
    ("claim", "point", "nth"),
    [(3, "tool.after", 12), (8, "tool.after", 21), (8, "persist.after", 2)],
)
def test_cursor_loop_keeps_one_result_per_row_when_its_worker_dies(
    stack: Stack, claim: int, point: str, nth: int
) -> None:
    """It dies between an item and its report, or when the results of a frame are stored and not reported."""
    do(
        stack.dsn,
        "truncate item_row, job; insert into job select n, false from generate_series(0, 19) n",
    )
    result, _ = asyncio.run(
        run_and_kill(stack, document("cursor", CURSOR, claim=0), {"claim": claim}, point, nth)
    )
    wanted = [(n, n * n) for n in range(20)]
    assert [(row["n"], row["square"]) for row in result] == wanted
    assert do(stack.dsn, "select n, square from item_row order by n") == wanted


@pytest.mark.long
def test_items_of_a_loop_are_stored_once_whatever_dies(stack: Stack) -> None:
    """Worker and server by turns, at any moment, thirty times."""
    do(stack.dsn, "truncate item_row")

    async def run() -> None:
        stack.restart_dead()
        await stack.become_ready()
        async with stack.open_client() as client:
            path = (await client.register(document("rows", LOOP, items=0)))["path"]
            execution_id = await client.start(path, None, {"items": 1_000})
            for number in range(30):
                await wait_for_rows(stack, 1_000 * number // 31)
                (stack.worker if number % 2 else stack.server).kill()
                stack.restart_dead()
            told = (await asyncio.wait_for(outcomes(client, {"it": execution_id}), HANG_LIMIT_S))[
                "it"
            ]
            assert told.failure is None
            assert stack.dsn is not None
            await check(stack.dsn, client, [execution_id])
            events = [row.event for row in await all_events(client, execution_id)]
            assert len([event for event in events if isinstance(event, e.LoopDone)]) == 1

    asyncio.run(run())
    assert do(stack.dsn, "select n, square from item_row order by n") == [
        (n, n * n) for n in range(1_000)
    ]


async def wait_for_rows(stack: Stack, least: int) -> None:
    async with asyncio.timeout(HANG_LIMIT_S):
        while do(stack.dsn, "select count(*) from item_row")[0][0] < least:
            await look_again()
