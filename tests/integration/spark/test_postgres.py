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


def taken(dsn: str, **more: Any) -> dict[str, Any]:
    return {"kind": "postgres", "auth": {"dsn": dsn}, **more}


def test_a_table_of_postgres_is_an_input_by_its_name(spark: Runner, dsn: str) -> None:
    does(dsn, "create schema other", """create table other."A {{ b }}" as select 1 as i, 'x' as "T" """)
    given = taken(dsn, table="{{ schema }}.A {{ '{{ b }}' }}")
    config = {"sql": "select * from t", "inputs": {"t": given}}
    assert spark.rows(config, {"schema": "other"}) == [{"i": 1, "T": "x"}]
    failure = spark.failure({"sql": "select * from t", "inputs": {"t": taken(dsn, table="nothing")}})
    assert failure.message.startswith("input t: ")
    assert '"nothing" does not exist' in failure.message


def test_a_name_of_a_table_is_a_name_whatever_is_in_it(spark: Runner, dsn: str) -> None:
    does(dsn, "create table safe (n int)")
    name = "it's\" ; drop table safe; --"
    output = {**taken(dsn), "table": name, "mode": "upsert", "key": ["id"]}
    for _ in range(2):
        assert isinstance(spark({"sql": "select id from range(3)", "output": output}), Success)
    quoted = '"' + name.replace('"', '""') + '"'
    assert does(dsn, f"select count(*) from {quoted}, (select count(*) from safe) s") == [(3,)]


# ---- numbers ---------------------------------------------------------------------------------------------------------------

FITTING = ["0.0000001", "-99999999999999999999.999999999999999999", "1.50000000000000000000000", "0", "-0.5"]


@pytest.mark.parametrize("rows", [1, 30_000])  # these come another way
def test_a_numeric_without_precision_keeps_every_digit(spark: Runner, dsn: str, rows: int) -> None:
    numbers = ", ".join(f"{text}::numeric as n{number}" for number, text in enumerate(FITTING))
    query = f"select {numbers}, null::numeric as nothing, gen_random_uuid() as u from generate_series(1, {rows}) x"
    same = " and ".join(f"n{number} = {text}BD" for number, text in enumerate(FITTING))
    sql = f"select typeof(n0) as kind, typeof(u) as text, count(*) as n from t where {same} and nothing is null group by all"
    found = spark.rows({"sql": sql, "inputs": {"t": taken(dsn, query=query)}})
    assert found == [{"kind": "decimal(38,18)", "text": "string", "n": rows}]


@pytest.mark.parametrize("text", ["0.12345678901234567890123456789", "123456789012345678901", "'NaN'", "'-Infinity'"])
def test_a_numeric_that_would_lose_something_is_refused_by_name(spark: Runner, dsn: str, text: str) -> None:
    given = taken(dsn, query=f'select {text}::numeric as "n.`x", 1 as m')
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
MADE = "create table t (i int, s jsonb, m json, a int[], l jsonb, j jsonb, nothing jsonb)"


def stored(dsn: str, **more: Any) -> dict[str, Any]:
    return {"kind": "postgres", "auth": {"dsn": dsn}, "table": "t", **more}


@pytest.mark.parametrize("mode", [{"mode": "insert"}, {"mode": "upsert", "key": ["i"]}, {"mode": "replace"}])
def test_structs_and_maps_go_into_json(spark: Runner, dsn: str, mode: dict[str, Any]) -> None:
    does(dsn, MADE)
    outcome = spark({"sql": NESTED, "output": stored(dsn, **mode)})
    assert isinstance(outcome, Success), outcome
    assert does(dsn, "select * from t") == [ROW]


def test_structs_and_maps_are_jsonb_in_a_new_table(spark: Runner, dsn: str) -> None:
    outcome = spark({"sql": NESTED, "output": stored(dsn, mode="replace")})
    assert isinstance(outcome, Success), outcome
    assert does(dsn, "select * from t") == [ROW]
    kinds = does(dsn, "select pg_typeof(s)::text, pg_typeof(m)::text, pg_typeof(a)::text, pg_typeof(j)::text from t")
    assert kinds == [("jsonb", "jsonb", "integer[]", "jsonb")]


def test_a_struct_for_another_column_is_refused_by_its_name(spark: Runner, dsn: str) -> None:
    does(dsn, "create table t (i int, s text)")
    failure = spark.failure({"sql": "select 1 as i, named_struct('x', 1) as s", "output": stored(dsn)})
    assert failure.code == "SINK_COLUMN"
    assert failure.message == """column 's': its structs and maps need json or jsonb, and in "t" it is text"""
    strange = {"sql": "select map('a', 1) as z", "output": stored(dsn)}
    assert "no column 'z'" in spark.failure(strange).message
