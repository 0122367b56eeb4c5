"""The same playbook on the server of this machine and on a standalone cluster: the same rows, also when a machine of it dies."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from noetl.spark.place import SparkPlace
from noetl.spark.starting import stop
from tests.cluster import Cluster, cluster
from tests.integration.cli.conftest import Noetl, playbook
from tests.integration.spark.test_playbooks import noetl
from tests.waiting import until

__all__ = ["noetl"]
# Where a file `hold` is, the first task that comes to it says where it is and waits for its end.
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
    next: numbers
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
    next: sums
  - step: sums
    tool:
      kind: duckdb
      inputs: {totals: "{{ totals }}", numbers: "{{ numbers }}"}
      query: |
        select (select {n: count(*), sum: bit_xor(hash(t))} from totals t) as totals,
               (select {n: count(*), sum: bit_xor(hash(t))} from numbers t) as numbers
    next: last
  - step: last
    tool:
      kind: python
      input: {sums: "{{ sums.rows }}", total: "{{ ctx.total }}", items: "{{ each.rows }}"}
      code: result = input
"""


@pytest.fixture
def spread(tmp_path: Path) -> Iterator[Cluster]:
    with cluster(tmp_path / "cluster") as made:
        yield made


def test_a_cluster_gives_what_this_machine_gives_also_when_it_loses_a_worker(
    noetl: Noetl, spread: Cluster, tmp_path: Path
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    file = playbook(tmp_path, "flow", FLOW.replace("FOLDER", str(shared)))
    on_cluster = noetl.and_env(
        NOETL_SPARK_PROFILE=spread.profile,
        NOETL_SPARK_JAVA_OPTIONS="-Xmx512m -XX:TieredStopAtLevel=1 -Dspark.executor.memory=512m",
    )
    try:
        assert on_cluster("spark", "start").code == 0
        here, there = (which.json("run", file) for which in (noetl, on_cluster))
        assert (here["status"], there["status"]) == ("completed", "completed")
        assert there["result"] == here["result"]

        (shared / "hold").touch()
        running = on_cluster.start("run", file, "--json")
        until((shared / "where").exists)
        spread.worker_of((shared / "where").read_text()).kill()
        assert _result(on_cluster.wait(running)) == here["result"]
    finally:
        stop(SparkPlace.below(noetl.home))


def _result(done: Any) -> Any:
    assert done.code == 0, done.err
    return done.json["result"]
