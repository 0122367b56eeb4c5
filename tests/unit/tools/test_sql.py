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

from noetl.playbook.sqltext import tokenize_sql, unquote_token
from noetl.results.formats.values import to_json
from noetl.tools.postgres.tool import format_postgres_literal
from noetl.tools.sql.statements import SqlError, make_unique_names, parse_statements
from tests.rendering import render_marked


def render_statements(
    template: str, params: dict[str, Any] | None = None, **scope: Any
) -> list[str]:
    text, marks = render_marked(template, scope)
    found = parse_statements(text, marks, params)
    return [
        " ".join(statement.format_literals(format_postgres_literal).split()) for statement in found
    ]


def one(template: str, params: dict[str, Any] | None = None, **scope: Any) -> str:
    [found] = render_statements(template, params, **scope)
    return found


@pytest.mark.parametrize(
    ("template", "query"),
    [
        ("SELECT {{ x }}", "SELECT 'v'"),
        ("SELECT {{ x }}::text,{{ x }}", "SELECT 'v' ::text, 'v'"),
        ("SELECT 'a {{ x }} b'", "SELECT 'a v b'"),
        ("SELECT '{{ q }}'::text", "SELECT 'O''Brien'::text"),
        ("SELECT 'it''s {{ q }}'", "SELECT 'it''s O''Brien'"),
        ("SELECT '{{ n }}'", "SELECT NULL"),
        ("SELECT '<{{ n }}>'", "SELECT '<null>'"),
        ("SELECT '{{ m | tojson }}'::jsonb", """SELECT '{"a":1}'::jsonb"""),
        ("SELECT $$a {{ q }}$$", "SELECT 'a O''Brien'"),
        ("SELECT $q$ ' {{ x }} $q$", "SELECT ' '' v '"),
        ("SELECT E'\\n{{ back }}'", "SELECT E'\\na\\\\b'''"),
        ("SELECT x'{{ hex }}'", "SELECT x'ff'"),
        ("SELECT date '{{ x }}'", "SELECT date 'v'"),
        ("SELECT interval '{{ i }} days'", "SELECT interval '7 days'"),
        ("SELECT * FROM {{ t | identifier }}", 'SELECT * FROM "a ""b"""'),
        ("SELECT * FROM {{ ['s', t] | identifier }}", 'SELECT * FROM "s"."a ""b"""'),
        ('SELECT "c_{{ t }}"', 'SELECT "c_a ""b"""'),
        ("SELECT {{ raw | sql }}", "SELECT 1 + ';'"),
        ("SELECT 1 -- {{ x }}\n", "SELECT 1"),
        ("SELECT 1 -- {{ x }}\r, {{ x }}", "SELECT 1 , 'v'"),
        ("SELECT 1 /* {{ x }} */ + 1", "SELECT 1 + 1"),
        ("SELECT {{ i }}, {{ -i }}, {{ f }}, {{ n }}, {{ yes }}", "SELECT 7 , (-7) , 0.1 , NULL , TRUE"),
        ("SELECT {{ l }}", "SELECT ARRAY[1, 2]"),
        ("SELECT {{ texts }}", "SELECT ARRAY['a', 'O''B']"),
        ("SELECT {{ [] }}", "SELECT '{}'::text[]"),
        ("SELECT 1 WHERE u = any({{ texts }})", """SELECT 1 WHERE u = any( '{"a","O''B"}' )"""),
        ("SELECT 1 WHERE a && {{ texts }}", """SELECT 1 WHERE a && '{"a","O''B"}'"""),
        ("INSERT INTO t VALUES ({{ texts }})", """INSERT INTO t VALUES ( '{"a","O''B"}' )"""),
        ("SELECT 1 WHERE u IN ({{ texts }})", "SELECT 1 WHERE u IN ( 'a', 'O''B' )"),
        ("SELECT to_jsonb('{{ x }}')", "SELECT to_jsonb('v'::text)"),
        ("SELECT $p, a$p, '$p', $p", "SELECT 5 , a$p, '$p', 5"),
        ("SELECT 0{% for k in l %}, {{ k }}{% endfor %}", "SELECT 0, 1 , 2"),
        ("SELECT U& {{ back }}", "SELECT U& 'a\\b'''"),
        ("PREPARE p AS SELECT $1, {{ x }}", "PREPARE p AS SELECT $1, 'v'"),
    ],
)  # fmt: skip
def test_a_value_becomes_a_literal(template: str, query: str) -> None:
    scope = {
        "x": "v",
        "q": "O'Brien",
        "n": None,
        "m": {"a": 1},
        "t": 'a "b"',
        "raw": "1 + ';'",
        "i": 7,
        "l": [1, 2],
    }
    more = {"texts": ["a", "O'B"], "f": 0.1, "yes": True, "back": "a\\b'", "hex": "ff"}
    assert one(template, {"p": 5}, **scope, **more) == query


@pytest.mark.parametrize(
    ("template", "body"),
    [
        ("DO $$ BEGIN PERFORM '{{ x }}'; END $$", " BEGIN PERFORM 'O''B $$ $a$'; END "),
        ("DO $a$ BEGIN PERFORM {{ x }}; END $a$", " BEGIN PERFORM  'O''B $$ $a$' ; END "),
        ("/* c */ DO 'BEGIN PERFORM ''{{ x }}''; END'", "BEGIN PERFORM 'O''B $$ $a$'; END"),
        ("DO $$ BEGIN PERFORM $b$ {{ x }} $b$; END $$", " BEGIN PERFORM ' O''B $$ $a$ '; END "),
        ("DO $$ BEGIN RAISE NOTICE '% {{ p }}', 1; END $$", " BEGIN RAISE NOTICE '% 5%%', 1; END "),
        ("DO $$ BEGIN EXECUTE format('%L', '{{ x }}'); END $$", " BEGIN EXECUTE format('%L', 'O''B $$ $a$'); END "),
        ("DO $$ BEGIN EXECUTE '$1' USING '{{ x }}'; END $$", " BEGIN EXECUTE '$1' USING 'O''B $$ $a$'; END "),
        ("CREATE FUNCTION f(a int) RETURNS text AS $$ SELECT $1 || {{ x }} $$", " SELECT $1 ||  'O''B $$ $a$'  "),
    ],
)  # fmt: skip
def test_a_value_in_a_body_is_a_literal_of_that_body(template: str, body: str) -> None:
    text, marks = render_marked(template, {"x": "O'B $$ $a$", "p": "5%"})
    [found] = parse_statements(text, marks)
    [literal_of_body] = [
        token
        for token in tokenize_sql(found.format_literals(format_postgres_literal))
        if token.kind == "literal"
    ]
    assert unquote_token(literal_of_body) == body


def test_quotes_doubled_by_hand_are_not_stored() -> None:
    scope = {"x": "O'Brien", "m": {"n": "O'B"}}
    once = "SELECT 'O''Brien'"
    assert one("""SELECT '{{ x | replace("'", "''") }}'""", **scope) == once
    assert one("""SELECT '{{ x.replace("'", "''") | trim }}'""", **scope) == once
    assert (
        one("""SELECT '{{ m | tojson | replace("'", "''") }}'""", **scope)
        == """SELECT '{"n":"O''B"}'"""
    )
    assert one("""SELECT {{ x | replace("'", "''") }}""", **scope) == "SELECT 'O''''Brien'"


def test_a_secret_is_a_parameter() -> None:
    template = "SELECT '{{ keychain.k.v }}', {{ x }}; CREATE ROLE r PASSWORD '{{ keychain.k.v }}'"
    text, marks = render_marked(template, {"keychain": {"k": {"v": "hush"}}, "x": "a"})
    select, create = parse_statements(text, marks)
    assert select.format_bound(format_postgres_literal) == ("SELECT  $1 ,  'a' ", ["hush"])
    assert (
        create.format_literals(format_postgres_literal).strip() == "CREATE ROLE r PASSWORD 'hush'"
    )


def test_an_error_shows_the_line_that_the_author_wrote() -> None:
    template = "select 1;\nselect '{{ x }}',\n  {{ x }}, nam from t"
    text, marks = render_marked(template, {"x": "a value that is long"})
    [_, select] = parse_statements(text, marks)
    position = select.format_literals(format_postgres_literal).index("nam") + 1
    assert (
        select.format_excerpt(position, format_postgres_literal)
        == "LINE 3:   {{ x }}, nam from t\n" + " " * 19 + "^"
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT 1; SELECT 2;", ["SELECT 1", "SELECT 2"]),
        (";;  ; -- nothing\n;/* here */", []),
        ("SELECT ';'; SELECT \";\"", ["SELECT ';'", 'SELECT ";"']),
        (
            "SELECT 'a'';b'; SELECT E'\\';'; SELECT U&';'",
            ["SELECT 'a'';b'", "SELECT E'\\';'", "SELECT U&';'"],
        ),
        ("SELECT $$;$$; SELECT $a$ $$; $a$", ["SELECT $$;$$", "SELECT $a$ $$; $a$"]),
        ("SELECT 1 /* ; /* ; */ ; */; SELECT 2", ["SELECT 1 /* ; /* ; */ ; */", "SELECT 2"]),
        ("SELECT 1 -- ; it's\n; SELECT 2", ["SELECT 1 -- ; it's", "SELECT 2"]),
        ("SELECT a$b; SELECT name$;", ["SELECT a$b", "SELECT name$"]),
        ("SELECT 1 - -1; SELECT 4 / 2", ["SELECT 1 - -1", "SELECT 4 / 2"]),
    ],
)
def test_statements_are_told_apart(text: str, expected: list[str]) -> None:
    assert [
        statement.format_literals(format_postgres_literal).strip()
        for statement in parse_statements(text)
    ] == expected


@pytest.mark.parametrize(
    ("template", "code"),
    [
        ("SELECT {{ m }}", "SQL_VALUE"),
        ("SELECT {{ [m] }}", "SQL_VALUE"),
        ("SELECT U&'{{ x }}'", "SQL_VALUE"),
        ("SELECT {{ zero }}", "SQL_VALUE"),
        ("SELECT E'{{ zero }}'", "SQL_VALUE"),
        ("SELECT 1 WHERE 1 IN ({{ [] }})", "SQL_VALUE"),
        ("DO $$ BEGIN EXECUTE 'SELECT {{ x }}'; END $$", "SQL_VALUE_IN_BODY"),
        ("DO $$ BEGIN EXECUTE format('SELECT {{ x }}'); END $$", "SQL_VALUE_IN_BODY"),
        ("DO LANGUAGE plpython3u $$ x = '{{ x }}' $$", "SQL_VALUE_IN_BODY"),
        ("SELECT {{ 1 | identifier }}", "SQL_IDENTIFIER"),
        ("SELECT {{ '' | identifier }}", "SQL_IDENTIFIER"),
        ("SELECT $1", "SQL_PARAMETER"),
        ("SELECT $other", "SQL_PARAMETER"),
        ("SELECT 'open", "SQL_UNTERMINATED"),
        ('SELECT "open', "SQL_UNTERMINATED"),
        ("SELECT $$open", "SQL_UNTERMINATED"),
        ("SELECT /* /* */", "SQL_UNTERMINATED"),
        ("COPY t FROM PROGRAM 'cat {{ x }}'", "SQL_VALUE_IN_BODY"),
    ],
)
def test_what_is_refused(template: str, code: str) -> None:
    with pytest.raises(SqlError) as refused:
        render_statements(template, {"p": 1}, x="v", m={"a": 1}, zero="a\0b")
    assert refused.value.failure.code == code


PLACES = (
    "{{ x }}",
    "'{{ x }}'",
    "'a''{{ x }}b'",
    "$$ {{ x }} $$",
    "E'\\n{{ x }}'",
    '"{{ x }}"',
    "/* {{ x }} */ 1",
)


@given(st.text(), st.sampled_from(PLACES))
def test_no_text_leaves_its_place(x: str, place: str) -> None:
    if "\0" in x or (place == '"{{ x }}"' and not x):
        return
    text, marks = render_marked(f"SELECT {place}; SELECT 2", {"x": x})
    first, second = parse_statements(text, marks)
    assert second.format_literals(format_postgres_literal).strip() == "SELECT 2"
    [select, found] = [
        token
        for token in tokenize_sql(first.format_literals(format_postgres_literal))
        if token.kind != "comment"
    ]
    assert select.text == "SELECT"
    assert found.kind in ("literal", "name", "number", "escaped")
    if place in ("{{ x }}", "'{{ x }}'", '"{{ x }}"'):
        assert unquote_token(found) == x


@given(st.text(alphabet="'$ab;%\\ \n", max_size=20))
def test_no_text_leaves_the_body_it_stands_in(x: str) -> None:
    template = "DO $a$ BEGIN IF '{{ x }}' <> {{ x }} THEN PERFORM 1; END IF; END $a$; SELECT 2"
    text, marks = render_marked(template, {"x": x})
    do, select = parse_statements(text, marks)
    assert select.format_literals(format_postgres_literal).strip() == "SELECT 2"
    [_, body] = tokenize_sql(do.format_literals(format_postgres_literal))
    values = [token for token in tokenize_sql(unquote_token(body)) if token.kind == "literal"]
    assert [unquote_token(value) for value in values] == [x, x]


@given(st.text(alphabet="'\"$a;-/*\\E \n\r", max_size=60))
def test_any_text_is_split_once_and_for_all_or_refused(text: str) -> None:
    try:
        found = parse_statements(text)
    except SqlError:
        return
    for statement in found:
        assert [
            again.parts
            for again in parse_statements(statement.format_literals(format_postgres_literal))
        ] == [statement.parts]
    if ";" not in text and found:
        assert [statement.format_literals(format_postgres_literal) for statement in found] == [text]


@pytest.mark.parametrize(
    "piece", ["'a' ", '"a" ', "$$a$$ ", "/* a */ ", "-- a\n", "a ; ", "/*", "$a", "'"]
)
def test_reading_takes_time_in_proportion(piece: str) -> None:
    def took(count: int) -> float:
        text, began = piece * count, time.process_time()
        with suppress(SqlError):
            parse_statements(text)
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
    assert make_unique_names(["a", "b", "a", "a"]) == ["a", "b", "a_2", "a_3"]
