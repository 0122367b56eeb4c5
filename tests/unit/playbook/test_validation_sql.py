"""What `validate` says of values in SQL: where they cannot stand, and that their quotes need no doubling."""

import json

import pytest

from noetl.playbook.findings import Finding
from noetl.playbook.validation import LoadedPlaybook, load
from tests.rendering import render_marked

HEAD = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: t, path: t}
workload: {t: people, x: a, n: 1, xs: [1, 2], flag: true}
workflow:
  - step: s
"""


def find_sql_errors(tool: str) -> list[Finding]:
    loaded = load(HEAD + f"    tool: {tool}\n")
    return [finding for finding in loaded.findings if finding.code.startswith("SQL_")]


def of_query(query: str, kind: str = "postgres") -> list[Finding]:
    key = "sql" if kind == "spark" else "query"
    return find_sql_errors(
        f"{{kind: {kind}, auth: pg, {key}: {json.dumps(query)}}}"
        if kind == "postgres"
        else f"{{kind: {kind}, {key}: {json.dumps(query)}}}"
    )


NAMES = [
    "select * from {{ workload.t }}", "select * from '{{ workload.t }}'", "select 1 from a join {{ workload.t }} on true",
    "table {{ workload.t }}", "insert into {{ workload.t }} values (1)", "update {{ workload.t }} set a = 1",
    "delete from {{ workload.t }}", "create table {{ workload.t }} (a int)", "drop table if exists {{ workload.t }}",
    "truncate {{ workload.t }}", "alter table {{ workload.t }} add a int", "alter table a add column {{ workload.x }} int",
    "alter table a rename to {{ workload.t }}", "create index i on {{ workload.t }} (a)", "select * from s.{{ workload.t }}",
    "select * from {{ workload.t }}.b", "select * from t_{{ workload.n }}", "insert into a ({{ workload.x }}) values (1)",
    "update a set {{ workload.x }} = 1", "update a set b = 1, {{ workload.x }} = 2", "select 1 order by {{ workload.x }}",
    "select 1 order by a, {{ workload.x }} desc", "select 1 order by '{{ workload.x }}'", "select 1 group by {{ workload.x }}",
    "select sum(a) over (partition by {{ workload.x }}) from b", "select 1 order by {{ workload.x }} limit 1",
    "select 1 as {{ workload.x }}", "create schema {{ workload.t }}", "select 1 order by {{ workload.n }}::int",
]  # fmt: skip
RAW = [
    "{{ workload.t }}", "select 1; {{ workload.t }}", "{{ workload.t }} from a", "select 1::{{ workload.t }}",
    "select a from b order by a {{ workload.x }}", 'select "a" {{ workload.x }} 2', "select (1) {{ workload.x }} 2",
]  # fmt: skip


@pytest.mark.parametrize("query", NAMES)
def test_a_name_that_is_a_value_is_an_error_that_names_identifier(query: str) -> None:
    [finding] = of_query(query)
    assert (finding.code, finding.severity, finding.step) == ("SQL_PLACE", "error", "s")
    assert "| identifier" in str(finding.hint)


@pytest.mark.parametrize("query", RAW)
def test_a_statement_that_is_a_value_is_an_error_that_names_sql(query: str) -> None:
    [finding] = of_query(query)
    assert (finding.code, "| sql" in str(finding.hint)) == ("SQL_PLACE", True)


@pytest.mark.parametrize(
    "query",
    [
        "select {{ workload.x }}, '{{ workload.x }}' as a from b where c = {{ workload.n }} limit {{ workload.n }}",
        "select * from {{ workload.t | identifier }} order by {{ workload.x | identifier }} {{ workload.x | sql }}",
        "select x / {{ workload.n }} from b group by x / {{ workload.n }} order by abs(x - {{ workload.n }}), 2",
        "select 1 where a is distinct from {{ workload.x }} and extract(year from {{ workload.x }}::date) = 1",
        "select trim('{{ workload.x }}' from {{ workload.x }}), date '{{ workload.x }}', interval '{{ workload.n }} days'",
        "insert into a (b, c) values ({{ workload.x }}, {{ workload.n }}) on conflict (b) do update set c = {{ workload.n }}",
        "update a set b = {{ workload.x }}, c = '{{ workload.x }}' where d in ({{ workload.xs }})",
        "select 1 {% if workload.flag %}where a = {{ workload.x }}{% else %}order by b{% endif %}",
        "{% if workload.flag %}select 1{% else %}select {{ workload.x }}{% endif %}",
        "select 1 order by {% if workload.flag %}a{% else %}b + {{ workload.n }}{% endif %}",
        "select 1 where a in ({% for x in workload.xs %}{{ x }}{% if not loop.last %},{% endif %}{% endfor %})",
        "{{ workload.t | sql }}",
        "do $$ begin perform '{{ workload.x }}'; end $$",
        "create table a (b text default '{{ workload.x }}', c int default {{ workload.n }})",
        "select /* from {{ workload.t }} */ 1 -- order by {{ workload.x }}",
        "select sum(a) over (order by b rows between {{ workload.n }} preceding and current row) from c",
    ],
)
def test_a_value_where_a_literal_may_stand_is_fine(query: str) -> None:
    assert of_query(query) == []


def test_a_file_may_be_named_by_a_value() -> None:
    assert of_query("select * from '{{ workload.t }}'", "duckdb") == []
    assert of_query("copy a to '{{ workload.t }}'", "duckdb") == []


@pytest.mark.parametrize(
    "tool",
    [
        "{kind: duckdb, query: [select 1, 'select * from {{ workload.t }}']}",
        "{kind: duckdb, command: 'select * from {{ workload.t }}'}",
        "{kind: spark, sql: 'select * from {{ workload.t }}'}",
        "{kind: spark, sql: select 1, inputs: {a: {kind: postgres, auth: pg, query: 'select * from {{ workload.t }}'}}}",
        "{kind: transfer, source: {kind: duckdb, query: 'table {{ workload.t }}'}, target: {kind: file, path: a.csv}}",
    ],
)
def test_every_statement_of_a_playbook_is_looked_at(tool: str) -> None:
    assert [finding.code for finding in find_sql_errors(tool)] == ["SQL_PLACE"]


def test_the_claim_of_a_cursor_is_looked_at() -> None:
    loop = "{cursor: {kind: postgres, auth: pg, claim: 'select * from {{ workload.t }}'}, spec: {mode: cursor}}"
    loaded = load(HEAD + f"    loop: {loop}\n    tool: {{kind: noop}}\n")
    assert [finding.code for finding in loaded.findings if finding.code == "SQL_PLACE"] == [
        "SQL_PLACE"
    ]


def test_the_line_of_the_value_is_named() -> None:
    [finding] = find_sql_errors(
        "\n      kind: duckdb\n      query: |\n        select *\n        from {{ workload.t }}"
    )
    assert (finding.line, finding.column) == (12, 14)


def test_doubling_quotes_by_hand_is_a_warning() -> None:
    doubled = """'{{ workload.x | replace("'", "''") }}'"""
    [finding] = of_query(f"select {doubled}")
    assert (finding.code, finding.severity) == ("SQL_ESCAPED", "warning")
    assert (
        of_query(
            """select {{ workload.x | replace("'", "''") }}, $$ {{ workload.x | replace("'", "''") }} $$"""
        )
        == []
    )


# ---- comments --------------------------------------------------------------------------------------------------------------

COMMENTED = [
    "select 1 -- {{ nothing }}", "select 1 -- {{ nothing }}\n, {{ workload.x }}", "/* {{ nothing.at['all'] }} */ select 1",
    "select '--', 1 -- '{{ nothing }}", "{% if workload.flag %}select 1 -- {{ nothing }}\n{% endif %} select {{ workload.x }}",
    "select 1 + {{- 1 }} -- {{ workload.x }} {{ nothing }}", "-- {{ nothing | default('}}') }}\nselect 1",
    "select 1 -- {{ keychain.gone.password }}",
]  # fmt: skip
NOT_COMMENTED = [
    "select '-- {{ nothing }}'", "select 1 - -{{ nothing }}", "-- a\nselect {{ nothing }}", "/* a */ select {{ nothing }}",
    "select 1 {% if workload.flag %}--{% endif %} + {{ nothing }}", 'select "--", {{ nothing }}',
    "-- a {{- nothing }}", "select $$ -- {{ nothing }} $$",
]  # fmt: skip


def load_query(query: str, kind: str = "postgres") -> LoadedPlaybook:
    key, auth = (
        ("sql", "") if kind == "spark" else ("query", ", auth: pg" if kind == "postgres" else "")
    )
    return load(HEAD + f"    tool: {{kind: {kind}{auth}, {key}: {json.dumps(query)}}}\n")


@pytest.mark.parametrize("kind", ["postgres", "duckdb", "spark"])
@pytest.mark.parametrize("query", COMMENTED)
def test_comments_of_sql_may_name_what_does_not_exist(query: str, kind: str) -> None:
    assert load_query(query, kind).errors == []


@pytest.mark.parametrize("query", NOT_COMMENTED)
def test_unknown_names_outside_of_comments_are_found(query: str) -> None:
    assert [finding.code for finding in load_query(query).errors] == ["UNKNOWN_NAME"]


def test_expressions_in_comments_are_not_rendered() -> None:
    text = "select 1 -- {{ nothing }}\n, {{ workload.x }}"
    playbook = load_query(text).playbook
    assert playbook is not None
    rendered, marks = render_marked(
        str(playbook.workflow[0].tool[0].config["query"]), {"workload": {"x": "a"}}
    )
    assert rendered.startswith("select 1 --              \n, ")
    assert [mark.value for mark in marks] == ["a"]


def test_a_cursor_may_have_commented_values() -> None:
    step = """    loop: {cursor: {kind: postgres, auth: pg, claim: "select 1 -- {{ nothing }}"}, iterator: row,
      spec: {mode: cursor}}
    tool: {kind: noop}
"""
    assert load(HEAD + step).errors == []
