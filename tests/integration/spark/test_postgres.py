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
