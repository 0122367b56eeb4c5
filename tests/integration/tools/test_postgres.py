"""The postgres tool on a real server."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from noetl.results.formats import rowsets
from noetl.results.formats.tables import TableOptions
from noetl.results.sources import MemorySource
from noetl.results.staging import Staging
from noetl.tools.port import Outcome, Success
from noetl.tools.postgres.tool import Postgres
from tests.examples import count_examples
from tests.unit.tools.calls import call, failure, run, value
from tests.unit.tools.injections import Ask, come_back_unchanged, leave_the_canary_alone


def play(database: str, test: Callable[[Ask], Awaitable[Any]]) -> Any:
    """With a function that runs a query on the database."""

    async def play_on_tool() -> Any:
        tool = Postgres()

        async def ask(
            query: str | list[str], scope: dict[str, Any] | None = None, **more: Any
        ) -> Outcome:
            timeout = more.pop("timeout", None)
            auth = more.pop("auth", {"dsn": database})
            tables = more.pop("tables", TableOptions())
            return await tool.run(
                call({"query": query, **more}, scope, auth=auth, timeout=timeout, tables=tables)
            )

        try:
            return await test(ask)
        finally:
            await tool.close()

    return run(play_on_tool())


def outcomes(where: str, *queries: str, **more: Any) -> list[Outcome]:
    async def test(ask: Ask) -> list[Outcome]:
        return [await ask(query, **more) for query in queries]

    found: list[Outcome] = play(where, test)
    return found


def test_the_last_statement_gives_the_rows(database: str) -> None:
    create, insert, select, empty, returning = outcomes(
        database,
        "CREATE TABLE t (a int, b text DEFAULT 'it''s')",
        "INSERT INTO t (a) VALUES (1), (2)",
        "SELECT 1; SELECT * FROM t ORDER BY a",
        "SELECT * FROM t WHERE a > 2",
        "UPDATE t SET a = a + 1 WHERE a = 2 RETURNING a",
    )
    assert value(create) == {"rows": [], "row_count": 0, "columns": []}
    assert value(insert) == {"rows": [], "row_count": 2, "columns": []}
    rows = [{"a": 1, "b": "it's"}, {"a": 2, "b": "it's"}]
    assert value(select) == {"rows": rows, "row_count": 2, "columns": ["a", "b"]}
    assert value(empty) == {"rows": [], "row_count": 0, "columns": ["a", "b"]}
    assert value(returning)["rows"] == [{"a": 3}]


def test_values_have_types(database: str) -> None:
    async def test(ask: Ask) -> Any:
        await ask(
            "CREATE TABLE t (i int, b bigint, f float8, t text, j jsonb, a int[], o bool, d date)"
        )
        scope = {
            "i": 1,
            "b": 2**40,
            "f": 1.5,
            "t": "x",
            "j": {"k": [1]},
            "a": [1, 2],
            "o": True,
            "d": "2030-01-02",
            "n": None,
        }
        names = "{{ i }}, {{ b }}, {{ f }}, {{ t }}, {{ j | tojson }}, {{ a }}, {{ o }}, {{ d }}"
        await ask(f"INSERT INTO t VALUES ({names})", scope)
        await ask(
            "INSERT INTO t (i, j) SELECT {{ n }}, '{{ j | tojson }}'::jsonb WHERE 1 = ANY({{ a }})",
            scope,
        )
        return value(await ask("SELECT * FROM t ORDER BY i"))["rows"]

    nothing = dict.fromkeys("i b f t a o d".split())
    assert play(database, test) == [
        {
            "i": 1,
            "b": 2**40,
            "f": 1.5,
            "t": "x",
            "j": {"k": [1]},
            "a": [1, 2],
            "o": True,
            "d": "2030-01-02",
        },
        {**nothing, "j": {"k": [1]}},
    ]


def test_statements_without_parameters_take_values_too(database: str) -> None:
    async def test(ask: Ask) -> Any:
        scope = {"x": "o'k \\", "n": 5, "t": 'a "b"'}
        await ask(
            "CREATE TABLE {{ t | identifier }} (a text DEFAULT {{ x }}, b int DEFAULT {{ n }}, c text DEFAULT '<{{ x }}>')",
            scope,
        )
        await ask("CREATE VIEW v AS SELECT {{ x }} AS y; COMMENT ON VIEW v IS '{{ x }}'", scope)
        await ask("INSERT INTO {{ t | identifier }} DEFAULT VALUES", scope)
        return value(await ask("SELECT * FROM {{ t | identifier }}, v", scope))["rows"]

    assert play(database, test) == [{"a": "o'k \\", "b": 5, "c": "<o'k \\>", "y": "o'k \\"}]


def test_a_task_is_one_transaction_unless_it_says_otherwise(database: str) -> None:
    _, first, count, second, again = outcomes(
        database,
        "CREATE TABLE t (a int)",
        "INSERT INTO t VALUES (1); SELECT 1 / 0",
        "SELECT count(*) AS n FROM t",
        "BEGIN; INSERT INTO t VALUES (1)",
        "SELECT count(*) AS n FROM t",
    )
    assert (failure(first).sqlstate, failure(second).code) == ("22012", "SQL_TRANSACTION")
    assert value(count)["rows"] == value(again)["rows"] == [{"n": 0}]
    kept, vacuum, count = outcomes(
        database,
        "INSERT INTO t VALUES (1); SELECT 1 / 0",
        "VACUUM",
        "SELECT count(*) AS n FROM t",
        autocommit=True,
    )
    assert failure(kept).code == "SQL_ERROR"
    assert value(vacuum)["row_count"] == 0
    assert value(count)["rows"] == [{"n": 1}]


@pytest.mark.parametrize(
    "query", ["INSERT INTO c VALUES (1)", "INSERT INTO c VALUES (1) RETURNING id"]
)
def test_autocommit_task_fails_when_a_constraint_fails_at_commit(database: str, query: str) -> None:
    tables = "CREATE TABLE p (id int PRIMARY KEY); CREATE TABLE c (id int REFERENCES p DEFERRABLE INITIALLY DEFERRED)"
    _, last, first, count = outcomes(
        database,
        tables,
        query,
        f"{query}; SELECT 1",
        "SELECT count(*) AS n FROM c",
        autocommit=True,
    )
    assert (failure(last).code, failure(last).sqlstate) == ("SQL_ERROR", "23503")
    assert (failure(first).code, failure(first).sqlstate) == ("SQL_ERROR", "23503")
    assert value(count)["rows"] == [{"n": 0}]


@pytest.mark.parametrize("last", ["INSERT INTO t VALUES (2)", "SELECT * FROM t"])
def test_autocommit_task_fails_when_it_leaves_a_transaction_open(database: str, last: str) -> None:
    _, left, ended, count = outcomes(
        database,
        "CREATE TABLE t (a int)",
        f"BEGIN; INSERT INTO t VALUES (1); {last}",
        "BEGIN; INSERT INTO t VALUES (3); COMMIT",
        "SELECT a FROM t",
        autocommit=True,
    )
    assert failure(left).code == "SQL_TRANSACTION"
    assert "add `commit`" in failure(left).message
    assert value(ended)["row_count"] == 0
    assert value(count)["rows"] == [{"a": 3}]


@pytest.mark.parametrize(
    ("query", "kind", "sqlstate", "retryable"),
    [
        ("SELECT 1 / 0", "data", "22012", False),
        ("SELEC", "syntax", "42601", False),
        ("INSERT INTO u VALUES (1), (1)", "constraint", "23505", False),
        ("DO $$ BEGIN RAISE SQLSTATE '40001'; END $$", "conflict", "40001", True),
        ("VACUUM", "transaction", "25001", False),
    ],
)
def test_errors_say_what_they_are(
    database: str, query: str, kind: str, sqlstate: str, retryable: bool
) -> None:
    found = failure(outcomes(database, "CREATE TABLE u (a int PRIMARY KEY)", query)[1])
    assert (found.code, found.kind, found.sqlstate, found.retryable) == (
        "SQL_ERROR",
        kind,
        sqlstate,
        retryable,
    )


@pytest.mark.parametrize(
    "query", ["INSERT INTO w VALUES ('secret', NULL)", "INSERT INTO w VALUES ('secret', -1)"]
)
def test_error_names_the_column_or_constraint_and_does_not_quote_the_row(
    database: str, query: str
) -> None:
    table = "CREATE TABLE w (t text, n int NOT NULL CONSTRAINT positive CHECK (n > 0))"
    _, insert = outcomes(database, table, f"{query}; SELECT 1")
    found = failure(insert)
    assert found.detail["table"] == "w"
    assert found.detail.get("column") == "n" or found.detail.get("constraint") == "positive"
    assert "detail" not in found.detail


def test_a_server_that_is_not_there_is_a_connection_failure() -> None:
    found = failure(outcomes("postgresql://x:y@127.0.0.1:1/z", "SELECT 1")[0])
    assert (found.code, found.kind, found.retryable) == ("CONNECTION_FAILED", "connection", True)
    missing = failure(outcomes("", "SELECT 1", auth=None)[0])
    assert missing.code == "AUTH_MISSING"
    assert missing.message.endswith("with host, user, password, database")


def test_a_credential_may_come_in_fields(database: str) -> None:
    parts = urlsplit(database)
    auth = {
        "host": parts.hostname,
        "port": parts.port,
        "username": parts.username,
        "password": parts.password,
    }
    [found] = outcomes("", "SELECT current_database() AS d", auth=auth, database=parts.path[1:])
    assert value(found)["rows"] == [{"d": parts.path[1:]}]


def test_nothing_of_a_call_is_left_for_the_next(database: str) -> None:
    query = "SELECT pg_backend_pid() AS pid, current_setting('work_mem') AS m, to_regclass('pg_temp.x') IS NULL AS clean"
    _, first, _, second = outcomes(
        database, "SELECT 1", query, "SET work_mem = '77MB'; CREATE TEMP TABLE x (a int)", query
    )
    assert value(first) == value(second)


def test_a_connection_that_the_server_closed_is_replaced(database: str) -> None:
    async def test(ask: Ask) -> Any:
        [row] = value(await ask("SELECT pg_backend_pid() AS pid"))["rows"]
        other = Postgres()
        await other.run(
            call({"query": "SELECT pg_terminate_backend({{ pid }})"}, row, auth={"dsn": database})
        )
        gone = call(
            {"query": "SELECT 1 FROM pg_stat_activity WHERE pid = {{ pid }}"},
            row,
            auth={"dsn": database},
        )
        while value(await other.run(gone))["rows"]:
            pass
        await other.close()
        return value(await ask("SELECT 1 AS a"))["rows"]

    assert play(database, test) == [{"a": 1}]


RUNNING = "SELECT 1 FROM pg_stat_activity WHERE query LIKE '%pg_sleep(6%' AND state = 'active' AND pid <> pg_backend_pid()"


def test_cancelling_cancels_in_the_server(database: str) -> None:
    async def test(ask: Ask) -> None:
        task = asyncio.ensure_future(ask("CREATE TABLE t (a int); SELECT pg_sleep(600)"))
        while not value(await ask(RUNNING))["rows"]:
            assert not task.done()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert value(await ask(RUNNING))["rows"] == []
        assert value(await ask("SELECT to_regclass('t') IS NULL AS gone"))["rows"] == [
            {"gone": True}
        ]

    play(database, test)


def test_the_server_knows_the_timeout_too(database: str) -> None:
    async def test(ask: Ask) -> Outcome:
        return await ask("SELECT pg_sleep(600)", timeout=50_000)

    found = failure(play(database, test))
    assert (found.kind, found.sqlstate, found.retryable) == ("timeout", "57014", True)


def test_rows_of_statements_before_the_last_go_nowhere(database: str) -> None:
    [discarded] = outcomes(
        database, "SELECT generate_series(1, 20000); SELECT to_regclass('t') AS t"
    )
    assert value(discarded)["rows"] == [{"t": None}]


# ---- many rows ---------------------------------------------------------------------------------------------------------

COLUMNS = """
    g AS i, g::bigint AS b, g::smallint AS s, g % 2 = 0 AS o, g / 7.0::float8 AS f, (g / 10.0)::real AS r, 'é' || g AS t,
    (g / 100.0)::numeric(12, 2) AS n, (g / 7.0)::numeric AS u, date '2030-01-01' + g AS d, time '01:02:03' AS k,
    timestamp '2030-01-01 01:02:03.5' AS l, timestamptz '2030-01-01 01:02:03+02' AS z, decode(lpad(g::text, 8, '0'), 'hex') AS h,
    md5(g::text)::uuid AS x, jsonb_build_object('g', g, 'n', null, 'e', 1.50) AS j, '{"a":  1}'::json AS y,
    CASE WHEN g > 5 THEN 'v' || g END AS v, NULL AS w"""


def test_many_rows_come_in_bulk_as_they_come_one_by_one(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same values of the same types; the second way has no bulk, since it has two statements."""
    query = f"SELECT {COLUMNS} FROM generate_series(1, 25000) g"
    bulk, rows = outcomes(database, query, f"SELECT 1; {query}")
    assert isinstance(bulk, Success)
    assert isinstance(rows, Success)
    one, other = (
        rowsets.open_rowset_reader(MemorySource(b"".join(found.value.staged.read_parts())), "")
        for found in (bulk, rows)
    )
    assert one.schema.equals(other.schema, check_metadata=True)
    found = one.read_value()
    assert found == other.read_value()
    assert found["row_count"] == 25_000
    assert found["rows"][6] == {
        "i": 7, "b": 7, "s": 7, "o": False, "f": 1.0, "r": 0.7, "t": "é7", "n": 0.07, "u": 1, "d": "2030-01-08", "k": "01:02:03",
        "l": "2030-01-01T01:02:03.500000", "z": "2029-12-31T23:02:03+00:00", "h": "AAAABw==",
        "x": "8f14e45f-ceea-167a-5a36-dedd4bea2543", "j": {"g": 7, "n": None, "e": 1.5}, "y": {"a": 1}, "v": "v7", "w": None,
    }  # fmt: skip


def test_types_that_arrow_has_no_like_for_become_json_or_text(database: str) -> None:
    query = """SELECT array[1, NULL] AS a, array[[1, 2], [3, 4]] AS b, array['{"k": 1}'::jsonb, NULL] AS c, array[1.5] AS d,
        '10.0.0.1'::inet AS e, int4range(1, 2) AS f, interval '1 day 1 second' AS g, row(1, 'x') AS h, 7::oid AS i,
        timetz '12:00+02' AS j, 'nan'::float8 AS k, 'NaN'::numeric AS l, array[date '2030-01-01'] AS m"""
    expected = {
        "a": [1, None], "b": [[1, 2], [3, 4]], "c": [{"k": 1}, None], "d": [1.5], "e": "10.0.0.1", "f": "[1, 2)", "g": 86401.0,
        "h": ["1", "x"], "i": 7, "j": "12:00:00+02:00", "k": "nan", "l": "NaN", "m": ["2030-01-01"],
    }  # fmt: skip
    few, many = outcomes(database, query, f"{query} FROM generate_series(1, 30000)")
    assert value(few)["rows"] == [expected]
    found = value(many)
    assert (found["row_count"], found["rows"][29_999]) == (30_000, expected)


def test_a_year_is_twelve_months_of_thirty_days(database: str) -> None:
    """As DuckDB gives it, and as Postgres compares."""
    spans = (
        "1 year",
        "13 months",
        "-1 year -2 days +00:00:01.5",
        "2 years -1 month",
        "-400 years",
        "3 days 04:05:06",
    )
    query = f"SELECT s, array[s] AS some FROM unnest(array{list(spans)!r}::interval[]) s"
    [found] = outcomes(database, query)
    day = 86_400.0
    expected = [360 * day, 390 * day, -362 * day + 1.5, 690 * day, -144_000 * day, 3 * day + 14_706]
    assert [(row["s"], row["some"]) for row in value(found)["rows"]] == [
        (span, [span]) for span in expected
    ]


@pytest.mark.parametrize("kind", ["date", "timestamp", "timestamptz"])
@pytest.mark.parametrize("sign", ["", "-"])
def test_infinity_is_refused_however_many_rows_there_are(
    database: str, kind: str, sign: str
) -> None:
    _check_refusal(database, f"SELECT {kind} '{sign}infinity' AS a")


def test_a_moment_that_no_column_holds_is_refused_however_many_rows_there_are(
    database: str,
) -> None:
    _check_refusal(database, "SELECT timestamp '294276-12-31' AS a")


def _check_refusal(database: str, one: str) -> None:
    few, many = outcomes(database, one, f"{one} FROM generate_series(1, 30000)")
    assert (failure(few).kind, failure(many).kind) == ("data", "data")
    assert "column 'a'" in failure(many).message
    assert failure(few) == failure(many)


def test_moments_beyond_pythons_are_kept_however_many_rows_there_are(database: str) -> None:
    far = """SELECT date '20000-02-29' AS d, date '0044-03-15 BC' AS b, date '0001-12-31 BC' AS c, date '0001-01-01' AS f,
        timestamp '10000-01-01' AS t, timestamp '294246-12-31 23:59:59.5' AS l, timestamp '4713-01-02 BC' AS o,
        timestamptz '0044-03-15 12:00:00.25+02 BC' AS z, timestamptz '10000-01-01 00:30+02' AS y, time '24:00:00' AS h"""
    expected = {
        "d": "20000-02-29", "b": "0044-03-15 (BC)", "c": "0001-12-31 (BC)", "f": "0001-01-01", "t": "10000-01-01T00:00:00",
        "l": "294246-12-31T23:59:59.500000", "o": "4713-01-02 (BC) 00:00:00", "z": "0044-03-15 (BC) 10:00:00.250000+00:00",
        "y": "9999-12-31T22:30:00+00:00", "h": "24:00:00",
    }  # fmt: skip
    few, many = outcomes(database, far, f"{far} FROM generate_series(1, 30000)")
    assert value(few)["rows"] == [expected]
    assert value(many)["rows"][29_999] == expected


@pytest.mark.parametrize("zone", ["UTC", "Europe/Amsterdam", "America/New_York"])
def test_a_far_moment_is_the_same_in_every_zone(database: str, zone: str) -> None:
    query = """SELECT timestamptz '0044-03-15 12:00+00 BC' AS a, timestamptz '20000-07-01 12:00+00' AS b,
        array[date '20000-01-01', NULL, '2030-01-02'] AS c"""
    [found] = outcomes(database, f"SET timezone = '{zone}'; {query}")
    [row] = value(found)["rows"]
    assert (row["a"], row["b"]) == ("0044-03-15 (BC) 12:00:00+00:00", "20000-07-01T12:00:00+00:00")
    assert row["c"] == ["20000-01-01", None, "2030-01-02"]


def test_an_infinite_moment_in_a_list_is_refused_with_its_column(database: str) -> None:
    [found] = outcomes(database, "SELECT array[date 'infinity'] AS days")
    assert (
        failure(found).message
        == "column 'days' has a moment or a span of time that is infinite, or too far: cast it to text"
    )


def test_an_interval_without_end_is_refused(database: str) -> None:
    found = outcomes(
        database, "SELECT interval '-infinity' AS a", "SELECT interval '2000000 years' AS a"
    )
    assert [failure(one).kind for one in found] == ["data", "data"]
    assert all("column 'a'" in failure(one).message for one in found)


@pytest.mark.parametrize(
    ("query", "count"),
    [
        ("SELECT g FROM many -- all of them", 30_000),
        ("SELECT g, g FROM many /* twice */ ORDER BY g LIMIT 25000", 25_000),
        ("TABLE many", 30_000),
        ("SELECT g FROM many FOR UPDATE", 30_000),
        ("SELECT g INTO others FROM many", 30_000),
        ("SELECT FROM many", 30_000),
        ("WITH gone AS (DELETE FROM many RETURNING g) SELECT g FROM gone", 30_000),
    ],
)
def test_any_statement_that_the_planner_expects_much_of(
    database: str, query: str, count: int
) -> None:
    _, found = outcomes(
        database,
        "CREATE TABLE many AS SELECT g FROM generate_series(1, 30000) g; ANALYZE many",
        query,
    )
    assert value(found)["row_count"] == count


def files(folder: Path) -> list[Path]:
    return list(folder.iterdir())


def test_values_in_a_bulk_read_are_data(database: str) -> None:
    async def test(ask: Ask) -> Any:
        x = "o'k \\ $1 {{ y }}"
        query = "SELECT {{ x }} AS x, {{ n }} + g AS n FROM generate_series(1, 30000) g WHERE g = ANY({{ some }})"
        return value(await ask(query, {"x": x, "n": 7, "some": [1, 3]}))["rows"], x

    rows, x = play(database, test)
    assert rows == [{"x": x, "n": 8}, {"x": x, "n": 10}]


@pytest.mark.parametrize("first", ["", "SELECT 1; "])
def test_what_fails_in_the_middle_fails_and_leaves_nothing(
    database: str, first: str, tmp_path: Path
) -> None:
    query = (
        f"{first}SELECT g, repeat('x', 300), 1 / (49000 - g) AS d FROM generate_series(1, 50000) g"
    )

    async def test(ask: Ask) -> Outcome:
        return await ask(query, tables=TableOptions(Staging(tmp_path)))

    found = failure(play(database, test))
    assert (found.code, "division by zero" in found.message) == ("SQL_ERROR", True)
    assert not files(tmp_path)


def test_cancelling_a_bulk_read_cancels_in_the_server(database: str, tmp_path: Path) -> None:
    async def test(ask: Ask) -> None:
        query = "SELECT generate_series(1, 100000000), repeat('x', 300), 'endless'"
        task = asyncio.ensure_future(ask(query, tables=TableOptions(Staging(tmp_path))))
        while not files(tmp_path):
            assert not task.done()
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        running = "SELECT 1 FROM pg_stat_activity WHERE query LIKE '%endless%' AND state = 'active' AND pid <> pg_backend_pid()"
        assert value(await ask(running))["rows"] == []
        assert not files(tmp_path)

    play(database, test)


def test_a_payload_is_data_wherever_it_stands(database: str) -> None:
    play(database, leave_the_canary_alone)


@settings(
    max_examples=count_examples(50), suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(
        st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
        max_size=5,
    )
)
def test_any_text_comes_back_unchanged(database: str, texts: list[str]) -> None:
    async def test(ask: Ask) -> None:
        for x in texts:
            await come_back_unchanged(ask, x)

    play(database, test)


@pytest.mark.parametrize("x", ["a\0b", "\ud800"])
def test_a_text_that_postgres_cannot_hold_is_refused(database: str, x: str) -> None:
    async def test(ask: Ask) -> list[Outcome]:
        return [
            await ask("SELECT {{ x }}", {"x": x}),
            await ask("CREATE VIEW v AS SELECT {{ x }} AS a", {"x": x}),
        ]

    for found in play(database, test):
        assert failure(found).kind in ("data", "sql")
