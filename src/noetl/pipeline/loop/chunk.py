"""Runs many items of a loop in one command: a chunk of a collection, or a frame that a cursor
claimed.

Each item runs the step's pipeline with its own `iter`. All rows go into one payload, and there is
no event per item. Progress is journaled at most once a second: items before `done` are finished,
and an entry, like the final report after it, covers only what no earlier entry covers.

Every item of the command ends in exactly one of these ways. It is counted as `ok`, `failed` or
`skipped` (every task was skipped). It is listed in `deferred`, because its retry waits too long to
hold a worker. Or it does not run, because an earlier item failed and the loop stops at the first
failure. Items that do not run are in no count and have no row; their number is count - ok - failed
- skipped - deferred.
"""

import asyncio
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from operator import itemgetter
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from noetl.model import events as e
from noetl.model.clock import format_iso
from noetl.model.commands import MAX_FRAME_ROWS, Command
from noetl.model.envelope import Envelope, Meta
from noetl.model.errors import Failure
from noetl.model.failure_kinds import (
    count_failure_kinds,
    fit_failure_kinds,
    merge_failure_kinds,
)
from noetl.model.ids import ExecutionId, derive_id
from noetl.model.reference import Reference
from noetl.pipeline.context import CommandContext
from noetl.pipeline.environment import OutgoingEvent
from noetl.pipeline.failures import TaskFailed
from noetl.pipeline.loop.batched_items import BatchedItems
from noetl.pipeline.loop.collections import IndexedItem, list_issued_items, read_items
from noetl.pipeline.output.provenance import describe_tool, merge_provenance
from noetl.pipeline.output.result_writer import StorageWish
from noetl.pipeline.scope.evaluate import make_site_rendering
from noetl.pipeline.scope.lazy_results import LazyResult
from noetl.pipeline.scope.names import LoopItem, ScopeWrites, fold_reduced_writes, make_loop_id
from noetl.pipeline.task.calls import PreparedCall, run_call_in_memory
from noetl.pipeline.task.run import Pipeline, PipelineEnd, PipelinePause
from noetl.playbook import reducers
from noetl.playbook.model import Cursor
from noetl.tools.port import Call, CallIdentity, Failed, Success, raw_fields

# Seconds between two journal entries, and seconds of work that are lost without the entry.
PROGRESS_INTERVAL_S = 1.0
PROGRESS_CHECK_S = 0.25  # seconds between two looks at whether an entry is due
MAX_ITEMS_PER_CALL = 10_000  # items in memory as inputs; no chunk has more, but a frame may


class ItemResult(Struct, frozen=True):
    """One item that needs no worker any more."""

    micros: int
    row: dict[str, Any] | None = None  # None if the item is deferred
    failure: Failure | None = None
    deferred: e.Deferred | None = None
    reduced: list[tuple[str, Any]] = []
    recovered: e.Recovered | None = None  # errors of its tasks that rules let pass


def make_item_row(
    index: int,
    status: str,
    failure: Failure | None,
    ms: float,
    tries: int,
    value: Any,
) -> dict[str, Any]:
    return {
        "index": index,
        "status": status,
        "error": None if failure is None else failure.to_template_map(),
        "ms": round(ms),
        "tries": tries,
        "result": value if failure is None else None,
    }


class _LoopStopped(Exception):
    """An item failed and the loop ends at the first failure."""


async def run_chunk(context: CommandContext) -> e.Reported:
    command = context.command
    start = max(command.first, command.journal.done)
    stop = command.first + command.count
    items = list_issued_items(command, start, stop)
    if items is None:
        items = await read_items(context, make_site_rendering(context), start, stop)
    if command.count == 1 and items and context.plan.steps[command.step].needs_own_command:
        return await _run_single_item(context, items[0])
    chunk = Chunk(context, items, start)
    await chunk.run()
    return await chunk.report_items()


async def _run_single_item(context: CommandContext, indexed: IndexedItem) -> e.Reported:
    """Run an item that is alone in its command.

    It keeps a journal, so that it can pause, and a new attempt can continue it.
    """
    start = max(context.command.first, context.command.journal.done)
    chunk = Chunk(context, [indexed], start)
    pipeline = chunk.make_pipeline(indexed, journal=True)
    began = asyncio.get_running_loop().time()
    ended = await pipeline.run()
    if isinstance(ended, PipelinePause):
        return context.parked_event(ended)
    await chunk.finish_item(0, await chunk.make_result(0, pipeline, ended, began))
    return await chunk.report_items()


class ItemBatch:
    """Items that run together, in one call if they are plain and each in its pipeline otherwise.

    Nothing is reported before the end; `Chunk` adds that.
    """

    def __init__(
        self,
        context: CommandContext,
        items: list[IndexedItem],
        start: int,
    ) -> None:
        self._context = context
        self._items = items
        self._start = start  # position of the first item
        self._size = context.command.size or None  # None if a cursor gives the items
        self._loop_id = make_loop_id(context.command)
        self._writes: ScopeWrites = context.make_writes()
        self._results: dict[int, ItemResult] = {}
        self._stopped = False  # an item failed, and the loop ends at the first failure
        self._unsaved_ms = 0.0  # milliseconds of work that no journal entry covers
        now = format_iso(context.env.clock.now())
        self._batched_items = BatchedItems.from_shared(context.shared, self._writes, now)

    @property
    def ordered_results(self) -> list[ItemResult]:
        """The results in the order of the items."""
        return [self._results[position] for position in sorted(self._results)]

    def fold_reduced_writes(self, results: list[ItemResult]) -> dict[str, Any]:
        """Fold the writes with a reducer, in the order of the items."""
        writes = [write for result in results for write in result.reduced]
        return fold_reduced_writes(self._writes.reducers, writes)

    async def run(self) -> None:
        """Run as many items at a time as the command allows.

        If one fails and the loop stops at the first failure, the others are cancelled.
        """
        positions = iter(range(len(self._items)))
        together = max(self._context.command.together, 1)
        together = min(together, len(self._items))
        with suppress(_LoopStopped):
            if self._batched_items is not None:
                await self._run_plain_items(self._batched_items, together)
            elif together == 1:
                await self._run_sequence(positions)
            else:
                await self._run_parallel(positions, together)

    async def _run_plain_items(self, plain: BatchedItems, together: int) -> None:
        """Run the items in one call of their tool, and report progress while it runs."""
        for start in range(0, len(self._items), MAX_ITEMS_PER_CALL):
            if len(self._items) == 1:
                await self._call_tool(plain, start, together)  # no progress before its end
            else:
                await self._call_with_progress(plain, start, together)
            if self._stopped:
                if together == 1:
                    self._drop_results_after_failure()
                raise _LoopStopped

    async def _call_with_progress(self, plain: BatchedItems, start: int, together: int) -> None:
        running = asyncio.ensure_future(self._call_tool(plain, start, together))
        try:
            while not running.done():
                await asyncio.wait([running], timeout=PROGRESS_CHECK_S)
                await self._report_progress()
        finally:
            if not running.done():
                running.cancel()
                await asyncio.wait([running])
        running.result()

    async def _call_tool(self, plain: BatchedItems, start: int, together: int) -> None:
        """Run items from this position on in one call of their tool."""
        stop = start + MAX_ITEMS_PER_CALL
        items = [self._make_loop_item(indexed) for indexed in self._items[start:stop]]

        def keep_value(number: int, value: Any, seconds: float, running: int) -> None:
            # The engine expects that `together` items run at once. If fewer do, each takes longer.
            elapsed = seconds * together / running
            position = start + number
            self._keep_result(position, self._make_plain_result(position, value, elapsed, seconds))

        await plain.run_items(
            items, keep_value, together, stop=self._context.command.stop_on_failure
        )

    def _drop_results_after_failure(self) -> None:
        """Drop what comes after the first failed item: items run one after the other."""
        failed = [position for position, result in self._results.items() if result.failure]
        first_failed = min(failed)
        for position in list(self._results):
            if position > first_failed:
                del self._results[position]

    async def _run_parallel(self, positions: Iterator[int], together: int) -> None:
        runners = [asyncio.ensure_future(self._run_sequence(positions)) for _ in range(together)]
        try:
            await asyncio.wait(runners, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for runner in runners:
                runner.cancel()
            outcomes = await asyncio.gather(*runners, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, _LoopStopped | asyncio.CancelledError):
                continue
            if isinstance(outcome, BaseException):
                raise outcome

    async def _run_sequence(self, positions: Iterator[int]) -> None:
        for position in positions:
            await self.finish_item(position, await self._run_item(position))
            if self._stopped:
                raise _LoopStopped
            # Cheap items never yield by themselves, and the worker must renew its leases.
            await asyncio.sleep(0)

    async def _run_item(self, position: int) -> ItemResult:
        began = asyncio.get_running_loop().time()
        pipeline = self.make_pipeline(self._items[position], journal=False)
        return await self.make_result(position, pipeline, await pipeline.run(), began)

    def _make_loop_item(self, indexed: IndexedItem) -> LoopItem:
        loop = self._context.step.loop
        iterator = loop.iterator if loop is not None else "item"
        return LoopItem(*indexed, iterator, self._size, self._loop_id)

    def make_pipeline(self, indexed: IndexedItem, *, journal: bool) -> Pipeline:
        context = self._context
        return context.make_pipeline(
            self._writes,
            item=self._make_loop_item(indexed),
            journal=context.journal if journal else None,
            behind=context.command.attempts,
        )

    def _make_plain_result(
        self,
        position: int,
        value: Any,
        seconds: float,
        share: float,
    ) -> ItemResult:
        """The result of a plain item, from its value or its failure.

        It ran for `share` seconds, and counts as `seconds` where the next chunk is chosen.
        """
        failure, status = None, "ok"
        if isinstance(value, Failure):
            failure, status = value, "error"
        index = self._items[position][0]
        row = make_item_row(index, status, failure, share * 1_000, 1, value)
        return ItemResult(round(seconds * 1_000_000), row, failure)

    async def make_result(
        self,
        position: int,
        pipeline: Pipeline,
        ended: PipelineEnd | PipelinePause,
        began: float,
    ) -> ItemResult:
        """The result of an item that ran in a pipeline."""
        micros = round((asyncio.get_running_loop().time() - began) * 1_000_000)
        if isinstance(ended, PipelinePause):
            deferred = e.Deferred(self._start + position, ended.tries, ended.delay)
            return ItemResult(micros, deferred=deferred)
        failure, meta = ended.failure, ended.meta
        status = "ok"
        if failure is not None:
            status = "error"
        elif not ended.ran:
            status = "skipped"
        reference = ended.value.envelope.reference
        if reference is not None:
            value = await self._context.payloads.resolve(reference)
        else:
            value = ended.value.stored_value()
        index = self._items[position][0]
        row = make_item_row(index, status, failure, micros / 1_000, ended.tries, value)
        reduced: list[tuple[str, Any]] = []
        if failure is None:
            meta = ended.value.envelope.meta
            for name, written in pipeline.names.reduced:
                reduced.append((name, await self._resolve_write(written)))
        if meta is not None and meta.provenance:
            row["provenance"] = meta.provenance
        return ItemResult(micros, row, failure, reduced=reduced, recovered=ended.recovered)

    async def _resolve_write(self, written: Any) -> Any:
        """The value of a write. A write of an earlier attempt is a reference."""
        if not isinstance(written, LazyResult):
            return written
        reference = written.envelope.reference
        if reference is None:
            return written
        return await self._context.payloads.resolve(reference)

    async def finish_item(self, position: int, result: ItemResult) -> None:
        self._keep_result(position, result)
        await self._report_progress()

    def _keep_result(self, position: int, result: ItemResult) -> None:
        self._results[position] = result
        if result.row is not None:
            self._unsaved_ms += result.row["ms"]
        if result.failure is not None and self._context.command.stop_on_failure:
            self._stopped = True

    async def _report_progress(self) -> None:
        """Report the items that have ended, if it is time. Here: never."""


class Chunk(ItemBatch):
    """The items of one command. Journals them as they end, and reports them."""

    def __init__(
        self,
        context: CommandContext,
        items: list[IndexedItem],
        start: int,
        *,
        claimed: int | None = None,
    ) -> None:
        super().__init__(context, items, start)
        self._claimed = claimed
        self._done = 0  # all items before this one have ended
        self._covered_items = 0  # items that a journal entry covers
        self._entry: asyncio.Task[None] | None = None  # the journal entry being sent
        self._last_entry_at = asyncio.get_running_loop().time()
        last = context.shared.tasks[-1]
        self._kind = last.kind
        # All items share one payload, so the tier that the author wishes for one value is ignored.
        self._wish = StorageWish(None, StorageWish.from_output(last.output).lifetime)

    async def _report_progress(self) -> None:
        """Journal the items that have ended, if it is time."""
        now = asyncio.get_running_loop().time()
        while self._done in self._results:
            self._done += 1
        done = self._done
        idle = self._entry is None or self._entry.done()
        late = (
            now - self._last_entry_at >= PROGRESS_INTERVAL_S
            and self._unsaved_ms >= PROGRESS_INTERVAL_S * 1_000
        )
        # An entry cannot carry writes that later items have seen: only the report does.
        due = late and idle and not self._writes.changed
        if not due or done == self._covered_items or done == len(self._items):
            return
        if self._stopped:
            return
        self._entry = asyncio.ensure_future(self._journal_progress(done))
        # The server may have recorded the entry already, so it is finished even if this item's
        # runner is cancelled.
        await asyncio.shield(self._entry)

    async def _journal_progress(self, done: int) -> None:
        results = [self._results[position] for position in range(self._covered_items, done)]
        label = f"part{self._start + self._covered_items}"
        envelope = await self._store_rows(label, results)
        items = await self._count_uncovered(label, results)
        event = e.CommandProgress(
            done=self._start + done,
            items=items,
            result=envelope,
            **self._context.event_fields,
        )
        await self._context.journal(OutgoingEvent(event, self._context.persist.take_references()))
        self._covered_items = done
        self._last_entry_at = asyncio.get_running_loop().time()
        self._unsaved_ms = 0.0

    async def report_items(self) -> e.CommandCompleted:
        if self._entry is not None:
            await self._entry
        positions = sorted(self._results)
        results = [
            self._results[position] for position in positions if position >= self._covered_items
        ]
        envelope = await self._store_rows("chunk", results)
        items = await self._count_uncovered("chunk", results, claimed=self._claimed)
        writes = self._writes
        assigned = await self._context.persist.carry_assignments(
            "set", writes.changed, writes.literal
        )
        return self._context.completed_event(envelope, items=items, set=assigned)

    async def _store_rows(self, label: str, results: list[ItemResult]) -> Envelope:
        """Store the rows of the items as one payload."""
        rows = [result.row for result in results if result.row is not None]
        reference: Reference | None = None
        if rows:
            reference = await self._context.persist.put_value(label, rows, wish=self._wish)
        tool = self._context.env.registry.get(self._kind)
        provenance = merge_provenance(row["provenance"] for row in rows if "provenance" in row)
        meta = Meta(tool=describe_tool(self._kind, tool), provenance=provenance)
        context = {"row_count": len(rows)}
        return Envelope(
            status="ok",
            reference=reference,
            context=context,
            meta=meta,
        )

    async def _count_uncovered(
        self, label: str, results: list[ItemResult], claimed: int | None = None
    ) -> e.Items:
        """The counts of the items that no journal entry covers yet."""
        partial = self.fold_reduced_writes(results)
        items = count_results(self._start + self._covered_items, results, partial, claimed)
        collection = self._context.command.collection
        if collection is not None and collection.kind == "failed":
            indexes = [result.row["index"] for result in results if result.row is not None]
            items = replace(items, indexes=find_bounds(indexes))
        return await self._context.store_gathered(label, items)


def count_results(
    first: int,
    results: list[ItemResult],
    partial: dict[str, Any],
    claimed: int | None = None,
) -> e.Items:
    """The counts of these items, from position `first` on."""
    rows = [result.row for result in results if result.row is not None]
    failures = [
        (result.row["index"], result.failure)
        for result in results
        if result.row and result.failure is not None
    ]
    first_failed, first_error = min(failures, key=itemgetter(0), default=(None, None))
    return e.Items(
        first=first,
        ok=sum(row["status"] == "ok" for row in rows),
        failed=len(failures),
        skipped=sum(row["status"] == "skipped" for row in rows),
        micros=sum(result.micros for result in results),
        claimed=claimed,
        first_error=first_error,
        first_failed=first_failed,
        deferred=tuple(result.deferred for result in results if result.deferred is not None),
        partial=partial,
        recovered=_sum_recoveries(result.recovered for result in results),
        kinds=count_failure_kinds(failures) if failures else (),
    )


def find_bounds(indexes: Collection[int]) -> tuple[int, int] | None:
    """The lowest and the highest one; None if there is none."""
    return (min(indexes), max(indexes)) if indexes else None


def _sum_recoveries(recoveries: Iterable[e.Recovered | None]) -> e.Recovered | None:
    total: e.Recovered | None = None
    for recovered in recoveries:
        if recovered is None:
            continue
        if total is None:
            total = recovered
        else:
            total = total.add_later_errors(recovered)
    return total


def add_counts(
    reduce: Mapping[str, str],
    left: e.Items,
    right: e.Items,
) -> e.Items:
    """Add two counts. The items of `left` come first."""
    partial = dict(left.partial)
    for name, value in right.partial.items():
        before = partial.get(name, reducers.NOTHING_FOLDED)
        partial[name] = reducers.combine_reductions(reduce[name], before, value)
    first = left if left.first_failed is not None else right
    return e.Items(
        first=left.first,
        ok=left.ok + right.ok,
        failed=left.failed + right.failed,
        skipped=left.skipped + right.skipped,
        micros=left.micros + right.micros,
        first_error=first.first_error,
        first_failed=first.first_failed,
        partial=partial,
        recovered=_sum_recoveries((left.recovered, right.recovered)),
        kinds=fit_failure_kinds(merge_failure_kinds(left.kinds, right.kinds)),
        indexes=find_bounds([*(left.indexes or ()), *(right.indexes or ())]),
    )


# ---- frames --------------------------------------------------------------------------------------


async def run_frame(context: CommandContext) -> e.Reported:
    """Claim rows, store and journal them, then run them.

    A new attempt runs the rows that the earlier one claimed.
    """
    command, journal = context.command, context.command.journal
    rows: list[Any] = []
    if journal.frame_size is None:
        rows = await _claim_rows(context)
        if not rows:
            return context.completed_event(Envelope(status="ok"), items=e.Items(claimed=0))
        reference = await context.persist.put_value("frame", rows, kind="collection")
        event = e.FrameClaimed(
            size=len(rows),
            reference=reference,
            **context.event_fields,
        )
        await context.journal(OutgoingEvent(event, context.persist.take_references()))
    elif journal.frame is not None:
        rows = await context.payloads.read_item_range(journal.frame, 0, journal.frame_size)
    skip = max(journal.done - command.first, 0)
    items = [(command.first + number, row) for number, row in enumerate(rows)]
    chunk = Chunk(context, items[skip:], command.first + skip, claimed=len(rows))
    await chunk.run()
    return await chunk.report_items()


async def _claim_rows(context: CommandContext) -> list[Any]:
    """The rows that the cursor of the loop claims."""
    loop, env = context.step.loop, context.env
    if loop is None or loop.cursor is None:
        raise _claim_failure("NO_CURSOR", "config", f"step {context.step.step} has no cursor")
    cursor = loop.cursor
    tool = env.registry.get(cursor.kind)
    if tool is None:
        message = f"this worker has no tool of kind {cursor.kind!r} for the cursor"
        raise _claim_failure("TOOL_UNAVAILABLE", "tool", message)
    call = await _make_claim_call(context, cursor, "query" in raw_fields(tool))
    outcome = await run_call_in_memory(PreparedCall(tool, call, env.redactor))
    if isinstance(outcome, Failed):
        raise TaskFailed(outcome.failure)
    value = None
    if isinstance(outcome, Success):
        value = outcome.value
    return _check_claimed_rows(value)


def _check_claimed_rows(value: Any) -> list[Any]:
    """The rows in the value of a claim statement."""
    rows = value
    if isinstance(value, dict):
        rows = value.get("rows")
    if rows is not None and not isinstance(rows, list):
        raise _claim_failure("CLAIM_INVALID", "config", "the claim statement gave no rows")
    if isinstance(value, dict) and value.get("columns") == []:
        message = "the claim statement returns no columns, so nobody knows which rows it claimed; end it with RETURNING"
        raise _claim_failure("CLAIM_INVALID", "config", message)
    if rows is None:
        return []
    if len(rows) > MAX_FRAME_ROWS:
        message = f"the claim gave {len(rows)} rows, the limit is {MAX_FRAME_ROWS}; claim fewer with `limit`"
        raise _claim_failure("CLAIM_TOO_LARGE", "config", message)
    return rows


def _claim_failure(code: str, kind: str, message: str) -> TaskFailed:
    return TaskFailed(Failure(code=code, kind=kind, message=message))


async def _make_claim_call(context: CommandContext, cursor: Cursor, raw: bool) -> Call:
    """The call of the claim statement. A tool that takes it `raw` renders the statement itself."""
    command, loop = context.command, context.step.loop
    size = 50
    if loop is not None and loop.spec.frame is not None:
        size = loop.spec.frame.size
    rendering = make_site_rendering(context)
    rendering.scope["loop"] = {"frame": size}
    query: Any = cursor.claim
    if not raw:
        query = await rendering.value(cursor.claim)
    params = await rendering.value(cursor.params)
    database = await rendering.value(cursor.database)
    auth = await context.payloads.keychain.resolve_auth(await rendering.value(cursor.auth))
    return Call(
        config={
            "query": query,
            "params": {"frame": size, **params},
            "database": database,
        },
        input={},
        key=derive_id("claim", command.execution_id, command.command_id),
        identity=_claim_identity(command),
        auth=auth,
        log=context.env.redactor.redact_log(context.env.logs("claim", None)),
        rendering=rendering,
    )


def _claim_identity(command: Command) -> CallIdentity:
    return CallIdentity(ExecutionId(command.execution_id), command.step, "claim")
