"""The client for asyncio."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import msgspec

from noetl.backoff import Backoff
from noetl.client.errors import WaitTimeout
from noetl.client.opening import open_row_client
from noetl.client.rows import ExecutionChange, RepeatKind, Row, RowClient
from noetl.client.types import (
    QUARANTINED,
    EventInfo,
    ExecutionInfo,
    ExecutionReport,
    LogLine,
    PlaybookInfo,
    RegistrationInfo,
)
from noetl.log.events.port import RecordedEvent
from noetl.model.errors import InvalidInput
from noetl.model.events import Terminal
from noetl.model.ids import ExecutionId
from noetl.runtime import LocalNeed
from noetl.settings import HomeSettings, read_settings

if TYPE_CHECKING:
    import pyarrow

# Seconds between two looks at an execution that is waited for: the first, the longest, the growth.
MIN_STATUS_POLL_S = 0.01
MAX_STATUS_POLL_S = 0.5
STATUS_POLL_GROWTH = 1.5
STATUS_WAIT_S = 10  # seconds that a server may keep a question open


class AsyncClient:
    """A client of a server, or of the database of this machine.

    With `server_url`, it calls that server. With `home`, it opens the database below that folder
    and runs a server and a worker in this process while it is open; `pools` are further pools that
    this worker serves. Without both, it does as the command does: NOETL_SERVER_URL, else
    NOETL_HOME. `need` says what is done in this process: `read` and `change` start no worker.
    `token` is sent to the server; without it, NOETL_TOKEN, else that of NOETL_HOME to its servers.
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
        if server_url is not None and home is not None:
            raise InvalidInput(
                "a client has a server or a home, not both",
                hint="server_url=… calls a server, home=… works in this process",
            )
        place = read_settings(HomeSettings)
        self._home = place.home_path if home is None else Path(home).expanduser().absolute()
        if server_url is None and home is None and place.server_urls:
            server_url = place.server_urls[0]
        self._server_url = server_url and server_url.rstrip("/")
        self._pools = pools
        self._need = need
        self._token = token
        self._open = AsyncExitStack()
        self._rows: RowClient | None = None

    async def __aenter__(self) -> Self:
        opening = open_row_client(
            self._server_url, self._home, self._need, self._pools, self._token
        )
        self._rows = await self._open.enter_async_context(opening)
        return self

    async def __aexit__(self, *failure: object) -> None:
        self._rows = None
        await self._open.aclose()

    @property
    def rows(self) -> RowClient:
        """All operations of the HTTP API, with JSON objects as answers: schedules, hooks,
        credentials, state, the queue."""
        if self._rows is None:
            raise InvalidInput(
                "this client is not open", hint="async with AsyncClient(…) as client: …"
            )
        return self._rows

    # -- playbooks --

    async def register(self, playbook: str | Path, path: str | None = None) -> RegistrationInfo:
        """Check and store a playbook: its text, or the path of its file.

        Raises `InvalidInput` with the findings if the playbook is not valid.
        """
        text = playbook
        if isinstance(playbook, Path):
            text = await asyncio.to_thread(playbook.read_text, encoding="utf-8")
        row = await self.rows.register(str(text), path)
        return msgspec.convert(row, RegistrationInfo)

    async def list_playbooks(self, prefix: str = "") -> list[PlaybookInfo]:
        """The latest version of every playbook with a path that begins with `prefix`."""
        return msgspec.convert(await self.rows.list_playbooks(prefix), list[PlaybookInfo])

    async def get_playbook(self, path: str, version: int | None = None) -> PlaybookInfo:
        """The latest version, or the one that is named, with its text."""
        return msgspec.convert(await self.rows.get_playbook(path, version), PlaybookInfo)

    # -- executions --

    async def start(
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
        return await self.rows.start(path, version, workload or {}, key)

    async def wait(self, execution_id: str, timeout: float | None = None) -> ExecutionReport:
        """Wait until an execution has ended, however it ends, or stands in quarantine.

        Raises `WaitTimeout` after `timeout` seconds; the execution goes on.
        """
        id_ = ExecutionId(execution_id)
        try:
            async with asyncio.timeout(timeout):
                last_seq = await self._wait_for_end(id_)
        except TimeoutError as error:
            raise WaitTimeout(
                f"execution {execution_id} has not ended within {timeout:g} s",
                hint="wait again, or cancel it",
                execution_id=execution_id,
            ) from error
        return msgspec.convert(await self.rows.get_execution(id_, last_seq), ExecutionReport)

    async def _wait_for_end(self, execution_id: ExecutionId) -> int:
        """Returns the number of the last event. Status is asked for: events may be millions."""
        poll_backoff = Backoff(MIN_STATUS_POLL_S, MAX_STATUS_POLL_S, STATUS_POLL_GROWTH)
        while True:
            status = await self.rows.get_status(execution_id, wait=STATUS_WAIT_S)
            if _stands_still(status):
                last_seq: int = status["last_seq"]
                return last_seq
            await asyncio.sleep(poll_backoff.delay)
            poll_backoff.count_failure()

    async def run(
        self,
        path: str,
        workload: dict[str, Any] | None = None,
        *,
        version: int | None = None,
        timeout: float | None = None,
    ) -> ExecutionReport:
        """Start an execution and wait for its end. Raises `ExecutionFailed` unless it completes."""
        execution_id = await self.start(path, workload, version=version)
        report = await self.wait(execution_id, timeout)
        report.raise_if_failed()
        return report

    async def list_executions(
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
        given = {"status": status, "path": path, "parent": parent, "since": since}
        filters = {name: value for name, value in given.items() if value is not None}
        rows = await self.rows.list_executions(before=before, limit=limit, **filters)
        return msgspec.convert(rows, list[ExecutionInfo])

    async def get_execution(self, execution_id: str) -> ExecutionReport:
        row = await self.rows.get_execution(ExecutionId(execution_id))
        return msgspec.convert(row, ExecutionReport)

    async def cancel(self, execution_id: str) -> None:
        """Raises `Conflict` if it has ended."""
        await self._change(execution_id, "cancel")

    async def pause(self, execution_id: str) -> None:
        await self._change(execution_id, "pause")

    async def resume(self, execution_id: str) -> None:
        await self._change(execution_id, "resume")

    async def _change(self, execution_id: str, how: ExecutionChange) -> None:
        await self.rows.change_execution(ExecutionId(execution_id), how)

    async def retry(self, execution_id: str) -> str:
        """Start an execution that takes over what an ended one finished, and runs the rest."""
        return await self._repeat(execution_id, "retry")

    async def rerun(self, execution_id: str, from_step: str | None = None) -> str:
        """Run the same playbook and workload again, from the beginning or from a step."""
        wish = {} if from_step is None else {"from_step": from_step}
        return await self._repeat(execution_id, "rerun", **wish)

    async def _repeat(self, execution_id: str, how: RepeatKind, **wish: Any) -> str:
        return await self.rows.repeat_execution(ExecutionId(execution_id), how, **wish)

    async def send_signal(self, execution_id: str, name: str, payload: Any = None) -> None:
        """Send a signal of at most 8 KB. It is kept until a `wait` of this name consumes it."""
        await self.rows.send_signal(ExecutionId(execution_id), name, payload)

    # -- events and logs --

    async def list_events(self, execution_id: str, after: int = 0) -> list[EventInfo]:
        """The events after number `after`: a page of them, empty if there are none yet."""
        page = await self.rows.list_events(ExecutionId(execution_id), after)
        return [_describe_event(recorded) for recorded in page]

    async def stream_events(
        self, execution_id: str, after: int = 0
    ) -> AsyncGenerator[EventInfo, None]:
        """The events after number `after`, as they are recorded, until the execution has ended."""
        id_ = ExecutionId(execution_id)
        await self.rows.get_status(id_)  # raises NotFound
        while True:
            page = await self.rows.wait_for_events(id_, after)
            for recorded in page:
                after = recorded.seq
                yield _describe_event(recorded)
                if isinstance(recorded.event, Terminal):
                    return
            if not page and await self._is_over(id_, after):
                return

    async def _is_over(self, execution_id: ExecutionId, after: int) -> bool:
        """Whether nothing follows the event number `after` by itself."""
        status = await self.rows.get_status(execution_id)
        return _stands_still(status) and status["last_seq"] <= after

    async def stream_logs(
        self, execution_id: str, step: str | None = None, *, follow: bool = False
    ) -> AsyncGenerator[LogLine, None]:
        """The lines that steps have printed. `follow`: until the execution has ended."""
        pages = self.rows.stream_logs(ExecutionId(execution_id), step, follow=follow)
        async with aclosing(pages):
            async for page in pages:
                for line in msgspec.convert(page, list[LogLine]):
                    yield line

    # -- results --

    async def read_result(self, execution_id: str, step: str) -> Any:
        """The value of a step's result. Rows are a list of dicts.

        Raises `NotFound` if the step has left none, and `Expired` if it was deleted.
        """
        return msgspec.json.decode(await self._download(execution_id, step, "json"))

    async def read_arrow(self, execution_id: str, step: str) -> "pyarrow.Table":
        """The rows of a step's result, with their types. Raises `InvalidInput` if it has no rows."""
        from noetl.client import arrow  # only callers that ask for rows need the library

        result = await self.rows.preview_result(ExecutionId(execution_id), step, 1)
        reference = result["reference"] or {}
        is_arrow = reference.get("format") == "arrow"  # stored so: downloaded as it is
        data = await self._download(execution_id, step, None if is_arrow else "parquet")
        read_table = arrow.read_stream if is_arrow else arrow.read_parquet
        return await asyncio.to_thread(read_table, data)

    async def save_result(
        self, execution_id: str, step: str, file: Path | str, format: str | None = None
    ) -> None:
        """Write a step's result to a file: parquet, csv, json or jsonl; without a format, as stored."""
        pages = self.rows.download_result(ExecutionId(execution_id), step, format)
        with await asyncio.to_thread(Path(file).open, "wb") as out:
            async with aclosing(pages):
                async for part in pages:
                    await asyncio.to_thread(out.write, part)

    async def _download(self, execution_id: str, step: str, format: str | None) -> bytes:
        pages = self.rows.download_result(ExecutionId(execution_id), step, format)
        async with aclosing(pages):
            parts = [part async for part in pages]
        return b"".join(parts)


def _stands_still(status: Row) -> bool:
    """Whether the execution has ended, or stands in quarantine until a person releases it."""
    return bool(status["ended"]) or status["status"] == QUARANTINED


def _describe_event(recorded: RecordedEvent) -> EventInfo:
    event = recorded.event
    return EventInfo(
        seq=recorded.seq,
        type=event.type,
        at=datetime.fromtimestamp(event.at / 1e6, UTC),
        data=msgspec.to_builtins(event),
    )
