"""What the templates of a step need, found when its playbook is registered."""

from noetl.playbook.plan import Uses, compile_plan
from noetl.playbook.validation import load

HEAD = "metadata: {name: x}\nworkload: {folder: here, limit: 5}\nworkflow:\n"


def uses(step: str) -> Uses:
    playbook = load(HEAD + step).playbook
    assert playbook is not None
    return compile_plan(playbook, "hash").steps["start"].body


def test_the_address_of_a_script_is_a_template() -> None:
    python = "  - {step: start, tool: {kind: python, script: {uri: 'file://{{ folder }}/task.py'}}}\n"
    assert uses(python).workload == {"folder"}


def test_code_is_none() -> None:
    python = "  - {step: start, tool: {kind: python, input: {n: '{{ limit }}'}, code: 'result = n'}}\n"
    assert uses(python).workload == {"limit"}
