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


def run_to_end(steps: str = STEPS) -> Play:
    return Play(workflow(steps)).start().run(lambda command: command.step)


def test_the_preview_says_what_is_taken_over_and_what_runs() -> None:
    old, plan = run_to_end(), plan_of(workflow(STEPS))
    told = inheriting.predict_retry(plan, rewind(old, "two").state)
    assert (told.inherited, told.begins, told.again) == (("one",), ("two",), ("two", "three"))


def test_a_version_without_a_step_whose_result_is_taken_over_does_not_fit() -> None:
    old = run_to_end()
    newer = plan_of(workflow(STEPS.replace("step: one", "step: first")))
    cut = rewind(old, "three").state
    assert inheriting.find_misfits(newer, cut) == [
        "it has no step 'one', so the result of that step cannot be reused"
    ]
    assert inheriting.find_misfits(plan_of(workflow(STEPS)), cut) == []


def test_a_version_that_decides_on_what_was_not_kept_does_not_fit() -> None:
    old = run_to_end()
    text = STEPS.replace(
        "next: three", 'next: {arcs: [{step: three, when: "{{ one.count > 3 }}"}]}'
    )
    newer = plan_of(workflow(text))
    (problem,) = inheriting.find_misfits(newer, rewind(old, "three").state)
    assert "one.count" in problem


LOOP = """
- {step: first, set: {ctx.total: 3}, next: each}
- step: each
  loop: {in: [1, 2], iterator: n, spec: {mode: sequential, policy: {failure: best_effort}, reduce: {ctx.sum: sum}}}
  tool: {kind: python, code: x, set: {ctx.sum: "{{ n }}", ctx.total: "{{ n }}"}}
  set: {ctx.count: "{{ (ctx.count | default(0)) + 1 }}", ctx.other: 1}
"""


def ended_with_a_failed_item() -> Play:
    old = Play(workflow(LOOP)).start()
    old.chunk(old.command("each"), partial={"ctx.sum": 1})
    old.chunk(old.command("each"), failed=(1,))
    return old.run()


def test_the_preview_of_a_retry_names_variables_that_are_assigned_again() -> None:
    old = ended_with_a_failed_item().state
    assert (old.status, old.ctx) == ("completed", {"total": 3, "sum": 1, "count": 1, "other": 1})
    told = inheriting.predict_retry(plan_of(workflow(LOOP)), old)
    assert told.writes_again == {"each": ("ctx.count", "ctx.other", "ctx.total")}


def test_the_preview_names_loops_whose_collection_another_version_changes() -> None:
    old, before = ended_with_a_failed_item().state, plan_of(workflow(LOOP))
    newer = plan_of(workflow(LOOP.replace("[1, 2]", "[5, 6]")))
    assert inheriting.find_changed_loops(before, newer, old) == ("each",)
    assert inheriting.find_changed_loops(before, before, old) == ()
