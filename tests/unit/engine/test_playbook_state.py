"""State between executions in the engine: what is read, what is written with which event, and what a conflict does."""

from typing import Any

import pytest

from noetl.model import decisions as d
from noetl.model import events as e
from noetl.model import messages as m
from noetl.model.envelope import Selected
from noetl.model.ids import RefId
from noetl.model.playbook_state import MAX_STATE_NAMES, StateValue
from noetl.model.reference import Reference
from tests.play import EXECUTION, Play, workflow

PYTHON = 'tool: {kind: python, code: "result = 1"}'
COUNT = f"""
- step: count
  {PYTHON}
  set: {{state.n: "{{{{ state.n | default(0) + 1 }}}}"}}
"""


def play(steps: str, stored: dict[str, StateValue] | None = None, **document: object) -> Play:
    p = Play(workflow(steps, **document))
    p.stored = dict(stored or {})
    return p.start()


def writes(p: Play) -> list[tuple[str, Any, int]]:
    return [
        (each.name, each.value, each.expected) for each in p.effects if isinstance(each, d.SetState)
    ]


def somebody_writes(p: Play, name: str, value: Any) -> None:
    known = p.stored.get(name, StateValue(0))
    p.stored[name] = StateValue(known.version + 1, value)


def test_a_playbook_without_state_reads_and_writes_none() -> None:
    p = play(f"- {{step: a, {PYTHON}, set: {{ctx.n: 1}}}}", {"n": StateValue(1, 1)}).run()
    assert p.check().state.playbook_state == {}
    assert "state.read" not in p.types()


def test_names_that_the_playbook_uses_are_read_before_the_first_step() -> None:
    p = play(COUNT, {"n": StateValue(3, 41), "other": StateValue(1, "x")}).run()
    assert p.check().types()[:4] == [
        "playbook.initialized",
        "state.read",
        "workflow.initialized",
        "step.enter",
    ]
    assert p.find_last(e.StateRead).values == {"n": StateValue(3, 41)}
    assert writes(p) == [("n", 42, 3)]
    assert p.find_last(e.StepExit).set == {"state.n": 42}
    assert p.state.status == "completed"


def test_the_effect_names_the_event_that_reports_the_write() -> None:
    p = play(COUNT).run()
    (effect,) = [each for each in p.effects if isinstance(each, d.SetState)]
    assert effect == d.SetState("test", "n", 1, 0, p.find_last(e.StepExit).key)


def test_a_name_that_was_never_written_is_undefined_and_has_version_0() -> None:
    p = play(f"- {{step: a, {PYTHON}, set: {{ctx.n: '{{{{ state.n }}}}'}}}}").run()
    assert p.check().find_last(e.StateRead).values == {"n": StateValue(0, unset=True)}
    assert p.state.status == "failed"
    assert p.state.failure is not None
    assert "state.n" in p.state.failure.message


def test_own_writes_are_visible_at_once_in_guards_arcs_and_commands() -> None:
    p = play(f"""
- step: a
  {PYTHON}
  set: {{state.n: 5}}
  next:
    - {{step: b, when: "{{{{ state.n == 5 }}}}", set: {{state.m: "{{{{ state.n * 2 }}}}"}}}}
- {{step: b, tool: {{kind: python, input: {{n: "{{{{ state.n }}}}", m: "{{{{ state.m }}}}"}}, code: "result = 1"}}}}
""")
    p.complete(p.command("a"))
    assert p.command("b").scope.state == {"n": 5, "m": 10}
    assert p.find_last(e.NextEvaluated).verdicts[0].saw == {"state.n": 5}
    p.run()
    assert writes(p) == [("n", 5, 0), ("m", 10, 0)]
    assert p.check().state.status == "completed"


def test_a_write_of_a_task_is_made_with_its_journal_entry_also_if_the_pipeline_fails_later() -> (
    None
):
    p = play("""
- step: a
  tool:
    - {name: one, kind: python, code: "result = 1", set: {state.n: 1}}
    - {name: two, kind: python, code: "result = 2"}
""")
    command = p.command("a")
    entry = e.TaskDone(
        command_id=command.command_id, attempt=1, task="one", run=1, goto=1, result=p.envelope(command, 1),
        set={"state.n": 1},
    )  # fmt: skip
    p.report(command, entry)
    assert p.stored == {"n": StateValue(1, 1)}
    assert [each.event for each in p.effects if isinstance(each, d.SetState)] == [
        p.find_last(e.TaskDone).key
    ]
    p.fail(command)
    assert p.check().state.status == "failed"
    assert p.stored == {"n": StateValue(1, 1)}


def test_a_value_that_two_entries_repeat_is_written_once() -> None:
    p = play("- {step: a, tool: {kind: python, code: 'result = 1', set: {state.n: 1}}}")
    command = p.command("a")
    retried = e.RetryStarted(
        command_id=command.command_id,
        attempt=1,
        task="a",
        run=1,
        tries=1,
        error=None,
        set={"state.n": 1},
    )
    p.report(command, retried)
    p.complete(command, 1, set={"state.n": 1})
    assert writes(p) == [("n", 1, 0)]
    assert p.check().state.status == "completed"


def test_a_path_below_a_name_changes_a_part_of_its_map() -> None:
    p = play(
        f"- {{step: a, {PYTHON}, set: {{state.seen.eu: 7, state.seen.us: 8}}}}",
        {"seen": StateValue(2, {"eu": 1, "jp": 3})},
    ).run()
    assert writes(p) == [("seen", {"eu": 7, "jp": 3, "us": 8}, 2)]
    assert p.check().state.playbook_state["seen"].version == 3


def test_a_whole_use_of_state_reads_every_name() -> None:
    p = play(
        f"- {{step: a, {PYTHON}, set: {{ctx.all: '{{{{ state[workload.name] }}}}'}}}}",
        {"n": StateValue(1, 1), "m": StateValue(1, 2)},
        workload={"name": "m"},
    ).run()
    assert p.find_last(e.StateRead).values == {"m": StateValue(1, 2), "n": StateValue(1, 1)}
    assert p.check().state.ctx == {"all": 2}


def test_many_values_are_read_in_events_that_stay_small() -> None:
    stored = {f"n{number:02}": StateValue(1, "x" * 3_000) for number in range(7)}
    p = play(f"- {{step: a, {PYTHON}, set: {{ctx.n: '{{{{ state | length }}}}'}}}}", stored).run()
    parts = [event for event in p.log if isinstance(event, e.StateRead)]
    assert [len(part.values) for part in parts] == [2, 2, 2, 1]
    assert p.check().state.ctx == {"n": 7}


def test_state_is_read_when_the_execution_is_admitted() -> None:
    p = play(COUNT, {"n": StateValue(1, 1)}, executor={"spec": {"max_concurrent": 1}})
    assert "state.read" not in p.types()
    somebody_writes(p, "n", 10)
    p.tell(m.Admitted())
    assert p.run().check().find_last(e.StateRead).values == {"n": StateValue(2, 10)}
    assert writes(p) == [("n", 11, 2)]


# ---- conflicts ----


def test_a_lost_race_fails_the_step_and_records_the_conflict() -> None:
    p = play(COUNT, {"n": StateValue(3, 3)})
    somebody_writes(p, "n", 100)
    p.run()
    conflict = p.check().find_last(e.StateConflict)
    assert (conflict.name, conflict.expected, conflict.version, conflict.by) == (
        "n",
        3,
        4,
        "another",
    )
    assert p.state.status == "failed"
    assert p.state.failure is not None
    assert p.state.failure.code == "STATE_CONFLICT"
    assert p.state.failure.detail == {"name": "n", "expected": 3, "found": 4, "by": "another"}
    assert writes(p) == []
    assert p.find_last(e.StepExit).set == {}
    assert p.stored == {"n": StateValue(4, 100)}


def test_an_error_arc_routes_a_conflict_and_the_execution_still_sees_what_it_read() -> None:
    p = play(f"""
- step: count
  {PYTHON}
  set: {{state.n: "{{{{ state.n + 1 }}}}"}}
  next:
    - {{step: tell, when: "{{{{ output.status == 'error' and error.code == 'STATE_CONFLICT' }}}}"}}
- {{step: tell, {PYTHON}, set: {{ctx.read: "{{{{ state.n }}}}"}}}}
""", {"n": StateValue(3, 3)})  # fmt: skip
    somebody_writes(p, "n", 100)
    p.run()
    assert p.check().path() == ["count", "tell"]
    assert p.state.status == "completed"
    assert p.state.ctx == {"read": 3}


def test_a_name_more_than_a_playbook_may_have_fails_the_step() -> None:
    p = play(f"""
- {{step: new, {PYTHON}, set: {{state.n: 1}}, next: [{{step: old, when: "{{{{ error.code == 'STATE_FULL' }}}}"}}]}}
- {{step: old, {PYTHON}, set: {{state.known: "{{{{ state.known + 1 }}}}"}}}}
""", {"known": StateValue(1, 7)})  # fmt: skip
    p.stored |= {f"n{number}": StateValue(1, 1) for number in range(MAX_STATE_NAMES - 1)}
    p.run()
    assert p.check().find_last(e.StateConflict).is_full
    assert (p.state.status, p.state.recoveries[0].code) == ("completed", "STATE_FULL")
    assert writes(p) == [("known", 8, 1)]


def test_every_later_write_of_a_conflicting_name_fails_and_others_go_on() -> None:
    p = play(f"""
- step: a
  {PYTHON}
  set: {{state.n: 1}}
  next: [{{step: b, when: "{{{{ output.status == 'error' }}}}"}}]
- {{step: b, {PYTHON}, set: {{state.other: 2}}, next: c}}
- {{step: c, {PYTHON}, set: {{state.n: 2}}}}
""")
    somebody_writes(p, "n", 100)
    p.run()
    assert p.check().state.failure is not None
    assert p.state.failure.code == "STATE_CONFLICT"
    assert p.state.failed_step == "c"
    assert writes(p) == [("other", 2, 0)]


def test_a_conflict_of_an_arc_fails_its_step() -> None:
    p = play(f"""
- {{step: a, {PYTHON}, next: [{{step: b, set: {{state.n: 1}}}}]}}
- {{step: b, {PYTHON}}}
""")
    somebody_writes(p, "n", 100)
    p.run()
    assert p.check().path() == ["a"]
    assert p.state.failure is not None
    assert p.state.failure.code == "STATE_CONFLICT"


def test_a_conflict_at_the_end_of_a_command_fails_its_step() -> None:
    p = play("- {step: a, tool: {kind: python, code: 'result = 1', set: {state.n: 1}}}")
    somebody_writes(p, "n", 100)
    p.complete(p.command("a"), 1, set={"state.n": 1})
    assert "command.completed" in p.check().types()
    assert p.find_last(e.CallError).result.error.code == "STATE_CONFLICT"
    assert p.state.status == "failed"


def test_a_conflict_of_a_journal_entry_stops_the_command() -> None:
    p = play("""
- step: a
  tool:
    - {name: one, kind: python, code: "result = 1", set: {state.n: 1}}
    - {name: two, kind: python, code: "result = 2"}
""")
    command = p.command("a")
    somebody_writes(p, "n", 100)
    entry = e.TaskDone(
        command_id=command.command_id, attempt=1, task="one", run=1, goto=1, result=p.envelope(command, 1),
        set={"state.n": 1},
    )  # fmt: skip
    p.report(command, entry)
    assert p.stops == {command.command_id}
    p.finish_stops()
    assert p.check().state.failure is not None
    assert p.state.failure.code == "STATE_CONFLICT"
    assert p.stored == {"n": StateValue(1, 100)}


def test_a_command_that_ends_before_it_is_stopped_fails_its_step_too() -> None:
    p = play("""
- step: a
  tool:
    - {name: one, kind: python, code: "result = 1", set: {state.n: 1}}
    - {name: two, kind: python, code: "result = 2"}
""")
    command = p.command("a")
    somebody_writes(p, "n", 100)
    entry = e.TaskDone(
        command_id=command.command_id, attempt=1, task="one", run=1, goto=1, result=p.envelope(command, 1),
        set={"state.n": 1},
    )  # fmt: skip
    p.report(command, entry)
    p.complete(command, 2)
    assert p.check().state.failure is not None
    assert p.state.failure.code == "STATE_CONFLICT"


LOOP = f"""
- step: sum
  loop:
    in: [1, 2, 3]
    iterator: item
    spec: {{mode: parallel, reduce: {{state.total: sum}}}}
  tool: {{kind: python, code: "result = 1", set: {{state.total: "{{{{ item }}}}"}}}}
- {{step: after, {PYTHON}}}
"""


def test_parallel_items_write_through_a_reducer_when_the_loop_is_done() -> None:
    p = play(LOOP, {"total": StateValue(4, 10)})
    while p.list_ready():
        command = p.list_ready()[0]
        p.chunk(
            command,
            partial={
                "state.total": sum(range(command.first + 1, command.first + command.count + 1))
            },
        )
    assert p.check().find_last(e.LoopDone).set == {"state.total": 16}
    assert writes(p) == [("total", 16, 4)]


def test_a_conflict_of_a_reduction_fails_the_loop() -> None:
    p = play(LOOP, {"total": StateValue(4, 10)})
    somebody_writes(p, "total", 0)
    while p.list_ready():
        p.chunk(p.list_ready()[0], partial={"state.total": 1})
    assert p.check().find_last(e.LoopDone).result.error.code == "STATE_CONFLICT"
    assert p.state.status == "failed"
    assert writes(p) == []


def test_a_conflict_of_a_sequential_loop_ends_it() -> None:
    p = play("""
- step: each
  loop: {in: [1, 2, 3], iterator: item, spec: {mode: sequential, chunk: 1, policy: {failure: best_effort}}}
  tool: {kind: python, code: "result = 1", set: {state.last: "{{ item }}"}}
""")
    somebody_writes(p, "last", 0)
    command = p.command("each")
    p.complete(command, [{"index": 0}], items=e.Items(ok=1), set={"state.last": 1})
    assert p.list_ready() == []
    assert p.check().find_last(e.LoopDone).result.error.code == "STATE_CONFLICT"
    assert p.state.status == "failed"


# ---- values ----


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("{{ workload.rows }}", "scalar, or a map or list of scalars"),
        ("{{ 'x' * 5000 }}", "at most 4096"),
        ("***db.password***", "a secret"),
    ],
)
def test_a_value_that_state_does_not_hold_fails_the_step(expression: str, message: str) -> None:
    p = play(
        f"- {{step: a, {PYTHON}, set: {{state.n: \"{expression}\"}}}}", workload={"rows": [{"id": 1}]}
    ).run()  # fmt: skip
    assert p.check().state.failure is not None
    assert p.state.failure.code == "STATE_VALUE"
    assert message in p.state.failure.message
    assert writes(p) == []


def play_list_step() -> Play:
    """A step that puts a list of its result into state: a worker is asked for the value."""
    p = play(f"- {{step: a, {PYTHON}, set: {{state.n: '{{{{ a.rows }}}}'}}}}")
    p.complete(p.command("a"), {"rows": [1]})
    assert p.command("a").kind == "evaluate"
    return p


def test_a_small_list_of_a_payload_is_kept_by_its_value() -> None:
    p = play_list_step()
    p.report_evaluated(p.command("a"), [1])
    assert p.check().state.playbook_state["n"].value == [1]


def test_a_payload_that_is_kept_by_reference_is_refused() -> None:
    p = play_list_step()
    stored = Reference(ref_id=RefId("1"), type="kv", uri="noetl://execution/7/result/a/k")
    p.report_evaluated(p.command("a"), Selected(stored=stored))
    assert p.check().state.failure is not None
    assert "a reference to a stored result" in p.state.failure.message


def test_a_worker_that_sends_too_much_fails_its_step() -> None:
    p = play("- {step: a, tool: {kind: python, code: 'result = 1', set: {state.n: 1}}}")
    p.complete(p.command("a"), 1, set={"state.n": "x" * 5_000})
    assert p.check().state.failure is not None
    assert p.state.failure.code == "STATE_VALUE"
    assert p.stored == {}


def test_a_worker_evaluates_what_needs_data_and_the_server_writes_it() -> None:
    p = play(f"""
- {{step: a, {PYTHON}, next: b}}
- step: b
  {PYTHON}
  set: {{state.n: "{{{{ a.rows | selectattr('id', 'gt', state.n) | list | length }}}}"}}
""", {"n": StateValue(1, 5)})  # fmt: skip
    p.complete(p.command("a"), {"rows": []})
    p.complete(p.command("b"), 1)
    evaluate = p.command("b")
    assert (evaluate.kind, evaluate.scope.state) == ("evaluate", {"n": 5})
    p.report_evaluated(evaluate, Selected(value=2))
    assert writes(p) == [("n", 2, 1)]
    assert p.check().state.status == "completed"


# ---- retries ----

TWO_STEPS = f"""
- {{step: extract, tool: {{kind: python, input: {{since: "{{{{ state.n }}}}"}}, code: "result = 1"}}, next: load}}
- {{step: load, {PYTHON}, set: {{state.n: "{{{{ state.n + 1 }}}}", state.loads: "{{{{ state.loads | default(0) + 1 }}}}"}}}}
"""


def failed_after_extract() -> Play:
    old = play(TWO_STEPS, {"n": StateValue(3, 3)})
    old.complete(old.command("extract"), 1)
    old.fail(old.command("load"))
    assert old.state.status == "failed"
    return old


def retry_play(old: Play, **stored: StateValue) -> Play:
    p = Play(workflow(TWO_STEPS))
    p.stored = {**old.stored, **stored}
    start = m.Start(
        execution_id=m.ExecutionId(EXECUTION),
        path="test",
        playbook="hash",
        retry_of=m.ExecutionId("6"),
    )
    p.tell(start, retried=old.state)
    return p


def test_a_retry_goes_on_with_what_inherited_steps_have_read() -> None:
    p = retry_play(failed_after_extract()).run()
    assert p.check().path() == ["load"]
    assert p.state.status == "completed"
    assert writes(p) == [("n", 4, 3), ("loads", 1, 0)]


def test_a_retry_does_not_write_over_a_value_that_inherited_steps_have_not_seen() -> None:
    p = retry_play(failed_after_extract(), n=StateValue(4, 9)).run()
    reads = [(event.inherited, event.values) for event in p.log if isinstance(event, e.StateRead)]
    assert reads == [(True, {"n": StateValue(3, 3)}), (False, {"loads": StateValue(0, unset=True)})]
    assert p.check().state.failure is not None
    assert p.state.failure.code == "STATE_CONFLICT"
    assert p.stored["n"] == StateValue(4, 9)


def test_a_retry_reads_names_anew_that_no_inherited_step_has_used() -> None:
    p = retry_play(failed_after_extract(), loads=StateValue(7, 7)).run()
    assert p.check().state.status == "completed"
    assert writes(p) == [("n", 4, 3), ("loads", 8, 7)]


def test_a_retry_that_writes_before_any_command_finds_its_conflict() -> None:
    steps = f"""
- {{step: a, {PYTHON}, set: {{ctx.seen: "{{{{ state.n }}}}"}}, next: b}}
- {{step: b, set: {{state.n: "{{{{ state.n + 1 }}}}"}}}}
"""
    old = play(steps, {"n": StateValue(1, 1)})
    somebody_writes(old, "n", 100)
    assert old.run().state.failed_step == "b"
    p = Play(workflow(steps))
    p.stored = dict(old.stored)
    start = m.Start(
        execution_id=m.ExecutionId(EXECUTION),
        path="test",
        playbook="hash",
        retry_of=m.ExecutionId("6"),
    )
    p.tell(start, retried=old.state)
    assert p.check().state.failure is not None
    assert p.state.failure.code == "STATE_CONFLICT"
    assert p.types()[0] == "playbook.initialized"
    assert p.stored == {"n": StateValue(2, 100)}


def test_a_workload_key_or_step_of_that_name_keeps_its_meaning() -> None:
    p = play(
        f"- {{step: a, {PYTHON}, set: {{ctx.where: '{{{{ state }}}}'}}}}", workload={"state": "CA"}
    ).run()
    assert p.check().state.ctx == {"where": "CA"}
    assert "state.read" not in p.types()
