"""Connections to Postgres: two pools, and the translation of driver errors into ours.

Every call is one statement in its own transaction. A failed write raises `StoreUnavailable` if
nothing happened, or `OutcomeUnknown` if the statement was sent and no answer came. A failed read
always raises `StoreUnavailable`. Constraint violations and exceptions raised by our own SQL
functions are bugs of the caller, so they pass unchanged.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Generic, Self, TypeAlias, TypeVar

import asyncpg  # type: ignore[import-untyped]  # it ships no types; the aliases below stand for them

from noetl.model.errors import NoetlError, OutcomeUnknown, StoreUnavailable, Unavailable
from noetl.postgres.queries import Query

Record: TypeAlias = Any  # a row: columns by name or number
Connection: TypeAlias = Any
Given = TypeVar("Given")
Got = TypeVar("Got")

UniqueViolation: type[Any] = asyncpg.UniqueViolationError
RaisedBySqlFunction: type[Exception] = (
    asyncpg.RaiseError
)  # from `raise exception` in our SQL functions

# Timeouts on the side of Postgres.
POSTGRES_TIMEOUT_ERRORS: tuple[type[Exception], ...] = (
    asyncpg.QueryCanceledError,
    asyncpg.LockNotAvailableError,
)

# seconds
CONNECT_TIMEOUT_S = 5.0
ACQUIRE_TIMEOUT_S = 10.0
STATEMENT_TIMEOUT_S = 30.0
MAX_IDLE_S = 60.0
RECONNECT_DELAY_S = 0.05

MAX_DEADLOCK_TRIES = (
    3  # tries of a statement; a transaction that loses a deadlock has changed nothing
)

# Every statement is fixed and written for its index. Its plan must not depend on statistics,
# because a new table has none.
SESSION_SETTINGS = {
    "synchronous_commit": "on",
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "jit": "off",
    "statement_timeout": f"{STATEMENT_TIMEOUT_S:.0f}s",
    "idle_in_transaction_session_timeout": "30s",
    # a client that disappears without closing its connection must not keep its locks
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "10s",
}

# The array types of our statements. Without them the driver looks the types up on every new
# connection, which takes longer than connecting.
_ARRAY_TYPES = [
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

# The connection broke: the statement may have run.
_CONNECTION_LOST = (
    OSError,
    EOFError,
    asyncpg.PostgresConnectionError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.IdleSessionTimeoutError,
    asyncpg.InternalClientError,  # the connection was used before its end was noticed
)
# The statement was not executed.
_NOT_EXECUTED = (
    asyncpg.CannotConnectNowError,
    asyncpg.InsufficientResourcesError,  # disk full, out of memory, too many connections
    *POSTGRES_TIMEOUT_ERRORS,
    asyncpg.ReadOnlySQLTransactionError,
    asyncpg.PostgresIOError,
)
# The database did not get the statement, or, if that was a read, its answer was lost.
_UNREACHED = (*_CONNECTION_LOST, asyncpg.CannotConnectNowError, asyncpg.InterfaceError)
# The statement failed; the connection is still good.
_STATEMENT_REFUSED = (
    asyncpg.IntegrityConstraintViolationError,
    asyncpg.RaiseError,
)
_DEADLOCK_ERRORS = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError)


def _make_store_unavailable(error: BaseException) -> StoreUnavailable:
    if isinstance(error, asyncpg.DiskFullError):
        return StoreUnavailable(
            f"the database has no space left on its disk: {error}",
            hint="free some space there: what was recorded is safe, and goes on from where it is",
        )
    return StoreUnavailable(
        f"Postgres: {type(error).__name__}: {error}",
        hint="is it running, reachable and with space on its disk?",
    )


def _make_outcome_unknown(error: BaseException) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"Postgres: {type(error).__name__}: {error}", hint="repeat: what was done is not done twice"
    )


async def connect(dsn: str, settings: Mapping[str, str] | None = None) -> Connection:
    """Open a connection outside the pools. Raises StoreUnavailable if that fails."""
    try:
        connection: Connection = await asyncpg.connect(
            dsn,
            timeout=CONNECT_TIMEOUT_S,
            command_timeout=STATEMENT_TIMEOUT_S + CONNECT_TIMEOUT_S,
            max_cached_statement_lifetime=0,
            server_settings={**SESSION_SETTINGS, **(settings or {})},
        )
        connection.get_settings().register_data_types(_ARRAY_TYPES)
        return connection
    except (*_CONNECTION_LOST, *_NOT_EXECUTED, TimeoutError, asyncpg.InterfaceError) as error:
        raise _make_store_unavailable(error) from error


@asynccontextmanager
async def translate_driver_errors(*, writes: bool) -> AsyncIterator[None]:
    """Translate exceptions of the driver into ours.

    An `InterfaceError` means that nothing happened: the driver notices a closed connection before
    it sends anything.
    """
    try:
        yield
    except (*_NOT_EXECUTED, *_DEADLOCK_ERRORS, asyncpg.InterfaceError) as error:
        raise _make_store_unavailable(error) from error
    except (*_CONNECTION_LOST, TimeoutError) as error:
        if writes:
            raise _make_outcome_unknown(error) from error
        raise _make_store_unavailable(error) from error


class ConnectionPool:
    """A stack of connections: the last used is taken first, the least used is closed when idle.

    Nothing is sent to take or return an idle connection. No caller changes session state, so there
    is nothing to reset.
    """

    def __init__(
        self,
        dsn: str,
        size: int,
        settings: Mapping[str, str],
        patience_s: float = 0.0,
    ) -> None:
        """A statement that was not executed, because the database cannot be reached, is repeated for
        `patience_s` seconds."""
        self._dsn = dsn
        self._settings = settings
        self._patience_s = patience_s
        self._permits = asyncio.Semaphore(size)
        self._idle: deque[tuple[float, Connection]] = deque()

    async def read(self, query: Query, **values: Any) -> list[Record]:
        return await self._run_patiently(query.text, query.bind(**values), writes=False)

    async def write(self, query: Query, *arguments: Any, **values: Any) -> list[Record]:
        """Run a statement that writes; repeat it after a deadlock.

        Statements with many parameters take `arguments`, in the order in which the query numbers
        them, instead of values by name.
        """
        bound = arguments or query.bind(**values)
        for _ in range(MAX_DEADLOCK_TRIES - 1):
            try:
                return await self._run_patiently(query.text, bound, writes=True)
            except StoreUnavailable as error:
                if not isinstance(error.__cause__, _DEADLOCK_ERRORS):
                    raise
        return await self._run_patiently(query.text, bound, writes=True)

    @asynccontextmanager
    async def open_write_transaction(self) -> AsyncIterator[Connection]:
        async with (
            self._borrow_connection() as connection,
            translate_driver_errors(writes=True),
            connection.transaction(),
        ):
            yield connection

    async def close(self) -> None:
        """Close idle connections. Connections in use are closed when they are returned."""
        self._settings = {}
        while self._idle:
            _, connection = self._idle.pop()
            try:
                await connection.close(timeout=1)
            except (*_CONNECTION_LOST, asyncpg.InterfaceError, TimeoutError):
                connection.terminate()

    async def _run_patiently(
        self, text: str, bound: tuple[Any, ...], *, writes: bool
    ) -> list[Record]:
        """Run a statement; repeat it while there is patience left and it was not executed."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._patience_s
        while True:
            try:
                return await self._run_once(text, bound, writes=writes)
            except StoreUnavailable as error:
                is_unreached = isinstance(error.__cause__, _UNREACHED)
                if not is_unreached or loop.time() >= deadline:
                    raise
            await asyncio.sleep(RECONNECT_DELAY_S)

    async def _run_once(self, text: str, bound: tuple[Any, ...], *, writes: bool) -> list[Record]:
        async with self._borrow_connection() as connection, translate_driver_errors(writes=writes):
            rows: list[Record] = await connection.fetch(text, *bound)
            return rows

    @asynccontextmanager
    async def _borrow_connection(self) -> AsyncIterator[Connection]:
        await self._wait_for_permit()
        try:
            connection = await self._take_connection()
            try:
                yield connection
            except _STATEMENT_REFUSED:
                self._return_connection(connection)
                raise
            except BaseException:
                # cancelled or broken in the middle: the state of the connection is unknown
                connection.terminate()
                raise
            self._return_connection(connection)
        finally:
            self._permits.release()

    async def _wait_for_permit(self) -> None:
        if not self._permits.locked():
            await self._permits.acquire()
            return
        try:
            async with asyncio.timeout(ACQUIRE_TIMEOUT_S):
                await self._permits.acquire()
        except TimeoutError as error:
            raise StoreUnavailable(
                "every connection is busy", hint="raise NOETL_POSTGRES_POOL_MAX_SIZE"
            ) from error

    async def _take_connection(self) -> Connection:
        while self._idle:
            _, connection = self._idle.pop()
            if not connection.is_closed():
                return connection
        return await connect(self._dsn, self._settings)

    def _return_connection(self, connection: Connection) -> None:
        now = asyncio.get_running_loop().time()
        pool_is_closed = not self._settings
        if connection.is_closed() or connection.is_in_transaction() or pool_is_closed:
            connection.terminate()
        else:
            self._idle.append((now, connection))
        if len(self._idle) > 1 and now - self._idle[0][0] > MAX_IDLE_S:
            _, coldest = self._idle.popleft()
            coldest.terminate()


class CallBatcher(Generic[Given, Got]):
    """Batches calls of one kind: calls that arrive while a statement runs share the next one.

    `limit` bounds the weight of one statement. If a shared statement fails, each call is tried
    alone, so that one bad call does not fail the others.
    """

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
                batch = self._take_batch()
                if not batch:
                    continue
                try:
                    await self._answer_batch(batch)
                except Exception as error:
                    self._fail_batch(batch, error)
                except BaseException:
                    self._fail_batch(batch, OutcomeUnknown("interrupted"))
                    raise
        finally:
            self._task = None
            for _, _, answer in self._waiting:
                answer.cancel()
            self._waiting.clear()

    def _fail_batch(
        self, batch: list[tuple[Given, "asyncio.Future[Got]"]], error: Exception
    ) -> None:
        for _, answer in batch:
            if not answer.done():
                answer.set_exception(error)

    def _take_batch(self) -> list[tuple[Given, "asyncio.Future[Got]"]]:
        room = self._limit
        batch: list[tuple[Given, asyncio.Future[Got]]] = []
        while self._waiting and (not batch or self._waiting[0][1] <= room):
            given, weight, answer = self._waiting.popleft()
            room -= weight
            if not answer.done():  # a cancelled caller no longer waits
                batch.append((given, answer))
        return batch

    async def _answer_batch(self, batch: list[tuple[Given, "asyncio.Future[Got]"]]) -> None:
        try:
            results = await self._run([given for given, _ in batch])
        except Unavailable:
            raise
        except Exception:
            if len(batch) < 2:
                raise
            await self._answer_one_by_one(batch)
            return
        for (_, answer), result in zip(batch, results, strict=True):
            if not answer.done():
                answer.set_result(result)

    async def _answer_one_by_one(self, batch: list[tuple[Given, "asyncio.Future[Got]"]]) -> None:
        for call in batch:
            try:
                await self._answer_batch([call])
            except Unavailable:
                raise
            except Exception as error:
                self._fail_batch([call], error)


class Database:
    """Two pools, so that neither starves the other: `main` for callers, `background` for duties."""

    def __init__(
        self,
        dsn: str,
        *,
        main_size: int = 32,
        background_size: int = 4,
        settings: Mapping[str, str] | None = None,
        patience_s: float = 0.0,
    ) -> None:
        self.dsn = dsn
        self.settings = {**SESSION_SETTINGS, **(settings or {})}
        self.main = ConnectionPool(dsn, main_size, self.settings, patience_s)
        self.background = ConnectionPool(dsn, background_size, self.settings)

    async def __aenter__(self) -> Self:
        """Raises StoreUnavailable if the database cannot be reached. Later losses show per call."""
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
        """Refuse a database that may lose acknowledged commits: the log promises durability."""
        rows = await self.main.read(
            Query("durability", "select current_setting('synchronous_commit') as commit")
        )
        synchronous_commit = rows[0]["commit"]
        if synchronous_commit not in ("on", "remote_apply"):
            raise NoetlError(
                f"synchronous_commit is {synchronous_commit}",
                hint="the log needs `on`: remove what overrides it",
            )
