"""Workers die by kill -9 in every phase of a Spark command: the rows are exact, and nothing else is left."""

import asyncio
from pathlib import Path

import pytest

from tests.crash.checks import check
from tests.crash.house import House, house
from tests.crash.workload import outcomes
from tests.play import workflow
from tests.postgres import server
from tests.spark import spark_url
from tests.waiting import comes, look_again

__all__ = ["spark_url"]
PATIENCE = 240.0  # seconds until something hangs, however busy the machine is
ROWS = 200_000
STEPS = """
- step: numbers
  tool:
    kind: spark
    input: {begun: "{{ workload.begun }}", held: "{{ workload.held }}", rows: "{{ workload.rows }}"}
    code: |
      from pyspark.sql import functions as F

      with open(begun, "a") as file:
          file.write("run\\n")

      @F.udf("long")
      def passed(number):
          import os, time
          first = number == 0 and held and not os.path.exists(begun + ".task")
          if number == 0:
              open(begun + ".task", "a").close()
          while first:
              time.sleep(0.1)
          return number

      result = spark.range(0, rows, 1, 3).select(passed("id").alias("id"), F.rand(1).alias("x"))
  next: counted
- step: counted
  tool:
    kind: duckdb
    inputs: {numbers: "{{ numbers }}"}
    query: select count(*) as n, count(distinct id) as ids, sum(id)::bigint as total from numbers
  next: last
- step: last
  tool: {kind: python, input: {row: "{{ counted.rows[0] }}", files: "{{ numbers.spark.files }}"}, code: "result = input"}
"""
WORKLOAD = {"rows": ROWS, "begun": "", "held": False}
PLAYBOOK = workflow(STEPS, metadata={"name": "numbers", "path": "crash/numbers"}, workload=WORKLOAD)
SETTINGS = {"NOETL_WORKER_POOLS": "cpu,spark", "NOETL_STORAGE_SWEEP_SEC": "1", "NOETL_STORAGE_ORPHAN_AGE_SEC": "0"}
PHASES = ["tool.before", "running", "tool.after", "persist.after"]


@pytest.mark.parametrize("phase", PHASES)
def test_a_worker_that_dies_costs_an_attempt_and_no_row(spark_url: str, phase: str) -> None:
    _die(spark_url, phase)


@pytest.mark.long
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("turn", range(10))
def test_again_and_again(spark_url: str, phase: str, turn: int) -> None:
    _die(spark_url, phase)


def _die(url: str, phase: str) -> None:
    with server().database() as dsn, house(dsn, NOETL_SPARK_PROFILE=url, **SETTINGS) as here:
        asyncio.run(_dying(here, phase))


async def _dying(here: House, phase: str) -> None:
    await here.ready()
    begun = here.home / "begun"
    if phase != "running":
        here.worker.told(phase, 1)
    async with here.client() as client:
        await client.register(PLAYBOOK)
        execution_id = await client.start("crash/numbers", None, {"begun": str(begun), "held": phase == "running"})
        if phase == "running":
            async with asyncio.timeout(PATIENCE):
                while not await asyncio.to_thread(Path(f"{begun}.task").exists):
                    await look_again()
            here.worker.kill()
        else:
            await here.worker.death()
        here.restart()
        story = (await asyncio.wait_for(outcomes(client, {"it": execution_id}), PATIENCE))["it"]
        assert story.failure is None
        assert story.result["row"] == {"n": ROWS, "ids": ROWS, "total": sum(range(ROWS))}
        await check(here.dsn or "", client, [execution_id])
        async with asyncio.timeout(PATIENCE):
            await comes(lambda: asyncio.to_thread(_files, here.home), story.result["files"])  # orphans are swept
        runs = (await asyncio.to_thread(begun.read_text)).split()
        assert len(runs) == (2 if phase == "running" else 1)  # what was written whole is not made again


def _files(home: Path) -> int:
    """Of what Spark wrote: those that are stored, and those that were on their way."""
    stored = [path for path in (home / "results").glob("*/result/numbers/*") if path.is_file()]
    return len(stored) + len(list((home / "results" / ".staging").rglob("*.parquet")))
