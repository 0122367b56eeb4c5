"""Servers over one set of memory ports, driven by hand: duties run when a test says so, time passes when a test says so."""

import asyncio
import dataclasses
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from noetl.bus.memory import BusMemory
from noetl.catalog.memory import CatalogMemory
from noetl.leases.memory import LeasesMemory
from noetl.log.memory import make_memory_stores
from noetl.log.stores import Stores
from noetl.log.tables import MemoryDatabase
from noetl.model.commands import Command
from noetl.model.envelope import Envelope
from noetl.model.events import CommandCompleted, Reported
from noetl.model.exchange import Ack, ExchangeReply, ExchangeRequest, LeaseKey
from noetl.model.ids import ExecutionId
from noetl.model.messages import Report, StoredRef
from noetl.server.node import Server
from noetl.server.settings import ServerSettings
from noetl.shard_rows import make_shard_rows

SHARDS = 4
OK = Envelope(status="ok")
CHAIN = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: chain}
workload: {a: 1}
workflow:
  - step: one
    tool: {kind: python, code: "pass"}
    next: two
  - step: two
    tool: {kind: python, code: "pass"}
"""


class SteppedClock:
    def __init__(self) -> None:
        self.time = 1_750_000_000_000_000

    def now(self) -> int:
        return self.time


class FlakyStores:
    """The stores of one server: counts their calls and fails when it is told to, before or after the call took effect."""

    def __init__(self, stores: Stores) -> None:
        for each in dataclasses.fields(Stores):
            setattr(self, each.name, FlakyPort(self, getattr(stores, each.name)))
        self.calls: Counter[str] = Counter()
        self.failing: dict[str, tuple[Exception, bool]] = {}
        self.held: dict[str, asyncio.Event] = {}

    def hold(self, method: str) -> asyncio.Event:
        """It takes effect when the event is set."""
        self.held[method] = asyncio.Event()
        return self.held[method]

    def fail(self, method: str, error: Exception, *, done: bool) -> None:
        self.failing[method] = (error, done)


class FlakyPort:
    def __init__(self, flaky: FlakyStores, inner: Any) -> None:
        self._flaky = flaky
        self._inner = inner

    def __getattr__(self, method: str) -> Callable[..., Any]:
        flaky = self._flaky

        async def call(*args: Any, **keywords: Any) -> Any:
            flaky.calls[method] += 1
            error, done = flaky.failing.pop(method, (None, True))
            await asyncio.sleep(0)
            if method in flaky.held:
                await flaky.held[method].wait()
            result = await getattr(self._inner, method)(*args, **keywords) if done else None
            await asyncio.sleep(0)
            if error is not None:
                raise error
            return result

        return call


class ClusterNode:
    def __init__(self, cluster: "ServerCluster", name: str, **more: Any) -> None:
        self.stores: Any = FlakyStores(cluster.stores)
        fields: dict[str, Any] = {"renew_every": 0, "poll_interval": 0.02, "row_interval": 0.0}
        settings = ServerSettings(name=name, shards=SHARDS, **(fields | more))
        self.server = Server(
            self.stores, cluster.leases, cluster.bus, cluster.catalog, cluster.clock, settings
        )

    async def claim_shards(self) -> list[int]:
        await self.server.keeper.run_once()
        return self.server.shards.list_owned()

    async def drain(self) -> None:
        """Everything that waits in inboxes and timers of this server."""
        while True:
            inbox, timers = await self.server.inbox.run_once(), await self.server.timers.run_once()
            if not inbox.done and not timers.done:
                return

    async def project(self) -> None:
        while (await self.server.projector.write_all_rows()).done:
            pass


class ServerCluster:
    def __init__(self) -> None:
        self.clock = SteppedClock()
        rows = make_shard_rows(SHARDS)
        self.database = MemoryDatabase(rows, self.clock)
        self.stores = make_memory_stores(self.database)
        self.leases = LeasesMemory(rows, self.clock)
        self.bus = BusMemory()
        self.catalog = CatalogMemory()
        self._dispatchers: list[asyncio.Task[None]] = []

    async def add_node(self, name: str = "server", **more: Any) -> ClusterNode:
        node = ClusterNode(self, name, **more)
        self._dispatchers.append(asyncio.create_task(node.server.dispatcher.run()))
        await node.claim_shards()
        return node

    async def close(self) -> None:
        for task in self._dispatchers:
            task.cancel()
        await asyncio.gather(*self._dispatchers, return_exceptions=True)

    async def list_types(self, execution_id: ExecutionId) -> list[str]:
        return [recorded.event.type for recorded in await self.stores.log.read_events(execution_id)]

    async def start_execution(
        self, node: ClusterNode, path: str = "chain", text: str = CHAIN, **fields: Any
    ) -> ExecutionId:
        await self.catalog.register(path, text)
        execution_id = await node.server.requests.start(path, **fields)
        await node.drain()
        return execution_id


@asynccontextmanager
async def open_cluster() -> AsyncIterator[ServerCluster]:
    made = ServerCluster()
    try:
        yield made
    finally:
        await made.close()


def report_completed(command: Command, **fields: Any) -> Report:
    return make_report(
        command,
        CommandCompleted(
            command_id=command.command_id, attempt=command.attempt, result=OK, **fields
        ),
    )


def make_report(command: Command, event: Reported, worker: str = "w1") -> Report:
    return Report(
        execution_id=command.execution_id,
        command_id=command.command_id,
        attempt=command.attempt,
        worker=worker,
        event=event,
    )


def make_lease_key(command: Command) -> LeaseKey:
    return LeaseKey(command.command_id, command.attempt)


async def exchange(
    node: ClusterNode,
    *reports: Report,
    free: int = 0,
    holds: tuple[Command, ...] = (),
    wait: float = 0,
    worker: str = "w1",
    life: str = "1",
    renew: bool = True,
    logs: tuple[StoredRef, ...] = (),
) -> ExchangeReply:
    request = ExchangeRequest(
        worker=worker,
        incarnation=life,
        free=free,
        held=tuple(make_lease_key(command) for command in holds),
        reports=reports,
        logs=logs,
        wait=round(wait * 1e6),
        renew=renew,
    )
    return await node.server.exchange(request)


async def claim(node: ClusterNode, worker: str = "w1") -> Command:
    (command,) = (await exchange(node, free=1, worker=worker)).commands
    return command


def list_statuses(acks: tuple[Ack, ...]) -> list[str]:
    return [ack.status for ack in acks]


async def finish(node: ClusterNode, execution_id: ExecutionId) -> None:
    """A worker that succeeds at everything, until nothing is left of this execution."""
    for _ in range(100):
        reply = await exchange(node, free=5)
        for command in reply.commands:
            await exchange(node, report_completed(command))
        await node.drain()
        if not reply.commands:
            return
