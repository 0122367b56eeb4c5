"""A step's pipeline: scope, input, policies, journal, resuming, parking."""

import asyncio
import weakref
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from msgspec import structs

from noetl.model import events as e
from noetl.model.envelope import Envelope
from noetl.model.errors import Failure
from noetl.playbook.assignments import is_reference, read_link
from noetl.playbook.plan import Plan
from noetl.tools.noop import Noop
from noetl.tools.port import Call, Failed, Success
from noetl.tools.registry import Registry
from tests.unit.pipeline.bench import Bench, Scripted, failing, plan_of, resume_journal
from tests.waiting import HANG_LIMIT_S

RETRY = "spec: {policy: {rules: [{when: \"{{ output.status == 'error' }}\", then: {do: retry, attempts: 3, delay: %s}}]}}"


def one(fields: str, step: str = "") -> Plan:
    return plan_of(f"- step: s\n{step}  tool: {{kind: python, code: x, {fields}}}\n")


def tasks(*listed: str, head: str = "", more: str = "") -> Plan:
    return plan_of(
        more + "- step: s\n  tool:\n" + "".join(f"  - {task}\n" for task in listed), head
    )


def test_the_value_is_put_before_it_is_reported() -> None:
    bench = Bench(lambda call: {"n": 3, "rows": [{"a": 1}], "password": "x"})
    report = bench.run(one("input: {}"))
    assert isinstance(report, e.CommandCompleted)
    assert bench.value(report.result) == {"n": 3, "rows": [{"a": 1}], "password": "x"}
    assert report.result.context["n"] == 3
    assert report.result.context["row_count"] == 1
    assert report.result.context["columns"] == ["a"]
    assert "password" not in report.result.context
    assert [ref.reference for ref in bench.refs] == [report.result.reference]


def test_a_null_value_needs_no_payload() -> None:
    assert Bench(lambda call: None).run(one("input: {}")).result.reference is None


def test_input_of_the_task_is_below_the_steps_and_both_below_the_arcs_args() -> None:
    bench = Bench()
    plan = one('input: {a: 1, b: 1, c: 1, up: "{{ input.b }}"}', step="  input: {b: 2, c: 2}\n")
    report = bench.run(plan, args={"c": 3})
    assert bench.value(report.result) == {"a": 1, "b": 2, "c": 3, "up": 2}


def test_what_looks_at_an_outcome_sees_what_its_task_was_called_with() -> None:
    rule = '{when: "{{ input.a + args.c == 4 }}", then: {do: continue, set: {ctx.rule: "{{ input.b }}"}}}'
    spec = f'set: {{ctx.task: "{{{{ input.a }}}}"}}, spec: {{policy: {{rules: [{rule}]}}}}'
    plan = one(
        f"input: {{a: 1}}, {spec}", step='  input: {b: 2}\n  set: {ctx.step: "{{ input.b }}"}\n'
    )
    report = Bench().run(plan, args={"c": 3})
    assert report.set == {"ctx.task": 1, "ctx.rule": 2}
    (selection,) = plan.steps["s"].selections
    assert report.result.find_selection(selection.id).value == 2


def test_bare_names_are_tasks_then_steps_then_workload() -> None:
    plan = tasks(
        "{name: t, kind: python, code: x, input: {v: task}}",
        '{name: u, kind: python, code: x, input: {t: "{{ t.v }}", up: "{{ up.v }}", w: "{{ w }}", '
        'p: "{{ _prev.v }}", r: "{{ results.t.v }}"}}',
        head="workload: {t: 1, up: 1, w: 1}\n",
        more="- {step: up, next: s}\n",
    )
    bench = Bench()
    up = bench.put({"v": "step"})
    report = bench.run(
        plan, workload={"t": "workload", "up": "workload", "w": "workload"}, results={"up": up}
    )
    assert bench.value(report.result) == {
        "t": "task",
        "up": "step",
        "w": "workload",
        "p": "task",
        "r": "task",
    }


def test_what_is_missing_fails_the_task_with_its_name() -> None:
    report = Bench().run(one('input: {a: [1, "{{ ctx.nope }}"]}'))
    assert isinstance(report, e.CommandFailed)
    error = report.result.error
    assert error is not None
    assert (error.code, error.kind, error.task) == ("TEMPLATE_UNDEFINED", "template", "task_0")
    assert error.message.startswith("step s, task task_0, input.a[1]: 'ctx.nope' is undefined")


def test_a_rendering_error_can_be_handled_by_the_policy() -> None:
    rules = '{rules: [{when: "{{ error.kind == \'template\' }}", then: {do: break, set: {seen: "{{ error.code }}"}}}]}'
    report = Bench().run(one(f'input: {{a: "{{{{ ctx.nope }}}}"}}, spec: {{policy: {rules}}}'))
    assert isinstance(report, e.CommandCompleted)
    assert report.set == {"ctx.seen": "TEMPLATE_UNDEFINED"}


def test_an_unknown_kind_is_a_failure_of_the_step() -> None:
    plan = plan_of("- step: s\n  tool: {kind: http, url: 'http://x'}\n")
    report = Bench().run(plan)
    assert report.result.error.code == "TOOL_UNAVAILABLE"


def test_code_is_not_rendered() -> None:
    bench = Bench()
    bench.run(plan_of("- step: s\n  tool: {kind: python, code: \"x = '{{ y }}'\"}\n"))
    assert bench.tool.calls[0].config["code"] == "x = '{{ y }}'"


def test_a_tool_that_does_not_end_in_time_is_stopped() -> None:
    stopped: list[str] = []

    async def hang(call: Call) -> Any:
        try:
            await asyncio.sleep(1e6)
        finally:
            stopped.append(call.identity.task)

    report = Bench(hang).run(one("timeout: 2s"))
    assert report.result.error.code == "TIMEOUT"
    assert stopped == ["task_0"]


def test_a_steps_timeout_ends_the_command() -> None:
    report = Bench(lambda call: asyncio.sleep(1e6)).run(one("input: {}"), timeout=3_000_000)
    assert isinstance(report, e.CommandFailed)
    assert report.result.error is not None
    assert report.result.error.code == "TIMEOUT"


def test_every_task_but_the_last_is_journaled_with_what_it_set() -> None:
    plan = tasks(
        '{name: a, kind: python, code: x, input: {n: 1}, set: {x: "{{ result.n }}", step.y: 2}}',
        '{name: b, kind: python, code: x, input: {got: "{{ ctx.x + step.y }}"}, set: {ctx.z: "{{ output.data.got }}"}}',
    )
    bench = Bench()
    report = bench.run(plan)
    [done] = bench.journal
    assert (done.task, done.run, done.goto, done.set) == ("a", 1, 1, {"ctx.x": 1, "step.y": 2})
    assert bench.value(report.result) == {"got": 3}
    assert report.set == {"ctx.z": 3}
    assert report.result.parent_ref.ref_id == done.result.reference.ref_id
    assert set(report.result.context["results"]) == {"a", "b"}


def test_a_new_attempt_goes_on_after_the_last_journaled_task() -> None:
    plan = tasks(
        "{name: a, kind: python, code: x, input: {n: 1}, set: {ctx.x: 5}}",
        '{name: b, kind: python, code: x, input: {prev: "{{ _prev.n }}", x: "{{ ctx.x }}", a: "{{ a.n }}"}}',
    )
    first = Bench()
    first.run(plan)
    second = Bench(store=first.store)
    report = second.run(plan, attempt=2, journal=resume_journal(first.journal))
    assert [call.identity.task for call in second.tool.calls] == ["b"]
    assert second.value(report.result) == {"prev": 1, "x": 5, "a": 1}


def test_a_failed_task_assigns_nothing_and_its_rule_does() -> None:
    rule = 'spec: {policy: {rules: [{else: {do: fail, set: {ctx.why: "{{ error.code }}"}}}]}}'
    report = Bench(lambda call: failing()).run(one(f"set: {{ctx.x: 1}}, {rule}"))
    assert isinstance(report, e.CommandFailed)
    assert report.set == {"ctx.why": "BOOM"}


def test_retries_are_journaled_and_counted_over_attempts() -> None:
    bench = Bench(
        lambda call: failing() if call.identity.attempt < 3 else {"ok": call.identity.attempt}
    )
    report = bench.run(one(RETRY % "100ms"))
    assert [(entry.tries, entry.delay) for entry in bench.journal] == [(1, 100_000), (2, 100_000)]
    assert bench.value(report.result) == {"ok": 3}
    again = Bench(bench.does)
    assert isinstance(
        again.run(one(RETRY % "100ms"), attempt=2, journal=resume_journal(bench.journal)),
        e.CommandCompleted,
    )
    assert [call.identity.attempt for call in again.tool.calls] == [3]


def test_when_tries_run_out_the_error_stands() -> None:
    report = Bench(lambda call: failing()).run(one(RETRY % "1s"))
    assert (report.result.error.code, report.result.error.attempt) == ("BOOM", 3)


def make_retry_rules(then: str, *others: str) -> str:
    rules = [
        f"{{when: \"{{{{ output.status == 'error' }}}}\", then: {{do: retry, attempts: 2, {then}}}}}",
        *others,
    ]
    return f"spec: {{policy: {{rules: [{', '.join(rules)}]}}}}"


@pytest.mark.parametrize("other", ["{else: {do: continue}}", "{when: true, then: {do: break}}"])
def test_used_up_retry_fails_the_task_whatever_the_rules_after_it_say(other: str) -> None:
    bench = Bench(lambda call: failing())
    report = bench.run(one(make_retry_rules("delay: 1ms", other)))
    assert isinstance(report, e.CommandFailed)
    assert (report.result.error.code, report.result.error.attempt, len(bench.tool.calls)) == (
        "BOOM",
        2,
        2,
    )


@pytest.mark.parametrize(
    ("exhausted", "called"),
    [
        ("exhausted: continue", ["a", "a", "b", "c"]),
        ("exhausted: break", ["a", "a"]),
        ("exhausted: jump, to: c", ["a", "a", "c"]),
        ("exhausted: fail", None),
        ("exhausted: fail, message: given up", None),
    ],
)
def test_exhausted_says_what_follows_the_last_try(exhausted: str, called: list[str] | None) -> None:
    names: list[str] = []

    def does(call: Call) -> Any:
        names.append(call.identity.task)
        return failing() if call.identity.task == "a" else {"name": call.identity.task}

    kind = "kind: python, code: x"
    report = Bench(does).run(
        tasks(
            f"{{name: a, {kind}, {make_retry_rules(exhausted)}}}",
            f"{{name: b, {kind}}}",
            f"{{name: c, {kind}}}",
        )
    )
    assert isinstance(report, e.CommandFailed) == (called is None)
    assert names == (called or ["a", "a"])
    if "message" in exhausted:
        assert (report.result.error.code, report.result.error.message) == ("BOOM", "given up")


def test_jump_back_after_the_last_try_is_capped() -> None:
    bench = Bench(lambda call: failing())
    report = bench.run(one(make_retry_rules("exhausted: jump, to: previous, max_jumps: 3")))
    assert (report.result.error.code, len(bench.tool.calls)) == ("JUMP_LIMIT", 8)


def test_retry_of_a_success_that_is_used_up_fails() -> None:
    rule = '{when: "{{ result.busy }}", then: {do: retry, attempts: 2%s}}'
    bench = Bench(lambda call: {"busy": True})
    report = bench.run(one(f"spec: {{policy: {{rules: [{rule % ''}]}}}}"))
    assert report.result.error.code == "RETRY_EXHAUSTED"
    assert "after 2 of them" in report.result.error.message


@pytest.mark.parametrize("exhausted", ["continue", "break"])
def test_used_up_retry_of_a_success_that_goes_on_is_counted_as_recovered(exhausted: str) -> None:
    then = f"{{do: retry, attempts: 2, exhausted: {exhausted}}}"
    rule = '{when: "{{ result.busy }}", then: ' + then + "}"
    report = Bench(lambda call: {"busy": True}).run(one(f"spec: {{policy: {{rules: [{rule}]}}}}"))
    assert isinstance(report, e.CommandCompleted)
    assert report.recovered is not None
    assert (report.recovered.by, report.recovered.code, report.recovered.count) == (
        exhausted,
        "RETRY_EXHAUSTED",
        1,
    )
    assert "after 2 of them" in report.recovered.message


def test_success_that_a_rule_passes_without_a_retry_is_not_counted_as_recovered() -> None:
    rule = '{when: "{{ result.busy }}", then: {do: continue}}'
    report = Bench(lambda call: {"busy": True}).run(one(f"spec: {{policy: {{rules: [{rule}]}}}}"))
    assert report.recovered is None


@pytest.mark.parametrize(
    "rule",
    [
        '{when: "{{ error.code == ctx.nothing }}", then: {do: continue}}',
        '{else: {do: continue, set: {ctx.x: "{{ ctx.nothing }}"}}}',
        '{else: {do: retry, attempts: "{{ ctx.nothing }}"}}',
        '{else: {do: fail, message: "{{ ctx.nothing }}"}}',
    ],
)
def test_both_errors_are_shown_when_a_rule_fails(rule: str) -> None:
    report = Bench(lambda call: failing()).run(one(f"spec: {{policy: {{rules: [{rule}]}}}}"))
    assert isinstance(report, e.CommandFailed)
    error = report.result.error
    assert error.code == "BOOM"
    assert error.message.index(failing().failure.message) < error.message.index(
        "TEMPLATE_UNDEFINED"
    )
    assert "ctx.nothing" in error.message


def test_long_message_leaves_room_for_the_second_error() -> None:
    long = failing().failure
    long = structs.replace(long, message="x" * 5_000)
    both = long.join_later_failure(structs.replace(long, code="LATER", message="y" * 5_000))
    assert "LATER" in both.message
    assert len(both.message) < 1_000


def test_errors_that_rules_let_pass_are_reported_and_journaled() -> None:
    kind = "kind: python, code: x"
    rule = "spec: {policy: {rules: [{else: {do: continue}}]}}"
    plan = tasks(
        f"{{name: a, {kind}, {rule}}}", f"{{name: b, {kind}, {rule}}}", f"{{name: c, {kind}}}"
    )
    bench = Bench(lambda call: failing() if call.identity.task in "ab" else {"v": 1})
    report = bench.run(plan)
    assert [(entry.recovered.task, entry.recovered.count) for entry in bench.journal] == [
        ("a", 1),
        ("a", 2),
    ]
    assert (report.recovered.by, report.recovered.code, report.recovered.count) == (
        "continue",
        "BOOM",
        2,
    )
    again = Bench(bench.does)
    resumed_report = again.run(plan, attempt=2, journal=resume_journal(bench.journal[:1]))
    assert resumed_report.recovered.count == 2


def test_retry_that_succeeds_recovers_from_nothing() -> None:
    bench = Bench(lambda call: failing() if call.identity.attempt < 2 else {"v": 1})
    assert bench.run(one(RETRY % "1ms")).recovered is None


def test_a_key_is_stable_over_tries_and_differs_by_run() -> None:
    plan = tasks(
        "{name: a, kind: python, code: x}",
        '{name: b, kind: python, code: x, spec: {policy: {rules: [{when: "{{ ctx.n is not defined }}", '
        "then: {do: jump, to: a, set: {ctx.n: 1}}}]}}}",
    )
    bench = Bench(lambda call: {})
    bench.run(plan)
    assert [(call.identity.task, call.identity.run) for call in bench.tool.calls] == [
        ("a", 1),
        ("b", 1),
        ("a", 2),
        ("b", 2),
    ]
    assert len({call.key for call in bench.tool.calls}) == 4
    assert [(entry.task, entry.run, entry.goto, entry.jumps) for entry in bench.journal] == [
        ("a", 1, 1, 0), ("b", 1, 0, 1), ("a", 2, 1, 1),
    ]  # fmt: skip


def test_jumps_are_capped() -> None:
    rule = "spec: {policy: {rules: [{else: {do: jump, to: t, max_jumps: 5}}]}}"
    bench = Bench(lambda call: {})
    report = bench.run(tasks(f"{{name: t, kind: python, code: x, {rule}}}"))
    assert report.result.error.code == "JUMP_LIMIT"
    assert len(bench.tool.calls) == 6


def test_a_long_retry_parks_the_command() -> None:
    report = Bench(lambda call: failing()).run(one(RETRY % "7s"))
    assert isinstance(report, e.CommandParked)
    assert (report.reason, report.delay, report.tries) == ("retry", 7_000_000, 1)


def test_a_wait_parks_and_what_it_waited_for_is_its_value() -> None:
    plan = plan_of("- step: s\n  tool:\n  - {name: w, kind: wait, signal: go, timeout: 4s}\n"
                   "  - {name: t, kind: python, code: x, input: {got: \"{{ w.x }}\"}}\n")  # fmt: skip
    bench = Bench()
    parked = bench.run(plan)
    assert (parked.reason, parked.signal, parked.timeout, parked.task) == (
        "signal",
        "go",
        4_000_000,
        "w",
    )
    journal = msgspec.structs.replace(
        resume_journal([]), resolved=Envelope(status="ok", context={"value": {"x": 9}})
    )
    report = bench.run(plan, attempt=2, journal=journal)
    assert bench.value(report.result) == {"got": 9}


def test_a_childs_result_is_passed_on_by_reference() -> None:
    plan = plan_of("- step: s\n  tool: {kind: playbook, path: a/b, input: {k: 1}}\n")
    bench = Bench()
    parked = bench.run(plan)
    assert (parked.child.path, parked.child.workload, parked.child.wait) == ("a/b", {"k": 1}, True)
    child = bench.put([1, 2, 3], step="child")
    report = bench.run(
        plan, attempt=2, journal=msgspec.structs.replace(resume_journal([]), resolved=child)
    )
    assert report.result.reference == child.reference


def test_a_large_child_workload_travels_by_reference() -> None:
    plan = plan_of(
        '- step: s\n  tool: {kind: playbook, path: a/b, input: {k: "{{ workload.big }}"}}\n',
        "workload: {big: 1}\n",
    )
    bench = Bench()
    parked = bench.run(plan, workload={"big": "x" * 9_000})
    assert parked.child.workload == {}
    assert bench.value(Envelope(status="ok", reference=parked.child.reference)) == {
        "k": "x" * 9_000
    }


@pytest.mark.parametrize("given", ["[1]", "{a: 1}", '"{{ up.rows[:1] }}"'])
def test_a_list_or_map_for_a_child_travels_by_reference_whatever_its_size(given: str) -> None:
    plan = plan_of(
        "- {step: up, tool: {kind: python, code: x}, next: s}\n"
        f"- {{step: s, tool: {{kind: playbook, path: a/b, input: {{k: {given}, n: 1}}}}}}\n"
    )
    bench = Bench()
    parked = bench.run(plan, results={"up": bench.put([{"secret": 1}, {"secret": 2}])})
    assert parked.child.workload == {}
    workload = bench.value(Envelope(status="ok", reference=parked.child.reference))
    assert workload["n"] == 1
    assert isinstance(workload["k"], list | dict)


def test_a_child_is_told_of_an_item_by_reference_unless_it_is_a_scalar() -> None:
    plan = plan_of(
        "- step: s\n  loop: {in: [1], iterator: row, spec: {mode: parallel}}\n"
        "  tool: {kind: playbook, path: a/b, input: {k: 1}}\n"
    )
    fields = {"kind": "chunk", "count": 1, "size": 1, "first": 3}
    parked = Bench().run(plan, items=("text",), **fields)
    assert parked.child.iter == {"index": 3, "loop_id": "77:s", "row": "text"}
    bench = Bench()
    told = bench.run(plan, items=({"secret": 1},), **fields).child.iter
    assert (told["index"], bench.follow_link(told["row"])) == (3, {"secret": 1})
    child = plan_of(
        '- {step: s, tool: {kind: python, code: x, input: {v: "{{ iter.parent.row.secret }}"}}}\n'
    )
    reader = Bench(store=bench.store)
    assert reader.value(reader.run(child, outer=told).result) == {"v": 1}


@pytest.mark.parametrize(
    ("value", "inline"),
    [
        ("[1, 2]", True),
        ("{a: 1}", True),
        ("text", True),
        ('"{{ result }}"', False),
        ('["{{ result.n }}"]', False),
    ],
)
def test_a_list_or_map_that_a_task_assigns_is_linked_unless_the_playbook_says_it(
    value: str, inline: bool
) -> None:
    bench = Bench(lambda call: {"n": 1})
    report = bench.run(tasks(f"{{name: a, kind: python, code: x, set: {{x: {value}}}}}"))
    assert is_reference(report.set["ctx.x"]) is not inline
    assert bench.read_assigned(report)["ctx.x"] in ([1, 2], {"a": 1}, "text", {"n": 1}, [1])


def test_a_whole_result_that_a_task_assigns_is_not_stored_twice() -> None:
    bench = Bench(lambda call: [{"n": 1}])
    report = bench.run(tasks('{name: a, kind: python, code: x, set: {x: "{{ result }}"}}'))
    assert read_link(report.set["ctx.x"]) == report.result.reference


def test_continue_after_an_error_keeps_the_last_good_value() -> None:
    plan = tasks(
        "{name: a, kind: python, code: x, input: {n: 1}}",
        "{name: b, kind: python, code: x, spec: {policy: {rules: [{else: {do: continue}}]}}}",
    )
    bench = Bench(lambda call: failing() if call.identity.task == "b" else dict(call.input))
    report = bench.run(plan)
    assert isinstance(report, e.CommandCompleted)
    assert bench.value(report.result) == {"n": 1}


CONTINUE = "spec: {policy: {rules: [{else: {do: continue}}]}}"


def after_failure(expression: str) -> tuple[Bench, Any]:
    """Run a pipeline: its first task fails and a rule goes on, its second task reads the first."""
    plan = tasks(
        f"{{name: a, kind: python, code: x, {CONTINUE}}}",
        f'{{name: b, kind: python, code: x, input: {{seen: "{{{{ {expression} }}}}"}}}}',
    )
    bench = Bench(
        lambda call: (
            failing(http={"status": 500}) if call.identity.task == "a" else dict(call.input)
        )
    )
    return bench, bench.run(plan)


@pytest.mark.parametrize(
    "name", ["a", "a.data", "a.rows", "results.a", "_prev", "response", "result", "output.data"]
)
def test_the_value_of_a_failed_task_is_undefined(name: str) -> None:
    bench, report = after_failure(name)
    assert isinstance(report, e.CommandFailed)
    assert report.result.error.code == "TEMPLATE_UNDEFINED"
    assert "because task a failed with BOOM" in report.result.error.message
    assert len(bench.tool.calls) == 1


@pytest.mark.parametrize(
    "name", ["a", "a.data", "a.rows", "results.a", "results['a']", "_prev", "result", "output.data"]
)
def test_default_and_is_defined_work_on_the_value_of_a_failed_task(name: str) -> None:
    bench, report = after_failure(f"[{name} | default('none'), {name} is defined]")
    assert bench.value(report.result) == {"seen": ["none", False]}


def test_the_facts_of_a_failed_task_can_be_read() -> None:
    facts = "a.status, a.error.code, results.a.error.code, a['error']['code'], a.http.status, output.status, _prev.status"
    bench, report = after_failure(f"[{facts}, results]")
    assert bench.value(report.result) == {
        "seen": ["error", "BOOM", "BOOM", "BOOM", 500, "error", "error", {}]
    }


def test_the_value_of_a_failed_task_is_undefined_for_the_next_attempt() -> None:
    plan = tasks(
        f"{{name: a, kind: python, code: x, {CONTINUE}}}",
        """{name: b, kind: python, code: x, input: {seen: "{{ [_prev | default('none'), a | default('none')] }}"}}""",
    )
    bench = Bench(lambda call: failing() if call.identity.task == "a" else dict(call.input))
    bench.run(plan)
    report = bench.run(plan, journal=resume_journal(bench.journal), attempt=2)
    assert bench.value(report.result) == {"seen": ["none", "none"]}


@pytest.mark.parametrize("first", ["", "{name: good, kind: noop, input: {n: 1}}"])
def test_a_sink_without_data_fails_after_a_task_that_failed(first: str) -> None:
    sink = Scripted(kind="sink")
    listed = [first] if first else []
    plan = tasks(
        *listed,
        f"{{name: get, kind: python, code: x, {CONTINUE}}}",
        "{name: keep, kind: sink, target: {kind: file, path: x.csv, mode: replace}}",
    )
    report = Bench(lambda call: failing(), more=[sink]).run(plan)
    assert isinstance(report, e.CommandFailed)
    assert report.result.error.code == "TEMPLATE_UNDEFINED"
    assert (
        "sink keep has nothing to store, because task get failed with BOOM"
        in report.result.error.message
    )
    assert sink.calls == []


def test_a_step_whose_only_task_failed_and_was_let_pass_has_no_value() -> None:
    plan = one(CONTINUE)
    report = Bench(lambda call: failing()).run(plan)
    assert isinstance(report, e.CommandCompleted)
    assert report.result.no_value == "task task_0 failed with BOOM"
    bench = Bench()
    reader = """- {step: up}
- step: s
  tool: {kind: python, code: x, input: {seen: "{{ [up.data | default('none'), up.status, up.error is defined] }}"}}
"""
    seen = bench.run(plan_of(reader), results={"up": report.result})
    assert bench.value(seen.result) == {"seen": ["none", "ok", False]}


def test_the_value_of_a_failed_step_is_undefined() -> None:
    up = Envelope(status="error", error=Failure(code="BOOM", message="as asked"))
    steps = """- {{step: up}}
- {{step: s, tool: {{kind: python, code: x, input: {{seen: "{{{{ {} }}}}"}}}}}}
"""
    report = Bench().run(plan_of(steps.format("up")), results={"up": up})
    assert report.result.error.code == "TEMPLATE_UNDEFINED"
    assert "'up' is undefined, because step up failed with BOOM" in report.result.error.message
    bench = Bench()
    names = "[up | default('none'), up.error.code, up.status, up.rows | default('none')]"
    report = bench.run(plan_of(steps.format(names)), results={"up": up})
    assert bench.value(report.result) == {"seen": ["none", "BOOM", "error", "none"]}


def test_a_task_whose_when_is_false_is_passed_over() -> None:
    plan = tasks(
        "{name: a, kind: python, code: x, input: {n: 1}}",
        '{name: b, kind: python, code: x, spec: {when: "{{ _prev.n > 1 }}"}}',
    )
    bench = Bench()
    report = bench.run(plan)
    assert [call.identity.task for call in bench.tool.calls] == ["a"]
    assert bench.value(report.result) == {"n": 1}


def test_a_workbook_task_runs_under_the_callers_name() -> None:
    plan = plan_of(
        "- step: s\n  tool: {kind: workbook, name: grade, input: {v: 30}}\n",
        head="workbook: [{name: grade, tool: {kind: python, code: x, input: {v: 1, w: 2}}}]\n",
    )
    bench = Bench()
    assert bench.value(bench.run(plan).result) == {"v": 30, "w": 2}


def test_a_large_assignment_travels_by_reference_and_is_read_back() -> None:
    plan = tasks(
        '{name: a, kind: python, code: x, set: {ctx.big: "{{ result }}"}}',
        '{name: b, kind: python, code: x, input: {n: "{{ ctx.big | length }}"}}',
    )
    bench = Bench(lambda call: "y" * 5_000 if call.identity.task == "a" else dict(call.input))
    bench.run(plan)
    assert list(bench.journal[0].set["ctx.big"]) == ["$reference"]
    report = bench.run(plan, attempt=2, journal=resume_journal(bench.journal))
    assert bench.value(report.result) == {"n": 5_000}


def test_a_broken_tool_fails_its_step_only() -> None:
    def raise_error(call: Call) -> Any:
        raise RuntimeError("bug")

    assert Bench(raise_error).run(one("input: {}")).result.error.code == "TOOL_BROKEN"


@pytest.mark.parametrize(
    ("backoff", "delays"),
    [("fixed", [1, 1, 1]), ("linear", [1, 2, 3]), ("exponential", [1, 2, 4])],
)
def test_delays_grow_as_declared(backoff: str, delays: list[int]) -> None:
    rule = f"{{do: retry, attempts: 4, delay: 1s, backoff: {backoff}, max_delay: 4s}}"
    bench = Bench(lambda call: failing())
    bench.run(one(f"spec: {{policy: {{rules: [{{else: {rule}}}]}}}}"))
    assert [entry.delay for entry in bench.of(e.RetryStarted)] == [n * 1_000_000 for n in delays]


def test_jitter_is_the_same_for_the_same_try() -> None:
    plan = one(
        "spec: {policy: {rules: [{else: {do: retry, attempts: 3, delay: 1s, jitter: true}}]}}"
    )
    runs = [Bench(lambda call: failing()) for _ in range(2)]
    for bench in runs:
        bench.run(plan)
    first, second = ([entry.delay for entry in bench.of(e.RetryStarted)] for bench in runs)
    assert first == second
    assert all(500_000 <= delay <= 1_000_000 for delay in first)


def test_http_answers_look_into_their_data() -> None:
    answer = {"status_code": 200, "data": {"items": [1, 2]}}
    plan = tasks(
        '{name: a, kind: python, code: x, set: {n: "{{ response.items | length }}", m: "{{ output.data.data.items }}"}}'
    )
    bench = Bench(lambda call: Success(answer, {"http": {"status": 200}}))
    assert bench.read_assigned(bench.run(plan)) == {"ctx.n": 2, "ctx.m": [1, 2]}


def test_arguments_of_an_arc_are_data_even_when_they_look_like_templates_or_are_stored() -> None:
    bench = Bench()
    big = bench.put(["x"] * 3)
    assert big.reference is not None
    report = bench.run(
        one("input: {}"), args={"text": "{{ nope }}", "big": {"$reference": big.reference.uri}}
    )
    assert bench.value(report.result) == {"text": "{{ nope }}", "big": ["x", "x", "x"]}


def test_the_results_of_other_tasks_stay_readable_from_other_steps() -> None:
    first = Bench()
    plan = tasks(
        "{name: a, kind: python, code: x, input: {n: 1}}",
        "{name: b, kind: python, code: x, input: {n: 2}}",
    )
    up = first.run(plan).result
    reader = plan_of(
        "- step: up\n  tool: [{name: a, kind: noop}, {name: b, kind: noop}]\n  next: s\n"
        '- step: s\n  tool: {kind: python, code: x, input: {a: "{{ up.results.a.n }}", n: "{{ up.n }}", s: "{{ up.status }}"}}\n'
    )
    second = Bench(store=first.store)
    assert second.value(second.run(reader, results={"up": up}).result) == {
        "a": 1,
        "n": 2,
        "s": "ok",
    }


def test_one_row_of_a_stored_list_is_read_without_the_rest() -> None:
    class Counting(type(Bench().store)):  # type: ignore[misc]
        whole = 0

        async def resolve(self, reference: Any) -> Any:
            self.whole += 1
            return await super().resolve(reference)

    bench = Bench(store=Counting())
    up = bench.put([10, 20, 30])
    plan = plan_of(
        "- step: up\n  tool: {kind: python, code: x}\n  next: s\n- step: s\n  tool: {kind: python, code: x, "
        'input: {one: "{{ up.rows[1] }}", n: "{{ up.row_count }}", m: "{{ up | length }}", last: "{{ up[-1] }}"}}\n'
    )
    report = bench.run(plan, results={"up": up})
    assert bench.value(report.result) == {"one": 20, "n": 3, "m": 3, "last": 30}
    assert bench.store.whole == 1  # only the test itself has read a whole payload


def test_a_pipeline_that_goes_back_holds_the_data_of_its_last_round_alone() -> None:
    class Large(dict[str, Any]):
        """Has weak references, as a plain one has not."""

    made: list[weakref.ref[Large]] = []
    held: list[int] = []

    def does(call: Call) -> Large:
        held.append(sum(one() is not None for one in made))
        value = Large(n=len(made))
        made.append(weakref.ref(value))
        return value

    plan = plan_of(
        "- step: s\n  tool:\n  - {name: a, kind: python, code: x}\n"
        "  - {name: b, kind: python, code: x, spec: {policy: {rules: [{when: '{{ a.n < 40 }}', then: {do: jump, to: a}}]}}}\n"
    )
    Bench(does).run(plan)
    assert len(made) > 40
    assert max(held) <= 4


def test_the_tools_of_a_command_are_loaded_before_it_runs() -> None:
    """Also those that store its pages."""
    plan = plan_of("""
- step: s
  tool:
    kind: python
    code: x
    spec:
      paginate: {when: "{{ false }}", sink: {target: {kind: http, url: "http://127.0.0.1:9"}}}
""")
    loaded: list[str] = []

    def making(kind: str) -> Callable[[], Noop]:
        def make() -> Noop:
            loaded.append(kind)
            return Noop()

        return make

    later = {kind: making(kind) for kind in ("python", "sink", "http", "postgres")}
    bench = Bench()
    bench.env = structs.replace(bench.env, registry=Registry(later=later))
    asyncio.run(asyncio.wait_for(bench.execute(plan, "s"), HANG_LIMIT_S))
    assert sorted(loaded) == ["http", "python", "sink"]


BUSY = Failure(
    code="HTTP_429",
    kind="rate_limit",
    message="busy",
    retryable=True,
    http_status=429,
    detail={"retry_after": 4},
)


@pytest.mark.parametrize(
    ("failure", "more", "seconds"),
    [
        (BUSY, "", 4),
        (BUSY, ", max_delay: 3s", 3),
        (BUSY, ", delay: 9s", 9),
        (structs.replace(BUSY, http_status=500), "", 1),
        (structs.replace(BUSY, http_status=503, detail={"retry_after": 90_000}), "", 3_600),
        (structs.replace(BUSY, detail={}), "", 1),
    ],
)
def test_a_retry_waits_as_long_as_a_busy_server_asks(
    failure: Failure, more: str, seconds: float
) -> None:
    bench = Bench(lambda call: Failed(failure))
    delay = "" if "delay: 9s" in more else ", delay: 1s"
    rule = f"{{when: true, then: {{do: retry, attempts: 2{delay}{more}}}}}"
    bench.run(one(f"spec: {{policy: {{rules: [{rule}]}}}}"))
    assert [entry.delay for entry in bench.of(e.RetryStarted)] == [seconds * 1_000_000]


ANSWER = {
    "status_code": 200,
    "headers": {"a": "b"},
    "url": "u",
    "elapsed": 0.1,
    "data": {"x": "y" * 10_000},
}


def test_an_http_value_handed_over_whole_has_body_and_is_stored_once() -> None:
    bench = Bench(lambda call: dict(call.input["response"]))
    fetched = bench.put(ANSWER, "fetch")
    plan = tasks(
        '{name: s, kind: python, code: x, input: {response: "{{ fetch }}"}}',
        more="- step: fetch\n  next: s\n",
    )
    report = bench.run(
        plan, results={"fetch": msgspec.structs.replace(fetched, context={"http": {"status": 200}})}
    )
    given = bench.tool.calls[0].input["response"]
    assert given == {**ANSWER, "body": ANSWER["data"]}
    assert bench.value(report.result) == ANSWER
    stored = [bench.value(Envelope(status="ok", reference=ref.reference)) for ref in bench.refs]
    assert stored
    assert not [value for value in stored if "'body'" in str(value)]
