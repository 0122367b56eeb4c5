"""The attempts of commands as spans of time, from the events of a window. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from noetl.engine.execution_fold import ExecutionFold
from noetl.engine.state import Execution, OpenCommand
from noetl.log.events.port import RecordedEvent
from noetl.model import events as e
from noetl.model.clock import format_iso_or_none
from noetl.model.ids import CommandId, Micros
from noetl.server.inspection.summaries import join_indexes
from noetl.server.inspection.views import SpanView


@dataclass(slots=True)
class OpenSpan:
    """An attempt that has not ended, as far as the events were read."""

    command_id: CommandId
    step: str
    run: int
    kind: str
    first: int
    count: int
    attempt: int
    issued_at: Micros | None
    started_at: Micros | None = None
    worker: str | None = None
    waits_for: str | None = None
    ok: int = 0
    failed: int = 0
    skipped: int = 0
    repeats: bool = False
    indexes: tuple[int, int] | None = None


class SpanBuilder:
    """Makes spans: begin with the commands that are live at the start, then add the events."""

    def __init__(self, base: ExecutionFold) -> None:
        self._open: dict[CommandId, OpenSpan] = {}
        self._spans: list[SpanView] = []
        self._runs: dict[str, int] = {}
        for activation in base.state.activations.values():
            self._runs[activation.id] = activation.run
        for command in base.state.commands.values():
            timed = base.bands.commands.get(command.id)
            repeats, indexes = find_repeated_indexes(base.state, command)
            self._open[command.id] = OpenSpan(
                command_id=command.id,
                step=command.step,
                run=self._runs.get(command.activation, 0),
                kind=command.kind,
                first=command.first,
                count=command.count,
                attempt=command.attempt,
                issued_at=None if timed is None else timed.queued_at,
                started_at=None if timed is None else timed.started_at,
                worker=command.worker,
                waits_for=None if command.parked is None else command.parked.reason,
                repeats=repeats,
                indexes=indexes,
            )

    def add_event(self, recorded: RecordedEvent) -> None:
        event = recorded.event
        match event:
            case e.StepEnter():
                self._runs[event.activation] = event.run
            case e.CommandIssued():
                self._issue(event)
            case e.CommandClaimed() | e.CommandStarted():
                self._note_worker(event)
            case e.CommandProgress():
                self._count_items(event.command_id, event.items)
            case e.CommandCompleted() | e.CommandFailed():
                self._end_reported(event)
            case e.ExpressionEvaluated():
                status = "completed" if event.error is None else "failed"
                self._end(event.command_id, event.at, status, worker=event.worker)
            case e.CommandDead():
                self._end(event.command_id, event.at, "failed", "too many workers were lost")
            case e.CommandCancelled():
                self._end(event.command_id, event.at, "cancelled")
            case e.CommandParked():
                self._park(event)
            case e.CommandReturned():
                self._requeue(event, event.attempt + 1, "its worker gave it back")
            case e.CommandReclaimed():
                self._requeue(event, event.attempt, "its worker was lost")
            case _:
                pass

    def list_spans(self, step: str | None = None) -> list[SpanView]:
        """All spans, those that have not ended last."""
        spans = list(self._spans)
        for span in self._open.values():
            status = "running" if span.waits_for is None else "waiting"
            spans.append(_make_span(span, None, status, span.waits_for))
        if step is None:
            return spans
        return [span for span in spans if span.step == step]

    def _issue(self, event: e.CommandIssued) -> None:
        self._open[event.command_id] = OpenSpan(
            command_id=event.command_id,
            step=event.step,
            run=self._runs.get(event.activation, 0),
            kind=event.kind,
            first=event.first,
            count=event.count,
            attempt=1,
            issued_at=event.at,
            repeats=event.repeats,
            indexes=event.indexes,
        )

    def _note_worker(self, event: e.CommandClaimed | e.CommandStarted) -> None:
        span = self._open.get(event.command_id)
        if span is None:
            return
        span.waits_for = None
        span.worker = event.worker
        span.attempt = event.attempt
        if isinstance(event, e.CommandStarted):
            span.started_at = event.at

    def _count_items(self, command_id: CommandId, items: e.Items | None) -> None:
        span = self._open.get(command_id)
        if span is not None and items is not None:
            span.ok += items.ok
            span.failed += items.failed
            span.skipped += items.skipped
            if items.indexes is not None:
                span.indexes = join_indexes(span.indexes, items.indexes)

    def _end_reported(self, event: e.CommandCompleted | e.CommandFailed) -> None:
        self._count_items(event.command_id, event.items)
        span = self._open.get(event.command_id)
        if span is not None and span.started_at is None and event.started_at:
            span.started_at = event.started_at
        reason = None if event.result.error is None else event.result.error.code
        status = "completed" if isinstance(event, e.CommandCompleted) else "failed"
        if span is not None:
            span.attempt = event.attempt
        self._end(event.command_id, event.at, status, reason, event.worker or None)

    def _end(
        self,
        command_id: CommandId,
        at: Micros,
        status: str,
        reason: str | None = None,
        worker: str | None = None,
    ) -> OpenSpan | None:
        span = self._open.pop(command_id, None)
        if span is None:
            return None
        span.worker = worker or span.worker
        self._spans.append(_make_span(span, at, status, reason))
        return span

    def _park(self, event: e.CommandParked) -> None:
        """End the attempt. The next one waits until its time has come."""
        span = self._end(event.command_id, event.at, "waiting", event.reason, event.worker or None)
        if span is not None:
            self._reopen(span, event.attempt + 1, event.at, event.reason)

    def _requeue(
        self, event: e.CommandReturned | e.CommandReclaimed, attempt: int, reason: str
    ) -> None:
        span = self._end(event.command_id, event.at, "returned", reason, event.worker or None)
        if span is not None:
            self._reopen(span, attempt, event.at, None)

    def _reopen(
        self,
        span: OpenSpan,
        attempt: int,
        at: Micros,
        waits_for: str | None,
    ) -> None:
        self._open[span.command_id] = OpenSpan(
            command_id=span.command_id,
            step=span.step,
            run=span.run,
            kind=span.kind,
            first=span.first,
            count=span.count,
            attempt=attempt,
            issued_at=at,
            waits_for=waits_for,
            repeats=span.repeats,
            indexes=span.indexes,
        )


def make_spans(
    base: ExecutionFold, events: Iterable[RecordedEvent], step: str | None = None
) -> list[SpanView]:
    """The spans of a window: of the commands that are live at its start, and of its events."""
    builder = SpanBuilder(base)
    for recorded in events:
        builder.add_event(recorded)
    return builder.list_spans(step)


def _make_span(
    span: OpenSpan, ended_at: Micros | None, status: str, reason: str | None
) -> SpanView:
    return SpanView(
        step=span.step,
        run=span.run,
        command_id=span.command_id,
        kind=span.kind,
        attempt=span.attempt,
        first=span.first,
        count=span.count,
        issued=format_iso_or_none(span.issued_at),
        started=format_iso_or_none(span.started_at),
        ended=format_iso_or_none(ended_at),
        ok=span.ok,
        failed=span.failed,
        skipped=span.skipped,
        status=status,
        reason=reason,
        worker=span.worker,
        repeats=span.repeats,
        indexes=None if span.indexes is None else list(span.indexes),
    )


def find_repeated_indexes(
    state: Execution, command: OpenCommand
) -> tuple[bool, tuple[int, int] | None]:
    """Whether the command runs failed items again; the lowest and the highest index of them, if
    they were chosen."""
    activation = state.activations.get(command.activation)
    loop = None if activation is None else activation.loop
    if loop is None or loop.collection.kind != "failed":
        return False, None
    return True, loop.collection.find_indexes(command.first, command.count)
