"""How many executions there are, by status and over time."""

import msgspec

from noetl.log.projections.port import ExecutionFilter, Projections
from noetl.model.clock import format_iso, format_iso_or_none
from noetl.model.identity import Identity, Permission, needs
from noetl.model.ids import Micros
from noetl.server.executions.views import CountsView, CountView, HistogramView


class CountService:
    """Counts are bounded: of each status and of the histogram, only the newest rows count."""

    def __init__(self, projections: Projections) -> None:
        self._projections = projections

    @needs(Permission.READ)
    async def count(
        self,
        identity: Identity,
        wanted: ExecutionFilter,
        now: Micros,
        buckets: int,
    ) -> CountsView:
        counts = await self._projections.count_executions(identity.tenant, wanted)
        end = now if wanted.until is None else min(wanted.until, now)
        if wanted.since is not None:
            end = max(end, wanted.since + buckets * 1_000)
        histogram = await self._projections.make_histogram(identity.tenant, wanted, end, buckets)
        return CountsView(
            counts={
                name: CountView(*msgspec.structs.astuple(each)) for name, each in counts.items()
            },
            histogram=HistogramView(
                start=format_iso(histogram.start_ms * 1_000),
                width_ms=histogram.width_ms,
                by=histogram.by_status,
            ),
            reaches_back_to=format_iso_or_none(histogram.reaches_back_to),
        )
