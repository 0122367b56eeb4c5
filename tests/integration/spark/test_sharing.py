"""Executions beside each other on the Spark server of a machine: a short one is not kept waiting, a cancelled one ends. What
Spark itself says of its jobs is read from its event log.
"""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

from noetl.client.http import HttpClient
from noetl.model.ids import ExecutionId
from noetl.spark.server.server_start import stop_spark_server
from noetl.spark.server.server_state import SparkServerState
from tests.crash.stack import run_crash_stack
from tests.crash.workload import outcomes
from tests.play import workflow
from tests.postgres import server
from tests.stack import Stack
from tests.waiting import HANG_LIMIT_S, wait_until

# An hour of work in tasks of half a second.
LONG = """
- step: works
  tool:
    kind: spark
    input: {begun: "{{ workload.begun }}"}
    code: |
      from pyspark.sql import functions as F

      @F.udf("long")
      def slow(number):
          import time
          open(begun, "a").close()
          time.sleep(0.5)
          return number

      result = spark.range(0, 14_400, 1, 14_400).select(slow("id").alias("id"))
"""
SHORT = """
- step: asks
  tool: {kind: spark, sql: "select id % 2 as odd, count(*) as n from range(0, 1000, 1, 4) group by 1 order by 1"}
"""
ANSWER = [{"odd": 0, "n": 500}, {"odd": 1, "n": 500}]


def test_a_short_query_is_answered_beside_a_long_job_and_a_cancelled_job_ends(
    tmp_path: Path,
) -> None:
    told = {
        "enabled": "true",
        "dir": f"file:{tmp_path}",
        "rolling.enabled": "false",
        "compress": "false",
    }
    options = " ".join(
        (
            "-Xmx512m -XX:TieredStopAtLevel=1",
            *(f"-Dspark.eventLog.{k}={v}" for k, v in told.items()),
        )
    )
    with (
        server().database() as dsn,
        run_crash_stack(dsn, NOETL_SPARK_JAVA_OPTIONS=options) as stack,
    ):
        try:
            asyncio.run(asyncio.wait_for(_run_beside(stack, tmp_path), HANG_LIMIT_S))
        finally:
            stop_spark_server(SparkServerState.from_home(stack.home))


async def _run_beside(stack: Stack, events: Path) -> None:
    await stack.become_ready()
    begun = stack.home / "begun"
    async with stack.open_client() as client:
        for name, steps in (("long", LONG), ("short", SHORT)):
            await client.register(
                workflow(steps, metadata={"name": name, "path": name}, workload={"begun": ""})
            )
        for _ in range(2):
            alone = await _time_short_one(client)
        long = await client.start("long", None, {"begun": str(begun)})
        await wait_until(lambda: asyncio.to_thread(begun.exists))
        beside = await _time_short_one(client)
        assert (await client.get_execution(long))["status"] == "running"
        assert await asyncio.to_thread(_list_ended_jobs, events, long) == []

        cancelled = time.time()
        await client.change_execution(long, "cancel")
        await wait_until(lambda: asyncio.to_thread(lambda: bool(_list_ended_jobs(events, long))))
        (ended,) = await asyncio.to_thread(_list_ended_jobs, events, long)
        assert ended["Job Result"]["Result"] == "JobFailed"
        await wait_until(lambda: _status(client, long), "cancelled")
        lasted = ended["Completion Time"] / 1000 - cancelled
        print(
            f"short query: {alone:.2f} s alone, {beside:.2f} s beside a long job; cancelled: stopped after {lasted:.2f} s"
        )
        await _time_short_one(client)  # it goes on


async def _time_short_one(client: HttpClient) -> float:
    """Seconds until the short one was answered, rightly."""
    began = time.monotonic()
    execution_id = await client.start("short", None, {})
    story = (await outcomes(client, {"it": execution_id}))["it"]
    assert story.result["rows"] == ANSWER
    return time.monotonic() - began


async def _status(client: HttpClient, execution_id: ExecutionId) -> Any:
    return (await client.get_execution(execution_id))["status"]


def _list_ended_jobs(events: Path, execution_id: ExecutionId) -> list[dict[str, Any]]:
    """What Spark says of the jobs of an execution that have ended."""
    lines = [
        line
        for file in events.iterdir()
        for line in file.read_text().splitlines()
        if "SparkListenerJob" in line
    ]
    said = [json.loads(line) for line in lines if line.endswith("}")]
    ours = {
        each["Job ID"]
        for each in said
        if str(execution_id) in json.dumps(each.get("Properties", {}))
    }
    return [
        each for each in said if each["Event"] == "SparkListenerJobEnd" and each["Job ID"] in ours
    ]
