"""The timeline of an execution: buckets of its steps, and exact spans of a window with few events."""

from dataclasses import dataclass
from typing import Any

from noetl.engine.bands import Bands, StepBand
from noetl.engine.buckets import SERIES, SUMMED
from noetl.engine.execution_fold import (
    LARGE_SNAPSHOT_INTERVAL_EVENTS,
    SNAPSHOT_INTERVAL_EVENTS,
    ExecutionFold,
    compute_fold_shape,
    make_empty_fold,
)
from noetl.log.events.port import EventLog, RecordedEvent
from noetl.log.snapshots.port import SnapshotStore
from noetl.model.clock import format_iso, format_iso_or_none
from noetl.model.ids import ExecutionId, Micros
from noetl.server.inspection.folds import ExecutionFolds
from noetl.server.inspection.spans import make_spans
from noetl.server.inspection.views import BandView, MarkView, SpanView, TimelineView

MAX_EXACT_EVENTS = 10_000  # of a window that is shown command by command
MAX_MARKS = 500


@dataclass(frozen=True, slots=True)
class TimeWindow:
    """From the moment `start` to the moment `end`, both included."""

    start: Micros
    end: Micros


@dataclass(frozen=True, slots=True)
class WindowSpans:
    """The spans of a window; None if it has too many events. `events`: how many it has, about."""

    spans: list[SpanView] | None
    events: int


class SpanReader:
    """Reads the spans of a window. It reads at most `MAX_EXACT_EVENTS` events of the window, and
    those between the snapshot before it and its start."""

    def __init__(self, log: EventLog, snapshots: SnapshotStore, folds: ExecutionFolds) -> None:
        self._log = log
        self._snapshots = snapshots
        self._folds = folds

    async def read_spans(
        self, execution_id: ExecutionId, window: TimeWindow, newest_events: int, step: str | None
    ) -> WindowSpans:
        """`newest_events`: the number of events that the execution has."""
        shape = compute_fold_shape()
        before = await self._snapshots.find_position_by_time(execution_id, shape, window.start)
        upper = await self._snapshots.find_position_by_time(execution_id, shape, window.end + 1)
        events_before = 0 if before is None else before.events
        events_upto = events_before if upper is None else upper.events
        at_least = events_upto - events_before - LARGE_SNAPSHOT_INTERVAL_EVENTS
        if at_least > MAX_EXACT_EVENTS:
            return WindowSpans(None, events_upto - events_before)
        base = make_empty_fold(execution_id)
        if before is not None:
            base = await self._folds.read_at(execution_id, before.seq)
        events = await self._read_until(execution_id, base.seq, window.end)
        return _cut_window(base, events, window, newest_events - events_before, step)

    async def _read_until(
        self, execution_id: ExecutionId, after: int, moment: Micros
    ) -> list[RecordedEvent]:
        """Events up to this moment and a few more, as many as a window may need."""
        events: list[RecordedEvent] = []
        while len(events) < MAX_EXACT_EVENTS + LARGE_SNAPSHOT_INTERVAL_EVENTS:
            page = await self._log.read_events(execution_id, after, SNAPSHOT_INTERVAL_EVENTS)
            events += page
            if len(page) < SNAPSHOT_INTERVAL_EVENTS or page[-1].event.at > moment:
                break
            after = page[-1].seq
        return events


def _cut_window(
    base: ExecutionFold,
    page: list[RecordedEvent],
    window: TimeWindow,
    events_after_base: int,
    step: str | None,
) -> WindowSpans:
    """Fold the events before the window, and make spans of those within it."""
    first = 0
    while first < len(page) and page[first].event.at < window.start:
        base.fold_event(page[first].seq, page[first].event)
        first += 1
    inside = [recorded for recorded in page[first:] if recorded.event.at <= window.end]
    is_cut = first + len(inside) == len(page) and len(page) < events_after_base
    if is_cut or len(inside) > MAX_EXACT_EVENTS:
        return WindowSpans(None, max(events_after_base - first, len(inside)))
    return WindowSpans(make_spans(base, inside, step), len(inside))


# ---- views (pure) ---------------------------------------------------------------------------------


def make_timeline(
    bands: Bands, window: TimeWindow, found: WindowSpans, max_buckets: int, step: str | None
) -> TimelineView:
    steps = {
        name: make_band_view(band, window, max_buckets)
        for name, band in bands.steps.items()
        if step in (None, name) and _overlaps(band, window)
    }
    return TimelineView(
        from_=format_iso(window.start),
        to=format_iso(window.end),
        exact=found.spans is not None,
        steps=steps,
        spans=found.spans,
        next_zoom=None if found.spans is not None else _make_zoom(window, found.events),
        marks=_list_marks(bands, window, step),
    )


def _overlaps(band: StepBand, window: TimeWindow) -> bool:
    return band.first_at <= window.end and band.last_at >= window.start


def _make_zoom(window: TimeWindow, events: int) -> dict[str, str]:
    """The first part of the window that may have spans, if its events are spread evenly."""
    share = MAX_EXACT_EVENTS / max(events, 1) / 2
    end = window.start + max(int((window.end - window.start) * share), 1)
    return {"from": format_iso(window.start), "to": format_iso(end)}


def make_band_view(band: StepBand, window: TimeWindow, max_buckets: int) -> BandView:
    """The buckets of the window; neighbours are joined until they are few enough."""
    buckets = band.buckets
    width, origin = buckets.width_us, buckets.origin
    low = max(window.start // width - origin, 0)
    high = max(min(window.end // width - origin + 1, len(buckets.started)), low)
    series: dict[str, list[int]] = {name: getattr(buckets, name)[low:high] for name in SERIES}
    origin += low
    while len(series["started"]) > max_buckets:
        series = _join_neighbours(series, origin % 2)
        origin //= 2
        width *= 2
    return BandView(
        first_at=format_iso_or_none(band.first_at),
        last_at=format_iso_or_none(band.last_at),
        first_seq=band.first_seq,
        last_seq=band.last_seq,
        width_us=width,
        start=format_iso(origin * width),
        **series,
    )


def _join_neighbours(series: dict[str, list[int]], odd: int) -> dict[str, list[int]]:
    joined: dict[str, list[int]] = {}
    for name, values in series.items():
        padded = [0] * odd + values
        join: Any = sum if name in SUMMED else max
        joined[name] = [join(padded[n : n + 2]) for n in range(0, len(padded), 2)]
    return joined


def _list_marks(bands: Bands, window: TimeWindow, step: str | None) -> list[MarkView]:
    marks = [
        (mark, kind)
        for kind, series in bands.marks.items()
        for mark in series.marks
        if window.start <= mark.at <= window.end and (step is None or mark.step in (None, step))
    ]
    marks.sort(key=lambda entry: entry[0].seq)
    return [MarkView(format_iso(mark.at), mark.seq, kind, mark.step) for mark, kind in marks][
        :MAX_MARKS
    ]
