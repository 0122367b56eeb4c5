"""The contract of the inbox: what waits for the owner of a shard to be turned into events."""

from typing import Any, NamedTuple, Protocol

from msgspec import Struct

from noetl.model.ids import ExecutionId, Micros, Tenant, TimerId
from noetl.model.messages import Message, Report, Start


class InboxRow(Struct, frozen=True):
    inbox_id: int
    shard: int
    execution_id: ExecutionId
    message: Message


class DueTimer(NamedTuple):
    execution_id: ExecutionId
    timer: TimerId


class MessageState(Struct, frozen=True):
    """The state of a message key: `waiting` in the inbox, recorded in the log as `seq`, or neither."""

    waiting: bool = False
    seq: int | None = None


class Inbox(Protocol):
    """Anyone may post to it; only the owner of the shard consumes its rows, with an append."""

    async def read_messages(
        self, shards: list[int], limit: int, skip: frozenset[ExecutionId] = frozenset()
    ) -> list[InboxRow]:
        """Inbox rows, oldest first. Of the executions in `skip` (quarantined) only release requests."""
        ...

    async def read_due_timers(self, shards: list[int], limit: int) -> list[DueTimer]: ...

    async def find_next_timer(self, shards: list[int]) -> Micros | None:
        """When the next timer of these shards is due, by the store's clock."""
        ...

    async def start_execution(self, start: Start, workload: dict[str, Any]) -> ExecutionId:
        """Start an execution. A known start key returns the id of the earlier execution."""
        ...

    async def find_started(self, tenant: Tenant, start_key: str) -> ExecutionId | None:
        """The execution that this start key has started, if it has started one."""
        ...

    async def post_message(self, execution_id: ExecutionId, message: Message) -> bool:
        """Put a message into the inbox. False if its key was there already."""
        ...

    async def accept_report(self, tenant: Tenant, report: Report) -> bool:
        """Accept a report at a server that does not own the shard. False if the report is stale,
        or of an execution of another tenant.

        The command's row and the inbox row are written in one transaction.
        """
        ...

    async def find_message(self, execution_id: ExecutionId, key: str) -> MessageState: ...
