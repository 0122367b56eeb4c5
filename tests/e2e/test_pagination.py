"""Every way of paging and polling, end to end against the test API; pages into a real Postgres."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from noetl.engine.fold import evolve
from noetl.engine.state import make_empty_execution
from noetl.model import events as e
from noetl.playbook.validation import load_or_raise
from noetl.runtime.memory import MemoryCluster
from tests.api.process import Api
from tests.play import workflow
from tests.postgres import server
from tests.waiting import HANG_LIMIT_S

IDS = list(range(1, 36))
COLLECT = "collect: {strategy: append, path: %s}"


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Known to workers of this process as the credential `pg`."""
    with server().database() as dsn:
        monkeypatch.setenv("NOETL_CREDENTIAL_PG", json.dumps({"dsn": dsn}))
        yield dsn


def play(steps: str, api: Api, until: type[e.Event] | None = None) -> tuple[Any, list[e.Event]]:
    """The value of the last step, and what was recorded. The first step is `start`; its address begins with `base`."""

    async def play_on_cluster() -> tuple[Any, list[e.Event]]:
        async with MemoryCluster() as cluster:
            execution = await cluster.start(
                workflow(steps, workload={"base": f"{api.url}/api/v1"}), "test.yaml", {}
            )
            state, recorded, value = make_empty_execution(execution), [], None
            async with asyncio.timeout(HANG_LIMIT_S):
                while not state.terminal:
                    for row in await cluster.wait_for_events(
                        execution, len(recorded) and recorded[-1].seq
                    ):
                        state = evolve(state, row.event)
                        recorded.append(row)
                        if until is not None and isinstance(row.event, until):
                            return None, [row.event for row in recorded]
            assert state.failure is None, state.failure
            result = list(state.steps.values())[-1].result
            if result is not None and result.reference is not None:
                value = await cluster.resolve(result.reference)
            return value, [row.event for row in recorded]

    return asyncio.run(play_on_cluster())


def make_paging_step(url: str, paginate: str, more: str = "", spec: str = "") -> str:
    return f"""
- step: start
  tool:
    kind: http
    url: "{{{{ workload.base }}}}{url}"
    spec: {{paginate: {{{paginate}}}, {spec}}}
{more}
"""


FORMS = {
    "page": (
        "/assessments",
        'when: "{{ response.paging.hasMore }}", next_call: {params: {page: "{{ response.paging.page + 1 }}"}}, '
        + COLLECT % "data.data",
    ),
    "offset": (
        "/users?limit=8",
        'when: "{{ response.has_more }}", next_call: {params: {offset: "{{ response.offset + response.limit }}"}}, '
        + COLLECT % "data.users",
    ),
    "cursor": (
        "/events",
        'when: "{{ response.next_cursor is not none }}", next_call: {params: {cursor: "{{ response.next_cursor }}"}}, '
        + COLLECT % "events",
    ),
    "link": (
        "/linked?per_page=8",
        'when: "{{ response.links.next is defined }}", next_call: {url: "{{ response.links.next }}"}, collect: {}',
    ),
    "next": (
        "/next?size=9",
        'when: "{{ response.next }}", next_call: {url: "{{ response.next }}"}, collect: {strategy: extend, path: items}',
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_pages_are_fetched_once_each_and_collected(api: Api, form: str) -> None:
    url, paginate = FORMS[form]
    api.forget()
    value, events = play(make_paging_step(url, paginate), api)
    assert [row["id"] for row in value["data"]] == IDS
    pages = 4 if form in ("page", "cursor", "next") else 5
    assert sum(api.calls().values()) == pages
    assert [event.page for event in events if isinstance(event, e.CallPage)] == list(
        range(1, pages)
    )


def test_maps_are_merged_and_the_last_page_may_be_all_that_is_wanted(api: Api) -> None:
    paginate = (
        'when: "{{ response.more }}", next_call: {params: {page: "{{ response.page + 1 }}"}}, '
    )
    value, _ = play(
        make_paging_step("/scores", paginate + "collect: {strategy: merge, path: scores}"), api
    )
    assert list(value["data"]) == [f"user{number}" for number in IDS]
    value, _ = play(
        make_paging_step("/scores", paginate + "collect: {strategy: replace, path: scores}"), api
    )
    assert list(value["data"]) == [f"user{number}" for number in IDS[30:]]


def test_what_was_collected_may_have_a_name_of_its_own(api: Api) -> None:
    url, paginate = FORMS["cursor"]
    more = """
  next: use
- {step: use, tool: {kind: python, input: {rows: "{{ ctx.all }}"}, code: "result = [row['id'] for row in rows]"}}
"""
    value, _ = play(
        make_paging_step(url, paginate.replace("path: events", "path: events, into: all"), more),
        api,
    )
    assert value == IDS


def test_a_page_that_fails_is_asked_for_again_and_no_other(api: Api) -> None:
    api.forget()
    _, paginate = FORMS["page"]
    again = 'policy: {rules: [{when: "{{ error is defined }}", then: {do: retry, attempts: 3, delay: 10ms}}]}'
    value, _ = play(
        make_paging_step("/flaky?fail_on=2,3&label=pagination", paginate, spec=again), api
    )
    assert [row["id"] for row in value["data"]] == list(range(1, 21))
    assert api.calls()["/api/v1/flaky"] == 6


def test_a_poll_asks_until_it_is_done(api: Api) -> None:
    poll = "when: \"{{ response.state == 'running' }}\", delay: 10ms"
    value, events = play(make_paging_step("/jobs/polled?polls=4", poll), api)
    assert value["data"] == {"job": "polled", "state": "done", "asked": 4}
    assert len([event for event in events if isinstance(event, e.CallPage)]) == 3


def test_a_slow_poll_leaves_its_worker(api: Api) -> None:
    poll = "when: \"{{ response.state == 'running' }}\", delay: 6s"
    _, events = play(make_paging_step("/jobs/slow?polls=2", poll), api, until=e.CommandParked)
    assert isinstance(events[-1], e.CommandParked)
    assert (events[-1].reason, events[-1].delay) == ("retry", 6_000_000)


PER_PAGE = """
- step: start
  tool: {kind: http, endpoint: "{{ workload.base }}/assessments"}
  retry:
    - when: "{{ response.data.paging.hasMore }}"
      then:
        next_call: {params: {page: "{{ response.data.paging.page + 1 }}"}}
        collect: {strategy: append, path: data.data}
        per_iteration:
          sink: {tool: {kind: postgres, auth: pg, table: assessment}, data: "{{ response.data.data }}"}
"""


def rows(dsn: str, query: str) -> list[Any]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        done = connection.execute(query.encode())
        return done.fetchall() if done.description else []


def test_every_page_goes_to_the_sink_in_the_older_spelling_too(api: Api, database: str) -> None:
    rows(database, "CREATE TABLE assessment (id int, name text, score int, remark text)")
    assert load_or_raise(workflow(PER_PAGE)).workflow[0].tool[0].spec.paginate is not None
    play(PER_PAGE, api)
    assert rows(database, "SELECT id FROM assessment ORDER BY id") == [(id,) for id in IDS]
    assert rows(database, "SELECT count(*) FROM noetl_sink") == [(4,)]


# The rule is printed in appendix B of the specification; the step around it and its address are ours.
APPENDIX_B = """
- step: start
  tool: {kind: http, endpoint: "{{ workload.base }}/results"}
  retry:
    - when: "{{ response.data.nextCursor is not none }}"
      then:
        max_attempts: 100
        next_call:
          params:
            cursor: "{{ response.data.nextCursor }}"
        collect:
          strategy: append
          path: data.results
        per_iteration:
          sink:
            tool:
              kind: postgres
              auth: pg_k8s
              table: raw_data
              mode: insert
"""


def test_appendix_b_of_the_specification_stores_the_records_of_every_page(
    api: Api, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOETL_CREDENTIAL_PG_K8S", json.dumps({"dsn": database}))
    rows(database, "CREATE TABLE raw_data (id int, type text, value int, remark text)")
    value, _ = play(APPENDIX_B, api)
    assert [row["id"] for row in value["data"]] == IDS
    stored = rows(database, "SELECT id, value FROM raw_data ORDER BY id")
    assert stored == [(id, (id - 1) * 10) for id in IDS]


def test_items_of_a_loop_and_rows_by_reference_go_to_their_sinks(api: Api, database: str) -> None:
    rows(
        database,
        "CREATE TABLE item (n int, square int); CREATE TABLE copy (n int, square int, at int)",
    )
    _, events = play(
        """
- step: start
  loop: {in: "{{ range(50) }}", iterator: n, spec: {mode: parallel, max_in_flight: 10}}
  tool:
    - {name: square, kind: python, input: {n: "{{ n }}"}, code: "result = {'n': n, 'square': n * n}"}
    - {name: keep, kind: sink, target: {kind: postgres, auth: pg, table: item}}
  next: read
- step: read
  tool:
    - {name: all, kind: postgres, auth: pg, query: "SELECT n, square, 1 AS at FROM item ORDER BY n"}
    - {name: copy, kind: sink, target: {kind: postgres, auth: pg, table: copy}}
    - {name: count, kind: python, input: {rows: "{{ all.rows }}", n: "{{ _prev.row_count }}"}, code: "assert len(rows) == n"}
  next: again
- step: again
  tool: {kind: noop}
  sink: {tool: {kind: postgres, auth: pg, table: item}, data: "{{ start.rows }}"}
""",
        api,
    )
    assert rows(database, "SELECT count(*), sum(square) FROM item") == [
        (100, 2 * sum(n * n for n in range(50)))
    ]
    assert rows(database, "SELECT count(*), sum(square) FROM copy") == [
        (50, sum(n * n for n in range(50)))
    ]
    stored = [(event.step, event.task) for event in events if isinstance(event, e.SinkProcessed)]
    assert stored == [("read", "copy"), ("again", "sink")]


@pytest.mark.parametrize("data", ["", ', data: "{{ all }}"', ', data: "{{ all.rows }}"'])
def test_rows_by_reference_go_from_one_table_to_another(api: Api, database: str, data: str) -> None:
    rows(database, "CREATE TABLE item (n int, square bigint)")
    play(
        f"""
- step: start
  tool:
    - name: all
      kind: postgres
      auth: pg
      query: SELECT n, n::bigint * n AS square FROM generate_series(1, 50000) AS n
    - {{name: copy, kind: sink, target: {{kind: postgres, auth: pg, table: item}}{data}}}
""",
        api,
    )
    found = rows(database, "SELECT count(*), count(DISTINCT n), sum(square)::bigint FROM item")
    assert found == [(50_000, 50_000, sum(n * n for n in range(50_001)))]
