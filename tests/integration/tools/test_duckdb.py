"""The duckdb tool."""

import asyncio
from pathlib import Path
from typing import Any

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noetl.results.formats.rowsets import open_table_reader
from noetl.tools.duckdb.tool import Duckdb, register_input
from noetl.tools.port import Outcome, Success
from tests.examples import count_examples
from tests.unit.tools.calls import call, failure, run, value
from tests.unit.tools.injections import come_back_unchanged, leave_the_canary_alone


async def ask(
    query: str | list[str], scope: dict[str, Any] | None = None, **config: Any
) -> Outcome:
    return await Duckdb().run(call({"query": query, **config}, scope))


def outcome(query: str | list[str], scope: dict[str, Any] | None = None, **config: Any) -> Outcome:
    found: Outcome = run(ask(query, scope, **config))
    return found


def test_the_last_statement_gives_the_rows() -> None:
    found = value(
        outcome(
            "CREATE TABLE t (a int); INSERT INTO t VALUES ({{ n }}), (2); FROM t ORDER BY a",
            {"n": 1},
        )
    )
    assert found == {"rows": [{"a": 1}, {"a": 2}], "row_count": 2, "columns": ["a"]}


def test_a_statement_that_gives_no_rows_counts_what_it_changed() -> None:
    found = value(outcome(["CREATE TABLE t (a int)", "INSERT INTO t VALUES (1), (2)"]))
    assert found == {"rows": [], "row_count": 2, "columns": []}


def test_no_rows_have_columns_still() -> None:
    assert value(outcome("SELECT 1 AS a WHERE false")) == {
        "rows": [],
        "row_count": 0,
        "columns": ["a"],
    }


def test_inputs_are_tables() -> None:
    rows = [{"a": 1, "b": "x"}, {"a": 2, "c": [1]}, {"a": 3, "b": 4}]
    found = value(
        outcome(
            "SELECT sum(a) AS s, count(b) AS b, count(c) AS c FROM r, n",
            inputs={"r": rows, "n": {"rows": [1]}},
        )
    )
    assert found["rows"] == [{"s": 6, "b": 2, "c": 1}]


def test_types_of_duckdb_become_json() -> None:
    query = """SELECT 1.5::DECIMAL(10,2) AS a, timestamptz '2030-01-02 03:04:05+00' AS b, '{"k": [1]}'::JSON AS c,
               interval 1 day AS d, {'x': 1} AS e, map {'y': 2} AS f,
               'nan'::DOUBLE AS g, date '2030-01-02' AS h, '\\xFF'::BLOB AS i, [1, NULL] AS j,
               1::HUGEINT << 100 AS k, true AS l"""
    [row] = value(outcome(query))["rows"]
    assert row == {
        "a": 1.5, "b": "2030-01-02T03:04:05+00:00", "c": {"k": [1]}, "d": 86400.0, "e": {"x": 1}, "f": {"y": 2}, "g": "nan",
        "h": "2030-01-02", "i": "/w==", "j": [1, None], "k": str(1 << 100), "l": True,
    }  # fmt: skip


def test_what_arrow_does_not_carry_is_text() -> None:
    query = """SELECT 5::UHUGEINT AS few, 340282366920938463463374607431768211455::UHUGEINT AS many, NULL::UHUGEINT AS none,
               1::BIGNUM AS one, repeat('9', 60)::BIGNUM AS vast, '101'::BIT AS bits, timetz '10:00:00+02' AS zoned,
               {'a "b': ['11'::BIT], 'n': 1} AS inside, map {7::UHUGEINT: timetz '10:00:00-03:30'} AS pairs,
               array_value('1'::BIT, NULL) AS both, union_value(u := '0'::BIT) AS any, 2 AS few"""
    [row] = value(outcome(query))["rows"]
    assert row == {
        "few": 5, "many": str(2**128 - 1), "none": None, "one": 1, "vast": "9" * 60, "bits": "101", "zoned": "10:00:00+02",
        "inside": {'a "b': ["11"], "n": 1}, "pairs": {"7": "10:00:00-03:30"}, "both": ["1", None], "any": "0", "few_2": 2,
    }  # fmt: skip


FAR = """SELECT d, d::TIMESTAMP AS at, [d] AS days, {'d': d} AS inside FROM (VALUES
         (date 'infinity'), ('-infinity'), ('20000-01-01'), ('0044-03-15 (BC)'), ('2030-01-02'), (NULL)) v (d)"""


def test_moments_that_python_does_not_count_are_text() -> None:
    days = ["infinity", "-infinity", "20000-01-01", "0044-03-15 (BC)", "2030-01-02", None]
    moments = [
        "infinity",
        "-infinity",
        "20000-01-01T00:00:00",
        "0044-03-15 (BC) 00:00:00",
        "2030-01-02T00:00:00",
        None,
    ]
    assert value(outcome(FAR))["rows"] == [
        {"d": day, "at": at, "days": [day], "inside": {"d": day}}
        for day, at in zip(days, moments, strict=True)
    ]
    query = """SELECT timestamptz 'infinity' AS a, timestamp_s '-infinity' AS b, timestamp_ms 'infinity' AS c,
               timestamp_ns '-infinity' AS d, timestamptz '10000-01-01 00:00:00.5+00' AS e, time '24:00:00' AS f,
               map {date 'infinity': 1} AS g, union_value(u := date 'infinity') AS h"""
    assert value(outcome(query))["rows"] == [
        {"a": "infinity", "b": "-infinity", "c": "infinity", "d": "-infinity", "e": "10000-01-01T00:00:00.500000+00:00",
         "f": "24:00:00", "g": {"infinity": 1}, "h": "infinity"}
    ]  # fmt: skip


@pytest.mark.parametrize("count", [1, 100_000])
def test_infinity_is_what_it_was_for_whoever_reads_the_rows(count: int) -> None:
    """Few rows are in memory, many in a file."""
    query = f"""SELECT date 'infinity' AS d, timestamptz 'infinity' AS tz, timestamp 'infinity' AS us,
                timestamp_s 'infinity' AS s, timestamp_ms 'infinity' AS ms, timestamp_ns 'infinity' AS ns,
                md5(range::text) AS t FROM range({count})"""
    names = ("d", "tz", "us", "s", "ms", "ns")
    found = outcome(query)
    assert isinstance(found, Success)
    reader = open_table_reader(found.value)
    try:
        [row] = reader.read_rows(count - 1, count)
        assert [row[name] for name in names] == ["infinity"] * 6
        texts = ", ".join(f"min({name}::text)" for name in names)
        with (
            duckdb.connect() as connection,
            register_input(connection, "r", reader, call({}).tables.staging),
        ):
            assert connection.sql(f"SELECT {texts} FROM r").fetchall() == [("infinity",) * 6]
    finally:
        found.value.close()


def test_a_file_keeps_what_was_committed_and_nothing_of_a_failure(tmp_path: Path) -> None:
    database = str(tmp_path / "d.duckdb")
    assert value(outcome("CREATE TABLE t (a int)", database=database))["row_count"] == 0
    found = failure(outcome("INSERT INTO t VALUES (1); SELECT nonsense", database=database))
    assert (found.code, found.kind) == ("SQL_ERROR", "syntax")
    assert value(outcome("FROM t", database=database))["rows"] == []
    found = failure(
        outcome("INSERT INTO t VALUES (1); SELECT nonsense", database=database, autocommit=True)
    )
    assert value(outcome("FROM t", database=database))["rows"] == [{"a": 1}]


@pytest.mark.parametrize("last", ["INSERT INTO t VALUES (2)", "FROM t"])
def test_autocommit_task_fails_when_it_leaves_a_transaction_open(tmp_path: Path, last: str) -> None:
    database = str(tmp_path / "d.duckdb")
    value(outcome("CREATE TABLE t (a int)", database=database))
    left = failure(
        outcome(f"BEGIN; INSERT INTO t VALUES (1); {last}", database=database, autocommit=True)
    )
    assert left.code == "SQL_TRANSACTION"
    assert "add `commit`" in left.message
    value(outcome("BEGIN; INSERT INTO t VALUES (3); COMMIT", database=database, autocommit=True))
    assert value(outcome("FROM t", database=database))["rows"] == [{"a": 3}]


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("BEGIN; SELECT 1", "SQL_TRANSACTION"),
        ("-- nothing", "SQL_EMPTY"),
        ("", "SQL_EMPTY"),
        ("SELECT {{ {} }}", "SQL_VALUE"),
    ],
)
def test_what_is_refused(query: str, code: str) -> None:
    assert failure(outcome(query)).code == code


def test_a_script_is_not_a_template(tmp_path: Path) -> None:
    script = tmp_path / "s.sql"
    script.write_text("SELECT $x AS a, '{{ x }}' AS b")
    found = run(Duckdb().run(call({"script": {"uri": script.as_uri()}, "params": {"x": 1}})))
    assert value(found)["rows"] == [{"a": 1, "b": "{{ x }}"}]


def test_cancelling_interrupts_the_statement() -> None:
    async def test() -> None:
        endless = (
            "SELECT count(*) FROM range(1000000000) a, range(1000000) b WHERE a.range + b.range = 7"
        )
        task = asyncio.ensure_future(ask(endless))
        done, _ = await asyncio.wait([task], timeout=0.2)
        assert not done
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    run(test())


def test_a_payload_is_data_wherever_it_stands(tmp_path: Path) -> None:
    database = str(tmp_path / "d.duckdb")
    run(leave_the_canary_alone(lambda *given, **more: ask(*given, database=database, **more)))


@settings(max_examples=count_examples(20))
@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_any_text_comes_back_unchanged(x: str) -> None:
    run(come_back_unchanged(ask, x))
