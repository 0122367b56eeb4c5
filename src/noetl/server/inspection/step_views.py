"""The steps, arcs, failures and live commands of an execution as of one of its events. Pure."""

from collections.abc import Iterable, Mapping

from noetl.engine.bands import Bands, RunBand, StepBand
from noetl.engine.execution_fold import ExecutionFold
from noetl.engine.state import Activation, Execution, LoopState, OpenCommand, Record
from noetl.log.queue.port import QueueEntry
from noetl.model.clock import format_iso, format_iso_or_none
from noetl.model.events import Stats
from noetl.model.failure_kinds import MAX_KIND_MESSAGE_CHARS
from noetl.model.ids import CommandId, Micros
from noetl.server.executions.steps import STATUS_WORDS
from noetl.server.inspection.spans import find_repeated_indexes
from noetl.server.inspection.views import (
    ErrorView,
    FailureKindView,
    FailuresView,
    FirstFailureView,
    LiveCommandView,
    LoopCountsView,
    PageArcView,
    PageStepView,
    VerdictView,
    WaitReason,
    WaitsView,
)

MAX_LISTED_COMMANDS = 50
MAX_LISTED_KINDS = 50
MIN_RATE_WINDOW_US: Micros = 5_000_000  # microseconds over which the rate of a loop is measured
MIN_RATE_BUCKETS = 8

QueueRows = Mapping[CommandId, QueueEntry]
_PARKED_REASONS: dict[str, WaitReason] = {
    "signal": "signal",
    "approval": "approval",
    "child": "child",
    "time": "timer",
    "retry": "retry",
}


# ---- waits ----------------------------------------------------------------------------------------


def make_waits_view(bands: Bands, command: OpenCommand, queued: QueueRows) -> WaitsView | None:
    """What a command waits for; None if a worker may have it."""
    timed = bands.commands.get(command.id)
    if command.parked is not None:
        since = None if timed is None else timed.parked_at
        parked = command.parked
        return WaitsView(
            on=_PARKED_REASONS.get(parked.reason, "timer"),
            name=parked.signal,
            since=format_iso_or_none(since),
            until=format_iso_or_none(parked.until),
            child=parked.child,
            task=parked.task,
            question=parked.question,
        )
    row = queued.get(command.id)
    if row is None or row.status != "queued":
        return None
    since = None if timed is None else timed.queued_at
    return WaitsView(on="worker", since=format_iso_or_none(since), pool=row.pool)


def _find_step_waits(
    fold: ExecutionFold, commands: Iterable[OpenCommand], queued: QueueRows
) -> WaitsView | None:
    """What the first command of an activation waits for; None if one of them works."""
    waits = [make_waits_view(fold.bands, command, queued) for command in commands]
    if not waits or None in waits:
        return None
    return waits[0]


# ---- steps ----------------------------------------------------------------------------------------


def make_step_views(fold: ExecutionFold, queued: QueueRows) -> dict[str, PageStepView]:
    """The steps by name, in the order they began."""
    state, bands = fold.state, fold.bands
    views = {
        name: _make_ended_view(record, bands.steps.get(name))
        for name, record in state.steps.items()
    }
    commands: dict[str, list[OpenCommand]] = {}
    for command in state.commands.values():
        commands.setdefault(command.activation, []).append(command)
    for activation in state.activations.values():
        waits = _find_step_waits(fold, commands.get(activation.id, ()), queued)
        band = bands.steps.get(activation.step)
        runs = max(activation.run, state.steps.get(activation.step, Record()).runs)
        views[activation.step] = _make_live_view(state, activation, runs, band, waits)
    for name in state.tokens:
        if name not in state.running:
            views[name] = _make_held_view(views.get(name), bands.steps.get(name))
    return views


def _get_last_run(band: StepBand | None) -> RunBand | None:
    if band is None or not band.runs:
        return None
    return band.runs[-1]


def _make_ended_view(record: Record, band: StepBand | None) -> PageStepView:
    seconds = None
    if record.entered_at is not None and record.ended_at is not None:
        seconds = (record.ended_at - record.entered_at) / 1e6
    return PageStepView(
        status=STATUS_WORDS.get(record.status, record.status),
        runs=record.runs,
        entered_at=format_iso_or_none(record.entered_at),
        ended_at=format_iso_or_none(record.ended_at),
        first_seq=None if band is None else band.first_seq,
        last_seq=None if band is None else band.last_seq,
        seconds=seconds,
        loop=None if record.stats is None else _make_ended_counts(record, record.stats),
        waits=None,
        error=_make_step_error(record, band),
    )


def _make_step_error(record: Record, band: StepBand | None) -> ErrorView | None:
    """The error of a step that has failed. The bands know the error of a router."""
    if record.status != "error":
        return None
    if record.result is not None and record.result.error is not None:
        error = record.result.error
        return ErrorView(error.code, error.message[:MAX_KIND_MESSAGE_CHARS])
    run = _get_last_run(band)
    if run is not None and run.error is not None:
        return ErrorView(run.error.code, run.error.message)
    return None


def _make_ended_counts(record: Record, stats: Stats) -> LoopCountsView:
    return LoopCountsView(
        total=stats.total,
        done=stats.ok + stats.failed + stats.skipped,
        ok=stats.ok,
        failed=stats.failed,
        skipped=stats.skipped,
        left=0 if record.loop is None else record.loop.collection.left,
        running=0,
        rate=None,
        seconds_left=None,
    )


def _make_live_view(
    state: Execution,
    activation: Activation,
    runs: int,
    band: StepBand | None,
    waits: WaitsView | None,
) -> PageStepView:
    loop = None
    if activation.loop is not None:
        loop = make_loop_counts(activation.loop, activation.entered_at, band, state.last_at)
    return PageStepView(
        status="running" if waits is None else "waiting",
        runs=runs,
        entered_at=format_iso_or_none(activation.entered_at),
        ended_at=None,
        first_seq=None if band is None else band.first_seq,
        last_seq=None if band is None else band.last_seq,
        seconds=None,
        loop=loop,
        waits=waits,
        error=None,
    )


def _make_held_view(earlier: PageStepView | None, band: StepBand | None) -> PageStepView:
    """A step that was reached and waits at its join."""
    return PageStepView(
        status="waiting",
        runs=0 if earlier is None else earlier.runs,
        entered_at=None if earlier is None else earlier.entered_at,
        ended_at=None if earlier is None else earlier.ended_at,
        first_seq=None if band is None else band.first_seq,
        last_seq=None if band is None else band.last_seq,
        seconds=None if earlier is None else earlier.seconds,
        loop=None,
        waits=None,
        error=None,
    )


def make_loop_counts(
    loop: LoopState, entered_at: Micros, band: StepBand | None, now: Micros
) -> LoopCountsView:
    done = loop.ok + loop.failed + loop.skipped + loop.ahead
    has_known_size = loop.mode != "cursor" or loop.drained
    total = loop.size if has_known_size else None
    rate = None if band is None else _measure_rate(band, entered_at, now)
    seconds_left = None
    if rate and total is not None:
        seconds_left = round(max(total - done, 0) / rate, 1)
    return LoopCountsView(
        total=total,
        done=done,
        ok=loop.ok,
        failed=loop.failed,
        skipped=loop.skipped,
        left=loop.collection.left,
        running=loop.running,
        rate=rate,
        seconds_left=seconds_left,
    )


def _measure_rate(band: StepBand, entered_at: Micros, now: Micros) -> float | None:
    """Items per second in the last buckets. None if too little time has passed."""
    buckets = band.buckets
    if not buckets.items:
        return None
    window = max(MIN_RATE_WINDOW_US, MIN_RATE_BUCKETS * buckets.width_us)
    since = max(now - window, entered_at)
    first = max(since // buckets.width_us - buckets.origin, 0)
    begin = max((buckets.origin + first) * buckets.width_us, entered_at)
    if now <= begin:
        return None
    return round(sum(buckets.items[first:]) * 1e6 / (now - begin), 3)


# ---- arcs, failures, commands ---------------------------------------------------------------------


def make_arc_views(bands: Bands) -> dict[str, PageArcView]:
    return {
        name: PageArcView(
            taken=arc.taken,
            false=arc.false,
            error=arc.error,
            untried=arc.untried,
            last=VerdictView(arc.verdict, arc.saw, arc.seq) if arc.verdict else None,
        )
        for name, arc in bands.arcs.items()
    }


def make_failures_view(bands: Bands) -> FailuresView:
    """The kinds of failures of all steps, the most frequent first."""
    kinds = [
        FailureKindView(
            shape=kind.shape,
            code=kind.code,
            step=name,
            count=kind.count,
            first=FirstFailureView(kind.item, kind.seq, kind.message),
        )
        for name, band in bands.steps.items()
        for kind in band.kinds
    ]
    kinds.sort(key=lambda kind: (-kind.count, kind.first.seq))
    total = sum(band.failed for band in bands.steps.values())
    return FailuresView(total, kinds[:MAX_LISTED_KINDS])


def make_live_views(fold: ExecutionFold, queued: QueueRows) -> list[LiveCommandView]:
    """The first commands that have not ended, in the order of issue."""
    state = fold.state
    commands = sorted(state.commands.values(), key=lambda command: command.order)
    return [_make_live_command(fold, command, queued) for command in commands[:MAX_LISTED_COMMANDS]]


def _make_live_command(
    fold: ExecutionFold, command: OpenCommand, queued: QueueRows
) -> LiveCommandView:
    timed = fold.bands.commands.get(command.id)
    row = queued.get(command.id)
    activation = fold.state.activations.get(command.activation)
    worker = command.worker
    if worker is None and row is not None:
        worker = row.worker
    repeats, indexes = find_repeated_indexes(fold.state, command)
    return LiveCommandView(
        command_id=command.id,
        step=command.step,
        run=0 if activation is None else activation.run,
        kind=command.kind,
        first=command.first,
        count=command.count,
        attempt=command.attempt,
        issued_at=None if timed is None else format_iso(timed.issued_at),
        worker=worker,
        waits=make_waits_view(fold.bands, command, queued),
        repeats=repeats,
        indexes=None if indexes is None else list(indexes),
    )
