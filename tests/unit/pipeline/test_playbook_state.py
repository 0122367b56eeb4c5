"""State between executions on a worker: what tasks see, what they assign, and what is refused."""

from typing import Any

import pytest

from noetl.model import events as e
from noetl.playbook.plan import Plan
from tests.unit.pipeline.bench import Bench, plan_of, resume_journal


def one(fields: str) -> Plan:
    return plan_of(f"- step: s\n  tool: {{kind: python, code: x, {fields}}}\n")


def test_inputs_and_rules_see_state() -> None:
    rule = '{when: "{{ state.n == 3 }}", then: {do: continue, set: {ctx.seen: "{{ state.n }}"}}}'
    plan = one(f'input: {{n: "{{{{ state.n }}}}"}}, spec: {{policy: {{rules: [{rule}]}}}}')
    bench = Bench()
    report = bench.run(plan, state={"n": 3})
    assert bench.value(report.result) == {"n": 3}
    assert report.set == {"ctx.seen": 3}


def test_a_write_is_seen_by_later_tasks_and_journaled_with_its_task() -> None:
    plan = plan_of("""
- step: s
  tool:
  - {name: t, kind: python, code: x, set: {state.n: "{{ state.n + 1 }}", state.seen.eu: 7}}
  - {name: u, kind: python, code: x, input: {n: "{{ state.n }}", seen: "{{ state.seen }}"}}
""")
    bench = Bench()
    report = bench.run(plan, state={"n": 1, "seen": {"us": 2}})
    (entry,) = bench.journal
    assert entry.set == {"state.n": 2, "state.seen.eu": 7}
    assert bench.value(report.result) == {"n": 2, "seen": {"us": 2, "eu": 7}}
    assert report.set == {}


def test_a_new_attempt_sees_what_the_one_before_wrote() -> None:
    plan = plan_of("""
- step: s
  tool:
  - {name: t, kind: python, code: x, set: {state.n: 5}}
  - {name: u, kind: python, code: x, input: {n: "{{ state.n }}"}}
""")
    bench = Bench()
    first = bench.run(plan, state={"n": 1})
    assert isinstance(first, e.CommandCompleted)
    again = Bench()
    report = again.run(plan, journal=resume_journal(bench.journal[:1]), state={"n": 1})
    assert again.value(report.result) == {"n": 5}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([{"id": 1}], "scalar, or a map or list of scalars"),
        ({"a": [1]}, "scalar, or a map or list of scalars"),
        ("x" * 5_000, "at most 4096"),
    ],
)
def test_a_value_that_state_does_not_hold_fails_the_task(value: Any, message: str) -> None:
    bench = Bench(lambda call: {"v": value})
    report = bench.run(one('set: {state.n: "{{ response.v }}"}'))
    assert isinstance(report, e.CommandFailed)
    assert report.result.error is not None
    assert report.result.error.code == "STATE_VALUE"
    assert message in report.result.error.message
    assert report.set == {}


def test_a_value_of_four_kilobytes_travels_whole() -> None:
    bench = Bench(lambda call: {"v": "x" * 4_000})
    report = bench.run(one('set: {state.n: "{{ response.v }}"}'))
    assert report.set == {"state.n": "x" * 4_000}


def test_a_secret_is_refused() -> None:
    bench = Bench(lambda call: {"v": "Bearer hunter2-hunter2"})
    bench.env.redactor.register_secret("api.token", "hunter2-hunter2")
    report = bench.run(one('set: {state.n: "{{ response.v }}"}'))
    assert isinstance(report, e.CommandFailed)
    assert report.result.error is not None
    assert "a secret" in report.result.error.message
