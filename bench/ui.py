"""Seeing inside a long execution: how long the answers of its page take, how large they are, and how its page does in a browser.

The execution has a loop of so many items with a chunk each: two events an item, about one failure in a hundred. Its events are
written to an embedded Postgres in a directory that is deleted afterwards. The services are called in this process, without HTTP.
"first" is the first look at an execution without snapshots; it stores them. `ui_browser.py` measures the pages.

    uv run --group browser python bench/ui.py [--json] [--items 100000] [--reads 200] [--part server|browser]
"""

import argparse
import asyncio
import json
import random
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles
from typing import Any

import msgspec

from noetl.bus.memory import BusMemory
from noetl.catalog.postgres import CatalogPostgres
from noetl.embedded import EmbeddedPostgres
from noetl.leases.postgres import LeasesPostgres
from noetl.log.events.port import AppendBatch, Appended, ExecutionPart
from noetl.log.postgres import make_postgres_stores
from noetl.log.stores import Stores
from noetl.model import events as e
from noetl.model.envelope import Envelope
from noetl.model.errors import Failure
from noetl.model.exchange import LEASE_MICROS
from noetl.model.identity import LOCAL_IDENTITY
from noetl.model.ids import (
    DEFAULT_TENANT,
    ActivationId,
    CommandId,
    ExecutionId,
    Snowflakes,
    shard_of,
)
from noetl.model.messages import Start
from noetl.postgres.migrations import migrate
from noetl.postgres.pool import Database, connect
from noetl.runtime.clock import SystemClock
from noetl.server.executions.access import Access
from noetl.server.inspection.event_pages import EventFilter
from noetl.server.inspection.service import InspectionService
from noetl.server.node import Server
from noetl.server.settings import ServerSettings
from noetl.server.streams.live import LiveUpdates
from ui_browser import measure_if_possible, print_pages

PLAYBOOK = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: long, path: bench/long}
workload: {n: 100000}
workflow:
  - step: plan
    tool: {kind: noop}
    next: score
  - step: score
    loop: {in: "{{ range(0, workload.n) }}", iterator: item, spec: {mode: parallel, chunk: 1, max_in_flight: 16}}
    tool: {kind: python, code: "result = item"}
"""
IN_FLIGHT = 16
EVENTS_PER_PART = 6
FAILED_EVERY = 97
ITEM_US = 20_000
OK = Envelope(status="ok")


class EventMaker:
    """Makes the events of one execution, in order."""

    def __init__(self, execution_id: ExecutionId, playbook: str, items: int) -> None:
        self._execution_id = execution_id
        self._playbook = playbook
        self._items = items
        self._at = 1_750_000_000_000_000

    def _tick(self, micros: int = 100) -> int:
        self._at += micros
        return self._at

    def make_all(self) -> Iterator[e.Event]:
        yield e.PlaybookInitialized(
            at=self._tick(),
            execution_id=self._execution_id,
            path="bench/long",
            playbook=self._playbook,
            version=1,
            start_at=(e.StartAt("score"),),
        )
        yield e.WorkflowInitialized(at=self._tick())
        activation = ActivationId("a1")
        yield e.StepEnter(
            at=self._tick(),
            step="score",
            activation=activation,
            run=1,
            cause="admitted:0",
            joined=1,
        )
        collection = e.Collection(kind="workload", size=self._items)
        yield e.LoopStarted(
            at=self._tick(),
            step="score",
            activation=activation,
            mode="parallel",
            collection=collection,
            window=IN_FLIGHT,
            chunk=1,
            max_failed=None,
        )
        for number in range(min(IN_FLIGHT, self._items)):
            yield self._issue(activation, number)
        for number in range(self._items):
            yield self._complete(activation, number)
            if number + IN_FLIGHT < self._items:
                yield self._issue(activation, number + IN_FLIGHT)
        failed = len(range(0, self._items, FAILED_EVERY))
        stats = e.Stats(self._items, self._items - failed, failed, 0)
        yield e.LoopDone(
            at=self._tick(), step="score", activation=activation, stats=stats, result=OK
        )
        yield e.StepExit(at=self._tick(), step="score", activation=activation, result=OK)
        yield e.NextEvaluated(
            at=self._tick(), step="score", activation=activation, event="loop.done"
        )
        yield e.PlaybookCompleted(at=self._tick(), step="score", result=OK)

    def _issue(self, activation: ActivationId, number: int) -> e.Event:
        return e.CommandIssued(
            at=self._tick(),
            command_id=CommandId(f"c{number:020}"),
            step="score",
            activation=activation,
            kind="chunk",
            pool="cpu",
            first=number,
            count=1,
        )

    def _complete(self, activation: ActivationId, number: int) -> e.Event:
        at = self._tick(ITEM_US // IN_FLIGHT)
        items = e.Items(first=number, ok=1, micros=ITEM_US)
        if number % FAILED_EVERY == 0:
            error = Failure(code="PYTHON_ERROR", message=f"ValueError: cannot score {number}")
            items = e.Items(first=number, failed=1, first_error=error, first_failed=number)
        return e.CommandCompleted(
            at=at,
            command_id=CommandId(f"c{number:020}"),
            attempt=1,
            result=OK,
            step="score",
            activation=activation,
            worker="w1",
            claimed_at=at - ITEM_US,
            started_at=at - ITEM_US,
            items=items,
        )


@dataclass
class LongExecution:
    service: InspectionService
    execution_id: ExecutionId
    events: int
    last_seq: int


async def write_execution(
    stores: Stores, database: Database, playbook: str, items: int
) -> LongExecution:
    """Start an execution and write all its events, a few per append."""
    leases = LeasesPostgres(database)
    runtime = await leases.register("bench", None, 3_600_000_000)
    shards = 16
    epochs = {owned.shard: owned.epoch for owned in await leases.claim(runtime.runtime_id, shards)}
    execution_id = ExecutionId(Snowflakes(1).draw_id(SystemClock().now()))
    start = Start(execution_id=execution_id, path="bench/long", playbook=playbook)
    await stores.inbox.start_execution(start, {"n": items})
    shard = shard_of(execution_id, shards)
    last_seq, count = 0, 0
    pending: list[e.Event] = []

    async def flush() -> None:
        nonlocal last_seq, count
        part = ExecutionPart(
            execution_id=execution_id,
            shard=shard,
            tenant=DEFAULT_TENANT,
            after=last_seq,
            events=tuple(pending),
        )
        (outcome,) = await stores.log.append(
            AppendBatch(epochs=epochs, parts=(part,), lease=LEASE_MICROS)
        )
        assert isinstance(outcome, Appended), outcome
        last_seq = outcome.last_seq
        count += len(pending)
        pending.clear()

    for event in EventMaker(execution_id, playbook, items).make_all():
        pending.append(event)
        if len(pending) == EVENTS_PER_PART:
            await flush()
    if pending:
        await flush()
    await leases.close()
    return LongExecution(make_service(stores, database), execution_id, count, last_seq)


def make_service(stores: Stores, database: Database) -> InspectionService:
    """The service over caches that hold nothing."""
    server = Server(
        stores,
        LeasesPostgres(database),
        BusMemory(),
        CatalogPostgres(database),
        SystemClock(),
        ServerSettings(),
    )
    return InspectionService(
        stores, server.rows, server.folds, server.playbooks, LiveUpdates(), Access(stores.log)
    )


# ---- measuring ---------------------------------------------------------------------------------------------------------


Read = Callable[[], Awaitable[Any]]


async def measure_reads(read: Read, times: int) -> dict[str, float]:
    """Milliseconds of a read, by the clock and by the processor of this process, and its bytes."""
    taken: list[float] = []
    largest = 0
    cpu = time.process_time()
    for _ in range(times):
        begun = time.perf_counter()
        answer = msgspec.json.encode(await read())
        taken.append((time.perf_counter() - begun) * 1000)
        largest = max(largest, len(answer))
    cpu_ms = (time.process_time() - cpu) * 1000 / times
    centiles = quantiles(taken, n=100) if times > 1 else taken * 99
    return {
        "p50_ms": round(centiles[49], 2),
        "p95_ms": round(centiles[94], 2),
        "cpu_ms": round(cpu_ms, 2),
        "bytes": largest,
    }


async def measure_page(long: LongExecution, reads: int) -> dict[str, dict[str, float]]:
    service, id_ = long.service, long.execution_id
    who = LOCAL_IDENTITY
    chance = random.Random(7)
    figures = {"view, first": await measure_reads(lambda: service.get_page(who, id_), 1)}
    figures["view"] = await measure_reads(lambda: service.get_page(who, id_), reads)

    def read_at() -> Awaitable[Any]:
        return service.get_page(who, id_, number=chance.randint(1, long.events))

    figures["view, at any event"] = await measure_reads(read_at, reads)

    def read_timeline(share: float) -> Read:
        first, last = 1_750_000_000_000_000, long.events * ITEM_US // IN_FLIGHT // 2

        def read() -> Awaitable[Any]:
            start = first + int(last * (1 - share) * chance.random())
            return service.get_timeline(who, id_, start, start + int(last * share), 512, None)

        return read

    figures["timeline, all"] = await measure_reads(read_timeline(1.0), max(reads // 10, 2))
    figures["timeline, 1 %"] = await measure_reads(read_timeline(0.01), max(reads // 10, 2))

    def read_events(wanted: EventFilter) -> Read:
        return lambda: service.list_events(
            who, id_, wanted, before=chance.randint(1, long.last_seq), limit=100
        )

    figures["events, before"] = await measure_reads(read_events(EventFilter()), reads)
    rare = EventFilter(group="failures")
    figures["events, failures"] = await measure_reads(read_events(rare), reads)
    figures["explain"] = await measure_reads(lambda: service.explain(who, id_, "score"), reads)
    at_any = lambda: service.explain(who, id_, "score", chance.randint(100, long.last_seq))  # noqa: E731
    figures["explain, at any event"] = await measure_reads(at_any, reads)
    figures["runs"] = await measure_reads(
        lambda: service.list_runs(who, id_, "score", None, 10), max(reads // 20, 2)
    )
    return figures


async def run_bench(options: argparse.Namespace) -> dict[str, Any]:
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="noetl-bench-")))
        embedded = EmbeddedPostgres(home)
        stack.callback(embedded.stop_postgres)
        dsn = embedded.ensure_postgres().control
        connection = await connect(dsn)
        await migrate(connection)
        async with Database(dsn, main_size=4, background_size=2) as database:
            stores = make_postgres_stores(database, 16)
            entry = await CatalogPostgres(database).register("bench/long", PLAYBOOK)
            begun = time.perf_counter()
            long = await write_execution(stores, database, entry.hash, options.items)
            written = time.perf_counter() - begun
            found: dict[str, Any] = {"events": long.events, "written_s": round(written, 1)}
            found["reads"] = await measure_page(long, options.reads)
            sizes = await connection.fetchrow(
                "select pg_total_relation_size('noetl.snapshot') as snapshots, (select count(*) from noetl.snapshot) as count,"
                " (select sum(pg_total_relation_size(inhrelid)) from pg_inherits where inhparent = 'noetl.event_part'::regclass)"
                " as events"
            )
            found["snapshots"] = {name: int(value) for name, value in dict(sizes).items()}
        await connection.close()
    return found


def print_figures(found: dict[str, Any]) -> None:
    print(f"{found['events']} events, written in {found['written_s']} s; {found['snapshots']}")
    print(f"{'':24} {'p50 ms':>9} {'p95 ms':>9} {'cpu ms':>9} {'bytes':>9}")
    for name, figures in found["reads"].items():
        values = " ".join(f"{value:>9}" for value in figures.values())
        print(f"{name:24} {values}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--reads", type=int, default=200)
    parser.add_argument("--part", choices=["server", "browser"], help="measure this part alone")
    options = parser.parse_args()
    found: dict[str, Any] = {}
    if options.part != "browser":
        found |= asyncio.run(run_bench(options))
    pages = None if options.part == "server" else measure_if_possible(options.items)
    if options.json:
        print(json.dumps({**found, "browser": pages}))
        return
    if found:
        print_figures(found)
    if pages is not None:
        print_pages(pages)


if __name__ == "__main__":
    main()
