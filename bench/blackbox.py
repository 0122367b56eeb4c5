"""How fast NoETL is for its users: asked over HTTP, until the client has the result in hand, beside DBOS in the same run.

    S1  one execution of 20 steps in a row                   S4  100 000 rows of 6 columns from a step to the next one
    S2  200 executions of 5 steps at once                    S5  from an empty database to the first result
    S3  a loop of 1 000 items: first, again, `chunk: 1`      S6  a loop of 1 000 items; the worker is killed at 40 %

Systems: `dev` is `noetl dev`, `processes` is `noetl server start` with `noetl worker start`, `dbos` is DBOS from PyPI in an
environment of its own. All use one Postgres with its usual settings, fsync on, and an empty database for every run. Systems
take turns within a run, so that a slow moment of the machine hits all of them alike. Every result is checked.

    uv run python bench/blackbox.py [--json] [--only S1,S3] [--systems dev,processes,dbos] [--runs 5]

docs/performance.md says what each figure includes.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from blackbox_report import print_report
from gauges import (
    LogFigures,
    list_descendants,
    measure_limits,
    read_cpu_seconds,
    read_proportional_mb,
)
from noetl.client import AsyncClient
from noetl.embedded.postgres import EmbeddedPostgres
from noetl.postgres.pool import connect
from noetl.runtime.token_files import read_token_file
from outside import Contender, DbosSystem, DevSystem, OwnSystem, ProcessesSystem
from scenarios import KILL_AT, open_lines
from systems import HANG_LIMIT_S

SCENARIOS = ("S1", "S2", "S3", "S4", "S5", "S6")
SYSTEMS = ("dev", "processes", "dbos")
DBOS_VERSION = "3.3.0"
REPEATS = 3  # of a scenario within a run; the median counts
S1_REPEATS = 5
DBOS_REPEATS = 1  # of S2 and S3: they take seconds
ORDINARY_POSTGRES = {
    "wal_level": "replica",
    "max_wal_senders": "10",
    "max_logical_replication_workers": "4",
    "min_wal_size": "80MB",
    "checkpoint_timeout": "5min",
    "random_page_cost": "4",
    "jit": "on",
    "huge_pages": "try",
}

Figures = dict[str, Any]


@dataclass(frozen=True)
class WorkSizes:
    steps: int
    executions: int
    short: int  # steps of each of them
    items: int
    rows: int
    idle_s: float
    settle_s: float  # after the result: what is written later belongs to the work too


@dataclass
class Measurement:
    """One system in one run."""

    system: Contender
    connection: Any
    postmaster: int
    sizes: WorkSizes
    only: list[str]

    @property
    def repeats(self) -> int:
        return DBOS_REPEATS if self.system.name == "dbos" else REPEATS

    def list_processes(self) -> dict[str, list[int]]:
        postgres = [self.postmaster, *list_descendants(self.postmaster)]
        return {**self.system.list_processes(), "postgres": postgres}

    def read_usage(self) -> dict[str, float]:
        return {role: read_cpu_seconds(pids) for role, pids in self.list_processes().items()}

    async def measure_work(
        self, pieces: int, run_work: Callable[[], Awaitable[Any]], expected: Any
    ) -> Figures:
        """How long the work takes and what each of its pieces costs. A wrong result ends the benchmark."""
        before, used_before = await LogFigures.read_now(self.connection), self.read_usage()
        begun, client_before = time.perf_counter(), time.process_time()
        result = await run_work()
        seconds, client_s = time.perf_counter() - begun, time.process_time() - client_before
        used_at_end = self.read_usage()
        assert result == expected, f"{self.system.name}: {str(result)[:500]} is not {expected}"
        await asyncio.sleep(self.sizes.settle_s)
        after, used_after = await LogFigures.read_now(self.connection), self.read_usage()
        cpu_s = subtract_usage(used_after, used_before) | {"client": client_s}
        busy_s = client_s + sum(subtract_usage(used_at_end, used_before).values())
        return {
            "seconds": round(seconds, 4),
            "commits": round((after.commits - before.commits) / pieces, 3),
            "wal_bytes": round((after.wal - before.wal) / pieces),
            "cpu_us": {role: round(spent / pieces * 1e6) for role, spent in cpu_s.items()},
            "busy_cores": round(busy_s / seconds, 2),
        }


def subtract_usage(after: dict[str, float], before: dict[str, float]) -> dict[str, float]:
    return {role: after[role] - before.get(role, 0.0) for role in after}


# ---- scenarios ---------------------------------------------------------------------------------------------------------


async def run_loops(measurement: Measurement) -> Figures:
    """S3. It comes first: nothing but a step has run in this stack."""
    system, items = measurement.system, measurement.sizes.items
    expected = {"i": sum(range(items)), "rows": items}

    async def measure_loop(each: bool) -> Figures:
        return await measurement.measure_work(
            items, lambda: system.run_loop(items, each=each), expected
        )

    found: Figures = {"S3 first": [await measure_loop(False)]}
    found["S3 again"] = [await measure_loop(False) for _ in range(measurement.repeats)]
    if system.name == "dbos":  # it records every item in any case
        found["S3 each"] = found["S3 again"]
    else:
        found["S3 each"] = [await measure_loop(True) for _ in range(measurement.repeats)]
    return found


async def run_one_chain(measurement: Measurement) -> Figures:
    system, steps = measurement.system, measurement.sizes.steps

    async def measure_chain(first: int) -> Figures:
        return await measurement.measure_work(
            steps, lambda: system.run_chains(steps, [first]), [{"i": first + steps - 1}]
        )

    found: Figures = {"S1": [await measure_chain(number) for number in range(S1_REPEATS)]}
    if isinstance(system, OwnSystem):
        found["S1 client"] = await run_by_client(measurement, system)
    return found


async def run_by_client(measurement: Measurement, system: OwnSystem) -> list[Figures]:
    """S1 once more, as a program in Python would run it."""
    steps = measurement.sizes.steps

    async def run_chain(client: AsyncClient) -> Any:
        report = await client.run(f"bench/chain{steps}", {"i": 0})
        return await client.read_result(report.execution_id, f"s{steps - 1}")

    token = read_token_file(system.home, "admin")
    async with AsyncClient(system.url, token=token) as client:
        return [
            await measurement.measure_work(steps, lambda: run_chain(client), {"i": steps - 1})
            for _ in range(REPEATS)
        ]


async def run_many_chains(measurement: Measurement) -> Figures:
    system, sizes = measurement.system, measurement.sizes
    firsts = list(range(sizes.executions))
    expected = [{"i": first + sizes.short - 1} for first in firsts]
    pieces = sizes.short * sizes.executions
    rounds = [
        await measurement.measure_work(
            pieces, lambda: system.run_chains(sizes.short, firsts), expected
        )
        for _ in range(measurement.repeats)
    ]
    return {"S2": rounds}


async def pass_rows(measurement: Measurement) -> Figures:
    system, rows = measurement.system, measurement.sizes.rows
    expected = {"sum": sum(i % 97 for i in range(rows)), "rows": rows}
    rounds = [
        await measurement.measure_work(1, lambda: system.pass_rows(rows), expected)
        for _ in range(REPEATS)
    ]
    return {"S4": rounds, "S4 first": rounds[:1]}


async def lose_worker(measurement: Measurement) -> Figures:
    """S6. It comes last: a worker is lost. Each run of an item leaves a line in a file."""
    system, items = measurement.system, measurement.sizes.items
    with open_lines() as file:
        enough_bytes = KILL_AT * sum(len(f"{number}\n") for number in range(items))
        loop_id = await system.begin_loop(items, file)
        async with asyncio.timeout(HANG_LIMIT_S):
            while file.stat().st_size < enough_bytes:
                await asyncio.sleep(0.001)
        killed = time.perf_counter()
        await system.lose_worker()
        result = await system.finish_loop(loop_id)
        seconds = time.perf_counter() - killed
        runs = [int(line) for line in file.read_text().split()]
    expected = {"i": sum(range(items)), "rows": items}
    assert result == expected, f"{system.name}: {result} is not {expected}"
    assert set(runs) == set(range(items)), f"{system.name}: an item never ran"
    return {"S6": [{"seconds": round(seconds, 4), "repeated_items": len(runs) - items}]}


async def measure_memory(measurement: Measurement) -> Figures:
    """The processor time of waiting after the work, and the memory after that."""
    await asyncio.sleep(min(2.0, measurement.sizes.idle_s))
    before, begun = measurement.read_usage(), time.perf_counter()
    await asyncio.sleep(measurement.sizes.idle_s)
    after, seconds = measurement.read_usage(), time.perf_counter() - begun
    spent = subtract_usage(after, before)
    # A process that has ended takes its processor time with it.
    percent = {role: round(max(used, 0.0) / seconds * 100, 2) for role, used in spent.items()}
    memory = {
        role: round(read_proportional_mb(pids), 1)
        for role, pids in measurement.list_processes().items()
    }
    return {"memory_mb": memory, "idle_percent": percent}


STEPS_OF_RUN: dict[str, Callable[[Measurement], Awaitable[Figures]]] = {
    "S3": run_loops,
    "S1": run_one_chain,
    "S2": run_many_chains,
    "S4": pass_rows,
}


async def measure_system(measurement: Measurement, *, idle: bool) -> Figures:
    """Everything that is asked for, in one fresh stack. Opening it is S5."""
    system, sizes = measurement.system, measurement.sizes
    found: Figures = {}
    try:
        begun = time.perf_counter()
        result = await system.open()
        seconds = time.perf_counter() - begun
        assert result == {"i": 7}, result
        if "S5" in measurement.only:
            found["S5"] = [{"seconds": round(seconds, 4)}]
        await system.prepare([sizes.steps, sizes.short])
        for name, scenario in STEPS_OF_RUN.items():
            if name in measurement.only:
                found |= await scenario(measurement)
        if idle:
            found |= await measure_memory(measurement)
        if "S6" in measurement.only:
            found |= await lose_worker(measurement)
    finally:
        await system.close()
    return found


# ---- the stage ---------------------------------------------------------------------------------------------------------


def prepare_dbos() -> Path | None:
    """The Python of an environment with DBOS, made once in the user's cache. None if it cannot be had."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    folder = cache / "noetl-bench" / f"dbos-{DBOS_VERSION}"
    python = folder / "bin" / "python"
    if (folder / "complete").exists():
        return python
    commands = (
        ["uv", "venv", "-q", "--clear", "--python", sys.executable, str(folder)],
        ["uv", "pip", "install", "-q", "--python", str(python), f"dbos=={DBOS_VERSION}"],
    )
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            print(f"DBOS is left out: {done.stderr.strip()[-500:]}", file=sys.stderr)
            return None
    (folder / "complete").touch()
    return python


@dataclass(frozen=True)
class Stage:
    """The Postgres that all systems share, and where everything is kept until the end."""

    folder: Path
    address: str
    postmaster: int
    python: Path | None  # of the environment with DBOS
    sizes: WorkSizes
    only: list[str]

    async def measure_turn(self, name: str, run: int, *, idle: bool) -> Figures:
        """One system, in a database and a home of its own."""
        database = f"run_{run}_{name}"
        connection = await connect(self.address)
        try:
            await connection.execute(f"create database {database}")
            dsn = f"{self.address.rpartition('/')[0]}/{database}"
            system = self.make_system(name, self.folder / database, dsn)
            measurement = Measurement(system, connection, self.postmaster, self.sizes, self.only)
            found = await measure_system(measurement, idle=idle)
            await connection.execute(f"drop database {database} with (force)")
        finally:
            await connection.close()
        return found

    def make_system(self, name: str, home: Path, dsn: str) -> Contender:
        if name == "dev":
            return DevSystem(home, dsn)
        if name == "processes":
            return ProcessesSystem(home, dsn)
        assert self.python is not None
        return DbosSystem(dsn, self.python)


async def run_turns(
    options: argparse.Namespace, systems: list[str], python: Path | None
) -> Figures:
    """All systems, one after the other, as often as there are runs."""
    sizes = WorkSizes(
        options.steps,
        options.executions,
        options.short,
        options.items,
        options.rows,
        options.idle,
        options.settle,
    )
    runs: list[dict[str, Figures]] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="noetl-blackbox-")))
        embedded = EmbeddedPostgres(folder / "postgres", ORDINARY_POSTGRES)
        stack.callback(embedded.stop_postgres)
        address = embedded.ensure_postgres().control
        assert embedded.server is not None
        postmaster = embedded.server.process.pid
        limits = await measure_limits(address, options.limit)
        stage = Stage(folder, address, postmaster, python, sizes, options.only)
        for run in range(options.runs):
            idle = run == 0 and sizes.idle_s > 0
            runs.append({name: await stage.measure_turn(name, run, idle=idle) for name in systems})
            print(f"run {run + 1} of {options.runs} done", file=sys.stderr)
    return {"limits": limits, "sizes": asdict(sizes), "runs": runs}


def split_names(known: tuple[str, ...]) -> Callable[[str], list[str]]:
    def split(text: str) -> list[str]:
        names = text.split(",")
        unknown = sorted(set(names) - set(known))
        if unknown:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: not one of {', '.join(known)}")
        return names

    return split


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="every round, as it was measured")
    parser.add_argument(
        "--only", type=split_names(SCENARIOS), default=list(SCENARIOS), metavar="S1,S3"
    )
    parser.add_argument(
        "--systems", type=split_names(SYSTEMS), default=list(SYSTEMS), metavar="dev,dbos"
    )
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20, help="of S1")
    parser.add_argument("--executions", type=int, default=200, help="of S2")
    parser.add_argument("--short", type=int, default=5, help="steps of each of them")
    parser.add_argument("--items", type=int, default=1_000, help="of S3 and S6")
    parser.add_argument("--rows", type=int, default=100_000, help="of S4")
    parser.add_argument(
        "--idle", type=float, default=10.0, help="seconds of doing nothing, in the first run"
    )
    parser.add_argument(
        "--settle",
        type=float,
        default=0.5,
        help="seconds after each result that count for its costs",
    )
    parser.add_argument("--limit", type=float, default=1.0, help="seconds for each limit")
    options = parser.parse_args()
    python = prepare_dbos() if "dbos" in options.systems else None
    systems = [name for name in options.systems if name != "dbos" or python is not None]
    found = asyncio.run(run_turns(options, systems, python))
    if options.json:
        print(json.dumps(found))
    else:
        print_report(found)


if __name__ == "__main__":
    main()
