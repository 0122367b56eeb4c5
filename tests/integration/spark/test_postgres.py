"""Tables of Postgres as inputs and outputs of Spark, on a real one."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from noetl.tools.port import Success
from tests.integration.spark.conftest import Runner
from tests.postgres import server


@pytest.fixture
def dsn() -> Iterator[str]:
    with server().database() as address:
        yield address


def does(dsn: str, *statements: Any) -> list[tuple[Any, ...]]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        for statement in statements:
            cursor = connection.execute(statement)
        return cursor.fetchall() if cursor.description else []


def make_source(dsn: str, **more: Any) -> dict[str, Any]:
    return {"kind": "postgres", "auth": {"dsn": dsn}, **more}


def test_a_table_of_postgres_is_an_input_by_its_name(spark: Runner, dsn: str) -> None:
    does(
        dsn,
        "create schema other",
        """create table other."A {{ b }}" as select 1 as i, 'x' as "T" """,
    )
    given = make_source(dsn, table="{{ schema }}.A {{ '{{ b }}' }}")
    config = {"sql": "select * from t", "inputs": {"t": given}}
    assert spark.rows(config, {"schema": "other"}) == [{"i": 1, "T": "x"}]
    failure = spark.failure(
        {"sql": "select * from t", "inputs": {"t": make_source(dsn, table="nothing")}}
    )
    assert failure.message.startswith("input t: ")
    assert '"nothing" does not exist' in failure.message


def test_a_name_of_a_table_is_a_name_whatever_is_in_it(spark: Runner, dsn: str) -> None:
    does(dsn, "create table safe (n int)")
    name = "it's\" ; drop table safe; --"
    output = {**make_source(dsn), "table": name, "mode": "upsert", "key": ["id"]}
    for _ in range(2):
        assert isinstance(spark({"sql": "select id from range(3)", "output": output}), Success)
    quoted = '"' + name.replace('"', '""') + '"'
    assert does(dsn, f"select count(*) from {quoted}, (select count(*) from safe) s") == [(3,)]


# ---- numbers ---------------------------------------------------------------------------------------------------------------

FITTING = [
    "0.0000001",
    "-99999999999999999999.999999999999999999",
    "1.50000000000000000000000",
    "0",
    "-0.5",
]


@pytest.mark.parametrize("rows", [1, 30_000])  # these come another way
def test_a_numeric_without_precision_keeps_every_digit(spark: Runner, dsn: str, rows: int) -> None:
    numbers = ", ".join(f"{text}::numeric as n{number}" for number, text in enumerate(FITTING))
    query = f"select {numbers}, null::numeric as nothing, gen_random_uuid() as u from generate_series(1, {rows}) x"
    same = " and ".join(f"n{number} = {text}BD" for number, text in enumerate(FITTING))
    sql = f"select typeof(n0) as kind, typeof(u) as text, count(*) as n from t where {same} and nothing is null group by all"
    found = spark.rows({"sql": sql, "inputs": {"t": make_source(dsn, query=query)}})
    assert found == [{"kind": "decimal(38,18)", "text": "string", "n": rows}]


@pytest.mark.parametrize(
    "text", ["0.12345678901234567890123456789", "123456789012345678901", "'NaN'", "'-Infinity'"]
)
def test_a_numeric_that_would_lose_something_is_refused_by_name(
    spark: Runner, dsn: str, text: str
) -> None:
    given = make_source(dsn, query=f'select {text}::numeric as "n.`x", 1 as m')
    failure = spark.failure({"sql": "select * from t", "inputs": {"t": given}})
    assert (failure.code, failure.kind) == ("SPARK_INPUT", "data")
    value = text.strip("'")
    assert failure.message == (
        "input t: column n.`x is a numeric without precision, and a value does not fit decimal(38,18): "
        f"{value}; cast it in the query, to a numeric(p, s) or to text"
    )
    assert spark.rows({"sql": "select m from t", "inputs": {"t": given}}) == [{"m": 1}]


# ---- what Postgres has no column for -----------------------------------------------------------------------------------------

NESTED = (
    "select 1 as i, named_struct('x', 1, 'y', 'é\"') as s, map('a', 1.5D) as m, array(1, 2) as a, array(3) as l, "
    "array(named_struct('q', 1)) as j, cast(null as struct<x: int>) as nothing"
)
ROW = (1, {"x": 1, "y": 'é"'}, {"a": 1.5}, [1, 2], [3], [{"q": 1}], None)
MADE = (
    "create table t (i int primary key, s jsonb, m json, a int[], l jsonb, j jsonb, nothing jsonb)"
)


def make_target(dsn: str, **more: Any) -> dict[str, Any]:
    return {"kind": "postgres", "auth": {"dsn": dsn}, "table": "t", **more}


@pytest.mark.parametrize(
    "mode", [{"mode": "insert"}, {"mode": "upsert", "key": ["i"]}, {"mode": "replace"}]
)
def test_structs_and_maps_go_into_json(spark: Runner, dsn: str, mode: dict[str, Any]) -> None:
    does(dsn, MADE)
    outcome = spark({"sql": NESTED, "output": make_target(dsn, **mode)})
    assert isinstance(outcome, Success), outcome
    assert does(dsn, "select * from t") == [ROW]


def test_structs_and_maps_are_jsonb_in_a_new_table(spark: Runner, dsn: str) -> None:
    outcome = spark({"sql": NESTED, "output": make_target(dsn, mode="replace")})
    assert isinstance(outcome, Success), outcome
    assert does(dsn, "select * from t") == [ROW]
    kinds = does(
        dsn,
        "select pg_typeof(s)::text, pg_typeof(m)::text, pg_typeof(a)::text, pg_typeof(j)::text from t",
    )
    assert kinds == [("jsonb", "jsonb", "integer[]", "jsonb")]


def test_a_struct_for_another_column_is_refused_by_its_name(spark: Runner, dsn: str) -> None:
    does(dsn, "create table t (i int, s text)")
    failure = spark.failure(
        {"sql": "select 1 as i, named_struct('x', 1) as s", "output": make_target(dsn)}
    )
    assert failure.code == "SINK_COLUMN"
    assert (
        failure.message
        == """column 's': its structs and maps need json or jsonb, and in "t" it is text"""
    )
    strange = {"sql": "select map('a', 1) as z", "output": make_target(dsn)}
    assert "no column 'z'" in spark.failure(strange).message


# ---- values and keys that do not fit ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [
        ("int", "1.5d", "1.5 is no whole number"),
        ("smallint", "2.7bd", "2.7 is no whole number"),
        ("int[]", "array(1d, 1.5d)", "1.5 is no whole number"),
        ("small", "2.5d", "2.5 is no whole number"),
        ("boolean", "5", "5 is neither true nor false"),
        ("varchar(3)", "'abcd'", "value too long for type character varying(3)"),
    ],
)
def test_spark_output_refuses_values_that_the_column_would_change(
    spark: Runner, dsn: str, kind: str, given: str, message: str
) -> None:
    does(dsn, "create domain small as int", f"create table t (i int, v {kind})")
    failure = spark.failure({"sql": f"select 1 as i, {given} as v", "output": make_target(dsn)})
    assert failure.code == "SINK_VALUE"
    assert message in failure.message
    assert "libpq" not in failure.message
    assert does(dsn, "select * from t") == []


def test_spark_output_stores_whole_numbers_in_integer_columns(spark: Runner, dsn: str) -> None:
    does(
        dsn, "create table t (i int, s smallint, a int[], b boolean, n numeric(5, 2), v varchar(3))"
    )
    row = "select 2d as i, 3.0bd as s, array(4d) as a, 1 as b, 1.239d as n, 'abc' as v"
    sql = f"{row} union all select null, null, null, null, null, null"
    assert isinstance(spark({"sql": sql, "output": make_target(dsn)}), Success)
    found = does(dsn, "select i, s, a, b, n::text, v from t order by i nulls last")
    assert found == [(2, 3, [4], True, "1.24", "abc"), (None,) * 6]


UPSERT = {"mode": "upsert", "key": ["id"]}


@pytest.mark.parametrize("table", ["create table t (id int unique, v int)", "select 1"])
def test_spark_upsert_refuses_a_row_without_a_key(spark: Runner, dsn: str, table: str) -> None:
    does(dsn, table)
    sql = "select 1 as id, 7 as v union all select null, 9"
    failure = spark.failure({"sql": sql, "output": make_target(dsn, **UPSERT)})
    assert failure.code == "SINK_KEY_MISSING"
    assert failure.message == """"t": a row has no value for 'id', which is part of the key"""
    without = spark.failure({"sql": "select 1 as v", "output": make_target(dsn, **UPSERT)})
    assert (without.code, "no column 'id'" in without.message) == ("SINK_KEY_MISSING", True)


def test_spark_upsert_refuses_rows_with_the_same_key(spark: Runner, dsn: str) -> None:
    does(dsn, "create table t (id int primary key, v int)", "insert into t values (3, 1)")
    failure = spark.failure(
        {
            "sql": "select 3 as id, 7 as v union all select 3, 8",
            "output": make_target(dsn, **UPSERT),
        }
    )
    assert failure.code == "SINK_KEY_NOT_UNIQUE"
    assert "several rows have the key (id) = (3)" in failure.message
    assert does(dsn, "select * from t") == [(3, 1)]


@pytest.mark.parametrize("index", ["", "create unique index on t (v)"])
def test_spark_upsert_says_which_unique_index_the_table_needs(
    spark: Runner, dsn: str, index: str
) -> None:
    does(
        dsn,
        "create table t (id int, v int)",
        "insert into t values (1, 1), (1, 2)",
        index or "select 1",
    )
    failure = spark.failure({"sql": "select 1 as id, 7 as v", "output": make_target(dsn, **UPSERT)})
    assert failure.code == "SINK_KEY_NOT_UNIQUE"
    assert (
        failure.message
        == """"t" has no unique index on its key (id): CREATE UNIQUE INDEX ON "t" ("id")"""
    )
    indexes = does(dsn, "select count(*) from pg_indexes where tablename = 't'")
    assert indexes == [(1 if index else 0,)]


def test_spark_upsert_makes_a_new_table_with_a_unique_index_on_its_key(
    spark: Runner, dsn: str
) -> None:
    for value in (7, 8):
        outcome = spark(
            {"sql": f"select 1 as id, {value} as v", "output": make_target(dsn, **UPSERT)}
        )
        assert isinstance(outcome, Success), outcome
    assert does(dsn, "select * from t") == [(1, 8)]
    [(definition,)] = does(dsn, "select indexdef from pg_indexes where tablename = 't'")
    assert definition.startswith("CREATE UNIQUE INDEX")
    assert definition.endswith("(id)")
