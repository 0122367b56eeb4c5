"""Spark where large results are in an object store: read by the tasks themselves, written once per attempt."""

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import s3
from tests.postgres import scratch
from tests.stack import NoetlCommand, inspect_home, write_playbook
from tests.waiting import HANG_LIMIT_S

FLOW = """\
  - step: orders
    tool:
      kind: postgres
      auth: local
      query: |
        select n, 'c' || n % 7 as country, n * 0.5::numeric as amount, md5(n::text)::uuid as id, n % 2 = 0 as even,
               timestamptz '2026-01-01 00:00Z' + n * interval '1 second' as at, jsonb_build_object('n', n) as doc
        from generate_series(1, 200000) n
    next: both
  - step: both
    tool:
      kind: spark
      inputs: {orders: "{{ orders }}"}
      code: |
        late = orders.where("n > 150000 and at <= timestamp '2026-01-02 23:59:59Z'")
        totals = late.groupBy("country").agg({"n": "count", "amount": "sum", "doc": "max", "id": "min"}).orderBy("country")
        return {"totals": totals, "plan": late._explain_string(extended=True), "conf": str(spark.conf.getAll)}
    next: many
  - step: many
    tool:
      kind: spark
      input: {where: "{{ orders.ref }}"}
      code: |
        from pyspark.sql import functions as F
        return spark.read.format("noetl").load(where).select("n", "country", "id", F.rand(7).alias("x"))
    next: ducks
  - step: ducks
    tool: {kind: duckdb, inputs: {many: "{{ many }}"}, query: "select count(distinct id) as n, sum(n)::bigint as total from many"}
    next: last
  - step: last
    tool:
      kind: python
      input:
        totals: "{{ both.totals.rows }}"
        plan: "{{ both.plan }}"
        conf: "{{ both.conf }}"
        rows: "{{ many.row_count }}"
        one: "{{ many.rows[100000] }}"
        ducks: "{{ ducks.rows[0] }}"
      code: result = input
"""
COUNT = 200_000


@pytest.fixture(scope="module")
def noetl(spark_url: str) -> Iterator[NoetlCommand]:
    home = Path(tempfile.mkdtemp(dir=scratch(), prefix="noetl-test-spark-"))
    store = s3.server()
    yield NoetlCommand(home).with_env(
        NOETL_SPARK_PROFILE=spark_url,
        NOETL_SPARK_COPY_BYTES="0",
        NOETL_STORAGE_LOCAL_CACHE_BYTES=str(1 << 20),
        **store.settings(store.place()),
    )
    inspect_home(home)
    shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="module")
def result(noetl: NoetlCommand, tmp_path_factory: pytest.TempPathFactory) -> Any:
    file = write_playbook(tmp_path_factory.mktemp("flow"), "flow", FLOW)
    done = noetl.wait(
        noetl.start("run", file, "--json"), within=HANG_LIMIT_S
    )  # Spark plans such a read in processes of its own
    assert done.code == 0, done.err
    return done.json["result"]


def test_rows_go_from_the_store_through_spark_to_the_store(result: Any) -> None:
    late = range(150_001, 2 * 86_400)
    assert [row["country"] for row in result["totals"]] == [f"c{n}" for n in range(7)]
    assert sum(row["count(n)"] for row in result["totals"]) == len(late)
    assert sum(row["sum(amount)"] for row in result["totals"]) == sum(late) / 2
    assert max(json.loads(row["max(doc)"])["n"] for row in result["totals"]) == late[-1]
    assert (result["rows"], result["one"]["n"]) == (COUNT, 100_001)
    assert result["ducks"] == {"n": COUNT, "total": sum(range(COUNT + 1))}


def test_no_key_of_the_store_is_in_a_plan_or_a_setting(result: Any) -> None:
    assert "noetl" in result["plan"]  # it is read by the data source
    told = f"{result['plan']} {result['conf']}"
    assert not [
        word for word in (s3.SECRET, s3.KEY, "X-Amz-Signature", "127.0.0.1:") if word in told
    ]
