"""Connections to Postgres: two pools, and one place that says what a broken one means.

Every call here is one statement in its own transaction. `write` distinguishes what the ports promise: `StoreUnavailable`
(nothing happened) and `OutcomeUnknown` (it was sent, and no answer came). A read that fails has simply not happened.
Constraint violations and exceptions raised by our own functions are bugs of the caller: they pass as they are.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Generic, Self, TypeAlias, TypeVar

import asyncpg  # type: ignore[import-untyped]  # it ships no types; the aliases below stand for them

from noetl.model.errors import NoetlError, OutcomeUnknown, StoreUnavailable, Unavailable
from noetl.sql import Query

Record: TypeAlias = Any  # a row: columns by name or number
Connection: TypeAlias = Any
Given = TypeVar("Given")
Got = TypeVar("Got")

UniqueViolation: type[Any] = asyncpg.UniqueViolationError
Raised: type[Exception] = asyncpg.RaiseError  # by `raise exception` in a function of ours

GaveUp: tuple[type[Exception], ...] = (
    asyncpg.QueryCanceledError,
    asyncpg.LockNotAvailableError,
)  # a timeout over there

CONNECT_TIMEOUT = 5.0
ACQUIRE_TIMEOUT = 10.0
STATEMENT_TIMEOUT = 30.0
IDLE = 60.0
DEADLOCKS = 3  # tries; the transaction that lost has done nothing

# Every statement is fixed and made for its index: plans must not depend on statistics that a young table does not have.
SETTINGS = {
    "synchronous_commit": "on",
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "jit": "off",
    "statement_timeout": f"{STATEMENT_TIMEOUT:.0f}s",
    "idle_in_transaction_session_timeout": "30s",
    # a client that is gone without a word must not keep its locks
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "10s",
}

# Arrays that our statements use. The driver would ask every new connection about them, which takes longer than connecting.
_ARRAYS = [
    {
        "oid": oid,
        "ns": "pg_catalog",
        "name": f"_{name}",
        "kind": b"b",
        "elemtype": element,
        "elemtype_name": name,
        "elemdelim": ",",
        "range_subtype": None,
        "attrtypoids": None,
        "attrnames": None,
        "basetype": None,
    }
    for oid, element, name in (
        (199, 114, "json"),
        (1001, 17, "bytea"),
        (1007, 23, "int4"),
        (1009, 25, "text"),
        (1016, 20, "int8"),
    )
]

_LOST = (
    OSError,
    EOFError,
    asyncpg.PostgresConnectionError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.IdleSessionTimeoutError,
    asyncpg.InternalClientError,  # used again before its end was noticed
)
_NOT_DONE = (
    asyncpg.CannotConnectNowError,
    asyncpg.InsufficientResourcesError,  # disk full, out of memory, too many connections
    *GaveUp,
    asyncpg.ReadOnlySQLTransactionError,
    asyncpg.PostgresIOError,
)
_ANSWERED = (
    asyncpg.IntegrityConstraintViolationError,
    asyncpg.RaiseError,
)  # the statement failed, nothing else did
_DEADLOCK = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError)


def _unavailable(error: BaseException) -> StoreUnavailable:
    if isinstance(error, asyncpg.DiskFullError):
        return StoreUnavailable(
            f"the database has no space left on its disk: {error}",
            hint="free some space there: what was recorded is safe, and goes on from where it is",
        )
    return StoreUnavailable(
        f"Postgres: {type(error).__name__}: {error}",
        hint="is it running, reachable and with space on its disk?",
    )


def _unknown(error: BaseException) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"Postgres: {type(error).__name__}: {error}", hint="repeat: the keys absorb it"
    )


async def connect(dsn: str, settings: Mapping[str, str] | None = None) -> Connection:
    """One connection of its own. StoreUnavailable when there is none to be had."""
    try:
        connection: Connection = await asyncpg.connect(
            dsn,
            timeout=CONNECT_TIMEOUT,
            command_timeout=STATEMENT_TIMEOUT + CONNECT_TIMEOUT,
            max_cached_statement_lifetime=0,
            server_settings={**SETTINGS, **(settings or {})},
        )
        connection.get_settings().register_data_types(_ARRAYS)
        return connection
    except (*_LOST, *_NOT_DONE, TimeoutError, asyncpg.InterfaceError) as error:
        raise _unavailable(error) from error


@asynccontextmanager
async def translated(*, writes: bool) -> AsyncIterator[None]:
    """The border: library exceptions become ours. A closed connection is noticed before anything is sent."""
    try:
        yield
    except (*_NOT_DONE, *_DEADLOCK, asyncpg.InterfaceError) as error:
        raise _unavailable(error) from error
    except (*_LOST, TimeoutError) as error:
        raise (_unknown(error) if writes else _unavailable(error)) from error


class ConnectionPool:
    """Connections in a stack: the warmest is used first, the coldest is closed when nobody has needed it for a while.

    Taking and giving back cost nothing while one is idle; no session state is ever changed, so there is nothing to reset.
    """

    def __init__(self, dsn: str, size: int, settings: Mapping[str, str]) -> None:
        self._dsn = dsn
        self._settings = settings
        self._room = asyncio.Semaphore(size)
        self._idle: deque[tuple[float, Connection]] = deque()

    async def read(self, query: Query, **values: Any) -> list[Record]:
        async with self._connection() as connection, translated(writes=False):
            rows: list[Record] = await connection.fetch(query.text, *query.bind(**values))
            return rows

    async def write(self, query: Query, *arguments: Any, **values: Any) -> list[Record]:
        """By position when there are many: `arguments` as the query numbers them."""
        bound = arguments or query.bind(**values)
        for _ in range(DEADLOCKS - 1):
            try:
                return await self._write(query.text, bound)
            except StoreUnavailable as error:
                if not isinstance(error.__cause__, _DEADLOCK):
                    raise
        return await self._write(query.text, bound)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        async with (
            self._connection() as connection,
            translated(writes=True),
            connection.transaction(),
        ):
            yield connection

    async def close(self) -> None:
        """Connections in use are closed when they are given back."""
        self._settings = {}
        while self._idle:
            _, connection = self._idle.pop()
            try:
                await connection.close(timeout=1)
            except (*_LOST, asyncpg.InterfaceError, TimeoutError):
                connection.terminate()

    async def _write(self, text: str, bound: tuple[Any, ...]) -> list[Record]:
        async with self._connection() as connection, translated(writes=True):
            rows: list[Record] = await connection.fetch(text, *bound)
            return rows

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Connection]:
        await self._enter()
        try:
            connection = await self._take()
            try:
                yield connection
            except _ANSWERED:
                self._give_back(connection)
                raise
            except (
                BaseException
            ):  # cancelled or broken in the middle: what it is doing now is anyone's guess
                connection.terminate()
                raise
            self._give_back(connection)
        finally:
            self._room.release()

    async def _enter(self) -> None:
        if not self._room.locked():
            await self._room.acquire()
            return
        try:
            async with asyncio.timeout(ACQUIRE_TIMEOUT):
                await self._room.acquire()
        except TimeoutError as error:
            raise StoreUnavailable(
                "every connection is busy", hint="raise NOETL_POSTGRES_POOL_MAX_SIZE"
            ) from error

    async def _take(self) -> Connection:
        while self._idle:
            _, connection = self._idle.pop()
            if not connection.is_closed():
                return connection
        return await connect(self._dsn, self._settings)

    def _give_back(self, connection: Connection) -> None:
        now = asyncio.get_running_loop().time()
        if connection.is_closed() or connection.is_in_transaction() or not self._settings:
            connection.terminate()
        else:
            self._idle.append((now, connection))
        if len(self._idle) > 1 and now - self._idle[0][0] > IDLE:
            self._idle.popleft()[1].terminate()


class Grouped(Generic[Given, Got]):
    """Calls of one kind, made together: those that arrive while one statement is under way share the next. `limit` bounds the
    weight of one statement. When it is refused, each is tried alone: one bad call is not the others' fault."""

    def __init__(self, run: Callable[[list[Given]], Awaitable[list[Got]]], limit: int) -> None:
        self._run = run
        self._limit = limit
        self._waiting: deque[tuple[Given, int, asyncio.Future[Got]]] = deque()
        self._task: asyncio.Task[None] | None = None

    async def __call__(self, given: Given, weight: int = 1) -> Got:
        answer: asyncio.Future[Got] = asyncio.get_running_loop().create_future()
        self._waiting.append((given, weight, answer))
        if self._task is None:
            self._task = asyncio.ensure_future(self._run_all())
        return await answer

    async def _run_all(self) -> None:
        try:
            while self._waiting:
                if not (batch := self._next()):
                    continue
                try:
                    await self._answer(batch)
                except BaseException as error:
                    for _, answer in batch:
                        if not answer.done():
                            answer.set_exception(
                                error
                                if isinstance(error, Exception)
                                else OutcomeUnknown("interrupted")
                            )
                    if not isinstance(error, Exception):
                        raise
        finally:
            self._task = None
            for _, _, answer in self._waiting:
                answer.cancel()
            self._waiting.clear()

    def _next(self) -> list[tuple[Given, "asyncio.Future[Got]"]]:
        room = self._limit
        batch: list[tuple[Given, asyncio.Future[Got]]] = []
        while self._waiting and (not batch or self._waiting[0][1] <= room):
            given, weight, answer = self._waiting.popleft()
            room -= weight
            if not answer.done():  # else nobody waits for it any more
                batch.append((given, answer))
        return batch

    async def _answer(self, batch: list[tuple[Given, "asyncio.Future[Got]"]]) -> None:
        try:
            found = await self._run([given for given, _ in batch])
        except Unavailable:
            raise
        except Exception:
            if len(batch) < 2:
                raise
            for each in batch:
                try:
                    await self._answer([each])
                except Unavailable:
                    raise
                except Exception as error:
                    if not each[1].done():
                        each[1].set_exception(error)
            return
        for (_, answer), got in zip(batch, found, strict=True):
            if not answer.done():
                answer.set_result(got)


class Database:
    """`main` for what someone waits for, `background` for duties: neither can starve the other."""

    def __init__(
        self,
        dsn: str,
        *,
        main_size: int = 32,
        background_size: int = 4,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.dsn = dsn
        self.settings = {**SETTINGS, **(settings or {})}
        self.main = ConnectionPool(dsn, main_size, self.settings)
        self.background = ConnectionPool(dsn, background_size, self.settings)

    async def __aenter__(self) -> Self:
        """Raises StoreUnavailable when the database is not there. It is not asked again: every call says so itself."""
        try:
            await self._check_durability()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self.main.close()
        await self.background.close()

    async def connect(self, settings: Mapping[str, str] | None = None) -> Connection:
        return await connect(self.dsn, {**self.settings, **(settings or {})})

    async def _check_durability(self) -> None:
        """A commit that is acknowledged and may still be lost breaks every promise of the log."""
        rows = await self.main.read(
            Query("durability", "select current_setting('synchronous_commit') as commit")
        )
        if rows[0]["commit"] not in ("on", "remote_apply"):
            raise NoetlError(
                f"synchronous_commit is {rows[0]['commit']}",
                hint="the log needs `on`: remove what overrides it",
            )
