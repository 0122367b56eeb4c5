"""What a retry with another version, and a rerun from a step, take over and run again."""

import pytest

from noetl.engine import inheriting
from noetl.model.events import CommandIssued
from noetl.model.ids import ExecutionId
from noetl.model.messages import RetryChoice, Start
from tests.play import EXECUTION, Play, plan_of, workflow
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


# ---- a retry of chosen items -------------------------------------------------------------

FAILING = """
- {step: first, next: each}
- step: each
  loop: {in: [1, 2, 3, 4, 5], iterator: n, spec: {mode: sequential, chunk: 5, policy: {failure: POLICY}}}
  tool: {kind: python, code: x}
  next: after
- {step: after, tool: {kind: python, code: x}}
"""


def play_failing(policy: str) -> Play:
    return Play(workflow(FAILING.replace("POLICY", policy)))


def run_failing(policy: str) -> Play:
    """The items 1, 3 and 4 of 5 fail."""
    old = play_failing(policy).start()
    old.chunk(old.command("each"), failed=(1, 3, 4))
    return old.run()


def retry(policy: str, old: Play, only: RetryChoice | None = None) -> Play:
    """A retry, begun."""
    new = play_failing(policy)
    start = Start(
        execution_id=ExecutionId(EXECUTION),
        path="test",
        playbook="hash",
        retry_of=ExecutionId("6"),
        only=only,
    )
    new.tell(start, retried=old.state)
    return new


def retry_items(policy: str, *indexes: int) -> Play:
    """A retry of these items of `each`, begun."""
    return retry(policy, run_failing(policy), RetryChoice(items={"each": indexes}))


def total_stats(play: Play) -> dict[str, int]:
    result = play.state.steps["each"].result
    assert result is not None
    stats: dict[str, int] = result.context["stats"]
    return stats


def test_only_the_chosen_items_run_again_and_the_others_stay_failed() -> None:
    new = retry_items("best_effort", 4, 1)
    command = new.command("each")
    assert command.collection is not None
    assert (command.count, command.collection.only) == (2, (1, 4))
    new.chunk(command)
    new.run()
    assert new.check().state.status == "completed"
    assert total_stats(new) == {"total": 5, "ok": 4, "failed": 1, "skipped": 0}
    assert new.path() == ["each", "after"]


def test_items_that_were_left_out_can_fail_the_loop_again() -> None:
    new = retry_items("at_end", 1)
    new.chunk(new.command("each"))
    new.run()
    assert new.check().state.status == "failed"
    failure = new.state.failure
    assert failure is not None
    assert "2 more failed before and were left out of this retry" in failure.message
    loop = new.state.steps["each"].loop
    assert loop is not None
    assert (loop.failed, loop.total) == (2, 5)


def test_the_rest_runs_when_the_retry_is_retried() -> None:
    new = retry_items("at_end", 1)
    new.chunk(new.command("each"))
    new.run()
    last = retry("at_end", new)
    command = last.command("each")
    assert command.collection is not None
    assert (command.count, command.collection.only, command.collection.left) == (2, (), 0)
    last.chunk(command)
    last.run()
    assert last.check().state.status == "completed"
    assert total_stats(last) == {"total": 5, "ok": 5, "failed": 0, "skipped": 0}


def test_the_preview_says_how_many_items_are_left_and_what_that_means() -> None:
    for policy, fails_again in (("best_effort", ()), ("at_end", ("each",))):
        old = run_failing(policy)
        narrowed = inheriting.narrow_retry(old.state, RetryChoice(items={"each": (1,)}))
        told = inheriting.predict_retry(old.fixed.plan, narrowed)
        assert (told.items, told.left) == ({"each": (1, 5)}, {"each": 2})
        assert told.fails_again == fails_again
        whole = inheriting.predict_retry(old.fixed.plan, old.state)
        assert (whole.items, whole.left, whole.fails_again) == ({"each": (3, 5)}, {}, ())


def test_a_limit_of_failed_items_counts_those_that_are_left() -> None:
    new = retry_items("{max_failed: 1}", 1, 3)
    new.chunk(new.command("each"))
    new.run()
    assert new.check().state.status == "completed"
    assert total_stats(new)["failed"] == 1


TWO_LOOPS = """
- {step: one, loop: {in: [1, 2], iterator: n, spec: {policy: {failure: best_effort}}}, tool: {kind: python, code: x}, next: two}
- {step: two, loop: {in: [1, 2], iterator: n, spec: {policy: {failure: best_effort}}}, tool: {kind: python, code: x}}
"""


def run_two_loops() -> Play:
    old = Play(workflow(TWO_LOOPS)).start()
    while old.list_ready():
        old.chunk(old.list_ready()[0], failed=(1,))
    return old


def test_another_loop_that_was_not_chosen_keeps_its_result() -> None:
    old = run_two_loops()
    narrowed = inheriting.narrow_retry(old.state, RetryChoice(steps=("two",)))
    told = inheriting.predict_retry(old.fixed.plan, narrowed)
    assert (told.inherited, told.begins, told.again) == (("one",), ("two",), ("two",))


@pytest.mark.parametrize(
    ("only", "problem"),
    [
        (RetryChoice(steps=("zzz",)), "'zzz' is not one that a retry begins with: one, two"),
        (RetryChoice(items={"one": (2,)}), "item 2 of 'one' does not exist: its items are 0 to 1"),
        (RetryChoice(items={"one": (1,), "two": (1,)}), "'two' runs again as a whole"),
        (RetryChoice(items={"one": tuple(range(201))}), "more than 200 at once"),
    ],
)
def test_a_choice_that_cannot_be_kept_is_named(only: RetryChoice, problem: str) -> None:
    old = run_two_loops()
    (found,) = inheriting.find_choice_problems(old.fixed.plan, old.state, only)
    assert problem in found
    assert inheriting.find_choice_problems(old.fixed.plan, old.state, RetryChoice(("one",))) == []


def test_a_failed_execution_is_not_retried_without_a_branch_that_did_not_finish() -> None:
    old = Play(workflow(FORKED)).start()
    old.fail(old.command("left"))
    old.finish_stops()
    assert old.state.status == "failed"
    only = RetryChoice(steps=("left",))
    (found,) = inheriting.find_choice_problems(old.fixed.plan, old.state, only)
    assert "right did not finish either" in found
    both = RetryChoice(steps=("left", "right"))
    assert inheriting.find_choice_problems(old.fixed.plan, old.state, both) == []


FORKED = """
- {step: begin, next: {spec: {mode: inclusive}, arcs: [{step: left}, {step: right}]}}
- {step: left, tool: {kind: python, code: x}}
- {step: right, tool: {kind: python, code: x}}
"""


@pytest.mark.parametrize(
    ("only", "place"), [((3, 4), "item 3: each is lost"), ((), "one item: each is lost")]
)
def test_a_failed_command_of_a_retry_names_the_item_as_the_loop_counts_it(
    only: tuple[int, ...], place: str
) -> None:
    choice = RetryChoice(items={"each": only}) if only else None
    new = retry("at_end", run_failing("at_end"), choice)
    command = new.command("each")
    (issued,) = (event for event in new.log if isinstance(event, CommandIssued))
    assert (issued.repeats, issued.indexes) == (True, only or None)
    new.fail(command, "LOST")
    result = new.state.steps["each"].result
    assert result is not None
    assert result.error is not None
    assert result.error.message.endswith(f"; {place}")


FORKS = """
- step: both
  next: {spec: {mode: inclusive}, arcs: [{step: left}, {step: right, when: "{{ ctx.x }}"}]}
- {step: left, next: choose}
- {step: right, next: choose}
- step: choose
  next: [{step: yes_, when: "{{ ctx.x }}"}, {step: no_}, {step: both}]
- {step: yes_}
- {step: no_}
"""


def test_the_preview_tells_choices_from_sequences() -> None:
    plan = plan_of(workflow(FORKS))
    ways = {way.step: way for way in inheriting.list_ways(plan, plan.steps)}
    assert set(ways) == {"both", "left", "right", "choose"}
    assert (ways["both"].to, ways["both"].maybe, ways["both"].one) == (("left",), ("right",), False)
    assert (ways["left"].to, ways["left"].maybe) == (("choose",), ())
    choice = ways["choose"]
    assert (choice.to, choice.maybe) == ((), ("yes_", "no_"))
    assert (choice.one, choice.has_else) == (True, True)
