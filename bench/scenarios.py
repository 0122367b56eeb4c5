"""The scenarios: what is run, what must be true of it afterwards, and what it took.

A time begins when the wish is sent and ends with the commit of the last event: the log says when that was decided, and the
commit of this machine is added. Everything is checked on the log by SQL, and values as the next step would read them.
"""

import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from gauges import (
    CODE,
    LogFigures,
    count_events_by_type,
    list_descendants,
    read_cpu_seconds,
    read_resident_mb,
    time_commits,
)
from noetl.model.ids import ExecutionId
from systems import HANG_LIMIT_S, HttpSystem, System, open_system, start_process

LOOK_EVERY = 0.025  # seconds
ENDS = ["playbook.completed", "playbook.failed", "playbook.cancelled"]
ONCE = ["playbook.initialized", "workflow.initialized", "playbook.completed"]
PER_STEP = [
    "step.enter",
    "command.issued",
    "command.completed",
    "call.done",
    "step.exit",
    "next.evaluated",
]
BETWEEN = 0.3  # seconds of single commits
READ_EVERY = 0.004
PAGES = 30
KILL_AT = 0.4  # of the items
SMALL_LOOPS = 40  # executions of S8
LOAD = 'result = {"rows": [{"i": i, "name": f"n{i}"} for i in range(10)]}'

Figures = dict[str, Any]


@dataclass(frozen=True)
class Sizes:
    steps: int
    executions: int
    short: int  # steps of each of them
    items: int
    listed: int
    idle: float  # seconds
    repeat: int


@dataclass
class Bench:
    system: System
    connection: Any
    postmaster: int
    sizes: Sizes
    commit: float  # seconds
    found: Figures = field(default_factory=dict)

    def list_processes(self) -> dict[str, list[int]]:
        return {
            **self.system.list_processes(),
            "postgres": [self.postmaster, *list_descendants(self.postmaster)],
        }


# ---- playbooks ---------------------------------------------------------------------------------------------------------


def make_playbook(name: str, steps: list[dict[str, Any]]) -> str:
    metadata = {"name": name, "path": f"bench/{name}"}
    document = {
        "apiVersion": "noetl.io/v2",
        "kind": "Playbook",
        "metadata": metadata,
        "workflow": steps,
    }
    return yaml.safe_dump(document, sort_keys=False)


def make_chain(name: str, length: int) -> str:
    """Every step adds one to what the step before has given."""
    steps: list[dict[str, Any]] = []
    for number in range(length):
        given = "{{ workload.i }}" if number == 0 else f"{{{{ s{number - 1}.i + 1 }}}}"
        steps.append(
            {"step": f"s{number}", "tool": {"kind": "python", "input": {"i": given}, "code": CODE}}
        )
        if number + 1 < length:
            steps[-1]["next"] = f"s{number + 1}"
    return make_playbook(name, steps)


def make_loop(name: str, code: str = CODE, chunk: int | str = "auto", **more: str) -> str:
    """Items in a parallel loop, `chunk` of them to a command; the step after it reads them all."""
    spec = {"mode": "parallel", "chunk": chunk}
    each = {
        "step": "each",
        "loop": {"in": "{{ workload.items }}", "iterator": "item", "spec": spec},
        "tool": {"kind": "python", "input": {"i": "{{ item }}", **more}, "code": code},
        "next": "total",
    }
    add = 'result = {"i": sum(row["i"] for row in rows), "rows": len(rows)}'
    total = {
        "step": "total",
        "tool": {"kind": "python", "input": {"rows": "{{ each.rows }}"}, "code": add},
    }
    return make_playbook(name, [each, total])


# ---- one run -----------------------------------------------------------------------------------------------------------


@dataclass
class Round:
    """What was done at once, and what it took."""

    executions: list[ExecutionId]
    seconds: float
    commits: int
    wal: int
    events: int
    cpu: dict[str, float]


async def run_round(bench: Bench, path: str, payloads: list[dict[str, Any]]) -> Round:
    before, spent = await LogFigures.read_now(bench.connection), read_usage(bench)
    begun = time.time()
    executions = await bench.system.start(path, payloads)
    await wait_for_ends(bench, executions)
    after, more = await LogFigures.read_now(bench.connection), read_usage(bench)
    seconds = await read_last_end(bench, executions) - begun + bench.commit
    taken = {name: more[name] - spent.get(name, 0.0) for name in more}
    events = sum((await count_events_by_type(bench.connection, executions)).values())
    return Round(
        executions, seconds, after.commits - before.commits, after.wal - before.wal, events, taken
    )


def read_usage(bench: Bench) -> dict[str, float]:
    return {name: read_cpu_seconds(pids) for name, pids in bench.list_processes().items()}


async def wait_for_ends(bench: Bench, executions: list[ExecutionId]) -> None:
    """Seen in the projection, which is cheap to ask; it comes a moment after the end."""
    ids = [int(each) for each in executions]
    async with asyncio.timeout(HANG_LIMIT_S):
        while True:
            done = await bench.connection.fetchval(
                "select count(*) from noetl.execution where execution_id = any($1::bigint[]) and ended_at is not null",
                ids,
            )
            if done == len(ids):
                return
            await asyncio.sleep(LOOK_EVERY)


async def read_last_end(bench: Bench, executions: list[ExecutionId]) -> float:
    at = await bench.connection.fetchval(
        "select extract(epoch from max(at))::float8 from noetl.event"
        " where execution_id = any($1::bigint[]) and event_type = any($2)",
        [int(each) for each in executions],
        ENDS,
    )
    return float(at)


def summarize_rounds(rounds: list[Round], pieces: int) -> Figures:
    """Per step or item, over all rounds: `pieces` are those of one."""
    total = pieces * len(rounds)
    return {
        "seconds": [round(each.seconds, 4) for each in rounds],
        "commits": round(sum(each.commits for each in rounds) / total, 3),
        "events": round(sum(each.events for each in rounds) / total, 3),
        "wal_bytes": round(sum(each.wal for each in rounds) / total),
        "cpu_us": {
            name: round(sum(each.cpu[name] for each in rounds) / total * 1e6)
            for name in rounds[0].cpu
        },
    }


def median_seconds(rounds: list[Round]) -> float:
    return statistics.median(each.seconds for each in rounds)


# ---- checks ------------------------------------------------------------------------------------------------------------


async def check_chains(
    bench: Bench, executions: list[ExecutionId], steps: int, first: list[int]
) -> None:
    """Every step ran once and has stored its result; the values are those of the steps before."""
    number = len(executions)
    expected = dict.fromkeys(ONCE, number) | dict.fromkeys(PER_STEP, steps * number)
    counted = await count_events_by_type(bench.connection, executions)
    assert {name: counted.get(name, 0) for name in expected} == expected, counted
    assert not [name for name in counted if name.endswith((".failed", ".error", ".lost"))], counted
    rows = await bench.connection.fetch(
        "select execution_id, step, result -> 'reference' as reference from noetl.event"
        " where execution_id = any($1::bigint[]) and event_type = 'command.completed'",
        [int(each) for each in executions],
    )
    begins = dict(zip(map(int, executions), first, strict=True))
    wanted = [{"i": begins[row["execution_id"]] + int(row["step"][1:])} for row in rows]
    assert await bench.system.resolve([json.loads(row["reference"]) for row in rows]) == wanted


async def check_loop(bench: Bench, execution: ExecutionId, items: int) -> None:
    """Every item is counted once in the log, and the step after the loop has read every one."""
    counted = await count_events_by_type(bench.connection, [execution])
    assert all(counted.get(name) == 1 for name in (*ONCE, "loop.started", "loop.done")), counted
    done = await bench.connection.fetchval(
        "select sum((meta -> 'items' ->> 'ok')::int) from noetl.event where execution_id = $1 and step = 'each'"
        " and event_type in ('command.completed', 'command.progress')",
        int(execution),
    )
    assert done == items, (done, counted)
    reference = await bench.connection.fetchval(
        "select result -> 'reference' from noetl.event where execution_id = $1 and step = 'total'"
        " and event_type = 'command.completed'",
        int(execution),
    )
    assert await bench.system.resolve([json.loads(reference)]) == [
        {"i": sum(range(items)), "rows": items}
    ]


# ---- S1 to S3 ----------------------------------------------------------------------------------------------------------


async def one_chain(bench: Bench) -> Figures:
    """S1: one execution, one step after the other. Single commits are measured between the rounds: both see the same machine."""
    steps = bench.sizes.steps
    await warm_up(bench, make_chain("s1", steps), "bench/s1", {"i": 0})
    rounds, single = [], []
    for number in range(bench.sizes.repeat):
        rounds.append(await run_round(bench, "bench/s1", [{"i": number}]))
        await check_chains(bench, rounds[-1].executions, steps, [number])
        single += await time_commits(bench.connection, BETWEEN)
    return {
        "s1_ms": round(median_seconds(rounds) / steps * 1000, 3),
        "commit_ms": round(statistics.median(single) * 1000, 4),
        "s1": summarize_rounds(rounds, steps),
    }


async def many_chains(bench: Bench) -> Figures:
    """S2: many short executions at once."""
    payloads = await short_chains(bench)
    pieces = bench.sizes.short * len(payloads)
    rounds = []
    for _ in range(bench.sizes.repeat):
        rounds.append(await run_round(bench, "bench/s2", payloads))
        await check_chains(
            bench, rounds[-1].executions, bench.sizes.short, [each["i"] for each in payloads]
        )
    return {
        "s2_steps_s": round(pieces / median_seconds(rounds)),
        "s2": summarize_rounds(rounds, pieces),
    }


async def short_chains(bench: Bench) -> list[dict[str, Any]]:
    await warm_up(bench, make_chain("s2", bench.sizes.short), "bench/s2", {"i": 0})
    return [{"i": number} for number in range(bench.sizes.executions)]


async def one_loop(bench: Bench) -> Figures:
    """S3: a loop, and a step that reads all of its results."""
    items = bench.sizes.items
    await warm_up(bench, make_loop("s3"), "bench/s3", {"items": list(range(items))})
    rounds = []
    for _ in range(bench.sizes.repeat):
        rounds.append(await run_round(bench, "bench/s3", [{"items": list(range(items))}]))
        await check_loop(bench, rounds[-1].executions[0], items)
    return {
        "s3_items_s": round(items / median_seconds(rounds)),
        "s3": summarize_rounds(rounds, items),
    }


async def small_loops(bench: Bench) -> Figures:
    """S8: a loop of 10 items over the rows of the step before it, again and again."""
    load = {"step": "load", "tool": {"kind": "python", "code": LOAD}, "next": "each"}
    each = {
        "step": "each",
        "loop": {"in": "{{ load.rows }}", "iterator": "row", "spec": {"mode": "parallel"}},
        "tool": {"kind": "python", "input": {"i": "{{ row.i }}"}, "code": CODE},
    }
    await warm_up(bench, make_playbook("s8", [load, each]), "bench/s8", {})
    rounds = [await run_round(bench, "bench/s8", [{}]) for _ in range(SMALL_LOOPS)]
    return {"s8_ms": round(median_seconds(rounds) * 1000, 2), "s8": summarize_rounds(rounds, 1)}


async def warm_up(bench: Bench, text: str, path: str, payload: dict[str, Any]) -> None:
    await bench.system.register(text)
    await wait_for_ends(bench, await bench.system.start(path, [payload]))


# ---- S4: reading while others run --------------------------------------------------------------------------------------


async def read_under_load(bench: Bench) -> Figures:
    """S4: how long one execution takes to read over HTTP while S2 runs: in turn one that has ended, and one that waits."""
    system = bench.system
    if not isinstance(system, HttpSystem):
        return {}
    payloads = await short_chains(bench)
    (over,) = await system.start("bench/s2", [{"i": 0}])
    await wait_for_ends(bench, [over])
    await system.register(
        make_playbook("s4", [{"step": "s0", "tool": {"kind": "wait", "signal": "go"}}])
    )
    (waiting,) = await system.start("bench/s4", [{}])
    taken: list[float] = []
    for _ in range(bench.sizes.repeat):
        async with read_beside(system, [over, waiting], taken):
            await run_round(bench, "bench/s2", payloads)
    await system.cancel(waiting)
    taken.sort()
    at = {"s4_p50_ms": 0.5, "s4_p99_ms": 0.99}
    return {name: round(taken[int(len(taken) * part)] * 1000, 2) for name, part in at.items()} | {
        "s4_reads": len(taken)
    }


@asynccontextmanager
async def read_beside(
    system: HttpSystem, executions: list[ExecutionId], taken: list[float]
) -> AsyncIterator[None]:
    paths = [f"/api/executions/{each}" for each in executions]
    command = [str(Path(__file__).with_name("reading.py")), system.url, str(READ_EVERY), *paths]
    reader = await asyncio.create_subprocess_exec(
        sys.executable,
        *command,
        stdin=PIPE,
        stdout=PIPE,
        env={**os.environ, "NOETL_TOKEN": system.token},
    )
    assert reader.stdout is not None
    await reader.stdout.readline()
    try:
        yield
    finally:
        told, _ = await reader.communicate(b"\n")
    taken += json.loads(told)


# ---- S5: beginning and doing nothing -----------------------------------------------------------------------------------


async def first_result(mode: str) -> Figures:
    """S5, from nothing: a home without a database, then one with a database that does not run."""
    found: Figures = {}
    with tempfile.TemporaryDirectory(prefix="noetl-bench-cold-") as home:
        file = Path(home) / "s5.yaml"
        file.write_text(make_chain("s5", 1))
        for name in ("s5_made_s", "s5_first_s"):
            begun = time.perf_counter()
            done = await (
                cold_command(Path(home), file)
                if mode == "embedded"
                else cold_processes(Path(home), file)
            )
            found[name] = round(done - begun, 3)
    return found


async def cold_command(home: Path, file: Path) -> float:
    """When the command has said its result and has ended."""
    process = await start_process(home, "-m", "noetl", "run", str(file), "--set", "i=7", "--json")
    said, _ = await process.communicate()
    assert json.loads(said)["result"] == {"i": 7}, said
    return time.perf_counter()


async def cold_processes(home: Path, file: Path) -> float:
    """When the execution is seen to have ended."""
    async with open_system("http", home) as system:
        assert isinstance(system, HttpSystem)
        await system.register(file.read_text())
        (execution,) = await system.start("bench/s5", [{"i": 7}])
        async with asyncio.timeout(HANG_LIMIT_S):
            while (row := await system.get(f"/api/executions/{execution}"))["ended_at"] is None:
                await asyncio.sleep(0.01)
        assert row["status"] == "completed", row
        return time.perf_counter()


async def measure_idle(bench: Bench) -> Figures:
    """S5, after one execution: what it takes to wait."""
    await warm_up(bench, make_chain("s5", 1), "bench/s5", {"i": 7})
    await asyncio.sleep(min(2.0, bench.sizes.idle))
    spent, begun = read_usage(bench), time.perf_counter()
    await asyncio.sleep(bench.sizes.idle)
    more, seconds = read_usage(bench), time.perf_counter() - begun
    memory = {
        name: round(read_resident_mb(pids), 1) for name, pids in bench.list_processes().items()
    }
    busy = {name: round((more[name] - spent[name]) / seconds * 100, 2) for name in more}
    ours = [name for name in memory if name != "postgres"]
    return {
        "s5_rss_mb": round(sum(memory[name] for name in ours), 1),
        "s5_idle_cpu_percent": round(sum(busy[name] for name in ours), 2),
        "s5": {"rss_mb": memory, "idle_cpu_percent": busy},
    }


# ---- S6: losing the worker ---------------------------------------------------------------------------------------------


async def lose_worker_in_loop(bench: Bench) -> Figures:
    """S6: the worker is killed in the middle of S3. Every run of an item leaves a line in a file."""
    items = bench.sizes.items
    with open_lines() as file:
        code = f'with open(file, "a") as out:\n    out.write(f"{{i}}\\n")\n{CODE}'
        await warm_up(
            bench,
            make_loop("s6", code, file="{{ workload.file }}"),
            "bench/s6",
            {"items": [], "file": str(file)},
        )
        enough = KILL_AT * sum(len(f"{number}\n") for number in range(items))
        begun = time.time()
        (execution,) = await bench.system.start(
            "bench/s6", [{"items": list(range(items)), "file": str(file)}]
        )
        async with asyncio.timeout(HANG_LIMIT_S):
            while file.stat().st_size < enough:
                await asyncio.sleep(0.001)
        killed = time.time()
        await bench.system.lose_worker()
        await wait_for_ends(bench, [execution])
        done = await read_last_end(bench, [execution]) + bench.commit
        await check_loop(bench, execution, items)
        ran = [int(line) for line in file.read_text().split()]
    assert set(ran) == set(range(items)), "an item never ran"
    return {
        "s6_done_s": round(done - killed, 3),
        "s6_repeated": len(ran) - items,
        "s6": {"total_s": round(done - begun, 3)},
    }


@contextmanager
def open_lines() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="noetl-bench-lines-") as folder:
        file = Path(folder) / "ran"
        file.touch()
        yield file


# ---- S7: long lists ----------------------------------------------------------------------------------------------------


async def read_lists(bench: Bench) -> Figures:
    """S7: pages of a list that is long: the first, one in the middle, the last. Its rows are older than any other."""
    number = bench.sizes.listed
    await bench.connection.execute(
        "insert into noetl.execution"
        " (execution_id, shard, tenant, path, status, last_seq, started_at, updated_at, ended_at, steps)"
        " select n, n % 16, (select tenant from noetl.execution limit 1), 'bench/listed', 'completed', 1, n, n, n, 5"
        f" from generate_series(1, {number}) n"
    )
    found: Figures = {}
    for name, before in (("first", None), ("middle", str(number // 2)), ("last", "51")):
        taken = []
        for _ in range(PAGES):
            begun = time.perf_counter()
            rows = await bench.system.list_executions(before, 50)
            taken.append(time.perf_counter() - begun)
            assert len(rows) == 50, len(rows)
            assert before is None or rows[0]["execution_id"] == str(int(before) - 1), rows[0]
        found[name] = round(statistics.median(taken) * 1000, 2)
    await bench.connection.execute("delete from noetl.execution where path = 'bench/listed'")
    return {"s7_page_ms": found}


SCENARIOS: dict[str, Callable[[Bench], Any]] = {
    "S5": measure_idle,
    "S1": one_chain,
    "S2": many_chains,
    "S3": one_loop,
    "S8": small_loops,
    "S4": read_under_load,
    "S7": read_lists,
    "S6": lose_worker_in_loop,
}
