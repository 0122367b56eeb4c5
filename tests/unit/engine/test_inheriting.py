"""What a retry with another version, and a rerun from a step, take over and run again."""

from noetl.engine import inheriting
from tests.play import Play, plan_of, workflow
from tests.unit.engine.test_rewinding import rewind

STEPS = """
- step: one
  tool: {kind: python, code: x}
  next: {arcs: [{step: two, args: {n: 7}}]}
- step: two
  tool: {kind: python, code: x}
  set: {ctx.two: "{{ two }}"}
  next: three
- step: three
  tool: {kind: python, code: x}
"""


def ended(steps: str = STEPS) -> Play:
    return Play(workflow(steps)).start().run(lambda command: command.step)


def test_the_preview_says_what_is_taken_over_and_what_runs() -> None:
    old, plan = ended(), plan_of(workflow(STEPS))
    told = inheriting.preview(plan, rewind(old, "two").state)
    assert (told.inherited, told.begins, told.again) == (("one",), ("two",), ("two", "three"))


def test_a_version_without_a_step_whose_result_is_taken_over_does_not_fit() -> None:
    old = ended()
    newer = plan_of(workflow(STEPS.replace("step: one", "step: first")))
    cut = rewind(old, "three").state
    assert inheriting.misfits(newer, cut) == ["it has no step 'one', whose result would be taken over"]
    assert inheriting.misfits(plan_of(workflow(STEPS)), cut) == []


def test_a_version_that_decides_on_what_was_not_kept_does_not_fit() -> None:
    old = ended()
    text = STEPS.replace("next: three", 'next: {arcs: [{step: three, when: "{{ one.count > 3 }}"}]}')
    newer = plan_of(workflow(text))
    (problem,) = inheriting.misfits(newer, rewind(old, "three").state)
    assert "one.count" in problem
