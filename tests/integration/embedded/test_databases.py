"""The databases that other tests are given."""

import psycopg

from tests.postgres import Postgres


def test_a_test_gets_an_empty_database_of_its_own(database: str, postgres: Postgres) -> None:
    with psycopg.connect(database) as connection:
        connection.execute("CREATE TABLE t (x int)")
    with postgres.database() as other, psycopg.connect(other) as connection:
        assert connection.execute("SELECT to_regclass('t')").fetchone() == (None,)


def test_a_database_can_be_a_copy_of_one_filled_once(postgres: Postgres) -> None:
    filled: list[str] = []

    async def fill(dsn: str) -> None:
        filled.append(dsn)
        async with await psycopg.AsyncConnection.connect(dsn) as connection:
            await connection.execute("CREATE TABLE t AS SELECT 7 AS x")

    for _ in range(2):
        with (
            postgres.database(template=postgres.template("seven", fill)) as dsn,
            psycopg.connect(dsn) as connection,
        ):
            assert connection.execute("SELECT x FROM t").fetchone() == (7,)
    assert len(filled) == 1
