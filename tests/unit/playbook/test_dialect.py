"""Older spellings: what each becomes, and that each is noted where it stands."""

from typing import Any

import pytest

from noetl.playbook.dialect import guards
from noetl.playbook.findings import Code
from noetl.playbook.model import HttpTask, Playbook, SinkTask, Step, Task
from noetl.playbook.validation import load

HEAD = "metadata: {name: x}\nworkload: {rows: [], n: 1}\nworkflow:\n"
TAIL = "  - step: a\n  - step: b\n"


def load_playbook(body: str, tail: str = TAIL) -> Playbook:
    found = load(HEAD + body + tail)
    assert found.playbook is not None, [str(finding) for finding in found.errors]
    return found.playbook


def step(body: str, tail: str = TAIL) -> Step:
    return load_playbook("  - step: start\n" + body, tail).workflow[0]


def arcs(found: Step) -> list[tuple[str, Any]]:
    return [(arc.step, arc.when) for arc in found.next.arcs] if found.next else []


def notes(text: str) -> list[tuple[int, int]]:
    return [
        (finding.line, finding.column)
        for finding in load(text).findings
        if finding.code == Code.OLD_SPELLING
    ]


def rules(task: Task) -> list[tuple[Any, str]]:
    return [(rule.when, rule.then.do) for rule in task.spec.policy.rules]


ERROR = "{{ output.status == 'error' }}"


def test_notes_stand_where_the_old_spelling_stands() -> None:
    text = "apiVersion: noetl.io/v1\nname: x\nsteps:\n  - step: s\n    type: http\n    endpoint: http://a\n"
    assert notes(text) == [(1, 1), (2, 1), (3, 1), (5, 5), (6, 5)]


def test_current_spelling_has_no_notes() -> None:
    assert notes(HEAD + "  - {step: start, tool: {kind: noop}, next: a}\n" + TAIL) == []


# ---- assignments ----


def test_vars_are_ctx() -> None:
    assert step("    vars: {n: 1}\n    set: {iter.m: 2}\n").set == {"iter.m": 2, "ctx.n": 1}
    assert step("    set: {vars.n: 1}\n").set == {"ctx.n": 1}


# ---- retry ----


def test_retry_number_concerns_every_task() -> None:
    found = step("    tool: [{name: x, kind: noop}, {name: y, kind: noop}]\n    retry: 5\n")
    for task in found.tool:
        (rule,) = task.spec.policy.rules
        assert (rule.when, rule.then.do, rule.then.attempts) == (ERROR, "retry", 5)


def test_retry_words_for_delays() -> None:
    body = "    tool: {kind: noop}\n    retry: {max_attempts: 3, initial_delay: 1s, backoff_multiplier: 3, max_delay: 9s}\n"
    (rule,) = step(body).tool[0].spec.policy.rules
    then = rule.then
    assert (then.attempts, then.delay, then.backoff, then.multiplier, then.max_delay) == (
        3,
        "1s",
        "exponential",
        3,
        "9s",
    )


def test_retry_on_an_answer_is_pagination() -> None:
    body = """
    tool: {kind: http, url: "http://a"}
    retry:
      - when: "{{ response.data.next }}"
        then:
          max_attempts: 7
          next_call: {params: {page: "{{ response.data.next }}"}}
          collect: {strategy: extend, path: data.items, var: items}
          per_iteration: {sink: {tool: {kind: postgres, auth: pg, table: t}, data: "{{ response.data.items }}"}}
"""
    page = step(body).tool[0].spec.paginate
    assert page is not None
    assert (page.when, page.max_attempts) == ("{{ response.data.next }}", 7)
    assert page.next_call == {"params": {"page": "{{ response.data.next }}"}}
    assert page.collect is not None
    assert (page.collect.strategy, page.collect.path, page.collect.into) == (
        "extend",
        "data.items",
        "items",
    )
    assert page.sink is not None
    assert (page.sink.target.table, page.sink.data) == ("t", "{{ response.data.items }}")


def test_retry_on_an_answer_without_next_call_is_polling() -> None:
    body = '    tool: {kind: http, url: "http://a"}\n    retry: [{when: "{{ response.busy }}", then: {interval: 1s}}]\n'
    page = step(body).tool[0].spec.paginate
    assert page is not None
    assert (page.next_call, page.delay) == ({}, "1s")


def test_retry_on_a_status_code_concerns_errors() -> None:
    body = '    tool: {kind: noop}\n    retry: [{when: "{{ response.status_code == 503 }}", then: {max_attempts: 2}}]\n'
    assert rules(step(body).tool[0]) == [
        ("{{ output.status == 'error' and response.status_code == 503 }}", "retry")
    ]


# ---- sinks ----


@pytest.mark.parametrize(
    "sink",
    [
        "sink: {tool: {kind: postgres, auth: pg, table: t, mode: upsert, key: id}, data: 5}",
        "sink: {kind: postgres, auth: pg, table: t, mode: upsert, key: [id], data: 5}",
        "sink: {target: {kind: postgres, auth: pg, table: t, mode: upsert, key: id}, data: 5}",
        "sink: [{tool: {kind: postgres, auth: pg, table: t, mode: upsert, key: id, data: 5}}]",
        "sink: {tool: {kind: postgres, auth: pg, table: t, mode: upsert, key: id}, args: 5}",
        "save: {storage: postgres, auth: pg, table: t, mode: upsert, key: id, data: 5}",
        "save: {storage: {type: postgres, credential: pg, table: t, mode: upsert, key: id}, data: 5}",
    ],
)
def test_every_spelling_of_a_sink_is_one_storage_task(sink: str) -> None:
    found = step(f"    tool: {{kind: noop}}\n    {sink}\n")
    (_, task) = found.tool
    assert isinstance(task, SinkTask)
    assert (task.name, task.target.kind, task.target.auth, task.target.table) == (
        "sink",
        "postgres",
        "pg",
        "t",
    )
    assert (task.target.mode, task.target.key, task.data) == ("upsert", ["id"], 5)


# ---- case ----


def case(rules: str, rest: str = "    next: b\n") -> Step:
    return step(f'    tool: {{kind: http, url: "http://a"}}\n    case:\n{rules}{rest}')


def test_case_routes_before_the_default() -> None:
    found = case("      - {when: \"{{ event.name == 'call.error' }}\", then: {next: a}}\n")
    assert arcs(found) == [("a", ERROR), ("b", None)]


def test_case_on_success_needs_no_guard_of_its_own() -> None:
    found = case("      - {when: \"{{ event.name == 'step.exit' }}\", then: {next: a}}\n", "")
    assert arcs(found) == [("a", None)]


def test_case_set_with_a_route_belongs_to_the_arc() -> None:
    found = case(
        "      - {when: \"{{ event.name == 'call.done' and response.n > 3 }}\", then: {set: {x: 1}, next: a}}\n"
    )
    assert found.next is not None
    assert found.next.arcs[0].set == {"x": 1}
    assert found.next.arcs[0].when == "{{ output.status != 'error' and response.n > 3 }}"


def test_case_set_alone_is_conditional() -> None:
    found = case(
        "      - {when: \"{{ event.name == 'call.done' and response.n > 3 }}\", then: {set: {x: 1, y: a}}}\n"
    )
    assert found.set["ctx.x"] == "{{ 1 if response.n > 3 else ctx.x | default(none) }}"
    assert found.set["ctx.y"] == "{{ 'a' if response.n > 3 else ctx.y | default(none) }}"
    assert arcs(found) == [("b", None)]


def test_first_matching_rule_wins_over_later_routes() -> None:
    found = case(
        "      - {when: \"{{ event.name == 'call.done' and response.small }}\", then: {set: {x: 1}}}\n"
        "      - {when: \"{{ event.name == 'call.done' }}\", then: {next: a}}\n"
    )
    assert arcs(found)[0] == ("a", "{{ output.status != 'error' and not (response.small) }}")


def test_failure_after_the_last_try_is_routed_by_a_later_rule() -> None:
    found = case(
        "      - {when: \"{{ event.name == 'call.error' and error.retryable }}\", then: {retry: {max_attempts: 3}}}\n"
        "      - {when: \"{{ event.name == 'call.error' }}\", then: {next: a}}\n"
    )
    assert rules(found.tool[0]) == [("{{ output.status == 'error' and error.retryable }}", "retry")]
    assert arcs(found)[0] == ("a", ERROR)


@pytest.mark.parametrize(
    "place", ["tool: {kind: noop, retry: 2}", "tool: {kind: noop}\n    retry: 2"]
)
def test_what_case_does_after_an_error_waits_for_the_last_try(place: str) -> None:
    found = step(
        f"    {place}\n    case: [{{when: \"{{{{ event.name == 'call.error' }}}}\", then: {{fail: sad}}}}]\n"
    )
    assert rules(found.tool[0]) == [
        ("{{ output.status == 'error' and _attempt < 2 }}", "retry"),
        (ERROR, "fail"),
    ]


def test_case_that_retries_and_then_stores_the_error_does_both() -> None:
    found = case(
        "      - when: \"{{ event.name == 'call.error' }}\"\n"
        "        then: {retry: {max_attempts: 4}, tasks: [{name: note, kind: noop}]}\n"
    )
    assert rules(found.tool[0]) == [
        ("{{ output.status == 'error' and _attempt < 4 }}", "retry"),
        (ERROR, "jump"),
    ]


def test_case_retry_after_success_is_polling() -> None:
    found = case(
        "      - {when: \"{{ event.name == 'call.done' and response.busy }}\", then: {retry: {max_attempts: 9}}}\n"
    )
    page = found.tool[0].spec.paginate
    assert page is not None
    assert (page.when, page.max_attempts) == ("{{ response.busy }}", 9)


def test_case_fail_is_policy() -> None:
    found = case(
        "      - {when: \"{{ event.name == 'step.exit' and response.bad }}\", then: {fail: no good}}\n"
    )
    (rule,) = found.tool[0].spec.policy.rules
    assert (rule.when, rule.then.do, rule.then.message) == ("{{ response.bad }}", "fail", "no good")


def test_case_sink_on_success_is_guarded() -> None:
    found = case(
        "      - {when: \"{{ event.name == 'step.exit' and response.ok }}\", then: {sink: {tool: {kind: postgres, table: t}}}}\n"
    )
    assert found.tool[1].spec.when == "{{ response.ok }}"


def test_case_sink_on_error_runs_and_the_step_still_fails() -> None:
    found = case(
        "      - {when: \"{{ event.name == 'call.error' }}\", then: {sink: {tool: {kind: postgres, table: t}}, next: a}}\n"
    )
    main, sink = found.tool
    (rule,) = main.spec.policy.rules
    assert (rule.when, rule.then.do, rule.then.to) == (ERROR, "jump", "sink")
    assert sink.spec.when == "{{ iter.case_0 is defined }}"
    assert [item.then.do for item in sink.spec.policy.rules] == ["fail"]
    assert arcs(found)[0] == ("a", ERROR)


def test_case_tasks_keep_the_verdict_of_the_answer_they_are_about() -> None:
    found = case(
        "      - when: \"{{ event.name == 'call.done' and response.old }}\"\n        then: [{x: {kind: noop}}, {kind: noop}]\n"
    )
    assert found.tool[0].set == {"iter.case_0": "{{ response.old }}"}
    assert [task.spec.when for task in found.tool[1:]] == ["{{ iter.case_0 }}"] * 2
    assert [task.name for task in found.tool] == ["task_0", "x", "case_task"]


def test_case_tasks_after_a_loop_get_a_step_of_their_own() -> None:
    body = """  - step: start
    loop: {in: "{{ rows }}", mode: parallel}
    tool: {kind: noop}
    case: [{when: "{{ event.name == 'loop.done' }}", then: {tasks: [{kind: noop}], next: a}}]
    next: b
"""
    playbook = load_playbook(body)
    assert arcs(playbook.workflow[0]) == [
        ("start_done", "{{ event.name == 'loop.done' }}"),
        ("b", None),
    ]
    extra = playbook.workflow[-1]
    assert (extra.step, arcs(extra)) == ("start_done", [("a", None)])


def test_an_error_is_routed_before_the_end_of_the_loop() -> None:
    body = """  - step: start
    loop: {in: "{{ rows }}"}
    tool: {kind: noop}
    case:
      - {when: "{{ event.name == 'loop.done' }}", then: {next: a}}
      - {when: "{{ event.name == 'call.error' }}", then: {next: b}}
"""
    assert arcs(load_playbook(body).workflow[0]) == [
        ("b", ERROR),
        ("a", "{{ event.name == 'loop.done' }}"),
    ]


def test_case_mode_inclusive_takes_every_match_and_the_default_only_without_one() -> None:
    found = step(
        """    case_mode: inclusive
    case:
      - {when: "{{ ctx.x is defined }}", then: {next: a}}
      - {when: "{{ ctx.y is defined }}", then: {next: b}}
    next: c
""",
        TAIL + "  - step: c\n",
    )
    assert found.next is not None
    assert found.next.spec.mode == "inclusive"
    assert arcs(found) == [
        ("a", "{{ ctx.x is defined }}"),
        ("b", "{{ ctx.y is defined }}"),
        ("c", "{{ output.status != 'error' and (not (ctx.x is defined or ctx.y is defined)) }}"),
    ]


def test_case_set_falls_back_to_what_the_step_assigns() -> None:
    rule = "{when: \"{{ event.name == 'call.done' and response.big }}\", then: {set: {x: '{{ response.n }}'}}}"
    found = step(f"    tool: {{kind: noop}}\n    vars: {{x: 1}}\n    case: [{rule}]\n    next: a\n")
    assert found.set == {"ctx.x": "{{ (response.n) if response.big else 1 }}"}


# ---- v1 ----

V1 = "apiVersion: noetl.io/v1\n" + HEAD


def v1(body: str, tail: str = TAIL) -> Playbook:
    found = load(V1 + body + tail)
    assert found.playbook is not None, [str(finding) for finding in found.errors]
    return found.playbook


def test_v1_type_is_a_tool() -> None:
    (task,) = (
        v1("  - {step: s, type: http, endpoint: 'http://a', with: {x: 1}, next: a}\n")
        .workflow[0]
        .tool
    )
    assert isinstance(task, HttpTask)
    assert task.url == "http://a"


def test_v1_iterator_is_a_loop() -> None:
    body = "  - {step: s, type: iterator, collection: [1], element: e, mode: async, task: {type: noop}, next: a}\n"
    loop = v1(body).workflow[0].loop
    assert loop is not None
    assert (loop.in_, loop.iterator, loop.spec.mode) == ([1], "e", "parallel")


def test_v1_pass_skips_and_goes_on() -> None:
    admit = v1("  - {step: s, type: noop, pass: true, next: a}\n").workflow[0].spec.policy.admit
    assert admit is not None
    assert [(rule.when, rule.then.allow, rule.then.next) for rule in admit.rules] == [
        (True, False, "a")
    ]


def test_v1_when_admits() -> None:
    admit = (
        v1("  - {step: s, type: noop, when: '{{ n > 1 }}', next: a}\n")
        .workflow[0]
        .spec.policy.admit
    )
    assert admit is not None
    assert [(rule.when, rule.then.allow, rule.then.next) for rule in admit.rules] == [
        ("{{ n > 1 }}", True, None), (True, False, "a"),
    ]  # fmt: skip


def test_v1_when_before_a_decision_guards_the_tasks() -> None:
    body = "  - {step: s, type: noop, when: '{{ n > 1 }}', next: [{step: a, when: '{{ n > 2 }}'}, b]}\n"
    found = v1(body).workflow[0]
    assert found.spec.policy.admit is None
    assert found.tool[0].spec.when == "{{ n > 1 }}"


def test_v1_steps_without_next_run_in_order() -> None:
    playbook = v1("  - {step: s, type: noop}\n")
    assert [arcs(item) for item in playbook.workflow] == [[("a", None)], [("b", None)], []]


# ---- short forms ----


def test_an_input_without_a_tool_is_a_noop() -> None:
    assert [task.kind for task in step("    input: {x: 1}\n").tool] == ["noop"]
    assert step("    set: {x: 1}\n").tool == []


# ---- guards ----


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("event.name == 'call.done'", "true"),
        ("event.name == 'call.done' and x", "x"),
        ('x and event.name == "call.done"', "x"),
        ("'step.exit' == event.name and x or y", "x or y"),
        ("(event.name == 'step.exit') and x", "x"),
        ("event.name in ['call.done', 'step.exit'] and x", "x"),
        ("not event.name == 'call.done' and x", "not true and x"),
        ("event.name != 'call.done' and x", "not true and x"),
    ],
)
def test_event_comparisons_are_taken_out(text: str, meant: str) -> None:
    assert guards.replace_events(text, dict.fromkeys(guards.EVENTS.values(), "true")) == meant


def test_an_event_has_a_second_name() -> None:
    start = step(
        "    tool: {kind: python, code: \"x = event.name == 'step.done'\"}\n"
        "    set: {ctx.x: \"{{ event.name != 'step.failed' }}\"}\n"
        "    next: [{step: a, when: \"{{ event.name in ['step.done', 'loop.done'] }}\"}]\n"
    )
    assert arcs(start) == [("a", "{{ event.name in ['call.done', 'loop.done'] }}")]
    assert start.set == {"ctx.x": "{{ event.name != 'call.error' }}"}
    assert start.tool[0].config["code"] == "x = event.name == 'step.done'"


def test_only_a_single_expression_can_be_combined() -> None:
    assert guards.parse_guard("{{ a }}") == "a"
    assert guards.parse_guard("{{- a -}}") == "a"
    assert guards.parse_guard(True) == "true"
    assert guards.parse_guard("{{ a }} and {{ b }}") is None
    assert guards.parse_guard("plain") is None


# ---- which of two case rules acts ----

ON_DONE, ON_EXIT, ON_ERROR = (
    f"{{{{ event.name == '{name}' }}}}" for name in ("call.done", "step.exit", "call.error")
)


def list_dead_rules(*whens: str, mode: str = "exclusive") -> list[int]:
    """Which of these rules, counted from 0, `validate` says can never act."""
    listed = "".join(f'      - {{when: "{when}", then: {{next: b}}}}\n' for when in whens)
    body = f"    tool: {{kind: noop}}\n    case_mode: {mode}\n    case:\n{listed}"
    head = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: t}\nworkflow:\n  - step: a\n"
    found = load(head + body + "  - step: b\n").findings
    first = (head + body).count("\n") - len(whens) + 1
    return sorted(
        {finding.line - first for finding in found if finding.code is Code.UNREACHABLE_ARC}
    )


@pytest.mark.parametrize(
    ("whens", "wanted"),
    [
        ((ON_DONE, ON_DONE), [1]),
        ((ON_DONE, ON_EXIT), [1]),
        (
            (
                "{{ event.name == 'call.done' and ctx.x }}",
                "{{ event.name == 'step.exit' and ctx.x }}",
            ),
            [1],
        ),
        (("{{ true }}", ON_ERROR, ON_DONE), [1, 2]),
        ((ON_DONE, ON_ERROR), []),
        (("{{ event.name == 'call.done' and ctx.x }}", ON_DONE), []),
        (("{{ event.name in ['call.done', 'call.error'] }}", ON_ERROR), [1]),
        ((ON_DONE, "{{ event.name in ['call.done', 'call.error'] }}"), []),
    ],
)
def test_case_rule_behind_one_that_always_matches_is_warned_of(
    whens: tuple[str, ...], wanted: list[int]
) -> None:
    assert list_dead_rules(*whens) == wanted
    assert list_dead_rules(*whens, mode="inclusive") == [], "then every matching rule acts"


def test_case_rule_that_only_retries_leaves_the_event_to_the_next() -> None:
    found = load(
        "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: t}\nworkflow:\n"
        "  - step: a\n    tool: {kind: noop}\n    case:\n"
        f'      - {{when: "{ON_ERROR}", then: {{retry: {{max_attempts: 3}}}}}}\n'
        f'      - {{when: "{ON_ERROR}", then: {{next: b}}}}\n'
        "  - step: b\n"
    )
    assert Code.UNREACHABLE_ARC not in [finding.code for finding in found.findings]


def test_case_rule_on_success_and_failure_is_an_error_arc_too() -> None:
    found = case(
        "      - {when: \"{{ event.name in ['call.done', 'call.error'] }}\", then: {next: a}}\n", ""
    )
    assert arcs(found) == [("a", "{{ output.status is defined }}")]
