"""Ordinary SQL with values works on both databases, and no value changes a statement: see `sql_corpus.py`."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from noetl.playbook.sqltext import Dialect
from noetl.results.formats.tables import TableOptions
from noetl.tools.duckdb.tool import Duckdb
from noetl.tools.port import Outcome
from noetl.tools.postgres.tool import Postgres
from tests.integration.tools.sql_corpus import (
    CASES,
    HOSTILE,
    HOSTILES,
    REFUSED,
    SCOPE,
    Hostile,
    Refused,
    SqlCase,
)
from tests.postgres import Postgres as Server
from tests.unit.tools.calls import call, failure, value
from tests.waiting import HANG_LIMIT_S


class Databases:
    """Both, with one connection for all statements; nothing of a statement is kept."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._runner = asyncio.Runner()
        self._postgres = Postgres()
        self._duckdb = Duckdb()

    def ask(self, database: Dialect, sql: str, scope: dict[str, Any], **params: Any) -> Outcome:
        tool = self._postgres if database == "postgres" else self._duckdb
        asked = call(
            {"query": sql, "params": params}, scope, auth={"dsn": self._dsn}, tables=TableOptions()
        )
        return self._runner.run(asyncio.wait_for(tool.run(asked), HANG_LIMIT_S))

    def close(self) -> None:
        self._runner.run(self._postgres.close())
        self._runner.close()


@pytest.fixture(scope="module")
def databases(postgres: Server) -> Iterator[Databases]:
    with postgres.database() as dsn:
        made = Databases(dsn)
        try:
            yield made
        finally:
            made.close()


def each(cases: list[Any]) -> list[Any]:
    return [
        pytest.param(database, case, id=f"{database}-{case.name}")
        for case in cases
        for database in case.on
    ]


@pytest.mark.parametrize(("database", "case"), each(CASES))
def test_ordinary_sql_takes_values(database: Dialect, case: SqlCase, databases: Databases) -> None:
    found = value(databases.ask(database, case.sql, SCOPE, given=5))
    assert found["rows"] == case.rows


@pytest.mark.parametrize(("database", "case"), each(REFUSED))
def test_a_value_that_would_be_sql_is_refused(
    database: Dialect, case: Refused, databases: Databases
) -> None:
    assert case.message in failure(databases.ask(database, case.sql, SCOPE, given=5)).message


@pytest.mark.parametrize(("database", "case"), each(HOSTILES))
def test_hostile_values_come_back_unchanged(
    database: Dialect, case: Hostile, databases: Databases
) -> None:
    check_values(databases, database, case, choose_values(database, case))


@pytest.mark.long
@pytest.mark.parametrize(("database", "case"), each(HOSTILES))
def test_every_hostile_value_comes_back_unchanged(
    database: Dialect, case: Hostile, databases: Databases
) -> None:
    check_values(databases, database, case, HOSTILE)


def choose_values(database: Dialect, case: Hostile) -> list[str]:
    """All values, or every sixth for DuckDB, which needs 30 ms to open a database: others with each
    statement, so that the statements together try all of them."""
    if database == "postgres":
        return HOSTILE
    return HOSTILE[HOSTILES.index(case) % 6 :: 6]


def check_values(databases: Databases, database: Dialect, case: Hostile, values: list[str]) -> None:
    for x in values:
        found = value(databases.ask(database, case.sql, {**SCOPE, "x": x}, x=x))
        assert found["rows"] == case.rows(x), repr(x[:60])


def test_a_text_with_the_character_zero_is_kept_or_refused(databases: Databases) -> None:
    x = "a\0'b"
    rows = value(databases.ask("duckdb", "select {{ x }} as a, '{{ x }}' as b", {"x": x}))["rows"]
    assert rows == [{"a": x, "b": x}]
    for place in ("{{ x }}", "'{{ x }}'", "E'{{ x }}'", "{{ [x] }}"):
        refused = failure(databases.ask("postgres", f"select {place} as a", {"x": x}))
        assert (refused.code, "character zero" in refused.message) == ("SQL_VALUE", True)


def test_there_are_enough_statements() -> None:
    assert len(CASES) + len(HOSTILES) >= 80
