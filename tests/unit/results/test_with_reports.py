"""A server and a worker in one process: what results cost on their way, and that they arrive."""

import asyncio
import gc
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from noetl.bus.memory import BusMemory
from noetl.catalog.memory import CatalogMemory
from noetl.leases.memory import LeasesMemory
from noetl.log.memory import make_memory_stores
from noetl.log.stores import Stores
from noetl.log.tables import MemoryDatabase
from noetl.model.errors import InvalidInput
from noetl.model.events import CommandCompleted, Terminal
from noetl.model.ids import ExecutionId, RefId
from noetl.model.reference import Reference, make_address
from noetl.pipeline.scope.results import ResultReader
from noetl.results.router import ResultRouter
from noetl.server.node import Server
from noetl.server.settings import ServerSettings
from noetl.shard_rows import make_shard_rows
from noetl.tools.noop import Noop
from noetl.tools.registry import Registry
from noetl.worker.settings import WorkerSettings
from noetl.worker.spool import MemorySpool
from noetl.worker.worker import Worker
from tests.stores import in_files
from tests.unit.pipeline.bench import Scripted
from tests.waiting import HANG_LIMIT_S

PLAYBOOK = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: results}
workflow:
- step: a
  tool: {kind: python, code: x, input: {size: %d}}
  next: b
- step: b
  tool:
  - first: {kind: python, code: x, input: {size: "{{ a.text | length }}"}}
  - second: {kind: python, code: x, input: {size: "{{ a.text | length }}"}}
"""


class ReportClock:
    def now(self) -> int:
        return 1_750_000_000_000_000


class WatchedServer(Server):
    """A server that counts what a worker asks of it beside exchanges."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.asked: list[str] = []

    async def payload(self, ref_id: RefId, uri: str) -> bytes | None:
        self.asked.append("payload")
        return await super().payload(ref_id, uri)

    async def put_payload(self, reference: Reference, payload: bytes) -> None:
        self.asked.append("put_payload")
        await super().put_payload(reference, payload)


def make_server() -> tuple[WatchedServer, Stores, CatalogMemory]:
    settings, rows, catalog = ServerSettings(name="s"), make_shard_rows(16), CatalogMemory()
    stores = make_memory_stores(MemoryDatabase(rows, ReportClock()))
    return (
        WatchedServer(
            stores, LeasesMemory(rows, ReportClock()), BusMemory(), catalog, ReportClock(), settings
        ),
        stores,
        catalog,
    )


async def wait_for_end(stores: Stores, execution_id: ExecutionId) -> list[Any]:
    while True:
        events = [recorded.event for recorded in await stores.log.read_events(execution_id)]
        if events and isinstance(events[-1], Terminal):
            return events
        await asyncio.sleep(0)


async def run_playbook(size: int, folder: Path) -> tuple[WatchedServer, list[Reference]]:
    """The references that the steps have reported."""
    server, log, catalog = make_server()
    worker = Worker(
        server,
        ResultRouter(server, in_files(folder)),
        Registry([Scripted(lambda call: {"text": "x" * call.input["size"]}), Noop()]),
        ReportClock(),
        MemorySpool(),
        WorkerSettings(worker_id="w", incarnation="1"),
    )
    await server.keeper.run_once()
    tasks = [asyncio.create_task(server.run()), asyncio.create_task(worker.run())]
    try:
        await catalog.register("results", PLAYBOOK % size)
        events = await asyncio.wait_for(
            wait_for_end(log, await server.requests.start("results", payload={})), HANG_LIMIT_S
        )
    finally:
        for task in reversed(tasks):
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
    found = [event.result.reference for event in events if isinstance(event, CommandCompleted)]
    return server, [reference for reference in found if reference is not None]


@pytest.mark.parametrize(
    ("size", "asked", "home"),
    [(10, 0, "kv"), (60_000, 0, "kv"), (100_000, 3, "kv"), (2_000_000, 0, "disk")],
)
def test_a_step_reads_what_the_step_before_it_made(
    tmp_path: Path, size: int, asked: int, home: str
) -> None:
    async def run() -> None:
        server, references = await run_playbook(size, tmp_path)
        assert (
            server.asked == ["put_payload"] * asked
        )  # and nothing is asked for: the worker has it in memory
        assert [reference.type for reference in references] == [home] * 2
        reader = ResultRouter(server, in_files(tmp_path))
        for reference in references:
            assert await reader.resolve(reference) == {"text": "x" * size}

    asyncio.run(run())


def test_a_command_that_has_ended_holds_no_data(tmp_path: Path) -> None:
    gc.disable()  # its parts refer to each other: nothing may depend on when they are collected
    try:
        asyncio.run(run_playbook(2_000_000, tmp_path))
        held = [each for each in gc.get_objects() if isinstance(each, ResultReader) and each._kept]
        assert held == []
    finally:
        gc.enable()


def test_a_server_takes_only_a_payload_that_matches_its_reference() -> None:
    server, _, _ = make_server()
    uri = str(make_address("7", "result", "step", "key"))
    with pytest.raises(InvalidInput, match="checksum"):
        asyncio.run(
            server.put_payload(
                Reference(ref_id=RefId("1"), type="kv", uri=uri, sha256="0" * 64), b"1"
            )
        )
    with pytest.raises(InvalidInput):
        asyncio.run(server.payload(RefId("1"), "noetl://execution/7/result/../key"))
