"""Constructs of the language end to end on the memory twins: real server, real worker, real Python children."""

import asyncio
import tempfile
from typing import Any

import pytest

from noetl.engine.fold import evolve
from noetl.engine.state import Execution, make_empty_execution
from noetl.model.ids import ExecutionId
from noetl.playbook.assignments import is_reference, read_link
from noetl.runtime.memory import MemoryCluster
from tests.play import workflow
from tests.waiting import HANG_LIMIT_S


async def wait_for_end(cluster: MemoryCluster, execution: ExecutionId) -> Execution:
    state, seq = make_empty_execution(execution), 0
    async with asyncio.timeout(HANG_LIMIT_S):
        while not state.terminal:
            for recorded in await cluster.wait_for_events(execution, seq):
                state, seq = evolve(state, recorded.event), recorded.seq
    return state


async def value_of(cluster: MemoryCluster, state: Execution, step: str) -> Any:
    result = state.steps[step].result
    assert result is not None
    return None if result.reference is None else await cluster.resolve(result.reference)


async def follow_link(cluster: MemoryCluster, value: Any) -> Any:
    """A variable that is a link, as its value."""
    return await cluster.resolve(read_link(value)) if is_reference(value) else value


def run(
    steps: str,
    payload: dict[str, Any] | None = None,
    *,
    children: dict[str, str] | None = None,
    step: str = "end",
) -> Any:
    """The status, the value of `step`, and ctx."""

    async def play() -> Any:
        async with MemoryCluster() as cluster:
            for path, child in (children or {}).items():
                await cluster.register(workflow(child, metadata={"name": path, "path": path}), path)
            execution = await cluster.start(workflow(steps), "test.yaml", payload or {})
            state = await wait_for_end(cluster, execution)
            value = (
                await value_of(cluster, state, step)
                if step in state.steps and state.steps[step].result
                else None
            )
            ctx = {name: await follow_link(cluster, value) for name, value in state.ctx.items()}
            return state.status, value, ctx, state.failure

    return asyncio.run(play())


def test_a_loops_results_are_read_in_order_by_the_next_step() -> None:
    status, value, _, failure = run(
        """
- step: each
  loop: {in: "{{ workload.numbers }}", iterator: n, spec: {mode: parallel, max_in_flight: 3}}
  tool: {kind: python, input: {n: "{{ n }}"}, code: "result = n * n"}
  next: end
- step: end
  tool:
    kind: python
    input: {rows: "{{ each.rows }}", third: "{{ each.rows[2] }}", count: "{{ each.row_count }}"}
    code: "result = [rows, third, count]"
""",
        {"numbers": [1, 2, 3, 4, 5]},
    )
    assert (status, failure) == ("completed", None)
    assert value == [[1, 4, 9, 16, 25], 9, 5]


def test_a_retried_loop_runs_its_failed_items_again_and_its_results_are_whole() -> None:
    steps = """
- step: each
  loop: {in: "{{ workload.numbers }}", iterator: n, spec: {mode: parallel, chunk: 2, policy: {failure: {max_failed: 1}}}}
  tool:
    kind: python
    input: {n: "{{ n }}", marker: "{{ workload.marker }}"}
    code: |
      import pathlib
      tried = pathlib.Path(marker) / str(n)
      if n % 2 == 0 and not tried.exists():
          tried.touch()
          raise ValueError(f"{n} is even")
      result = n * 10
  next: end
- step: end
  tool: {kind: python, input: {rows: "{{ each.rows }}"}, code: "result = rows"}
"""

    async def play(marker: str) -> Any:
        async with MemoryCluster() as cluster:
            payload = {"numbers": [1, 2, 3, 4, 5], "marker": marker}
            first = await cluster.start(workflow(steps), "test.yaml", payload)
            broken = await wait_for_end(cluster, first)
            again = await cluster.server.requests.retry(first, "r1")
            state = await wait_for_end(cluster, again)
            return broken, state, await value_of(cluster, state, "end")

    with tempfile.TemporaryDirectory() as marker:
        broken, state, value = asyncio.run(play(marker))
    assert (broken.status, broken.failure.code) == ("failed", "LOOP_FAILED")
    assert state.status == "completed"
    assert value == [10, 20, 30, 40, 50]
    assert state.steps["each"].stats.total == 2


def test_a_child_gives_its_value_and_a_failing_one_fails_its_parents_step() -> None:
    child = """
- step: half
  tool: {kind: python, input: {n: "{{ workload.n }}"}, code: "assert n % 2 == 0, 'odd'\\nresult = n // 2"}
"""
    steps = """
- step: call
  tool: {kind: playbook, path: halves, input: {n: "{{ workload.n }}"}}
  next:
    - {step: sorry, when: "{{ error is defined }}"}
    - {step: end}
- {step: end, tool: {kind: python, input: {v: "{{ call }}"}, code: "result = v"}}
- {step: sorry, tool: {kind: python, input: {e: "{{ call.error.code }}"}, code: "result = e"}}
"""
    assert run(steps, {"n": 8}, children={"halves": child})[:2] == ("completed", 4)
    assert run(steps, {"n": 7}, children={"halves": child}, step="sorry")[:2] == (
        "completed",
        "CHILD_FAILED",
    )


def test_what_needs_data_is_evaluated_where_the_data_is() -> None:
    status, value, ctx, _ = run("""
- step: a
  tool: {kind: python, code: "result = {'list': [10, 20, 30]}"}
  set: {ctx.i: 1}
  next: [{step: end, when: "{{ a.list[ctx.i] == 20 }}", args: {k: "{{ a.list[ctx.i] + 1 }}"}}]
- step: end
  tool: {kind: python, input: {got: "{{ input.k }}"}, code: "result = got"}
""")
    assert (status, value, ctx) == ("completed", 21, {"i": 1})


def test_a_pipeline_retries_jumps_and_breaks_as_its_policies_say() -> None:
    status, value, ctx, failure = run("""
- step: end
  tool:
    - name: count
      kind: python
      input: {n: "{{ ctx.n | default(0) }}"}
      code: "result = n + 1"
      set: {ctx.n: "{{ result }}"}
    - name: check
      kind: python
      input: {n: "{{ _prev }}"}
      code: "result = n"
      spec:
        policy:
          rules:
            - {when: "{{ result < 3 }}", then: {do: jump, to: count}}
            - {when: "{{ result == 3 }}", then: {do: break}}
    - {name: never, kind: python, code: "result = 'never'"}
""")
    assert (status, failure) == ("completed", None)
    assert (value, ctx) == (3, {"n": 3})


def test_reducers_sum_over_the_items() -> None:
    status, _, ctx, _ = run(
        """
- step: end
  loop: {in: "{{ workload.numbers }}", iterator: n, spec: {mode: parallel, reduce: {ctx.total: sum, ctx.seen: append}}}
  tool:
    kind: python
    input: {n: "{{ n }}"}
    code: "result = n"
    set: {ctx.total: "{{ result }}", ctx.seen: "{{ result }}"}
""",
        {"numbers": list(range(10))},
    )
    assert (status, ctx) == ("completed", {"total": 45, "seen": list(range(10))})


def test_a_wait_goes_on_with_its_signal() -> None:
    steps = """
- {step: gate, tool: {kind: wait, signal: go}, next: end}
- {step: end, tool: {kind: python, input: {said: "{{ gate }}"}, code: "result = said"}}
"""

    async def play() -> Any:
        async with MemoryCluster() as cluster:
            execution = await cluster.start(workflow(steps), "test.yaml", {})
            await cluster.server.requests.signal(execution, "go", "s1", {"by": "me"})
            state = await wait_for_end(cluster, execution)
            return state.status, await value_of(cluster, state, "end")

    assert asyncio.run(play()) == ("completed", {"by": "me"})


@pytest.mark.parametrize(
    ("code", "expected"),
    [("return 5", 5), ("def main(n=2):\n    return n", 2), ("result = None", None)],
)
def test_python_results_in_every_form(code: str, expected: Any) -> None:
    text = repr(code).replace("'", '"')
    assert run(f"- {{step: end, tool: {{kind: python, code: {text}}}}}")[:2] == (
        "completed",
        expected,
    )


def test_a_retry_that_is_used_up_gives_way_to_the_rules_after_it() -> None:
    status, _, _, failure = run("""
- step: end
  tool: {kind: python, code: "raise ValueError('x')"}
  retry: 2
  case:
    - {when: "{{ event.name == 'call.done' and response.v > 1 }}", then: {next: [{step: other}]}}
    - {when: "{{ error is defined }}", then: {fail: "sad"}}
- {step: other}
""")
    assert (status, failure.message, failure.detail["cause"]) == (
        "failed",
        "sad",
        "ValueError: x (line 1)",
    )


def test_a_kind_without_a_tool_fails_at_once_whatever_its_pool() -> None:
    status, _, _, failure = run("- {step: end, spec: {pool: gpu}, tool: {kind: fax, number: 1}}")
    assert (status, failure.code) == ("failed", "TOOL_UNAVAILABLE")
