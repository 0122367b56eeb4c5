"""What a retry with another version, and a rerun from a step, take over and run again."""

from noetl.engine import inheriting
from noetl.model import messages as m
from tests.play import Play, plan_of, workflow

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


def test_rerun_from_a_step_takes_over_what_ran_before_it_with_the_arguments_it_had() -> None:
    old = ended()
    again = Play(workflow(STEPS))
    again.tell(
        m.Start(
            execution_id=m.ExecutionId("7"), path="test", playbook="hash", retry_of=m.ExecutionId("6"), from_step="two"
        ),
        old.state,
    )
    assert {step: record.status for step, record in again.state.steps.items()} == {"one": "inherited", "two": "none"}
    (live,) = again.state.activations.values()
    assert (live.step, live.args) == ("two", {"n": 7})
    again.run(lambda command: "anew")
    assert again.state.status == "completed"
    assert [again.state.steps[step].status for step in ("one", "two", "three")] == ["inherited", "ok", "ok"]
    again.check()


def test_the_preview_says_what_is_taken_over_and_what_runs() -> None:
    old, plan = ended(), plan_of(workflow(STEPS))
    told = inheriting.preview(plan, inheriting.cut_before(plan, old.state, "two"))
    assert (told.inherited, told.begins, told.again) == (("one",), ("two",), ("two", "three"))


def test_a_version_without_a_step_whose_result_is_taken_over_does_not_fit() -> None:
    old = ended()
    newer = plan_of(workflow(STEPS.replace("step: one", "step: first")))
    cut = inheriting.cut_before(newer, old.state, "three")
    assert inheriting.misfits(newer, cut) == ["it has no step 'one', whose result would be taken over"]
    assert inheriting.misfits(plan_of(workflow(STEPS)), cut) == []


def test_a_version_that_decides_on_what_was_not_kept_does_not_fit() -> None:
    old = ended()
    text = STEPS.replace("next: three", 'next: {arcs: [{step: three, when: "{{ one.count > 3 }}"}]}')
    newer = plan_of(workflow(text))
    (problem,) = inheriting.misfits(newer, inheriting.cut_before(newer, old.state, "three"))
    assert "one.count" in problem
