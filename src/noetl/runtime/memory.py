"""A server and a worker in this process, on the memory twins of the ports.

They speak the same protocol as elsewhere, by calls instead of HTTP.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from typing import Any, Self

from msgspec import to_builtins

from noetl.bus.memory import BusMemory
from noetl.catalog.memory import CatalogMemory
from noetl.engine.state import Execution
from noetl.leases.memory import LeasesMemory
from noetl.log.events.port import RecordedEvent
from noetl.log.memory import make_memory_stores
from noetl.log.tables import MemoryDatabase
from noetl.model.commands import USUAL_POOLS
from noetl.model.ids import DEFAULT_TENANT, ExecutionId
from noetl.model.playbook_state import StateValue
from noetl.model.reference import Reference
from noetl.pipeline.scope.results import ResultReader
from noetl.playbook.model import Playbook
from noetl.playbook.validation import load_registered
from noetl.playbook.workload import readable_environment
from noetl.results.router import ResultRouter
from noetl.results.tiers.large import LargeStore
from noetl.results.tiers.memory import TierMemory
from noetl.runtime.clock import SystemClock
from noetl.runtime.egress import make_local_guard
from noetl.runtime.kinds import load_playbook
from noetl.runtime.tools import make_extra_tools, read_duckdb_folders, read_step_limits
from noetl.server.executions.access import Access
from noetl.server.executions.details import find_first_cause, strip_workload
from noetl.server.logs.lines import read_printed_lines
from noetl.server.logs.service import LogService
from noetl.server.node import Server
from noetl.server.settings import ServerSettings
from noetl.server.streams.live import LiveUpdates
from noetl.settings import HomeSettings, read_settings
from noetl.shard_rows import make_shard_rows
from noetl.tools import registry
from noetl.tools.credentials.port import Credentials
from noetl.worker.plans import PlanCache
from noetl.worker.settings import WorkerSettings
from noetl.worker.spool import MemorySpool
from noetl.worker.worker import Worker

MEMORY_LOG_POLL_S = 0.02  # seconds between two reads of the log
MEMORY_WORKER_SLOTS = 4

Row = dict[str, Any]  # a JSON object of the API


def _make_registry() -> registry.Registry:
    home = read_settings(HomeSettings).home_path
    return registry.make_registry(
        make_extra_tools(home),
        make_local_guard(home),
        read_step_limits(),
        read_duckdb_folders(home),
    )


class MemoryCluster:
    """A server and its worker.

    `check` loads a playbook that is registered. `load` parses it for the worker.
    """

    def __init__(
        self,
        tools: registry.Registry | None = None,
        credentials: Credentials | None = None,
        load: Callable[[str], Playbook] = load_registered,
        pools: tuple[str, ...] = USUAL_POOLS,
        check: Callable[[str, str], Playbook] = load_playbook,
    ) -> None:
        self._check = check
        clock = SystemClock()
        settings = ServerSettings(name="memory", env=readable_environment(os.environ))
        rows = make_shard_rows(settings.shards)
        self._stores = make_memory_stores(MemoryDatabase(rows, clock))
        self._catalog = CatalogMemory()
        self.server = Server(
            self._stores, LeasesMemory(rows, clock), BusMemory(), self._catalog, clock, settings
        )
        worker = WorkerSettings(
            worker_id="memory", incarnation="1", pools=pools, slots=MEMORY_WORKER_SLOTS
        )
        tier = TierMemory()
        large = LargeStore(tier, tier.staging)
        store = ResultRouter(self.server, large)
        self._worker = Worker(
            self.server,
            store,
            tools or _make_registry(),
            clock,
            MemorySpool(),
            worker,
            credentials=credentials,
            plans=PlanCache(self.server, worker.plans, load),
        )
        reader = ResultRouter(self.server, large)  # a second one: the worker's memory is its own
        self._payloads = ResultReader(reader, self.server.list_manifest_parts)
        self._running: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        keeper = self.server.keeper
        await keeper.run_once()  # gets a node number and every shard before the first request
        self._running = [
            asyncio.create_task(self.server.run()),
            asyncio.create_task(self._worker.run()),
        ]
        return self

    async def __aexit__(self, *failure: object) -> None:
        for task in reversed(self._running):
            task.cancel()
        for task in self._running:
            with suppress(asyncio.CancelledError):
                await task

    async def register(self, text: str, file: str) -> str:
        """Register a playbook. Returns its path in the catalog."""
        playbook = self._check(text, file)
        path = playbook.metadata.path or playbook.metadata.name
        await self._catalog.register(path, text)
        return path

    async def store_state(self, path: str, values: dict[str, Any]) -> None:
        """Store state as if an earlier execution of the playbook had written it."""
        for name, value in values.items():
            await self._stores.state.put_state(
                DEFAULT_TENANT, path, name, StateValue(0, value), None, "test"
            )

    async def start(
        self,
        text: str,
        file: str,
        payload: dict[str, Any],
    ) -> ExecutionId:
        path = await self.register(text, file)
        return await self.server.requests.start(path, payload=payload)

    async def wait_for_events(self, execution_id: ExecutionId, seq: int) -> list[RecordedEvent]:
        """The events after number `seq`. Waits a moment if there are none."""
        for task in self._running:
            if task.done():
                task.result()  # raises the error of a server or worker that has failed
        events = await self._stores.log.read_events(execution_id, after=seq)
        if not events:
            await asyncio.sleep(MEMORY_LOG_POLL_S)
        return events

    async def change_execution(self, execution_id: ExecutionId, how: str) -> bool:
        """Cancel an execution. `noetl run` asks for no other change."""
        assert how == "cancel"
        return await self.server.requests.cancel(execution_id, "interrupted")

    def stream_logs(
        self, execution_id: ExecutionId, step: str | None = None, *, follow: bool = False
    ) -> AsyncGenerator[list[Row], None]:
        service = LogService(
            self._stores.log,
            self._stores.step_logs,
            LiveUpdates(),
            Access(self._stores.log),
            MEMORY_LOG_POLL_S,
        )
        return read_printed_lines(service, execution_id, step, follow=follow)

    async def list_queue(
        self, status: str | None = None, execution_id: ExecutionId | None = None
    ) -> list[Row]:
        rows = await self._stores.queue.list_commands(
            DEFAULT_TENANT, status=status, execution_id=execution_id
        )
        return [{"step": row.step, "progress": row.progress} for row in rows]

    async def get_workload(self, execution_id: ExecutionId) -> Row:
        pinned = await self._stores.log.read_pinned(execution_id)
        if pinned is None:
            return {}
        return strip_workload(pinned.workload)

    async def get_cause(self, execution_id: ExecutionId, min_seq: int) -> Row | None:
        state = await self._read_state(execution_id)
        cause = await find_first_cause(state, self._read_state)
        if cause is None:
            return None
        row: Row = to_builtins(cause)
        return row

    async def _read_state(self, execution_id: ExecutionId) -> Execution | None:
        loaded = await self.server.states.read(execution_id)
        return None if loaded is None else loaded.state

    async def resolve(self, reference: Reference) -> Any:
        return await self._payloads.resolve(reference)

    async def preview_result(
        self, execution_id: ExecutionId, step: str, rows: int
    ) -> dict[str, Any]:
        """No preview: small results are shown whole, and large ones by reference."""
        return {"preview": None}
