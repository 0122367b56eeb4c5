"""The contract of projections: the rows of executions that people read."""

from typing import Protocol

from msgspec import Struct

from noetl.model.ids import ExecutionId, Micros, Tenant


class Projection(Struct, frozen=True, kw_only=True):
    """The row of an execution that people read. The shard's owner writes it, never ahead of the
    log.
    """

    execution_id: ExecutionId
    shard: int
    tenant: Tenant
    path: str
    status: str
    last_seq: int
    started_at: Micros
    updated_at: Micros
    ended_at: Micros | None = None
    parent: ExecutionId | None = None
    retry_of: ExecutionId | None = None
    error: str | None = None
    steps: int = 0
    recovered: int = 0  # failures that were handled
    state: bytes | None = None
    state_hash: str | None = None


class ExecutionFilter(Struct, frozen=True, kw_only=True):
    """Which executions a list shows. None matches any."""

    status: str | None = None
    path: str | None = None  # `*` matches any text: `etl/*`
    parent: ExecutionId | None = None
    since: Micros | None = None  # started then or later
    roots: bool = False  # only executions that no other execution started


def has_wildcard(path: str | None) -> bool:
    return path is not None and "*" in path


class ShardRows(Struct, frozen=True):
    """Projections of one shard after the event `checkpoint`, written under `epoch`."""

    shard: int
    epoch: int
    checkpoint: int
    rows: tuple[Projection, ...]


class Projections(Protocol):
    async def write_projections(self, batch: list[ShardRows]) -> list[bool]:
        """Write projections. False for a shard that has another epoch by now."""
        ...

    async def read_projection(self, execution_id: ExecutionId) -> Projection | None: ...

    async def list_executions(
        self, tenant: Tenant, wanted: ExecutionFilter, before: ExecutionId | None, limit: int
    ) -> list[Projection]:
        """Projections older than `before`, newest first, without `state`."""
        ...

    async def count_children(self, parent: ExecutionId) -> dict[str, int]:
        """The number of children by status."""
        ...

    async def read_checkpoint(self, shard: int) -> int: ...
