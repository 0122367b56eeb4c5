"""The data plane: many rows from Postgres into the store and on into DuckDB, beside a bare ADBC read of the same rows.

One playbook of two steps: `load` reads a table of six columns (two integers, a double, a decimal, a text, a moment), `total`
aggregates what it gave with DuckDB, by reference. Server and worker are processes that speak HTTP; Postgres is the embedded one,
fsync on. The sums are checked against those of the database.

    uv run python bench/data.py [--json] [--rows 10000000]
"""

import argparse
import asyncio
import json
import os
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import adbc_driver_postgresql.dbapi as adbc
import psycopg
import yaml

from gauges import read_resident_mb
from noetl.embedded.postgres import EmbeddedPostgres
from noetl.postgres.migrations import migrate
from noetl.postgres.pool import connect
from systems import HANG_LIMIT_S, HttpSystem

WORKER_MB, SERVER_MB, DATABASE_MB, ROWS_S = 600, 20, 1, 250_000
QUERY = "SELECT id, k, price, amount, name, at FROM sales"
TABLE = """CREATE TABLE sales AS SELECT g AS id, (g::bigint * 7919 % 1000)::int AS k, g::float8 / 7 AS price,
    (g % 100000 / 100.0)::numeric(12, 2) AS amount, 'customer ' || g % 99991 AS name,
    timestamptz '2024-01-01' + g * interval '1 second' AS at FROM generate_series(1, {rows}) g"""
TOTAL = "SELECT count(*) AS n, sum(id) AS id, sum(amount) AS amount, count(DISTINCT k) AS k, max(name) AS name FROM t"
Figures = dict[str, Any]


def make_playbook(dsn: str) -> str:
    steps = [
        {
            "step": "load",
            "tool": {"kind": "postgres", "auth": "data", "query": QUERY},
            "next": "total",
        },
        {
            "step": "total",
            "tool": {"kind": "duckdb", "inputs": {"t": "{{ load }}"}, "query": TOTAL},
        },
    ]
    document = {
        "apiVersion": "noetl.io/v2", "kind": "Playbook", "metadata": {"name": "data", "path": "bench/data"},
        "keychain": [{"name": "data", "kind": "static", "map": {"dsn": dsn}}], "workflow": steps,
    }  # fmt: skip
    return yaml.safe_dump(document, sort_keys=False)


def make_table(dsn: str, rows: int) -> Figures:
    """The table, and what is true of it."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(TABLE.format(rows=rows).encode())
        connection.execute("VACUUM (ANALYZE) sales")
        [row] = connection.execute(TOTAL.replace("FROM t", "FROM sales").encode()).fetchall()
        return {"n": row[0], "id": row[1], "amount": float(row[2]), "k": row[3], "name": row[4]}


def read_bare(dsn: str) -> tuple[int, float]:
    """Rows, and the seconds that ADBC takes to have them and let them go."""
    begun, rows = time.perf_counter(), 0
    with adbc.connect(dsn) as connection, connection.cursor() as cursor:
        cursor.execute(QUERY)
        for batch in cursor.fetch_record_batch():
            rows += batch.num_rows
    return rows, time.perf_counter() - begun


def read_cpu_seconds(pid: int) -> float:
    """Seconds on a processor, also of threads that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def read_peak_mb(pid: int) -> float:
    """Megabytes that the process had at most."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024 / 1e6


async def run_playbook(system: HttpSystem, connection: Any, expected: Figures) -> Figures:
    [worker], server = system.list_processes()["worker"], system.list_processes()["server"]
    before, size = read_resident_mb(server), await database_size(connection)
    spent = read_cpu_seconds(worker)
    begun = time.perf_counter()
    [execution] = await system.start("bench/data", [{}])
    reference = await wait_for_result(connection, int(execution))
    seconds = time.perf_counter() - begun
    [value] = await system.resolve([reference["total"]])
    [row] = value["rows"]
    assert {**row, "id": int(row["id"])} == expected, (row, expected)
    stored = reference["load"]
    assert stored["rows"] == expected["n"], stored
    return {
        "rows": expected["n"],
        "seconds": round(seconds, 2),
        "rows_s": round(expected["n"] / seconds),
        "worker_cpu_s": round(read_cpu_seconds(worker) - spent, 2),
        "worker_peak_mb": round(read_peak_mb(worker)),
        "server_growth_mb": round(read_resident_mb(server) - before, 1),
        "database_growth_mb": round((await database_size(connection) - size) / 1e6, 2),
        "stored_mb": round(stored["bytes"] / 1e6, 1),
    }


async def database_size(connection: Any) -> int:
    return int(await connection.fetchval("select pg_database_size(current_database())"))


async def wait_for_result(connection: Any, execution: int) -> Figures:
    """References of the steps' results, when the execution has ended well."""
    async with asyncio.timeout(10 * HANG_LIMIT_S):
        while (end := await _read_status(connection, execution)) is None:
            await asyncio.sleep(0.02)
    rows = await connection.fetch(
        "select step, result from noetl.event where execution_id = $1 and event_type = 'command.completed'",
        execution,
    )
    assert end == "playbook.completed", rows
    return {row["step"]: json.loads(row["result"])["reference"] for row in rows}


async def _read_status(connection: Any, execution: int) -> str | None:
    found: str | None = await connection.fetchval(
        "select event_type from noetl.event where execution_id = $1 and event_type in ('playbook.completed', 'playbook.failed')",
        execution,
    )
    return found


async def measure_rows(rows: int) -> Figures:
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="noetl-bench-")))
        embedded = EmbeddedPostgres(home)
        stack.callback(embedded.stop_postgres)
        dsns = embedded.ensure_postgres()
        assert dsns.data is not None
        expected = await asyncio.to_thread(make_table, dsns.data, rows)
        connection = await connect(dsns.control)
        await migrate(connection)
        system = HttpSystem(home)
        try:
            await system.open()
            await system.register(make_playbook(dsns.data))
            found = await run_playbook(system, connection, expected)
        finally:
            await system.close()
        await connection.close()
        count, seconds = await asyncio.to_thread(read_bare, dsns.data)
        assert count == rows
        return {**found, "bare_s": round(seconds, 2), "bare_rows_s": round(count / seconds)}


def print_figures(found: Figures) -> None:
    part = found["rows_s"] / found["bare_rows_s"]
    print(
        f"{found['rows']} rows in {found['seconds']} s: {found['rows_s']} rows/s (aim {ROWS_S})",
        end="",
    )
    print(f"; a bare ADBC read gives {found['bare_rows_s']}, of which this is {part:.2f}")
    print(
        f"  worker: at most {found['worker_peak_mb']} MB (aim {WORKER_MB}), {found['worker_cpu_s']} s of processor"
    )
    print(f"  server: {found['server_growth_mb']} MB more (aim {SERVER_MB})", end="")
    print(
        f"; its database {found['database_growth_mb']} MB more (aim {DATABASE_MB}); stored: {found['stored_mb']} MB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rows", type=int, default=10_000_000)
    options = parser.parse_args()
    found = asyncio.run(measure_rows(options.rows))
    if options.json:
        print(json.dumps(found))
    else:
        print_figures(found)


if __name__ == "__main__":
    main()
