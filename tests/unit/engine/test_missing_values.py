"""The value of a step that failed is undefined where the server evaluates; its facts are not."""

import pytest

from noetl.model import events as e
from noetl.model.errors import Failure
from tests.play import Play, workflow

PYTHON = 'tool: {kind: python, code: "result = 1"}'
BOOM = Failure(code="BOOM", message="as asked")


def play_with_failed_step(then: str) -> Play:
    """Step `a` fails without a worker that evaluated anything, its router goes on with step `b`."""
    play = Play(
        workflow(f"""
- step: a
  {PYTHON}
  next: [{{step: b, when: "{{{{ error is defined }}}}"}}]
{then}
""")
    ).start()
    return play.run(lambda command: BOOM if command.step == "a" else 1)


@pytest.mark.parametrize("expression", ["a", "a.data", "a.rows"])
def test_a_loop_over_the_value_of_a_failed_step_fails(expression: str) -> None:
    play = play_with_failed_step(f'- {{step: b, loop: {{in: "{{{{ {expression} }}}}"}}, {PYTHON}}}')
    error = play.find_last(e.PlaybookFailed).error
    assert error.code == "TEMPLATE_UNDEFINED"
    assert "step a failed with BOOM" in error.message


def test_an_assignment_from_the_value_of_a_failed_step_fails() -> None:
    play = play_with_failed_step(f'- {{step: b, {PYTHON}, set: {{ctx.x: "{{{{ a }}}}"}}}}')
    assert play.find_last(e.PlaybookFailed).error.code == "TEMPLATE_UNDEFINED"


def test_default_is_defined_and_facts_of_a_failed_step_work() -> None:
    facts = 'ctx.z: "{{ a.error.code }}", ctx.s: "{{ a.status }}"'
    assigned = (
        f"""{{ctx.x: "{{{{ a | default('none') }}}}", ctx.y: "{{{{ a is defined }}}}", {facts}}}"""
    )
    play = play_with_failed_step(f"- {{step: b, {PYTHON}, set: {assigned}}}")
    assert play.state.ctx == {"x": "none", "y": False, "z": "BOOM", "s": "error"}
    assert play.state.status == "completed"


def test_a_guard_that_reads_the_value_of_a_failed_step_is_false() -> None:
    play = play_with_failed_step(
        f'- {{step: b, {PYTHON}, next: [{{step: c, when: "{{{{ a }}}}"}}, d]}}\n- {{step: c}}\n- {{step: d}}'
    )
    assert play.path() == ["a", "b", "d"]


def test_a_child_whose_returned_step_has_no_value_tells_its_parent_so() -> None:
    text = workflow(f"""
- step: a
  {PYTHON}
  next: [{{step: b, when: "{{{{ error is defined }}}}"}}]
- {{step: b, {PYTHON}}}
""")
    parent = e.Parent(execution_id="9", call="c")
    play = Play(text).start(parent=parent, return_step="a")
    play.run(lambda command: BOOM if command.step == "a" else 1)
    answer = play.sent[-1].message.event.result
    assert (answer.status, answer.no_value) == (
        "ok",
        f"step a of child {play.state.execution_id} failed with BOOM",
    )
