"""Values in SQL are data: where markers stand, how statements are told apart, what rows look like."""

import time
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noetl.playbook.templates import render_marked
from noetl.results.values import to_json
from noetl.tools.sql import SqlError, column_names, identifier, statements


def bound(template: str, params: dict[str, Any] | None = None, **scope: Any) -> list[tuple[str, list[Any]]]:
    text, marks = render_marked(template, scope)
    found = [statement.bound() for statement in statements(text, marks, params)]
    return [(" ".join(query.split()), values) for query, values in found]


def one(template: str, params: dict[str, Any] | None = None, **scope: Any) -> tuple[str, list[Any]]:
    [found] = bound(template, params, **scope)
    return found


@pytest.mark.parametrize(
    ("template", "query", "values"),
    [
        ("SELECT {{ x }}", "SELECT $1", ["v"]),
        ("SELECT {{ x }}::text,{{ x }}", "SELECT $1 ::text, $2", ["v", "v"]),
        ("SELECT 'a {{ x }} b'", "SELECT $1", ["a v b"]),
        ("SELECT '{{ x }}'::text", "SELECT $1 ::text", ["v"]),
        ("SELECT 'it''s {{ x }}'", "SELECT $1", ["it's v"]),
        ("SELECT '{{ n }}'", "SELECT $1", [None]),
        ("SELECT '<{{ n }}>'", "SELECT $1", ["<null>"]),
        ("SELECT '{{ m | tojson }}'::jsonb", "SELECT $1 ::jsonb", ['{"a":1}']),
        ("SELECT $$a {{ x }}$$", "SELECT $1", ["a v"]),
        ("SELECT $q$ ' {{ x }} $q$", "SELECT $1", [" ' v "]),
        ("SELECT * FROM {{ t | identifier }}", 'SELECT * FROM "a ""b"""', []),
        ("SELECT * FROM {{ ['s', t] | identifier }}", 'SELECT * FROM "s"."a ""b"""', []),
        ('SELECT "c_{{ t }}"', 'SELECT "c_a ""b"""', []),
        ("SELECT {{ raw | sql }}", "SELECT 1 + ';'", []),
        ("SELECT 1 -- {{ x }}\n", "SELECT 1", []),
        ("SELECT 1 /* {{ x }} */ + 1", "SELECT 1 + 1", []),
        ("SELECT tab{{ i }}le{{ i }}2", "SELECT tab $1 le $2 2", [7, 7]),
        ("SELECT {{ l }}", "SELECT $1", [[1, [2]]]),
        ("SELECT $p, a$p, '$p', $p", "SELECT $1 , a$p, '$p', $2", [5, 5]),
        ("SELECT 0{% for k in l2 %}, {{ k }}{% endfor %}", "SELECT 0, $1 , $2", [1, 2]),
    ],
)  # fmt: skip
def test_where_a_value_may_stand(template: str, query: str, values: list[Any]) -> None:
    scope = {"x": "v", "n": None, "m": {"a": 1}, "t": 'a "b"', "raw": "1 + ';'", "i": 7, "l": [1, [2]], "l2": [1, 2]}
    assert one(template, {"p": 5}, **scope) == (query, values)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT 1; SELECT 2;", ["SELECT 1", "SELECT 2"]),
        (";;  ; -- nothing\n;/* here */", []),
        ("SELECT ';'; SELECT \";\"", ["SELECT ';'", 'SELECT ";"']),
        ("SELECT 'a'';b'; SELECT E'\\';'; SELECT U&';'", ["SELECT 'a'';b'", "SELECT E'\\';'", "SELECT U&';'"]),
        ("SELECT $$;$$; SELECT $a$ $$; $a$", ["SELECT $$;$$", "SELECT $a$ $$; $a$"]),
        ("SELECT 1 /* ; /* ; */ ; */; SELECT 2", ["SELECT 1 /* ; /* ; */ ; */", "SELECT 2"]),
        ("SELECT 1 -- ; it's\n; SELECT 2", ["SELECT 1 -- ; it's", "SELECT 2"]),
        ("SELECT a$b; SELECT name$;", ["SELECT a$b", "SELECT name$"]),
        ("SELECT 1 - -1; SELECT 4 / 2", ["SELECT 1 - -1", "SELECT 4 / 2"]),
    ],
)
def test_statements_are_told_apart(text: str, expected: list[str]) -> None:
    assert [statement.bound()[0].strip() for statement in statements(text)] == expected


@pytest.mark.parametrize(
    ("template", "code"),
    [
        ("SELECT {{ m }}", "SQL_VALUE"),
        ("SELECT {{ [m] }}", "SQL_VALUE"),
        ("SELECT E'{{ x }}'", "SQL_VALUE"),
        ("SELECT {{ 1 | identifier }}", "SQL_IDENTIFIER"),
        ("SELECT {{ '' | identifier }}", "SQL_IDENTIFIER"),
        ("SELECT $1", "SQL_PARAMETER"),
        ("SELECT $other", "SQL_PARAMETER"),
        ("SELECT 'open", "SQL_UNTERMINATED"),
        ('SELECT "open', "SQL_UNTERMINATED"),
        ("SELECT $$open", "SQL_UNTERMINATED"),
        ("SELECT /* /* */", "SQL_UNTERMINATED"),
        ("DO $$ BEGIN PERFORM '{{ x }}'; END $$", "SQL_VALUE_IN_BODY"),
        ("/* x */ DO 'BEGIN {{ x }} END'", "SQL_VALUE_IN_BODY"),
        ("CREATE OR REPLACE FUNCTION f() RETURNS int AS $$ SELECT {{ x }} $$ LANGUAGE sql", "SQL_VALUE_IN_BODY"),
        ("COPY t FROM PROGRAM 'cat {{ x }}'", "SQL_VALUE_IN_BODY"),
    ],
)
def test_what_is_refused(template: str, code: str) -> None:
    with pytest.raises(SqlError) as refused:
        bound(template, {"p": 1}, x="v", m={"a": 1})
    assert refused.value.failure.code == code


@given(
    st.text(),
    st.sampled_from(["{{ x }}", "'{{ x }}'", "'a''{{ x }}b'", "$$ {{ x }} $$", '"{{ x }}"', "/* {{ x }} */ 1"]),
)
def test_no_text_leaves_its_place(x: str, place: str) -> None:
    template = f"SELECT {place}; SELECT 2"
    if place == '"{{ x }}"' and (not x or "\0" in x):
        return
    first, second = bound(template, x=x)
    assert second == ("SELECT 2", [])
    if place == '"{{ x }}"':
        assert statements(identifier(x))[0].bound() == (identifier(x), [])
    else:
        assert "".join(first[0].split()) in ("SELECT$1", "SELECT1")


@given(st.text(alphabet="'\"$a;-/*\\E \n", max_size=60))
def test_any_text_is_split_once_and_for_all_or_refused(text: str) -> None:
    try:
        found = statements(text)
    except SqlError:
        return
    for statement in found:
        assert statements(statement.bound()[0]) == [statement]
    if ";" not in text and found:
        assert [statement.bound()[0] for statement in found] == [text]


@pytest.mark.parametrize("piece", ["'a' ", '"a" ', "$$a$$ ", "/* a */ ", "-- a\n", "a ; ", "/*", "$a", "'"])
def test_reading_takes_time_in_proportion(piece: str) -> None:
    def took(count: int) -> float:
        text, began = piece * count, time.process_time()
        with suppress(SqlError):
            statements(text)
        return time.process_time() - began

    assert min(took(8_000) for _ in range(3)) < 20 * min(took(2_000) for _ in range(3)) + 0.1


# ---- rows --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Decimal("1.50"), 1.5),
        (Decimal("3"), 3),
        (Decimal("0.1"), 0.1),
        (Decimal("12345678901234567890.123"), "12345678901234567890.123"),
        (Decimal("NaN"), "NaN"),
        (2**63, str(2**63)),
        (float("inf"), "inf"),
        (datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC), "2030-01-02T03:04:05+00:00"),
        (date(2030, 1, 2), "2030-01-02"),
        (timedelta(days=1, milliseconds=500), 86400.5),
        (b"\x00\xff", "AP8="),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        ({"a": (Decimal(1), b"x")}, {"a": [1, "eA=="]}),
    ],
)
def test_values_become_json(value: Any, expected: Any) -> None:
    assert to_json(value) == expected


def test_columns_of_one_name_keep_their_values() -> None:
    assert column_names(["a", "b", "a", "a"]) == ["a", "b", "a_2", "a_3"]
