"""The durable core: how fast it is, what a step costs, what waiting and losing a worker cost; beside the machine's limits.

Steps are `python` (`result = {"i": i}`) in a child of a worker; each result is stored, and read by the next step. Twice: with
server and worker in one process, as `noetl run` has them, and as processes that speak HTTP. Postgres is the embedded one, fsync
on, in a directory that is deleted afterwards.

Its figures leave out what a user also waits for; `blackbox.py` measures that. Executions are started by a client in the process
of the server, or by one that does nothing else. The clock stops at the commit of the last event, not when a client knows of it
and has its result. Playbooks have run before, so plans, connections and Python processes are warm; a loop knows how long its
items take. Postgres has the settings of the embedded one. Nothing is as first-time users find it, except S5.

    S1  one execution of 20 steps, one after the other       S5  from nothing to the first result; memory and processor when idle
    S2  200 executions of 5 steps at once                    S6  S3, and the worker is killed at 40 %
    S3  a loop of 1 000 items                                S7  pages of a list of 200 000 executions
    S4  reading executions while S2 runs (http)              S8  a loop of 10 items over the rows of a step

    uv run python bench/core.py [--json] [--only S1,S3] [--mode embedded] [--repeat 3] [--profile FILE]
"""

import argparse
import asyncio
import json
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from gauges import measure_limits
from noetl.embedded.postgres import EmbeddedPostgres
from noetl.postgres.migrations import migrate
from noetl.postgres.pool import connect
from scenarios import SCENARIOS, Bench, Figures, Sizes, first_result
from systems import open_system

MODES = ("embedded", "http")
S1_COMMITS = {"embedded": 10, "http": 20}  # a step may take as long as so many commits
S2_STEPS_S = {"embedded": 2_000, "http": 1_500}
S3_ITEMS_S = 5_000
READ_MS, IDLE_PERCENT, ROLE_MB = 10, 2, 150


async def measure_mode(mode: str, options: argparse.Namespace) -> Figures:
    sizes = Sizes(
        options.steps,
        options.executions,
        options.short,
        options.items,
        options.listed,
        options.idle,
        options.repeat,
    )
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="noetl-bench-")))
        embedded = EmbeddedPostgres(home)
        stack.callback(embedded.stop_postgres)
        dsn = embedded.ensure_postgres().control
        assert embedded.server is not None
        found: Figures = await measure_limits(dsn, options.limit)
        connection = await connect(dsn)
        await migrate(connection)
        if "S5" in options.only:
            found |= await first_result(mode)
        async with open_system(mode, home, options.profile) as system:
            bench = Bench(
                system, connection, embedded.server.process.pid, sizes, found["commit_ms"] / 1000
            )
            for name, scenario in SCENARIOS.items():
                if name in options.only:
                    found |= await scenario(bench)
        await connection.close()
    return found


# ---- saying it ---------------------------------------------------------------------------------------------------------


def print_figures(mode: str, found: Figures) -> None:
    print(
        f"\n{mode}\n  limits: a commit {found['commit_ms']:.3f} ms; {found['group_commit_s']} commits/s by 64 producers;"
        f" {found['child_call_s']} child calls/s one after the other"
    )
    if "s1_ms" in found:
        commits = found["s1_ms"] / found["commit_ms"]
        print(
            f"  S1: {found['s1_ms']:.2f} ms a step: {commits:.1f} commits{compare_figures(S1_COMMITS[mode], commits)}"
        )
        print_costs(found["s1"], "a step")
    if "s2_steps_s" in found:
        part = found["s2_steps_s"] / found["group_commit_s"]
        print(
            f"  S2: {found['s2_steps_s']} steps/s{compare_figures(found['s2_steps_s'], S2_STEPS_S[mode])}",
            end="",
        )
        print(f"; {part:.2f} of the group commits")
        print_costs(found["s2"], "a step")
    if "s3_items_s" in found:
        part = found["s3_items_s"] / found["child_call_s"]
        print(
            f"  S3: {found['s3_items_s']} items/s{compare_figures(found['s3_items_s'], S3_ITEMS_S)}",
            end="",
        )
        print(f"; {part:.2f} of the child calls")
        print_costs(found["s3"], "an item")
    if "s8_ms" in found:
        print(f"  S8: {found['s8_ms']:.2f} ms an execution")
        print_costs(found["s8"], "an execution")
    if "s4_p99_ms" in found:
        p99 = found["s4_p99_ms"]
        print(
            f"  S4: p50 {found['s4_p50_ms']} ms, p99 {p99} ms of {found['s4_reads']} reads{compare_figures(READ_MS, p99)}"
        )
    if "s5_rss_mb" in found:
        print_idle(found)
    if "s6_done_s" in found:
        print(
            f"  S6: done {found['s6_done_s']:.2f} s after the loss, {found['s6']['total_s']:.2f} s in all;"
            f" {found['s6_repeated']} items ran twice"
        )
    if "s7_page_ms" in found:
        pages = found["s7_page_ms"]
        said = ", ".join(f"{name} {taken} ms" for name, taken in pages.items())
        print(
            f"  S7: {said}: the slowest {max(pages.values()) / min(pages.values()):.2f} times the quickest"
        )


def print_costs(costs: dict[str, Any], piece: str) -> None:
    busy = ", ".join(f"{name} {micros}" for name, micros in costs["cpu_us"].items())
    print(
        f"      {piece}: {costs['commits']} commits, {costs['events']} events, {costs['wal_bytes']} bytes of WAL;"
        f" us of processor: {busy}, in all {sum(costs['cpu_us'].values())}"
    )


def print_idle(found: Figures) -> None:
    memory, busy = found["s5"]["rss_mb"], found["s5"]["idle_cpu_percent"]
    print(
        f"  S5: first result after {found['s5_first_s']} s, {found['s5_made_s']} s when the database is made for it"
    )
    print(
        f"      idle {found['s5_idle_cpu_percent']} % of a core{compare_figures(IDLE_PERCENT, found['s5_idle_cpu_percent'])}",
        end="",
    )
    print(f" ({', '.join(f'{name} {part} %' for name, part in busy.items())})")
    print(
        f"      {found['s5_rss_mb']} MB resident ({', '.join(f'{name} {part}' for name, part in memory.items())})",
        end="",
    )
    if "server" in memory:
        worker = memory["worker"] + memory["children"]
        print(
            f": server{compare_figures(ROLE_MB, memory['server'])}, worker{compare_figures(ROLE_MB, worker)}",
            end="",
        )
    print()


def compare_figures(better: float, worse: float) -> str:
    """1 or more: the aim is reached."""
    return f" ({better / worse:.2f} of the aim)" if worse else " (reached)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true")
    parser.add_argument(
        "--only", type=lambda text: text.split(","), default=list(SCENARIOS), metavar="S1,S3"
    )
    parser.add_argument("--mode", choices=MODES)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument(
        "--profile",
        type=Path,
        metavar="FILE",
        help="of the process that is server and worker (cProfile)",
    )
    parser.add_argument("--steps", type=int, default=20, help="of S1")
    parser.add_argument("--executions", type=int, default=200, help="of S2")
    parser.add_argument("--short", type=int, default=5, help="steps of each of them")
    parser.add_argument("--items", type=int, default=1_000, help="of S3 and S6")
    parser.add_argument("--listed", type=int, default=200_000, help="executions of S7")
    parser.add_argument("--idle", type=float, default=10.0, help="seconds of doing nothing in S5")
    parser.add_argument("--limit", type=float, default=1.0, help="seconds for each limit")
    options = parser.parse_args()
    found: dict[str, Figures] = {}
    for mode in MODES:
        if options.mode in (None, mode):
            found[mode] = asyncio.run(measure_mode(mode, options))
            if not options.json:
                print_figures(mode, found[mode])
    if options.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
