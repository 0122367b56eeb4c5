"""A rerun from a step begins with what was there when the step was last entered."""

from typing import Any

from noetl.engine.rewinding import ExecutionRewinder, RewoundExecution
from noetl.model import messages as m
from tests.play import Play, workflow

STEPS = """
- step: one
  tool: {kind: python, code: x}
  set: {ctx.n: 1}
  next: {arcs: [{step: two, args: {a: "{{ ctx.n }}"}}]}
- step: two
  tool: {kind: python, code: x}
  set: {ctx.n: "{{ ctx.n + 1 }}", ctx.late: true}
  next: {arcs: [{step: three, args: {b: "{{ ctx.n }}"}}]}
- step: three
  tool: {kind: python, code: x}
  set: {ctx.n: "{{ ctx.n * 100 }}"}
"""


def rewind(old: Play, step: str) -> RewoundExecution:
    rewinding = ExecutionRewinder(old.fixed.plan, old.state.execution_id, step)
    for event in old.log:
        rewinding.fold_event(event)
    found = rewinding.make_rewound()
    assert found is not None
    return found


def rerun(text: str, old: Play, step: str) -> Play:
    again = Play(text)
    again.stored |= old.stored
    start = m.Start(
        execution_id=m.ExecutionId("7"),
        path="test",
        playbook="hash",
        retry_of=m.ExecutionId("6"),
        from_step=step,
    )
    again.tell(start, rewind(old, step).state)
    return again


def get_step(command: Any) -> str:
    return str(command.step)


def test_rerun_from_the_middle_gives_the_same_result_though_later_steps_overwrite_variables() -> (
    None
):
    text = workflow(STEPS)
    old = Play(text).start().run(get_step)
    assert old.state.ctx == {"n": 200, "late": True}
    again = rerun(text, old, "two")
    assert again.state.ctx == {"n": 1}
    (live,) = again.state.activations.values()
    assert (live.step, live.args) == ("two", {"a": 1})
    again.run(get_step)
    assert again.state.ctx == old.state.ctx
    assert again.state.steps["three"].args == {"b": 2}
    again.check()


CYCLE = """
- step: poll
  tool: {kind: python, code: x}
  set: {ctx.n: "{{ ctx.n | default(0) + 1 }}"}
  next: check
- step: check
  tool: {kind: python, code: x}
  next:
    arcs:
    - {step: poll, when: "{{ ctx.n < 3 }}", args: {round: "{{ ctx.n }}"}}
    - {step: end, when: "{{ ctx.n >= 3 }}"}
- step: end
  tool: {kind: python, code: x}
"""


def test_the_last_activation_of_a_step_that_ran_several_times_is_repeated() -> None:
    text = workflow(CYCLE)
    old = Play(text).start().run(get_step)
    rewound = rewind(old, "poll")
    assert (rewound.run, rewound.state.ctx) == (3, {"n": 2})
    again = rerun(text, old, "poll")
    (live,) = again.state.activations.values()
    assert (live.run, live.args) == (3, {"round": 2})
    assert {step: record.runs for step, record in again.state.steps.items()} == {
        "poll": 3,
        "check": 2,
    }
    assert again.state.steps["check"].result is not None, "of the round before"
    again.run(get_step)
    assert again.state.ctx == old.state.ctx
    again.check()


FORK = """
- step: fork
  tool: {kind: python, code: x}
  next: {spec: {mode: inclusive}, arcs: [{step: left}, {step: right}]}
- step: left
  tool: {kind: python, code: x}
  set: {ctx.left: 1}
  next: [{step: meet, args: {from_left: "{{ ctx.left }}"}}]
- step: right
  tool: {kind: python, code: x}
  set: {ctx.right: 2}
  next: [{step: meet, args: {from_right: "{{ ctx.right }}"}}]
- step: meet
  tool: {kind: python, code: x}
  set: {ctx.left: 7}
"""


def test_a_branch_beside_the_step_gives_what_it_gave_and_its_arrival_at_the_join_counts() -> None:
    text = workflow(FORK)
    old = Play(text).start().run(get_step)
    assert old.state.steps["meet"].args == {"from_left": 1, "from_right": 2}
    again = rerun(text, old, "left")
    assert again.state.ctx == {"right": 2}
    assert {each.step for each in again.state.activations.values()} == {"left"}
    again.run(get_step)
    assert again.state.steps["meet"].args == {"from_left": 1, "from_right": 2}
    assert (again.state.ctx, again.state.steps["right"].status) == (old.state.ctx, "inherited")
    again.check()


def test_a_branch_beside_the_step_that_was_cut_off_begins_again() -> None:
    text = workflow(FORK)
    old = Play(text).start()
    old.complete(old.command("fork"))
    old.fail(old.command("left"))
    old.finish_stops()
    assert old.state.status == "failed"
    again = rerun(text, old, "right")
    assert {each.step for each in again.state.activations.values()} == {"left", "right"}
    again.run(get_step)
    assert again.state.steps["meet"].args == {"from_left": 1, "from_right": 2}
    again.check()


FINAL = """
- step: one
  tool: {kind: python, code: x}
  next: two
- step: two
  tool: {kind: python, code: x}
- step: clean
  tool: {kind: python, code: x}
"""


def test_the_final_step_runs_again_at_the_end() -> None:
    text = workflow(FINAL, executor={"spec": {"final_step": "clean"}})
    old = Play(text).start().run(get_step)
    assert rewind(old, "clean").final
    again = rerun(text, old, "two")
    assert "clean" not in again.state.steps
    again.run(get_step)
    assert (again.state.status, again.state.steps["clean"].runs) == ("completed", 1)


STATE = """
- step: read
  tool: {kind: python, code: x, input: {w: "{{ state.watermark | default(0) }}"}}
  next: load
- step: load
  tool: {kind: python, code: x}
  set: {state.watermark: "{{ state.watermark | default(0) + 10 }}"}
"""


def test_state_values_are_those_of_the_moment_and_the_executions_own_writes_are_no_conflict() -> (
    None
):
    text = workflow(STATE)
    old = Play(text).start().run(get_step)
    assert old.stored["watermark"].value == 10
    again = rerun(text, old, "load").run(get_step)
    assert (again.state.status, again.stored["watermark"].value) == ("completed", 10)
