"""What templates mean: values and text, undefined, methods, statements, filters, tests, guards, limits, marks."""

from __future__ import annotations

import tracemalloc
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pytest

from noetl.template.errors import (
    FailedError,
    ForbiddenError,
    LimitError,
    NeedsData,
    TemplateError,
    TemplateSyntaxError,
    UndefinedError,
)
from noetl.template.limits import SERVER_LIMITS, WORKER_LIMITS, RenderLimits
from noetl.template.model import Template
from noetl.template.parsing import parse
from noetl.template.replay_functions import DerivedFunctions
from noetl.template.values import NO_ERROR, OptionalMap, Undefined
from tests.rendering import evaluate, evaluate_guard, render, render_marked, render_value

SCOPE: dict[str, Any] = {
    "workload": {"base": "http://x", "limit": 3},
    "ctx": {"items": [1, 2], "n": 3, "name": "Ann", "null": None, "keys": "mine"},
    "fetch": {
        "items": [
            {"id": 1, "tag": "b", "on": True},
            {"id": 2, "tag": "a", "on": False},
            {"id": 3, "tag": "B", "on": True},
        ]
    },
    "words": ["b", "a", "C", "a"],
    "nums": [3, 1, 2],
    "x": "007",
    "t": True,
    "f": 1.5,
    "m": {"b": 1, "a": 2},
    "empty": [],
    "long": "lorem ipsum dolor sit amet",
}


def is_same(value: object, expected: object) -> bool:
    return type(value) is type(expected) and value == expected


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("plain", "plain"),
        ("", ""),
        ("}} not a tag %}", "}} not a tag %}"),
        ("{{ x }}", "007"),
        ("  {{ ctx.n }}\n", 3),
        ("{{ ctx.n }}!", "3!"),
        ("{{ ctx.items }}", [1, 2]),
        ("{{ ctx.null }}", None),
        ("{{ t }}", True),
        ("{{ f }}", 1.5),
        (
            "{{ t }} {{ ctx.null }} {{ f }} {{ m }} {{ nums }} {{ 1 / 3 }}",
            'true null 1.5 {"b":1,"a":2} [3,1,2] ' + repr(1 / 3),
        ),
        ("{{ workload.base }}/x/{{ ctx.n }}", "http://x/x/3"),
        ("{# nothing #}{{ ctx.n }}", 3),
        ("a{# nothing #}b", "ab"),
        ("{% raw %}{{ x }}{% endraw %}", "{{ x }}"),
        ("line\n{{ x }}\n", "line\n007\n"),
        ("{{ 'é\\n' }}", "é\n"),
        ("{{ (1, 2) }}", [1, 2]),
        ("{{ {'a': [1, {'b': none}]} }}", {"a": [1, {"b": None}]}),
        ("{{ dict(a=1, meter=2) }}", {"a": 1, "meter": 2}),
        ("{{ range(3) }}", [0, 1, 2]),
        ("{{ range(5, 0, -2) }}", [5, 3, 1]),
    ],
)
def test_one_expression_is_its_value_and_anything_else_is_text(
    template: str, expected: object
) -> None:
    assert is_same(render(template, SCOPE), expected)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("1 + 2 * 3 - 4 / 2", 5.0),
        ("7 // 2 + 7 % 4", 6),
        ("2 ** 10", 1024),
        ("2 ** -1", 0.5),
        ("-ctx.n + +1", -2),
        ("'a' + 'b'", "ab"),
        ("'ab' * 2", "abab"),
        ("3 * 'a'", "aaa"),
        ("[1] + [2]", [1, 2]),
        ("[0] * 3", [0, 0, 0]),
        ("'n=' ~ ctx.n ~ true ~ none ~ [1]", "n=3truenull[1]"),
        ("1 < 2 < 3 and 3 >= 3 != 4", True),
        ("1 < 2 > 3", False),
        ("'a' in 'cat' and 1 in nums and 'b' in m and 9 not in nums", True),
        ("nums == [3, 1, 2] and m == {'a': 2, 'b': 1}", True),
        ("[[1], 2] == [[1], 3]", False),
        ("0 or 'x'", "x"),
        ("1 and ''", ""),
        ("not nums", False),
        ("'y' if t else 'n'", "y"),
        ("nums[0] + nums[-1]", 5),
        ("nums[1:]", [1, 2]),
        ("'hello'[1:-1:2]", "el"),
        ("'hello'[0]", "h"),
        ("nums.0", 3),
        ("fetch['items'][1]['tag']", "a"),
        ("ctx.items", [1, 2]),
        ("m.items()", [["b", 1], ["a", 2]]),
        ("m.keys() + ctx.name.split('n')", ["b", "a", "A", "", ""]),
        ("m.values()", [1, 2]),
        ("m.get('zz', 5) + m.get('a')", 7),
        ("m.get('zz') is none", True),
        ("' Ab '.strip().upper().lower()", "ab"),
        ("'a,b'.split(',')", ["a", "b"]),
        ("'a\\nb'.splitlines()", ["a", "b"]),
        ("','.join(['a', 'b'])", "a,b"),
        ("'abc'.startswith('a') and 'abc'.endswith('c')", True),
        ("'abc'.replace('b', 'x')", "axc"),
        ("'ab cd'.title() ~ 'ab'.capitalize()", "Ab CdAb"),
        ("'abc'.find('c') + 'aab'.count('a')", 4),
        ("'12'.isdigit() and 'ab'.isalpha()", True),
        ("'7'.zfill(3)", "007"),
        ("'abc'.removeprefix('a').removesuffix('c')", "b"),
        ("'xxa'.lstrip('x') ~ 'axx'.rstrip('x')", "aa"),
        ("nums.index(2) + nums.count(1)", 3),
    ],
)
def test_expressions(expression: str, expected: object) -> None:
    assert is_same(render("{{ " + expression + " }}", SCOPE), expected)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("-5 | abs", 5),
        ("(-5) | abs", 5),
        ("nums | batch(2)", [[3, 1], [2]]),
        ("nums | batch(2, 0)", [[3, 1], [2, 0]]),
        ("nums | slice(2)", [[3, 1], [2]]),
        ("nums | slice(2, 'x')", [[3, 1], [2, "x"]]),
        ("'aB' | capitalize", "Ab"),
        ("nope | default(1) + nope.deeper | d(2)", 3),
        ("nope | default", ""),
        ("'' | default('x', true) ~ '' | default('y')", "x"),
        ("ctx.null | default(1)", None),
        ("nope | default(also.missing) | default(4)", 4),
        ("ctx.n | default(also.missing)", 3),
        ("m | dictsort", [["a", 2], ["b", 1]]),
        ("m | dictsort(by='value')", [["b", 1], ["a", 2]]),
        ("nums | first + nums | last", 5),
        ("m | first ~ m | last", "ba"),
        ("'1.5' | float + 'x' | float(2.0)", 3.5),
        ("'inf' | float", 0.0),
        ("'12' | int + 'x' | int + 3.9 | int + 'ff' | int(base=16) + '2.7' | int", 272),
        ("fetch.items | groupby('tag') | map('first') | list", ["a", "b"]),
        ("(fetch.items | groupby('tag'))[1][1] | map(attribute='id') | list", [1, 3]),
        ("[{'k': 1}, {}] | groupby('k', default=0) | map('first') | list", [0, 1]),
        ("'a\\nb' | indent(2)", "a\n  b"),
        ("'a\\n\\nb' | indent(2, true)", "  a\n\n  b"),
        ("m | items", [["b", 1], ["a", 2]]),
        ("nums | join(',')", "3,1,2"),
        ("fetch.items | join('-', attribute='id')", "1-2-3"),
        ("[true, none] | join(' ')", "true null"),
        ("nums | length + 'ab' | count + m | length", 7),
        ("'ab' | list", ["a", "b"]),
        ("'AB' | lower ~ 'ab' | upper", "abAB"),
        ("fetch.items | map(attribute='tag') | map('upper') | list", ["B", "A", "B"]),
        ("[{'a': {'b': 1}}, {}] | map(attribute='a.b', default=0) | list", [1, 0]),
        ("[[1, 2], [3]] | map('sum') | list", [3, 3]),
        ("[1.25, 2.0] | map('round', 1) | list", [1.2, 2.0]),
        ("nums | max - nums | min", 2),
        ("(fetch.items | max(attribute='id')).tag", "B"),
        ("nums | reject('odd') | list", [2]),
        ("nums | select('>', 1) | list", [3, 2]),
        ("[0, 1, ''] | select", [1]),
        ("fetch.items | selectattr('on') | map(attribute='id')", [1, 3]),
        ("fetch.items | selectattr('id', 'in', [1, 2]) | pluck('id')", [1, 2]),
        ("fetch.items | rejectattr('tag', 'eq', 'a') | pluck('id')", [1, 3]),
        ("[{'a': 1}, {}] | selectattr('a', 'defined') | length", 1),
        ("'aaa' | replace('a', 'bb', 2)", "bbbba"),
        ("nums | reverse", [2, 1, 3]),
        ("'abc' | reverse", "cba"),
        ("2.456 | round(2) + 1.2 | round(method='ceil') + 1.9 | round(0, 'floor')", 5.46),
        ("nums | sort", [1, 2, 3]),
        ("words | sort", ["a", "a", "b", "C"]),
        ("words | sort(case_sensitive=true, reverse=true)", ["b", "a", "a", "C"]),
        ("fetch.items | sort(attribute='tag') | pluck('id')", [2, 1, 3]),
        ("5 | string ~ true | string", "5true"),
        ("nums | sum + fetch.items | sum(attribute='id') + [] | sum(start=10)", 22),
        ("'ab-cd ef' | title", "Ab-Cd Ef"),
        ("'  a ' | trim ~ 'xax' | trim('x')", "aa"),
        ("long | truncate(15)", "lorem ipsum..."),
        ("long | truncate(13, true)", "lorem ipsu..."),
        ("words | unique", ["b", "a", "C"]),
        ("[[1], [1], [2]] | unique", [[1], [2]]),
        ("'a b/c?' | urlencode", "a%20b/c%3F"),
        ("{'q': 'a&b', 'n': 1} | urlencode", "q=a%26b&n=1"),
        ("long | wordcount", 5),
        ("m | tojson", '{"b":1,"a":2}'),
        ("[1, 'é'] | tojson", '[1,"é"]'),
        ("m | tojson(indent=1)", '{\n "b": 1,\n "a": 2\n}'),
        ("'[1, {\"a\": null}]' | fromjson", [1, {"a": None}]),
        ("'é' | b64encode | b64decode", "é"),
        ("'abc' | sha256", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
        ("m | keys + m | values", ["b", "a", 1, 2]),
        ("m | get('a') + m | get('q', 5) + nums | get(9, 1)", 8),
        ("'a,b,c' | split(',', 1)", ["a", "b,c"]),
        ("'my \"table' | identifier", '"my ""table"'),
        ("'now()' | sql", "now()"),
    ],
)
def test_filters(expression: str, expected: object) -> None:
    assert is_same(render("{{ " + expression + " }}", SCOPE), expected)


@pytest.mark.parametrize(
    "expression",
    [
        "t is boolean and not (1 is boolean)",
        "ctx.n is defined and nope is undefined and nope.a.b is not defined",
        "ctx.null is none and ctx.n is not none and ctx.null is defined",
        "9 is divisibleby 3 and 9 is divisibleby(3)",
        "1 is eq 1 and 1 is ne 2 and 1 is lt 2 and 1 is le 1 and 2 is gt 1 and 2 is ge 2 and 1 is equalto(1)",
        "1 is lessthan 2 and 2 is greaterthan 1",
        "2 is even and 3 is odd",
        "t is true and not t is false",
        "f is float and 1 is integer and f is number and t is not number and t is not integer",
        "x is string and m is mapping and nums is sequence and m is iterable and m is not sequence",
        "1 is in nums and 'a' is lower and 'A' is upper",
    ],
)
def test_tests(expression: str) -> None:
    assert render("{{ " + expression + " }}", SCOPE) is True


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{% if ctx.n > 2 %}a{% elif t %}b{% else %}c{% endif %}", "a"),
        ("{% if ctx.n > 9 %}a{% elif t %}b{% else %}c{% endif %}", "b"),
        ("{% if ctx.n > 9 %}a{% elif not t %}b{% else %}c{% endif %}", "c"),
        ("{% for n in nums %}{{ n }}{% if not loop.last %},{% endif %}{% endfor %}", "3,1,2"),
        (
            "{% for n in nums if n > 1 %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.length }} {% endfor %}",
            "10true2 21false2 ",
        ),
        ("{% for n in empty %}x{% else %}none{% endfor %}", "none"),
        ("{% for n in nums if n > 9 %}x{% else %}none{% endfor %}", "none"),
        ("{% for k, v in m.items() %}{{ k }}={{ v }};{% endfor %}", "b=1;a=2;"),
        ("{% for k in m %}{{ k }}{% endfor %}", "ba"),
        ("{% set a = 1 %}{% set b, c = nums[:2] %}{{ a + b + c }}", "5"),
        ("{% set a = 1 %}{% for n in nums %}{% set a = n %}{% endfor %}{{ a }}", "1"),
        (
            "{% for n in nums %}{% for n in words %}{{ loop.index }}{% endfor %}{{ n }}{{ loop.index }} {% endfor %}",
            "123431 123412 123423 ",
        ),
        ("{% if t %}{% set a = 5 %}{% endif %}{{ a }}", "5"),
        ("{% for x in x %}{{ x }}.{% endfor %}{{ x }}", "0.0.7.007"),
        ("a {%- if t -%} b {%- endif -%} c", "abc"),
    ],
)
def test_statements(template: str, expected: str) -> None:
    assert render(template, SCOPE) == expected


@pytest.mark.parametrize(
    ("template", "expression", "missing"),
    [
        ("{{ nope }}", "nope", "nope"),
        ("{{ nope.b.c }}", "nope.b.c", "nope"),
        ("{{ ctx.nope.deep }}", "ctx.nope.deep", "ctx.nope"),
        ("{{ ctx.n.real }}", "ctx.n.real", "ctx.n.real"),
        ("{{ ctx.null.a }}", "ctx.null.a", "ctx.null.a"),
        ("{{ nums[7] }}", "nums[7]", "nums[7]"),
        ("{{ ctx['a b'] }}", "ctx['a b']", "ctx['a b']"),
        ("text {{ nope }}", "nope", "nope"),
        ("{{ nope == 1 }}", "nope", "nope"),
        ("{{ nope + 1 }}", "nope", "nope"),
        ("{{ nope | upper }}", "nope", "nope"),
        ("{{ nope and 1 }}", "nope", "nope"),
        ("{{ not nope }}", "nope", "nope"),
        ("{{ 1 if nope else 2 }}", "nope", "nope"),
        ("{{ [nope] }}", "nope", "nope"),
        ("{{ {'a': nope} }}", "nope", "nope"),
        ("{{ range(nope) }}", "nope", "nope"),
        ("{{ 'a'.replace(nope, 'b') }}", "nope", "nope"),
        ("{{ nope.strip() }}", "nope", "nope"),
        ("{{ nums[nope] }}", "nope", "nope"),
        ("{{ nope is none }}", "nope", "nope"),
        ("{% for a in nope %}{% endfor %}", "nope", "nope"),
        ("{% if nope %}{% endif %}", "nope", "nope"),
        ("{% set a = nope %}", "nope", "nope"),
        ("{{ 1 in nope }}", "nope", "nope"),
        ("{{ 1 ~ nope }}", "nope", "nope"),
        ("{{ fetch.items | map(attribute='nope') }}", "nope", "nope"),
        ("{{ empty | first }}", "first item of an empty list", "first item of an empty list"),
    ],
)
def test_using_what_is_undefined_is_an_error_that_names_it(
    template: str, expression: str, missing: str
) -> None:
    with pytest.raises(UndefinedError) as caught:
        render(template, SCOPE)
    assert (caught.value.expression, caught.value.missing) == (expression, missing)
    assert caught.value.code == "TEMPLATE_UNDEFINED"
    assert caught.value.template == template


def test_an_undefined_name_is_found_in_the_text() -> None:
    with pytest.raises(UndefinedError) as caught:
        render("first\n  {{ ctx.nope }}", SCOPE)
    assert (caught.value.line, caught.value.column) == (2, 6)


@pytest.mark.parametrize(
    ("template", "kind", "words"),
    [
        ("{{ a", TemplateSyntaxError, "end of template"),
        ("{{ a }", TemplateSyntaxError, "}"),
        ("{% if a %}", TemplateSyntaxError, "endif"),
        ("{{ a = 1 }}", TemplateSyntaxError, "=="),
        ("{{ a && b }}", TemplateSyntaxError, "and"),
        ("{{ a | uper }}", TemplateSyntaxError, "did you mean 'upper'"),
        ("{{ a is defind }}", TemplateSyntaxError, "did you mean 'defined'"),
        ("{{ a | map('uper') }}", TemplateSyntaxError, "did you mean 'upper'"),
        ("{{ a | select('evn') }}", TemplateSyntaxError, "did you mean 'even'"),
        ("{{ a | round(1, 2, 3) }}", TemplateSyntaxError, "round"),
        ("{{ a | upper(value=1) }}", TemplateSyntaxError, "upper"),
        ("{{ rnge(3) }}", ForbiddenError, "did you mean 'range'"),
        ("{{ a.uper() }}", ForbiddenError, "did you mean 'upper'"),
        ("{{ a | attr('b') }}", ForbiddenError, "attr"),
        ("{{ a | format(1) }}", ForbiddenError, "format"),
        ("{{ a is sameas b }}", ForbiddenError, "sameas"),
        ("{{ 'a'.format(1) }}", ForbiddenError, "format"),
        ("{{ a(1) }}", ForbiddenError, "function 'a'"),
        ("{{ a.b.c()() }}", ForbiddenError, "cannot be called"),
        ("{{ a['upper']() }}", ForbiddenError, "cannot be called"),
        ("{{ range(*a) }}", ForbiddenError, "arguments"),
        ("{{ a[1, 2] }}", ForbiddenError, "index"),
        ("{% macro a() %}{% endmacro %}", ForbiddenError, "macro"),
        ("{% include 'a' %}", ForbiddenError, "include"),
        ("{% import 'a' as b %}", ForbiddenError, "import"),
        ("{% from 'a' import b %}", ForbiddenError, "import"),
        ("{% extends 'a' %}", ForbiddenError, "extends"),
        ("{% block a %}{% endblock %}", ForbiddenError, "block"),
        ("{% filter upper %}a{% endfilter %}", ForbiddenError, "filter"),
        ("{% call a() %}{% endcall %}", ForbiddenError, "call"),
        ("{% autoescape true %}{% endautoescape %}", ForbiddenError, "autoescape"),
        ("{% with a = 1 %}{% endwith %}", ForbiddenError, "with"),
        ("{% set a %}x{% endset %}", ForbiddenError, "set block"),
        ("{% set a.b = 1 %}", ForbiddenError, "names"),
        ("{% for a in b recursive %}{% endfor %}", ForbiddenError, "recursive"),
        ("{% do a %}", TemplateSyntaxError, "do"),
        ("{{ 1e999 }}", TemplateSyntaxError, "large"),
        ("{{ 99999999999999999999 }}", LimitError, "bits"),
        ("{{ " + "9" * 5000 + " }}", TemplateError, ""),
        ("{{ " + "(" * 500 + "1" + ")" * 500 + " }}", LimitError, "nested"),
        ("{{ " + "not " * 5000 + "1 }}", LimitError, "nested"),
        ("{{ 1" + " + 1" * 500 + " }}", LimitError, "nested"),
        ("{% if 1 %}" * 400 + "{% endif %}" * 400, LimitError, "nested"),
    ],
)
def test_what_does_not_belong_is_refused_when_it_is_parsed(
    template: str, kind: type[TemplateError], words: str
) -> None:
    with pytest.raises(kind) as caught:
        parse(template)
    assert words in str(caught.value)
    assert caught.value.line is not None
    assert caught.value.column is not None


def test_a_syntax_error_says_where() -> None:
    with pytest.raises(TemplateSyntaxError) as caught:
        parse("ok\n  {{ a | uper }}")
    assert (caught.value.line, caught.value.column) == (2, 10)


@pytest.mark.parametrize(
    "expression",
    [
        "1 + 'a'",
        "none + 1",
        "'a' - 1",
        "[1] + 1",
        "1 < 'a'",
        "none < 1",
        "[1] < [2]",
        "1 / 0",
        "1 % 0",
        "1 // 0",
        "0 ** -1",
        "(-8) ** 0.5",
        "10.0 ** 400",
        "1e308 * 10",
        "1 in 5",
        "1 in 'a'",
        "{1: 2}",
        "m[1.5]",
        "nums[1:'a']",
        "nums[::0]",
        "m[1:2]",
        "5 | length",
        "none | length",
        "5 | first",
        "[1, 'a'] | sort",
        "[[1], [2]] | sort",
        "'x' | fromjson",
        "'%%%' | b64decode",
        "'/w==' | b64decode",
        "'\\ud800' | sha256",
        "nums | batch(0)",
        "range(1, 2, 0)",
        "range('a')",
        "ctx.items()",
        "ctx.keys()",
        "ctx.n.upper()",
        "nums.upper()",
        "nums.index(9)",
        "'a'.split('')",
        "1.5 | round(99)",
        "m | map",
        "nums | map('default', 1)",
        "now()",
        "5 | join",
        "3 is divisibleby 0",
        "'a' is even",
        "'a' | identifier | get('a')",
        "'' | identifier",
    ],
)
def test_operations_that_do_not_apply_fail(expression: str) -> None:
    with pytest.raises(FailedError):
        render("{{ " + expression + " }}", SCOPE)


def test_formatting_text_with_percent_is_forbidden() -> None:
    with pytest.raises(ForbiddenError):
        render("{{ '%s' % ctx.n }}", SCOPE)


def test_values_that_are_not_plain_data_are_refused() -> None:
    for value in (object(), b"x", {1, 2}, print):
        for template in ("{{ v }}", "a{{ v }}", "{{ [v] }}", "{{ v | upper }}", "{{ v.x.y }}"):
            with pytest.raises(TemplateError):
                render(template, {"v": value})
    with pytest.raises(FailedError):
        render("{{ v }}", {"v": {1: 2}})


def test_tuples_and_mappings_count_as_lists_and_maps() -> None:
    from types import MappingProxyType

    scope = {"v": (1, (2,)), "p": MappingProxyType({"a": 1})}
    assert render("{{ v }}", scope) == [1, [2]]
    assert render("{{ p.a + v[0] }}", scope) == 2
    assert is_same(render("{{ p }}", scope), {"a": 1})
    assert render("{{ p.items() }}", scope) == [["a", 1]]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (True, True),
        (False, False),
        (None, False),
        (0, False),
        (2, True),
        ("true", True),
        ("FALSE", False),
        (" Yes ", True),
        ("no", False),
        ("1", True),
        ("0", False),
        ("", False),
        ("other", True),
        ("{{ ctx.n > 2 }}", True),
        ("{{ 'false' }}", False),
        ("{{ ctx.n }} ", True),
        ("{{ empty }}", False),
        ("{{ ctx.null }}", False),
        ("{% if t %}no{% endif %}", False),
        ("{{ {'a': 0} }}", True),
    ],
)
def test_guards(value: Any, expected: bool) -> None:
    assert evaluate_guard(value, SCOPE) is expected


def test_a_guard_on_something_undefined_is_an_error() -> None:
    with pytest.raises(UndefinedError):
        evaluate_guard("{{ nope > 1 }}", SCOPE)


def test_structures_are_rendered_with_their_keys() -> None:
    value = {
        "{{ ctx.name }}": ["{{ ctx.n }}", {"deep": "n={{ ctx.n }}"}],
        "k": 5,
        "t": ("{{ x }}",),
        "none": None,
    }
    assert render_value(value, SCOPE) == {
        "Ann": [3, {"deep": "n=3"}],
        "k": 5,
        "t": ["007"],
        "none": None,
    }
    with pytest.raises(FailedError):
        render_value({"Ann": 1, "{{ ctx.name }}": 2}, SCOPE)
    with pytest.raises(FailedError):
        render_value({"{{ ctx.items }}": 1}, SCOPE)


def test_an_error_says_which_part_of_a_structure_it_is_in() -> None:
    with pytest.raises(UndefinedError) as found:
        render_value({"fine": 1, "rows": ["{{ ctx.n }}", {"{{ ctx.name }}": "{{ nope }}"}]}, SCOPE)
    assert found.value.path == ".rows[1].{{ ctx.name }}"


@pytest.mark.parametrize("limits", [SERVER_LIMITS, WORKER_LIMITS])
@pytest.mark.parametrize(
    "template",
    [
        "{{ 'x' * 300000000 }}",
        "{{ 2 ** 10 ** 8 }}",
        "{{ 2 ** (10 ** 8) }}",
        "{{ 9999999999 * 9999999999 }}",
        "{{ range(100000000000) }}",
        "{{ range(9223372036854775807, -9223372036854775807, -1) }}",
        "{{ [0] * 1000000000 }}",
        "{{ ((((([0] * 1000) * 1000) * 1000) * 1000) * 1000) }}",
        "{{ [[[[[[0] * 1000] * 1000] * 1000] * 1000] * 1000] * 1000 }}",
        "{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}",
        "{{ 'a' | indent(1000000000, true) }}",
        "{{ [1] | batch(1000000000, 0) }}",
        "{{ [1] | slice(1000000000) }}",
        "{{ 'a'.zfill(1000000000) }}",
        "{{ ('a' * 50000) | replace('a', 'b' * 50000) }}",
        "{{ ('a' * 60000).replace('', 'b' * 60000) }}",
        "{{ ('x' * 60000) | list | join('y' * 60000) }}",
        "{{ ('f' * 500) | int(base=16) }}",
        "{{ 1e300 | int }}",
        "{% set a = [1, 1] %}" + "{% set a = [a, a] %}" * 60 + "{{ a }}",
        "{% set a = [1, 1] %}" + "{% set a = [a, a] %}" * 60 + "{{ a == a }}",
        "{% set a = 'xx' %}" + "{% set a = a ~ a %}" * 60 + "{{ a | length }}",
    ],
)
def test_expensive_templates_fail_and_stay_small(template: str, limits: RenderLimits) -> None:
    parse(template)
    tracemalloc.start()
    try:
        with pytest.raises(LimitError) as caught:
            render(
                template,
                {},
                limits=RenderLimits(
                    min(limits.operations, 200_000), limits.text, min(limits.items, 200_000)
                ),
            )
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert caught.value.code == "TEMPLATE_LIMIT"
    assert peak < (4_000_000 if limits is SERVER_LIMITS else 300_000_000)


def test_counting_is_the_same_every_time() -> None:
    template = "{% for a in range(100) %}{{ a }}{{ words | sort | join }}{% endfor %}"

    def fits(operations: int) -> bool:
        try:
            render(template, SCOPE, limits=RenderLimits(operations, 10_000, 1000))
        except LimitError:
            return False
        return True

    needed = bisect_left(range(20_000), True, key=fits)
    assert needed > 1000
    assert all(fits(needed) and not fits(needed - 1) for _ in range(3))


def test_functions_come_from_outside_and_repeat() -> None:
    functions = DerivedFunctions("event-1", "2024-01-01T00:00:00Z")
    template = "{{ [now(), uuid(), uuid(), random()] }}"
    first, again = (render(template, {}, functions=functions) for _ in range(2))
    assert first == again
    assert first[0] == "2024-01-01T00:00:00Z"
    assert first[1] != first[2]
    assert str(UUID(first[1])) == first[1]
    assert UUID(first[1]).version == 4
    assert 0 <= first[3] < 1
    assert render("{{ uuid() }}", {}, functions=functions.derive_functions("a")) != render(
        "{{ uuid() }}", {}, functions=functions
    )
    two = render_value(["{{ uuid() }}", "{{ uuid() }}"], {}, functions=functions)
    assert two[0] != two[1]


@dataclass
class Remote:
    """A lazy value that counts how it was asked; without data it asks for it."""

    data: Any = None
    here: bool = True
    whole: int = 0

    def _data(self) -> Any:
        if not self.here:
            raise NeedsData("ref-1")
        return self.data

    def read_member(self, name: str) -> Any:
        if not isinstance(self._data(), Mapping):
            raise KeyError(name)
        return self._data()[name]

    def read_item(self, index: int | slice) -> Any:
        return self._data()[index]

    def read_length(self) -> int:
        return len(self._data())

    def load_plain(self) -> Any:
        self.whole += 1
        return self._data()


def test_parts_of_lazy_values_are_asked_for_without_resolving_them() -> None:
    remote = Remote({"rows": Remote([{"id": 5}, {"id": 6}]), "n": 1, "items": "mine"})
    scope = {"fetch": remote}
    for expression, expected in [
        ("fetch.n", 1),
        ("fetch['n']", 1),
        ("fetch.rows[1].id", 6),
        ("fetch.rows[:1]", [{"id": 5}]),
        ("fetch.rows | length", 2),
        ("(fetch.rows | first).id + (fetch.rows | last).id", 11),
        ("fetch | get('n')", 1),
        ("fetch.items", "mine"),
        ("fetch.nope is defined", False),
        ("fetch.nope.deeper | default(7)", 7),
        ("fetch.rows[9] is defined", False),
    ]:
        assert render("{{ " + expression + " }}", scope) == expected, expression
    assert remote.whole == 0
    assert remote.data["rows"].whole == 0


def test_lazy_values_are_resolved_when_used_whole() -> None:
    rows = Remote([{"id": 5}, {"id": 6}])
    scope = {"fetch": Remote({"rows": rows}), "list": [rows, 1], "n": Remote(4), "ctx": {"r": rows}}
    for template, expected in [
        ("{{ fetch }}", {"rows": [{"id": 5}, {"id": 6}]}),
        ("{{ fetch.rows | map(attribute='id') | sum }}", 11),
        ("{% for row in fetch.rows %}{{ row.id }};{% endfor %}", "5;6;"),
        ("{{ list }}", [[{"id": 5}, {"id": 6}], 1]),
        ("{{ [fetch.rows] == [[{'id': 5}, {'id': 6}]] }}", True),
        ("{{ fetch.rows == [{'id': 5}, {'id': 6}] }}", True),
        ("{{ n + 1 }}", 5),
        ("{{ 'y' if fetch.rows else 'n' }}", "y"),
        ("{{ {'id': 5} in fetch.rows }}", True),
        ("{{ fetch.keys() }}", ["rows"]),
        ("x{{ ctx }}", 'x{"r":[{"id":5},{"id":6}]}'),
        ("{{ rows.nope is defined }}", False),
    ]:
        assert render(template, scope) == expected, template
    assert evaluate("{{ fetch.rows }}", scope) is rows
    assert render("{{ fetch.rows }}", scope) == rows.data


def test_a_request_for_data_passes_through_and_evaluating_again_works() -> None:
    remote = Remote([1, 2], here=False)
    for template in (
        "{{ r | length }}",
        "{{ r | sum }}",
        "{{ r[0] | default(9) }}",
        "a{% for x in r %}{{ x }}{% endfor %}",
    ):
        with pytest.raises(NeedsData) as caught:
            render(template, {"r": remote})
        assert caught.value.request == "ref-1"
    remote.here = True
    assert render("a{% for x in r %}{{ x }}{% endfor %}", {"r": remote}) == "a12"


def test_marked_text_holds_no_value() -> None:
    template = (
        "select {{ col | identifier }} from t where a = {{ x }} and b in ({% for n in nums %}{{ n }}"
        "{% if not loop.last %}, {% endif %}{% endfor %}) {{ 'limit 1' | sql }} {{ x | identifier | upper }}"
    )
    text, marks = render_marked(template, {"col": 'a"b', "x": "'; drop", "nums": [1, 2]})
    assert [(mark.value, mark.kind) for mark in marks] == [
        ('a"b', "identifier"),
        ("'; drop", "value"),
        (1, "value"),
        (2, "value"),
        ("limit 1", "sql"),
        ('"\'; DROP"', "value"),
    ]
    for mark in marks:
        assert text.count(mark.marker) == 1
        text = text.replace(mark.marker, "?")
    assert text == "select ? from t where a = ? and b in (?, ?) ? ?"


def test_markers_avoid_what_the_author_wrote() -> None:
    text, marks = render_marked("\ue0000\ue000 {{ x }}", {"x": 1})
    assert text.count(marks[0].marker) == 1
    assert render_marked("select 1", {}) == ("select 1", [])


def test_templates_are_parsed_once_and_equal_by_source() -> None:
    assert parse("{{ a }}") is parse("{{ a }}")
    assert hash(parse("{{ a }}")) == hash(parse("{{ a }}"))
    assert parse("a").is_literal
    assert not parse("{{ a }}").is_literal
    assert isinstance(parse("{{ a }}"), Template)
    big = "{{ a }}" + "x" * 20_000
    assert parse(big) == parse(big)


def test_integers_beyond_64_bits_pass_but_are_not_computed_with() -> None:
    scope = {"big": 2**70}
    assert render("{{ big }}", scope) == 2**70
    assert render("n={{ big }}", scope) == f"n={2**70}"
    assert render("{{ [big] | tojson }}", scope) == f"[{2**70}]"
    with pytest.raises(LimitError):
        render("{{ big + 1 }}", scope)


ABSENT = {
    "error": NO_ERROR,
    "output": OptionalMap({"status": "ok"}, "error"),
    "a": Undefined("a", "a", "step"),
    "b": {"x": 2},
}


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("'yes' if error else 'no'", "no"),
        ("not error", True),
        ("not output.error.retryable", True),
        ("output['error'].code is defined", False),
        ("error.code | default('none')", "none"),
        ("error.code == 'X'", False),
        ("error.code != 'X'", True),
        ("error.http_status >= 500", False),
        ("error.code in ['X']", False),
        ("error.code not in ['X']", True),
        ("output.error.code == 'X' or output.status == 'ok'", True),
        ("a.x if a else b.x", 2),
        ("b.x if not a.x else 0", 2),
        ("output | tojson", '{"status":"ok"}'),
        ("'error' in output", False),
    ],
)
def test_absent_value_is_false_in_a_truth_test(expression: str, value: Any) -> None:
    assert render(f"{{{{ {expression} }}}}", ABSENT) == value


@pytest.mark.parametrize(
    "expression", ["error", "error.code", "output.error.retryable", "a", "a.x", "error and b.x"]
)
def test_absent_value_is_false_as_a_guard(expression: str) -> None:
    assert evaluate_guard(f"{{{{ {expression} }}}}", ABSENT) is False


@pytest.mark.parametrize(
    "expression", ["error.code", "error.code ~ 'x'", "a.x", "a.x == 2", "a.x > 1", "error and 1"]
)
def test_absent_value_cannot_be_used(expression: str) -> None:
    with pytest.raises(UndefinedError):
        render(f"{{{{ {expression} }}}}", ABSENT)


@pytest.mark.parametrize(
    "expression", ["nothing", "b.nothing", "not b.nothing", "output.nothing", "a.x > 1", "a.x + 1"]
)
def test_name_that_nobody_knows_is_an_error_in_a_guard(expression: str) -> None:
    with pytest.raises(UndefinedError):
        evaluate_guard(f"{{{{ {expression} }}}}", ABSENT)
