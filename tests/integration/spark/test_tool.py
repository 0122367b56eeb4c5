"""The spark tool on a real server: what goes in, what comes out, what goes wrong."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from noetl.results.formats.tables import TableParts
from noetl.tools.port import Failed, Success
from tests.integration.spark.conftest import Runner, identity, of, rows_of
from tests.waiting import wait_until

ORDERS = [{"user": number % 3, "amount": number * 1.5} for number in range(10)]


# ---- sql -------------------------------------------------------------------------------------------------------------------


def test_inputs_are_views_and_values_are_parameters(spark: Runner, tmp_path: Path) -> None:
    pq.write_table(
        pa.table({"user": [0, 1, 2], "name": ["a", "b'", "c"], "more": [1, 2, 3]}),
        tmp_path / "users.parquet",
    )
    config = {
        "sql": """
            create temp view big as select * from orders where amount >= {{ least }}; -- ; nothing {{ least }}
            select {{ column | identifier }}, count(*) as n, '{{ hostile }}!' as said, {{ hostile }} as again
            from big join users using (user) where user != {{ none }} or {{ none }} is null group by name order by name
        """,
        "inputs": {
            "orders": "{{ orders }}",
            "users": {"path": str(tmp_path / "users.parquet"), "columns": ["user", "name"]},
        },
    }
    hostile = "x' or '1'='1 \\\" -- ` ; drop"
    scope = {"orders": ORDERS, "least": 3, "column": "name", "hostile": hostile, "none": None}
    said = {"said": f"{hostile}!", "again": hostile}
    assert spark.rows(config, scope) == [
        {"name": name, "n": n, **said} for name, n in (("a", 3), ("b'", 2), ("c", 3))
    ]


def test_many_rows_come_as_files_in_their_order_and_few_as_they_are(spark: Runner) -> None:
    outcome = spark({"sql": "select id, id * 2 as twice from range(0, 200000, 1, 5) order by id"})
    assert isinstance(outcome, Success)
    assert isinstance(outcome.value, TableParts)
    assert (outcome.value.rows, outcome.value.columns) == (200_000, ["id", "twice"])
    facts = outcome.facts["spark"]
    assert facts["files"] == len(outcome.value.tables)
    assert facts["bytes"] == sum(table.staged.size for table in outcome.value.tables)
    assert [row["id"] for row in of(outcome.value)] == list(range(200_000))
    assert (
        list((spark.folder / "results" / "staging").rglob("*.parquet")) == []
    )  # nothing stays behind

    assert spark.rows({"sql": "select id from range(3) order by id"}) == [
        {"id": 0},
        {"id": 1},
        {"id": 2},
    ]
    assert spark.rows({"sql": "select id from range(0)"}) == []


def test_types_survive(spark: Runner) -> None:
    sql = (
        "select cast(1.10 as decimal(10,2)) as d, timestamp'2024-01-02 03:04:05.678901' as t, date'2024-01-02' as day, "
        "array(1, 2) as list, named_struct('a', 1) as struct, cast(null as string) as nothing, true as b, map('k', 1) as m"
    )
    (row,) = spark.rows({"sql": sql})
    assert row == {
        "d": 1.1, "t": "2024-01-02T03:04:05.678901+00:00", "day": "2024-01-02", "list": [1, 2], "struct": {"a": 1},
        "nothing": None, "b": True, "m": {"k": 1},
    }  # fmt: skip


def test_a_value_may_be_large(spark: Runner) -> None:
    outcome = spark({"code": "result = 'x' * (20 << 20)"})
    assert isinstance(outcome, Success)
    assert len(outcome.value) == 20 << 20


def test_partitions_keep_their_column(spark: Runner) -> None:
    outcome = spark(
        {
            "sql": "select id, id % 4 as part from range(40000)",
            "output": {"partition_by": ["part"]},
        },
    )
    assert outcome.facts["spark"]["partitions"] == 4
    assert {(row["id"] % 4 == row["part"]) for row in rows_of(outcome)} == {True}


# ---- code ------------------------------------------------------------------------------------------------------------------


def test_an_input_is_spread_over_so_many_tasks(spark: Runner, tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": list(range(1_000))}), tmp_path / "ids.parquet")
    code = """
from pyspark.sql import functions as F
result = ids.groupBy(F.spark_partition_id().alias("part")).agg(F.min("id").alias("a"), F.count("*").alias("n")).orderBy("a")
"""
    given = {"path": str(tmp_path / "ids.parquet"), "partition": {"column": "id", "count": 4}}
    found = spark.rows({"code": code, "inputs": {"ids": given}})
    assert len(found) == 4
    assert [row["part"] for row in found] == [0, 1, 2, 3]
    assert sum(row["n"] for row in found) == 1_000


def test_code_has_spark_inputs_and_input_and_prints(spark: Runner) -> None:
    printed: list[tuple[str, str]] = []
    code = """
from pyspark.sql import functions as F
print("least", least)
result = orders.filter(F.col("amount") >= least).groupBy("user").agg(F.sum("amount").alias("total")).orderBy("user")
"""
    config = {"code": code, "inputs": {"orders": "{{ orders }}"}}
    found = spark.rows(
        config,
        {"orders": ORDERS},
        input={"least": 3},
        log=lambda stream, line: printed.append((stream, line)),
    )
    assert found == [
        {"user": 0, "total": 27.0},
        {"user": 1, "total": 16.5},
        {"user": 2, "total": 22.5},
    ]
    assert ("stdout", "least 3") in printed


def test_code_may_give_several_frames_or_none(spark: Runner) -> None:
    many = "spark.range(20000).selectExpr('id', 'rand() as x')"
    outcome = spark({"code": f"return {{'few': spark.range(2), 'many': {many}, 'count': 7}}"})
    assert isinstance(outcome, Success)
    assert outcome.value["count"] == 7
    assert (of(outcome.value["few"]), len(of(outcome.value["many"]))) == (
        [{"id": 0}, {"id": 1}],
        20_000,
    )
    counted = spark({"code": "result = spark.range(5).count()"})
    assert isinstance(counted, Success)
    assert counted.value == 5


# ---- expect ----------------------------------------------------------------------------------------------------------------

ROWS = "select id, if(id = 3, null, id) as x from range(10)"


def test_rows_that_do_not_meet_what_is_expected_are_counted_dropped_or_refused(
    spark: Runner,
) -> None:
    checks = [
        {"name": "known", "sql": "x is not null", "on_fail": "drop"},
        {"name": "small", "sql": "id < 8", "on_fail": "warn"},
    ]
    outcome = spark({"sql": ROWS, "expect": checks})
    assert outcome.facts["spark"]["expect"] == {"known": 1, "small": 2}
    assert len(rows_of(outcome)) == 9

    failure = spark.failure({"sql": ROWS, "expect": [{"name": "known", "sql": "x is not null"}]})
    assert (failure.code, failure.kind) == ("EXPECTATION_FAILED", "data")
    assert "known" in failure.message
    assert "1 rows" in failure.message

    assert (
        "expect"
        in spark.failure({"sql": ROWS, "expect": [{"name": "bad", "sql": "nowhere > 1"}]}).message
    )


@pytest.mark.parametrize("format", [None, "parquet", "csv", "json"])
def test_rows_that_fail_a_check_are_shown_up_to_twenty(
    spark: Runner, tmp_path: Path, format: str | None
) -> None:
    sql = "select cast(id as int) as id, if(id % 2 = 0, null, repeat('x', 2000)) as x, 'a' as day from range(100)"
    output = (
        {}
        if format is None
        else {"path": f"{tmp_path}/lake", "format": format, "partition_by": ["day"]}
    )
    check = {"name": "small", "sql": "id < {{ least }}"}
    outcome = spark({"sql": sql, "expect": [check], "output": output}, {"least": 97})
    assert isinstance(outcome, Failed)
    assert outcome.failure.detail == {}
    shown = sorted(outcome.sample or [], key=lambda row: int(row["id"]))
    assert [(row["id"], row["day"]) for row in shown] == [(97, "a"), (98, "a"), (99, "a")]
    assert (len(shown[0]["x"]), shown[1]["x"]) == (1_001, None)
    many = spark({"sql": sql, "expect": [{"name": "none", "sql": "false"}], "output": output})
    assert isinstance(many, Failed)
    assert len(many.sample or []) == 20


@pytest.mark.parametrize(
    "asked", [{"expect": [{"name": "few", "sql": "id < 3"}]}, {"output": {"path": "/nowhere/out"}}]
)
@pytest.mark.parametrize("result", ["5", "None", "{'a': spark.range(3)}"])
def test_what_is_for_a_frame_is_not_passed_over_for_a_value(
    spark: Runner, asked: dict[str, Any], result: str
) -> None:
    failure = spark.failure({"code": f"result = {result}", **asked})
    assert failure.code == "SPARK_CONFIG"
    assert "it is for a step that gives one DataFrame, not" in failure.message


# ---- paths -----------------------------------------------------------------------------------------------------------------


def test_a_path_is_written_once_however_often_the_call_is_made(
    spark: Runner, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    config = {"sql": "select id from range(100)", "output": {"path": str(lake), "mode": "append"}}
    key = uuid4().hex
    first = spark(config, key=key)
    assert isinstance(first, Success)
    assert (first.value["row_count"], first.value["path"]) == (100, str(lake))
    spark(config, key=key, identity=identity(attempt=2))
    assert _count(lake) == 100
    spark(config, key="f" * 32)
    assert _count(lake) == 200
    spark({**config, "output": {"path": str(lake), "mode": "overwrite"}}, key="e" * 32)
    assert _count(lake) == 100


@pytest.mark.parametrize("format", ["parquet", "csv", "json", "orc"])
def test_rows_that_went_to_a_path_are_counted_whatever_their_format(
    spark: Runner, tmp_path: Path, format: str
) -> None:
    config = {
        "sql": "select id, id % 3 as part from range(0, 3000, 1, 4)",
        "expect": [{"name": "few", "sql": "id >= 5", "on_fail": "drop"}],
        "output": {"path": str(tmp_path / "lake"), "format": format, "partition_by": ["part"]},
    }
    for number, rows in ((0, 2995), (1, 0)):
        outcome = spark({**config, "sql": f"{config['sql']} where {number} = 0"})
        assert isinstance(outcome, Success)
        assert outcome.value["row_count"] == rows
        assert outcome.value.get("files", 0) >= (rows > 0)


def test_csv_goes_out_with_a_header_and_comes_back_as_it_was(spark: Runner, tmp_path: Path) -> None:
    hostile = [
        {"id": 0, "text": 'say "hi", \\"you\\"'},
        {"id": 1, "text": "a,b;c\\"},
        {"id": 2, "text": None},
    ]
    lake = tmp_path / "lake.csv"
    written = {"sql": "select * from given order by id", "inputs": {"given": "{{ given }}"}}
    spark({**written, "output": {"path": str(lake)}}, {"given": hostile})
    ((count,),) = duckdb.sql(
        f"select count(*) from read_csv('{lake}/*.csv', header=true)"
    ).fetchall()
    assert count == 3
    read = {"path": str(lake), "options": {"header": True, "inferSchema": True}}
    assert (
        spark.rows({"sql": "select * from given order by id", "inputs": {"given": read}}) == hostile
    )
    spark(
        {**written, "output": {"path": str(lake), "options": {"header": False, "sep": "|"}}},
        {"given": hostile},
    )
    lines = [line for file in lake.glob("*.csv") for line in file.read_text().splitlines()]
    assert sorted(lines)[0].startswith("0|")
    assert len(lines) == 3


def test_several_paths_are_one_input(spark: Runner, tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}.json").write_text(f'{{"n": {number}}}\n')
    paths = [str(tmp_path / f"{number}.json") for number in range(2)]
    assert spark.rows({"sql": "select n from a order by n", "inputs": {"a": {"path": paths}}}) == [
        {"n": 0},
        {"n": 1},
    ]
    mixed = {"sql": "select 1", "inputs": {"a": {"path": [*paths, str(tmp_path / "x.csv")]}}}
    assert "input a: its paths are of several formats" in spark.failure(mixed).message


def test_a_relative_path_is_refused_where_spark_is_not_of_this_machine(spark: Runner) -> None:
    for config in ({"inputs": {"a": {"path": "some/a"}}}, {"output": {"path": "some/a"}}):
        failure = spark.failure({"sql": "select 1", **config})
        assert failure.kind == "config"
        assert "'some/a' is a relative path" in failure.message


def _count(folder: Path) -> int:
    ((count,),) = duckdb.sql(
        f"select count(*) from read_parquet('{folder}/**/*.parquet')"
    ).fetchall()
    return int(count)


# ---- what goes wrong -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "code", "kind", "said"),
    [
        ({"sql": "select nowhere from range(3)"}, "SPARK_ERROR", "syntax", "nowhere"),
        ({"sql": "selec 1"}, "SPARK_ERROR", "syntax", "selec"),
        ({"sql": "select 1; select * from nothing"}, "SPARK_ERROR", "not_found", "statement 2"),
        ({"sql": "select 1", "inputs": {"users": {"path": "/nowhere"}}}, "SPARK_ERROR", "not_found", "input users"),
        ({"sql": "select cast('x' as int)"}, "SPARK_ERROR", "data", "cannot be cast"),
        ({"sql": "select raise_error('no way')"}, "SPARK_ERROR", "sql", "no way"),
        ({"sql": " -- nothing"}, "SQL_EMPTY", "sql", "no statement"),
        ({"code": "x = 1\nresult = 1 / 0"}, "PYTHON_ERROR", "python", "ZeroDivisionError: division by zero (line 2)"),
        ({"code": "result = 'x' * (65 << 20)"}, "RESULT_TOO_LARGE", "python", "larger than 64 MB; give it as a DataFrame"),
        ({"sql": "select 1 as a, array(interval '1' day) as b"}, "SPARK_CONFIG", "config", "column b is an interval"),
        ({"sql": "select parse_json('1') as v"}, "SPARK_CONFIG", "config", "column v is a variant"),
        ({"code": "x = 1\nresult = spark.table('nothing').count()"}, "SPARK_ERROR", "not_found", "(line 2)"),
        ({"code": "result = object()"}, "RESULT_NOT_JSON", "python", "object cannot be written"),
        ({"code": "result = [float('nan')]"}, "RESULT_NOT_JSON", "python", "result[0] is NaN or infinite"),
        ({"code": "result = [{1: 'a', '1': 'b'}]"}, "RESULT_NOT_JSON", "python", "result[0] has the keys 1 and '1'"),
        (
            {"code": "result = {1: spark.range(1), '1': spark.range(2)}"},
            "RESULT_NOT_JSON", "python", "result has the keys 1 and '1'",
        ),
        ({"code": "import os; os._exit(3)"}, "TOOL_CRASHED", "crash", "exit code 3"),
        ({"sql": "select 1", "conf": {"spark.driver.memory": "9g"}}, "SPARK_CONFIG", "config", "spark.driver.memory"),
        ({"sql": "select 1", "conf": {"spark.sql.extensions": "x"}}, "SPARK_CONFIG", "config", "spark.sql.extensions"),
        ({"sql": "select 1", "profile": "yarn"}, "SPARK_CONFIG", "config", "yarn"),
        (
            {"code": "from pyspark.sql import functions as F\n"
                     "@F.udf('int')\ndef bad(x): raise ValueError(f'boom {x}')\n"
                     "result = spark.range(1).select(bad('id'))"},
            "PYTHON_ERROR", "python", "in a Spark task: ValueError: boom 0 (line 3)",
        ),
        (
            {"code": "from pyspark.sql import functions as F\n"
                     "@F.udf('int')\ndef big(x): return len(bytearray(1 << 46))\n"
                     "result = spark.range(1).select(big('id').alias('x'))"},
            "SPARK_OUT_OF_MEMORY", "resource", "a Python task: MemoryError",
        ),
        (
            {"code": "from pyspark.sql import functions as F\n"
                     "@F.udf('int')\ndef gone(x):\n    import os\n    os._exit(1)\n"
                     "result = spark.range(1).select(gone('id').alias('x'))"},
            "TOOL_CRASHED", "crash", "in a Spark task: its Python process ended",
        ),
    ],
    ids=lambda value: str(value)[:30] if isinstance(value, dict) else "",
)  # fmt: skip
def test_a_failure_says_what_and_where(
    spark: Runner, config: dict[str, Any], code: str, kind: str, said: str
) -> None:
    failure = spark.failure(config)
    assert (failure.code, failure.kind) == (code, kind)
    assert said in failure.message
    assert "stacktrace" not in failure.message


def test_conf_that_is_allowed_is_in_force(spark: Runner) -> None:
    config = {
        "code": "result = spark.conf.get('spark.sql.shuffle.partitions')",
        "conf": {"spark.sql.shuffle.partitions": 3},
    }
    outcome = spark(config)
    assert isinstance(outcome, Success)
    assert outcome.value == "3"


def test_a_session_that_brings_nothing_shares_what_spark_has_compiled(
    spark: Runner, tmp_path: Path
) -> None:
    (tmp_path / "note.txt").write_text("of one session")
    isolated = "set spark.sql.artifact.isolation.enabled"

    def is_own(config: dict[str, Any]) -> bool:
        return [row["value"] for row in spark.rows(config)] == ["true"]

    assert not is_own({"sql": isolated})
    assert is_own({"sql": f"add file '{tmp_path}/note.txt'; {isolated}"})
    assert is_own({"code": f"result = spark.sql('{isolated}')"})


# ---- stopping --------------------------------------------------------------------------------------------------------------

SLOW = """
from pyspark.sql import functions as F
from pathlib import Path
@F.udf('int')
def slow(x):
    import time
    Path({begun!r}).touch()
    for _ in range(600):
        time.sleep(0.1)
    Path({done!r}).touch()
    return 1
result = spark.range(0, 2, 1, 2).select(slow('id'))
"""


def test_a_call_that_is_cancelled_is_stopped_in_spark(spark: Runner, tmp_path: Path) -> None:
    begun, done = tmp_path / "begun", tmp_path / "done"
    call = spark.call({"code": SLOW.format(begun=str(begun), done=str(done))})

    async def cancel_call() -> Any:
        running = asyncio.ensure_future(spark.tool.run(call))
        await wait_until(partial(_exists, begun))
        running.cancel()
        await asyncio.wait([running])
        assert running.cancelled()
        return await spark.tool.run(
            spark.call({"sql": "select count(*) as x from range(0, 9, 1, 2)"})
        )

    assert rows_of(spark.run(cancel_call())) == [{"x": 9}]  # both cores are free again
    assert not done.exists()


def test_how_far_it_is_is_told_while_it_runs_and_not_printed(spark: Runner, tmp_path: Path) -> None:
    begun, done = tmp_path / "begun", tmp_path / "done"
    said, printed = list[str](), list[str]()
    call = spark.call(
        {"code": SLOW.format(begun=str(begun), done=str(done))},
        progress=said.append,
        log=lambda stream, line: printed.append(line),
    )

    async def watch_progress() -> None:
        running = asyncio.ensure_future(spark.tool.run(call))

        async def was_told() -> bool:
            return bool(said) or running.done()

        await wait_until(was_told)
        running.cancel()
        await asyncio.wait([running])

    spark.run(watch_progress())
    assert said[0] == "spark 0/2 tasks"
    assert printed == []


async def _exists(path: Path) -> bool:
    return await asyncio.to_thread(path.exists)


def test_a_new_lease_ends_the_session_of_the_one_before(spark: Runner, tmp_path: Path) -> None:
    """A zombie is interrupted, and nothing it does afterwards is taken."""
    begun, done, key = tmp_path / "begun", tmp_path / "done", uuid4().hex
    zombie = spark.call({"code": SLOW.format(begun=str(begun), done=str(done))}, key=key)

    async def taken_over() -> tuple[Any, Any]:
        running = asyncio.ensure_future(spark.tool.run(zombie))
        await wait_until(partial(_exists, begun))
        outcome = await spark.tool.run(
            spark.call({"sql": "select 2 as x"}, key=key, identity=identity(lease=2))
        )
        return outcome, await running

    outcome, left = spark.run(taken_over())
    assert rows_of(outcome) == [{"x": 2}]
    assert left.failure.code == "SPARK_INTERRUPTED"
    assert not done.exists()


def test_what_an_earlier_lease_had_finished_is_the_result(spark: Runner) -> None:
    config, key = {"sql": "select id, rand() as x from range(200000)"}, uuid4().hex
    first = spark(config, key=key)  # finished, but nobody stored or reported it
    assert isinstance(first, Success)
    kept = _read(first.value)
    second = spark(config, key=key, identity=identity(lease=2))
    assert isinstance(second, Success)
    assert _read(second.value) == kept
    first.value.close()
    second.value.close()
    assert list((spark.folder / "results" / "staging" / "spark").iterdir()) == []


def _read(parts: TableParts) -> pa.Table:
    return pa.concat_tables([pq.read_table(table.staged.path) for table in parts.tables])
