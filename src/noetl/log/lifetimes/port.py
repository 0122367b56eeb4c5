"""The contract of lifetimes: how long results stay, which are pinned, how much they take."""

from typing import NamedTuple, Protocol

from msgspec import Struct

from noetl.model.ids import ExecutionId, Micros, RefId
from noetl.model.reference import Lifetime


class StepKey(NamedTuple):
    """A step of an execution."""

    execution_id: ExecutionId
    step: str


class ReferenceLife(Struct, frozen=True):
    """The lifetime of a reference as its report gave it, and when it expired."""

    lifetime: Lifetime | None = None
    expired_at: Micros | None = None


class JudgedCounts(Struct, frozen=True):
    """Counts: executions judged, references that expired, payloads deleted that no reference named."""

    looked: int = 0
    expired: int = 0
    swept: int = 0


class StorageUsage(Struct, frozen=True):
    """What an execution stores in a tier. Expired references are counted apart."""

    execution_id: ExecutionId
    tier: str
    count: int
    bytes: int
    expired: int = 0


class ResultLifetimes(Protocol):
    async def expire_results(
        self, grace: Micros, retention: Micros | None, limit: int
    ) -> JudgedCounts:
        """Expire results of up to `limit` executions that ended at least `grace` ago.

        Small payloads that were put and never named are deleted. `retention` applies to results
        without a lifetime of their own; None keeps them for ever.

        Nothing expires while a relative of the execution lives (its callers, the executions it
        called, its retries), and no pinned result expires. One server judges at a time; the others
        find nothing to do.
        """
        ...

    async def read_lifetimes(self, refs: list[RefId]) -> dict[RefId, ReferenceLife]:
        """The lifetimes of the references that are recorded."""
        ...

    async def pin_results(self, places: list[StepKey]) -> None:
        """Keep all results of these steps. Results that have not expired by then never expire."""
        ...

    async def unpin_results(self, places: list[StepKey]) -> None: ...

    async def list_pinned_steps(self, executions: list[ExecutionId]) -> list[StepKey]:
        """The pinned steps, in order."""
        ...

    async def read_usage(self, executions: list[ExecutionId]) -> list[StorageUsage]:
        """Storage by execution, then by tier."""
        ...
