"""The same playbook on the server of this machine and on a standalone cluster: the same rows, also when a machine of it dies."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from noetl.spark.server.server_start import stop_spark_server
from noetl.spark.server.server_state import SparkServerState
from tests.cluster import SparkCluster, run_spark_cluster
from tests.integration.spark.test_playbooks import noetl
from tests.stack import NoetlCommand, write_playbook
from tests.waiting import HANG_LIMIT_S, until

__all__ = ["noetl"]
# A join, rows of Python after a shuffle, a loop; then sums that know no order.
FLOW = """\
  - step: orders
    tool: {kind: python, code: "result = [{'user': n % 7, 'amount': n} for n in range(700)]"}
    next: totals
  - step: totals
    tool:
      kind: spark
      inputs: {orders: "{{ orders }}"}
      sql: |
        select o.user, n.id % 10 as part, count(*) as n, sum(o.amount * n.id) as total
        from orders o join range(0, 1000, 1, 6) n on n.id % 7 = o.user group by all
    next: each
  - step: each
    loop:
      in: "{{ orders.rows }}"
      iterator: row
      spec: {chunk: 100, policy: {exec: spark}, reduce: {ctx.total: sum}}
    tool:
      kind: python
      input: {row: "{{ row }}"}
      code: "result = row['user'] * 2 + row['amount']"
      set: {ctx.total: "{{ output.data }}"}
    next: summed
  - step: summed
    tool:
      kind: duckdb
      inputs: {totals: "{{ totals }}"}
      query: select count(*) as n, bit_xor(hash(t)) as sum from totals t
    next: numbers
NUMBERS
  - step: last
    tool:
      kind: python
      input: {items: "{{ each.rows }}", total: "{{ ctx.total }}", totals: "{{ summed.rows }}", numbers: "{{ counted.rows }}"}
      code: result = input
"""
# Where a file `hold` is, the first task that comes to it says where it is and waits for its end.
NUMBERS = """\
  - step: numbers
    tool:
      kind: spark
      input: {folder: FOLDER}
      code: |
        from pyspark.sql import functions as F

        @F.udf("long")
        def passed(number):
            import os, time
            try:
                os.rename(f"{folder}/hold", f"{folder}/held")
            except FileNotFoundError:
                return number
            with open(f"{folder}/.where", "w") as file:
                file.write(os.getcwd())
            os.rename(f"{folder}/.where", f"{folder}/where")
            while True:
                time.sleep(0.1)

        spread = spark.range(0, 20_000, 1, 4).repartition(6, F.col("id") % 60)
        result = spread.select(passed("id").alias("id"), F.expr("id % 60 as part"), F.expr("hash(id) as x"))
    next: counted
  - step: counted
    tool:
      kind: duckdb
      inputs: {numbers: "{{ numbers }}"}
      query: select count(*) as n, bit_xor(hash(t)) as sum from numbers t
"""


@pytest.fixture
def spread(tmp_path: Path) -> Iterator[SparkCluster]:
    with run_spark_cluster(tmp_path / "cluster") as made:
        yield made


def test_a_cluster_gives_what_this_machine_gives_also_when_it_loses_a_worker(
    noetl: NoetlCommand, spread: SparkCluster, tmp_path: Path
) -> None:
    numbers = NUMBERS.replace("FOLDER", str(tmp_path))
    file = write_playbook(tmp_path, "flow", FLOW.replace("NUMBERS\n", f"{numbers}    next: last\n"))
    options = "-Xmx512m -XX:TieredStopAtLevel=1 -Dspark.executor.memory=512m"
    there = noetl.and_env(NOETL_SPARK_PROFILE=spread.profile, NOETL_SPARK_JAVA_OPTIONS=options)
    try:
        assert there("spark", "start").code == 0
        right = _result(noetl.start("run", file, "--json"))
        assert right["numbers"][0]["n"] == 20_000
        assert _result(there.start("run", file, "--json")) == right

        (tmp_path / "hold").touch()
        running = there.start("run", write_playbook(tmp_path, "numbers", numbers), "--json")
        until((tmp_path / "where").exists, HANG_LIMIT_S)
        spread.worker_of((tmp_path / "where").read_text()).kill()
        assert _result(running)["rows"] == right["numbers"]
    finally:
        stop_spark_server(SparkServerState.from_home(noetl.home))


def _result(process: "subprocess.Popen[str]") -> Any:
    out, err = process.communicate(timeout=HANG_LIMIT_S)
    assert process.returncode == 0, (out, err)
    return json.loads(out)["result"]
