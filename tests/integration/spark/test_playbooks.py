"""Spark steps among others, as users run them: by `noetl run`, on real parts."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from tests.postgres import scratch
from tests.stack import NoetlCommand, inspect_home, write_playbook

FLOW = """\
  - step: orders
    tool: {kind: python, code: "result = [{'user': n % 3, 'amount': n} for n in range(300)]"}
    next: many
  - step: many
    tool:
      kind: spark
      inputs: {orders: "{{ orders }}"}
      sql: select o.user, o.amount, n.id, rand(3) as x from orders o cross join range({{ 1000 }}) n order by n.id, o.amount
    next: both
  - step: both
    tool:
      kind: spark
      inputs: {many: "{{ many.rows }}", orders: "{{ orders }}"}
      code: |
        return {"all": many, "sums": many.groupBy("user").sum("amount").orderBy("user"), "n": orders.count()}
    next: ducks
  - step: ducks
    tool:
      kind: duckdb
      inputs: {many: "{{ both.all }}"}
      query: select count(*) as n, sum(amount)::bigint as total, count(distinct id) as ids from many
    next: last
  - step: last
    tool:
      kind: python
      input:
        count: "{{ many.row_count }}"
        columns: "{{ many.columns }}"
        item: "{{ many.rows[150300] }}"
        slice: "{{ many.rows[299:301] }}"
        sums: "{{ both.sums.rows }}"
        n: "{{ both.n }}"
        ducks: "{{ ducks.rows[0] }}"
        files: "{{ many.spark.files }}"
      code: |
        for row in (input["item"], *input["slice"]):
            row.pop("x")
        result = input
"""
BROKEN = """\
  - step: totals
    tool: {kind: spark, sql: select nowhere from range(3)}
"""


@pytest.fixture(scope="module")
def noetl(spark_url: str) -> Iterator[NoetlCommand]:
    home = Path(tempfile.mkdtemp(dir=scratch(), prefix="noetl-test-spark-"))
    yield NoetlCommand(home).with_env(NOETL_SPARK_PROFILE=spark_url)
    inspect_home(home)
    shutil.rmtree(home, ignore_errors=True)


def test_rows_flow_through_spark_and_back(noetl: NoetlCommand, tmp_path: Path) -> None:
    said = noetl.json("run", write_playbook(tmp_path, "flow", FLOW))
    assert said["status"] == "completed", said
    result = said["result"]
    assert result.pop("files") >= 1
    assert result == {
        "count": 300_000,
        "columns": ["user", "amount", "id", "x"],
        "item": {"user": 0, "amount": 0, "id": 501},
        "slice": [{"user": 2, "amount": 299, "id": 0}, {"user": 0, "amount": 0, "id": 1}],
        "sums": [
            {"user": user, "sum(amount)": 1000 * sum(range(user, 300, 3))} for user in range(3)
        ],
        "n": 300,
        "ducks": {"n": 300_000, "total": 1000 * sum(range(300)), "ids": 1000},
    }
    assert not list(
        (noetl.home / "results" / ".staging" / "spark").iterdir()
    )  # what is stored is stored once


def test_a_failure_names_the_step_and_the_cause(noetl: NoetlCommand, tmp_path: Path) -> None:
    said = noetl.json("run", write_playbook(tmp_path, "broken", BROKEN), code=1)
    assert (said["error"]["step"], said["error"]["code"]) == ("totals", "SPARK_ERROR")
    assert "nowhere" in said["error"]["message"]


UNMET = """\
  - step: totals
    tool:
      kind: spark
      sql: select id, concat('canary-', id) as name from range(30)
      expect: [{name: few, sql: id < 5}]
"""


def test_rows_that_fail_a_check_are_found_by_reference_and_stand_in_no_event(
    noetl: NoetlCommand, tmp_path: Path
) -> None:
    said = noetl.json("run", write_playbook(tmp_path, "unmet", UNMET), code=1)
    where = said["execution_id"]
    assert said["error"]["code"] == "EXPECTATION_FAILED"
    shown = noetl("result", "show", where, "totals")
    assert shown.code == 1
    explained = noetl("exec", "explain", where, "totals")
    for text in (shown.out, explained.out):
        assert "rows that failed, 20 of them" in text
        assert text.count("canary-") == 20
    found = noetl.json("exec", "explain", where, "totals")["sample"]["rows"]
    assert len(found) == 20
    assert all(row["id"] >= 5 and row["name"] == f"canary-{row['id']}" for row in found)
    events = noetl("exec", "events", where, "--json").out
    assert "EXPECTATION_FAILED" in events
    assert "canary-5" not in events


def test_the_example_runs_twice_and_gives_the_same(noetl: NoetlCommand, tmp_path: Path) -> None:
    given = ("--set", "count=30000", "--set", f"folder={tmp_path / 'lake'}")
    first, second = (noetl.json("run", "examples/spark.yaml", *given)["result"] for _ in range(2))
    assert first == second
    assert first["row_count"] == 12
    assert sum(row["orders"] for row in first["rows"]) == 30_000 - 1  # one has no amount


# ---- partitions that are written, and those that are not ------------------------------------------------------------------

DYNAMIC = """\
  - step: go
    next:
      - {step: by_conf, when: "{{ workload.how == 'conf' }}"}
      - {step: by_option, when: "{{ workload.how == 'option' }}"}
      - {step: by_mode, when: "{{ workload.how == 'mode' }}"}
      - {step: by_code}
  - step: by_conf
    tool:
      kind: spark
      conf: {spark.sql.sources.partitionOverwriteMode: dynamic}
      sql: "select 1 as n, {{ workload.day }} as day"
      output: {path: "{{ workload.folder }}", mode: overwrite, partition_by: [day]}
  - step: by_option
    tool:
      kind: spark
      sql: "select 1 as n, {{ workload.day }} as day"
      output: {path: "{{ workload.folder }}", mode: overwrite, partition_by: [day], options: {partitionOverwriteMode: dynamic}}
  - step: by_mode
    tool:
      kind: spark
      sql: "select 1 as n, {{ workload.day }} as day"
      output: {path: "{{ workload.folder }}", mode: overwrite_partitions, partition_by: [day]}
  - step: by_code
    tool:
      kind: spark
      code: |
        spark.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
        spark.createDataFrame([(1, day)], "n int, day string").write.mode("overwrite").partitionBy("day").parquet(folder)
        result = 1
      input: {day: "{{ workload.day }}", folder: "{{ workload.folder }}"}
"""


@pytest.mark.parametrize("how", ["conf", "option", "mode", "code"])
def test_a_day_that_is_written_leaves_the_other_days(
    noetl: NoetlCommand, tmp_path: Path, how: str
) -> None:
    file = write_playbook(
        tmp_path, "dynamic", f"{DYNAMIC}workload: {{folder: {tmp_path}/lake, day: a, how: {how}}}\n"
    )
    for day in ("a", "b", "b"):
        assert noetl.json("run", file, "--set", f"day={day}")["status"] == "completed"
    assert sorted(
        path.name for path in (tmp_path / "lake").glob("day=*") if list(path.glob("*.parquet"))
    ) == [
        "day=a",
        "day=b",
    ]


# ---- one column, with and without a list -----------------------------------------------------------------------------------

ONE_COLUMN = """\
  - step: first_folder
    tool: {kind: spark, sql: OLD, output: {path: LAKE, mode: overwrite_partitions, partition_by: COLUMN}}
    next: second_folder
  - step: second_folder
    tool: {kind: spark, sql: NEW, output: {path: LAKE, mode: overwrite_partitions, partition_by: COLUMN}}
    next: first_table
  - step: first_table
    tool: {kind: spark, sql: OLD, output: {kind: postgres, auth: local, table: TABLE, mode: upsert, key: COLUMN}}
    next: second_table
  - step: second_table
    tool: {kind: spark, sql: NEW, output: {kind: postgres, auth: local, table: TABLE, mode: upsert, key: COLUMN}}
    next: read
  - step: read
    tool: {kind: postgres, auth: local, query: "select n, day from TABLE order by n"}
"""


@pytest.mark.parametrize("column", ["day", "[day]"])
def test_one_column_is_the_same_with_and_without_a_list(
    noetl: NoetlCommand, tmp_path: Path, column: str
) -> None:
    texts = {
        "OLD": "\"select 1 as n, 'a' as day union all select 2, 'b'\"",
        "NEW": "\"select 3 as n, 'b' as day\"",
        "LAKE": f"{tmp_path}/lake",
        "TABLE": "days_of_list" if "[" in column else "days_of_word",
        "COLUMN": column,
    }
    steps = ONE_COLUMN
    for name, text in texts.items():
        steps = steps.replace(name, text)
    expected = [{"n": 1, "day": "a"}, {"n": 3, "day": "b"}]
    assert (
        noetl.json("run", write_playbook(tmp_path, "columns", steps))["result"]["rows"] == expected
    )
    found = (
        ds.dataset(tmp_path / "lake", format="parquet", partitioning="hive").to_table().to_pylist()
    )
    assert sorted(found, key=lambda row: int(row["n"])) == expected
