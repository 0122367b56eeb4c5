"""Values in Spark SQL are parameters, wherever they stand."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noetl.spark.step.statements import SparkStatement, parse_spark_expressions, parse_spark_sql
from noetl.tools.sql.statements import SqlError
from tests.rendering import render_marked

HOSTILE = "x' or \"1\" = `1` \\' -- ; drop table users /*"


def read(template: str, **names: Any) -> list[tuple[str, list[Any]]]:
    found = parse_spark_sql(*render_marked(template, names))
    return [(" ".join(each.text.split()), list(each.values.values())) for each in found]


def test_a_value_is_a_parameter() -> None:
    assert read("select {{ x }}, {{ y }} from t", x=1, y=[1, 2]) == [
        ("select :noetl_1 , :noetl_2 from t", [1, [1, 2]]),
    ]


@pytest.mark.parametrize("quote", ["'", '"'])
def test_a_literal_around_a_value_becomes_one_parameter(quote: str) -> None:
    assert read(f"select {quote}a {{{{ x }}}} b{quote}", x=HOSTILE) == [
        ("select :noetl_1", [f"a {HOSTILE} b"])
    ]


def test_names_are_quoted() -> None:
    assert read("select {{ x | identifier }}, `t_{{ x }}`", x="a`b") == [
        ("select `a``b`, `t_a``b`", [])
    ]
    assert read("from {{ x | identifier }}", x=["db", "t"]) == [("from `db`.`t`", [])]


def test_text_goes_in_only_when_it_is_asked_for() -> None:
    assert read("select {{ x | sql }}", x="1 + 1") == [("select 1 + 1", [])]


def test_statements_end_at_semicolons_that_are_not_quoted() -> None:
    source = "select ';' as a; -- one; {{ x }}\nselect \"it\\\"s;\" /* ; {{ x }} */ , `;`, r'\\';; select {{ x }}"
    assert read(source, x=7) == [
        ("select ';' as a", []),
        ('select "it\\"s;" , `;`, r\'\\\'', []),
        ("select :noetl_1", [7]),
    ]


@pytest.mark.parametrize(
    ("template", "value", "code"),
    [
        ("select {{ x }}", {"a": 1}, "SQL_VALUE"),
        ("select 'a\\n{{ x }}'", 1, "SQL_VALUE"),
        ("{{ x | identifier }}", 1, "SQL_NAME"),
    ],
)
def test_what_cannot_be_a_parameter_is_refused(template: str, value: Any, code: str) -> None:
    with pytest.raises(SqlError) as refused:
        read(template, x=value)
    assert refused.value.failure.code == code


@given(
    st.text(),
    st.sampled_from(
        ["select {{ x }}", "select '{{ x }}'", 'select "{{ x }}"', "select 1 -- {{ x }}\n"]
    ),
)
def test_no_value_becomes_text(value: str, template: str) -> None:
    (one,) = parse_spark_sql(*render_marked(template, {"x": value}))
    plain = parse_spark_sql(*render_marked(template, {"x": "plain"}))[0]
    assert one.text == plain.text
    assert list(one.values.values()) in ([value], [])


def test_nothing_is_no_statement() -> None:
    assert parse_spark_sql(" ; -- nothing\n ;") == []
    assert parse_spark_sql("select 1") == [SparkStatement("select 1", {})]


def test_a_hint_is_no_comment() -> None:
    assert read("select /*+ broadcast(t) */ {{ x }} from t /* why */", x=1) == [
        ("select /*+ broadcast(t) */ :noetl_1 from t", [1])
    ]


@pytest.mark.parametrize(
    ("template", "text", "value"),
    [
        ("select date '{{ x }}'", "select CAST( :noetl_1 AS date)", "3"),
        ("select TIMESTAMP '{{ x }}' as a", "select CAST( :noetl_1 AS TIMESTAMP) as a", "3"),
        ("select a - interval '{{ x }} days'", "select a - CAST( :noetl_1 AS interval)", "3 days"),
        (
            "select a - interval '{{ x }}' day, 1",
            "select a - CAST( :noetl_1 AS interval day), 1",
            "3",
        ),
        ("""select '{{ x | replace("'", "''") }}'""", "select :noetl_1", "3"),
    ],
)
def test_a_typed_literal_is_a_cast(template: str, text: str, value: str) -> None:
    assert read(template, x="3") == [(text, [value])]


def test_quotes_doubled_by_hand_are_not_stored() -> None:
    assert read("""select '{{ x | replace("'", "''") }}'""", x="O'B") == [
        ("select :noetl_1", ["O'B"])
    ]


@pytest.mark.parametrize(
    "template", ["select * from {{ x }}", "{{ x }}", "select 1 from t order by {{ x }}"]
)
def test_a_value_that_would_be_a_name_is_refused(template: str) -> None:
    with pytest.raises(SqlError) as refused:
        read(template, x="a")
    assert refused.value.failure.code == "SQL_PLACE"


def test_an_expression_may_begin_with_a_value() -> None:
    [found] = parse_spark_expressions(*render_marked("{{ x }} < total", {"x": 1}))
    assert (found.text, found.values) == (":noetl_1  < total", {"noetl_1": 1})
