"""The runs of a step with the attempts of their commands."""

from dataclasses import dataclass, field
from typing import Any

import msgspec

from noetl.engine.bands import RunBand
from noetl.engine.execution_fold import ExecutionFold, make_empty_fold
from noetl.log.events.port import EventLog, RecordedEvent
from noetl.model import events as e
from noetl.model.clock import format_iso, format_iso_or_none
from noetl.model.errors import NotFound
from noetl.model.failure_kinds import MAX_KIND_MESSAGE_CHARS
from noetl.model.ids import CommandId, ExecutionId
from noetl.server.inspection.explanations import RunFinder, get_last_run_number, get_run
from noetl.server.inspection.folds import ExecutionFolds
from noetl.server.inspection.spans import make_spans
from noetl.server.inspection.views import AttemptView, ErrorView, RunsView, RunView, SpanView

MAX_READ_EVENTS = 1_000  # of one request
MAX_RUN_EVENTS = 500  # of one run
EVENTS_PER_READ = 100
MAX_TAIL_EVENTS = 20  # of a run that is not read to its end
MAX_LISTED_ATTEMPTS = 20
MAX_ARGS_BYTES = 4 * 1024
AttemptKey = tuple[CommandId, int]


@dataclass(slots=True)
class RunEvents:
    """Events of a run that were read, without those of other steps among them."""

    own: list[RecordedEvent] = field(default_factory=list)
    looked_at: int = 0
    is_whole: bool = True

    def add_page(self, page: list[RecordedEvent], run: RunBand) -> None:
        self.looked_at += len(page)
        self.own += [
            recorded
            for recorded in page
            if getattr(recorded.event, "activation", None) == run.activation
        ]


class RunReader:
    def __init__(self, log: EventLog, folds: ExecutionFolds) -> None:
        self._log = log
        self._folds = folds
        self._finder = RunFinder(folds)

    async def read_runs(
        self, fold: ExecutionFold, step: str, before: int | None, limit: int
    ) -> RunsView:
        """The last runs before a number, newest first, with the attempts of their commands."""
        execution_id = fold.state.execution_id
        if step not in fold.bands.steps:
            raise NotFound(f"step {step!r} has no run", hint="GET …/view lists the steps that have")
        if before is not None and before <= get_last_run_number(fold, step):
            fold = await self._finder.find_fold(fold, step, before)
            following = get_run(fold, step, before)
            if following is not None and following.first_seq < fold.seq:
                fold = await self._folds.read_at(execution_id, following.first_seq)
        known = [run for run in fold.bands.steps[step].runs if before is None or run.run < before]
        shown = list(reversed(known))[:limit]
        views: list[RunView] = []
        left = MAX_READ_EVENTS
        for run in shown:
            found = await self._read_events(execution_id, run, min(left, MAX_RUN_EVENTS))
            left -= found.looked_at
            views.append(make_run_view(execution_id, run, found))
        next_before = None
        if shown and shown[-1].run > 1:
            next_before = shown[-1].run
        return RunsView(views, next_before, MAX_READ_EVENTS - left)

    async def _read_events(self, execution_id: ExecutionId, run: RunBand, limit: int) -> RunEvents:
        """The first events of a run, until enough attempts have ended, and its last ones.

        So the cost depends neither on the length of the run nor on what ran beside it.
        """
        found = RunEvents()
        position = run.first_seq - 1
        while found.looked_at < limit and position < run.last_seq:
            page = await self._log.read_events_between(
                execution_id, position, run.last_seq, EVENTS_PER_READ
            )
            found.add_page(page, run)
            position = page[-1].seq if len(page) == EVENTS_PER_READ else run.last_seq
            if len(_list_ended(execution_id, found.own)) >= MAX_LISTED_ATTEMPTS:
                break
        found.is_whole = position >= run.last_seq
        if not found.is_whole and limit > 0:
            await self._read_tail(execution_id, run, position, found)
        return found

    async def _read_tail(
        self, execution_id: ExecutionId, run: RunBand, after: int, found: RunEvents
    ) -> None:
        """Add the last events of a run that was not read to its end."""
        end = run.last_seq + 1
        tail = await self._log.read_events_before(execution_id, end, MAX_TAIL_EVENTS)
        found.add_page([recorded for recorded in tail if recorded.seq > after], run)


def _list_ended(execution_id: ExecutionId, events: list[RecordedEvent]) -> list[SpanView]:
    spans = make_spans(make_empty_fold(execution_id), events)
    return [span for span in spans if span.ended is not None]


def make_run_view(execution_id: ExecutionId, run: RunBand, found: RunEvents) -> RunView:
    """A run from its events. Of an attempt that was not read to its end nothing is known if the run
    is over."""
    attempts = _list_attempts(execution_id, found.own)
    if run.ended_at is not None and not found.is_whole:
        attempts = [attempt for attempt in attempts if attempt.ended_at is not None]
    return RunView(
        run=run.run,
        status=run.status,
        entered_at=format_iso(run.entered_at),
        ended_at=format_iso_or_none(run.ended_at),
        first_seq=run.first_seq,
        last_seq=run.last_seq,
        args=_find_args(found.own),
        stats=None if run.stats is None else msgspec.structs.asdict(run.stats),
        error=None if run.error is None else ErrorView(run.error.code, run.error.message),
        attempts=attempts[:MAX_LISTED_ATTEMPTS],
        attempts_total=len(attempts) if found.is_whole else None,
    )


def _find_args(events: list[RecordedEvent]) -> dict[str, Any] | None:
    """The arguments of the run; None if they are large or its first event was not read."""
    for recorded in events:
        if isinstance(recorded.event, e.StepEnter):
            args = recorded.event.args
            return args if len(msgspec.json.encode(args)) <= MAX_ARGS_BYTES else None
    return None


def _list_attempts(execution_id: ExecutionId, events: list[RecordedEvent]) -> list[AttemptView]:
    claimed: dict[AttemptKey, str] = {}
    errors: dict[AttemptKey, ErrorView] = {}
    for recorded in events:
        event = recorded.event
        match event:
            case e.CommandClaimed():
                claimed[event.command_id, event.attempt] = format_iso(event.at)
            case e.CommandCompleted() | e.CommandFailed():
                key = (event.command_id, event.attempt)
                if event.claimed_at:
                    claimed.setdefault(key, format_iso(event.claimed_at))
                error = event.result.error
                if error is None and event.items is not None:
                    error = event.items.first_error
                if error is not None:
                    errors[key] = ErrorView(error.code, error.message[:MAX_KIND_MESSAGE_CHARS])
            case e.CommandParked() if event.error is not None:
                message = event.error.message[:MAX_KIND_MESSAGE_CHARS]
                errors[event.command_id, event.attempt] = ErrorView(event.error.code, message)
            case _:
                pass
    return [
        AttemptView(
            command_id=span.command_id,
            attempt=span.attempt,
            first=span.first,
            count=span.count,
            worker=span.worker,
            claimed_at=claimed.get((CommandId(span.command_id), span.attempt)),
            started_at=span.started,
            ended_at=span.ended,
            status=span.status,
            error=errors.get((CommandId(span.command_id), span.attempt)),
            repeats=span.repeats,
            indexes=span.indexes,
        )
        for span in make_spans(make_empty_fold(execution_id), events)
    ]
