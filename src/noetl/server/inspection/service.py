"""Shows the inside of an execution: its page as of any event, its timeline, events, runs and reasons."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from noetl.engine.causes import AnyCause
from noetl.log.stores import Stores
from noetl.model.errors import InvalidInput
from noetl.model.identity import Identity, Permission, needs
from noetl.model.ids import ExecutionId, Micros
from noetl.server.dispatch.playbooks import Playbooks
from noetl.server.executions.access import Access
from noetl.server.executions.rows import RowCache
from noetl.server.inspection.event_pages import EventFilter, EventPages
from noetl.server.inspection.explanations import Explanations, RunFinder
from noetl.server.inspection.folds import ExecutionFolds
from noetl.server.inspection.lines import PlaybookLines
from noetl.server.inspection.page import make_page
from noetl.server.inspection.page_reader import PageReader
from noetl.server.inspection.runs import RunReader
from noetl.server.inspection.timeline import SpanReader, TimeWindow, make_timeline
from noetl.server.inspection.views import (
    ExplanationView,
    PageView,
    RunsView,
    TimelineView,
    ToldEventsView,
)
from noetl.server.inspection.watching import Watches, WatchMessage
from noetl.server.streams.live import LiveUpdates


class InspectionService:
    def __init__(
        self,
        stores: Stores,
        rows: RowCache,
        folds: ExecutionFolds,
        playbooks: Playbooks,
        live: LiveUpdates,
        access: Access,
    ) -> None:
        self._log = stores.log
        self._projections = stores.projections
        self._queue = stores.queue
        self._step_logs = stores.step_logs
        self._rows = rows
        self._folds = folds
        self._playbooks = playbooks
        self._live = live
        self._access = access
        lines = PlaybookLines(playbooks)
        self._reader = PageReader(stores, rows, folds, playbooks, lines)
        self._spans = SpanReader(stores.log, stores.snapshots, folds)
        self._events = EventPages(stores.log, folds)
        self._finder = RunFinder(folds)
        self._runs = RunReader(stores.log, folds)
        self._explanations = Explanations(stores, rows, folds, playbooks, lines)
        self._watches = Watches(self._reader.read_live, live)

    # -- the page --

    @needs(Permission.READ)
    async def get_page(
        self,
        identity: Identity,
        execution_id: ExecutionId,
        at: int | None = None,
        moment: Micros | None = None,
        number: int | None = None,
    ) -> PageView:
        """The page as of the event `at`, of the event with a number, as of a moment, or as of now."""
        await self._access.check_tenant(identity, execution_id)
        fold = await self._reader.read_fold(execution_id, at, moment, number)
        is_live = at is None and moment is None and number is None
        facts = await self._reader.read_facts(identity.tenant, fold, is_live=is_live)
        return make_page(fold, facts)

    # -- events --

    @needs(Permission.READ)
    async def list_events(
        self,
        identity: Identity,
        execution_id: ExecutionId,
        wanted: EventFilter,
        *,
        after: int = 0,
        before: int | None = None,
        number: int | None = None,
        limit: int = 500,
    ) -> ToldEventsView:
        """A page of events after `after`, from the one with this number on, or of the last ones
        before `before`."""
        await self._access.check_tenant(identity, execution_id)
        if before is not None and after:
            raise InvalidInput("after and before name two directions", hint="give one of them")
        if number is not None:
            if after or before is not None:
                raise InvalidInput("a page begins at one place", hint="give number alone")
            after = await self._folds.find_seq(execution_id, number) - 1
        return await self._events.read_page(
            execution_id, wanted, after=after, before=before, limit=limit
        )

    @needs(Permission.READ)
    async def find_event(self, identity: Identity, execution_id: ExecutionId, number: int) -> int:
        """The `seq` of the event with this number within the execution, from 1."""
        await self._access.check_tenant(identity, execution_id)
        return await self._folds.find_seq(execution_id, number)

    # -- steps --

    @needs(Permission.READ)
    async def explain(
        self,
        identity: Identity,
        execution_id: ExecutionId,
        step: str,
        at: int | None = None,
        run: int | None = None,
    ) -> ExplanationView:
        """Why the step ran, did not run, or waits: as of an event, of one of its runs, or of now."""
        await self._access.check_tenant(identity, execution_id)
        fold = await self._reader.read_fold(execution_id, at)
        is_live = at is None and run is None
        if run is not None:
            fold = await self._finder.read_run(fold, step, run)
        told = await self._explanations.explain_step(
            identity.tenant, fold, step, run, is_live=is_live
        )
        return ExplanationView(
            step=told.step,
            verdict=told.verdict,
            runs=told.runs,
            because=list(told.because),
            causes=list(told.causes),
            numbers=await self._find_numbers(execution_id, told.causes),
        )

    async def _find_numbers(
        self, execution_id: ExecutionId, causes: Sequence[AnyCause]
    ) -> list[int | None]:
        """For each cause: the number of its event within the execution, if it has one."""
        seqs: list[int | None] = [getattr(cause, "seq", None) for cause in causes]
        known = sorted({seq for seq in seqs if seq is not None})
        numbers = await self._folds.find_numbers(execution_id, known)
        by_seq = dict(zip(known, numbers, strict=True))
        return [None if seq is None else by_seq[seq] for seq in seqs]

    @needs(Permission.READ)
    async def list_runs(
        self,
        identity: Identity,
        execution_id: ExecutionId,
        step: str,
        before: int | None,
        limit: int,
    ) -> RunsView:
        await self._access.check_tenant(identity, execution_id)
        fold = await self._reader.read_fold(execution_id)
        return await self._runs.read_runs(fold, step, before, limit)

    # -- the stream --

    @needs(Permission.READ)
    async def has_ended_before(
        self, identity: Identity, execution_id: ExecutionId, after: int
    ) -> bool:
        """Whether nothing will ever come after `after`. Also checks the caller's access."""
        await self._access.check_tenant(identity, execution_id)
        row = await self._rows.read(execution_id)
        return row is not None and row.ended_at is not None and row.last_seq == after

    @needs(Permission.READ)
    async def watch(
        self, identity: Identity, execution_id: ExecutionId, after: int
    ) -> AsyncGenerator[WatchMessage | None, None]:
        """Messages about everything that changes, for a reader that has seen the event `after`."""
        await self._access.check_tenant(identity, execution_id)
        messages = self._watches.follow(identity.tenant, execution_id, after)
        async with aclosing(messages):
            async for message in messages:
                yield message

    # -- the timeline --

    @needs(Permission.READ)
    async def get_timeline(
        self,
        identity: Identity,
        execution_id: ExecutionId,
        start: Micros | None,
        end: Micros | None,
        buckets: int,
        step: str | None,
    ) -> TimelineView:
        await self._access.check_tenant(identity, execution_id)
        fold = await self._reader.read_fold(execution_id)
        state = fold.state
        window = TimeWindow(
            state.started_at if start is None else start, state.last_at if end is None else end
        )
        if window.start > window.end:
            raise InvalidInput("`from` is after `to`", hint="give an earlier moment as `from`")
        found = await self._spans.read_spans(execution_id, window, state.events, step)
        return make_timeline(fold.bands, window, found, buckets, step)
