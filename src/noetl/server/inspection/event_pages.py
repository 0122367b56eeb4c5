"""Pages of the events of an execution, forwards or backwards, filtered, with what led to each of them."""

from dataclasses import dataclass

from noetl.log.events.port import EventLog, RecordedEvent
from noetl.model import codec
from noetl.model.event_groups import GROUP_BITS, find_groups
from noetl.model.ids import ExecutionId
from noetl.server.executions.older_names import list_older_names
from noetl.server.executions.views import make_event_view
from noetl.server.http.structs import extend_view
from noetl.server.inspection.causality import EventLinks, link_events
from noetl.server.inspection.folds import ExecutionFolds
from noetl.server.inspection.summaries import find_repeated_items, summarize_event
from noetl.server.inspection.views import ToldEventsView, ToldEventView

MAX_SCANNED_EVENTS = 10_000  # events that one read looks at, at most
EVENTS_PER_SCAN = 1_000  # events that a filtered read looks at in one go


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFilter:
    """Which events a page shows; None matches any. `older`: under the names of older documents."""

    types: frozenset[str] = frozenset()
    group: str | None = None
    step: str | None = None
    text: str | None = None
    older: bool = False

    @property
    def is_empty(self) -> bool:
        return not self.types and self.step is None and self.text is None and self.group is None

    def matches(self, recorded: RecordedEvent) -> bool:
        """Whether the event is wanted, apart from its name: an event may have several older ones."""
        event = recorded.event
        if self.types and not self.older and event.type not in self.types:
            return False
        if self.group is not None and not find_groups(event) & GROUP_BITS[self.group]:
            return False
        if self.step is not None and getattr(event, "step", None) != self.step:
            return False
        return self.text is None or self.text.lower() in codec.encode(event).decode().lower()

    def list_names(self, recorded: RecordedEvent) -> list[str]:
        """The older names under which the event is shown."""
        names = list_older_names(recorded.event)
        return [name for name in names if not self.types or name in self.types]


@dataclass(slots=True)
class EventScan:
    """The events that a page shows, all that were read for it, and where the next page begins."""

    found: list[RecordedEvent]
    looked_at: list[RecordedEvent]
    next: int | None


class EventPages:
    def __init__(self, log: EventLog, folds: ExecutionFolds) -> None:
        self._log = log
        self._folds = folds

    async def read_page(
        self,
        execution_id: ExecutionId,
        wanted: EventFilter,
        *,
        after: int,
        before: int | None,
        limit: int,
    ) -> ToldEventsView:
        """The events after `after`, or the last ones before `before`, in the order of the log.

        Reads a bounded number of events, so a page may be short although there is a `next`.
        """
        scan = await self._scan(execution_id, wanted, after, before, limit)
        seqs = [recorded.seq for recorded in scan.found]
        numbers = await self._folds.find_numbers(execution_id, seqs)
        links = link_events(scan.looked_at)
        repeated = find_repeated_items(recorded.event for recorded in scan.looked_at)
        views: list[ToldEventView] = []
        for recorded, number in zip(scan.found, numbers, strict=True):
            summary = summarize_event(recorded.event, repeated)
            views += _show_event(recorded, wanted, number, links, summary)
        return ToldEventsView(views, scan.next, len(scan.looked_at))

    async def _scan(
        self,
        execution_id: ExecutionId,
        wanted: EventFilter,
        after: int,
        before: int | None,
        limit: int,
    ) -> EventScan:
        """Read the log until there are enough events, or enough was looked at."""
        forwards = before is None
        scan = EventScan([], [], None)
        page_size = limit if wanted.is_empty else max(limit, EVENTS_PER_SCAN)
        position = after if before is None else before
        while len(scan.looked_at) < MAX_SCANNED_EVENTS:
            page = await self._read(execution_id, wanted, position, page_size, forwards=forwards)
            if not page:
                return scan
            taken, is_full = _take_wanted(page, wanted, limit - len(scan.found), forwards)
            scan.found = scan.found + taken.found if forwards else taken.found + scan.found
            scan.looked_at = (
                scan.looked_at + taken.looked_at if forwards else taken.looked_at + scan.looked_at
            )
            position = taken.looked_at[-1 if forwards else 0].seq
            if is_full:
                break
            if wanted.group is None and len(page) < page_size:
                return scan
        scan.next = position
        return scan

    async def _read(
        self,
        execution_id: ExecutionId,
        wanted: EventFilter,
        position: int,
        limit: int,
        *,
        forwards: bool,
    ) -> list[RecordedEvent]:
        """The next events in the direction of the scan, in the order of the log."""
        if wanted.group is not None:
            bits = GROUP_BITS[wanted.group]
            if forwards:
                return await self._log.read_grouped_events(
                    execution_id, bits, after=position, limit=limit
                )
            return await self._log.read_grouped_events(
                execution_id, bits, before=position, limit=limit
            )
        if forwards:
            return await self._log.read_events(execution_id, position, limit)
        return await self._log.read_events_before(execution_id, position, limit)


def _take_wanted(
    page: list[RecordedEvent], wanted: EventFilter, limit: int, forwards: bool
) -> tuple[EventScan, bool]:
    """The wanted events of a page, up to a limit, and whether the limit was reached."""
    found: list[RecordedEvent] = []
    looked_at: list[RecordedEvent] = []
    for recorded in page if forwards else reversed(page):
        looked_at.append(recorded)
        if wanted.matches(recorded):
            found.append(recorded)
        if len(found) == limit:
            break
    if not forwards:
        found.reverse()
        looked_at.reverse()
    return EventScan(found, looked_at, None), len(found) == limit


def _show_event(
    recorded: RecordedEvent, wanted: EventFilter, number: int, links: EventLinks, summary: str
) -> list[ToldEventView]:
    """The event; under older names it may be several, or none."""
    names: list[str | None] = [None]
    if wanted.older:
        names = [*wanted.list_names(recorded)]
    return [
        extend_view(
            ToldEventView,
            make_event_view(recorded, older=name),
            number=number,
            causes=links.causes.get(recorded.seq, []),
            led_to=links.led_to.get(recorded.seq, []),
            summary=summary,
        )
        for name in names
    ]
