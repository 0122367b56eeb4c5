"""What a spark step costs over plain PySpark that does the same work, on one warm server, in turns.

    overhead      a short query that writes its rows: a step, and the same query and write in a session that is there already
    throughput    rows of a result read, one column added, written back: rows a second of both
    loop          a Python body for every row (exec: spark), by `noetl run`; and the same body in a bare `mapInArrow`, written too

A step has a session of its own, reads inputs by reference, counts and sums its files. `python bench/spark.py --help` for sizes.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"

from noetl.embedded import EmbeddedPostgres
from noetl.model.ids import ExecutionId
from noetl.results.formats.tables import EncodedTable, TableOptions, TableParts
from noetl.results.staging import Staging
from noetl.spark.profiles import parse_profile
from noetl.spark.server.process import SparkServerSettings
from noetl.spark.server.server_start import ensure_spark_server, stop_spark_server
from noetl.spark.server.server_state import SparkServerState
from noetl.spark.step.tool import SparkTool, SparkToolSettings
from noetl.tools.port import Call, CallIdentity, Success

SHORT = "select id % 10 as k, sum(id) as total from range(100000) group by k"
LONG = "select *, id + 1 as next from numbers"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=20_000_000, help="of the long query")
    parser.add_argument("--repeat", type=int, default=10, help="turns of the short query")
    parser.add_argument("--turns", type=int, default=3, help="turns of the long query")
    parser.add_argument("--items", type=int, default=1_000_000, help="of the loop")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="noetl-bench-spark-") as folder:
        home = Path(folder)
        place = SparkServerState.from_home(home)
        try:
            began = time.perf_counter()
            url = ensure_spark_server(home, parse_profile("local"), SparkServerSettings())
            found = {
                "start_s": time.perf_counter() - began,
                **asyncio.run(_measure_steps(home, url, given)),
            }
            found |= _measure_loop(home, url, given.items)
        finally:
            stop_spark_server(place)
    if given.json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name:<24} {value:,.3f}" if isinstance(value, float) else f"{name:<24} {value:,}")


async def _measure_steps(home: Path, url: str, given: argparse.Namespace) -> dict[str, float | int]:
    plain = PlainSession(url, home)
    step = StepCalls(home)
    try:
        short = await _in_turns(
            given.repeat, lambda: plain.run(SHORT), lambda: step.run({"sql": SHORT})
        )
        numbers = home / "numbers"
        plain.session.range(given.rows).selectExpr(
            "id", "id % 1000 as k", "rand(7) as x"
        ).write.parquet(str(numbers))
        plain.session.read.parquet(str(numbers)).createOrReplaceTempView("numbers")
        long = {"sql": LONG, "inputs": {"numbers": {"path": str(numbers)}}}
        bulk = await _in_turns(given.turns, lambda: plain.run(LONG), lambda: step.run(long))
        assert step.rows == given.rows, step.rows
    finally:
        plain.session.stop()
        await step.close()
    return {
        "plain_short_ms": short[0] * 1e3,
        "step_short_ms": short[1] * 1e3,
        "overhead_ms": (short[1] - short[0]) * 1e3,
        "plain_rows_s": int(given.rows / bulk[0]),
        "step_rows_s": int(given.rows / bulk[1]),
        "throughput_ratio": bulk[0] / bulk[1],
    }


LOOP = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: items, path: bench/items}
workflow:
  - step: numbers
    tool: {kind: spark, sql: "select id, id % 1000 as k, rand(7) as x from range(ITEMS)"}
    next: first
"""
STEP = """\
  - step: NAME
    loop: {in: "{{ numbers.rows }}", iterator: row, spec: {policy: {exec: spark}}}
    tool: {kind: python, input: {row: "{{ row }}"}, code: "result = {'twice': row['id'] * 2}"}
"""


def _measure_loop(home: Path, url: str, items: int) -> dict[str, float | int]:
    """The second of two loops over the same rows, and the second of two bare jobs."""
    file = home / "items.yaml"
    steps = (STEP.replace("NAME", "first") + "    next: second\n", STEP.replace("NAME", "second"))
    file.write_text(LOOP.replace("ITEMS", str(items)) + "".join(steps))
    env = {**os.environ, "NOETL_HOME": str(home), "NOETL_SPARK_PROFILE": "local"}
    noetl = [sys.executable, "-m", "noetl"]
    try:
        subprocess.run(
            [*noetl, "run", str(file), "--json"], env=env, check=True, stdout=subprocess.DEVNULL
        )
        told = subprocess.run(
            [*noetl, "exec", "events", "@latest", "--json"],
            env=env,
            check=True,
            stdout=subprocess.PIPE,
        )
    finally:
        EmbeddedPostgres(home).stop_postgres()
    events = [json.loads(line) for line in told.stdout.splitlines()]
    second = [event for event in events if event["data"].get("step") == "second"]
    began = next(event["at"] for event in second if event["type"] == "loop.started")
    ended = next(event["at"] for event in second if event["type"] == "loop.done")
    shards = sum(event["type"] == "loop.shard.done" for event in events)
    taken = (datetime.fromisoformat(ended) - datetime.fromisoformat(began)).total_seconds()
    bare = _run_bare_loop(home, url, items)
    return {
        "loop_items_s": int(items / taken),
        "bare_items_s": int(items / bare),
        "loop_ratio": bare / taken,
        "loop_events": len(events),
        "loop_shards": shards,
    }


def _run_bare_loop(home: Path, url: str, items: int) -> float:
    plain = PlainSession(url, home)
    rows = str(home / "items")
    plain.session.range(items).selectExpr("id", "id % 1000 as k", "rand(7) as x").write.parquet(
        rows
    )
    try:
        for turn in range(2):
            began = time.perf_counter()
            frame = plain.session.read.parquet(rows).mapInArrow(
                _double_rows, "result struct<twice: long>"
            )
            frame.write.parquet(str(home / f"bare{turn}"))
        return time.perf_counter() - began
    finally:
        plain.session.stop()


def _double_rows(batches: Any) -> Any:
    import pyarrow as pa

    def double_row(row: dict[str, Any]) -> dict[str, Any]:
        return {"twice": row["id"] * 2}

    for batch in batches:
        yield pa.RecordBatch.from_pydict({"result": [double_row(row) for row in batch.to_pylist()]})


async def _in_turns(
    turns: int, plain: Callable[[], Any], step: Callable[[], Any]
) -> tuple[float, float]:
    """Median seconds of each; the first turn of both only warms up."""
    taken: tuple[list[float], list[float]] = ([], [])
    for turn in range(turns + 1):
        for times, act in zip(taken, (plain, step), strict=True):
            began = time.perf_counter()
            if asyncio.iscoroutine(made := act()):
                await made
            times.extend([time.perf_counter() - began] if turn else [])
    return statistics.median(taken[0]), statistics.median(taken[1])


class PlainSession:
    def __init__(self, url: str, home: Path) -> None:
        from pyspark.sql.connect.session import SparkSession

        self.session = SparkSession.builder.remote(url).create()
        self._folder = home / "plain"

    def run(self, sql: str) -> None:
        self.session.sql(sql).write.parquet(str(self._folder / uuid4().hex))


class StepCalls:
    """Calls of the tool; their rows are dropped once they are there."""

    def __init__(self, home: Path) -> None:
        self._tool = SparkTool(SparkToolSettings(home))
        self._tables = TableOptions(Staging(home / "staging"))
        self.rows = 0

    async def run(self, config: dict[str, Any]) -> None:
        identity = CallIdentity(ExecutionId("1"), "step", "task")
        outcome = await self._tool.run(Call(config, {}, uuid4().hex, identity, tables=self._tables))
        assert isinstance(outcome, Success), outcome
        assert isinstance(outcome.value, EncodedTable | TableParts)
        self.rows = outcome.value.rows
        outcome.value.close()

    async def close(self) -> None:
        await self._tool.close()


if __name__ == "__main__":
    sys.exit(main())
