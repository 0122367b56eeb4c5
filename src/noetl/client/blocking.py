"""The client for programs without asyncio. It runs the other one in a thread of its own."""

import asyncio
import weakref
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from concurrent.futures import Future
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, Self, TypeVar

from noetl.client.async_client import AsyncClient
from noetl.client.rows import RowClient
from noetl.client.types import (
    EventInfo,
    ExecutionInfo,
    ExecutionReport,
    LogLine,
    PlaybookInfo,
    RegistrationInfo,
)
from noetl.runtime import LocalNeed

if TYPE_CHECKING:
    import pyarrow

T = TypeVar("T")


class Client:
    """A client of a server, or of the database of this machine.

    With `server_url`, it calls that server. With `home`, it opens the database below that folder
    and runs a server and a worker in this process while it is open; `pools` are further pools that
    this worker serves. Without both, it does as the command does: NOETL_SERVER_URL, else
    NOETL_HOME. `need` says what is done in this process: `read` and `change` start no worker.
    `token` is sent to the server; without it, NOETL_TOKEN, else that of NOETL_HOME to its servers.

    It opens at its first call, or with `with`. Any number of threads may share it.
    """

    def __init__(
        self,
        server_url: str | None = None,
        *,
        home: Path | str | None = None,
        pools: tuple[str, ...] = (),
        need: LocalNeed = "run",
        token: str | None = None,
    ) -> None:
        self._client = AsyncClient(server_url, home=home, pools=pools, need=need, token=token)
        self._thread: ClientThread | None = None

    def __enter__(self) -> Self:
        self._open()
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def close(self) -> None:
        """Close connections. In this process, the worker finishes what it runs, for some seconds."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.stop()

    def _open(self) -> "ClientThread":
        if self._thread is None:
            self._thread = ClientThread(self._client)
            weakref.finalize(self, self._thread.stop)
        return self._thread

    def _call(self, call: Callable[[AsyncClient], Coroutine[Any, Any, T]]) -> T:
        return self._open().run(call(self._client))

    def _iterate(self, call: Callable[[AsyncClient], AsyncGenerator[T, None]]) -> Iterator[T]:
        thread = self._open()
        values = call(self._client)
        try:
            while page := thread.run(_take_next(values)):
                yield from page
        finally:
            thread.run(_close(values))

    def call_rows(self, call: Callable[[RowClient], Coroutine[Any, Any, T]]) -> T:
        """Call an operation of the HTTP API that has no method here; its answer is a JSON object.

        `client.call_rows(lambda rows: rows.list_schedules())`
        """
        return self._call(lambda client: call(client.rows))

    # -- playbooks --

    def register(self, playbook: str | Path, path: str | None = None) -> RegistrationInfo:
        """Check and store a playbook: its text, or the path of its file.

        Raises `InvalidInput` with the findings if the playbook is not valid.
        """
        return self._call(lambda client: client.register(playbook, path))

    def list_playbooks(self, prefix: str = "") -> list[PlaybookInfo]:
        """The latest version of every playbook with a path that begins with `prefix`."""
        return self._call(lambda client: client.list_playbooks(prefix))

    def get_playbook(self, path: str, version: int | None = None) -> PlaybookInfo:
        """The latest version, or the one that is named, with its text."""
        return self._call(lambda client: client.get_playbook(path, version))

    # -- executions --

    def start(
        self,
        path: str,
        workload: dict[str, Any] | None = None,
        *,
        version: int | None = None,
        key: str | None = None,
    ) -> str:
        """Start an execution of a registered playbook. Returns its id.

        A repeated call with the same `key` returns the execution that the first call started.
        """
        return self._call(lambda client: client.start(path, workload, version=version, key=key))

    def wait(self, execution_id: str, timeout: float | None = None) -> ExecutionReport:
        """Wait until an execution has ended, however it ends, or stands in quarantine.

        Raises `WaitTimeout` after `timeout` seconds; the execution goes on.
        """
        return self._call(lambda client: client.wait(execution_id, timeout))

    def run(
        self,
        path: str,
        workload: dict[str, Any] | None = None,
        *,
        version: int | None = None,
        timeout: float | None = None,
    ) -> ExecutionReport:
        """Start an execution and wait for its end. Raises `ExecutionFailed` unless it completes."""
        return self._call(
            lambda client: client.run(path, workload, version=version, timeout=timeout)
        )

    def list_executions(
        self,
        *,
        status: str | None = None,
        path: str | None = None,
        parent: str | None = None,
        since: str | None = None,
        before: str | None = None,
        limit: int = 50,
    ) -> list[ExecutionInfo]:
        """Executions, newest first. `before`: the id of the last one of the page before."""
        return self._call(
            lambda client: client.list_executions(
                status=status,
                path=path,
                parent=parent,
                since=since,
                before=before,
                limit=limit,
            )
        )

    def get_execution(self, execution_id: str) -> ExecutionReport:
        return self._call(lambda client: client.get_execution(execution_id))

    def cancel(self, execution_id: str) -> None:
        """Raises `Conflict` if it has ended."""
        self._call(lambda client: client.cancel(execution_id))

    def pause(self, execution_id: str) -> None:
        self._call(lambda client: client.pause(execution_id))

    def resume(self, execution_id: str) -> None:
        self._call(lambda client: client.resume(execution_id))

    def retry(self, execution_id: str) -> str:
        """Start an execution that takes over what an ended one finished, and runs the rest."""
        return self._call(lambda client: client.retry(execution_id))

    def rerun(self, execution_id: str, from_step: str | None = None) -> str:
        """Run the same playbook and workload again, from the beginning or from a step."""
        return self._call(lambda client: client.rerun(execution_id, from_step))

    def send_signal(self, execution_id: str, name: str, payload: Any = None) -> None:
        """Send a signal of at most 8 KB. It is kept until a `wait` of this name consumes it."""
        self._call(lambda client: client.send_signal(execution_id, name, payload))

    # -- events and logs --

    def list_events(self, execution_id: str, after: int = 0) -> list[EventInfo]:
        """The events after number `after`: a page of them, empty if there are none yet."""
        return self._call(lambda client: client.list_events(execution_id, after))

    def stream_events(self, execution_id: str, after: int = 0) -> Iterator[EventInfo]:
        """The events after number `after`, as they are recorded, until the execution has ended."""
        return self._iterate(lambda client: client.stream_events(execution_id, after))

    def stream_logs(
        self, execution_id: str, step: str | None = None, *, follow: bool = False
    ) -> Iterator[LogLine]:
        """The lines that steps have printed. `follow`: until the execution has ended."""
        return self._iterate(lambda client: client.stream_logs(execution_id, step, follow=follow))

    # -- results --

    def read_result(self, execution_id: str, step: str) -> Any:
        """The value of a step's result. Rows are a list of dicts.

        Raises `NotFound` if the step has left none, and `Expired` if it was deleted.
        """
        return self._call(lambda client: client.read_result(execution_id, step))

    def read_arrow(self, execution_id: str, step: str) -> "pyarrow.Table":
        """The rows of a step's result, with their types. Raises `InvalidInput` if it has no rows."""
        return self._call(lambda client: client.read_arrow(execution_id, step))

    def save_result(
        self, execution_id: str, step: str, file: Path | str, format: str | None = None
    ) -> None:
        """Write a step's result to a file: parquet, csv, json or jsonl; without a format, as stored."""
        self._call(lambda client: client.save_result(execution_id, step, file, format))


class ClientThread:
    """The thread with the event loop of a client, from its opening to its end.

    One task opens and closes the client, because a server in this process runs between its calls.
    """

    def __init__(self, client: AsyncClient) -> None:
        self._opened: Future[None] = Future()
        self._stop = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        # A daemon: a program that never closes its client ends all the same.
        self._thread = Thread(
            target=self._run_loop, args=(client,), name="noetl-client", daemon=True
        )
        self._thread.start()
        try:
            self._opened.result()
        except BaseException:
            self._thread.join()
            raise

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the thread, and wait for its result."""
        assert self._loop is not None
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:  # Ctrl-C, perhaps: nobody waits for it any more
            future.cancel()
            raise

    def stop(self) -> None:
        """Close the client and end the thread. May be called again."""
        if self._loop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()

    def _run_loop(self, client: AsyncClient) -> None:
        try:
            asyncio.run(self._keep_open(client))
        except BaseException as error:
            if self._opened.done():
                raise
            self._opened.set_exception(error)

    async def _keep_open(self, client: AsyncClient) -> None:
        self._loop = asyncio.get_running_loop()
        async with client:
            self._opened.set_result(None)
            await self._stop.wait()


async def _take_next(values: AsyncGenerator[T, None]) -> list[T]:
    """A list of the next value; an empty one at the end."""
    async for value in values:
        return [value]
    return []


async def _close(values: AsyncGenerator[Any, None]) -> None:
    await values.aclose()
