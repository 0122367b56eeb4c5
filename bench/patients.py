"""The patient flow: every page of every patient of some facilities, fetched from an API and stored exactly, in three shapes.

    A   batches: 16 slots claim 25 patients of one type at a time, fetch, store, and go back for more
    B   records: facility by facility, type by type, frames of a cursor; then the details of every assessment
    C   epochs: a parallel loop over 100 pending patients, again until none is left

Server and worker are processes that speak HTTP; the database is the embedded one, fsync on; the API is that of the tests. What is
stored is compared with what the API would say, by SQL: a patient that is missing, or twice, ends this program with an error.

    uv run python bench/patients.py A [--facilities 10] [--patients 1000] [--kill worker|server] [--rate-limit 50] [--json]
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from gauges import list_descendants, read_cpu_seconds, read_resident_mb
from noetl.embedded.postgres import EmbeddedPostgres
from noetl.model.ids import ExecutionId
from noetl.postgres.migrations import migrate
from noetl.postgres.pool import connect
from systems import HttpSystem, free_address, open_system, start_process, stop_process

ROOT = Path(__file__).parents[1]
FILES = Path(__file__).parent / "patients"
PAGES = {"assessments": (2, 4), "conditions": (1, 3), "medications": (2, 3), "vital_signs": (1, 1)}
LOOK_EVERY = 0.5  # seconds
TELL_EVERY = 15.0
KILL_AT = 0.4  # of the work
HANG_LIMIT_S = 4 * 3600.0  # seconds

# what is left of the number that the md5 of a key is, digit by digit: it has 128 bits
HASH = """
create function pg_temp.h(key text, by int) returns int immutable language sql as $$
    select (sum(('x' || lpad(substr(md5(key), n, 1), 8, '0'))::bit(32)::int * (power(16::numeric, 32 - n) % by)) % by)::int
    from generate_series(1, 32) n $$
"""

Figures = dict[str, Any]


@dataclass
class PatientFlow:
    """One shape on its way."""

    shape: str
    facilities: int
    patients: int
    system: HttpSystem
    control: Any  # connections
    data: Any
    api: httpx.AsyncClient
    postmaster: int
    peak: dict[str, float] = field(default_factory=dict)  # megabytes

    @property
    def count_patients(self) -> int:
        return self.facilities * self.patients

    def list_processes(self) -> dict[str, list[int]]:
        return {
            **self.system.list_processes(),
            "postgres": [self.postmaster, *list_descendants(self.postmaster)],
        }

    async def run_flow(self, kill: str | None) -> Figures:
        await self.system.register((FILES / f"{self.shape.lower()}.yaml").read_text())
        sizes = {"facilities": self.facilities, "patients": self.patients}
        payload = {"base_url": str(self.api.base_url).rstrip("/"), "files": FILES.as_uri(), **sizes}
        before, begun = self.read_usage(), time.time()
        (execution,) = await self.system.start(f"bench/patients/{self.shape.lower()}", [payload])
        resumed = await self.kill_process(kill, execution) if kill is not None else None
        await self.wait_for_end(execution)
        seconds = time.time() - begun
        spent = {
            name: round(used - before.get(name, 0.0), 1) for name, used in self.read_usage().items()
        }
        found = {
            **await self.collect_figures(execution, seconds),
            **await self.check_rows(execution),
            "cpu_s": spent,
        }
        return found if resumed is None else {**found, "resumed_s": round(resumed, 2)}

    def read_usage(self) -> dict[str, float]:
        return {name: read_cpu_seconds(pids) for name, pids in self.list_processes().items()}

    async def wait_for_end(self, execution: ExecutionId) -> None:
        begun = told = time.monotonic()
        async with asyncio.timeout(HANG_LIMIT_S):
            while True:
                if time.monotonic() - told > TELL_EVERY:
                    told = time.monotonic()
                    done = f"{await self.count_done()} of {5 * self.count_patients} pieces of work are done"
                    print(f"{told - begun:.0f} s: {done}", file=sys.stderr)
                for name, pids in self.list_processes().items():
                    self.peak[name] = max(
                        self.peak.get(name, 0.0), round(read_resident_mb(pids), 1)
                    )
                row = await self.control.fetchrow(
                    "select status, ended_at from noetl.execution where execution_id = $1",
                    int(execution),
                )
                if row is not None and row["ended_at"] is not None:
                    break
                await asyncio.sleep(LOOK_EVERY)
        assert row["status"] == "completed", await self.read_failure(execution)

    async def read_failure(self, execution: ExecutionId) -> Any:
        return await self.control.fetchval(
            "select meta::text || coalesce(result::text, '') from noetl.event where execution_id = $1"
            " and event_type in ('call.error', 'command.failed', 'playbook.failed') order by seq limit 1",
            int(execution),
        )

    # ---- losing somebody -----------------------------------------------------------------------------------------------------

    async def kill_process(self, whom: str, execution: ExecutionId) -> float:
        """Seconds from the kill to the next report."""
        async with asyncio.timeout(HANG_LIMIT_S):
            while await self.count_done() < KILL_AT * 5 * self.count_patients:
                await asyncio.sleep(LOOK_EVERY)
            await (self.system.lose_worker() if whom == "worker" else self.system.lose_server())
            lost, last = time.time(), await self.count_reports(execution)
            while await self.count_reports(execution) == last:
                await asyncio.sleep(0.02)
            return time.time() - lost

    async def count_done(self) -> int:
        if await self.data.fetchval("select to_regclass('pft_test_patient_work_queue')") is None:
            return 0
        counted = await self.data.fetchval(
            "select count(*) from pft_test_patient_work_queue where status = 'done'"
        )
        return int(counted)

    async def count_reports(self, execution: ExecutionId) -> int:
        seen = await self.control.fetchval(
            "select coalesce(max(seq), 0) from noetl.event where execution_id = $1"
            " and event_type in ('command.completed', 'command.progress', 'task.done')",
            int(execution),
        )
        return int(seen)

    # ---- figures -------------------------------------------------------------------------------------------------------------

    async def collect_figures(self, execution: ExecutionId, seconds: float) -> Figures:
        events = await self.control.fetchrow(
            "select count(*) as number, percentile_disc(0.99) within group ("
            "  order by octet_length(meta::text) + coalesce(octet_length(result::text), 0)) as p99"
            " from noetl.event where execution_id = $1",
            int(execution),
        )
        calls = {
            path: n
            for path, n in (await self.api.get("/api/v1/calls")).json().items()
            if path != "/api/v1/calls"
        }
        return {
            "seconds": round(seconds, 1),
            "patients_s": round(self.count_patients / seconds, 1),
            "http_calls": sum(calls.values()),
            "http_calls_s": round(sum(calls.values()) / seconds, 1),
            "events": events["number"],
            "events_s": round(events["number"] / seconds, 1),
            "event_bytes_p99": events["p99"],
            "dispatch_ms": await self.read_dispatch_times(execution),
            "database_mb": await self.read_sizes(),
            "peak_rss_mb": self.peak,
        }

    async def read_dispatch_times(self, execution: ExecutionId) -> dict[str, float]:
        """From the decision that a command is due to the worker that has it; those that waited for their turn are all there."""
        row = await self.control.fetchrow(
            "with times as (select min(extract(epoch from at)) filter (where event_type = 'command.issued') as due,"
            "  min((meta ->> 'claimed_at')::numeric / 1e6) filter (where event_type = 'command.completed') as claimed"
            "  from noetl.event where execution_id = $1 and event_type in ('command.issued', 'command.completed')"
            "  group by command_id having max(attempt) = 1)"
            " select percentile_cont(0.5) within group (order by claimed - due) as p50,"
            "        percentile_cont(0.95) within group (order by claimed - due) as p95 from times where claimed > 0",
            int(execution),
        )
        return {name: round(float(row[name] or 0) * 1000, 1) for name in ("p50", "p95")}

    async def read_sizes(self) -> dict[str, float]:
        size = "select round(pg_database_size(current_database()) / 1e6, 1)"
        return {
            "control": float(await self.control.fetchval(size)),
            "data": float(await self.data.fetchval(size)),
        }

    # ---- exactness -----------------------------------------------------------------------------------------------------------

    async def check_rows(self, execution: ExecutionId) -> Figures:
        """Rows of each table as the hashes of the patients say, in md5 as the API computes it: none missing, none besides."""
        await self.data.execute(HASH)
        rows = {kind: await self.count_pages(kind) for kind in PAGES}
        rows["demographics"] = await self.data.fetchval(
            "select count(*) from pft_test_patient_demographics"
        )
        assert rows["demographics"] == self.count_patients, rows
        open_ = await self.data.fetchval(
            "select count(*) from pft_test_patient_work_queue where status <> 'done'"
        )
        assert open_ == 0, f"{open_} are not done"
        loops = await self.control.fetchrow(
            "select count(*) filter (where event_type = 'loop.started') as started,"
            " count(*) filter (where event_type = 'loop.done') as done from noetl.event where execution_id = $1",
            int(execution),
        )
        assert loops["started"] == loops["done"], loops
        doubled = await self.control.fetchval(
            "select count(*) from (select command_id from noetl.event where execution_id = $1"
            " and event_type in ('command.completed', 'command.failed') group by 1 having count(*) > 1) x",
            int(execution),
        )
        assert doubled == 0, doubled
        details = await self.data.fetchval("select count(*) from pft_test_mds_assessment_details")
        assert details == await self.expected_details(), details
        return {
            "rows": {**rows, "mds_details": details},
            "epochs": loops["done"],
            "duplicates": doubled,
        }

    async def count_pages(self, kind: str) -> int:
        least, most = PAGES[kind] if self.shape == "A" else (1, 1)
        table = f"pft_test_patient_{kind}"
        wrong = await self.data.fetchval(
            "with expected as (select p, page from generate_series(1, $1::int) p, lateral generate_series(1, $2::int +"
            f"  pg_temp.h(p || ':{kind}', $3::int)) page)"
            f" select count(*) from expected e full join {table} t on t.pcc_patient_id = e.p and t.page_number = e.page"
            "  and t.facility_mapping_id = (e.p - 1) / $4::int + 1"
            " where e.p is null or t.pcc_patient_id is null"
            f"  or t.payload -> 'data' -> 0 ->> 'id' <> '{kind[:4].upper()}-' || p || '-p' || page || '-i0'",
            self.count_patients, least, most - least + 1, self.patients,
        )  # fmt: skip
        assert wrong == 0, f"{wrong} pages of {kind} are missing, wrong or too many"
        return int(await self.data.fetchval(f"select count(*) from {table}"))

    async def expected_details(self) -> int:
        if self.shape == "C":
            return 0
        if self.shape == "A":
            return self.count_patients
        counted = await self.data.fetchval(
            "select sum(5 + pg_temp.h(p || ':assessments:1', 6)) from generate_series(1, $1::int) p",
            self.count_patients,
        )
        return int(counted)


@asynccontextmanager
async def run_api(home: Path, rate_limit: int) -> AsyncIterator[httpx.AsyncClient]:
    """The API, in a process of its own."""
    url = free_address()
    port = url.rpartition(":")[2]
    process = await start_process(
        home,
        "-m",
        "tests.api",
        "--port",
        port,
        "--rate-limit",
        str(rate_limit),
        PYTHONPATH=str(ROOT),
    )
    try:
        async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
            while not await is_healthy(client):
                assert process.returncode is None, "the API did not start"
                await asyncio.sleep(0.05)
            yield client
    finally:
        await stop_process(process)


async def is_healthy(client: httpx.AsyncClient) -> bool:
    try:
        return (await client.get("/health")).is_success
    except httpx.TransportError:
        return False


async def measure_flow(options: argparse.Namespace) -> Figures:
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="noetl-bench-")))
        embedded = EmbeddedPostgres(home)
        stack.callback(embedded.stop_postgres)
        dsns = embedded.ensure_postgres()
        assert dsns.data is not None
        assert embedded.server is not None
        control, data = await connect(dsns.control), await connect(dsns.data)
        for connection in (control, data):
            await connection.execute("set statement_timeout = 0")  # what is checked may be large
        await migrate(control)
        async with run_api(home, options.rate_limit) as client, open_system("http", home) as system:
            assert isinstance(system, HttpSystem)
            postmaster = embedded.server.process.pid
            flow = PatientFlow(
                options.shape,
                options.facilities,
                options.patients,
                system,
                control,
                data,
                client,
                postmaster,
            )
            found = await flow.run_flow(options.kill)
        await control.close()
        await data.close()
    return {
        "shape": options.shape,
        "facilities": options.facilities,
        "patients": options.patients,
        **found,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("shape", choices=("A", "B", "C"))
    parser.add_argument("--facilities", type=int, default=10)
    parser.add_argument("--patients", type=int, default=1_000, help="of each facility")
    parser.add_argument(
        "--kill", choices=("worker", "server"), help="by kill -9, when 40 %% is done"
    )
    parser.add_argument(
        "--rate-limit", type=int, default=0, help="requests per second that the API answers; 0: all"
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = asyncio.run(measure_flow(options))
    if options.json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(
            f"  {name:16} {value if not isinstance(value, dict) else ', '.join(f'{k} {v}' for k, v in value.items())}"
        )


if __name__ == "__main__":
    main()
