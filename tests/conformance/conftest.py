"""One suite per port, run on every world in `WORLDS`. A real store joins by adding one factory here."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

import pytest

from noetl.bus.memory import BusMemory
from noetl.bus.port import Bus
from noetl.catalog.memory import CatalogMemory
from noetl.catalog.port import Catalog
from noetl.leases.memory import LeasesMemory
from noetl.leases.port import Leases
from noetl.log.memory import Database, LogMemory
from noetl.log.port import EventLog
from noetl.results.memory import ResultsMemory
from noetl.results.port import ResultStore
from noetl.twins import shard_rows

SHARDS = 4


class ManualClock:
    def __init__(self) -> None:
        self.time = 1_750_000_000_000_000

    def now(self) -> int:
        return self.time


@dataclass
class World:
    """Ports over one empty store. `pass_time` makes the store's own clock go on."""

    log: EventLog
    leases: Leases
    bus: Bus
    results: ResultStore
    catalog: Catalog
    clock: ManualClock

    async def pass_time(self, micros: int) -> None:
        self.clock.time += micros


@asynccontextmanager
async def memory() -> AsyncIterator[World]:
    clock, shards = ManualClock(), shard_rows(SHARDS)
    yield World(
        log=LogMemory(Database(shards, clock)),
        leases=LeasesMemory(shards, clock),
        bus=BusMemory(),
        results=ResultsMemory(),
        catalog=CatalogMemory(),
        clock=clock,
    )


WORLDS: dict[str, Callable[[], AbstractAsyncContextManager[World]]] = {"memory": memory}


@pytest.fixture(params=list(WORLDS))
def world(request: pytest.FixtureRequest) -> Callable[[], AbstractAsyncContextManager[World]]:
    """Opened by the hook below, inside the test's own event loop: the test receives the `World`."""
    return WORLDS[request.param]


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    wanted = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}

    async def run() -> None:
        async with wanted.pop("world")() as world:
            await asyncio.wait_for(test(world=world, **wanted), 10)

    asyncio.run(run())
    return True
