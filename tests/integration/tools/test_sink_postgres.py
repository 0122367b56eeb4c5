"""The postgres target of sinks, on a real server: every mode, once; what is wrong is named."""

import asyncio
from collections.abc import AsyncIterator
from itertools import count as counting
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from noetl.tools.port import Outcome
from noetl.tools.postgres.tool import Postgres
from noetl.tools.sink.records import SINK_BATCH_ROWS
from noetl.tools.sink.tool import SinkTool
from tests.examples import count_examples
from tests.integration.tools import sinks
from tests.unit.tools.calls import call, failure, run, value

MANY = 2 * SINK_BATCH_ROWS + 7
REPEATED = {"row_count": 0, "repeated": True}
UPSERT = {"mode": "upsert", "key": ["a"]}
Rows = list[tuple[Any, ...]]


class PostgresTable:
    """A database with a table `t`, and sinks that write to it."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn

    def do(self, statement: str) -> Rows:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            done = connection.execute(statement.encode())
            return done.fetchall() if done.description else []

    def sink(
        self,
        data: Any,
        again: str = "k",
        *,
        timeout: int | None = None,
        dsn: str = "",
        **target: Any,
    ) -> Outcome:
        """`again` is the key of the call: a second call with the same key repeats the first."""
        told = {"kind": "postgres", "table": "t", **target}
        return sinks.outcome(told, data, again, auth={"dsn": dsn or self.dsn}, timeout=timeout)

    def rows(self) -> Rows:
        return self.do("SELECT * FROM t ORDER BY 1, 2")


@pytest.fixture
def sink_table(database: str) -> PostgresTable:
    made = PostgresTable(database)
    made.do("CREATE TABLE t (a int, b text DEFAULT 'given')")
    return made


def records(count: int) -> list[dict[str, Any]]:
    return [{"a": number, "b": f"row {number}"} for number in range(count)]


# ---- once --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 3, MANY])
@pytest.mark.parametrize("mode", ["insert", "append", "staged"])
def test_rows_are_added_once_per_key(sink_table: PostgresTable, mode: str, count: int) -> None:
    rows = [tuple(row.values()) for row in records(count)]
    assert value(sink_table.sink(records(count), mode=mode)) == {"row_count": count}
    assert value(sink_table.sink(records(count), mode=mode)) == REPEATED
    assert sink_table.rows() == rows
    assert value(sink_table.sink(records(count), "other", mode=mode)) == {"row_count": count}
    assert sink_table.rows() == sorted(rows * 2)
    kept = sink_table.do("SELECT sink_key, execution_id, step FROM noetl_sink ORDER BY 1")
    assert kept == [("k", "1", "s"), ("other", "1", "s")]


@pytest.mark.parametrize("count", [3, MANY])
@pytest.mark.parametrize("mode", ["upsert", "staged"])
def test_rows_replace_those_with_their_key_and_the_last_one_wins(
    sink_table: PostgresTable, mode: str, count: int
) -> None:
    sink_table.do("CREATE UNIQUE INDEX ON t (a); INSERT INTO t VALUES (0, 'old'), (-1, 'other')")
    data = [*records(count), {"a": 1, "b": "last"}]
    for _ in range(2):
        assert value(sink_table.sink(data, mode=mode, key=["a"])) == {"row_count": count}
    rows = dict(sink_table.rows())
    assert (rows[-1], rows[0], rows[1], len(rows)) == ("other", "row 0", "last", count + 1)
    assert sink_table.do("SELECT to_regclass('noetl_sink')::text") == [(None,)]
    assert sink_table.do("SELECT count(*) FROM pg_class WHERE relname LIKE 'noetl_stage%'") == [
        (0,)
    ]


@pytest.mark.parametrize("count", [0, 2, MANY])
def test_a_table_is_replaced(sink_table: PostgresTable, count: int) -> None:
    sink_table.do("INSERT INTO t VALUES (99, 'old')")
    for _ in range(2):
        assert value(sink_table.sink(records(count), mode="replace")) == {"row_count": count}
    assert sink_table.rows() == [tuple(row.values()) for row in records(count)]


def test_doubles_are_fine_when_that_is_said(sink_table: PostgresTable) -> None:
    for _ in range(2):
        sink_table.sink({"a": 1}, at_least_once=True)
    assert sink_table.rows() == [(1, "given")] * 2


def test_a_key_without_other_columns_is_kept_once(sink_table: PostgresTable) -> None:
    sink_table.do("CREATE UNIQUE INDEX ON t (a)")
    for _ in range(2):
        sink_table.sink([{"a": 1}, {"a": 1}], **UPSERT)
    assert sink_table.rows() == [(1, "given")]


def test_two_that_come_at_once_with_one_key_store_once(sink_table: PostgresTable) -> None:
    async def both() -> list[Outcome]:
        postgres = Postgres()
        tool = SinkTool(lambda: postgres, lambda: None)  # type: ignore[arg-type, return-value]  # nobody sends anything
        config = {"target": {"kind": "postgres", "table": "t"}, "data": records(5)}
        calls = [
            call(config, key=key, auth={"dsn": sink_table.dsn}) for key in ["x"] * 4 + ["y"] * 4
        ]
        try:
            return await asyncio.gather(*map(tool.run, calls))
        finally:
            await postgres.close()

    found = [value(outcome) for outcome in run(both())]
    assert sorted(map(str, found)) == sorted(map(str, [{"row_count": 5}] * 2 + [REPEATED] * 6))
    assert len(sink_table.rows()) == 10


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
RECORD = st.fixed_dictionaries(
    {"a": st.integers(-(2**31), 2**31 - 1)},
    optional={
        "b": st.none() | TEXT,
        "j": JSON.filter(lambda value: value is not None),
        "l": st.lists(st.none() | TEXT),
    },
)
numbers = counting()


@settings(
    max_examples=count_examples(30), suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.lists(RECORD, max_size=20))
def test_the_same_twice_leaves_the_table_as_once(
    sink_table: PostgresTable, data: list[dict[str, Any]]
) -> None:
    sink_table.do("DROP TABLE t; CREATE TABLE t (a int, b text, j jsonb, l text[])")
    key = f"call {next(numbers)}"
    for _ in range(2):
        value(sink_table.sink(data, key))
    expected = [(row["a"], row.get("b"), row.get("j"), row.get("l")) for row in data]
    assert sorted(sink_table.do("SELECT * FROM t"), key=repr) == sorted(expected, key=repr)


# ---- values ------------------------------------------------------------------------------------------------------------


def test_values_become_the_types_of_their_columns(sink_table: PostgresTable) -> None:
    sink_table.do(
        "CREATE TABLE typed (n numeric, d date, z timestamptz, j jsonb, x json, u uuid, y bytea, i int[], o bool, v varchar(3),"
        ' c char(3), "Mixed Case" text)'
    )
    row = {
        "n": 12345678901234567890, "d": "2030-01-02", "z": "2030-01-02T03:04:05+00:00", "j": {"k": [1, None]}, "x": "text",
        "u": "6f1e7a4e-9d2b-4f0a-8c43-2b2a5a0a7a11", "y": "/w==", "i": [1, None, 2], "o": False, "v": "abc", "c": "xy",
        "Mixed Case": "it's",
    }  # fmt: skip
    for data in (row, [row] * MANY):
        value(sink_table.sink(data, table="typed", at_least_once=True))
    [found] = sink_table.do(
        "SELECT DISTINCT n::text, d::text, extract(epoch from z)::int, j, x::text, u::text, y, i, o, v, c::text,"
        ' "Mixed Case" FROM typed'
    )
    assert found == (
        "12345678901234567890", "2030-01-02", 1893553445, {"k": [1, None]}, '"text"', row["u"], b"\xff", [1, None, 2], False,
        "abc", "xy", "it's",
    )  # fmt: skip


def test_columns_that_no_row_has_keep_their_default_and_others_are_null(
    sink_table: PostgresTable,
) -> None:
    sink_table.sink([{"a": 1}, {"a": 2}])
    sink_table.sink([{"a": 3}, {"a": 4, "b": "x"}], "second")
    sink_table.sink(
        [{"a": number} for number in range(5, 5 + SINK_BATCH_ROWS)] + [{"b": "late"}], "third"
    )
    assert sink_table.rows()[:4] == [(1, "given"), (2, "given"), (3, None), (4, "x")]
    assert sink_table.do("SELECT count(*) FROM t WHERE b IS NULL") == [(SINK_BATCH_ROWS + 1,)]
    assert sink_table.do("SELECT a FROM t WHERE b = 'late'") == [(None,)]


@pytest.mark.parametrize("table", ["s.Orders", "S.orders", '"s"."orders"', "orders"])
def test_names_are_found_as_written_or_folded(sink_table: PostgresTable, table: str) -> None:
    sink_table.do("CREATE SCHEMA s; CREATE TABLE s.orders (a int)")
    dsn = f"{sink_table.dsn}{'&' if '?' in sink_table.dsn else '?'}options=-csearch_path%3Ds,public"
    assert value(sink_table.sink({"a": 1}, table=table, dsn=dsn)) == {"row_count": 1}
    assert sink_table.do("SELECT * FROM s.orders") == [(1,)]


def test_rows_that_are_stored_are_read_in_batches(sink_table: PostgresTable) -> None:
    asked: list[int] = []

    class Stored:
        async def batches(self, size: int) -> AsyncIterator[list[Any]]:
            for start in range(0, MANY, size):
                asked.append(start)
                yield records(MANY)[start : start + size]

    assert value(sink_table.sink(Stored())) == {"row_count": MANY}
    assert asked == list(range(0, MANY, SINK_BATCH_ROWS))
    assert len(sink_table.rows()) == MANY


# ---- what is wrong -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, MANY])
@pytest.mark.parametrize(
    ("bad", "code", "said"),
    [
        (
            {"a": "x"},
            "SINK_VALUE",
            "t.a: rows[{at}] does not fit: invalid input syntax for type integer",
        ),
        ({"a": 2**40}, "SINK_VALUE", "t.a: rows[{at}] does not fit: value"),
        ({"a": 1, "v": "four"}, "SINK_VALUE", "t.v: rows[{at}] does not fit: value too long"),
        (
            {"a": 1, "c": 2},
            "SINK_COLUMN",
            "t has no column 'c', which rows[{at}] has; it has a, b, v",
        ),
        (5, "SINK_DATA", "rows[{at}] is a int"),
    ],
)
def test_a_value_that_does_not_fit_is_named(
    sink_table: PostgresTable, count: int, bad: Any, code: str, said: str
) -> None:
    sink_table.do("ALTER TABLE t ADD COLUMN v varchar(3)")
    found = failure(sink_table.sink([*records(count), bad, {"a": 7}]))
    assert found.code == code
    assert found.message.startswith(said.format(at=count))
    assert sink_table.rows() == []
    assert sink_table.do("SELECT * FROM noetl_sink") == []
    if code != "SINK_DATA":
        assert found.detail["row"] == count


def test_a_target_that_is_not_there_or_not_fit_says_so(sink_table: PostgresTable) -> None:
    assert failure(sink_table.sink({"a": 1}, table="nowhere")).code == "SINK_TABLE"
    assert failure(sink_table.sink({"a": 1}, mode="upsert", key=["nothing"])).code == "SINK_COLUMN"
    found = failure(sink_table.sink({"a": 1}, **UPSERT))
    assert (found.code, "CREATE UNIQUE INDEX ON t" in found.message) == (
        "SINK_KEY_NOT_UNIQUE",
        True,
    )
    assert failure(sink_table.sink({"b": "x"}, **UPSERT)).code == "SINK_KEY_MISSING"
    sink_table.do("ALTER TABLE t ADD UNIQUE (a); INSERT INTO t VALUES (1)")
    found = failure(sink_table.sink({"a": 1}))
    assert (found.code, found.kind, found.sqlstate) == ("SQL_ERROR", "constraint", "23505")


@pytest.mark.parametrize(
    "taken",
    [
        "REVOKE CREATE ON SCHEMA public FROM PUBLIC, pg_database_owner",
        "CREATE TABLE noetl_sink (sink_key text PRIMARY KEY, execution_id text, step text);"
        "REVOKE INSERT ON noetl_sink FROM CURRENT_USER",
    ],
)
def test_a_call_without_the_right_to_keep_keys_is_told_what_else_there_is(
    sink_table: PostgresTable, taken: str
) -> None:
    sink_table.do(f"CREATE UNIQUE INDEX ON t (a); {taken}")
    found = failure(sink_table.sink({"a": 1}))
    assert found.code == "SINK_FORBIDDEN"
    assert "mode: upsert" in found.message
    assert "at_least_once: true" in found.message
    assert sink_table.rows() == []
    assert value(sink_table.sink({"a": 1}, at_least_once=True)) == {"row_count": 1}
    assert value(sink_table.sink({"a": 1, "b": "x"}, **UPSERT)) == {"row_count": 1}


def test_a_call_whose_time_is_up_stops_in_the_server(sink_table: PostgresTable) -> None:
    with psycopg.connect(sink_table.dsn) as other:
        other.execute("LOCK TABLE t")
        found = failure(sink_table.sink({"a": 1}, timeout=200_000))
    assert (found.kind, found.sqlstate, found.retryable) == ("timeout", "57014", True)
    assert value(sink_table.sink({"a": 1})) == {"row_count": 1}


def test_a_call_that_is_cancelled_leaves_nothing(sink_table: PostgresTable) -> None:
    async def cancel_call() -> None:
        postgres = Postgres()
        begun = asyncio.Event()

        class EndlessRows:
            async def batches(self, size: int) -> AsyncIterator[list[Any]]:
                while True:
                    yield records(size)
                    begun.set()
                    await asyncio.sleep(0)

        tool = SinkTool(lambda: postgres, lambda: None)  # type: ignore[arg-type, return-value]  # nobody sends anything
        config = {"target": {"kind": "postgres", "table": "t"}, "data": EndlessRows()}
        running = asyncio.ensure_future(tool.run(call(config, auth={"dsn": sink_table.dsn})))
        await begun.wait()
        running.cancel()
        await asyncio.wait([running])
        assert running.cancelled()
        await postgres.close()

    run(cancel_call())
    assert sink_table.rows() == []
    assert sink_table.do("SELECT count(*) FROM noetl_sink") == [(0,)]
