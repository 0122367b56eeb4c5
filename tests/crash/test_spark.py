"""Workers die by kill -9 in every phase of a Spark command, and so does Spark: the rows are exact, and nothing else is left."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from noetl.client.http import HttpClient
from noetl.model.ids import ExecutionId
from noetl.spark.server.server_start import stop_spark_server
from noetl.spark.server.server_state import SparkServerState
from tests.cluster import run_spark_cluster
from tests.crash.checks import check
from tests.crash.stack import run_crash_stack
from tests.crash.workload import outcomes
from tests.play import workflow
from tests.postgres import server
from tests.processes import list_children
from tests.spark import spark_url
from tests.stack import Stack
from tests.waiting import HANG_LIMIT_S, wait_until

__all__ = ["spark_url"]
ROWS = 200_000
STEPS = """
- step: numbers
  tool:
    kind: spark
    input: {begun: "{{ workload.begun }}", held: "{{ workload.held }}", slow: "{{ workload.slow }}", rows: "{{ workload.rows }}"}
    code: |
      from pyspark.sql import functions as F

      with open(begun, "a") as file:
          file.write("run\\n")
          run = file.tell() // len("run\\n")

      @F.udf("long")
      def passed(number):
          if number == 0:
              import time
              try:
                  open(f"{begun}.{run}", "x").close()
                  first = True
              except FileExistsError:
                  first = False
              while (held and run == 1) or (slow and first):
                  time.sleep(0.1)
          return number

      result = spark.range(0, rows, 1, 4).select(passed("id").alias("id"), F.rand(1).alias("x"))
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
# In Spark's tasks: the first that comes to the first item stays with it, until a copy of it has ended.
LOOP = """
- step: each
  loop: {in: "{{ range(8) | list }}", iterator: number, spec: {chunk: 2, policy: {exec: spark}}}
  tool:
    kind: python
    input: {number: "{{ number }}", begun: "{{ workload.begun }}"}
    code: |
      import time
      if number == 0:
          try:
              open(f"{begun}.item", "x").close()
              first = True
          except FileExistsError:
              first = False
          while first:
              time.sleep(0.1)
      result = number * 2
  next: items
- step: items
  tool: {kind: python, input: {rows: "{{ each.rows }}"}, code: "assert rows == list(range(0, 16, 2)), rows"}
  next: counted
"""
WORKLOAD = {"rows": ROWS, "begun": "", "held": False, "slow": False}
NAMED = {"name": "numbers", "path": "crash/numbers"}
PLAYBOOK = workflow(STEPS, metadata=NAMED, workload=WORKLOAD)
WITH_LOOP = workflow(
    STEPS.replace("next: counted", "next: each", 1) + LOOP, metadata=NAMED, workload=WORKLOAD
)
SETTINGS = {
    "NOETL_WORKER_POOLS": "cpu,spark",
    "NOETL_STORAGE_SWEEP_SEC": "1",
    "NOETL_STORAGE_ORPHAN_AGE_SEC": "0",
}
SMALL = "-Xmx512m -XX:TieredStopAtLevel=1"
COPIES = (
    "-Dspark.speculation=true -Dspark.speculation.interval=100ms -Dspark.speculation.quantile=0.25"
)
PHASES = ["tool.before", "running", "tool.after", "persist.after"]


@pytest.mark.parametrize("phase", ["running", "persist.after"])  # every phase, ten times: `-m long`
def test_a_worker_that_dies_costs_an_attempt_and_no_row(spark_url: str, phase: str) -> None:
    _die(spark_url, phase)


@pytest.mark.long
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("turn", range(10))
def test_again_and_again(spark_url: str, phase: str, turn: int) -> None:
    _die(spark_url, phase)


@pytest.mark.long  # in the suite: a cluster that loses a worker, in tests/integration/spark/test_cluster.py
def test_copies_of_slow_tasks_give_no_row_twice(tmp_path: Path) -> None:
    """A worker dies; in what runs instead, tasks wait for ever unless Spark starts copies of them."""
    with run_spark_cluster(tmp_path / "cluster") as spread:
        options = f"{SMALL} {COPIES} -Dspark.executor.memory=512m"
        told = {
            "NOETL_SPARK_PROFILE": spread.profile,
            "NOETL_SPARK_JAVA_OPTIONS": options,
            **SETTINGS,
        }
        with server().database() as dsn, run_crash_stack(dsn, **told) as stack:
            try:
                asyncio.run(_dying(stack, "running", WITH_LOOP, slow=True))
            finally:
                stop_spark_server(SparkServerState.from_home(stack.home))


@pytest.mark.long  # in the suite: a server that is lost, in tests/integration/spark/test_server.py
def test_a_command_whose_spark_server_is_killed_is_run_again() -> None:
    told = {"NOETL_SPARK_PROFILE": "local", "NOETL_SPARK_JAVA_OPTIONS": SMALL, **SETTINGS}
    with server().database() as dsn, run_crash_stack(dsn, **told) as stack:
        try:
            asyncio.run(_losing_spark(stack))
        finally:
            stop_spark_server(SparkServerState.from_home(stack.home))


async def _losing_spark(stack: Stack) -> None:
    await stack.become_ready()
    async with stack.open_client() as client:
        execution_id = await _begin(stack, client, PLAYBOOK, held=True)
        await _runs(stack)
        served = SparkServerState.from_home(stack.home).read_server()
        assert served is not None
        os.kill(list_children(served.pid)[0], signal.SIGKILL)
        await _ends(stack, client, execution_id, runs=2)
        said = [
            line["line"]
            async for lines in client.stream_logs(execution_id, "numbers")
            for line in lines
        ]
        assert "spark: the server was lost; once more" in said


def _die(url: str, phase: str) -> None:
    with (
        server().database() as dsn,
        run_crash_stack(dsn, NOETL_SPARK_PROFILE=url, **SETTINGS) as stack,
    ):
        asyncio.run(_dying(stack, phase))


async def _dying(stack: Stack, phase: str, playbook: str = PLAYBOOK, *, slow: bool = False) -> None:
    await stack.become_ready()
    if phase != "running":
        stack.worker.die_at(phase, 1)
    async with stack.open_client() as client:
        execution_id = await _begin(stack, client, playbook, held=phase == "running", slow=slow)
        if phase == "running":
            await _runs(stack)
            stack.worker.kill()
        else:
            await stack.worker.wait_for_crash()
        stack.restart_dead()
        # what was written whole is not made again
        await _ends(stack, client, execution_id, runs=2 if phase == "running" else 1)


async def _begin(stack: Stack, client: HttpClient, playbook: str, **workload: bool) -> ExecutionId:
    await client.register(playbook)
    return await client.start(
        "crash/numbers", None, {"begun": str(stack.home / "begun"), **workload}
    )


async def _runs(stack: Stack) -> None:
    """A task of the first run."""
    async with asyncio.timeout(HANG_LIMIT_S):
        await wait_until(lambda: asyncio.to_thread((stack.home / "begun.1").exists))


async def _ends(stack: Stack, client: HttpClient, execution_id: ExecutionId, runs: int) -> None:
    """As it must: every row once, every command ended once, and no file but those of the result."""
    story = (await asyncio.wait_for(outcomes(client, {"it": execution_id}), HANG_LIMIT_S))["it"]
    assert story.failure is None
    assert story.result["row"] == {"n": ROWS, "ids": ROWS, "total": sum(range(ROWS))}
    await check(stack.dsn or "", client, [execution_id])
    async with asyncio.timeout(HANG_LIMIT_S):
        await wait_until(
            lambda: asyncio.to_thread(_files, stack.home), story.result["files"]
        )  # orphans are swept
    begun = await asyncio.to_thread((stack.home / "begun").read_text)
    assert len(begun.split()) == runs


def _files(home: Path) -> int:
    """Of what Spark wrote: those that are stored, and those that were on their way."""
    stored = [path for path in (home / "results").glob("*/result/numbers/*") if path.is_file()]
    return len(stored) + len(list((home / "results" / ".staging").rglob("*.parquet")))
