"""The contract of the command queue. Claiming, renewing and losing leases change only its rows.

States of a command row:  queued ──claim / hand-off──► leased ──report──► done · dead · cancelled
                            ▲  ▲                         │ │
                            │  └── Requeue (attempt+1) ── │ └─ lease lost ─► lost ─┐ (LeaseLost in the inbox)
                            └───── Requeue ── parked ◄────┘                       └─ Requeue (attempt+1) or dead

The append that makes a command `done` deletes its row: the events say how it ended. Rows of dead
and cancelled commands stay for an hour.

If a server that does not own the shard accepts a report that ends a lease, the row is `reported`
until the owner has folded the report.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple, Protocol

from msgspec import Struct

from noetl.model.commands import Command
from noetl.model.exchange import LeaseKey
from noetl.model.ids import CommandId, ExecutionId, Micros, Tenant


class QueueEntry(Struct, frozen=True, kw_only=True):
    """A row of the queue as people see it, without the command's content.

    `number` is the order of issue. `progress` is how far the tool was at the last renewal of the
    lease.
    """

    number: int
    command_id: CommandId
    execution_id: ExecutionId
    step: str
    kind: str
    pool: str
    status: str
    attempt: int
    priority: int = 0
    available_at: Micros | None = None
    worker: str | None = None
    lease_until: Micros | None = None
    stopping: bool = False
    progress: str | None = None


class QueueDepth(Struct, frozen=True):
    pool: str
    status: str
    count: int


class CommandStatus(NamedTuple):
    status: str
    attempt: int


NO_PROGRESS: Mapping[LeaseKey, str] = MappingProxyType({})


class Renewal(Struct, frozen=True):
    """What a worker must stop: cancelled commands, and commands that it no longer holds."""

    stop: tuple[LeaseKey, ...] = ()
    lost: tuple[LeaseKey, ...] = ()


class CommandQueue(Protocol):
    async def claim_commands(
        self,
        tenant: Tenant,
        worker: str,
        pools: tuple[str, ...],
        limit: int,
        lease: Micros,
    ) -> list[Command]:
        """Lease commands of the tenant by priority, then in order of issue.

        A command that has lost SUSPECT_LOST_LEASES leases is suspect. A worker holds at most one suspect at a
        time. So a command that kills its workers is soon the only suspect there, and the commands
        that ran beside it are not blamed.
        """
        ...

    async def renew_leases(
        self,
        tenant: Tenant,
        worker: str,
        held: tuple[LeaseKey, ...],
        lease: Micros,
        progress: Mapping[LeaseKey, str] = NO_PROGRESS,
    ) -> Renewal:
        """Renew leases and store the progress of their tools."""
        ...

    async def list_leased_commands(self, tenant: Tenant, worker: str) -> list[Command]: ...

    async def expire_leases(self, limit: int) -> int:
        """End leases that ran out: the commands are lost or stopped, with the inbox row."""
        ...

    async def end_leases(self, worker: str, tenant: Tenant | None = None) -> int:
        """End all leases of a worker that is gone, as `expire_leases` does.

        Workers of two tenants may have the same name. Without a tenant, the process is known to be
        gone, and its name has a random part.
        """
        ...

    async def find_status(self, command_id: CommandId) -> CommandStatus | None: ...

    async def list_commands(
        self,
        tenant: Tenant,
        *,
        status: str | None = None,
        pool: str | None = None,
        execution_id: ExecutionId | None = None,
        after: int = 0,
        limit: int = 100,
    ) -> list[QueueEntry]:
        """Rows of the queue in order of issue, after the number `after`, without commands that are
        done.
        """
        ...

    async def find_commands(self, command_ids: list[CommandId]) -> list[QueueEntry]:
        """The rows of these commands, in order of issue. Those that are done have none."""
        ...

    async def count_commands(self, tenant: Tenant | None = None) -> list[QueueDepth]:
        """The number of unfinished commands by pool and status."""
        ...
