"""Templates over generated expressions and data: pure, repeatable, bounded, and the same however they are cut."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from noetl.template.errors import LimitError, TemplateError
from noetl.template.limits import SERVER_LIMITS, RenderLimits
from noetl.template.model import Selection
from noetl.template.parsing import parse, parse_expression
from noetl.template.selections import cut_template
from noetl.template.unparsing import quote_literal, unparse
from noetl.template.used_names import find_names
from tests.examples import count_examples
from tests.rendering import (
    compute_selection,
    evaluate_guard,
    probe,
    render,
    render_marked,
    render_value,
)

FEW = settings(max_examples=count_examples(40), deadline=None)

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4)
    ),
    max_leaves=12,
)
keys = st.sampled_from(["n", "items", "list", "name", "missing", "deep"])
small = (
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.sampled_from(["", "a", "Ab c", "3"])
    | st.just(1.5)
)
nested = st.recursive(
    small,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=8,
)
scopes = st.fixed_dictionaries(
    {
        "fetch": st.dictionaries(keys, nested, max_size=4),
        "a": nested,
        "ctx": st.dictionaries(keys, nested, max_size=4),
        "workload": st.dictionaries(keys, nested, max_size=3),
    }
)
roots = st.sampled_from(["fetch", "a", "ctx", "workload", "nowhere"])
constants = st.sampled_from(
    ["1", "0", "2.5", "'a'", "''", "true", "none", "'it\\'s'", "[]", "{}", "-3"]
)


def _compounds(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.builds("{}.{}".format, roots, keys),
        st.builds("({}).{}".format, inner, keys),
        st.builds("({})[{}]".format, inner, inner),
        st.builds("({})[{}:]".format, inner, constants),
        st.builds(
            "({}) {} ({})".format,
            inner,
            st.sampled_from("+ - * / // % ** and or == != < >= in".split()),
            inner,
        ),
        st.builds("({}) not in ({})".format, inner, inner),
        st.builds("({}) < ({}) <= ({})".format, inner, inner, inner),
        st.builds("({}) ~ ({})".format, inner, inner),
        st.builds("not ({})".format, inner),
        st.builds("-({})".format, inner),
        st.builds("({}) if ({}) else ({})".format, inner, inner, inner),
        st.builds("[{}, {}]".format, inner, inner),
        st.builds("{{'k': {}}}".format, inner),
        st.builds("({}) | default({})".format, inner, inner),
        st.builds(
            "({}) | {}".format,
            inner,
            st.sampled_from(
                "length first last list sort unique sum join tojson upper int float keys values items max reverse".split()
            ),
        ),
        st.builds("({}) | map(attribute='n', default={})".format, inner, inner),
        st.builds(
            "({}) is {}".format,
            inner,
            st.sampled_from(["defined", "none", "string", "number", "eq 1", "in [1]"]),
        ),
        st.builds(
            "({}).{}()".format, inner, st.sampled_from(["items", "upper", "keys", "split", "strip"])
        ),
        st.builds("({}).get({}, {})".format, inner, inner, inner),
        st.builds("range({})".format, inner),
    )


expressions = st.recursive(
    constants | roots | st.builds("{}.{}".format, roots, keys), _compounds, max_leaves=8
)
templates = st.one_of(
    expressions.map("{{{{ {} }}}}".format),
    st.builds("n={{{{ {} }}}}, {{{{ {} }}}}".format, expressions, expressions),
    st.builds(
        "{{% if ({}) %}}{{{{ {} }}}}{{% else %}}{{{{ {} }}}}{{% endif %}}".format,
        expressions,
        expressions,
        expressions,
    ),
    st.builds(
        "{{% for x in ({}) %}}{{{{ x }}}}{{{{ {} }}}}{{% endfor %}}".format,
        expressions,
        expressions,
    ),
    st.builds("{{% set x = {} %}}{{{{ x }}}}{{{{ [x, {}] }}}}".format, expressions, expressions),
)


def outcome(run: Any) -> tuple[str, Any]:
    """A value with its type (1, 1.0 and true differ), or the code of the error."""
    try:
        value = run()
    except TemplateError as exc:
        return "error", exc.code
    return type(value).__name__, repr(value)


@FEW
@given(st.text())
def test_any_text_passes_through_unchanged(text: str) -> None:
    assert render("{{ x }}", {"x": text}) == text
    assert render("{{ x }}{{ x }}", {"x": text}) == text + text
    assert render("{{ " + quote_literal(text) + " }}", {}) == text


@FEW
@given(values)
def test_any_value_passes_through_unchanged(value: Any) -> None:
    assert outcome(lambda: render("{{ x }}", {"x": value})) == outcome(lambda: value)
    if isinstance(value, (list, dict)):
        assert render("{{ x | tojson | fromjson }}", {"x": value}) == value


@FEW
@given(templates, scopes)
def test_rendering_changes_nothing_and_repeats(template: str, scope: dict[str, Any]) -> None:
    before = copy.deepcopy(scope)
    first = outcome(lambda: render(template, scope))
    assert outcome(lambda: render(template, scope)) == first
    assert repr(scope) == repr(before)


class Trap:
    """An object that tells when anything but its type is looked at."""

    def __getattribute__(self, name: str) -> Any:
        if name != "__class__":  # isinstance asks for it
            raise AssertionError(f"{name} was touched")
        return object.__getattribute__(self, name)


@FEW
@given(templates)
def test_foreign_objects_are_never_touched(template: str) -> None:
    trap: Any = Trap()
    scope = {"fetch": trap, "a": [trap], "ctx": {"n": trap, "items": [trap]}, "workload": trap}
    kind, _ = outcome(lambda: render(template, scope))
    assert kind in {"error", "str", "int", "float", "bool", "NoneType", "list", "dict"}


@FEW
@given(templates, scopes)
def test_only_the_names_it_declares_are_used(template: str, scope: dict[str, Any]) -> None:
    used = {name: value for name, value in scope.items() if name in find_names(template)}
    assert outcome(lambda: render(template, used)) == outcome(lambda: render(template, scope))


@FEW
@given(expressions, scopes)
def test_canonical_text_means_the_same(expression: str, scope: dict[str, Any]) -> None:
    tree = parse_expression(expression).expression
    assert tree is not None
    text = unparse(tree)
    again = parse_expression(text).expression
    assert again == tree
    assert outcome(lambda: probe("{{ " + text + " }}", scope)) == outcome(
        lambda: probe("{{ " + expression + " }}", scope)
    )


@settings(max_examples=count_examples(80), deadline=None)
@given(templates, scopes)
def test_cutting_changes_no_result(template: str, scope: dict[str, Any]) -> None:
    made = cut_template(template, own=None, steps=["fetch", "a"], stable=["workload"])
    if made.needs_worker:
        assert made.template == parse(template)
        return
    rest = {name: value for name, value in scope.items() if name not in ("fetch", "a")}
    assert not made.names & {"fetch", "a"}

    def compute_value(selection: Selection) -> Any:
        return compute_selection(
            selection, {"workload": scope["workload"], selection.step: scope[selection.step]}
        )

    whole = outcome(lambda: render(template, scope))
    assert outcome(lambda: render(made.template, rest, selected=compute_value)) == whole


@FEW
@given(templates, scopes, st.integers(0, 200), st.integers(0, 50), st.integers(0, 20))
def test_a_smaller_budget_only_ever_refuses(
    template: str, scope: dict[str, Any], operations: int, text: int, items: int
) -> None:
    limits = RenderLimits(operations, text, items)
    bounded = outcome(lambda: render(template, scope, limits=limits))
    assert bounded == ("error", LimitError.code) or bounded == outcome(
        lambda: render(template, scope)
    )
    if bounded[0] == "str" and "{{ x" not in template and parse(template).expression is None:
        assert len(render(template, scope, limits=limits)) <= text


@FEW
@given(values | templates, scopes)
def test_guards_give_a_verdict_or_an_error(value: Any, scope: dict[str, Any]) -> None:
    try:
        assert evaluate_guard(value, scope) in (True, False)
    except TemplateError:
        assert isinstance(value, str)


@FEW
@given(templates, scopes)
def test_marked_text_is_the_text_with_markers(template: str, scope: dict[str, Any]) -> None:
    try:
        text, marks = render_marked(template, scope)
        whole = render(template, scope)
    except TemplateError:
        return
    for mark in marks:
        assert text.count(mark.marker) == 1
        text = text.replace(mark.marker, render("x{{ v }}", {"v": mark.value})[1:])
    if parse(template).expression is None:
        assert text == whole


@FEW
@given(
    st.recursive(
        templates | small,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
        max_leaves=6,
    ),
    scopes,
)
def test_structures_render_to_plain_data(value: Any, scope: dict[str, Any]) -> None:
    kind, _ = outcome(lambda: render_value(value, scope, limits=SERVER_LIMITS))
    assert kind in {"error", "str", "int", "float", "bool", "NoneType", "list", "dict"}


@FEW
@given(st.text(alphabet="{}%#()[]|.'\"_ abcif\\0,:=~<>-", max_size=40))
def test_any_text_parses_or_is_refused(text: str) -> None:
    for source in (text, "{{" + text + "}}", "{% if " + text + " %}{% endif %}"):
        kind, _ = outcome(lambda source=source: render(source, {"a": 1}))
        assert kind in {"error", "str", "int", "float", "bool", "NoneType", "list", "dict"}
