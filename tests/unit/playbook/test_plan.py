"""What the templates of a step need, found when its playbook is registered."""

import pytest

from noetl.playbook.plan import StepPlan, UsedNames, compile_plan
from noetl.playbook.validation import load

HEAD = "metadata: {name: x}\nworkload: {folder: here, limit: 5}\nworkflow:\n"


def plan_step(step: str) -> StepPlan:
    playbook = load(HEAD + step).playbook
    assert playbook is not None
    return compile_plan(playbook, "hash").steps["start"]


def uses(step: str) -> UsedNames:
    return plan_step(step).body_uses


def test_the_address_of_a_script_is_a_template() -> None:
    python = (
        "  - {step: start, tool: {kind: python, script: {uri: 'file://{{ folder }}/task.py'}}}\n"
    )
    assert uses(python).workload == {"folder"}


def test_code_is_none() -> None:
    python = (
        "  - {step: start, tool: {kind: python, input: {n: '{{ limit }}'}, code: 'result = n'}}\n"
    )
    assert uses(python).workload == {"limit"}


def test_what_a_worker_made_of_the_input_is_selected_there() -> None:
    python = "  - {step: start, input: {n: 1}, tool: {kind: python, code: 'result = n'}, set: {m: '{{ input.n + ctx.k }}'}}\n"
    assert [selection.source for selection in plan_step(python).selections] == ["input.n"]


def test_what_only_an_arc_brings_the_server_knows() -> None:
    python = (
        "  - {step: start, tool: {kind: python, code: 'result = n'}, set: {m: '{{ input.n }}'}}\n"
    )
    assert plan_step(python).selections == ()


ASSIGNED = """  - step: start
    tool: {{kind: python, code: x}}
    {place}
  - {{step: end}}
"""
PLACES = [
    "set: {{m: {value}}}",
    "next: [{{step: end, set: {{m: {value}}}}}]",
    "next: [{{step: end, args: {{m: {value}}}}}]",
]


def plan_assignment(place: str, value: str) -> StepPlan:
    return plan_step(ASSIGNED.format(place=place.format(value=value)))


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    ("value", "selection"),
    [
        ('["{{ result.text }}", 1, it\'s]', """[result.text, 1, 'it\\'s']"""),
        (
            '{a: {b: "{{ start.text | upper }}"}, c: null}',
            "{'a': {'b': start.text | upper}, 'c': none}",
        ),
        ('"{{ [result.text, limit] }}"', "[result.text, limit]"),
    ],
)
def test_list_or_map_of_a_result_is_one_selection(place: str, value: str, selection: str) -> None:
    plan = plan_assignment(place, value)
    assert [found.source for found in plan.selections] == [selection]
    assert not any(site.needs_worker for site in plan.site.values())


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    "value",
    [
        '["{{ result.text }}", "{{ ctx.k }}"]',
        '{a: "x-{{ result.text }}"}',
        '"{{ [result.text, ctx.k] }}"',
        "\"{{ {'a': result.text, 'b': ctx.k} }}\"",
    ],
)
def test_list_or_map_of_a_result_and_more_is_made_by_a_worker(place: str, value: str) -> None:
    plan = plan_assignment(place, value)
    assert plan.selections == ()
    assert any(site.needs_worker for site in plan.site.values())


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("value", ["[1, {a: b}]", '["{{ workload.limit }}"]', '{a: "{{ ctx.k }}"}'])
def test_list_or_map_that_reads_no_result_is_made_by_the_server(place: str, value: str) -> None:
    plan = plan_assignment(place, value)
    assert plan.selections == ()
    assert not any(site.needs_worker for site in plan.site.values())


def test_list_for_the_state_stands_in_events() -> None:
    plan = plan_assignment("set: {{state.m: {value}}}", '["{{ result.text }}", "{{ ctx.k }}"]')
    assert [found.source for found in plan.selections] == ["result.text"]
