"""Does NoETL stay as fast when its database grows? The same work on an empty database and on a grown one, as ratios.

    S1     one execution of 20 python steps in a row: ms a step
    S2     200 executions of 5 steps at once: steps/s
    pages  `GET /api/executions`: the first page, the second one, pages by status and by path, one in the middle, pages of nothing
    loops  a loop of a million items beside one of a tenth of them (`loops.py`)

The grown database holds a million finished executions with twenty events each, and everything they leave: rows of executions,
packed events, references with their payloads, workloads. Both databases are in one Postgres with its usual settings, fsync on;
each has a server and a worker of its own, asked over HTTP as in `blackbox.py`. Both are warmed by the same work. Then they take
turns after every sample, so that a slow moment of the machine hits both alike. The median of all samples counts; beside it stands
the ratio of the lower quartiles, which other work on the machine disturbs less. Aims: a figure is at most 1.2 times that of the
empty database; the large loop takes at most 11 times as long as the small one.

    uv run python bench/grown.py                                         # everything: 10 minutes, 10 GB in the temporary folder
    uv run python bench/grown.py --only S1,pages                         # some figures
    uv run python bench/grown.py --executions 50000 --rounds 3 --json    # a smaller log; every sample as it was measured

docs/performance.md, "Growth", says how to read the figures.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from blackbox import ORDINARY_POSTGRES, Measurement, WorkSizes, split_names
from loops import GROWTH, measure_loops
from multiplied_log import GrownLog, make_grown_log
from noetl.embedded.postgres import EmbeddedPostgres
from noetl.postgres.migrations import migrate
from noetl.postgres.pool import connect
from outside import ProcessesSystem

FIGURES = ("S1", "S2", "pages", "loops")
DATABASES = ("empty", "grown")
AIM = 1.2  # times the figure of the empty database
STEPS, EXECUTIONS, SHORT = 20, 200, 5  # S1 and S2 as in blackbox.py
SETTLE_S = 0.2
SAMPLES = {"S1": 5, "S2": 2, "pages": 20}  # of each database in a round
WARMING_ROUNDS = 2
PAGE_ROWS = 50  # the usual limit of the list
OLD_PATH = "flows/chain"

Figures = dict[str, Any]


@dataclass
class Stack:
    """A server and a worker on one of the databases, and what was measured there."""

    name: str
    system: ProcessesSystem
    measurement: Measurement
    old_page: str = ""
    samples: dict[str, list[Figures]] = field(default_factory=dict)

    def add_sample(self, figure: str, sample: Figures) -> None:
        self.samples.setdefault(figure, []).append(sample)


# ---- what is measured --------------------------------------------------------------------------------------------------


async def run_one_chain(stack: Stack) -> None:
    sample = await stack.measurement.measure_work(
        STEPS, lambda: stack.system.run_chains(STEPS, [0]), [{"i": STEPS - 1}]
    )
    stack.add_sample("S1", sample)


async def run_many_chains(stack: Stack) -> None:
    firsts = list(range(stack.measurement.sizes.executions))
    expected = [{"i": first + SHORT - 1} for first in firsts]
    sample = await stack.measurement.measure_work(
        SHORT * len(firsts), lambda: stack.system.run_chains(SHORT, firsts), expected
    )
    stack.add_sample("S2", sample)


async def read_pages(stack: Stack) -> None:
    """Pages of both stacks have as many rows: they are full, or nothing is found. Finding nothing must not read everything."""
    first = await read_page(stack, "", PAGE_ROWS)
    pages = {
        "page: first": ("", PAGE_ROWS),
        "page: second": (f"before={first['next']}", PAGE_ROWS),
        "page: by status": ("status=completed", PAGE_ROWS),
        "page: by path": (f"path=bench/chain{SHORT}", PAGE_ROWS),
        "page: old, by path": (stack.old_page, PAGE_ROWS),
        "page: status of none": ("status=paused", 0),
        "page: path of none": ("path=bench/never", 0),
    }
    for figure, (query, rows) in pages.items():
        begun = time.perf_counter()
        await read_page(stack, query, rows)
        stack.add_sample(figure, {"seconds": round(time.perf_counter() - begun, 6)})


async def read_page(stack: Stack, query: str, rows: int) -> Figures:
    page: Figures = await stack.system.client.ask("GET", f"/api/executions?{query}")
    ids = [int(row["execution_id"]) for row in page["executions"]]
    assert len(ids) == rows, f"{stack.name}: {len(ids)} rows for {query!r}"
    assert ids == sorted(ids, reverse=True), f"{stack.name}: {query!r} is not in order"
    return page


WORK: dict[str, Callable[[Stack], Awaitable[None]]] = {
    "S1": run_one_chain,
    "S2": run_many_chains,
    "pages": read_pages,
}


# ---- the stage ---------------------------------------------------------------------------------------------------------


async def measure_turns(
    stacks: list[Stack], only: list[str], rounds: int, warming: int
) -> dict[str, dict[str, list[Figures]]]:
    """The samples of each database by figure. Warming is always all of the work: S2 fills the pages."""
    for stack in stacks:
        await run_many_chains(stack)
        stack.old_page = await find_old_page(stack)
    for _ in range(warming):
        await run_round(stacks, list(WORK))
    for stack in stacks:
        stack.samples.clear()
    for number in range(rounds):
        await run_round(stacks[::-1] if number % 2 else stacks, only)
        print(f"round {number + 1} of {rounds} done", file=sys.stderr)
    return {stack.name: stack.samples for stack in stacks}


async def run_round(stacks: list[Stack], only: list[str]) -> None:
    """The stacks take turns after every sample."""
    for figure in only:
        for _ in range(SAMPLES[figure]):
            for stack in stacks:
                await WORK[figure](stack)


async def find_old_page(stack: Stack) -> str:
    """A page of a path that begins in the middle of the list of all; of the empty database: in the middle of its own."""
    if stack.name == "empty":
        page = await read_page(stack, "", PAGE_ROWS)
        return f"path=bench/chain{SHORT}&before={page['next']}"
    connection = stack.measurement.connection
    middle = await connection.fetchval(
        "select percentile_disc(0.5) within group (order by execution_id) from noetl.execution"
    )
    return f"path={OLD_PATH}&before={middle}"


async def prepare_database(address: str, name: str) -> str:
    connection = await connect(address)
    await connection.execute(f"create database {name}")
    await connection.close()
    dsn = f"{address.rpartition('/')[0]}/{name}"
    connection = await connect(dsn)
    await migrate(connection)
    await connection.close()
    return dsn


def find_dsns(address: str) -> dict[str, str]:
    server = address.rpartition("/")[0]
    return {name: f"{server}/{name}" for name in DATABASES}


async def measure_stacks(
    folder: Path, address: str, postmaster: int, options: argparse.Namespace
) -> dict[str, dict[str, list[Figures]]]:
    sizes = WorkSizes(STEPS, options.at_once, SHORT, 0, 0, 0.0, SETTLE_S)
    only = [name for name in options.only if name in WORK]
    stacks: list[Stack] = []
    async with AsyncExitStack() as closing:
        for name, dsn in find_dsns(address).items():
            connection = await connect(dsn)
            closing.push_async_callback(connection.close)
            system = ProcessesSystem(folder / name, dsn)
            closing.push_async_callback(system.close)
            await system.open()
            await system.prepare([STEPS, SHORT])
            measurement = Measurement(system, connection, postmaster, sizes, only)
            stacks.append(Stack(name, system, measurement))
        return await measure_turns(stacks, only, options.rounds, options.warming)


def measure_growth(options: argparse.Namespace) -> Figures:
    """Make the databases, start Postgres again, so that both begin with cold caches and after a checkpoint, and measure."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="noetl-grown-")))
        embedded = EmbeddedPostgres(folder / "postgres", ORDINARY_POSTGRES)
        stack.callback(embedded.stop_postgres)
        address = embedded.ensure_postgres().control
        dsns = {name: asyncio.run(prepare_database(address, name)) for name in DATABASES}
        log: GrownLog = make_grown_log(dsns["grown"], options.executions, options.events_each)
        print(f"made in {log.made_s} s: {log.database_bytes / 1e9:.1f} GB", file=sys.stderr)
        embedded.stop_postgres()
        address = embedded.ensure_postgres().control
        assert embedded.server is not None
        postmaster = embedded.server.process.pid
        samples = asyncio.run(measure_stacks(folder, address, postmaster, options))
    return {"log": asdict(log), "samples": samples, "ratios": compute_ratios(samples)}


# ---- the report --------------------------------------------------------------------------------------------------------


def compute_ratios(samples: dict[str, dict[str, list[Figures]]]) -> dict[str, Figures]:
    """The grown database to the empty one: of the medians, which count, and of the lower quartiles, which other work on the
    machine disturbs less."""
    empty, grown = (samples[name] for name in DATABASES)
    return {
        figure: {
            "median": round(find_median(grown[figure]) / find_median(empty[figure]), 3),
            "quartile": round(find_quartile(grown[figure]) / find_quartile(empty[figure]), 3),
        }
        for figure in empty
    }


def find_median(samples: list[Figures], key: str = "seconds") -> float:
    return statistics.median(float(each[key]) for each in samples)


def find_quartile(samples: list[Figures]) -> float:
    """The lower one of the seconds."""
    seconds = sorted(float(each["seconds"]) for each in samples)
    return seconds[len(seconds) // 4]


def format_figure(figure: str, seconds: float, executions: int) -> str:
    if figure == "S1":
        return f"{seconds / STEPS * 1e3:.2f} ms a step"
    if figure == "S2":
        return f"{executions * SHORT / seconds:.0f} steps/s"
    return f"{seconds * 1e3:.2f} ms"


def print_report(found: Figures, executions: int) -> None:
    if "log" in found:
        print_growth(found, executions)
    if "loops" in found:
        loops = found["loops"]
        print(
            f"a loop of {loops['items']} items: {loops['seconds']} s, of a tenth of them: {loops['tenth_seconds']} s:"
            f" {loops['ratio']} times ({describe_aim(loops['ratio'], GROWTH)})"
        )


def print_growth(found: Figures, executions: int) -> None:
    log, samples = found["log"], found["samples"]
    print(
        f"grown: {log['executions']} executions, {log['events']} events, {log['database_bytes'] / 1e9:.1f} GB,"
        f" made in {log['made_s']} s"
    )
    print(f"{'':22}{'empty':>17}{'grown':>17}{'times':>8}{'quartile':>10}")
    for figure, ratio in found["ratios"].items():
        cells = "".join(
            f"{format_figure(figure, find_median(samples[name][figure]), executions):>17}"
            for name in DATABASES
        )
        verdict = describe_aim(ratio["median"], AIM)
        print(f"{figure:22}{cells}{ratio['median']:>8.2f}{ratio['quartile']:>10.2f}  {verdict}")
    for figure in ("S1", "S2"):
        if figure in found["ratios"]:
            print_costs(figure, samples)


def print_costs(figure: str, samples: dict[str, dict[str, list[Figures]]]) -> None:
    """What the clock alone does not say: which process works more, and what is written more."""
    for name in DATABASES:
        measured = samples[name][figure]
        spent = {
            role: statistics.median(each["cpu_us"][role] for each in measured)
            for role in measured[0]["cpu_us"]
        }
        roles = ", ".join(f"{role} {used:.0f}" for role, used in spent.items())
        wal_bytes = find_median(measured, "wal_bytes")
        print(f"  {figure} {name}, a step: {wal_bytes:.0f} bytes of WAL; us of processor: {roles}")


def describe_aim(ratio: float, aim: float) -> str:
    return f"aim {aim}: {'held' if ratio <= aim else 'MISSED'}"


def measure_loop_growth(items: int) -> Figures:
    part, whole = asyncio.run(measure_loops(items))
    return {
        "items": items,
        "seconds": whole["seconds"],
        "tenth_seconds": part["seconds"],
        "ratio": round(whole["seconds"] / part["seconds"], 2),
    }


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="every sample, as it was measured")
    parser.add_argument(
        "--only",
        type=split_names(FIGURES),
        default=list(FIGURES),
        metavar="S1,pages",
        help=f"some of {', '.join(FIGURES)}; `loops` needs no grown database",
    )
    parser.add_argument(
        "--executions", type=int, default=1_000_000, help="finished ones in the grown database"
    )
    parser.add_argument(
        "--events-each",
        type=int,
        default=20,
        help="events of each of them, in the mean and at least: chains get as many steps as that takes, three or more",
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=7,
        help=f"in each, {SAMPLES['S1']} S1, {SAMPLES['S2']} S2 and {SAMPLES['pages']} of each page of both databases in turns",
    )
    parser.add_argument(
        "--warming", type=int, default=WARMING_ROUNDS, help="rounds before those that count"
    )
    parser.add_argument("--at-once", type=int, default=EXECUTIONS, help="executions of S2")
    parser.add_argument("--items", type=int, default=1_000_000, help="of the large loop")
    return parser


def main() -> None:
    options = make_parser().parse_args()
    found: Figures = {}
    if set(options.only) & set(WORK):
        found |= measure_growth(options)
    if "loops" in options.only:
        found["loops"] = measure_loop_growth(options.items)
    if options.json:
        print(json.dumps(found))
    else:
        print_report(found, options.at_once)


if __name__ == "__main__":
    main()
