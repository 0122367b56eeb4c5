"""Count the items of a loop. A command is counted once, when it ends.

Every item of an epoch ends as ok, failed or skipped. The state of a loop has the same size for any
number of items. Reductions of ctx writes are kept per contiguous range of items. Two ranges are
joined when they touch, so reductions fold in item order and there are never more ranges than
commands in flight.
"""

from msgspec.structs import replace

from noetl.engine.state import Activation, LoopState, OpenCommand, Segment
from noetl.model import events as e
from noetl.model.envelope import Envelope
from noetl.model.errors import Failure
from noetl.model.failure_kinds import merge_failure_kinds
from noetl.model.ids import gathered_id
from noetl.playbook import reducers
from noetl.template.errors import FailedError


def count_issued(loop: LoopState, event: e.CommandIssued) -> LoopState:
    loop = replace(loop, live=loop.live + 1, running=loop.running + event.together)
    if event.kind == "frame":
        return replace(loop, frames=loop.frames + 1)
    if event.attempts:
        deferred = tuple(item for item in loop.deferred if item[0] != event.first)
        return replace(loop, deferred=deferred)
    return replace(loop, next=event.first + event.count)


def count_progress(
    loop: LoopState,
    command: OpenCommand,
    done: int,
    items: e.Items,
) -> LoopState:
    low = max(command.journal.done, command.first)
    return _add_item_counts(loop, items, low + command.shift, done + command.shift)


def count_partition(loop: LoopState, items: e.Items) -> LoopState:
    """Show a finished Spark partition. Only the final report of the command counts its items,
    because several attempts may report the same partition."""
    ahead = loop.ahead + items.ok + items.failed + items.skipped
    return replace(loop, shards=loop.shards + 1, ahead=ahead)


def count_report(
    loop: LoopState,
    command: OpenCommand,
    event: e.CommandCompleted | e.CommandFailed,
) -> LoopState:
    loop = _release_command(loop, command)
    items = event.items
    if items is None and isinstance(event, e.CommandFailed):
        error = event.result.error or Failure(code="FAILED", message="the chunk failed")
        return _fail_remaining_items(loop, command, error)
    items = items or e.Items(ok=_count_remaining_items(command))
    if command.kind == "frame":
        claimed = items.claimed or 0
        loop = replace(
            loop,
            claimed=loop.claimed + _count_unclaimed_rows(command, claimed),
            drained=loop.drained or not claimed,
        )
        if isinstance(event, e.CommandFailed) and not claimed:
            loop = replace(loop, broken=event.result.error)
    low = max(command.journal.done, command.first)
    count = command.count if items.claimed is None else items.claimed
    high = command.first + count
    return _add_item_counts(loop, items, low + command.shift, high + command.shift)


def count_lost(loop: LoopState, command: OpenCommand, failure: Failure) -> LoopState:
    return _fail_remaining_items(_release_command(loop, command), command, failure)


def count_cancelled(loop: LoopState, command: OpenCommand) -> LoopState:
    """Release a cancelled command. Its items that did not run count as skipped when the loop
    closes."""
    if command.kind == "frame":
        rows = _count_unclaimed_rows(command, command.journal.frame_size or 0)
        loop = replace(loop, claimed=loop.claimed + rows)
    return _release_command(loop, command)


def _count_unclaimed_rows(command: OpenCommand, claimed: int) -> int:
    """The claimed rows that the loop has not counted yet. A claim counts its rows at once; states
    of older releases counted them at the end of the frame."""
    return claimed if command.place is None else 0


def _fail_remaining_items(loop: LoopState, command: OpenCommand, failure: Failure) -> LoopState:
    """Count the items that the journal of the command does not cover as failed."""
    if command.kind == "frame":
        size = command.journal.frame_size
        loop = replace(loop, claimed=loop.claimed + _count_unclaimed_rows(command, size or 0))
        if size is None:  # the claim failed, not its rows
            loop = replace(loop, broken=failure)
    if loop.mode == "spark":  # the job failed, not its items
        loop = replace(loop, broken=failure)
    first = command.first + command.shift
    items = e.Items(
        failed=_count_remaining_items(command),
        first_error=failure,
        first_failed=_find_index(loop.collection, first),
    )
    return _add_item_counts(loop, items, first, first)


def _find_index(collection: e.Collection, position: int) -> int | None:
    """The index of the item at a position. Of failed items that run again, only chosen ones have a
    known index."""
    if collection.kind != "failed":
        return position
    indexes = collection.find_indexes(position, 1)
    return None if indexes is None else indexes[0]


def _count_remaining_items(command: OpenCommand) -> int:
    """The number of items of the command that its journal does not cover."""
    size = command.count
    if command.kind == "frame":
        size = command.journal.frame_size or 0
    return size - max(0, command.journal.done - command.first)


def _release_command(loop: LoopState, command: OpenCommand) -> LoopState:
    return replace(loop, live=loop.live - 1, running=loop.running - command.together, ahead=0)


def _add_item_counts(
    loop: LoopState,
    items: e.Items,
    low: int,
    high: int,
) -> LoopState:
    """Add the counts and reductions of the items [low, high)."""
    failed = loop.failed + items.failed
    segments, broken = loop.segments, loop.broken
    if items.partial:
        try:
            segments = _join_segments(loop, Segment(low, high, items.partial))
        except FailedError as error:  # values that do not fit the reducer: a playbook error
            broken = Failure(code="REDUCE_FAILED", kind="template", message=str(error))
    too_many_failed = loop.max_failed is not None and failed > loop.max_failed
    first_error, first_failed = loop.first_error, loop.first_failed
    if items.first_failed is not None and (
        first_failed is None or items.first_failed < first_failed
    ):
        first_error, first_failed = items.first_error, items.first_failed
    elif first_error is None:
        first_error = items.first_error
    deferred = tuple((item.index, item.attempts, item.delay) for item in items.deferred)
    return replace(
        loop,
        ok=loop.ok + items.ok,
        failed=failed,
        skipped=loop.skipped + items.skipped,
        micros=loop.micros + items.micros,
        timed=loop.timed + items.ok + items.failed,
        stopping=loop.stopping or broken is not None or too_many_failed,
        broken=broken,
        first_error=first_error,
        first_failed=first_failed,
        deferred=loop.deferred + deferred,
        segments=segments,
        gathered=loop.gathered or items.gathered is not None,
        kinds=merge_failure_kinds(loop.kinds, items.kinds),
    )


def _join_segments(loop: LoopState, new: Segment) -> tuple[Segment, ...]:
    """The segments in item order. Two that touch become one, because reducing is associative."""
    segments: list[Segment] = []
    for segment in sorted((*loop.segments, new), key=lambda segment: segment.low):
        if segments and segments[-1].high == segment.low:
            left = segments[-1]
            partial = combine_partials(loop.reduce, left.partial, segment.partial)
            segments[-1] = Segment(left.low, segment.high, partial)
        else:
            segments.append(segment)
    return tuple(segments)


def combine_partials(
    reduce: dict[str, str],
    left: dict[str, object],
    right: dict[str, object],
) -> dict[str, object]:
    """Join two reductions. The items of `left` come before those of `right`."""
    combined = dict(left)
    for name, value in right.items():
        if name in combined:
            value = reducers.combine_reductions(reduce.get(name, "last"), combined[name], value)
        combined[name] = value
    return combined


def reduce_segments(loop: LoopState) -> dict[str, object]:
    """The reductions of all items so far, in item order."""
    total: dict[str, object] = {}
    for segment in loop.segments:
        total = combine_partials(loop.reduce, total, segment.partial)
    return total


# ---- closing ----------------------------------------------------------------------------


def make_stats(loop: LoopState | None) -> e.Stats | None:
    if loop is None:
        return None
    return e.Stats(
        total=loop.size,
        ok=loop.ok,
        failed=loop.failed,
        skipped=loop.size - loop.ok - loop.failed,
    )


def add_inherited_counts(counts: e.Stats, collection: e.Collection) -> e.Stats:
    """The counts of all items of the loop, with those that a retry did not run again."""
    if collection.total is None:
        return counts
    inherited_ok = collection.total - collection.size - collection.skipped - collection.left
    return replace(
        counts,
        total=collection.total,
        ok=counts.ok + inherited_ok,
        failed=counts.failed + collection.left,
        skipped=counts.skipped + collection.skipped,
    )


def inherit_loop(activation: Activation, outcome: Envelope) -> e.LoopInherited | None:
    """What a retry needs of a loop with failed items: the collection and the counts.

    Reductions are included only if the loop failed: those of a completed loop are in `ctx`.
    """
    loop = activation.loop
    if loop is None or loop.mode == "cursor":
        return None
    left = loop.collection.left
    if outcome.ok and not loop.failed and not left:
        return None
    total = loop.collection.total
    if total is None:
        total = loop.size
    partial: dict[str, object] = {}
    gathered = None
    if not outcome.ok:
        partial = reduce_segments(loop)
        if loop.gathered:
            gathered = gathered_id(activation.id)
    return e.LoopInherited(
        collection=loop.collection,
        manifest=outcome.reference,
        total=total,
        failed=loop.size - loop.ok - loop.skipped + left,
        skipped=loop.skipped + loop.collection.skipped,
        partial=partial,
        args=activation.args,
        gathered=gathered,
    )
