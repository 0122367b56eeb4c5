"""The contract of snapshots: folds of executions as of some of their events.

A snapshot follows from the log, so losing all of them changes only latency. Any process may write one.
Snapshots stay when the events of their execution are moved to a file: the file is then read from the
last snapshot on. Those of executions that ended long ago are deleted; somebody who looks at such an
execution writes them again.
"""

from typing import Protocol

from msgspec import Struct

from noetl.model.ids import ExecutionId, Micros


class Snapshot(Struct, frozen=True, kw_only=True):
    """The fold of an execution up to the event `seq`, which is its `events`th.

    `shape` names the structs of `state` and `bands`; `at` is the time of the event.
    """

    execution_id: ExecutionId
    seq: int
    events: int
    at: Micros
    shape: str
    state: bytes
    bands: bytes


class SnapshotPosition(Struct, frozen=True):
    """Where a snapshot stands, without its contents."""

    seq: int
    events: int
    at: Micros


class SnapshotStore(Protocol):
    async def put_snapshots(self, snapshots: list[Snapshot]) -> None:
        """Store snapshots. One that is there already stays, unless it has another shape."""
        ...

    async def read_snapshot(
        self, execution_id: ExecutionId, shape: str, seq: int
    ) -> Snapshot | None:
        """The last snapshot of this shape at or before the event `seq`."""
        ...

    async def find_positions(
        self, execution_id: ExecutionId, shape: str, seqs: list[int]
    ) -> list[SnapshotPosition | None]:
        """For each of these events: where the last snapshot of this shape at or before it stands."""
        ...

    async def find_position_by_number(
        self, execution_id: ExecutionId, shape: str, number: int
    ) -> SnapshotPosition | None:
        """Where the last snapshot of this shape at or before the `number`th event stands."""
        ...

    async def find_position_by_time(
        self, execution_id: ExecutionId, shape: str, before: Micros
    ) -> SnapshotPosition | None:
        """Where the last snapshot of this shape before this moment stands."""
        ...

    async def delete_old_snapshots(self, age: Micros, limit: int) -> int:
        """Delete up to `limit` snapshots that were written so long ago, of executions that ended so
        long ago. Returns how many."""
        ...
