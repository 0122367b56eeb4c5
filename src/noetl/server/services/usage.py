"""What results take, by execution and tier: of one execution, or of a page of them, newest first."""

from dataclasses import dataclass

from noetl.log.port import EventLog, ExecutionFilter, Projection, Used
from noetl.model.identity import Identity
from noetl.model.ids import ExecutionId
from noetl.server.services.executions import ExecutionService

PAGE, LONGEST = 50, 200


@dataclass(frozen=True, slots=True)
class Usage:
    """`pinned` are steps."""

    row: Projection
    tiers: tuple[Used, ...]
    pinned: tuple[str, ...]


class UsageService:
    def __init__(self, log: EventLog, executions: ExecutionService) -> None:
        self._log = log
        self._executions = executions

    async def of(self, identity: Identity, execution_id: ExecutionId) -> Usage:
        (usage,) = await self._counted([await self._executions.get(identity, execution_id)])
        return usage

    async def page(
        self,
        identity: Identity,
        path: str | None = None,
        before: ExecutionId | None = None,
        limit: int = PAGE,
    ) -> list[Usage]:
        return await self._counted(
            await self._executions.page(identity, ExecutionFilter(path=path), before, limit)
        )

    async def _counted(self, rows: list[Projection]) -> list[Usage]:
        ids = [row.execution_id for row in rows]
        used, pins = await self._log.usage(ids), await self._log.pinned_results(ids)
        return [
            Usage(
                row,
                tuple(each for each in used if each.execution_id == row.execution_id),
                tuple(step for execution_id, step in pins if execution_id == row.execution_id),
            )
            for row in rows
        ]
