"""What the templates of a step need, found when its playbook is registered."""

from noetl.playbook.plan import StepPlan, Uses, compile_plan
from noetl.playbook.validation import load

HEAD = "metadata: {name: x}\nworkload: {folder: here, limit: 5}\nworkflow:\n"


def planned(step: str) -> StepPlan:
    playbook = load(HEAD + step).playbook
    assert playbook is not None
    return compile_plan(playbook, "hash").steps["start"]


def uses(step: str) -> Uses:
    return planned(step).body


def test_the_address_of_a_script_is_a_template() -> None:
    python = "  - {step: start, tool: {kind: python, script: {uri: 'file://{{ folder }}/task.py'}}}\n"
    assert uses(python).workload == {"folder"}


def test_code_is_none() -> None:
    python = "  - {step: start, tool: {kind: python, input: {n: '{{ limit }}'}, code: 'result = n'}}\n"
    assert uses(python).workload == {"limit"}


def test_what_a_worker_made_of_the_input_is_selected_there() -> None:
    python = "  - {step: start, input: {n: 1}, tool: {kind: python, code: 'result = n'}, set: {m: '{{ input.n + ctx.k }}'}}\n"
    assert [selection.source for selection in planned(python).selections] == ["input.n"]


def test_what_only_an_arc_brings_the_server_knows() -> None:
    python = "  - {step: start, tool: {kind: python, code: 'result = n'}, set: {m: '{{ input.n }}'}}\n"
    assert planned(python).selections == ()
