"""What is measured beside the clock: rows of the log, commits and WAL of Postgres, processor time and memory of processes; and
the limits of this machine, which no durable core can beat."""

import asyncio
import os
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from noetl.model.ids import ExecutionId
from noetl.postgres.pool import connect
from noetl.tools.port import Call, CallIdentity, Success
from noetl.tools.python.tool import Python

PRODUCERS = 64
CODE = 'result = {"i": i}'


# ---- the database ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LogFigures:
    """Since the database was made. Only transactions that wrote something have a number, so these are the commits that count."""

    commits: int
    wal: int

    @classmethod
    async def read_now(cls, connection: Any) -> "LogFigures":
        row = await connection.fetchrow(
            "select pg_snapshot_xmax(pg_current_snapshot())::text::bigint as commits,"
            " (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint as wal"
        )
        return cls(row["commits"], row["wal"])


async def count_events_by_type(
    connection: Any, executions: Iterable[ExecutionId]
) -> dict[str, int]:
    rows = await connection.fetch(
        "select event_type, count(*) as number from noetl.event where execution_id = any($1::bigint[]) group by 1",
        [int(each) for each in executions],
    )
    return {row["event_type"]: row["number"] for row in rows}


# ---- processes ---------------------------------------------------------------------------------------------------------


def list_descendants(root: int) -> list[int]:
    """Processes that descend from this one, without it."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:  # gone meanwhile
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found, todo = [], [root]
    while todo:
        born = children.get(todo.pop(), [])
        found += born
        todo += born
    return found


def read_cpu_seconds(pids: Iterable[int]) -> float:
    """Seconds on a processor, user and system, of every thread that lives."""
    total = 0
    for pid in pids:
        for stat in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            try:
                total += int(stat.read_text().split()[0])
            except OSError:
                continue
    return total / 1e9


def read_resident_mb(pids: Iterable[int]) -> float:
    """Megabytes, shared pages counted once for every process that has them."""
    page, total = os.sysconf("SC_PAGE_SIZE"), 0
    for pid in pids:
        try:
            total += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * page
        except OSError:
            continue
    return total / 1e6


def read_proportional_mb(pids: Iterable[int]) -> float:
    """Megabytes, shared pages divided among the processes that have them (PSS)."""
    total_kb = 0
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:  # gone meanwhile
            continue
        total_kb += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total_kb * 1024 / 1e6


# ---- limits ------------------------------------------------------------------------------------------------------------


async def measure_limits(dsn: str, seconds: float) -> dict[str, float]:
    connection = await connect(dsn)
    try:
        taken = await time_commits(connection, seconds)
        group = await count_group_commits(dsn, connection, seconds)
    finally:
        await connection.close()
    called = await _time_calls(seconds)
    return {
        "commit_ms": round(statistics.median(taken) * 1000, 4),
        "group_commit_s": round(group),
        "child_call_s": round(1 / statistics.median(called)),
    }


@asynccontextmanager
async def _make_table(connection: Any) -> AsyncIterator[None]:
    await connection.execute("create table public.one_row (id bigserial primary key, body text)")
    try:
        yield
    finally:
        await connection.execute("drop table public.one_row")


async def time_commits(connection: Any, seconds: float) -> list[float]:
    """Of one row by one client, one after the other: how long each took."""
    body = "x" * 200
    async with _make_table(connection):
        return await _time_repeated(
            seconds,
            lambda: connection.execute("insert into public.one_row (body) values ($1)", body),
        )


async def count_group_commits(dsn: str, connection: Any, seconds: float) -> float:
    """Commits a second of many at once, by procedures, so that no client holds them up."""
    async with _make_table(connection):
        await connection.execute(
            "create procedure public.commits(seconds float) language plpgsql as $$"
            " declare stop timestamptz := clock_timestamp() + seconds * interval '1 second'; begin"
            " while clock_timestamp() < stop loop"
            " insert into public.one_row (body) values (repeat('x', 200)); commit; end loop; end $$"
        )
        producers = [await connect(dsn) for _ in range(PRODUCERS)]
        try:
            begun = time.perf_counter()
            await asyncio.gather(
                *(each.execute("call public.commits($1)", seconds) for each in producers)
            )
            spent = time.perf_counter() - begun
            return int(await connection.fetchval("select count(*) from public.one_row")) / spent
        finally:
            await asyncio.gather(*(each.close() for each in producers))
            await connection.execute("drop procedure public.commits")


async def _time_repeated(seconds: float, act: Callable[[], Awaitable[Any]]) -> list[float]:
    """How long each took, the first ones left out: plans are made, a child starts."""
    await act()
    taken: list[float] = []
    end = time.perf_counter() + seconds
    while (begun := time.perf_counter()) < end:
        await act()
        taken.append(time.perf_counter() - begun)
    return taken[len(taken) // 10 :]


async def _time_calls(seconds: float) -> list[float]:
    """Of a Python child, one after the other."""
    tool = Python()
    await tool.start()
    call = Call(
        config={"code": CODE},
        input={"i": 1},
        key="k",
        identity=CallIdentity(ExecutionId("1"), "s", "t"),
    )

    async def call_once() -> None:
        outcome = await tool.run(call)
        assert outcome == Success({"i": 1}, {"py": {"exit_code": 0}}), outcome

    try:
        return await _time_repeated(seconds, call_once)
    finally:
        await tool.close()
