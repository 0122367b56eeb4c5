"""What a page shows of an execution beside its state, folded from the same events.

The state keeps what decisions need. `Bands` keeps what people ask afterwards: when each step worked
and how fast, how often each arc was taken and what its guard saw last, which kinds of failures there
were, when commands were issued and parked, and where in the log each run of a step began.

The fold is deterministic, and it does not matter into how many pieces a log is cut. It changes the
bands in place, because it runs for every event of a long log. Its size has a bound that does not
depend on the log: per step `MAX_BUCKETS` buckets, `MAX_KINDS` kinds of failures and `MAX_SHOWN_RUNS`
runs; per arc one verdict of `MAX_SAW_BYTES`; per execution `MAX_TIMED_COMMANDS` live commands and
`MAX_MARKS_PER_KIND` marks of each kind. A playbook bounds its steps and arcs.
"""

from collections.abc import Callable
from typing import Any, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from noetl.engine.buckets import Buckets
from noetl.engine.fold import FINAL_CAUSE
from noetl.model import events as e
from noetl.model.errors import Failure
from noetl.model.failure_kinds import (
    MAX_KIND_MESSAGE_CHARS,
    MAX_KINDS,
    FailureKind,
    make_failure_kind,
    make_failure_shape,
)
from noetl.model.ids import ActivationId, CommandId, Micros

MAX_SHOWN_RUNS = 20  # the last runs of a step
MAX_TIMED_COMMANDS = 1_000  # live commands with their times; of others the report has the times
MAX_MARKS_PER_KIND = 64
MAX_SAW_BYTES = 1_024  # of the values that a guard saw last

MarkKind = Literal["failed", "retried", "parked", "paused", "resumed", "signal", "reclaimed"]


class StepFailureKind(Struct, omit_defaults=True):
    """A kind of failure of a step. `seq` is the event that reported the first one."""

    code: str
    shape: str
    count: int
    seq: int
    item: int | None = None
    message: str = ""


class RunError(Struct, omit_defaults=True):
    """Why a run has failed. `seq` is the event that said so first."""

    code: str
    message: str
    seq: int
    task: str | None = None


class RunBand(Struct, omit_defaults=True):
    """One run (activation) of a step."""

    run: int
    activation: ActivationId
    entered_at: Micros
    first_seq: int
    last_seq: int
    ended_at: Micros | None = None
    status: Literal["running", "completed", "failed", "skipped", "cancelled"] = "running"
    stats: e.Stats | None = None
    is_failing: bool = False  # its call, its loop, its `set` or its router has failed
    error: RunError | None = None


class StepBand(Struct, omit_defaults=True):
    name: str
    first_at: Micros
    first_seq: int
    last_at: Micros = 0
    last_seq: int = 0
    buckets: Buckets = msgspec.field(default_factory=Buckets)
    failed: int = 0  # failures, of items too
    failed_seq: int | None = None  # the event of the last failure
    kinds: list[StepFailureKind] = []
    runs: list[RunBand] = []
    last_error: tuple[str, str] | None = None  # code and shape of the failure that was counted last


class ArcBand(Struct, omit_defaults=True):
    taken: int = 0
    false: int = 0
    error: int = 0
    untried: int = 0
    verdict: str = ""  # the last one
    saw: dict[str, Any] = {}
    seq: int = 0


class TimedCommand(Struct, omit_defaults=True):
    """A command that has not ended, with its times."""

    step: str
    run: int
    issued_at: Micros
    queued_at: Micros
    started_at: Micros | None = None
    parked_at: Micros | None = None
    worker: str | None = None


class TimelineMark(Struct, omit_defaults=True):
    at: Micros
    seq: int
    step: str | None = None


class MarkSeries(Struct, omit_defaults=True):
    """Every `stride`th mark of a kind."""

    seen: int = 0
    stride: int = 1
    marks: list[TimelineMark] = []


class Bands(Struct, omit_defaults=True):
    steps: dict[str, StepBand] = {}
    arcs: dict[str, ArcBand] = {}
    commands: dict[CommandId, TimedCommand] = {}
    marks: dict[str, MarkSeries] = {}


_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Bands] = msgspec.json.Decoder(Bands)


def encode_bands(bands: Bands) -> bytes:
    return _encoder.encode(bands)


def decode_bands(data: bytes) -> Bands:
    return _decoder.decode(data)


def name_arc(step: str, number: int) -> str:
    """The id of an arc: its step, and its number in the document from 0."""
    return f"{step}:{number}"


def name_skip(step: str, rule: int) -> str:
    """The id of the way onward from a step that an admission rule skips, by the number of the rule."""
    return f"{step}:skip:{rule}"


def fold_band(bands: Bands, seq: int, event: e.Event) -> None:
    """Fold one event into the bands, in place."""
    event_type = type(event)
    fold = _FOLDS.get(event_type)
    if event_type in _STEP_EVENTS:
        step: str = getattr(event, "step")  # noqa: B009  # a type checker knows no such set of types
        if step:
            band = _touch_step(bands, step, seq, event)
            if fold is not None:
                fold(bands, band, seq, event)
            return
    other = _EXECUTION_FOLDS.get(event_type)
    if other is not None:
        other(bands, seq, event)


def _touch_step(bands: Bands, step: str, seq: int, event: e.Event) -> StepBand:
    band = bands.steps.get(step)
    if band is None:
        band = StepBand(step, first_at=event.at, first_seq=seq)
        bands.steps[step] = band
    band.last_at = event.at
    band.last_seq = seq
    run = _find_run(band, getattr(event, "activation", None))
    if run is not None:
        run.last_seq = seq
    return band


# ---- runs and arcs ----------------------------------------------------------------------------


def _fold_enter(bands: Bands, band: StepBand, seq: int, event: e.StepEnter) -> None:
    if event.cause == FINAL_CAUSE:
        _cancel_live_runs(bands, seq, event.at)
    band.runs.append(RunBand(event.run, event.activation, event.at, seq, seq))
    del band.runs[:-MAX_SHOWN_RUNS]
    band.buckets.find_bucket(event.at)


def _find_run(band: StepBand, activation: ActivationId | None) -> RunBand | None:
    for run in reversed(band.runs):
        if run.activation == activation:
            return run
    return None


def _fold_skipped(bands: Bands, band: StepBand, seq: int, event: e.StepSkipped) -> None:
    _end_run(band, seq, event.activation, event.at, "skipped")
    if event.next is not None:
        skip = e.Verdict(step=event.next, verdict="taken")
        _count_verdict(bands, name_skip(event.step, event.rule), skip, seq)


def _end_run(
    band: StepBand,
    seq: int,
    activation: ActivationId,
    at: Micros,
    status: Literal["completed", "failed", "skipped"],
) -> None:
    run = _find_run(band, activation)
    if run is not None:
        run.status = status
        run.ended_at = at
        run.last_seq = seq
    band.buckets.find_bucket(at)


def _fold_next(bands: Bands, band: StepBand, seq: int, event: e.NextEvaluated) -> None:
    for number, verdict in enumerate(event.verdicts):
        _count_verdict(bands, name_arc(event.step, number), verdict, seq)
    if event.error is not None:
        _count_failure(bands, band, seq, event.at, event.error)
        _note_run_error(_find_run(band, event.activation), seq, event.error)
    run = _find_run(band, event.activation)
    has_failed = event.error is not None or (run is not None and run.is_failing)
    _end_run(band, seq, event.activation, event.at, "failed" if has_failed else "completed")


def _count_verdict(bands: Bands, name: str, verdict: e.Verdict, seq: int) -> None:
    arc = bands.arcs.get(name)
    if arc is None:
        arc = ArcBand()
        bands.arcs[name] = arc
    match verdict.verdict:
        case "taken":
            arc.taken += 1
        case "false":
            arc.false += 1
        case "error":
            arc.error += 1
        case "untried":
            arc.untried += 1
    arc.verdict = verdict.verdict
    arc.saw = _cut_saw(verdict.saw)
    arc.seq = seq


def _cut_saw(saw: dict[str, Any]) -> dict[str, Any]:
    """The values that a guard saw; the first ones, if they are many."""
    if not saw or len(_encoder.encode(saw)) <= MAX_SAW_BYTES:
        return saw
    kept: dict[str, Any] = {}
    left = MAX_SAW_BYTES
    for name, value in saw.items():
        left -= len(_encoder.encode(value)) + len(name)
        if left < 0:
            break
        kept[name] = value
    return kept


# ---- commands -----------------------------------------------------------------------------------


def _fold_issued(bands: Bands, band: StepBand, seq: int, event: e.CommandIssued) -> None:
    band.buckets.find_bucket(event.at)
    if len(bands.commands) >= MAX_TIMED_COMMANDS:
        return
    run = _find_run(band, event.activation)
    number = 0 if run is None else run.run
    bands.commands[event.command_id] = TimedCommand(event.step, number, event.at, event.at)


def _fold_claimed(bands: Bands, band: StepBand, seq: int, event: e.CommandClaimed) -> None:
    command = bands.commands.get(event.command_id)
    if command is not None:
        command.worker = event.worker


def _fold_started(bands: Bands, band: StepBand, seq: int, event: e.CommandStarted) -> None:
    command = bands.commands.get(event.command_id)
    if command is None:
        return
    command.worker = event.worker
    if command.started_at is None:
        command.started_at = event.at
        band.buckets.add("started", event.at)


def _fold_reported(
    bands: Bands, band: StepBand, seq: int, event: e.CommandCompleted | e.CommandFailed
) -> None:
    buckets = band.buckets
    command = bands.commands.pop(event.command_id, None)
    _end_work(band, command, event.at, event.started_at)
    buckets.add("ended", event.at)
    if event.items is not None:
        _count_items(bands, band, seq, event.at, event.items)
    elif event.result.error is not None and isinstance(event, e.CommandFailed):
        _count_failure(bands, band, seq, event.at, event.result.error)


def _fold_evaluated(bands: Bands, band: StepBand, seq: int, event: e.ExpressionEvaluated) -> None:
    bands.commands.pop(event.command_id, None)
    if event.error is not None:
        _count_failure(bands, band, seq, event.at, event.error)


def _end_work(
    band: StepBand, command: TimedCommand | None, at: Micros, reported_start: Micros
) -> None:
    """Count the time that a worker has spent on a command until now."""
    buckets = band.buckets
    if command is not None and command.started_at is not None:
        start = command.started_at
    else:
        earliest = 0 if command is None else command.queued_at
        start = min(max(reported_start or at, earliest), at)
        buckets.add("started", start)
    buckets.add_busy_time(start, at)
    buckets.note_duration(at, at - start)


def _fold_dead(bands: Bands, band: StepBand, seq: int, event: e.CommandDead) -> None:
    bands.commands.pop(event.command_id, None)
    band.buckets.add("ended", event.at)
    message = f"{event.attempt} workers were lost while they ran this command"
    _count_failure(bands, band, seq, event.at, Failure(code="WORKER_LOST", message=message))


def _fold_cancelled(bands: Bands, band: StepBand, seq: int, event: e.CommandCancelled) -> None:
    command = bands.commands.pop(event.command_id, None)
    buckets = band.buckets
    buckets.add("ended", event.at)
    if command is not None and command.started_at is not None:
        buckets.add_busy_time(command.started_at, event.at)


def _fold_parked(bands: Bands, band: StepBand, seq: int, event: e.CommandParked) -> None:
    command = bands.commands.get(event.command_id)
    if command is not None:
        _end_work(band, command, event.at, 0)
        command.parked_at = event.at
        command.queued_at = event.at
        command.started_at = None
        command.worker = None
    if event.reason == "retry":
        _count_retry(bands, band, seq, event.at)
    else:
        _add_mark(bands, "parked", seq, event.at, event.step)


def _fold_requeued(
    bands: Bands, band: StepBand, seq: int, event: e.CommandReturned | e.CommandReclaimed
) -> None:
    command = bands.commands.get(event.command_id)
    if command is not None:
        if command.started_at is not None:
            band.buckets.add_busy_time(command.started_at, event.at)
        command.started_at = None
        command.worker = None
        command.queued_at = event.at
    if isinstance(event, e.CommandReclaimed):
        _add_mark(bands, "reclaimed", seq, event.at, event.step)


def _fold_retry(bands: Bands, band: StepBand, seq: int, event: e.RetryStarted) -> None:
    _count_retry(bands, band, seq, event.at)


def _count_retry(bands: Bands, band: StepBand, seq: int, at: Micros) -> None:
    band.buckets.add("retried", at)
    _add_mark(bands, "retried", seq, at, band.name)


def _fold_progress(bands: Bands, band: StepBand, seq: int, event: e.CommandProgress) -> None:
    _count_items(bands, band, seq, event.at, event.items)


# ---- failures -----------------------------------------------------------------------------------


def _count_items(bands: Bands, band: StepBand, seq: int, at: Micros, items: e.Items) -> None:
    buckets = band.buckets
    buckets.add("items", at, items.ok + items.failed + items.skipped)
    if not items.failed:
        return
    buckets.add("failed", at, items.failed)
    band.failed += items.failed
    band.failed_seq = seq
    for kind in _list_item_kinds(items):
        _count_kind(band, seq, kind)
    _add_mark(bands, "failed", seq, at, band.name)


def _list_item_kinds(items: e.Items) -> tuple[FailureKind, ...]:
    """The kinds of failed items. Reports of older workers have the first error only."""
    kinds: tuple[FailureKind, ...] = getattr(items, "kinds", ())
    if not kinds and items.first_error is not None:
        kinds = (make_failure_kind(items.first_error, items.failed, items.first_failed),)
    if not items.shift:
        return kinds
    return tuple(
        replace(kind, first=None if kind.first is None else kind.first + items.shift)
        for kind in kinds
    )


def _count_failure(bands: Bands, band: StepBand, seq: int, at: Micros, error: Failure) -> None:
    """Count a failure that is not one of items."""
    band.buckets.add("failed", at)
    band.failed += 1
    band.failed_seq = seq
    _count_kind(band, seq, make_failure_kind(error))
    _add_mark(bands, "failed", seq, at, band.name)


def _count_kind(band: StepBand, seq: int, kind: FailureKind) -> None:
    band.last_error = (kind.code, kind.shape)
    for known in band.kinds:
        if known.code == kind.code and known.shape == kind.shape:
            known.count += kind.count
            return
    if len(band.kinds) < MAX_KINDS:
        band.kinds.append(
            StepFailureKind(kind.code, kind.shape, kind.count, seq, kind.first, kind.message)
        )


def _fold_call_error(bands: Bands, band: StepBand, seq: int, event: e.CallError) -> None:
    _note_failing_run(bands, band, seq, event)


def _fold_exit(bands: Bands, band: StepBand, seq: int, event: e.StepExit) -> None:
    if not event.result.ok:
        _note_failing_run(bands, band, seq, event)


def _note_failing_run(
    bands: Bands, band: StepBand, seq: int, event: e.CallError | e.StepExit
) -> None:
    """Mark the run as failing. Its failure counts unless the report of its command has counted it."""
    error = event.result.error
    _note_run_error(_find_run(band, event.activation), seq, error)
    if error is None or error.kind == "loop":
        return
    if band.last_error == (error.code, make_failure_shape(error.message)):
        return
    _count_failure(bands, band, seq, event.at, error)


def _note_run_error(run: RunBand | None, seq: int, error: Failure | None) -> None:
    """Remember the first error of a run."""
    if run is None:
        return
    run.is_failing = True
    if run.error is None and error is not None:
        message = error.message[:MAX_KIND_MESSAGE_CHARS]
        run.error = RunError(error.code, message, seq, error.task)


def _fold_loop_done(bands: Bands, band: StepBand, seq: int, event: e.LoopDone) -> None:
    run = _find_run(band, event.activation)
    if run is None:
        return
    run.stats = event.stats
    if not event.result.ok:
        _note_run_error(run, seq, event.result.error)


# ---- marks and the execution --------------------------------------------------------------------


def _add_mark(bands: Bands, kind: MarkKind, seq: int, at: Micros, step: str | None) -> None:
    series = bands.marks.get(kind)
    if series is None:
        series = MarkSeries()
        bands.marks[kind] = series
    number = series.seen
    series.seen += 1
    if number % series.stride:
        return
    if len(series.marks) >= MAX_MARKS_PER_KIND:
        series.marks = series.marks[::2]
        series.stride *= 2
        if number % series.stride:
            return
    series.marks.append(TimelineMark(at, seq, step))


def _fold_paused(bands: Bands, seq: int, event: e.PlaybookPaused) -> None:
    _add_mark(bands, "paused", seq, event.at, None)


def _fold_resumed(bands: Bands, seq: int, event: e.PlaybookResumed) -> None:
    _add_mark(bands, "resumed", seq, event.at, None)


def _fold_signal(bands: Bands, seq: int, event: e.SignalReceived) -> None:
    _add_mark(bands, "signal", seq, event.at, None)


def _fold_end(bands: Bands, seq: int, event: e.Event) -> None:
    """End what is still live with the execution."""
    bands.commands.clear()
    _cancel_live_runs(bands, seq, event.at)


def _cancel_live_runs(bands: Bands, seq: int, at: Micros) -> None:
    for band in bands.steps.values():
        for run in band.runs:
            if run.ended_at is None:
                run.status = "cancelled"
                run.ended_at = at
                run.last_seq = seq


_STEP_EVENTS = e.list_types_with("step") - {
    e.PlaybookCompleted,
    e.PlaybookFailed,
    e.ExecutionCancelling,
}
StepFold = Callable[[Bands, StepBand, int, Any], None]
_FOLDS: dict[type, StepFold] = {
    e.StepEnter: _fold_enter,
    e.StepSkipped: _fold_skipped,
    e.NextEvaluated: _fold_next,
    e.CommandIssued: _fold_issued,
    e.CommandClaimed: _fold_claimed,
    e.CommandStarted: _fold_started,
    e.CommandCompleted: _fold_reported,
    e.CommandFailed: _fold_reported,
    e.ExpressionEvaluated: _fold_evaluated,
    e.CommandDead: _fold_dead,
    e.CommandCancelled: _fold_cancelled,
    e.CommandParked: _fold_parked,
    e.CommandReturned: _fold_requeued,
    e.CommandReclaimed: _fold_requeued,
    e.RetryStarted: _fold_retry,
    e.CommandProgress: _fold_progress,
    e.CallError: _fold_call_error,
    e.StepExit: _fold_exit,
    e.LoopDone: _fold_loop_done,
}
_EXECUTION_FOLDS: dict[type, Callable[[Bands, int, Any], None]] = {
    e.PlaybookPaused: _fold_paused,
    e.PlaybookResumed: _fold_resumed,
    e.SignalReceived: _fold_signal,
    e.PlaybookCompleted: _fold_end,
    e.PlaybookFailed: _fold_end,
    e.ExecutionCancelled: _fold_end,
}
