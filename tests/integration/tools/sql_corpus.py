"""SQL as people write it, with `{{ values }}` in every place where SQL takes one.

A `Case` runs on both databases unless it names one. `rows` are what the last statement gives. A `Hostile` case runs once for every
text in `HOSTILE`; its rows are made of that text: what goes in comes out, and the statement stays the same statement.
"""

# ruff: noqa: E501 - a statement in a line

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from noetl.playbook.sqltext import Dialect

BOTH: tuple[Dialect, ...] = ("postgres", "duckdb")
POSTGRES: tuple[Dialect, ...] = ("postgres",)
DUCKDB: tuple[Dialect, ...] = ("duckdb",)
Rows = list[dict[str, Any]]

SCOPE: dict[str, Any] = {
    "name": "Ada", "quoted": "O'Brien", "n": 7, "two": 2, "zero": 0, "minus": -3, "big": 2**40, "huge": 2**62, "f": 1.55,
    "pi": 3.141592653589793, "tiny": 1e-7, "yes": True, "no": False, "nothing": None, "day": "2024-01-02", "unit": "month",
    "moment": "2024-01-02T03:04:05", "ids": [1, 3], "names": ["ann", "bob"], "empty": [], "m": {"a": {"b": "it's"}, "n": [1, 2]},
    "uuid": "6f1f2b4e-0000-4000-8000-000000000000", "key": "a", "money": "12.50", "zone": "UTC", "cols": ["id", "name"],
    "umlaut": "Grüße ’ 日本 🎈", "rows": [{"id": 1, "t": "it's"}, {"id": 2, "t": None}], "table": "people", "wanted": True,
    "operator": ">", "prefix": "an",
}  # fmt: skip

PEOPLE = """
create temp table people (id int, name text, born date, score numeric(10, 2), small smallint, ok boolean);
insert into people values (1, 'ann', '2020-01-01', 1.5, 1, true), (2, 'bob', '2021-01-01', 2.5, 2, false),
  (3, 'cid', null, null, 3, null);
"""


@dataclass(frozen=True)
class SqlCase:
    name: str
    sql: str
    rows: Rows
    on: tuple[Dialect, ...] = BOTH


@dataclass(frozen=True)
class Refused:
    """`message` is a part of what the failure says."""

    name: str
    sql: str
    message: str
    on: tuple[Dialect, ...] = BOTH


@dataclass(frozen=True)
class Hostile:
    name: str
    sql: str
    rows: Callable[[str], Rows]
    on: tuple[Dialect, ...] = BOTH


def a(value: Any) -> Rows:
    return [{"a": value}]


def ids(*found: int) -> Rows:
    return [{"id": number} for number in found]


CASES = [
    # ---- the select list ----
    SqlCase("text", "select {{ name }} as a", a("Ada")),
    SqlCase("text in quotes", "select '{{ quoted }}' as a", a("O'Brien")),
    SqlCase("text within quotes", "select 'it''s <{{ quoted }}> and {{ n }}' as a", a("it's <O'Brien> and 7")),
    SqlCase("integer", "select {{ n }} as a, {{ minus }} as b", [{"a": 7, "b": -3}]),
    SqlCase("large integers", "select {{ big }} as a, {{ huge }} as b", [{"a": 2**40, "b": 2**62}]),
    SqlCase("float", "select {{ pi }} as a, {{ tiny }} as b", [{"a": 3.141592653589793, "b": 1e-7}]),
    SqlCase("booleans", "select {{ yes }} as a, not {{ no }} as b", [{"a": True, "b": True}]),
    SqlCase("null", "select {{ nothing }} as a, '{{ nothing }}' as b", [{"a": None, "b": None}]),
    SqlCase("null within quotes", "select '<{{ nothing }}>' as a", a("<null>")),
    SqlCase("list of numbers", "select {{ ids }} as a", a([1, 3])),
    SqlCase("list of texts", "select {{ names }} as a", a(["ann", "bob"])),
    SqlCase("unicode", "select '{{ umlaut }}' as a, length({{ umlaut }}) as b", [{"a": SCOPE["umlaut"], "b": 12}]),
    SqlCase("alias", "select {{ n }} as {{ name | identifier }}", [{"Ada": 7}]),
    SqlCase("quoted alias", 'select {{ n }} as "my {{ name }}"', [{"my Ada": 7}]),
    SqlCase("arithmetic", "select {{ n }} + 1 as a, {{ n }} * {{ minus }} as b, 10 - {{ minus }} as c, -{{ minus }} as d",
         [{"a": 8, "b": -21, "c": 13, "d": 3}]),
    SqlCase("without blanks", "select 10-{{ minus }} as a,{{ n }}*2 as b", [{"a": 13, "b": 14}]),
    SqlCase("case", "select case when {{ n }} > 3 then '{{ name }}' else 'no' end as a", a("Ada")),
    SqlCase("simple case", "select case '{{ name }}' when 'Ada' then 1 else 0 end as a", a(1)),
    SqlCase("concatenation", "select 'a' || {{ name }} || '{{ quoted }}' as a", a("aAdaO'Brien")),
    SqlCase("columns by a loop", PEOPLE + "select {% for c in cols %}{{ c | identifier }}{% if not loop.last %}, {% endif %}"
         "{% endfor %} from people order by id limit 1", [{"id": 1, "name": "ann"}]),
    SqlCase("scalar subquery", PEOPLE + "select (select name from people where id = {{ two }}) as a", a("bob")),
    # ---- casts and typed literals ----
    SqlCase("cast of text", "select '{{ n }}'::int as a, {{ name }}::varchar as b", [{"a": 7, "b": "Ada"}]),
    SqlCase("cast function", "select cast({{ money }} as numeric(10, 2)) as a", a(12.5)),
    SqlCase("uuid", "select '{{ uuid }}'::uuid as a", a(SCOPE["uuid"])),
    SqlCase("typed uuid", "select uuid '{{ uuid }}' as a", a(SCOPE["uuid"])),
    SqlCase("date", "select date '{{ day }}' as a", a("2024-01-02")),
    SqlCase("date without quotes", "select {{ day }}::date + {{ two }} as a", a("2024-01-04")),
    SqlCase("timestamp", "select timestamp '{{ moment }}' as a", a("2024-01-02T03:04:05")),
    SqlCase("time", "select time '{{ '10:11:12' }}' as a", a("10:11:12")),
    SqlCase("interval", "select date '2024-01-10' - interval '{{ n }} days' as a", a("2024-01-03T00:00:00")),
    SqlCase("whole interval", "select timestamp '{{ moment }}' + interval '{{ '1 hour' }}' as a", a("2024-01-02T04:04:05")),
    SqlCase("interval of a number", "select date '2024-01-10' - {{ n }} * interval '1 day' as a", a("2024-01-03T00:00:00")),
    SqlCase("interval with a unit", "select date '2024-01-10' - interval {{ n }} day as a", a("2024-01-03T00:00:00"), DUCKDB),
    SqlCase("timestamptz", "select timestamptz '{{ moment }}Z' as a", a("2024-01-02T03:04:05+00:00")),
    SqlCase("bits", "select x'{{ 'ff' }}'::int as a", a(255), POSTGRES),
    SqlCase("inet", "select inet '{{ '10.0.0.1' }}' as a", a("10.0.0.1"), POSTGRES),
    # ---- functions ----
    SqlCase("jsonb_build_object", "select jsonb_build_object('k', '{{ quoted }}', 'n', {{ n }}, 'z', {{ nothing }}, 'b', {{ yes }}) as a",
         a({"k": "O'Brien", "n": 7, "z": None, "b": True}), POSTGRES),
    SqlCase("json_object", "select json_object('k', '{{ quoted }}', 'n', {{ n }}) as a", a({"k": "O'Brien", "n": 7}), DUCKDB),
    SqlCase("to_jsonb", "select to_jsonb('{{ name }}') as a, to_jsonb({{ names }}) as b", [{"a": "Ada", "b": ["ann", "bob"]}], POSTGRES),
    SqlCase("concat", "select concat('x_', '{{ name }}', {{ n }}, {{ nothing }}) as a", a("x_Ada7")),
    SqlCase("format", "select format('%s-%s', '{{ name }}', {{ n }}) as a", a("Ada-7"), POSTGRES),
    SqlCase("format in braces", "select format('{}-{}', '{{ name }}', {{ n }}) as a", a("Ada-7"), DUCKDB),
    SqlCase("round", "select round({{ n }} / 2.0, 1) as a, round({{ f }}, 1) as b", [{"a": 3.5, "b": 1.6}]),
    SqlCase("coalesce", "select coalesce(nullif('{{ name }}', ''), 'x') as a, coalesce({{ nothing }}, {{ n }}) as b",
         [{"a": "Ada", "b": 7}]),
    SqlCase("greatest", "select greatest({{ n }}, 3) as a, least({{ f }}, 1) as b", [{"a": 7, "b": 1}]),
    SqlCase("md5 and substring", "select length(md5('{{ name }}')) as a, substring('{{ name }}' from {{ two }}) as b",
         [{"a": 32, "b": "da"}]),
    SqlCase("trim and position", "select trim(both '{{ key }}' from 'abca') as a, position('{{ key }}' in 'cba') as b",
         [{"a": "bc", "b": 3}]),
    SqlCase("extract from a value", "select extract(year from {{ day }}::date) as a", a(2024)),
    SqlCase("extract a value", "select extract('{{ unit }}' from date '2024-05-06') as a", a(5)),
    SqlCase("date_trunc", "select date_trunc('{{ unit }}', timestamp '{{ moment }}') as a", a("2024-01-01T00:00:00")),
    SqlCase("at time zone", "select timestamptz '{{ moment }}Z' at time zone '{{ zone }}' as a", a("2024-01-02T03:04:05")),
    SqlCase("generate_series", "select x as a from generate_series(1, {{ two }}) as g(x) order by x", [{"a": 1}, {"a": 2}]),
    SqlCase("is null", "select '{{ name }}' is null as a, {{ nothing }} is null as b", [{"a": False, "b": True}]),
    SqlCase("is a boolean", "select ({{ n }} > 3) is {{ yes }} as a", a(True)),
    SqlCase("is distinct from", "select {{ n }} is distinct from {{ two }} as a", a(True)),
    # ---- arrays ----
    SqlCase("array of values", "select array['{{ name }}', 'b'] as a", a(["Ada", "b"])),
    SqlCase("unnest", "select unnest({{ names }}) as a", [{"a": "ann"}, {"a": "bob"}]),
    SqlCase("array_length", "select array_length({{ names }}, 1) as a", a(2), POSTGRES),
    SqlCase("len", "select len({{ names }}) as a, len({{ empty }}) as b", [{"a": 2, "b": 0}], DUCKDB),
    SqlCase("empty list", "select cardinality({{ empty }}) as a", a(0), POSTGRES),
    # ---- where ----
    SqlCase("comparison", PEOPLE + "select id from people where id = {{ two }}", ids(2)),
    SqlCase("text against a number", PEOPLE + "select id from people where id = '{{ two }}'", ids(2)),
    SqlCase("smallint and numeric", PEOPLE + "select id from people where small < {{ two }} and score = {{ 1.5 }}", ids(1)),
    SqlCase("date column", PEOPLE + "select id from people where born > {{ '2020-06-01' }}", ids(2)),
    SqlCase("boolean column", PEOPLE + "select id from people where ok = {{ yes }}", ids(1)),
    SqlCase("in by a loop", PEOPLE + "select id from people where id in "
         "({% for i in ids %}{{ i }}{% if not loop.last %}, {% endif %}{% endfor %}) order by id", ids(1, 3)),
    SqlCase("in a list", PEOPLE + "select id from people where id in ({{ ids }}) and name not in ({{ names }})", ids(3)),
    SqlCase("any", PEOPLE + "select id from people where name = any({{ names }}) and id = any({{ ids }})", ids(1)),
    SqlCase("any of nothing", PEOPLE + "select id from people where id = any({{ empty }})", []),
    SqlCase("any of another type", PEOPLE + "select id from people where born = any({{ ['2021-01-01'] }})", ids(2), POSTGRES),
    SqlCase("between", PEOPLE + "select id from people where born between '{{ '2020-01-01' }}' and {{ '2020-12-31' }}", ids(1)),
    SqlCase("like", PEOPLE + "select id from people where name like '%{{ 'o' }}%'", ids(2)),
    SqlCase("like a prefix", PEOPLE + "select id from people where name like {{ prefix }} || '%'", ids(1)),
    SqlCase("shaped by if", PEOPLE + "select id from people where true {% if wanted %} and id > {{ n - 5 }} {% else %} and false"
         " {% endif %} order by id", ids(3)),
    SqlCase("operator as SQL", PEOPLE + "select id from people where id {{ operator | sql }} {{ two }}", ids(3)),
    SqlCase("exists", PEOPLE + "select id from people p where exists (select 1 from people q where q.id = p.id + {{ two }})", ids(1)),
    SqlCase("a value alone", PEOPLE + "select id from people where {{ no }} or id = 1", ids(1)),
    SqlCase("quoted name", PEOPLE + 'select "{{ cols[0] }}" from people where "{{ cols[1] }}" = {{ names[0] }}', ids(1)),
    # ---- json ----
    SqlCase("arrow", "select '{{ m | tojson }}'::json -> '{{ key }}' ->> 'b' as a", a("it's")),
    SqlCase("jsonb contains", "select '{{ m | tojson }}'::jsonb @> '{{ {'n': [1]} | tojson }}' as a", a(True), POSTGRES),
    SqlCase("recordset", "select * from jsonb_to_recordset('{{ rows | tojson }}'::jsonb) as x(id int, t text) order by id",
         [{"id": 1, "t": "it's"}, {"id": 2, "t": None}], POSTGRES),
    SqlCase("doubled by hand", """select '{{ quoted | replace("'", "''") }}' as a""", a("O'Brien")),
    SqlCase("json doubled by hand", """select '{{ m | tojson | replace("'", "''") }}'::json ->> 'n' as a""", a("[1,2]")),
    # ---- grouping, ordering, windows, limits ----
    SqlCase("group by an expression", "select x / {{ two }} as a, count(*) as c from generate_series(1, 3) g(x) "
         "group by x / {{ two }} order by 1", [{"a": 0, "c": 1}, {"a": 1, "c": 2}], POSTGRES),
    SqlCase("group by an expression of DuckDB", "select x // {{ two }} as a, count(*) as c from range(1, 4) g(x) "
         "group by x // {{ two }} order by 1", [{"a": 0, "c": 1}, {"a": 1, "c": 2}], DUCKDB),
    SqlCase("group by a text", PEOPLE + "select name || '{{ quoted }}' as a from people where id = 1 group by name || '{{ quoted }}'",
         a("annO'Brien")),
    SqlCase("having", PEOPLE + "select ok as a from people group by ok having count(*) >= {{ two }}", []),
    SqlCase("order by an expression", PEOPLE + "select id from people order by abs(id - {{ two }}), id desc limit {{ two }}", ids(2, 3)),
    SqlCase("order by a case", PEOPLE + "select id from people order by case '{{ cols[1] }}' when 'name' then name end desc limit 1",
         ids(3)),
    SqlCase("order by a name", PEOPLE + "select id from people order by {{ cols[1] | identifier }} {{ 'desc' | sql }} limit 1", ids(3)),
    SqlCase("limit and offset", PEOPLE + "select id from people order by id limit {{ two }} offset {{ two - 1 }}", ids(2, 3)),
    SqlCase("no limit", PEOPLE + "select id from people order by id limit {{ nothing }}", ids(1, 2, 3)),
    SqlCase("window frame", PEOPLE + "select sum(id) over (order by id rows between {{ two - 1 }} preceding and current row) as a "
         "from people order by id", [{"a": 1}, {"a": 3}, {"a": 5}]),
    SqlCase("lag", PEOPLE + "select lag(name, {{ two }}, '{{ quoted }}') over (order by id) as a from people order by id limit 1",
         a("O'Brien")),
    SqlCase("filter", PEOPLE + "select count(*) filter (where id > {{ two }}) as a from people", a(1)),
    SqlCase("string_agg", PEOPLE + "select string_agg(name, '{{ quoted }}' order by id) as a from people where id < 3", a("annO'Brienbob")),
    # ---- more statements ----
    SqlCase("values", "select * from (values ({{ n }}, '{{ name }}')) v(a, b) where b = 'Ada'", [{"a": 7, "b": "Ada"}]),
    SqlCase("union", "select {{ n }} as a union all select {{ two }} order by 1", [{"a": 2}, {"a": 7}]),
    SqlCase("common table", "with t as (select {{ n }} as a), u as (select a + {{ two }} as a from t) select * from u", a(9)),
    SqlCase("recursive", "with recursive t(a) as (select 1 union all select a + 1 from t where a < {{ two }}) select max(a) as a from t",
         a(2)),
    SqlCase("lateral", "select b as a from (select {{ n }} as x) t, lateral (select t.x * {{ two }} as b) u", a(14)),
    SqlCase("insert", PEOPLE + "insert into people values ({{ n }}, '{{ quoted }}', {{ day }}, {{ money }}, {{ two }}, {{ yes }}); "
         "select name, born, score, small, ok from people where id = 7",
         [{"name": "O'Brien", "born": "2024-01-02", "score": 12.5, "small": 2, "ok": True}]),
    SqlCase("insert a float", PEOPLE + "create temp table n (a numeric(20, 15), b double precision); insert into n values ({{ pi }}, {{ pi }}); "
         "select * from n", [{"a": 3.141592653589793, "b": 3.141592653589793}]),
    SqlCase("insert by a loop", PEOPLE + "insert into people (id, name) values {% for r in rows %}({{ r.id + 10 }}, {{ r.t }})"
         "{% if not loop.last %}, {% endif %}{% endfor %}; select id, name from people where id > 10 order by id",
         [{"id": 11, "name": "it's"}, {"id": 12, "name": None}]),
    SqlCase("insert select", PEOPLE + "insert into people (id, name) select id + {{ n }}, '{{ quoted }}' from people; "
         "select count(*) as a from people where name = '{{ quoted }}'", a(3)),
    SqlCase("insert with one value of several types", "create temp table t (s text, u uuid); insert into t values ('{{ uuid }}', '{{ uuid }}'); "
         "select u as a from t where s = '{{ uuid }}'", a(SCOPE["uuid"])),
    SqlCase("on conflict", "create temp table t (id int primary key, s text); insert into t values ({{ n }}, 'x'); insert into t values "
         "({{ n }}, {{ name }}) on conflict (id) do update set s = excluded.s || '{{ quoted }}'; select s as a from t", a("AdaO'Brien")),
    SqlCase("returning", PEOPLE + "insert into people (id, name) values ({{ n }}, {{ name }}) returning id, name || '{{ quoted }}' as a",
         [{"id": 7, "a": "AdaO'Brien"}]),
    SqlCase("update", PEOPLE + "update people set name = '{{ quoted }}', score = score + {{ f }} where id = {{ two }}; "
         "select name, score from people where id = 2", [{"name": "O'Brien", "score": 4.05}]),
    SqlCase("update a named column", PEOPLE + "update people set {{ cols[1] | identifier }} = {{ quoted }} where id = 1; "
         "select name as a from people where id = 1", a("O'Brien")),
    SqlCase("delete", PEOPLE + "delete from people where id = any({{ ids }}); select id from people", ids(2)),
    SqlCase("merge", PEOPLE + "merge into people p using (select {{ two }} as id, '{{ quoted }}' as name) s on p.id = s.id "
         "when matched then update set name = s.name when not matched then insert (id) values ({{ n }}); "
         "select name as a from people where id = 2", a("O'Brien")),
    SqlCase("types of columns", "create type mood as enum ('sad', 'it''s'); create table t (j jsonb, u uuid, d date, z timestamptz, m mood, "
         "l uuid[], t text[]); insert into t values ('{{ m | tojson }}', {{ uuid }}, {{ day }}, '{{ moment }}Z', {{ \"it's\" }}, "
         "{{ [uuid] }}, {{ names }}); select j ->> 'n' as j, u, d, m::text as m, l[1] as l, t from t where m = 'it''s' and d <= '{{ day }}' "
         "and u = {{ uuid }} and l && {{ [uuid] }}",
         [{"j": "[1, 2]", "u": SCOPE["uuid"], "d": "2024-01-02", "m": "it's", "l": SCOPE["uuid"], "t": ["ann", "bob"]}], POSTGRES),
    SqlCase("create table as", "create temp table t as select {{ n }} as a, '{{ quoted }}' as b; select * from t", [{"a": 7, "b": "O'Brien"}]),
    SqlCase("create a named table", "create temp table {{ quoted | identifier }} (a int default {{ n }}); insert into {{ quoted | identifier }} "
         "values (default); table {{ quoted | identifier }}", a(7)),
    SqlCase("qualified name", "create schema {{ name | identifier }}; create table {{ [name, table] | identifier }} as select {{ n }} as a; "
         "select a from {{ [name, table] | identifier }}; ", a(7)),
    SqlCase("comment on", "create temp table t (a int); comment on table t is '{{ quoted }}'; select obj_description('t'::regclass) as a",
         a("O'Brien"), POSTGRES),
    SqlCase("prepare", "prepare noetl_p as select $1::int + {{ n }} as a; execute noetl_p({{ two }})", a(9), POSTGRES),
    SqlCase("set", "set local work_mem = '{{ n }}MB'; select current_setting('work_mem') as a", a("7MB"), POSTGRES),
    SqlCase("explain", "explain (costs off) select {{ n }} as a where {{ no }}", [{"QUERY PLAN": "Result"},
         {"QUERY PLAN": "  One-Time Filter: false"}], POSTGRES),
    SqlCase("copy to a file", "copy (select {{ n }} as a) to '/dev/null' (format csv); select {{ n }} as a", a(7), DUCKDB),
    SqlCase("describe", "select typeof({{ n }}) as a, typeof({{ f }}) as b, typeof('{{ n }}') as c",
         [{"a": "INTEGER", "b": "DOUBLE", "c": "VARCHAR"}], DUCKDB),
    # ---- quotes, comments, bodies ----
    SqlCase("line comment", "select 1 as a -- {{ quoted }} it's\n, {{ two }} as b", [{"a": 1, "b": 2}]),
    SqlCase("block comment", "select /* {{ quoted }} /* nested */ ; */ {{ two }} as a", a(2)),
    SqlCase("escape string", "select E'\\t{{ quoted }}\\\\' as a", a("\tO'Brien\\")),
    SqlCase("dollar quotes", "select $$ {{ quoted }} $$ as a, $q$ $$ {{ n }} $q$ as b", [{"a": " O'Brien ", "b": " $$ 7 "}]),
    SqlCase("semicolons in quotes", "select '; {{ name }} --' as a", a("; Ada --")),
    SqlCase("do block", "do $$ begin if '{{ name }}' <> 'Ada' or {{ n }} <> 7 then raise exception 'bad {{ n }}'; end if; end $$; "
         "select {{ n }} as a", a(7), POSTGRES),
    SqlCase("function body", "create function pg_temp.f(x int) returns text language sql as $$ select $1 || '{{ quoted }}' $$; "
         "select pg_temp.f({{ n }}) as a", a("7O'Brien"), POSTGRES),
    SqlCase("dynamic SQL in a body", "create temp table t (a text); do $$ begin execute format('insert into t values (%L)', '{{ quoted }}'); "
         "execute 'insert into t values ($1)' using '{{ name }}'; end $$; select a from t order by a", [{"a": "Ada"}, {"a": "O'Brien"}],
         POSTGRES),
    SqlCase("macro", "create temp macro plus(x) as x + {{ n }}; select plus({{ two }}) as a", a(9), DUCKDB),
    SqlCase("struct and list", "select {'k': '{{ quoted }}', 'l': [{{ n }}]} as a", a({"k": "O'Brien", "l": [7]}), DUCKDB),
    SqlCase("params", "select {{ n }} + $given as a, '$given' as b", [{"a": 12, "b": "$given"}]),
]  # fmt: skip

REFUSED = [
    Refused("table", PEOPLE + "select * from {{ table }}", "| identifier"),
    Refused("joined table", PEOPLE + "select 1 from people join {{ table }} on true", "| identifier"),
    Refused("table statement", "table {{ table }}", "| identifier"),
    Refused("created table", "create table {{ table }} (a int)", "| identifier"),
    Refused("inserted table", "insert into {{ table }} values (1)", "| identifier"),
    Refused("qualified table", "select * from public.{{ table }}", "| identifier"),
    Refused("part of a name", "select * from people_{{ n }}", "| identifier"),
    Refused("column list", PEOPLE + "insert into people ({{ cols[0] }}) values (1)", "| identifier"),
    Refused("set column", PEOPLE + "update people set {{ cols[1] }} = 'x'", "| identifier"),
    Refused("whole statement", "{{ table }}", "| sql"),
    Refused("second statement", "select 1; {{ table }}", "| sql"),
    Refused("order by", PEOPLE + "select id from people order by {{ cols[1] }}", "| identifier"),
    Refused("order by in quotes", PEOPLE + "select id from people order by id, '{{ cols[1] }}' desc", "| identifier"),
    Refused("order by a position", PEOPLE + "select id from people order by {{ two }}", "| identifier"),
    Refused("group by", PEOPLE + "select count(*) from people group by {{ cols[1] }}", "| identifier"),
    Refused("partition by", PEOPLE + "select sum(id) over (partition by {{ cols[1] }}) from people", "| identifier"),
    Refused("direction", PEOPLE + "select id from people order by id {{ 'desc' }}", "| sql"),
    Refused("operator", PEOPLE + "select id from people p where p.id {{ operator }} 2", "syntax error"),
    Refused("type", "select 1::{{ 'int' }}", "| sql"),
    Refused("map", "select {{ m }}", "tojson"),
    Refused("empty in", "select 1 where 1 in ({{ empty }})", "ANY"),
    Refused("unicode string", "select U&'{{ quoted }}'", "plain quotes"),
    Refused("program", "copy people from program 'cat {{ table }}'", "would be code", POSTGRES),
    Refused("copy from the client", PEOPLE + "copy people from stdin", "transfer", POSTGRES),
    Refused("executed text", "do $$ begin execute 'select {{ name }}'; end $$", "would be code", POSTGRES),
    Refused("another language", "do language plpython3u $$ x = '{{ name }}' $$", "would be code", POSTGRES),
    Refused("positional parameter", "select $1", "by name"),
]  # fmt: skip

HOSTILE = [
    "'", "''", "'''", "';", "' or '1'='1", "'; drop table people; --", "\\", "\\'", "\\\\'", "a\\", "\\'; drop table people; --",
    '"', '";', "`", "$$", "$1", "$a$", "$$; drop table people; $$", "$noetl$", "--", "-- x", "/*", "*/", "/* ' */", ";", "; select 1",
    "{{ n }}", "{% if %}", "{#", "%", "%s", "%%", "%(a)s", "%L", "?", ":a", "@", "#", "\n", "\r", "\r\n'", "\t", "\x01", "\x7f", "",
    " ", "  a  ", "7", "007", "1e5", "-1", "NULL", "null", "true", "[1]", "{}", '{"a": 1}', "E'\\n'", "U&'\\0041'", "x'41'", "’", "‘",
    "＇", "ʼ", "日本", "🎈", "\u202e", "\ue000", "\ue0000\ue000", "\ufeff", "a" * 100_000, "'" * 10_001, "\\" * 10_001,
    "') ; select pg_sleep(9); --", "'||(select 1)||'", "' union select 1 --", "$$ || 'x' || $$", "1; select 2", "\u00a0'", "a'b\"c`d$$e",
]  # fmt: skip

HOSTILES = [
    Hostile("select list", "select {{ x }} as a, '{{ x }}' as b, '<{{ x }}>' as c, $q${{ x }}$q$ as d, $x as e",
            lambda x: [{"a": x, "b": x, "c": f"<{x}>", "d": x, "e": x}]),
    Hostile("escape string", "select E'a\\t{{ x }}' as a", lambda x: a(f"a\t{x}")),
    Hostile("comments", "select 1 /* {{ x }} */ as a -- {{ x }}\n, 2 as b", lambda x: [{"a": 1, "b": 2}]),
    Hostile("where", PEOPLE + "select id from people where name = '{{ x }}' or name = {{ x }} or name in ({{ [x, x] }})", lambda x: []),
    Hostile("stored", PEOPLE + "insert into people (id, name) values (9, '{{ x }}'); select name as a from people where name = {{ x }}",
            a),
    Hostile("updated", PEOPLE + "update people set name = '{{ x }}' where id = 1; select name as a from people where id = 1", a),
    Hostile("people stay", PEOPLE + "insert into people (id, name) values (4, '{{ x }}' || {{ x }}); select count(*) as a from people",
            lambda x: a(4)),
    Hostile("functions", "select concat('<', '{{ x }}', {{ x }}) as a, coalesce(null, '{{ x }}') as b",
            lambda x: [{"a": f"<{x}{x}", "b": x}]),
    Hostile("grouped", PEOPLE + "select name || '{{ x }}' as a from people where id = 1 group by name || '{{ x }}'", lambda x: a(f"ann{x}")),
    Hostile("list", "select {{ [x, 'b', x] }} as a", lambda x: a([x, "b", x])),
    Hostile("any", "select '{{ x }}' = any({{ ['a', x] }}) as a", lambda x: a(True)),
    Hostile("json", "select '{{ {'k': x} | tojson }}'::json ->> 'k' as a", a),
    Hostile("json doubled by hand", """select '{{ {'k': x} | tojson | replace("'", "''") }}'::json ->> 'k' as a""", a),
    Hostile("doubled by hand", """select '{{ x | replace("'", "''") }}' as a""", a),
    Hostile("jsonb_build_object", "select jsonb_build_object('k', '{{ x }}') ->> 'k' as a", a, POSTGRES),
    Hostile("format", "select format('%s|%s', '{{ x }}', {{ x }}) as a", lambda x: a(f"{x}|{x}"), POSTGRES),
    Hostile("loop", "select 0 as a{% for y in [x, x] %} union all select length({{ y }}){% endfor %} order by 1 limit 1", lambda x: a(0)),
    Hostile("created", "create temp table t as select '{{ x }}' as a, {{ x }} as b; select * from t", lambda x: [{"a": x, "b": x}]),
    Hostile("default", "create temp table t (id int, a text default '{{ x }}'); insert into t (id) values (1); select a from t", a),
    Hostile("do", "create temp table t (a text); do $$ begin insert into t values ('{{ x }}'); end $$; select a from t", a, POSTGRES),
    Hostile("do in quotes", "create temp table t (a text); do 'begin insert into t values (''{{ x }}''); end'; select a from t", a, POSTGRES),
    Hostile("do and format", "create temp table t (a text); do $b$ begin execute format('insert into t values (%L)', '{{ x }}'); end $b$; "
            "select a from t", a, POSTGRES),
    Hostile("do and raise", "do $$ begin begin raise exception 'no {{ x }}'; exception when raise_exception then "
            "perform set_config('noetl.said', sqlerrm, true); end; end $$; select current_setting('noetl.said') as a",
            lambda x: a(f"no {x}"), POSTGRES),
    Hostile("function", "create function pg_temp.g() returns text language sql as $$ select '{{ x }}' $$; select pg_temp.g() as a", a, POSTGRES),
    Hostile("comment on", "create temp table t (a int); comment on table t is '<{{ x }}'; select obj_description('t'::regclass) as a",
            lambda x: a(f"<{x}"), POSTGRES),
    Hostile("prepared", "prepare noetl_h as select '{{ x }}'::text as a where $1 = 1; execute noetl_h(1)", a, POSTGRES),
    Hostile("alias", "select 1 as {{ ('a' ~ x)[:20] | identifier }}", lambda x: [{("a" + x)[:20]: 1}]),
    Hostile("quoted alias", 'select 1 as "b{{ x[:20] }}"', lambda x: [{"b" + x[:20]: 1}]),
]  # fmt: skip
