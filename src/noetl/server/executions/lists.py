"""Pages of the list of executions."""

from noetl.log.projections.port import ExecutionFilter, Projection, Projections
from noetl.model.clock import format_iso_or_none
from noetl.model.ids import ExecutionId, Tenant
from noetl.model.live_summary import AwaitedThing, LoopProgress
from noetl.server.executions.views import (
    AwaitedView,
    ExecutionsView,
    ListedExecutionView,
    ProgressView,
    make_execution_view,
)
from noetl.server.http.structs import extend_view


async def read_list_page(
    projections: Projections,
    tenant: Tenant,
    wanted: ExecutionFilter,
    before: ExecutionId | None,
    limit: int,
) -> ExecutionsView:
    """A page of executions, newest first.

    A page may be short although there is more: a list looks at a bounded number of rows. The next
    page begins where the lane that was cut first ended; rows below that come with it.
    """
    rows = await projections.list_executions(tenant, wanted, before, limit)
    if len(rows) == limit:
        return ExecutionsView([make_listed_view(row) for row in rows], rows[-1].execution_id, None)
    end = await projections.find_walk_end(tenant, wanted, before)
    last = end.last
    if last is not None:
        rows = [row for row in rows if int(row.execution_id) >= int(last)]
    return ExecutionsView([make_listed_view(row) for row in rows], last, end.looked_at)


def make_listed_view(row: Projection) -> ListedExecutionView:
    waits_for = None if row.live is None else row.live.waits_for
    progress = None if row.live is None else row.live.progress
    return extend_view(
        ListedExecutionView,
        make_execution_view(row),
        waits_for=None if waits_for is None else _make_awaited_view(waits_for),
        progress=None if progress is None else _make_progress_view(progress),
    )


def _make_awaited_view(awaited: AwaitedThing) -> AwaitedView:
    since = format_iso_or_none(awaited.since)
    return AwaitedView(
        on=awaited.on,
        step=awaited.step,
        name=awaited.name,
        since=since,
        question=awaited.question,
        by=awaited.by,
    )


def _make_progress_view(progress: LoopProgress) -> ProgressView:
    return ProgressView(progress.step, progress.done, progress.total, progress.failed)
