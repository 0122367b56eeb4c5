"""A page of the events of an execution, under their names of today or of older documents."""

from noetl.log.events.port import EventLog, RecordedEvent
from noetl.model.ids import ExecutionId
from noetl.server.executions.older_names import list_older_names
from noetl.server.executions.views import EventsView, EventView, make_event_view

MAX_SCANNED_EVENTS = 10_000  # events that one filtered read looks at, at most


async def read_event_page(
    log: EventLog,
    execution_id: ExecutionId,
    after: int,
    limit: int,
    types: frozenset[str],
    older: bool,
) -> EventsView:
    """A page of the events of these types, or of all if there are none, in the order of the log.

    Reads a bounded number of events, so a page may be short although there is a `next`.
    """
    views: list[EventView] = []
    counted = 0
    for _ in range(MAX_SCANNED_EVENTS // limit or 1):
        page = await log.read_events(execution_id, after, limit)
        for recorded in page:
            after = recorded.seq
            shown = _show_event(recorded, types, older)
            if shown or not types:
                views += shown
                counted += 1
            if counted == limit:
                return EventsView(views, after)
        if len(page) < limit:
            return EventsView(views, None)
    return EventsView(views, after)


def _show_event(
    recorded: RecordedEvent,
    types: frozenset[str],
    older: bool,
) -> list[EventView]:
    """The event if it is wanted; under `older` names it may be several, or none."""
    if older:
        names = [name for name in list_older_names(recorded.event) if not types or name in types]
        return [make_event_view(recorded, older=name) for name in names]
    if types and recorded.event.type not in types:
        return []
    return [make_event_view(recorded)]
