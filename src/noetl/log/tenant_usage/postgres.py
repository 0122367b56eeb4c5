"""The usage in Postgres: counts over indexes, and sums that are kept."""

from pathlib import Path

from noetl.log.columns import to_execution_id
from noetl.log.tenant_usage.port import NO_BOUND, OPEN_STATUSES, TenantUsage
from noetl.model.ids import ExecutionId, Tenant
from noetl.postgres.pool import Database
from noetl.postgres.queries import load_queries

_SQL = load_queries(Path(__file__).with_name("tenant_usage.sql"))


class UsagePostgres:
    def __init__(self, database: Database) -> None:
        self._background = database.background

    async def measure_usage(
        self,
        tenant: Tenant,
        started: list[ExecutionId],
        most_running: int = NO_BOUND,
        most_queued: int = NO_BOUND,
        *,
        sums_bytes: bool = True,
    ) -> TenantUsage:
        (row,) = await self._background.read(
            _SQL["measure_usage"],
            tenant=tenant,
            statuses=list(OPEN_STATUSES),
            started=[int(execution_id) for execution_id in started],
            most_running=most_running,
            most_queued=most_queued,
            sums_bytes=sums_bytes,
        )
        unseen = tuple(map(to_execution_id, row["unseen"]))
        return TenantUsage(row["running"] + len(unseen), row["queued"], row["bytes"], unseen)
