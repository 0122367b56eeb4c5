"""Ownership of shards in Postgres, on a connection of its own.

Leases must be renewed while every pool is busy or broken, hence the separate connection. It holds
an advisory lock for each runtime that it registered; without the lock, peers take the server for
dead, so they notice a killed process at once. A broken connection is made again; a lock that is
not free yet is tried again with every renewal. Statements end before a third of the lease is over.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from noetl.leases.port import ClaimedShard, Owner, Runtime
from noetl.model.errors import StoreUnavailable
from noetl.model.exchange import LEASE_MICROS
from noetl.model.ids import Micros
from noetl.postgres.pool import (
    POSTGRES_TIMEOUT_ERRORS,
    Connection,
    Database,
    Record,
    translate_driver_errors,
)
from noetl.postgres.queries import load_queries

_SQL = load_queries(Path(__file__).with_name("leases.sql"))


class LeasesPostgres:
    def __init__(self, database: Database, lease: Micros = LEASE_MICROS) -> None:
        self._database = database
        lease_seconds = lease / 1e6
        # After the first, the database ends the statement; the connection and its locks stay. After
        # the second, there was no answer at all, and the connection is made again.
        self._statement_timeout = lease_seconds * 0.25
        self._timeout = lease_seconds * 0.32
        self._connection: Connection | None = None
        self._turn = asyncio.Lock()
        self._locks_held: dict[
            int, bool
        ] = {}  # by runtime registered here: whether its lock is held

    async def read_clock(self) -> Micros:
        async with self._hold_session(writes=False) as session:
            micros: int = await session.fetchval(_SQL["now"].text)
            return micros

    async def read_database_id(self) -> str:
        """What tells this database from every other one."""
        async with self._hold_session(writes=False) as session:
            (row,) = await self._run_lease_query(session, "database_id")
            database_id: str = row["id"]
            return database_id

    async def register(self, name: str, address: str | None, lease: Micros) -> Runtime:
        """Add a row for this server. Node numbers of dead servers are free again."""
        async with self._hold_session(writes=True) as session:
            async with session.transaction():
                await self._run_lease_query(session, "alone")
                await self._run_lease_query(session, "forget_runtimes")
                (next_row,) = await self._run_lease_query(session, "next_runtime")
                runtime_id = next_row["runtime_id"]
                added = await self._run_lease_query(
                    session,
                    "register",
                    runtime_id=runtime_id,
                    name=name,
                    address=address,
                    lease=lease,
                )
                if not added:
                    raise StoreUnavailable(
                        "every node number is leased", hint="wait for a lease to run out"
                    )
                # Lock before the row is visible: to peers, a row without a lock is a dead server.
                is_locked = await self._lock_runtime(session, runtime_id)
            self._locks_held[runtime_id] = is_locked
            return Runtime(runtime_id, added[0]["node"], name, address)

    async def renew(self, runtime_id: int, lease: Micros) -> bool:
        async with self._hold_session(writes=True) as session:
            if self._locks_held.get(runtime_id) is False:
                self._locks_held[runtime_id] = await self._lock_runtime(session, runtime_id)
            rows = await self._run_lease_query(session, "renew", runtime_id=runtime_id, lease=lease)
            if not rows:
                self._locks_held.pop(runtime_id, None)
            return bool(rows)

    async def _lock_runtime(self, session: Connection, runtime_id: int) -> bool:
        (row,) = await self._run_lease_query(session, "lock", runtime_id=runtime_id)
        is_locked: bool = row["locked"]
        return is_locked

    async def count_servers(self) -> int:
        async with self._hold_session(writes=False) as session:
            (row,) = await self._run_lease_query(session, "servers")
            count: int = row["servers"]
            return count

    async def claim(self, runtime_id: int, limit: int) -> list[ClaimedShard]:
        async with self._hold_session(writes=True) as session, session.transaction():
            await self._run_lease_query(session, "alone")
            rows = await self._run_lease_query(session, "claim", runtime_id=runtime_id, limit=limit)
            return [ClaimedShard(row["shard_id"], row["epoch"]) for row in rows]

    async def release_shards(self, runtime_id: int, shards: list[int]) -> None:
        async with self._hold_session(writes=True) as session:
            await self._run_lease_query(session, "release", runtime_id=runtime_id, shards=shards)

    async def take_duty(self, runtime_id: int, duty: str, every: Micros) -> bool:
        async with self._hold_session(writes=True) as session:
            rows = await self._run_lease_query(
                session, "take", runtime_id=runtime_id, duty=duty, every=every
            )
            return bool(rows)

    async def finish_duty(self, runtime_id: int, duty: str) -> None:
        async with self._hold_session(writes=True) as session:
            await self._run_lease_query(session, "done", runtime_id=runtime_id, duty=duty)

    async def leave_cluster(self, runtime_id: int) -> None:
        self._locks_held.pop(runtime_id, None)
        async with self._hold_session(writes=True) as session:
            await self._run_lease_query(session, "leave", runtime_id=runtime_id)

    async def list_owners(self) -> list[Owner]:
        async with self._hold_session(writes=False) as session:
            return [Owner(*row) for row in await self._run_lease_query(session, "owners")]

    async def close(self) -> None:
        if self._connection is not None:
            with suppress(Exception):  # it may be broken; closing it releases the locks anyway
                await self._connection.close(timeout=1)
            self._connection = None

    @asynccontextmanager
    async def _hold_session(self, *, writes: bool) -> AsyncIterator[Connection]:
        """The connection, for one caller at a time. It is closed after an error, except after a
        statement timeout outside a transaction."""
        async with self._turn:
            session = await self._ensure_connection()
            try:
                async with translate_driver_errors(writes=writes):
                    yield session
            except BaseException as error:
                if (
                    not isinstance(error.__cause__, POSTGRES_TIMEOUT_ERRORS)
                    or session.is_in_transaction()
                ):
                    session.terminate()
                raise

    async def _ensure_connection(self) -> Connection:
        if self._connection is None or self._connection.is_closed():
            self._locks_held = dict.fromkeys(self._locks_held, False)
            limit = f"{self._statement_timeout * 1000:.0f}ms"
            self._connection = await self._database.connect(
                {"statement_timeout": limit, "lock_timeout": limit}
            )
        return self._connection

    async def _run_lease_query(
        self, session: Connection, query_name: str, /, **values: Any
    ) -> list[Record]:
        query = _SQL[query_name]
        rows: list[Record] = await session.fetch(
            query.text, *query.bind(**values), timeout=self._timeout
        )
        return rows
