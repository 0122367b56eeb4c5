"""What holds large results is away, frozen, full or deleted while executions run, and workers die meanwhile: every reference in
the log still resolves, and everything ends as if nothing had been."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import psycopg
import pytest

from noetl.client.http import HttpClient
from noetl.engine.outcome import hash_outcome
from noetl.engine.state import decode_execution
from noetl.log.projections.stored_state import decompress_state
from noetl.model.ids import ExecutionId
from noetl.results.tiers.objects import ObjectTier
from tests import nats, s3
from tests.crash.checks import check
from tests.crash.stack import run_crash_stack
from tests.crash.workload import outcomes
from tests.disk import fill, small_disk
from tests.play import workflow
from tests.postgres import server
from tests.stack import Stack
from tests.waiting import HANG_LIMIT_S, look_again, wait_until

ROWS = 60_000  # 4 MB, however it is compressed

STEPS = """
- step: s1
  tool:
    kind: python
    input: {rows: "{{ workload.rows }}", begun: "{{ workload.begun }}"}
    code: |
      from hashlib import sha512
      with open(begun, "a") as file:
          file.write("s1\\n")
      result = [{"n": n, "text": sha512(b"%d" % n).hexdigest()} for n in range(rows)]
  next: s2
- step: s2
  tool:
    kind: python
    input: {given: "{{ s1 }}", begun: "{{ workload.begun }}"}
    code: |
      with open(begun, "a") as file:
          file.write("s2\\n")
      result = [{"n": row["n"] + 1, "text": row["text"]} for row in given]
  next: wide
- step: wide
  tool: {kind: python, code: "result = {'text': 'x' * 100_000}"}
  next: each
- step: each
  loop: {in: [1, 2, 3, 4, 5, 6, 7, 8], iterator: n, spec: {mode: parallel, max_in_flight: 8, chunk: 1}}
  tool: {kind: python, input: {text: "{{ wide.text }}"}, code: "result = len(text)"}
  next: s3
- step: s3
  tool:
    kind: python
    input: {one: "{{ s2[12345].n }}", count: "{{ s2 | length }}", last: "{{ s1[-1].n }}"}
    code: "result = {'one': one, 'count': count, 'last': last}"
"""
RESULT = {"one": 12_346, "count": ROWS, "last": ROWS - 1}
PLAYBOOK = workflow(
    STEPS, metadata={"name": "large", "path": "crash/large"}, workload={"rows": ROWS, "begun": ""}
)
DATABASE = """
- step: s1
  tool: {kind: duckdb, query: "select range as n, md5(range::text) as text from range({{ workload.rows }})"}
  next: s2
- step: s2
  tool: {kind: duckdb, inputs: {given: "{{ s1 }}"}, query: "select count(*) as count from given"}
"""
ROWS_OF_A_DATABASE = workflow(
    DATABASE, metadata={"name": "rows", "path": "crash/rows"}, workload={"rows": ROWS}
)
# Nothing dies in these tests: a lease that a busy machine loses would let a tool run again.
LONG_LEASES = {"NOETL_SHARD_LEASE_SEC": "60", "NOETL_SHARD_HEARTBEAT_SEC": "1"}
SWEEPING = {"NOETL_STORAGE_SWEEP_SEC": "1", "NOETL_STORAGE_ORPHAN_AGE_SEC": "0"}
Build = Callable[..., Stack]


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch) -> Iterator[Build]:
    """A stack that keeps large results where these settings say; this process reads them there too."""
    with ExitStack() as stack:

        def build_stack(**settings: str) -> Stack:
            for name, value in settings.items():
                monkeypatch.setenv(name, value)
            return stack.enter_context(
                run_crash_stack(stack.enter_context(server().database()), **settings)
            )

        yield build_stack


@asynccontextmanager
async def start_execution(here: Stack) -> AsyncIterator[tuple[HttpClient, ExecutionId]]:
    await here.become_ready()
    async with here.open_client() as client:
        await client.register(PLAYBOOK)
        yield client, await client.start("crash/large", None, {"begun": str(here.home / "begun")})


async def check_end(here: Stack, client: HttpClient, execution_id: ExecutionId) -> None:
    story = (await asyncio.wait_for(outcomes(client, {"it": execution_id}), HANG_LIMIT_S))["it"]
    assert (story.failure, story.result) == (None, RESULT)
    assert here.dsn is not None
    await check(here.dsn, client, [execution_id])


async def run_undisturbed(here: Stack) -> str:
    """What comes of the same work when nothing happens to it."""
    async with start_execution(here) as (client, execution_id):
        await check_end(here, client, execution_id)
    return outcome(here, execution_id)


def outcome(here: Stack, execution_id: ExecutionId) -> str:
    with psycopg.connect(here.dsn or "") as connection:
        row = connection.execute(
            "select state from noetl.execution where execution_id = %s", [int(execution_id)]
        ).fetchone()
    assert row is not None
    return hash_outcome(decode_execution(decompress_state(row[0]) or b""))


async def becomes(fact: Callable[[], object]) -> None:
    async with asyncio.timeout(HANG_LIMIT_S):
        while not fact():
            await look_again()


def list_staged_files(folder: Path) -> list[Path]:
    """Files on their way."""
    return [path for path in folder.glob("staging/*") if path.stat().st_size > 1_000_000]


async def count_results(bucket: str) -> int:
    """Results; what tasks were given stands beside them."""
    found = [
        each.address.kind
        async for each in ObjectTier(s3.server().connect_bucket(bucket), bucket).list_objects()
    ]
    return found.count("result")


def begins(here: Stack) -> list[str]:
    """The steps in which a tool has started."""
    return (here.home / "begun").read_text().split()


@pytest.mark.parametrize("nth", [1, 2])
def test_a_worker_that_dies_between_put_and_report_leaves_an_orphan_and_nothing_else(
    build: Build, nth: int
) -> None:
    async def run() -> None:
        bucket = s3.server().place()
        here = build(**s3.server().settings(bucket), **SWEEPING)
        here.worker.die_at("persist.after", nth)
        async with start_execution(here) as (client, execution_id):
            await here.worker.wait_for_crash()
            here.restart_dead()
            await check_end(here, client, execution_id)
            assert len(begins(here)) == 3
            async with asyncio.timeout(HANG_LIMIT_S):
                await wait_until(
                    lambda: count_results(bucket), 2
                )  # the orphan is swept: what two steps made is left
            await check(here.dsn or "", client, [execution_id])

    asyncio.run(run())


def test_a_worker_that_dies_while_it_uploads_costs_an_attempt(build: Build) -> None:
    async def run() -> None:
        here = build(**s3.server().settings(s3.server().place()))
        await here.become_ready()
        with ExitStack() as while_frozen:
            while_frozen.enter_context(s3.server().keep_frozen())
            async with start_execution(here) as (client, execution_id):
                await becomes(lambda: list_staged_files(here.home / "cache"))
                here.worker.kill()
                while_frozen.close()
                here.restart_dead()
                await check_end(here, client, execution_id)
        assert begins(here) == ["s1", "s1", "s2"]

    asyncio.run(run())


def test_a_store_that_is_away_is_waited_for_and_no_tool_runs_again(build: Build) -> None:
    async def run() -> None:
        here = build(**s3.server().settings(s3.server().place()), **LONG_LEASES)
        await here.become_ready()
        s3.server().stop()
        try:
            async with start_execution(here) as (client, execution_id):
                await becomes(lambda: list_staged_files(here.home / "cache"))
                await asyncio.to_thread(s3.server().start)
                await check_end(here, client, execution_id)
        finally:
            s3.server().start()
        assert begins(here) == ["s1", "s2"]

    asyncio.run(run())


def test_a_cache_that_is_deleted_again_and_again_and_a_nats_that_ends_are_not_missed(
    build: Build,
) -> None:
    async def run() -> None:
        settings = s3.server().settings(s3.server().place())
        here = build(**settings, **LONG_LEASES, NOETL_NATS_URL=nats.server().url)
        here.start_worker()
        expected = await run_undisturbed(here)
        assert "NATS" not in here.worker.read_log()
        async with start_execution(here) as (client, execution_id):
            ending = asyncio.ensure_future(check_end(here, client, execution_id))
            while not ending.done():
                await asyncio.to_thread(shutil.rmtree, here.home / "cache", ignore_errors=True)
                if len(begins(here)) > 2:
                    nats.server().stop()
                await look_again()
            await ending
        nats.server().start()
        assert outcome(here, execution_id) == expected
        assert begins(here) == ["s1", "s2"] * 2

    asyncio.run(run())


@pytest.mark.parametrize("what", ["the store", "the cache"])
def test_a_full_disk_is_waited_for(build: Build, tmp_path: Path, what: str) -> None:
    async def run(disk: Path) -> None:
        if what == "the store":
            here = build(NOETL_STORAGE_CLOUD_TIER=f"file://{disk}", **LONG_LEASES)
        else:
            bucket = s3.server().settings(s3.server().place())
            here = build(**bucket, **LONG_LEASES, NOETL_STORAGE_LOCAL_CACHE_DIR=str(disk))
        await here.become_ready()
        fill(disk / "full")
        async with start_execution(here) as (client, execution_id):
            await becomes(lambda: (here.home / "begun").exists())
            await becomes(lambda: "waited for" in here.worker.read_log())
            (disk / "full").unlink()
            await check_end(here, client, execution_id)
        assert begins(here) == ["s1", "s2"]

    with small_disk(tmp_path / "disk", 24) as disk:
        asyncio.run(run(disk))


@pytest.mark.parametrize("what", ["full", "away"])
def test_rows_of_a_database_wait_for_the_store_too(build: Build, tmp_path: Path, what: str) -> None:
    """They come only once: nothing of them may need the store before they are all there."""

    async def run(disk: Path) -> None:
        place, full = disk / "results", disk / "full"
        here = build(NOETL_STORAGE_CLOUD_TIER=f"file://{place}", **LONG_LEASES)
        if what == "full":
            place.mkdir()
            fill(full)
        await here.become_ready()
        async with here.open_client() as client:
            await client.register(ROWS_OF_A_DATABASE)
            execution_id = await client.start("crash/rows", None, {})
            await becomes(lambda: "waited for" in here.worker.read_log())
            full.unlink(missing_ok=True)
            place.mkdir(exist_ok=True)
            story = (await asyncio.wait_for(outcomes(client, {"it": execution_id}), HANG_LIMIT_S))[
                "it"
            ]
        assert (story.failure, story.result["rows"]) == (None, [{"count": ROWS}])

    with small_disk(tmp_path / "disk", 24) as disk:
        asyncio.run(run(disk))
