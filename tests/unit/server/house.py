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


class Clock:
    def __init__(self) -> None:
        self.time = 1_750_000_000_000_000

    def now(self) -> int:
        return self.time


class Flaky:
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
    def __init__(self, flaky: Flaky, inner: Any) -> None:
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


class Node:
    def __init__(self, house: "House", name: str, **more: Any) -> None:
        self.stores: Any = Flaky(house.stores)
        settings = ServerSettings(
            name=name, shards=SHARDS, renew_every=0, poll_interval=0.02, **more
        )
        self.server = Server(
            self.stores, house.leases, house.bus, house.catalog, house.clock, settings
        )

    async def own(self) -> list[int]:
        await self.server.keeper.run_once()
        return self.server.shards.list_owned()

    async def drain(self) -> None:
        """Everything that waits in inboxes and timers of this server."""
        while True:
            inbox, timers = await self.server.inbox.run_once(), await self.server.timers.run_once()
            if not inbox.done and not timers.done:
                return

    async def project(self) -> None:
        self.server.projector.mark_changed(range(SHARDS))
        while (await self.server.projector.run_once()).done:
            self.server.projector.mark_changed(range(SHARDS))


class House:
    def __init__(self) -> None:
        self.clock = Clock()
        rows = make_shard_rows(SHARDS)
        self.database = MemoryDatabase(rows, self.clock)
        self.stores = make_memory_stores(self.database)
        self.leases = LeasesMemory(rows, self.clock)
        self.bus = BusMemory()
        self.catalog = CatalogMemory()
        self._dispatchers: list[asyncio.Task[None]] = []

    async def node(self, name: str = "server", **more: Any) -> Node:
        node = Node(self, name, **more)
        self._dispatchers.append(asyncio.create_task(node.server.dispatcher.run()))
        await node.own()
        return node

    async def close(self) -> None:
        for task in self._dispatchers:
            task.cancel()
        await asyncio.gather(*self._dispatchers, return_exceptions=True)

    async def types(self, execution_id: ExecutionId) -> list[str]:
        return [recorded.event.type for recorded in await self.stores.log.read_events(execution_id)]

    async def begun(
        self, node: Node, path: str = "chain", text: str = CHAIN, **fields: Any
    ) -> ExecutionId:
        await self.catalog.register(path, text)
        execution_id = await node.server.requests.start(path, **fields)
        await node.drain()
        return execution_id


@asynccontextmanager
async def house() -> AsyncIterator[House]:
    made = House()
    try:
        yield made
    finally:
        await made.close()


def ended(command: Command, **fields: Any) -> Report:
    return told(
        command,
        CommandCompleted(
            command_id=command.command_id, attempt=command.attempt, result=OK, **fields
        ),
    )


def told(command: Command, event: Reported, worker: str = "w1") -> Report:
    return Report(
        execution_id=command.execution_id,
        command_id=command.command_id,
        attempt=command.attempt,
        worker=worker,
        event=event,
    )


def held(command: Command) -> LeaseKey:
    return LeaseKey(command.command_id, command.attempt)


async def exchange(
    node: Node,
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
        held=tuple(held(command) for command in holds),
        reports=reports,
        logs=logs,
        wait=round(wait * 1e6),
        renew=renew,
    )
    return await node.server.exchange(request)


async def claim(node: Node, worker: str = "w1") -> Command:
    (command,) = (await exchange(node, free=1, worker=worker)).commands
    return command


def statuses(acks: tuple[Ack, ...]) -> list[str]:
    return [ack.status for ack in acks]


async def finish(node: Node, execution_id: ExecutionId) -> None:
    """A worker that succeeds at everything, until nothing is left of this execution."""
    for _ in range(100):
        reply = await exchange(node, free=5)
        for command in reply.commands:
            await exchange(node, ended(command))
        await node.drain()
        if not reply.commands:
            return
