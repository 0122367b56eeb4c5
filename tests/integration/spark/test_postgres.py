"""Tables of Postgres as inputs and outputs of Spark, on a real one."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

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
