"""A tool that takes columns gets the rows of the store in shared memory, and nothing else changes."""

import json
import os
from typing import Any

import msgspec
import pytest

from noetl.model import events as e
from noetl.model.envelope import Envelope
from noetl.playbook.plan import Plan
from noetl.results.formats.column_buffers import read_shared_records
from noetl.results.formats.shared_records import SharedRecords
from noetl.results.tiers.memory import ResultsMemory
from noetl.tools.port import Call, Success
from noetl.tools.python.tool import split_shared_input
from tests.unit.pipeline.bench import Bench, Does, plan_of
from tests.unit.pipeline.test_tables import giving, odd, run

COUNT = 2_000
SEVERAL_GROUPS = 70_000  # rows: a group of a row set has at most 65 536
RECORDS = [{"n": number, "t": f"t{number}"} for number in range(COUNT)]
ANSWER = {
    "status_code": 200,
    "headers": {"a": "b"},
    "url": "http://x",
    "elapsed": 0.1,
    "data": RECORDS,
}
STEP = """
- step: up
  tool: {kind: python, code: x}
- step: s
  tool: {kind: python, code: x, input: {a: 1, v: "TEMPLATE", z: 2}}
"""
STEP_WITH_INPUT = """
- step: up
  tool: {kind: python, code: x}
- step: s
  input: {v: "TEMPLATE"}
  tool: {kind: python, code: x, input: {w: "{{ input.v }}", n: "{{ input.v | length }}"}}
"""


def make_bench(does: Does, store: ResultsMemory, *, columns: bool) -> Bench:
    bench = Bench(does, store=store)
    bench.tool.takes_columns = columns  # type: ignore[attr-defined]
    return bench


def make_upstream(does: Does, store: ResultsMemory, step: str = "up") -> Envelope:
    """The envelope of the step that gave the rows."""
    plan = plan_of(f"- step: {step}\n  tool: {{kind: python, code: x}}\n")
    report = run(make_bench(does, store, columns=False), plan, step=step)
    assert isinstance(report, e.CommandCompleted), report.result.error
    return report.result


def read_input(call: Call) -> dict[str, Any]:
    """The input as the code of a child sees it."""
    plain, shared = split_shared_input(call.input)
    seen: dict[str, Any] = json.loads(msgspec.json.encode(plain))
    for path, records in shared:
        parent = seen
        for name in path[:-1]:
            parent = parent[name]
        parent[path[-1]] = read_shared_records(
            records.descriptor, msgspec.to_builtins(records.layout)
        )
    return seen


def take_input(
    plan: Plan, up: Envelope, store: ResultsMemory, *, columns: bool, **others: Envelope
) -> tuple[Call, dict[str, Any], Any, Any]:
    """The call, its input, its report, and the payload that records its input."""
    seen: list[dict[str, Any]] = []

    def keep_input(call: Call) -> Any:
        seen.append(read_input(call))
        return {"done": True}

    bench = make_bench(keep_input, store, columns=columns)
    report = run(bench, plan, results={"up": up, **others})
    assert isinstance(report, e.CommandCompleted), report.result.error
    return bench.tool.calls[-1], seen[0], report, bench.refs


GIVEN: list[tuple[Does, str]] = [
    (giving(COUNT), "{{ up }}"),
    (giving(COUNT), "{{ up.rows }}"),
    (giving(SEVERAL_GROUPS), "{{ up.rows }}"),
    (odd(COUNT), "{{ up }}"),
    (odd(COUNT), "{{ up.rows }}"),
    (lambda call: list(RECORDS), "{{ up }}"),
    (lambda call: {"rows": list(RECORDS), "n": 1}, "{{ up }}"),
    (lambda call: {"rows": list(RECORDS), "n": 1}, "{{ up.rows }}"),
    (lambda call: Success(dict(ANSWER), {"http": {"status": 200}}), "{{ up.data }}"),
    (lambda call: Success(dict(ANSWER), {"http": {"status": 200}}), "{{ up.body }}"),
]


@pytest.mark.parametrize(
    ("does", "template", "plan"),
    [
        *[(*given, plan) for given in GIVEN for plan in (STEP, STEP_WITH_INPUT)],
        pytest.param(odd(SEVERAL_GROUPS), "{{ up.rows }}", STEP, marks=pytest.mark.long),
    ],
)
def test_shared_rows_are_what_the_tool_gets_as_objects(
    does: Does, template: str, plan: str
) -> None:
    store = ResultsMemory()
    up = make_upstream(does, store)
    step = plan_of(plan.replace("TEMPLATE", template))
    plain_call, plain, plain_report, plain_refs = take_input(step, up, store, columns=False)
    call, shared, report, refs = take_input(step, up, store, columns=True)
    assert repr(shared) == repr(plain)
    assert not any(isinstance(part, SharedRecords) for part in plain_call.input.values())
    assert any(isinstance(part, SharedRecords) for part in call.input.values())
    assert report.result == plain_report.result
    assert sorted(map(repr, refs)) == sorted(map(repr, plain_refs))


@pytest.mark.parametrize(
    "template",
    ["{{ up.rows[:1500] }}", "{{ up.rows | list }}", "x {{ up.row_count }}", "{{ up.rows[3] }}"],
)
def test_other_templates_give_objects(template: str) -> None:
    store = ResultsMemory()
    up = make_upstream(giving(COUNT), store)
    step = plan_of(STEP.replace("TEMPLATE", template))
    _, plain, _, _ = take_input(step, up, store, columns=False)
    call, shared, _, _ = take_input(step, up, store, columns=True)
    assert shared == plain
    assert not any(isinstance(part, SharedRecords) for part in call.input.values())


def test_the_map_of_an_http_call_is_an_object_with_its_body() -> None:
    store = ResultsMemory()
    up = make_upstream(lambda call: Success(dict(ANSWER), {"http": {"status": 200}}), store)
    step = plan_of(STEP_WITH_INPUT.replace("TEMPLATE", "{{ up }}"))
    call, seen, _, _ = take_input(step, up, store, columns=True)
    assert seen["v"] == call.input["v"] == {**ANSWER, "body": RECORDS}
    assert seen["n"] == 6


@pytest.mark.parametrize(
    "expression",
    [
        "input.v.row_count is defined", "input.v.status is defined", "input.v.n", "input.v.rows[7]", "input.v.rows | length",
        "input.v[0] is defined", "input.w[7].t", "input.w[-2:]", "input.w.rows is defined", "input.w.n is defined",
        "input.w | map(attribute='n') | sum", "input.v is mapping", "input.w is sequence", "[input.v | length, input.w | length]",
        "(input | tojson)[:40]", "input.w == input.v.rows", "'n' in input.v",
    ],
)  # fmt: skip
def test_templates_see_stored_inputs_as_objects(expression: str) -> None:
    plan = plan_of(
        """
- step: up
  tool: {kind: python, code: x}
- step: other
  tool: {kind: python, code: x}
- step: s
  input: {v: "{{ up }}", w: "{{ other }}"}
  tool:
    kind: python
    code: x
    set: {ctx.x: "{{ EXPRESSION }}"}
""".replace("EXPRESSION", expression)
    )
    store = ResultsMemory()
    up = make_upstream(lambda call: {"rows": list(RECORDS), "n": 1}, store)
    other = make_upstream(lambda call: list(RECORDS), store, "other")
    _, _, plain, _ = take_input(plan, up, store, columns=False, other=other)
    call, _, report, _ = take_input(plan, up, store, columns=True, other=other)
    assert isinstance(call.input["v"], SharedRecords)
    assert isinstance(call.input["w"], SharedRecords)
    assert report.set == plain.set


def test_only_so_many_members_are_shared() -> None:
    store = ResultsMemory()
    up = make_upstream(giving(COUNT), store)
    members = ", ".join(f'm{number}: "{{{{ up.rows }}}}"' for number in range(20))
    plan = f"""
- step: up
  tool: {{kind: python, code: x}}
- step: s
  tool: {{kind: python, code: x, input: {{{members}}}}}
"""
    call, seen, _, _ = take_input(plan_of(plan), up, store, columns=True)
    assert [isinstance(part, SharedRecords) for part in call.input.values()].count(True) == 16
    assert list(seen) == [f"m{number}" for number in range(20)]
    assert all(rows == seen["m0"] for rows in seen.values())


def test_few_rows_are_objects() -> None:
    store = ResultsMemory()
    up = make_upstream(giving(10), store)
    call, _, _, _ = take_input(
        plan_of(STEP.replace("TEMPLATE", "{{ up.rows }}")), up, store, columns=True
    )
    assert len(call.input["v"]) == 10


def test_without_shared_memory_rows_are_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    store = ResultsMemory()
    up = make_upstream(giving(COUNT), store)

    def refuse(*_: Any) -> int:
        raise OSError("no shared memory here")

    monkeypatch.setattr(os, "memfd_create", refuse)
    call, _, _, _ = take_input(
        plan_of(STEP.replace("TEMPLATE", "{{ up.rows }}")), up, store, columns=True
    )
    assert len(call.input["v"]) == COUNT
    stored = make_upstream(lambda call: list(RECORDS), ResultsMemory())
    assert stored.reference is not None
    assert stored.reference.format == "json"
