"""The operations of a client. Their answers are rows: JSON objects, as the HTTP API has them.

`http` and `local` have the two implementations. This module loads neither.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Literal, Protocol

from noetl.log.events.port import RecordedEvent
from noetl.model.ids import ExecutionId
from noetl.model.reference import Reference

ExecutionChange = Literal["cancel", "pause", "resume", "release"]  # of an execution
RepeatKind = Literal["retry", "rerun"]
ScheduleChange = Literal["pause", "resume"]  # changes of a schedule
UserAbility = Literal["disable", "enable"]  # to sign in
PinChange = Literal["pin", "unpin"]
Row = dict[str, Any]  # a JSON object of the API
RowSpan = tuple[int, int | None]  # rows [first, last)
MAX_TRACE_NODES = 1_000


async def collect_list_pages(
    read_page: Callable[[str | None, int], Awaitable[tuple[list[Row], str | None]]],
    before: str | None,
    limit: int,
) -> list[Row]:
    """Read pages of a list until there are `limit` rows: a page looks at a bounded number of them.

    `read_page` gets the start of a page and how many rows are missing. It returns the rows and the
    start of the next page.
    """
    rows: list[Row] = []
    while len(rows) < limit:
        page, before = await read_page(before, limit - len(rows))
        rows += page
        if before is None:
            break
    return rows


class RowClient(Protocol):
    """The operations of the HTTP API."""

    has_server: bool  # another process keeps executions running after this one has ended

    async def register(self, text: str, path: str | None = None) -> Row: ...
    async def list_playbooks(self, prefix: str = "") -> list[Row]: ...
    async def get_playbook(self, path: str, version: int | None = None) -> Row: ...
    async def diff_versions(
        self,
        path: str,
        older: int,
        newer: int | None = None,
    ) -> Row: ...

    async def add_credential(
        self,
        name: str,
        kind: str,
        data: dict[str, Any],
    ) -> Row: ...
    async def list_credentials(self) -> list[Row]: ...
    async def rewrap_credentials(self) -> Row: ...
    async def delete_credential(self, name: str) -> Row: ...

    async def create_token(self, **wanted: Any) -> Row: ...
    async def list_tokens(self, tenant: str | None = None) -> list[Row]: ...
    async def revoke_token(self, token_id: str, tenant: str | None = None) -> Row: ...

    async def create_tenant(self, name: str) -> Row: ...
    async def list_tenants(self) -> list[Row]: ...
    async def get_tenant(self, name: str) -> Row: ...
    async def set_tenant_quotas(self, name: str, quotas: Row) -> Row: ...

    async def create_user(self, **wanted: Any) -> Row: ...
    async def list_users(self) -> list[Row]: ...
    async def change_user(self, user: str, how: UserAbility) -> Row: ...
    async def set_user_password(self, user: str, password: str) -> Row: ...
    async def set_user_roles(self, user: str, roles: list[str]) -> Row: ...

    async def list_audit(self, *, before: int | None, limit: int, **wanted: Any) -> list[Row]: ...
    async def read_audit_chain(self, after: int) -> Row: ...

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
    async def set_state(
        self,
        path: str,
        name: str,
        value: Any,
        expected: int | None,
    ) -> Row: ...
    async def unset_state(
        self,
        path: str,
        name: str,
        expected: int | None,
    ) -> Row: ...
    async def list_state_history(self, path: str, name: str) -> list[Row]: ...  # newest first

    async def start(
        self,
        path: str,
        version: int | None,
        payload: dict[str, Any],
        key: str | None = None,
    ) -> ExecutionId:
        """Start an execution. A known `key` returns the execution that it started before."""
        ...

    async def repeat_execution(
        self, execution_id: ExecutionId, how: RepeatKind, **wish: Any
    ) -> ExecutionId:
        """Start a retry or rerun. `wish`: version, payload, from_step of a rerun; steps and items,
        by step, of a retry."""
        ...

    async def preview_repeat(
        self, execution_id: ExecutionId, how: RepeatKind, **wish: Any
    ) -> Row: ...
    async def change_execution(self, execution_id: ExecutionId, how: ExecutionChange) -> Row: ...
    async def send_signal(self, execution_id: ExecutionId, name: str, payload: Any) -> Row: ...

    async def list_executions(
        self, *, before: str | None = None, limit: int = 50, **filters: Any
    ) -> list[Row]:
        """Executions, newest first. Filters of the API: status, path, parent, since, until, q, waiting,
        roots."""
        ...

    async def get_execution(self, execution_id: ExecutionId, min_seq: int | None = None) -> Row: ...
    async def get_status(self, execution_id: ExecutionId, wait: int = 0) -> Row:
        """Status, `ended` and `last_seq`. Raises the error of a server that has failed here.

        With `wait`, the answer may come when the execution has ended, at most so many seconds later.
        """
        ...

    async def get_workload(self, execution_id: ExecutionId) -> Row: ...
    async def get_cause(self, execution_id: ExecutionId, min_seq: int) -> Row | None:
        """The first failure that caused an execution to fail. `min_seq`: number of its last event."""
        ...

    async def list_items(self, execution_id: ExecutionId, step: str, **wanted: Any) -> Row:
        """A page of the items of a loop. `wanted`: run, status, kind, after, limit and q."""
        ...

    async def explain_step(
        self, execution_id: ExecutionId, step: str, at: int | None = None, run: int | None = None
    ) -> Row:
        """Why a step ran, did not run, or waits: now, as of an event, or as of one of its runs."""
        ...

    async def get_page(self, execution_id: ExecutionId, at: int | None = None) -> Row:
        """The execution as its page shows it: now, or as of an event."""
        ...

    async def find_event(self, execution_id: ExecutionId, number: int) -> int:
        """The `seq` of the event with this number within its execution. The first one has number 1."""
        ...

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
    async def list_usage(
        self,
        path: str | None,
        before: str | None,
        limit: int,
    ) -> Row: ...

    async def list_queue(
        self, status: str | None = None, execution_id: ExecutionId | None = None
    ) -> list[Row]: ...
    async def list_workers(self) -> list[Row]: ...
    async def has_running_server(self) -> bool:
        """Whether a process keeps executions running. On a home, a command such as `noetl run` may
        be that process."""
        ...

    async def check_history_readable(self) -> str:
        """Returns "ok", or the reason why compacted history cannot be read."""
        ...

    async def read_projection_lag(self) -> dict[int, float]:
        """Milliseconds that projections are behind, by shard, without shards that are up to date."""
        ...


async def join_trace_pages(read_page: Callable[[str | None], Awaitable[Row]]) -> Row:
    """The pages of a lineage graph as one graph, up to a limit of nodes."""
    graph = await read_page(None)
    while graph["next"] is not None and len(graph["nodes"]) < MAX_TRACE_NODES:
        more = await read_page(graph["next"])
        graph["roots"] += more["roots"]
        graph["nodes"] += more["nodes"]
        graph["edges"] += more["edges"]
        graph["next"] = more["next"]
    return graph
