"""Where the time of one step goes: S1 (steps one after the other) over HTTP, from point to point.

Server and worker are processes that note when they pass each point (`bench/traced_process.py`); the
database is the embedded one, fsync on. Steps run one after the other, so the points of all processes
in order of time are the life of a step. The median of each way between two points is printed, with
its share.

    uv run python bench/trace.py [--steps 200] [--json]
"""

import argparse
import asyncio
import json
import statistics
import tempfile
from collections import defaultdict
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

from noetl.embedded.postgres import EmbeddedPostgres
from noetl.postgres.migrations import migrate
from noetl.postgres.pool import connect
from scenarios import Bench, Sizes, make_chain, run_round
from systems import HttpSystem, open_system

WAYS = {
    ("tool.before", "child.called"): "worker: hands the call to its pool of children",
    ("child.called", "child.answered"): "child: wakes up, runs the code, answers",
    ("child.answered", "tool.after"): "worker: wakes up, reads the answer",
    ("tool.after", "persist.after"): "worker: makes the result and its reference",
    ("persist.after", "worker.sends"): "worker: makes the report",
    ("worker.sends", "server.receives"): "HTTP: request, the server wakes up and reads it",
    ("server.receives", "append.before"): "server: decides",
    ("append.before", "append.after"): "append: Postgres, one commit",
    ("append.after", "report.after"): "server: answers the report, hands out the command",
    ("report.after", "server.replies"): "server: makes the reply",
    ("server.replies", "worker.receives"): "HTTP: reply, the worker wakes up and reads it",
    ("worker.receives", "tool.before"): "worker: starts the command, renders its input",
}


class TracedSystem(HttpSystem):
    """Server and worker that note the points of steps."""

    def make_command(self, role: str) -> tuple[str, ...]:
        program = Path(__file__).with_name("traced_process.py")
        return (str(program), str(self.get_trace_file(role)), role)

    def get_trace_file(self, role: str) -> Path:
        return self._home / f"{role}.trace"


async def trace_steps(steps: int) -> list[tuple[str, int]]:
    """The points that all steps have passed, in order of time."""
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="noetl-trace-")))
        embedded = EmbeddedPostgres(home)
        stack.callback(embedded.stop_postgres)
        connection = await connect(embedded.ensure_postgres().control)
        await migrate(connection)
        assert embedded.server is not None
        async with open_system("http", home, system=TracedSystem(home)) as system:
            assert isinstance(system, TracedSystem)
            sizes = Sizes(steps, 1, 1, 1, 1, 0, 1)
            bench = Bench(system, connection, embedded.server.process.pid, sizes, 0)
            await system.register(make_chain("trace", steps))
            for _ in range(3):  # the first ones load and compile
                await run_round(bench, "bench/trace", [{"i": 0}])
        await connection.close()
        points: list[tuple[str, int]] = []
        for role in ("server", "worker"):
            for line in system.get_trace_file(role).read_text(encoding="utf-8").splitlines():
                name, at = line.split()
                points.append((name, int(at)))
    return sorted(points, key=lambda point: point[1])


def measure_ways(points: list[tuple[str, int]], steps: int) -> dict[str, float]:
    """The median of each way between two points that follow each other, in milliseconds."""
    taken: dict[str, list[float]] = defaultdict(list)
    last_steps = points[-len(WAYS) * steps :]
    for (before, began), (after, ended) in pairwise(last_steps):
        way = WAYS.get((before, after))
        if way is not None:
            taken[way].append((ended - began) / 1e6)
    missing = set(WAYS.values()) - set(taken)
    if missing:
        raise SystemExit(f"no step took these ways, so the points are wrong: {sorted(missing)}")
    return {way: statistics.median(taken[way]) for way in WAYS.values()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = measure_ways(asyncio.run(trace_steps(options.steps)), options.steps)
    total = sum(found.values())
    if options.json:
        print(json.dumps({"step_ms": round(total, 3), "ways_ms": found}))
        return
    for way, milliseconds in found.items():
        print(f"  {milliseconds:6.3f} ms  {milliseconds / total:4.0%}  {way}")
    print(f"  {total:6.3f} ms        a step")


if __name__ == "__main__":
    main()
