"""The contract of usage: the figures of a tenant that quotas bound."""

from typing import Protocol

from msgspec import Struct

from noetl.model.ids import ExecutionId, Tenant

OPEN_STATUSES = ("pending", "running", "paused", "cancelling", "quarantined")
NO_BOUND = 1 << 62


class TenantUsage(Struct, frozen=True):
    """`unseen`: those of the given executions that have no row yet, which `running` counts too."""

    running: int = 0
    queued: int = 0
    bytes: int = 0
    unseen: tuple[ExecutionId, ...] = ()


class UsageMeter(Protocol):
    async def measure_usage(
        self,
        tenant: Tenant,
        started: list[ExecutionId],
        most_running: int = NO_BOUND,
        most_queued: int = NO_BOUND,
        *,
        sums_bytes: bool = True,
    ) -> TenantUsage:
        """The usage of a tenant now. Counting stops at `most_running` and `most_queued`.

        `started` are executions that a server has accepted, and that may have no row yet. Without
        `sums_bytes`, the bytes of a tenant that has no quota for them may be 0: to sum them up, all
        references are read.
        """
        ...
