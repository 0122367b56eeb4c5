"""The client of the commands: a server over HTTP if one is given, else the home of this machine.

Both implementations answer with the rows of the HTTP API.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal, Protocol

from msgspec import Struct, to_builtins

from noetl.log.events.port import RecordedEvent
from noetl.model.errors import NotFound
from noetl.model.ids import ExecutionId
from noetl.model.reference import Reference
from noetl.runtime import LocalNeed
from noetl.settings import HomeSettings, read_settings

ExecutionChange = Literal["cancel", "pause", "resume", "release"]  # of an execution
RepeatKind = Literal["retry", "rerun"]
ScheduleChange = Literal["pause", "resume"]  # changes of a schedule
PinChange = Literal["pin", "unpin"]
Row = dict[str, Any]  # a JSON object of the API
RowSpan = tuple[int, int | None]  # rows [first, last)
LATEST = "@latest"
MAX_TRACE_NODES = 1_000


def to_row(view: Struct) -> Row:
    """The struct of an answer as the JSON object that the HTTP API has for it."""
    row: Row = to_builtins(view)
    return row


def to_rows(views: Sequence[Struct]) -> list[Row]:
    return [to_row(view) for view in views]


class Client(Protocol):
    """The operations of the HTTP API that commands use."""

    has_server: bool  # another process keeps executions running after this command has ended

    async def register(self, text: str, path: str | None = None) -> Row: ...
    async def list_playbooks(self, prefix: str = "") -> list[Row]: ...
    async def get_playbook(self, path: str, version: int | None = None) -> Row: ...
    async def diff_versions(self, path: str, older: int, newer: int | None = None) -> Row: ...

    async def add_credential(self, name: str, kind: str, data: dict[str, Any]) -> Row: ...
    async def list_credentials(self) -> list[Row]: ...
    async def delete_credential(self, name: str) -> Row: ...

    async def add_schedule(self, **wanted: Any) -> Row: ...
    async def list_schedules(self) -> list[Row]: ...
    async def get_schedule(self, name: str) -> Row: ...
    async def change_schedule(self, name: str, how: ScheduleChange) -> Row: ...
    async def delete_schedule(self, name: str) -> Row: ...
    async def list_next_slots(self, name: str, count: int) -> Row: ...

    async def add_hook(self, **call: Any) -> Row: ...
    async def list_hooks(self) -> list[Row]: ...
    async def delete_hook(self, name: str) -> Row: ...

    async def list_state_values(
        self, path: str | None
    ) -> list[Row]: ...  # of one playbook, or of all
    async def get_state_value(self, path: str, name: str) -> Row: ...
    async def set_state(self, path: str, name: str, value: Any, expected: int | None) -> Row: ...
    async def unset_state(self, path: str, name: str, expected: int | None) -> Row: ...
    async def list_state_history(self, path: str, name: str) -> list[Row]: ...  # newest first

    async def start(
        self, path: str, version: int | None, payload: dict[str, Any]
    ) -> ExecutionId: ...
    async def repeat_execution(
        self, execution_id: ExecutionId, how: RepeatKind, **wish: Any
    ) -> ExecutionId:
        """Start a retry or rerun. `wish`: version, from_step (of a rerun) and payload."""
        ...

    async def preview_repeat(
        self, execution_id: ExecutionId, how: RepeatKind, **wish: Any
    ) -> Row: ...
    async def change_execution(self, execution_id: ExecutionId, how: ExecutionChange) -> Row: ...
    async def send_signal(self, execution_id: ExecutionId, name: str, payload: Any) -> Row: ...

    async def list_executions(
        self, *, before: str | None = None, limit: int = 50, **filters: Any
    ) -> list[Row]:
        """Executions, newest first. Filters of the API: status, path, parent, since, roots."""
        ...

    async def get_execution(self, execution_id: ExecutionId, min_seq: int | None = None) -> Row: ...
    async def get_workload(self, execution_id: ExecutionId) -> Row: ...
    async def get_cause(self, execution_id: ExecutionId, min_seq: int) -> Row | None:
        """The first failure that caused an execution to fail. `min_seq`: number of its last event."""
        ...

    async def explain_step(self, execution_id: ExecutionId, step: str) -> Row: ...
    async def list_events(
        self, execution_id: ExecutionId, after: int = 0
    ) -> list[RecordedEvent]: ...
    async def wait_for_events(self, execution_id: ExecutionId, after: int) -> list[RecordedEvent]:
        """The events after number `after`. Waits a moment if there are none."""
        ...

    def stream_logs(
        self, execution_id: ExecutionId, step: str | None = None, *, follow: bool = False
    ) -> AsyncGenerator[list[Row], None]:
        """The lines that steps printed, in order of arrival. `follow`: until the execution ends."""
        ...

    async def resolve(self, reference: Reference) -> Any: ...
    async def preview_result(self, execution_id: ExecutionId, step: str, rows: int) -> Row: ...
    def download_result(
        self,
        execution_id: ExecutionId,
        step: str,
        format: str | None,
        rows: RowSpan = (0, None),
    ) -> AsyncGenerator[bytes, None]:
        """The bytes of a result. Without a format they are those of the store."""
        ...

    async def trace_result(self, execution_id: ExecutionId, step: str, depth: int) -> Row:
        """The lineage of a result. `next` is set if the limit of nodes has cut it."""
        ...

    async def change_pin(self, execution_id: ExecutionId, step: str, how: PinChange) -> Row: ...
    async def get_execution_usage(self, execution_id: ExecutionId) -> Row: ...
    async def list_usage(self, path: str | None, before: str | None, limit: int) -> Row: ...

    async def list_queue(
        self, status: str | None = None, execution_id: ExecutionId | None = None
    ) -> list[Row]: ...
    async def list_workers(self) -> list[Row]: ...
    async def check_history_readable(self) -> str:
        """Returns "ok", or the reason why compacted history cannot be read."""
        ...

    async def read_projection_lag(self) -> dict[int, float]:
        """Milliseconds that projections are behind, by shard, without shards that are up to date."""
        ...


@asynccontextmanager
async def open_client(
    need: LocalNeed = "read", pools: tuple[str, ...] = ()
) -> AsyncIterator[Client]:
    """Connect to the server, or open the home of this machine.

    A worker that runs in this process also serves `pools`.
    """
    place = read_settings(HomeSettings)
    if place.server_urls:
        from noetl.cli.remote import RemoteClient

        async with RemoteClient(place.server_urls[0], place.home_path) as remote:
            yield remote
        return
    from noetl.cli.embedded import open_local_client

    async with open_local_client(place.home_path, need, pools) as client:
        yield client


ClientWork = Callable[[Client], Awaitable[Any]]


def run_with_client(work: ClientWork, need: LocalNeed = "read") -> Any:
    """Connect a client, run `work` with it, and return its result."""

    async def run_work() -> Any:
        async with open_client(need) as client:
            return await work(client)

    return asyncio.run(run_work())


async def join_trace_pages(read_page: Callable[[str | None], Awaitable[Row]]) -> Row:
    """The pages of a lineage graph as one graph, up to a limit of nodes."""
    graph = await read_page(None)
    while graph["next"] is not None and len(graph["nodes"]) < MAX_TRACE_NODES:
        more = await read_page(graph["next"])
        graph["nodes"] += more["nodes"]
        graph["edges"] += more["edges"]
        graph["next"] = more["next"]
    return graph


async def find_execution_id(client: Client, text: str) -> ExecutionId:
    """The id of the execution that the user names: a number, or `@latest`.

    `@latest` is the newest execution that is not a child.
    """
    if text == LATEST:
        for row in await client.list_executions(roots=True, limit=1):
            return ExecutionId(row["execution_id"])
        raise NotFound("there is no execution yet", hint="noetl run FILE starts one")
    if not (text.isascii() and text.isdigit()):
        raise NotFound(
            f"{text!r} is not an execution id",
            hint="a number, or @latest; noetl exec list shows them",
        )
    return ExecutionId(text)
