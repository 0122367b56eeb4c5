"""NoETL's own pipelines over a log of two million events: how fast they are, and that they are right.

Executions are played by the engine in memory (`grown_log.py`) and copied into the embedded Postgres, fsync on. Then: export,
rebuild, verify, which finds nothing, stats, twenty questions by SQL; and compact, after which the partition is gone, the
questions have the same answers, `noetl trace` and `exec get`, `events` and `explain` say the same, and verify finds the one
difference that was planted.

    uv run python bench/jobs.py [--executions 20000] [--length 18] [--profile none] [--json]
"""

import argparse
import asyncio
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg

from grown_log import grow_log
from noetl.embedded.postgres import EmbeddedPostgres
from noetl.postgres.migrations import migrate
from noetl.postgres.pool import connect
from noetl.spark.jobs.compact import compact_log
from noetl.spark.jobs.execution_map import ExecutionMap, LocalExecutionMap, SparkExecutionMap
from noetl.spark.jobs.export import export_log
from noetl.spark.jobs.lake import LakeStore
from noetl.spark.jobs.lake_directory import DirectoryLake
from noetl.spark.jobs.query import open_query
from noetl.spark.jobs.rebuild import RebuildJob, rebuild_rows, verify_rows
from noetl.spark.jobs.stats import compute_stats
from noetl.spark.profiles import parse_profile
from noetl.spark.server.process import SparkServerSettings
from noetl.spark.server.server_start import ensure_spark_server, stop_spark_server
from noetl.spark.server.server_state import SparkServerState

AIM = 10_000  # events a second
DAY = 86_400_000_000
Figures = dict[str, Any]

QUESTIONS = (
    "select count(*) from events",
    "select event_type, count(*) from events group by all order by all",
    "select status, count(*) from events group by all order by all",
    "select count(distinct execution_id) from events",
    "select shard, max(seq), count(*) from events group by all order by all",
    "select date(at), count(*) from events group by all order by all",
    "select step, count(*) from events where event_type = 'command.failed' group by all order by all",
    "select min(at), max(at) from events",
    "select sum(get_json_object(result, '$.reference.bytes')) from events where event_type = 'command.completed'",
    "select count(*) from events where result is not null and get_json_object(result, '$.error.code') = 'PYTHON_ERROR'",
    "select execution_id, count(*) as n from events group by all order by n desc, execution_id limit 10",
    "select attempt, count(*) from events group by all order by all",
    "select sum(crc32(concat(event_id, execution_id, event_type, meta, coalesce(result, '')))) from events",
    "select path, status, count(*) from executions group by all order by all",
    "select path, round(avg(seconds), 6), max(seconds) from executions group by all order by all",
    "select path, percentile(seconds, array(0.5, 0.95)) from executions group by all order by path",
    "select x.path, count(*) from events e join executions x using (execution_id) group by all order by all",
    "select step, count(*), sum(bytes) from results group by all order by all",
    "select count(*) from results r join events e on e.execution_id = r.execution_id and e.event_type = 'playbook.failed'",
    "select count(*) from executions x left anti join events e using (execution_id)",
)


def now() -> int:
    return time.time_ns() // 1_000


def time_work(work: Callable[[], Any]) -> tuple[Any, float, float]:
    """The answer, seconds, and seconds of this process's processor."""
    began, busy = time.perf_counter(), time.process_time()
    answer = work()
    return answer, time.perf_counter() - began, time.process_time() - busy


@contextmanager
def open_place(home: Path, name: str) -> Iterator[tuple[ExecutionMap, str | None]]:
    if name == "none":
        yield LocalExecutionMap(), None
        return
    spark = SparkServerState.from_home(home)
    used = spark.begin_use()
    try:
        url = ensure_spark_server(home, parse_profile(name), SparkServerSettings())
        yield SparkExecutionMap(url), url
    finally:
        spark.end_use(used)
        stop_spark_server(spark)


def make_log(home: Path, stack: ExitStack) -> str:
    embedded = EmbeddedPostgres(home)
    stack.callback(embedded.stop_postgres)
    dsn = embedded.ensure_postgres().control

    async def prepare_database() -> None:
        connection = await connect(dsn)
        await migrate(connection)
        await connection.close()

    asyncio.run(prepare_database())
    return dsn


def measure_jobs(options: argparse.Namespace) -> Figures:
    with ExitStack() as stack:
        home = Path(
            stack.enter_context(
                tempfile.TemporaryDirectory(prefix="noetl-bench-", dir=options.folder)
            )
        )
        dsn = make_log(home, stack)
        folder = home / "results" / "lake"
        lake = DirectoryLake(folder)
        events, seconds, _ = time_work(
            lambda: grow_log(
                dsn, options.executions, now() - 75 * DAY, now() - 35 * DAY, options.length
            )
        )
        found: Figures = {"events": events, "executions": options.executions, "grown_s": seconds}
        runs, url = stack.enter_context(open_place(home, options.profile))

        def measure_rate(name: str, work: Callable[[], Any]) -> Any:
            answer, seconds, busy = time_work(work)
            found[f"{name}_events_s"], found[f"{name}_s"] = (
                round(events / seconds),
                round(seconds, 1),
            )
            found[f"{name}_cpu_s"] = round(busy, 1)
            print(
                f"{name:16}{found[f'{name}_events_s']:>10,} events/s {seconds:8.1f} s",
                file=sys.stderr,
            )
            return answer

        job = RebuildJob(dsn, lake, runs, {})
        assert measure_rate("export", lambda: export_log(dsn, lake)).events == events
        assert measure_rate("rebuild", lambda: rebuild_rows(job)).executions == options.executions
        assert measure_rate("verify", lambda: list(verify_rows(job))) == []
        measure_rate("stats", lambda: compute_stats(dsn, lake, runs, now() - 80 * DAY, now()))
        before = _read_with_commands(home, dsn)
        answers = measure_rate("questions", lambda: _query_lake(dsn, lake, url))
        done = measure_rate("compact", lambda: compact_log(dsn, lake, now()))
        assert (done.events, done.executions) == (events, options.executions), done
        found["partitions_dropped"] = done.partitions
        assert measure_rate("questions_cold", lambda: _query_lake(dsn, lake, url)) == answers
        assert _read_with_commands(home, dsn) == before
        planted = _plant_difference(dsn)
        wrong = measure_rate("verify_cold", lambda: list(verify_rows(job)))
        assert [(each.execution_id, each.field) for each in wrong] == [(planted, "steps")], wrong
        found["cold_bytes"] = sum(file.stat().st_size for file in (folder / "cold").iterdir())
        found["exported_bytes"] = sum(
            file.stat().st_size for file in (folder / "events").rglob("*.parquet")
        )
        found["peak_rss_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return found


def _plant_difference(dsn: str) -> str:
    """One difference among all, and the execution that has it."""
    middle = "select percentile_disc(0.5) within group (order by execution_id) from noetl.execution"
    with psycopg.connect(dsn) as connection:
        row = connection.execute(
            f"update noetl.execution set steps = steps + 1 where execution_id = ({middle}) returning execution_id::text"
        ).fetchone()
    assert row is not None
    return str(row[0])


def _query_lake(dsn: str, lake: LakeStore, url: str | None) -> list[Any]:
    if url is None:
        return []
    with open_query(dsn, lake, url) as ask:
        return [ask(question).to_pylist() for question in QUESTIONS]


def _read_with_commands(home: Path, dsn: str) -> list[str]:
    """What commands say of an execution in the middle."""
    with psycopg.connect(dsn) as connection:
        row = connection.execute(
            "select execution_id::text from noetl.execution where path = 'flows/chain' order by execution_id desc limit 1"
        ).fetchone()
    assert row is not None
    commands = (
        ["trace", row[0], "s3"],
        ["exec", "get", row[0]],
        ["exec", "events", row[0]],
        ["exec", "explain", row[0], "s3"],
    )
    return [_run_verify(home, *command, "--json") for command in commands]


def _run_verify(home: Path, *command: str) -> str:
    environment = {**os.environ, "NOETL_HOME": str(home)}
    done = subprocess.run(
        [sys.executable, "-m", "noetl", *command], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--executions", type=int, default=20_000)
    parser.add_argument(
        "--length", type=int, default=18, help="steps of a chain; about six events each"
    )
    parser.add_argument(
        "--profile", default="local", help="local, or none: in this process, without questions"
    )
    parser.add_argument("--folder", default=None, help="where the database and the lake are made")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = measure_jobs(options)
    if options.json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name:24}{value:>14,}" if isinstance(value, int) else f"{name:24}{value:>14,.1f}")
    for name in ("export", "rebuild", "compact"):
        verdict = "reached" if found[f"{name}_events_s"] >= AIM else "NOT reached"
        print(f"{name}: {found[f'{name}_events_s']:,} events/s, the aim of {AIM:,} is {verdict}")


if __name__ == "__main__":
    main()
