"""Workers and Spark die by kill -9 while a step writes to a place of the user's: there is what was there before, then what the
step writes, once.
"""

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from psycopg.sql import SQL, Identifier

from noetl.client.http import HttpClient
from noetl.model.ids import ExecutionId
from noetl.spark.server.server_start import stop_spark_server
from noetl.spark.server.server_state import SparkServerState
from tests.crash.stack import run_crash_stack
from tests.crash.test_spark import SETTINGS, SMALL
from tests.crash.workload import outcomes
from tests.play import workflow
from tests.postgres import server
from tests.processes import list_children
from tests.spark import ELSEWHERE, spark_url
from tests.stack import Stack
from tests.waiting import HANG_LIMIT_S, wait_until

__all__ = ["spark_url"]
Rows = list[tuple[int, str]]
OLD: Rows = [(1, "a"), (2, "b")]
BOTH: Rows = [(1, "a"), (2, "b"), (101, "a"), (102, "b")]
NEW: Rows = [(101, "a"), (102, "b")]
# A task of the first run waits for ever, when it is told to.
CODE = """
from pyspark.sql import functions as F

with open(begun, "a") as file:
    file.write("run\\n")
    run = file.tell() // len("run\\n")

@F.udf("int")
def passed(number):
    import time
    open(f"{begun}.{run}", "a").close()
    while held and run == 1:
        time.sleep(0.1)
    return number + 100

result = lake.select(passed("n").alias("n"), "day")
"""


@dataclass(frozen=True)
class WriteCell:
    """The step reads the rows that are there, adds 100, and writes them: twice would be 200, or more rows."""

    name: str
    phase: str
    after: Rows
    output: dict[str, Any]
    before: str = ""  # the path
    table: str = ""  # each its own, since all write to one database
    long: bool = False


PARTITIONED = {"partition_by": ["day"]}
CELLS = [
    WriteCell("append, while it runs", "running", BOTH, {"mode": "append", **PARTITIONED}),
    WriteCell("append, before the report", "tool.after", BOTH, {"mode": "append", **PARTITIONED}),
    WriteCell("overwrite, while it runs", "running", NEW, {"mode": "overwrite", **PARTITIONED}, long=True),
    WriteCell("overwrite, before the report", "tool.after", NEW, {"mode": "overwrite", **PARTITIONED}, long=True),
    WriteCell("overwrite_partitions, before the report", "tool.after", NEW, {"mode": "overwrite_partitions", **PARTITIONED}),
    WriteCell("append elsewhere, before the report", "tool.after", BOTH, {"mode": "append", **PARTITIONED}, ELSEWHERE),
    WriteCell("overwrite elsewhere, while it runs", "running", NEW, {"mode": "overwrite", **PARTITIONED}, ELSEWHERE, long=True),
    WriteCell("append to a table, before the report", "tool.after", NEW, {"mode": "append"}, table="added"),
    WriteCell("overwrite of a table, before the report", "tool.after", NEW, {"mode": "overwrite"}, table="replaced", long=True),
]  # fmt: skip


@pytest.fixture(scope="module")
def shared_stack(spark_url: str) -> Iterator[Stack]:
    """One server for all cells: only the worker dies, and another one is started."""
    with (
        server().database() as dsn,
        run_crash_stack(dsn, NOETL_SPARK_PROFILE=spark_url, **SETTINGS) as stack,
    ):
        yield stack


def _parameter(cell: WriteCell) -> Any:
    marks = [pytest.mark.long] if cell.long else []
    return pytest.param(cell, id=cell.name, marks=marks)


@pytest.mark.parametrize("cell", [_parameter(cell) for cell in CELLS])
def test_a_worker_that_dies_while_it_writes(
    shared_stack: Stack, tmp_path: Path, cell: WriteCell
) -> None:
    shared_stack.restart_dead()  # what a cell that failed has left dead
    asyncio.run(_worker_dies(shared_stack, cell, tmp_path))


@pytest.mark.long  # in the suite: a server that is lost, in tests/integration/spark/test_server.py
def test_spark_that_dies_while_it_writes(tmp_path: Path) -> None:
    told = {"NOETL_SPARK_PROFILE": "local", "NOETL_SPARK_JAVA_OPTIONS": SMALL, **SETTINGS}
    cell = WriteCell("overwrite", "running", NEW, {"mode": "overwrite", **PARTITIONED})
    with server().database() as dsn, run_crash_stack(dsn, **told) as stack:
        try:
            asyncio.run(_spark_dies(stack, cell, tmp_path))
        finally:
            stop_spark_server(SparkServerState.from_home(stack.home))


async def _worker_dies(stack: Stack, cell: WriteCell, folder: Path) -> None:
    await stack.become_ready()
    if cell.phase != "running":
        stack.worker.die_at(cell.phase, 1)
    async with stack.open_client() as client:
        execution_id = await _begin(stack, client, cell, folder)
        if cell.phase == "running":
            await _runs(folder)
            assert _read_rows(stack, cell, folder) == OLD
            stack.worker.kill()
        else:
            await stack.worker.wait_for_crash()
        stack.restart_dead()
        await _ends(stack, client, execution_id, cell, folder)


async def _spark_dies(stack: Stack, cell: WriteCell, folder: Path) -> None:
    await stack.become_ready()
    async with stack.open_client() as client:
        execution_id = await _begin(stack, client, cell, folder)
        await _runs(folder)
        assert _read_rows(stack, cell, folder) == OLD
        served = SparkServerState.from_home(stack.home).read_server()
        assert served is not None
        os.kill(list_children(served.pid)[0], signal.SIGKILL)
        await _ends(stack, client, execution_id, cell, folder)


async def _begin(stack: Stack, client: HttpClient, cell: WriteCell, folder: Path) -> ExecutionId:
    for number, day in OLD:
        part = folder / "lake" / f"day={day}"
        part.mkdir(parents=True)
        pq.write_table(
            pa.table({"n": pa.array([number], pa.int32())}), part / "part-00000-old.parquet"
        )
    path = f"{cell.before}{folder / 'lake'}"
    target = (
        {"kind": "postgres", "auth": {"dsn": stack.dsn}, "table": cell.table}
        if cell.table
        else {"path": path}
    )
    tool = {
        "kind": "spark",
        "inputs": {"lake": {"path": path}},
        "input": {"begun": str(folder / "begun"), "held": cell.phase == "running"},
        "code": CODE,
        "output": {**target, **cell.output},
    }
    steps = f"- {{step: write, tool: {json.dumps(tool)}}}"
    await client.register(workflow(steps, metadata={"name": "writes", "path": "crash/writes"}))
    return await client.start("crash/writes", None, {})


async def _runs(folder: Path) -> None:
    async with asyncio.timeout(HANG_LIMIT_S):
        await wait_until(lambda: asyncio.to_thread((folder / "begun.1").exists))


async def _ends(
    stack: Stack, client: HttpClient, execution_id: ExecutionId, cell: WriteCell, folder: Path
) -> None:
    story = (await asyncio.wait_for(outcomes(client, {"it": execution_id}), HANG_LIMIT_S))["it"]
    assert story.failure is None
    assert story.result["row_count"] == len(NEW)
    assert _read_rows(stack, cell, folder) == cell.after


def _read_rows(stack: Stack, cell: WriteCell, folder: Path) -> Rows:
    if cell.table:
        query = SQL("select n, day from {} order by n").format(Identifier(cell.table))
        with psycopg.connect(stack.dsn or "") as connection:
            return [(int(n), str(day)) for n, day in connection.execute(query).fetchall()]
    found = (
        ds.dataset(folder / "lake", format="parquet", partitioning="hive").to_table().to_pylist()
    )
    return sorted((row["n"], row["day"]) for row in found)
