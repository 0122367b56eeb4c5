"""How much space results take, by execution and tier."""

from noetl.log.lifetimes.port import ResultLifetimes, StorageUsage
from noetl.log.projections.port import ExecutionFilter, Projection
from noetl.model.identity import Identity, Permission, needs
from noetl.model.ids import ExecutionId
from noetl.server.executions.service import ExecutionService
from noetl.server.results.views import TierView, UsageView, UsedView

DEFAULT_USAGE_PAGE = 50  # executions, unless the caller asks for more
MAX_USAGE_PAGE = 200


class UsageService:
    def __init__(self, lifetimes: ResultLifetimes, executions: ExecutionService) -> None:
        self._lifetimes = lifetimes
        self._executions = executions

    @needs(Permission.READ)
    async def get_usage(self, identity: Identity, execution_id: ExecutionId) -> UsedView:
        row = await self._executions.get_row(identity, execution_id)
        (usage,) = await self._count_usage([row])
        return usage

    @needs(Permission.READ)
    async def list_page(
        self,
        identity: Identity,
        path: str | None = None,
        before: ExecutionId | None = None,
        limit: int = DEFAULT_USAGE_PAGE,
    ) -> UsageView:
        """The usage of a page of executions, newest first."""
        rows = await self._executions.list_rows(identity, ExecutionFilter(path=path), before, limit)
        following = rows[-1].execution_id if len(rows) == limit else None
        return UsageView(await self._count_usage(rows), following)

    async def _count_usage(self, rows: list[Projection]) -> list[UsedView]:
        ids = [row.execution_id for row in rows]
        used = await self._lifetimes.read_usage(ids)
        pins = await self._lifetimes.list_pinned_steps(ids)
        usages: list[UsedView] = []
        for row in rows:
            tiers = [tier for tier in used if tier.execution_id == row.execution_id]
            steps = [pin.step for pin in pins if pin.execution_id == row.execution_id]
            usages.append(_make_used_view(row, tiers, steps))
        return usages


def _make_used_view(
    row: Projection,
    tiers: list[StorageUsage],
    pinned: list[str],
) -> UsedView:
    return UsedView(
        execution_id=row.execution_id,
        path=row.path,
        status=row.status,
        tiers={used.tier: TierView(count=used.count, bytes=used.bytes) for used in tiers},
        count=sum(used.count for used in tiers),
        bytes=sum(used.bytes for used in tiers),
        expired=sum(used.expired for used in tiers),
        pinned=pinned,
    )
