"""What templates use, and how payload parts are cut out of them."""

from __future__ import annotations

from typing import Any

import pytest

from noetl.playbook.plan import compile_plan
from noetl.playbook.validation import load_or_raise
from noetl.template.errors import TemplateError, UndefinedError, suggest
from noetl.template.model import Selection
from noetl.template.parsing import parse, parse_expression
from noetl.template.selections import cut_template
from noetl.template.unparsing import unparse
from noetl.template.used_names import find_names, find_paths, find_undefined_names
from noetl.template.values import Undefined
from tests.play import workflow
from tests.rendering import compute_selection, render

STEPS = ("fetch", "a", "b")
STABLE = frozenset({"workload", "limit"})


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("text", set()),
        ("{{ a.b + c['d'] }}", {"a", "c"}),
        ("{{ range(n) }}{{ now() }}{{ x.upper() }}", {"n", "x"}),
        (
            "{% for x in xs %}{{ x }}{{ loop.index }}{{ y }}{% endfor %}{{ loop.index }}",
            {"xs", "y", "loop"},
        ),
        ("{% for x in xs if x > low %}{% else %}{{ x }}{% endfor %}", {"xs", "low", "x"}),
        ("{% set x = y %}{{ x }}", {"y"}),
        ("{{ x }}{% set x = 1 %}", {"x"}),
        ("{% if t %}{% set x = 1 %}{% endif %}{{ x }}", {"t", "x"}),
        ("{% if t %}{% set x = 1 %}{% else %}{% set x = 2 %}{% endif %}{{ x }}", {"t"}),
        ("{% for k, v in m.items() %}{{ k }}{{ v }}{% endfor %}", {"m"}),
        ("{{ xs | map(attribute=name) | select('in', ys) }}", {"xs", "name", "ys"}),
        ("{{ xs[i].y[1:j] }}", {"xs", "i", "j"}),
        ("{{ m is defined and (n | default(o)) }}", {"m", "n", "o"}),
    ],
)
def test_names(template: str, expected: set[str]) -> None:
    assert find_names(template) == expected


def test_paths_go_as_far_as_they_are_constant() -> None:
    assert find_paths("{{ fetch.items[0].id }}") == {("fetch", "items", 0, "id")}
    assert find_paths("{{ a['b c'].d }}{{ e[f.g].h }}") == {("a", "b c", "d"), ("e",), ("f", "g")}
    assert find_paths("{{ a.b.upper() }}{{ a.list[1:] }}") == {("a", "b"), ("a", "list")}
    assert find_paths("{{ (a.b | first).c }}") == {("a", "b")}


def test_names_that_can_never_resolve() -> None:
    known = {"workload", "ctx"}
    assert find_undefined_names("{{ workload.x + werkload.y }}", known) == ["werkload"]
    assert (
        find_undefined_names(
            "{{ maybe is defined }}{{ other.x | default(1) }}{{ x.y.z is undefined }}", known
        )
        == []
    )
    assert find_undefined_names("{{ maybe is defined and maybe > 1 }}", known) == ["maybe"]
    assert find_undefined_names("{{ x | default(y) }}", known) == ["y"]
    assert suggest("werkload", known) == "workload"
    assert suggest("qqq", known) is None


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ fetch.items | length > 3 }}", [("fetch", "(fetch.items | length) > 3")]),
        ("{{ fetch.n > ctx.limit }}", [("fetch", "fetch.n")]),
        ("{{ fetch.n > workload.limit }}", [("fetch", "fetch.n > workload.limit")]),
        ("{{ fetch.n > limit }}", [("fetch", "fetch.n > limit")]),
        ("{{ a.n + b.n }}", [("a", "a.n"), ("b", "b.n")]),
        ("{{ fetch }}", [("fetch", "fetch")]),
        ("{{ [fetch.x, ctx.y, {'k': a.z}] }}", [("fetch", "fetch.x"), ("a", "{'k': a.z}")]),
        ("{{ fetch.a is defined and ctx.b }}", [("fetch", "fetch.a is defined")]),
        ("{{ fetch.n | default(ctx.limit) | int }}", [("fetch", "fetch.n")]),
        ("{{ ctx.list[fetch.i] }}", [("fetch", "fetch.i")]),
        ("{{ ctx.list | join(fetch.sep) }}", [("fetch", "fetch.sep")]),
        ("{{ ctx.name.replace(fetch.old, 'x') }}", [("fetch", "fetch.old")]),
        ("{{ 'big' if fetch.n > 3 else ctx.small }}", [("fetch", "fetch.n > 3")]),
        ("{{ fetch.n ~ '-' ~ ctx.n }}", [("fetch", "fetch.n")]),
        ("{{ fetch.n is divisibleby(ctx.k) }}", [("fetch", "fetch.n")]),
        (
            "{{ not fetch.ok and -a.n < ctx.x < b.n }}",
            [("fetch", "not fetch.ok"), ("a", "-a.n"), ("b", "b.n")],
        ),
        ("{{ now() ~ fetch.n }}", [("fetch", "fetch.n")]),
        ("n={{ fetch.n }}, again {{ fetch.n }}", [("fetch", "fetch.n")]),
        (
            "{% if fetch.n > 1 %}{{ ctx.x }}{% elif a.y %}{{ b.z }}{% endif %}",
            [("fetch", "fetch.n > 1"), ("a", "a.y"), ("b", "b.z")],
        ),
        ("{% set n = fetch.n %}{{ n + ctx.x }}", [("fetch", "fetch.n")]),
        ("{{ range(fetch.n) | list }}", [("fetch", "range(fetch.n) | list")]),
        ("{{ response.data.paging.hasMore }}", [("me", "response.data.paging.hasMore")]),
        (
            "{{ result.x }}{{ output.data.y }}{{ outcome['z'] }}",
            [("me", "result.x"), ("me", "output.data.y"), ("me", "outcome['z']")],
        ),
        (
            "{{ output.status == 'ok' and output.http.status < 300 and output.error is defined }}",
            [],
        ),
        ("{{ output.status == 'ok' and response.n > 3 }}", [("me", "response.n > 3")]),
        ("{{ output['status'] }}", []),
        ("{{ output }}", [("me", "output")]),
        ("{{ me.n + response.n }}", [("me", "me.n + response.n")]),
        ("{{ ctx.x + workload.y }}", []),
        ("{% for x in ctx.xs %}{{ x }}{% endfor %}{{ fetch.n }}", [("fetch", "fetch.n")]),
        ("{% for fetch in ctx.xs %}{{ fetch.n }}{% endfor %}", []),
        ("{{ fetch.items[0]['a b'].c[1:2] }}", [("fetch", "fetch.items[0]['a b'].c[1:2]")]),
        ("{{ fetch.list[workload.i] }}", [("fetch", "fetch.list[workload.i]")]),
        ("{{ (fetch.a if ctx.b else fetch.c).d }}", [("fetch", "fetch.a"), ("fetch", "fetch.c")]),
    ],
)
def test_payload_parts_are_cut_out(template: str, expected: list[tuple[str, str]]) -> None:
    made = cut_template(template, own="me", steps=(*STEPS, "me"), stable=STABLE)
    assert [(selection.step, selection.source) for selection in made.selections] == expected
    assert not made.needs_worker
    assert not made.names & {*STEPS, "me", "response", "result"}
    for selection in made.selections:
        tree = parse_expression(selection.source).expression
        assert tree is not None
        assert unparse(tree) == selection.source


@pytest.mark.parametrize(
    "template",
    [
        "{{ a.list[ctx.i] }}",
        "{{ a.list[ctx.i:] }}",
        "{{ a.list[b.i] }}",
        "{{ fetch.items | selectattr('id', 'eq', ctx.id) | list }}",
        "{{ fetch.items | map('replace', 'a', uuid()) }}",
        "{{ fetch.name.startswith(ctx.prefix) }}",
        "{% for x in fetch.items %}{{ x }}{% endfor %}",
        "{% for x in ctx.xs %}{{ x + fetch.n }}{% endfor %}",
        "{% for x in ctx.xs %}{% if x %}{{ response.n }}{% endif %}{% endfor %}",
        "{% set fetch = 1 %}{{ fetch }}",
    ],
)
def test_what_cannot_be_cut_needs_a_worker(template: str) -> None:
    made = cut_template(template, own="me", steps=STEPS, stable=STABLE)
    assert made.needs_worker
    assert made.template == parse(template)
    assert made.selections == ()


def test_without_an_own_step_its_names_are_ordinary() -> None:
    made = cut_template("{{ response.n + output.data + fetch.n }}", own=None, steps=STEPS)
    assert [selection.source for selection in made.selections] == ["fetch.n"]
    assert made.names == {"response", "output"}


def test_a_step_named_like_a_function_is_cut_where_it_is_data() -> None:
    made = cut_template("{{ range(ctx.n) + range.items }}", own=None, steps=["range"])
    assert [selection.source for selection in made.selections] == ["range.items"]


def test_ids_depend_on_the_canonical_text_only() -> None:
    first = cut_template("{{ fetch.n>3 }}", own=None, steps=STEPS).selections[0]
    second = cut_template(
        "x{{ (fetch['n'] if 0 else (fetch.n   > 3)) }}{{ ctx.a }}", own=None, steps=STEPS
    )
    third = cut_template("{{ ctx.a }}{{ fetch.n  >  3 }}", own=None, steps=STEPS).selections[0]
    assert first == third
    assert first.id != second.selections[0].id
    assert len(first.id) == 16


def test_the_cut_template_takes_its_parts_from_the_caller() -> None:
    made = cut_template("{{ fetch.n > ctx.limit }}", own=None, steps=STEPS)
    asked: list[Selection] = []

    def get_part(selection: Selection) -> Any:
        asked.append(selection)
        return 5

    assert render(made.template, {"ctx": {"limit": 3}}, selected=get_part) is True
    assert asked == list(made.selections)
    assert hash(made.template) != hash(parse("{{ fetch.n > ctx.limit }}"))
    with pytest.raises(TemplateError):
        render(made.template, {"ctx": {"limit": 3}})


def test_an_undefined_selection_is_an_error_only_when_used() -> None:
    def get_undefined(selection: Selection) -> Undefined:
        return Undefined(selection.source, "fetch.n")

    scope = {"ctx": {"limit": 3, "on": False}}
    made = cut_template("{{ fetch.n | default(ctx.limit) }}", own=None, steps=STEPS)
    assert render(made.template, scope, selected=get_undefined) == 3
    made = cut_template("{{ ctx.on and fetch.n > ctx.limit }}", own=None, steps=STEPS)
    assert render(made.template, scope, selected=get_undefined) is False
    made = cut_template("{{ fetch.n > ctx.limit }}", own=None, steps=STEPS)
    with pytest.raises(UndefinedError) as caught:
        render(made.template, scope, selected=get_undefined)
    assert caught.value.missing == "fetch.n"


def test_a_worker_tells_what_is_undefined_from_what_fails() -> None:
    scope = {"fetch": {"n": 4}}
    value, missing, failing = (
        Selection("", "fetch", source) for source in ("fetch.n + 1", "fetch.x.y", "fetch.x + 1")
    )
    assert compute_selection(value, scope) == 5
    assert compute_selection(missing, scope) == Undefined("fetch.x.y", "fetch.x")
    with pytest.raises(UndefinedError):
        compute_selection(failing, scope)


def test_a_failing_selection_raises_where_it_stands() -> None:
    class Elsewhere(Exception):
        pass

    def failing(selection: Selection) -> Any:
        raise Elsewhere

    made = cut_template("{{ ctx.on or fetch.n > ctx.limit }}", own=None, steps=STEPS)
    assert render(made.template, {"ctx": {"on": 1}}, selected=failing) == 1
    with pytest.raises(Elsewhere):
        render(made.template, {"ctx": {"on": 0}}, selected=failing)


@pytest.mark.parametrize(
    "expression",
    [
        "a.b['c d'][0][1:2:3][:2][:]",
        "-1 | abs",
        "(-1) ** 2 ** -3",
        "not (a and b or c)",
        "a < b <= c != d not in e",
        "x if y else z if q else 'w'",
        "a ~ b ~ (c ~ d)",
        "a | default(1, true) | map('upper') | join(d=',')",
        "a is divisibleby 3 and b is not defined",
        "{'a': [1, (2,), ()], 'b': {}}",
        "'it\\'s \\\\ \\n \\r é \\u2028 }} {{ %}'",
        "range(1, 2, step=3)[0]",
        "'a'.replace('b', 'c').upper()",
        "(a | first).b.c",
        "(1).b",
        "1.5e300 + 1e-7",
        "true == none",
        "a.0.b",
    ],
)
def test_unparsing_gives_the_same_tree(expression: str) -> None:
    tree = parse("{{ " + expression + " }}").expression
    assert tree is not None
    text = unparse(tree)
    again = parse("{{ " + text + " }}").expression
    assert again == tree
    assert unparse(again) == text if again is not None else False


def test_the_address_of_a_script_may_use_the_workload() -> None:
    text = "- {step: a, tool: {kind: postgres, script: {uri: '{{ workload.files }}/x.sql'}, params: {n: '{{ ctx.n }}'}}}"
    uses = compile_plan(load_or_raise(workflow(text)), "hash").steps["a"].uses
    assert (uses.workload, uses.ctx) == (frozenset({"files", "ctx", "workload"}), frozenset({"n"}))
