"""Entering, calling, leaving and routing, one execution at a time."""

import pytest
from msgspec.structs import replace

from noetl.engine.interpretation import Refusal
from noetl.engine.state import ExecutionLimits
from noetl.model import events as e
from noetl.model import messages as m
from noetl.model.envelope import Selected
from noetl.model.errors import Failure
from tests.play import Play, workflow

PYTHON = 'tool: {kind: python, code: "result = 1"}'


def play(steps: str, payload: dict | None = None, **document: object) -> Play:
    return Play(workflow(steps, **document), payload).start()


def test_a_chain_runs_in_order_and_ends_once() -> None:
    p = play(f"""
- {{step: a, {PYTHON}, next: b}}
- {{step: b, {PYTHON}, next: c}}
- {{step: c, {PYTHON}}}
""").run()
    assert p.check().path() == ["a", "b", "c"]
    assert p.state.status == "completed"
    assert p.find_last(e.PlaybookCompleted).step == "c"


def test_the_events_of_a_step_are_the_six_of_the_architecture() -> None:
    p = play(f"- {{step: a, {PYTHON}}}").run()
    assert p.types() == [
        "playbook.initialized",
        "workflow.initialized",
        "step.enter",
        "command.issued",
        "command.completed",
        "call.done",
        "step.exit",
        "next.evaluated",
        "playbook.completed",
    ]


def test_exclusive_takes_the_first_true_arc_and_says_why() -> None:
    p = play(f"""
- step: a
  {PYTHON}
  next:
    - {{step: x, when: "{{{{ a.n > 10 }}}}"}}
    - {{step: y, when: "{{{{ a.n > 3 }}}}"}}
    - z
- {{step: x}}
- {{step: y}}
- {{step: z}}
""").run(lambda _: {"n": 5})
    assert p.check().path() == ["a", "y"]
    routed = next(event for event in p.log if isinstance(event, e.NextEvaluated))
    assert [(v.step, v.verdict) for v in routed.verdicts] == [
        ("x", "false"),
        ("y", "taken"),
        ("z", "untried"),
    ]
    assert routed.verdicts[1].saw == {"a.n > 3": True}


def test_inclusive_takes_every_true_arc_and_the_meeting_step_runs_once_with_all_args() -> None:
    p = play(f"""
- step: a
  {PYTHON}
  next:
    spec: {{mode: inclusive}}
    arcs:
      - {{step: x, args: {{k: 1, who: x}}}}
      - {{step: y, args: {{k: 2}}}}
      - {{step: z, when: false}}
- {{step: x, {PYTHON}, next: [{{step: meet, args: {{from_x: 1, last: x}}}}]}}
- {{step: y, {PYTHON}, next: [{{step: meet, args: {{from_y: 1, last: y}}}}]}}
- {{step: z}}
- {{step: meet, {PYTHON}}}
""")
    p.complete(p.command("a"))
    assert p.command("x").scope.args == {"k": 1, "who": "x"}
    p.complete(p.command("y"))
    assert "meet" in p.state.tokens, "x is live and can still reach it"
    p.complete(p.command("x"))
    assert p.command("meet").scope.args == {"from_x": 1, "from_y": 1, "last": "y"}, (
        "document order, later wins"
    )
    assert p.run().check().path() == ["a", "x", "y", "meet"]
    assert p.state.status == "completed"


def test_join_each_runs_the_step_per_arrival() -> None:
    p = play(f"""
- {{step: a, next: {{spec: {{mode: inclusive}}, arcs: [{{step: x}}, {{step: y}}]}}}}
- {{step: x, {PYTHON}, next: meet}}
- {{step: y, {PYTHON}, next: meet}}
- {{step: meet, spec: {{join: each}}, {PYTHON}}}
""").run()
    assert sorted(p.check().path()) == ["a", "meet", "meet", "x", "y"]
    assert p.state.steps["meet"].runs == 2


def test_held_steps_that_reach_each_other_go_by_earliest_arrival() -> None:
    p = play(f"""
- {{step: a, next: {{spec: {{mode: inclusive}}, arcs: [{{step: x}}, {{step: y}}]}}}}
- {{step: x, {PYTHON}, next: [{{step: y, when: "{{{{ false }}}}"}}]}}
- {{step: y, {PYTHON}, next: [{{step: x, when: "{{{{ false }}}}"}}]}}
""").run()
    assert p.check().path() == ["a", "x", "y"]
    assert p.state.status == "completed"


def test_a_cycle_counts_its_runs() -> None:
    p = play(f"""
- step: a
  {PYTHON}
  set: {{ctx.n: "{{{{ ctx.n | default(0) + 1 }}}}"}}
  next: [{{step: a, when: "{{{{ ctx.n < 4 }}}}"}}]
""").run()
    assert p.check().path() == ["a"] * 4
    assert p.state.ctx == {"n": 4}


def test_an_error_is_handled_only_by_an_arc_with_a_guard() -> None:
    steps = f"""
- step: a
  {PYTHON}
  next:
    - {{step: x}}
    - {{step: rescue, when: "{{{{ error is defined and error.code == 'BROKEN' }}}}"}}
- {{step: x}}
- {{step: rescue}}
"""
    p = play(steps)
    p.fail(p.command("a"))
    assert p.check().path() == ["a", "rescue"]
    assert p.state.status == "completed"
    assert p.state.steps["a"].status == "error"


@pytest.mark.parametrize(
    "guard", ["true", "'{{ workload.mode == \"full\" }}'", "'{{ ctx.has_more | default(true) }}'"]
)
def test_a_guard_that_does_not_mention_the_outcome_handles_no_failure(guard: str) -> None:
    p = play(
        f"- {{step: a, {PYTHON}, next: [{{step: b, when: {guard}}}]}}\n- {{step: b}}",
        {"mode": "full"},
    )
    p.fail(p.command("a"))
    assert p.check().path() == ["a"]
    assert p.find_last(e.PlaybookFailed).error.code == "BROKEN"
    assert [verdict.verdict for verdict in p.find_last(e.NextEvaluated).verdicts] == ["untried"]


def test_a_worker_is_not_asked_for_guards_that_are_not_tried() -> None:
    p = play(f"""
- {{step: first, {PYTHON}, next: a}}
- {{step: a, {PYTHON}, next: [{{step: b, when: "{{{{ first.rows[ctx.n] }}}}"}}]}}
- {{step: b}}
""")
    p.complete(p.command("first"))
    p.fail(p.command("a"))
    assert p.check().find_last(e.PlaybookFailed).error.code == "BROKEN"
    assert [event.kind for event in p.log if isinstance(event, e.CommandIssued)] == ["run", "run"]


def test_a_step_whose_set_fails_is_routed_as_failed() -> None:
    p = play(f"""
- step: a
  {PYTHON}
  set: {{n: "{{{{ ctx.nothing }}}}"}}
  next: [{{step: b, when: "{{{{ event.name == 'call.done' }}}}"}}]
- {{step: b}}
""").run()
    assert p.check().path() == ["a"]
    assert p.find_last(e.PlaybookFailed).error.code == "TEMPLATE_UNDEFINED"
    assert p.find_last(e.NextEvaluated).event == "call.error"


def test_an_unhandled_error_fails_fast_and_stops_the_rest() -> None:
    p = play(f"""
- {{step: a, next: {{spec: {{mode: inclusive}}, arcs: [{{step: x}}, {{step: y}}]}}}}
- {{step: x, {PYTHON}}}
- {{step: y, {PYTHON}}}
""")
    p.fail(p.command("x"))
    assert p.state.status == "cancelling"
    assert [p.queue[key].step for key in p.stops] == ["y"]
    p.finish_stops()
    failed = p.check().find_last(e.PlaybookFailed)
    assert (failed.error.code, failed.step) == ("BROKEN", "x")


def test_failure_continue_lets_other_branches_finish_first() -> None:
    p = play(f"""
- {{step: a, next: {{spec: {{mode: inclusive}}, arcs: [{{step: x}}, {{step: y}}]}}}}
- {{step: x, spec: {{policy: {{failure: continue}}}}, {PYTHON}}}
- {{step: y, {PYTHON}, next: z}}
- {{step: z, {PYTHON}}}
""")
    p.fail(p.command("x"))
    assert p.state.status == "running"
    assert p.run().check().path() == ["a", "x", "y", "z"]
    assert p.state.status == "failed"


@pytest.mark.parametrize("guard", ["{{ ctx.nobody > 1 }}", "{{ a.nothing > 1 }}", "{{ 1 / 0 }}"])
def test_a_guard_that_raises_fails_its_step_visibly(guard: str) -> None:
    p = play(f"""
- {{step: a, {PYTHON}, next: [{{step: b, when: "{guard}"}}]}}
- {{step: b}}
""").run(lambda _: {"n": 1})
    p.finish_stops()
    failed = p.check().find_last(e.PlaybookFailed)
    assert failed.step == "a"
    assert "arc to b" in failed.error.message


def test_set_is_folded_before_the_arcs_are_tried() -> None:
    p = play(f"""
- step: a
  {PYTHON}
  set: {{ctx.n: "{{{{ result.items | length }}}}", step.half: 2}}
  next: [{{step: b, when: "{{{{ ctx.n == 3 and step.half == 2 }}}}", set: {{ctx.seen: true}}}}]
- {{step: b}}
""").run(lambda _: {"items": [1, 2, 3]})
    assert p.check().path() == ["a", "b"]
    assert p.state.ctx == {"n": 3, "seen": True}


def test_a_set_that_cannot_be_evaluated_fails_the_step() -> None:
    p = play(f"- {{step: a, {PYTHON}, set: {{ctx.n: '{{{{ result.nothing }}}}'}}}}").run(
        lambda _: {}
    )
    assert p.check().find_last(e.PlaybookFailed).error.code == "TEMPLATE_UNDEFINED"


def test_what_cannot_be_cut_out_is_asked_of_a_worker() -> None:
    p = play(f"""
- {{step: a, {PYTHON}, set: {{ctx.i: 1}}, next: [{{step: b, when: "{{{{ a.list[ctx.i] }}}}"}}]}}
- {{step: b}}
""")
    p.complete(p.command("a"), {"list": [False, True]})
    asked = p.command("a")
    assert (asked.kind, asked.site) == ("evaluate", "when")
    p.report_evaluated(asked, True)
    assert p.check().path() == ["a", "b"]


def test_list_of_a_result_that_an_older_worker_reported_in_parts_is_made_by_a_worker() -> None:
    p = play(f"- {{step: a, {PYTHON}, set: {{ctx.all: ['{{{{ result.text }}}}', 1]}}}}")
    command = p.command("a")
    result = replace(
        p.envelope(command, {"text": "t"}), context={"selections": {"0" * 16: {"value": "t"}}}
    )
    p.report(command, e.CommandCompleted(command_id=command.command_id, attempt=1, result=result))
    assert p.command("a").kind == "evaluate"


def test_a_large_selection_stays_a_reference_in_ctx() -> None:
    p = play(f"""
- {{step: a, {PYTHON}, set: {{ctx.rows: "{{{{ result.rows }}}}"}}, next: b}}
- {{step: b, {PYTHON}, next: [{{step: c, when: "{{{{ ctx.rows | length > 1 }}}}"}}]}}
- {{step: c}}
""")
    command = p.command("a")
    selection = p.fixed.plan.steps["a"].selections[0]
    result = p.envelope(command, {}).__class__(
        status="ok",
        context={"selections": {selection.id: {"reference": "noetl://execution/7/result/a/k"}}},
    )
    p.report(command, e.CommandCompleted(command_id=command.command_id, attempt=1, result=result))
    assert p.state.ctx == {"rows": {"$reference": "noetl://execution/7/result/a/k"}}
    p.complete(p.command("b"))
    assert p.command("b").kind == "evaluate", "looking into a reference needs a worker"
    p.report_evaluated(p.command("b"), Selected(value=True))
    assert p.check().path() == ["a", "b", "c"]


def test_admission_skips_and_may_lead_on() -> None:
    p = play(
        f"""
- {{step: a, next: b}}
- step: b
  spec:
    policy:
      admit:
        rules: [{{when: "{{{{ workload.go }}}}", then: {{allow: true}}}}, {{else: {{allow: false, next: c}}}}]
  {PYTHON}
- {{step: c}}
""",
        {"go": False},
    ).run()
    assert p.check().path() == ["a", "b", "c"]
    assert p.state.steps["b"].status == "skipped"
    assert "command.issued" not in p.types()


def test_no_next_is_error_concerns_a_router_that_matched_nothing() -> None:
    document = {"executor": {"spec": {"no_next_is_error": True}}}
    p = play("- {step: a, next: [{step: b, when: false}]}\n- {step: b}", **document)
    assert p.check().find_last(e.PlaybookFailed).error.code == "NO_NEXT"
    assert play("- {step: a}", **document).state.status == "completed"


def test_the_final_step_runs_whatever_the_outcome_and_cannot_change_it() -> None:
    document = {"executor": {"spec": {"final_step": "report"}}}
    p = play(f"- {{step: a, {PYTHON}}}\n- {{step: report, {PYTHON}}}", **document)
    p.fail(p.command("a"))
    assert p.command("report").scope.status == "failed"
    p.run()
    assert p.check().path() == ["a", "report"]
    assert p.state.status == "failed"
    assert p.find_last(e.PlaybookFailed).step == "a"


def test_a_failing_final_step_fails_a_completed_execution() -> None:
    document = {"executor": {"spec": {"final_step": "report"}}}
    p = play(f"- {{step: a}}\n- {{step: report, {PYTHON}}}", **document)
    p.fail(p.command("report"))
    assert p.check().state.status == "failed"


def test_a_report_of_another_attempt_is_refused() -> None:
    p = play(f"- {{step: a, {PYTHON}}}")
    old = p.command("a")
    p.tell(m.LeaseLost(command_id=old.command_id, attempt=1))
    assert p.complete(old) == Refusal("stale")
    assert p.command("a").attempt == 2
    p.complete(p.command("a"))
    assert p.complete(old) == Refusal("terminal")
    p.check()


def test_five_lost_leases_make_a_dead_command_that_can_be_routed() -> None:
    p = play(f"""
- {{step: a, {PYTHON}, next: [{{step: b, when: "{{{{ error is defined and error.code == 'WORKER_LOST' }}}}"}}]}}
- {{step: b}}
""")
    for _ in range(5):
        command = p.command("a")
        p.tell(m.LeaseLost(command_id=command.command_id, attempt=command.attempt))
    assert p.check().types("command.reclaimed", "command.dead") == ["command.reclaimed"] * 4 + [
        "command.dead"
    ]
    assert p.path() == ["a", "b"]


def test_a_lost_lease_brings_the_journal_to_the_next_attempt() -> None:
    p = play("""
- step: a
  tool:
    - {name: one, kind: noop}
    - {name: two, kind: noop}
""")
    command = p.command("a")
    entry = e.TaskDone(
        command_id=command.command_id,
        attempt=1,
        task="one",
        run=1,
        goto=1,
        result=p.envelope(command, 1),
        set={"ctx.x": 1},
    )
    p.report(command, entry)
    assert p.report(command, entry) == Refusal("known")
    p.tell(m.LeaseLost(command_id=command.command_id, attempt=1))
    again = p.command("a")
    assert (again.attempt, again.journal.goto, again.journal.set) == (2, 1, {"ctx.x": 1})
    assert p.state.ctx == {"x": 1}, "in force even if the pipeline fails afterwards"
    p.fail(again)
    assert p.check().state.ctx == {"x": 1}


def test_runaway_cycles_are_stopped() -> None:
    p = Play(
        workflow("- {step: a, next: b}\n- {step: b, next: a}"),
        limits=ExecutionLimits(activations=50),
    ).start()
    assert p.check().find_last(e.PlaybookFailed).error.code == "RUNAWAY"
    assert len(p.path()) == 50


def test_a_cycle_of_steps_that_wait_for_nobody_is_stopped() -> None:
    p = Play(workflow("- {step: a, next: b}\n- {step: b, next: a}")).start()
    assert p.check().find_last(e.PlaybookFailed).error.code == "RUNAWAY"
    assert p.state.terminal


def test_a_playbook_says_how_many_steps_it_may_run() -> None:
    text = workflow(
        "- {step: a, next: b}\n- {step: b, next: a}", executor={"spec": {"max_activations": 7}}
    )
    p = Play(text).start().run()
    failure = p.check().find_last(e.PlaybookFailed).error
    assert (failure.code, len(p.path())) == ("RUNAWAY", 7)
    assert "max_activations" in failure.message


def test_errors_are_values_in_the_scope_of_the_router() -> None:
    p = play(f"""
- {{step: a, {PYTHON}, next: [{{step: b, when: "{{{{ output.status == 'error' and event.name == 'call.error' }}}}"}}]}}
- {{step: b}}
""").run(lambda c: Failure(code="X", message="no") if c.step == "a" else None)
    assert p.check().path() == ["a", "b"]


def test_a_rules_assignment_counts_even_if_the_worker_dies_before_the_next_try() -> None:
    p = play(f"- {{step: a, {PYTHON}}}")
    command = p.command("a")
    error = Failure(code="X", message="no")
    again = e.RetryStarted(
        command_id=command.command_id,
        attempt=1,
        task="task_0",
        run=1,
        tries=1,
        error=error,
        set={"ctx.seen": 1},
    )
    p.report(command, again)
    assert p.report(command, again) == Refusal("known")
    p.tell(m.LeaseLost(command_id=command.command_id, attempt=1))
    assert p.command("a").journal.set == {"ctx.seen": 1}
    assert p.command("a").journal.tries == 1
    assert p.check().state.ctx == {"seen": 1}


@pytest.mark.parametrize(
    ("arc", "said"),
    [
        ('{step: b, when: "{{ error.n > 1 }}"}', "guard of the arc to b: 'error.n' is undefined"),
        ('{step: b, when: "{{ error is defined }}", set: {x: "{{ ctx.nothing }}"}}', "set x: "),
        ('{step: b, when: "{{ error is defined }}", args: {x: "{{ ctx.nothing }}"}}', "args x: "),
    ],
)
def test_both_errors_are_shown_when_an_error_arc_fails(arc: str, said: str) -> None:
    p = play(f"- {{step: a, {PYTHON}, next: [{arc}]}}\n- {{step: b}}")
    p.fail(p.command("a"))
    failure = p.check().find_last(e.PlaybookFailed).error
    assert failure.code == "BROKEN"
    assert failure.message.index("a is broken") < failure.message.index(
        f"TEMPLATE_UNDEFINED: {said}"
    )
    assert p.find_last(e.NextEvaluated).error.code == "TEMPLATE_UNDEFINED"
