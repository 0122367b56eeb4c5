"""One line of plain text about an event. Pure."""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from msgspec.structs import replace

from noetl.model import events as e
from noetl.model.approvals import describe_question
from noetl.model.clock import format_iso
from noetl.model.errors import Failure
from noetl.model.ids import CommandId

MAX_SUMMARY_CHARS = 200
_MICROS_PER_MS = 1_000


IndexBounds = tuple[int, int]  # the lowest and the highest
RepeatedItems = Mapping[CommandId, IndexBounds | None]


def summarize_event(event: e.Event, repeated: RepeatedItems = MappingProxyType({})) -> str:
    """One line that says what happened. An event without more to say gives its type in words.

    `repeated` are commands that run failed items again, with the lowest and the highest index of
    these items, if they are known.
    """
    describe = _SUMMARIES.get(type(event))
    if describe is None:
        return event.type.replace(".", " ")
    line = " ".join(describe(_name_indexes(event, repeated)).split())
    if len(line) <= MAX_SUMMARY_CHARS:
        return line
    return line[: MAX_SUMMARY_CHARS - 1] + "…"


def format_count(number: int) -> str:
    """A number with narrow spaces between groups of three digits."""
    return f"{number:,}".replace(",", "\u202f")


def describe_items(items: e.Items) -> str:
    parts = [f"{format_count(items.ok)} ok"]
    if items.failed:
        parts.append(f"{format_count(items.failed)} failed")
    if items.skipped:
        parts.append(f"{format_count(items.skipped)} skipped")
    return ", ".join(parts)


def _describe_range(first: int, count: int) -> str:
    if count <= 1:
        return f"item {format_count(first)}"
    return f"items {format_count(first)}–{format_count(first + count - 1)}"


def _describe_repeated(count: int, indexes: tuple[int, int] | None) -> str:
    """Failed items that run again: they are not consecutive."""
    if indexes is None:
        return f"{format_count(count)} failed item{'' if count == 1 else 's'}"
    low, high = (format_count(index) for index in indexes)
    return f"item {low}" if low == high else f"{format_count(count)} items of {low}–{high}"


def _name_indexes(event: e.Event, repeated: RepeatedItems) -> e.Event:
    """The event with the indexes that another event of its command has."""
    if not isinstance(event, e.CommandIssued) or event.indexes is not None:
        return event
    return replace(event, indexes=repeated.get(event.command_id))


def find_repeated_items(events: Iterable[e.Event]) -> dict[CommandId, IndexBounds | None]:
    """The commands that run failed items again, as far as these events tell."""
    found: dict[CommandId, IndexBounds | None] = {}
    for event in events:
        if isinstance(event, e.CommandIssued) and event.repeats:
            found.setdefault(event.command_id, event.indexes)
        elif isinstance(event, e.CommandCompleted | e.CommandFailed | e.CommandProgress):
            items = event.items
            if items is not None and items.indexes is not None:
                found[event.command_id] = join_indexes(found.get(event.command_id), items.indexes)
    return found


def join_indexes(left: IndexBounds | None, right: IndexBounds) -> IndexBounds:
    """The lowest and the highest index of both."""
    if left is None:
        return right
    return min(left[0], right[0]), max(left[1], right[1])


def _describe_error(error: Failure | None) -> str:
    return "" if error is None else f": {error.code}: {error.message}"


def _describe_start(event: e.PlaybookInitialized) -> str:
    text = f"{event.path} was started"
    if event.version is not None:
        text = f"{event.path} v{event.version} was started"
    return text if event.by is None else f"{text} by {event.by}"


def _describe_enter(event: e.StepEnter) -> str:
    text = f"{event.step} entered, run {event.run}"
    return text if not event.origins else f"{text}, from {', '.join(event.origins)}"


def _describe_next(event: e.NextEvaluated) -> str:
    if event.error is not None:
        return f"the router of {event.step} failed{_describe_error(event.error)}"
    chosen = ", ".join(arc.step for arc in event.chosen)
    return f"{event.step} leads to {chosen}" if chosen else f"{event.step} leads nowhere"


def _describe_issued(event: e.CommandIssued) -> str:
    work: str = event.kind
    if event.repeats:
        work = _describe_repeated(event.count, event.indexes)
    elif event.count:
        work = _describe_range(event.first, event.count)
    return f"{event.step}: {work} issued to pool {event.pool}"


def _describe_ended(event: e.CommandCompleted | e.CommandFailed) -> str:
    is_ok = isinstance(event, e.CommandCompleted)
    text = f"{event.step}: {'completed' if is_ok else 'failed'}"
    items = event.items
    if items is not None:
        count = items.ok + items.failed + items.skipped
        place = _describe_place(items, count)
        text = f"{event.step}: {place}: {describe_items(items)}"
        return text + _describe_error(items.first_error)
    if event.started_at and event.at > event.started_at:
        text += f" after {(event.at - event.started_at) / _MICROS_PER_MS:.0f} ms"
    return text + _describe_error(event.result.error)


def _describe_place(items: e.Items, count: int) -> str:
    if items.indexes is not None:
        return _describe_repeated(count, items.indexes)
    return _describe_range(items.first + items.shift, count)


def _describe_progress(event: e.CommandProgress) -> str:
    counts = describe_items(event.items)
    if event.items.indexes is not None:
        last = event.items.indexes[1]
        return f"{event.step}: up to item {format_count(last)}: {counts}"
    return f"{event.step}: up to item {format_count(event.done)}: {counts}"


def _describe_parked(event: e.CommandParked) -> str:
    text = f"{event.step}: task {event.task} waits: {event.reason}"
    if event.signal is not None:
        text += f" {event.signal!r}"
    if event.question:
        text += f" ({describe_question(event.question)})"
    if event.child is not None:
        text += f" {event.child.path}"
    if event.until is not None:
        text += f" until {format_iso(event.until)}"
    return text + _describe_error(event.error)


def _describe_loop_started(event: e.LoopStarted) -> str:
    size = "rows of a cursor" if event.mode == "cursor" else None
    if size is None:
        size = f"{format_count(event.collection.size)} items"
    return f"{event.step}: loop over {size}, {event.mode}"


def _describe_loop_done(event: e.LoopDone) -> str:
    stats = event.stats
    counts = e.Items(ok=stats.ok, failed=stats.failed, skipped=stats.skipped)
    return (
        f"{event.step}: loop over {format_count(stats.total)} items done: {describe_items(counts)}"
    )


def _describe_cancelling(event: e.ExecutionCancelling) -> str:
    by = "" if event.by is None else f" by {event.by}"
    return f"the execution is being stopped: {event.reason}{by}{_describe_error(event.error)}"


def _describe_child_ended(event: e.ChildEnded) -> str:
    return f"child {event.child} ended: {event.result.status}{_describe_error(event.result.error)}"


_SUMMARIES: dict[type, Callable[[Any], str]] = {
    e.PlaybookInitialized: _describe_start,
    e.WorkflowInitialized: lambda event: "the execution begins",
    e.StepInherited: lambda event: f"{event.step}: result taken over",
    e.CtxInherited: lambda event: f"{len(event.set)} variables taken over",
    e.StateRead: lambda event: f"state read: {', '.join(event.values)}",
    e.StateConflict: lambda event: f"state {event.name} was written by {event.by}",
    e.PlaybookPaused: lambda event: f"paused by {event.by}",
    e.PlaybookResumed: lambda event: f"resumed by {event.by}",
    e.ExecutionCancelling: _describe_cancelling,
    e.ExecutionCancelled: lambda event: "the execution was cancelled",
    e.PlaybookCompleted: lambda event: "the execution has completed",
    e.PlaybookFailed: lambda event: f"the execution has failed{_describe_error(event.error)}",
    e.ExecutionQuarantined: lambda event: f"quarantined: {event.error}",
    e.ExecutionReleased: lambda event: f"released by {event.by}",
    e.StepEnter: _describe_enter,
    e.StepSkipped: lambda event: f"{event.step}: admit rule {event.rule} refused it",
    e.CallDone: lambda event: f"{event.step}: call done",
    e.CallError: lambda event: f"{event.step}: call failed{_describe_error(event.result.error)}",
    e.StepExit: lambda event: f"{event.step} exited: {event.result.status}",
    e.NextEvaluated: _describe_next,
    e.ExpressionEvaluated: lambda event: (
        f"{event.step}: {event.site} evaluated{_describe_error(event.error)}"
    ),
    e.TimerFired: lambda event: "a timer fired",
    e.SignalReceived: lambda event: f"signal {event.name!r} received",
    e.ChildStarted: lambda event: f"child {event.child} started",
    e.ChildEnded: _describe_child_ended,
    e.CommandIssued: _describe_issued,
    e.CommandClaimed: lambda event: f"{event.step}: claimed by {event.worker}",
    e.CommandStarted: lambda event: f"{event.step}: started by {event.worker}",
    e.CommandCompleted: _describe_ended,
    e.CommandFailed: _describe_ended,
    e.CommandParked: _describe_parked,
    e.CommandReturned: lambda event: f"{event.step}: {event.worker} gave it back",
    e.CommandReclaimed: lambda event: f"{event.step}: the lease of {event.worker} was lost",
    e.CommandDead: lambda event: f"{event.step}: given up after {event.attempt} lost workers",
    e.CommandCancelled: lambda event: f"{event.step}: command stopped",
    e.TaskDone: lambda event: f"{event.step}: task {event.task} done: {event.result.status}",
    e.CallPage: lambda event: f"{event.step}: page {event.page} of task {event.task} stored",
    e.RetryStarted: lambda event: (
        f"{event.step}: try {event.tries} of task {event.task} failed{_describe_error(event.error)}"
    ),
    e.CommandProgress: _describe_progress,
    e.FrameClaimed: lambda event: f"{event.step}: {format_count(event.size)} rows claimed",
    e.SinkProcessed: lambda event: f"{event.step}: task {event.task} has stored its input",
    e.LoopStarted: _describe_loop_started,
    e.LoopShardDone: lambda event: (
        f"{event.step}: partition {event.shard} done: {describe_items(event.items)}"
    ),
    e.LoopFaninCompleted: lambda event: f"{event.step}: all {event.shards} partitions counted",
    e.LoopDone: _describe_loop_done,
}
