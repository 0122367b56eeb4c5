"""The counting of a loop. A command is counted once, when it ends; what a loop knows stays the same size whatever it runs over.

Every item of an epoch ends as ok, failed or skipped. Reductions of ctx writes are kept per contiguous range of items and joined
as soon as ranges touch, so they fold in item order and there are never more ranges than commands in flight.
"""

from msgspec.structs import replace

from noetl.engine.state import Activation, LoopState, OpenCommand, Segment
from noetl.model import events as e
from noetl.model.envelope import Envelope
from noetl.model.errors import Failure
from noetl.model.ids import gathered_id
from noetl.playbook import reducers
from noetl.playbook.expressions import FailedError


def issued(loop: LoopState, event: e.CommandIssued) -> LoopState:
    loop = replace(loop, live=loop.live + 1, running=loop.running + event.together)
    if event.kind == "frame":
        return replace(loop, frames=loop.frames + 1)
    if event.attempts:
        return replace(
            loop, deferred=tuple(item for item in loop.deferred if item[0] != event.first)
        )
    return replace(loop, next=event.first + event.count)


def progressed(loop: LoopState, live: OpenCommand, done: int, items: e.Items) -> LoopState:
    return _count(loop, items, max(live.journal.done, live.first) + live.shift, done + live.shift)


def sharded(loop: LoopState, items: e.Items) -> LoopState:
    """The report at the end counts: what it brings is the result, whichever attempt told of a partition."""
    return replace(
        loop, shards=loop.shards + 1, ahead=loop.ahead + items.ok + items.failed + items.skipped
    )


def reported(
    loop: LoopState, live: OpenCommand, event: e.CommandCompleted | e.CommandFailed
) -> LoopState:
    loop = _released(loop, live)
    items = event.items
    if items is None and isinstance(event, e.CommandFailed):
        return _rest_failed(
            loop, live, event.result.error or Failure(code="FAILED", message="the chunk failed")
        )
    items = items or e.Items(ok=_rest(live))
    if live.kind == "frame":
        claimed = items.claimed or 0
        loop = replace(
            loop,
            claimed=loop.claimed + _uncounted(live, claimed),
            drained=loop.drained or not claimed,
        )
        if isinstance(event, e.CommandFailed) and not claimed:
            loop = replace(loop, broken=event.result.error)
    low = max(live.journal.done, live.first)
    high = live.first + (live.count if items.claimed is None else items.claimed)
    return _count(loop, items, low + live.shift, high + live.shift)


def lost(loop: LoopState, live: OpenCommand, failure: Failure) -> LoopState:
    return _rest_failed(_released(loop, live), live, failure)


def cancelled(loop: LoopState, live: OpenCommand) -> LoopState:
    """Items that did not run are skipped: known only when the loop is closed."""
    if live.kind == "frame":
        loop = replace(loop, claimed=loop.claimed + _uncounted(live, live.journal.frame_size or 0))
    return _released(loop, live)


def _uncounted(live: OpenCommand, claimed: int) -> int:
    """Rows of a frame are counted when it is claimed; older states counted them when it ended."""
    return claimed if live.place is None else 0


def _rest_failed(loop: LoopState, live: OpenCommand, failure: Failure) -> LoopState:
    if live.kind == "frame":
        size = live.journal.frame_size
        claimed = loop.claimed + _uncounted(live, size or 0)
        loop = replace(loop, claimed=claimed, broken=failure if size is None else loop.broken)
    if loop.mode == "spark":  # it is not the items that failed
        loop = replace(loop, broken=failure)
    rest, first = _rest(live), live.first + live.shift
    return _count(loop, e.Items(failed=rest, first_error=failure, first_failed=first), first, first)


def _rest(live: OpenCommand) -> int:
    """Items of the command that its journal does not cover."""
    size = live.journal.frame_size or 0 if live.kind == "frame" else live.count
    return size - max(0, live.journal.done - live.first)


def _released(loop: LoopState, live: OpenCommand) -> LoopState:
    return replace(loop, live=loop.live - 1, running=loop.running - live.together, ahead=0)


def _count(loop: LoopState, items: e.Items, low: int, high: int) -> LoopState:
    failed = loop.failed + items.failed
    try:
        segments = (
            _joined(loop, Segment(low, high, items.partial)) if items.partial else loop.segments
        )
    except (
        FailedError
    ) as error:  # the items' values do not fit their reducer: the playbook's mistake, not the log's
        loop = replace(
            loop, broken=Failure(code="REDUCE_FAILED", kind="template", message=str(error))
        )
        segments = loop.segments
    first = items.first_failed is not None and (
        loop.first_failed is None or items.first_failed < loop.first_failed
    )
    deferred = tuple((item.index, item.attempts, item.delay) for item in items.deferred)
    return replace(
        loop,
        ok=loop.ok + items.ok,
        failed=failed,
        skipped=loop.skipped + items.skipped,
        micros=loop.micros + items.micros,
        timed=loop.timed + items.ok + items.failed,
        stopping=loop.stopping
        or loop.broken is not None
        or (loop.max_failed is not None and failed > loop.max_failed),
        first_error=items.first_error if first or loop.first_error is None else loop.first_error,
        first_failed=items.first_failed if first else loop.first_failed,
        deferred=loop.deferred + deferred,
        segments=segments,
        gathered=loop.gathered or items.gathered is not None,
    )


def _joined(loop: LoopState, new: Segment) -> tuple[Segment, ...]:
    """Segments in item order; two that touch become one, since reducing is associative."""
    joined: list[Segment] = []
    for segment in sorted((*loop.segments, new), key=lambda segment: segment.low):
        if joined and joined[-1].high == segment.low:
            joined[-1] = Segment(
                joined[-1].low,
                segment.high,
                combine(loop.reduce, joined[-1].partial, segment.partial),
            )
        else:
            joined.append(segment)
    return tuple(joined)


def combine(
    reduce: dict[str, str], left: dict[str, object], right: dict[str, object]
) -> dict[str, object]:
    """Two reductions in item order: `left` stands before `right`."""
    made = dict(left)
    for name, value in right.items():
        made[name] = (
            reducers.combine(reduce.get(name, "last"), made[name], value) if name in made else value
        )
    return made


def reduced(loop: LoopState) -> dict[str, object]:
    """Of all items so far, in their order."""
    total: dict[str, object] = {}
    for segment in loop.segments:
        total = combine(loop.reduce, total, segment.partial)
    return total


# ---- closing -----------------------------------------------------------------------------------------------------------


def stats(loop: LoopState | None) -> e.Stats | None:
    if loop is None:
        return None
    return e.Stats(
        total=loop.size, ok=loop.ok, failed=loop.failed, skipped=loop.size - loop.ok - loop.failed
    )


def with_inherited(counted: e.Stats, collection: e.Collection) -> e.Stats:
    """Of every item, as the loop's rows have them: also those that were well before a retry, and did not run again."""
    if collection.total is None:
        return counted
    well = collection.total - collection.size - collection.skipped
    return replace(
        counted,
        total=collection.total,
        ok=counted.ok + well,
        skipped=counted.skipped + collection.skipped,
    )


def inheritance(activation: Activation, outcome: Envelope) -> e.LoopInherited | None:
    """What a retry needs of a loop with failed items: its collection and which of them to run again. What the others gave to
    the reducers is in `ctx` already when the loop completed."""
    loop = activation.loop
    if loop is None or loop.mode == "cursor" or (outcome.ok and not loop.failed):
        return None
    return e.LoopInherited(
        collection=loop.collection,
        manifest=outcome.reference,
        total=loop.collection.total if loop.collection.total is not None else loop.size,
        failed=loop.size - loop.ok - loop.skipped,
        skipped=loop.skipped + loop.collection.skipped,
        partial={} if outcome.ok else reduced(loop),
        args=activation.args,
        gathered=gathered_id(activation.id) if loop.gathered and not outcome.ok else None,
    )
