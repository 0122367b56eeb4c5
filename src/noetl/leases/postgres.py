"""Ownership in Postgres, on one connection of its own: leases must be renewed while every pool is busy or broken.

The connection holds an advisory lock for each runtime it registered: peers see at their next look that a killed process is
gone. It comes back by itself; a lock that could not be taken yet is tried again with every renewal, since without it this
server seems dead to its peers. Its statements end before a third of the lease is over.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from noetl.database import Connection, Database, GaveUp, Record, translated
from noetl.leases.port import Claimed, Owner, Runtime
from noetl.model.errors import StoreUnavailable
from noetl.model.exchange import LEASE
from noetl.model.ids import Micros
from noetl.sql import load

_SQL = load(Path(__file__).with_name("leases.sql"))


class LeasesPostgres:
    def __init__(self, database: Database, lease: Micros = LEASE) -> None:
        self._database = database
        self._statement_timeout = (
            lease / 1e6 * 0.25
        )  # the database gives up, the connection and its locks stay
        self._timeout = lease / 1e6 * 0.32  # no answer at all: it is made anew
        self._connection: Connection | None = None
        self._turn = asyncio.Lock()
        self._mine: dict[int, bool] = {}  # runtimes registered here: is their lock held

    async def now(self) -> Micros:
        async with self._session(writes=False) as session:
            micros: int = await session.fetchval(_SQL["now"].text)
            return micros

    async def register(self, name: str, address: str | None, lease: Micros) -> Runtime:
        """Another row each time; numbers of dead ones are free again."""
        async with self._session(writes=True) as session:
            async with session.transaction():
                await self._run(session, "alone")
                await self._run(session, "forget_runtimes")
                runtime_id = (await self._run(session, "next_runtime"))[0]["runtime_id"]
                made = await self._run(
                    session,
                    "register",
                    runtime_id=runtime_id,
                    name=name,
                    address=address,
                    lease=lease,
                )
                if not made:
                    raise StoreUnavailable(
                        "every node number is leased", hint="wait for a lease to run out"
                    )
                # before the row can be seen: a row without its lock is a dead server's
                locked = await self._run(session, "lock", runtime_id=runtime_id)
            self._mine[runtime_id] = locked[0]["locked"]
            return Runtime(runtime_id, made[0]["node"], name, address)

    async def renew(self, runtime_id: int, lease: Micros) -> bool:
        async with self._session(writes=True) as session:
            if self._mine.get(runtime_id) is False:
                self._mine[runtime_id] = (await self._run(session, "lock", runtime_id=runtime_id))[
                    0
                ]["locked"]
            renewed = bool(await self._run(session, "renew", runtime_id=runtime_id, lease=lease))
            if not renewed:
                self._mine.pop(runtime_id, None)
            return renewed

    async def servers(self) -> int:
        async with self._session(writes=False) as session:
            count: int = (await self._run(session, "servers"))[0]["servers"]
            return count

    async def claim(self, runtime_id: int, limit: int) -> list[Claimed]:
        async with self._session(writes=True) as session, session.transaction():
            await self._run(session, "alone")
            taken = await self._run(session, "claim", runtime_id=runtime_id, limit=limit)
            return [Claimed(row["shard_id"], row["epoch"]) for row in taken]

    async def release(self, runtime_id: int, shards: list[int]) -> None:
        async with self._session(writes=True) as session:
            await self._run(session, "release", runtime_id=runtime_id, shards=shards)

    async def take(self, runtime_id: int, duty: str, every: Micros) -> bool:
        async with self._session(writes=True) as session:
            return bool(
                await self._run(session, "take", runtime_id=runtime_id, duty=duty, every=every)
            )

    async def done(self, runtime_id: int, duty: str) -> None:
        async with self._session(writes=True) as session:
            await self._run(session, "done", runtime_id=runtime_id, duty=duty)

    async def leave(self, runtime_id: int) -> None:
        self._mine.pop(runtime_id, None)
        async with self._session(writes=True) as session:
            await self._run(session, "leave", runtime_id=runtime_id)

    async def owners(self) -> list[Owner]:
        async with self._session(writes=False) as session:
            return [Owner(*row) for row in await self._run(session, "owners")]

    async def close(self) -> None:
        if self._connection is not None:
            with suppress(Exception):  # it may be broken already; the locks go with it
                await self._connection.close(timeout=1)
            self._connection = None

    @asynccontextmanager
    async def _session(self, *, writes: bool) -> AsyncIterator[Connection]:
        """The connection, for one caller at a time. After any failure of its own it is made anew."""
        async with self._turn:
            session = await self._connected()
            try:
                async with translated(writes=writes):
                    yield session
            except BaseException as error:
                if not isinstance(error.__cause__, GaveUp) or session.is_in_transaction():
                    session.terminate()
                raise

    async def _connected(self) -> Connection:
        if self._connection is None or self._connection.is_closed():
            self._mine = dict.fromkeys(self._mine, False)
            limit = f"{self._statement_timeout * 1000:.0f}ms"
            self._connection = await self._database.connect(
                {"statement_timeout": limit, "lock_timeout": limit}
            )
        return self._connection

    async def _run(self, session: Connection, query_name: str, /, **values: Any) -> list[Record]:
        query = _SQL[query_name]
        rows: list[Record] = await session.fetch(
            query.text, *query.bind(**values), timeout=self._timeout
        )
        return rows
