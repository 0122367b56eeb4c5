"""Names of the language end to end on the memory twins: in loops, in children, in routers and in workload defaults."""

import asyncio
from typing import Any

import pytest

from noetl.model.errors import InvalidInput
from noetl.model.ids import get_creation_time
from noetl.runtime.memory import MemoryCluster
from tests.e2e.test_constructs import run, value_of, wait_for_end
from tests.play import workflow


@pytest.mark.parametrize("mode", ["sequential", "parallel"])
def test_an_item_knows_its_index_by_every_name(mode: str) -> None:
    status, value, _, failure = run(
        f"""
- step: each
  loop: {{in: [5, 6], iterator: x, spec: {{mode: {mode}}}}}
  tool:
    kind: python
    input:
      i: "{{{{ _index }}}}"
      j: "{{{{ iter._index }}}}"
      k: "{{{{ loop.index }}}}"
      old: "{{{{ loop_index }}}}"
      f: "{{{{ iter._first }}}}"
      l: "{{{{ iter._last }}}}"
      v: "{{{{ iter.x }}}}"
      n: "{{{{ loop.length }}}}"
      c: "{{{{ _loop.current_index }}}}"
      item: "{{{{ _loop.current_item }}}}"
      done: "{{{{ loop.done }}}}"
    code: result = [i, j, k, old, f, l, v, n, c, item, done]
  next: end
- step: end
  tool: {{kind: python, input: {{rows: "{{{{ each.rows }}}}"}}, code: "result = rows"}}
"""
    )
    assert (status, failure) == ("completed", None)
    assert value == [
        [0, 0, 0, 0, True, False, 5, 2, 0, 5, False],
        [1, 1, 1, 1, False, True, 6, 2, 1, 6, False],
    ]


def test_a_router_sees_that_its_loop_is_done_and_how_many_items_it_had() -> None:
    status, value, ctx, failure = run(
        """
- step: each
  loop: {in: [1, 2, 3], iterator: x}
  tool: {kind: python, code: "result = 1"}
  set: {ctx.count: "{{ loop.length }}"}
  next: [{step: end, when: "{{ loop.done }}"}]
- step: end
  tool: {kind: python, code: "result = 'reached'"}
"""
    )
    assert (status, value, ctx, failure) == ("completed", "reached", {"count": 3}, None)


def test_a_child_sees_the_iteration_that_started_it() -> None:
    child = """
- step: only
  tool:
    kind: python
    input: {i: "{{ _loop.current_index }}", item: "{{ _loop.current_item }}", loop: "{{ _loop.loop_id }}"}
    code: result = [i, item, loop.split(':')[1]]
"""
    status, value, _, failure = run(
        """
- step: each
  loop: {in: [a, b], iterator: letter}
  tool: {kind: playbook, path: child}
  next: end
- step: end
  tool: {kind: python, input: {rows: "{{ each.rows }}"}, code: "result = rows"}
""",
        children={"child": child},
    )
    assert (status, failure) == ("completed", None)
    assert value == [[0, "a", "each"], [1, "b", "each"]]


DEFAULTS = {
    "id": "{{ execution_id }}",
    "job": "{{ job.uuid }}",
    "same": "{{ job.execution_id }}",
    "path": "{{ job.path }}",
    "at": "{{ now() }}",
    "day": "{{ at[:10] }}",
    "token": "{{ uuid() }}",
    "host": "{{ env.HOST }}",
}


def test_workload_defaults_know_their_execution_and_are_rendered_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NOETL_ENV_HOST", "db.example")
    steps = (
        "- step: end\n  tool: {kind: python, input: {all: '{{ workload }}'}, code: result = all}"
    )

    async def play() -> Any:
        async with MemoryCluster() as cluster:
            execution = await cluster.start(workflow(steps, workload=DEFAULTS), "test.yaml", {})
            state = await wait_for_end(cluster, execution)
            pinned = await cluster.server.requests._log.read_pinned(execution)
            assert pinned is not None
            return execution, pinned.workload, await value_of(cluster, state, "end")

    execution, stored, seen = asyncio.run(play())
    assert stored == seen
    assert (stored["id"], stored["job"], stored["same"]) == (execution, execution, execution)
    assert (stored["path"], stored["host"], stored["day"]) == (
        "test",
        "db.example",
        stored["at"][:10],
    )
    assert get_creation_time(execution) // 86_400_000_000 > 20_000


def test_a_default_cannot_read_any_other_variable_of_the_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NOETL_DB_URL_CANARY", "secret")
    steps = "- step: end"

    async def play() -> None:
        async with MemoryCluster() as cluster:
            text = workflow(steps, workload={"x": "{{ env.NOETL_DB_URL_CANARY }}"})
            await cluster.start(text, "test.yaml", {})

    with pytest.raises(InvalidInput, match=r"env\.NOETL_DB_URL_CANARY") as caught:
        asyncio.run(play())
    assert (
        caught.value.hint
        == "set NOETL_ENV_NOETL_DB_URL_CANARY where the server runs, or write `| default(…)`"
    )


def test_a_keychain_entry_may_name_its_credential_by_the_workload() -> None:
    steps = """
- step: end
  tool: {kind: python, input: {id: "{{ keychain.app.id }}"}, code: "result = id"}
"""

    async def play() -> Any:
        async with MemoryCluster() as cluster:
            keychain = [
                {
                    "name": "app",
                    "kind": "static",
                    "map": {"id": "{{ workload.who }}-{{ job.path }}"},
                }
            ]
            text = workflow(steps, workload={"who": "ann"}, keychain=keychain)
            state = await wait_for_end(cluster, await cluster.start(text, "test.yaml", {}))
            return state.failure, await value_of(cluster, state, "end")

    assert asyncio.run(play()) == (None, "ann-test")
