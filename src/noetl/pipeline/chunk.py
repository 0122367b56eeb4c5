"""Items of a loop, many in one command: a chunk of a collection, or a frame that a cursor claimed.

Each item runs the step's pipeline with its own `iter`; there is one payload for all their rows and no event per item. Progress is
journaled at most once a second: items before `done` are finished, and the entry (like the final report after it) covers only
what no entry covered before.

Every item of the command ends in exactly one of these: counted `ok`, `failed` or `skipped` (every task was passed over); listed
in `deferred` (its retry waits too long to hold a worker); or not run at all, because an item failed before it and the loop stops
at the first failure. The last kind is in no count and has no row: count - ok - failed - skipped - deferred of them.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any

from msgspec import Struct

from noetl.model import events as e
from noetl.model.clock import iso
from noetl.model.commands import MAX_FRAME_ROWS, Command
from noetl.model.envelope import Envelope, Meta
from noetl.model.errors import Failure
from noetl.model.ids import ExecutionId, derive
from noetl.model.reference import Reference
from noetl.pipeline.calls import PreparedCall, perform_in_memory
from noetl.pipeline.collections import Indexed, items_of
from noetl.pipeline.context import Context
from noetl.pipeline.data import LazyResult
from noetl.pipeline.environment import OutgoingEvent
from noetl.pipeline.evaluate import site_rendering
from noetl.pipeline.failures import Failing
from noetl.pipeline.names import LoopItem, ScopeWrites, folded, loop_id
from noetl.pipeline.persist import StorageWish
from noetl.pipeline.plain import NOT_RUN, BatchedItems
from noetl.pipeline.provenance import made_with, shared_provenance
from noetl.pipeline.run import Ended, Pipeline, PipelinePause
from noetl.playbook import reducers
from noetl.playbook.model import Cursor
from noetl.tools.port import Call, CallIdentity, Failed, Success, raw_fields

PROGRESS_EVERY = 1.0  # seconds, and so many of work that would be done again without the entry
CHEAP_BATCH = 0.1  # seconds
SHORT_BATCH = 0.02  # seconds; a shorter one is followed by a larger one
LARGEST_BATCH = 256


class Result(Struct, frozen=True):
    """One item that needs no worker any more."""

    micros: int
    row: dict[str, Any] | None = None  # None: deferred
    failure: Failure | None = None
    deferred: e.Deferred | None = None
    reduced: list[tuple[str, Any]] = []
    recovered: e.Recovered | None = None  # errors of its tasks that rules let pass


def row_of(
    index: int, status: str, failure: Failure | None, ms: float, tries: int, value: Any
) -> dict[str, Any]:
    return {
        "index": index,
        "status": status,
        "error": None if failure is None else failure.shown(),
        "ms": round(ms),
        "tries": tries,
        "result": value if failure is None else None,
    }


class _Stop(Exception):
    """An item failed and the loop ends at the first failure."""


async def run_chunk(context: Context) -> e.Reported:
    command = context.command
    start = max(command.first, command.journal.done)
    items = await items_of(context, site_rendering(context), start, command.first + command.count)
    if command.count == 1 and items and context.plan.steps[command.step].alone:
        return await _run_alone(context, items[0])
    chunk = Chunk(context, items, start)
    await chunk.run()
    return await chunk.report()


async def _run_alone(context: Context, indexed: Indexed) -> e.Reported:
    """It keeps a journal, so that it can be parked, or lost with its worker, and go on."""
    chunk = Chunk(context, [indexed], max(context.command.first, context.command.journal.done))
    pipeline = chunk.pipeline(indexed, journal=True)
    began = asyncio.get_running_loop().time()
    ended = await pipeline.run()
    if isinstance(ended, PipelinePause):
        return context.parked(ended)
    await chunk.finish(0, await chunk.result(0, pipeline, ended, began))
    return await chunk.report()


class ItemBatch:
    """Items that run together: in one call when they are plain, each in its pipeline otherwise. Nobody is told before the end."""

    def __init__(self, context: Context, items: list[Indexed], start: int) -> None:
        self._context = context
        self._items = items
        self._start = start  # position of the first of them
        self._size = context.command.size or None  # None: nobody knows how many a cursor will give
        self._loop_id = loop_id(context.command)
        self._writes: ScopeWrites = context.writes()
        self._results: dict[int, Result] = {}
        self._stopped = False  # an item failed, and the loop ends at the first failure
        self._unsaved = 0.0  # milliseconds of work that nobody was told of
        self._plain = BatchedItems.of(context.shared, self._writes, iso(context.env.clock.now()))

    @property
    def results(self) -> list[Result]:
        """In the order of the items."""
        return [self._results[position] for position in sorted(self._results)]

    def folded(self, results: list[Result]) -> dict[str, Any]:
        """Their writes with a reducer."""
        return folded(
            self._writes.reduce, [write for result in results for write in result.reduced]
        )

    async def run(self) -> None:
        """So many together as the command allows; when one fails and the loop stops at that, the others are cancelled."""
        positions = iter(range(len(self._items)))
        together = min(max(self._context.command.together, 1), len(self._items))
        with suppress(_Stop):
            if self._plain is not None:
                await self._in_batches(self._plain, positions, together)
            if together == 1:
                await self._sequence(positions)
            else:
                await self._side_by_side(positions, together)

    async def _in_batches(
        self, plain: BatchedItems, positions: Iterator[int], together: int
    ) -> None:
        """While items are cheap: the calls of a batch begin and end together, which would hold up what takes its time. The
        cheaper, the more of them wait in a batch for the few that run."""
        size, stop = together, self._context.command.stop_on_failure
        while batch := list(islice(positions, size)):
            ended, worked = await plain.run(
                [self._named(self._items[position]) for position in batch], together, stop=stop
            )
            share = worked / len(batch)
            for position, value in zip(batch, ended, strict=True):
                if value is not NOT_RUN:
                    self._keep(position, self._row(position, value, share * together, share))
            await self._tell()
            if self._stopped:
                raise _Stop
            if share * together > CHEAP_BATCH:
                return
            size = (
                min(2 * size, LARGEST_BATCH) if worked < SHORT_BATCH else max(together, size // 2)
            )

    async def _side_by_side(self, positions: Iterator[int], together: int) -> None:
        runners = [asyncio.ensure_future(self._sequence(positions)) for _ in range(together)]
        try:
            await asyncio.wait(runners, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for runner in runners:
                runner.cancel()
            ended = await asyncio.gather(*runners, return_exceptions=True)
        for found in ended:
            if isinstance(found, BaseException) and not isinstance(
                found, _Stop | asyncio.CancelledError
            ):
                raise found

    async def _sequence(self, positions: Iterator[int]) -> None:
        for position in positions:
            await self.finish(position, await self._item(position))
            if self._stopped:
                raise _Stop
            await asyncio.sleep(
                0
            )  # cheap items never wait by themselves, and the worker must renew its leases

    async def _item(self, position: int) -> Result:
        began = asyncio.get_running_loop().time()
        if self._plain is None:
            pipeline = self.pipeline(self._items[position], journal=False)
            return await self.result(position, pipeline, await pipeline.run(), began)
        (value,), _ = await self._plain.run([self._named(self._items[position])])
        taken = asyncio.get_running_loop().time() - began
        return self._row(position, value, taken, taken)

    def _named(self, indexed: Indexed) -> LoopItem:
        loop = self._context.step.loop
        return LoopItem(
            *indexed, loop.iterator if loop is not None else "item", self._size, self._loop_id
        )

    def pipeline(self, indexed: Indexed, *, journal: bool) -> Pipeline:
        context = self._context
        return context.pipeline(
            self._writes,
            item=self._named(indexed),
            journal=context.journal if journal else None,
            behind=context.command.attempts,
        )

    def _row(self, position: int, value: Any, seconds: float, share: float) -> Result:
        """Of a plain item: its value, or its failure. It took `seconds` until it was known, and its share of them."""
        failure = value if isinstance(value, Failure) else None
        status = "ok" if failure is None else "error"
        row = row_of(self._items[position][0], status, failure, share * 1_000, 1, value)
        return Result(round(seconds * 1_000_000), row, failure)

    async def result(
        self, position: int, pipeline: Pipeline, ended: Ended | PipelinePause, began: float
    ) -> Result:
        micros = round((asyncio.get_running_loop().time() - began) * 1_000_000)
        index = self._items[position][0]
        if isinstance(ended, PipelinePause):
            return Result(
                micros, deferred=e.Deferred(self._start + position, ended.tries, ended.delay)
            )
        failure = ended.failure
        status = "error" if failure is not None else "ok" if ended.ran else "skipped"
        reference = ended.value.envelope.reference
        value = (
            await self._context.payloads.resolve(reference)
            if reference is not None
            else ended.value.stored()
        )
        row = row_of(index, status, failure, micros / 1_000, ended.tries, value)
        meta = ended.value.envelope.meta if failure is None else ended.meta
        if meta is not None and meta.provenance:
            row["provenance"] = meta.provenance
        reduced = (
            []
            if failure is not None
            else [(n, await self._plain_of(v)) for n, v in pipeline.names.reduced]
        )
        return Result(micros, row, failure, reduced=reduced, recovered=ended.recovered)

    async def _plain_of(self, written: Any) -> Any:
        """A write of an earlier attempt comes by reference."""
        reference = written.envelope.reference if isinstance(written, LazyResult) else None
        return written if reference is None else await self._context.payloads.resolve(reference)

    async def finish(self, position: int, result: Result) -> None:
        self._keep(position, result)
        await self._tell()

    def _keep(self, position: int, result: Result) -> None:
        self._results[position] = result
        self._unsaved += result.row["ms"] if result.row is not None else 0.0
        self._stopped = self._stopped or (
            result.failure is not None and self._context.command.stop_on_failure
        )

    async def _tell(self) -> None:
        """What has ended, when it is time."""


class Chunk(ItemBatch):
    """The items of one command: journaled as they end, and reported."""

    def __init__(
        self, context: Context, items: list[Indexed], start: int, *, claimed: int | None = None
    ) -> None:
        super().__init__(context, items, start)
        self._claimed = claimed
        self._done = 0  # items before this one have all ended
        self._covered = 0  # items that a journal entry covers
        self._entry: asyncio.Task[None] | None = None  # the journal entry on its way
        self._told = asyncio.get_running_loop().time()
        last = context.shared.tasks[-1]
        self._kind = last.kind
        self._wish = StorageWish(
            None, StorageWish.of(last.output).lifetime
        )  # items are stored together, wherever each would go

    async def _tell(self) -> None:
        """Journal what has ended, when it is time."""
        now = asyncio.get_running_loop().time()
        while self._done in self._results:
            self._done += 1
        done = self._done
        # writes that items after them have seen are reported at the end only: an entry could not carry them
        idle = self._entry is None or self._entry.done()
        late = now - self._told >= PROGRESS_EVERY and self._unsaved >= PROGRESS_EVERY * 1_000
        due = late and idle and not self._writes.changed
        if not due or done == self._covered or done == len(self._items):
            return
        if self._stopped:
            return
        self._entry = asyncio.ensure_future(self._progress(done))
        await asyncio.shield(
            self._entry
        )  # whatever ends this item's runner: the entry may be recorded already, so it counts

    async def _progress(self, done: int) -> None:
        results = [self._results[position] for position in range(self._covered, done)]
        label = f"part{self._start + self._covered}"
        envelope = await self._put(label, results)
        items = await self._counted(label, results)
        event = e.CommandProgress(
            done=self._start + done, items=items, result=envelope, **self._context.common
        )
        await self._context.journal(OutgoingEvent(event, self._context.persist.refs()))
        self._covered, self._told, self._unsaved = done, asyncio.get_running_loop().time(), 0.0

    async def report(self) -> e.CommandCompleted:
        if self._entry is not None:
            await self._entry
        results = [
            self._results[position]
            for position in sorted(self._results)
            if position >= self._covered
        ]
        envelope = await self._put("chunk", results)
        items = await self._counted("chunk", results, claimed=self._claimed)
        assigned = await self._context.persist.assigned(
            "set", self._writes.changed, self._writes.literal
        )
        return self._context.completed(envelope, items=items, set=assigned)

    async def _put(self, label: str, results: list[Result]) -> Envelope:
        rows = [result.row for result in results if result.row is not None]
        reference: Reference | None = (
            await self._context.persist.put(label, rows, wish=self._wish) if rows else None
        )
        tool = made_with(self._kind, self._context.env.registry.get(self._kind))
        meta = Meta(
            tool=tool,
            provenance=shared_provenance(row["provenance"] for row in rows if "provenance" in row),
        )
        return Envelope(
            status="ok", reference=reference, context={"row_count": len(rows)}, meta=meta
        )

    async def _counted(
        self, label: str, results: list[Result], claimed: int | None = None
    ) -> e.Items:
        """Of what no journal entry covers yet."""
        items = counted(self._start + self._covered, results, self.folded(results), claimed)
        return await self._context.counted(label, items)


def counted(
    first: int, results: list[Result], partial: dict[str, Any], claimed: int | None = None
) -> e.Items:
    """What these items did, from position `first` on."""
    rows = [result.row for result in results if result.row is not None]
    failures = [
        (row["index"], result.failure)
        for result in results
        if (row := result.row) and result.failure is not None
    ]
    first_failed, first_error = min(failures, key=lambda found: found[0], default=(None, None))
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
        recovered=_all_recovered(result.recovered for result in results),
    )


def _all_recovered(found: Iterable[e.Recovered | None]) -> e.Recovered | None:
    total: e.Recovered | None = None
    for each in found:
        if each is not None:
            total = each if total is None else total.and_then(each)
    return total


def added(reduce: Mapping[str, str], left: e.Items, right: e.Items) -> e.Items:
    """Two counts as one; `left` is of the items before."""
    partial = dict(left.partial)
    for name, value in right.partial.items():
        partial[name] = reducers.combine(reduce[name], partial.get(name, reducers.MISSING), value)
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
        recovered=_all_recovered((left.recovered, right.recovered)),
    )


# ---- frames ----------------------------------------------------------------------------------------------------------------


async def run_frame(context: Context) -> e.Reported:
    """Claim rows, store and journal them, then work on them. Rows of an earlier attempt's claim are worked on as they are."""
    command, journal = context.command, context.command.journal
    if journal.frame_size is None:
        rows = await _claim(context)
        if not rows:
            return context.completed(Envelope(status="ok"), items=e.Items(claimed=0))
        reference = await context.persist.put("frame", rows, kind="collection")
        event = e.FrameClaimed(size=len(rows), reference=reference, **context.common)
        await context.journal(OutgoingEvent(event, context.persist.refs()))
    else:
        rows = (
            await context.payloads.range(journal.frame, 0, journal.frame_size)
            if journal.frame is not None
            else []
        )
    skip = max(journal.done - command.first, 0)
    items = [(command.first + number, row) for number, row in enumerate(rows)][skip:]
    chunk = Chunk(context, items, command.first + skip, claimed=len(rows))
    await chunk.run()
    return await chunk.report()


async def _claim(context: Context) -> list[Any]:
    loop, env = context.step.loop, context.env
    cursor = loop.cursor if loop is not None else None
    if loop is None or cursor is None:
        raise Failing(
            Failure(
                code="NO_CURSOR", kind="config", message=f"step {context.step.step} has no cursor"
            )
        )
    tool = env.registry.get(cursor.kind)
    if tool is None:
        message = f"this worker has no tool of kind {cursor.kind!r} for the cursor"
        raise Failing(Failure(code="TOOL_UNAVAILABLE", kind="tool", message=message))
    outcome = await perform_in_memory(
        PreparedCall(
            tool, await _claim_call(context, cursor, "query" in raw_fields(tool)), env.redactor
        )
    )
    if isinstance(outcome, Failed):
        raise Failing(outcome.failure)
    value = outcome.value if isinstance(outcome, Success) else None
    rows = value.get("rows") if isinstance(value, dict) else value
    if rows is not None and not isinstance(rows, list):
        raise Failing(
            Failure(code="CLAIM_INVALID", kind="config", message="the claim statement gave no rows")
        )
    if isinstance(value, dict) and value.get("columns") == []:
        message = "the claim statement returns no columns, so nobody knows which rows it claimed; end it with RETURNING"
        raise Failing(Failure(code="CLAIM_INVALID", kind="config", message=message))
    if len(rows or ()) > MAX_FRAME_ROWS:
        message = f"the claim gave {len(rows or ())} rows, the limit is {MAX_FRAME_ROWS}; claim fewer with `limit`"
        raise Failing(Failure(code="CLAIM_TOO_LARGE", kind="config", message=message))
    return rows or []


async def _claim_call(context: Context, cursor: Cursor, raw: bool) -> Call:
    command, loop = context.command, context.step.loop
    size = loop.spec.frame.size if loop is not None and loop.spec.frame is not None else 50
    rendering = site_rendering(context)
    rendering.scope["loop"] = {"frame": size}
    return Call(
        config={
            "query": cursor.claim if raw else await rendering.value(cursor.claim),
            "params": {"frame": size, **await rendering.value(cursor.params)},
            "database": await rendering.value(cursor.database),
        },
        input={},
        key=derive("claim", command.execution_id, command.command_id),
        identity=_identity(command),
        auth=await context.payloads.keychain.auth(await rendering.value(cursor.auth)),
        log=context.env.redactor.log(context.env.logs("claim", None)),
        rendering=rendering,
    )


def _identity(command: Command) -> CallIdentity:
    return CallIdentity(ExecutionId(command.execution_id), command.step, "claim")
