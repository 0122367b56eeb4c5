"""How much space results take, by execution and tier."""

from dataclasses import dataclass

from noetl.log.lifetimes.port import ResultLifetimes, StorageUsage
from noetl.log.projections.port import ExecutionFilter, Projection
from noetl.model.identity import Identity
from noetl.model.ids import ExecutionId
from noetl.server.executions.service import ExecutionService

DEFAULT_USAGE_PAGE = 50  # executions, unless the caller asks for more
MAX_USAGE_PAGE = 200


@dataclass(frozen=True, slots=True)
class Usage:
    """The space that the results of one execution take; `pinned` are steps with pinned results."""

    row: Projection
    tiers: tuple[StorageUsage, ...]
    pinned: tuple[str, ...]


class UsageService:
    def __init__(self, lifetimes: ResultLifetimes, executions: ExecutionService) -> None:
        self._lifetimes = lifetimes
        self._executions = executions

    async def get_usage(self, identity: Identity, execution_id: ExecutionId) -> Usage:
        row = await self._executions.get(identity, execution_id)
        (usage,) = await self._count_usage([row])
        return usage

    async def list_page(
        self,
        identity: Identity,
        path: str | None = None,
        before: ExecutionId | None = None,
        limit: int = DEFAULT_USAGE_PAGE,
    ) -> list[Usage]:
        """The usage of a page of executions, newest first."""
        rows = await self._executions.list_page(identity, ExecutionFilter(path=path), before, limit)
        return await self._count_usage(rows)

    async def _count_usage(self, rows: list[Projection]) -> list[Usage]:
        ids = [row.execution_id for row in rows]
        used = await self._lifetimes.read_usage(ids)
        pins = await self._lifetimes.list_pinned_steps(ids)
        usages: list[Usage] = []
        for row in rows:
            tiers = tuple(tier for tier in used if tier.execution_id == row.execution_id)
            steps = tuple(pin.step for pin in pins if pin.execution_id == row.execution_id)
            usages.append(Usage(row, tiers, steps))
        return usages
