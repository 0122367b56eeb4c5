"""A loop over a million items with a line of Python as its body, and the same over a tenth of them, the median of three.

Server and worker are processes that speak HTTP; the database is the embedded one, fsync on. Every item is counted in the log.
Beside what the loop took: events for each chunk and for a thousand items, the memory of the server, and the state at the end.

    uv run python bench/loops.py [--items 1000000] [--json]
"""

import argparse
import asyncio
import json
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import scenarios
from gauges import count_events_by_type, read_resident_mb
from noetl.embedded.postgres import EmbeddedPostgres
from noetl.postgres.migrations import migrate
from noetl.postgres.pool import connect
from scenarios import Bench, Figures, Round, Sizes, make_playbook, run_round, warm_up
from systems import open_system

ITEMS_S, SERVER_MB, STATE_KB, PER_CHUNK, PER_THOUSAND, GROWTH = 20_000, 300, 64, 2, 2, 11
STEPS = [
    {
        "step": "make",
        "tool": {
            "kind": "python",
            "input": {"n": "{{ workload.n }}"},
            "code": "result = list(range(n))",
        },
        "next": "each",
    },
    {
        "step": "each",
        "loop": {"in": "{{ make }}", "iterator": "item", "spec": {"mode": "parallel"}},
        "tool": {"kind": "python", "input": {"i": "{{ item }}"}, "code": "result = i"},
    },
]
COUNTED = """select sum((meta -> 'items' ->> 'ok')::int) from noetl.event
    where execution_id = $1 and step = 'each' and event_type in ('command.completed', 'command.progress')"""


async def measure_loop(bench: Bench, items: int) -> Figures:
    server = bench.list_processes()["server"]
    most = [read_resident_mb(server)]
    watching = asyncio.create_task(watch_memory(server, most))
    made: Round = await run_round(bench, "bench/loops", [{"n": items}])
    watching.cancel()
    [execution] = made.executions
    assert await bench.connection.fetchval(COUNTED, int(execution)) == items
    kinds = await count_events_by_type(bench.connection, [execution])
    chunks = kinds["command.issued"] - 1  # one made the items
    told = sum(number for kind, number in kinds.items() if kind.startswith("command.")) - 2
    state = await bench.connection.fetchval(
        "select octet_length(state) from noetl.execution where execution_id = $1", int(execution)
    )
    return {
        "items": items,
        "seconds": round(made.seconds, 2),
        "items_s": round(items / made.seconds),
        "chunks": chunks,
        "events": made.events,
        "per_chunk": round(told / chunks, 2),
        "per_thousand": round(made.events / items * 1_000, 2),
        "server_mb": round(max(most)),
        "state_kb": round(state / 1_000, 1),
        "kinds": kinds,
    }


async def watch_memory(processes: list[int], most: list[float]) -> None:
    while True:
        await asyncio.sleep(0.5)
        most.append(read_resident_mb(processes))


async def measure_loops(items: int) -> list[Figures]:
    scenarios.HANG_LIMIT_S = 3_600.0
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="noetl-bench-")))
        embedded = EmbeddedPostgres(home)
        stack.callback(embedded.stop_postgres)
        connection: Any = await connect(embedded.ensure_postgres().control)
        await migrate(connection)
        async with open_system("http", home) as system:
            assert embedded.server is not None
            bench = Bench(
                system,
                connection,
                embedded.server.process.pid,
                Sizes(0, 0, 0, items, 0, 0.0, 1),
                0.0,
            )
            await warm_up(bench, make_playbook("loops", STEPS), "bench/loops", {"n": 100})
            tenth = items // 10
            *parts, whole, last = [
                await measure_loop(bench, each) for each in (tenth, tenth, items, tenth)
            ]
        await connection.close()
        return [sorted((*parts, last), key=lambda each: each["seconds"])[1], whole]


def print_figures(found: list[Figures]) -> None:
    for each in found:
        print(
            f"{each['items']} items in {each['seconds']} s: {each['items_s']} items/s (aim {ITEMS_S})"
        )
        print(
            f"  {each['chunks']} chunks, {each['events']} events: {each['per_chunk']} for a chunk (aim {PER_CHUNK})",
            end="",
        )
        print(f", {each['per_thousand']} for a thousand items (aim {PER_THOUSAND})")
        print(
            f"  server: at most {each['server_mb']} MB (aim {SERVER_MB}); state: {each['state_kb']} KB (aim {STATE_KB})"
        )
    part, whole = found
    print(
        f"ten times the items took {whole['seconds'] / part['seconds']:.1f} times as long (aim {GROWTH})"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--items", type=int, default=1_000_000)
    options = parser.parse_args()
    found = asyncio.run(measure_loops(options.items))
    if options.json:
        print(json.dumps(found))
    else:
        print_figures(found)


if __name__ == "__main__":
    main()
