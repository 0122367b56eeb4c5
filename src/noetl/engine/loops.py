"""Loops: planning the collection, keeping the window full, closing the epoch once.

The activation of a looping step is its epoch. `loop.started` fixes size and collection before the first item runs; commands
cover consecutive indexes; a loop is over when no command of it is live and nothing is left to issue, and only then is
`loop.done` decided, under a key the log accepts once. A report of a command that is not live any more counts nothing.
"""

from typing import Any

import msgspec

from noetl.engine import playbook_state, sites, tallies
from noetl.engine.issuing import Made, ask, command_for, held, issued, step_timeout
from noetl.engine.sites import Moment, NeedsWorker
from noetl.engine.state import Activation, Execution, LoopState, PinnedPlaybook
from noetl.model import events as e
from noetl.model.commands import MAX_FRAME_ROWS
from noetl.model.decisions import AddPart, Issue, SetTimer, Stop
from noetl.model.envelope import NOT_WRITTEN, Envelope, failed
from noetl.model.errors import Failure
from noetl.model.ids import Micros, RefId, gathered_id, timer_id
from noetl.model.reference import Reference, address
from noetl.playbook import reducers
from noetl.playbook.assignments import (
    found_at,
    full_name,
    is_reference,
    is_state,
    linked,
    root_of,
    unwrapped,
)
from noetl.playbook.expressions import FailedError, LimitError
from noetl.playbook.model import Loop, MaxFailed
from noetl.playbook.plan import IN, REDUCE

LANES = 16  # commands of one loop in flight; a larger window puts more items into each, unless each is alone in its own
PARALLEL_WINDOW = 100
CHUNK_TIME: Micros = 250_000
CHEAP_ITEM: Micros = (
    1_000  # the worker itself is busy with such, and shares its time among the chunks that it has
)
CHEAP_CHUNK = 1_500
SHORT_TIME: Micros = 20_000
LARGEST_CHUNK = 10_000
SLOW_ITEM: Micros = 1_000_000
INLINE_BYTES = 4_096
BEFORE = -1  # where the manifest of the run before stands in that of a retried loop


# ---- planning ---------------------------------------------------------------------------


def plan(fixed: PinnedPlaybook, state: Execution, activation: Activation, moment: Moment) -> Made:
    """Find out what the loop runs over, then start it."""
    found = _collection(fixed, state, activation, moment)
    if isinstance(found, NeedsWorker):
        yield from ask(fixed, state, activation, "plan", IN, moment)
    elif isinstance(found, Failure):
        result = failed(found)
        yield e.CallError(
            at=moment.at, step=activation.step, activation=activation.id, result=result
        )
    elif not held(state):
        yield from _start(fixed, state, activation, found, moment)


def _collection(
    fixed: PinnedPlaybook, state: Execution, activation: Activation, moment: Moment
) -> e.Collection | Failure | NeedsWorker:
    step = fixed.plan.steps[activation.step]
    loop = _loop(fixed, activation)
    if loop.cursor is not None:
        return e.Collection(kind="cursor")
    record = state.steps.get(activation.step)
    if (
        record is not None
        and record.loop is not None
        and activation.run == record.runs
        and record.status == "inherited"
    ):
        inherited = record.loop
        return msgspec.structs.replace(
            inherited.collection,
            kind="failed",
            size=inherited.failed,
            total=inherited.total,
            skipped=inherited.skipped,
            manifest=inherited.manifest,
        )
    if activation.planned is not None:
        return activation.planned
    answer = sites.evaluate(fixed, state, activation, step.site[IN], moment)
    if isinstance(answer, Failure | NeedsWorker):
        return answer
    value = answer[0]
    if is_reference(value):
        return _stored(linked(value))
    if isinstance(value, Failure) and value.code == LimitError.code:
        return sites.NEEDS_WORKER
    if isinstance(value, Failure):
        return Failure(code=value.code, kind=value.kind, message=f"loop.in: {value.message}")
    items = as_items(unwrapped(value))
    if isinstance(items, Failure):
        return items
    if step.workload_loop:
        fixed.collections[activation.step] = items
        return e.Collection(kind="workload", size=len(items))
    if len(msgspec.json.encode(items)) <= INLINE_BYTES:
        return e.Collection(kind="inline", size=len(items), items=tuple(items))
    return sites.NEEDS_WORKER


def _stored(reference: Reference) -> e.Collection | NeedsWorker:
    """A stored list of a known length is used as it is; whatever else the reference names, a worker looks at it."""
    if not reference.ref_id or reference.rows is None or reference.rows_at is not None:
        return sites.NEEDS_WORKER
    return e.Collection(kind="reference", size=reference.rows, reference=reference)


def as_items(value: Any) -> list[Any] | Failure:
    """A list is its items, a map or text is one item, null is none; a number or bool is a mistake."""
    if value is None:
        return []
    if isinstance(value, list):
        return value
    if isinstance(value, dict | str):
        return [value]
    return Failure(
        code="BAD_COLLECTION",
        kind="template",
        message=f"loop.in is {value!r}: a list, map, text or null is needed",
    )


def _loop(fixed: PinnedPlaybook, activation: Activation) -> Loop:
    loop = fixed.plan.steps[activation.step].step.loop
    assert loop is not None, "only looping steps come here"
    return loop


def _start(
    fixed: PinnedPlaybook,
    state: Execution,
    activation: Activation,
    collection: e.Collection,
    moment: Moment,
) -> Made:
    loop = _loop(fixed, activation)
    inherited = state.steps[activation.step].loop if collection.kind == "failed" else None
    inherited_gathered = inherited.gathered if inherited is not None else None
    spec = loop.spec
    on_spark = spec.policy.exec == "spark"
    mode = "spark" if on_spark else ("cursor" if loop.cursor is not None else spec.mode)
    timeout = step_timeout(fixed, activation)
    timer = timer_id(activation.id, "timeout") if timeout is not None else None
    yield e.LoopStarted(
        at=moment.at,
        step=activation.step,
        activation=activation.id,
        mode=mode,
        collection=collection,
        window=_window(loop, mode, collection.size),
        chunk=0 if spec.chunk == "auto" else spec.chunk,
        frame=spec.frame.size if spec.frame is not None else 50,
        max_failed=_max_failed(
            loop, collection.size if collection.total is None else collection.total
        ),
        single=fixed.plan.steps[activation.step].alone,
        reduce=dict(spec.reduce),
        timer=timer,
    )
    if timer is not None and timeout is not None:
        yield SetTimer(timer, moment.at + timeout)
    if collection.manifest is not None:  # what runs again stands over what was there
        yield AddPart(activation.id, BEFORE, 0, collection.manifest)
    if inherited_gathered is not None:
        where = address(fixed.execution_id, "manifest", activation.step, inherited_gathered)
        before = Reference(
            ref_id=RefId(inherited_gathered), type="db", uri=str(where), format="manifest"
        )
        yield AddPart(gathered_id(activation.id), BEFORE, 0, before)


def _window(loop: Loop, mode: str, size: int) -> int:
    if mode == "spark":
        return max(1, size)
    if mode == "sequential":
        return 1
    return loop.spec.max_in_flight or (PARALLEL_WINDOW if mode == "parallel" else 1)


def _max_failed(loop: Loop, size: int) -> int | None:
    """Failed items beyond which the loop stops; None: every item runs."""
    policy = loop.spec.policy.failure
    if policy in ("best_effort", "at_end"):
        return None
    if isinstance(policy, MaxFailed):
        limit = policy.max_failed
        if isinstance(limit, int):
            return limit
        return None if loop.cursor is not None else int(size * float(limit.rstrip("%")) / 100)
    return 0


# ---- going on ---------------------------------------------------------------------------


def part(event: e.CommandCompleted | e.CommandFailed | e.CommandProgress) -> Made:
    """The results it brings become a part of the loop's manifest."""
    reference, items = event.result.reference, event.items
    if reference is not None and items is not None:
        yield AddPart(event.activation, items.first, reference.rows or 0, reference, items.shift)
    if items is not None and items.gathered is not None:
        yield AddPart(gathered_id(event.activation), items.first, 0, items.gathered)


def go_on(fixed: PinnedPlaybook, state: Execution, activation: Activation, moment: Moment) -> Made:
    loop = activation.loop
    assert loop is not None, "the phase is loop"
    if over(loop):
        yield from _close(fixed, state, activation, loop, moment)
    elif loop.stopping:
        yield stop(state, activation)
    elif not held(state):
        yield from (
            _frames(fixed, state, activation, loop, moment)
            if loop.mode == "cursor"
            else _fill(fixed, state, activation, loop, moment)
        )


def over(loop: LoopState) -> bool:
    if loop.live:
        return False
    if loop.stopping:
        return True
    if loop.mode == "cursor":
        return loop.drained
    return loop.next >= loop.collection.size and not loop.deferred


def stop(state: Execution, activation: Activation) -> Stop:
    live = sorted(
        (c for c in state.commands.values() if c.activation == activation.id), key=lambda c: c.order
    )
    return Stop(tuple(command.id for command in live))


def _fill(
    fixed: PinnedPlaybook, state: Execution, activation: Activation, loop: LoopState, moment: Moment
) -> Made:
    """Issue what the window allows: items that come back for another try first, then the next indexes."""
    running = loop.running
    for index, attempts, delay in loop.deferred:
        if running < loop.window:
            yield from _chunk(
                fixed, state, activation, loop, moment, index, 1, 1, attempts, moment.at + delay
            )
            running += 1
    lanes = 1 if loop.mode == "spark" else loop.window if loop.single else min(loop.window, LANES)
    lane = -(-loop.window // lanes)
    live, first, size = loop.live, loop.next, loop.collection.size
    while first < size and running < loop.window and live < lanes:
        together = min(lane, loop.window - running)
        count = (
            size
            if loop.mode == "spark"
            else min(_chunk_size(loop, together, -(-(size - first) // lanes)), size - first)
        )
        yield from _chunk(
            fixed, state, activation, loop, moment, first, count, min(together, count)
        )
        first, live, running = first + count, live + 1, running + min(together, count)


def _chunk_size(loop: LoopState, together: int, share: int) -> int:
    """As declared, or what fills CHUNK_TIME by the durations so far; not more than one lane's share of what is left, unless that
    is gone in SHORT_TIME: nobody gains by dividing it. Many chunks of cheap items share a worker: four of them fill it."""
    if loop.single:
        return 1
    if loop.chunk:
        return loop.chunk
    if not loop.timed or loop.micros > SLOW_ITEM * loop.timed:
        return 1
    filling, short = (
        time * together * loop.timed // max(1, loop.micros) for time in (CHUNK_TIME, SHORT_TIME)
    )
    if loop.window >= LANES and loop.micros < CHEAP_ITEM * loop.timed:
        filling = max(filling // 4, min(filling, CHEAP_CHUNK))
    return max(1, min(LARGEST_CHUNK, filling, max(share, short)))


def _chunk(
    fixed: PinnedPlaybook,
    state: Execution,
    activation: Activation,
    loop: LoopState,
    moment: Moment,
    first: int,
    count: int,
    together: int,
    attempts: int = 0,
    available_at: Micros | None = None,
) -> Made:
    command = command_for(
        fixed,
        state,
        activation,
        "chunk",
        moment,
        purpose=f"chunk:{attempts}",
        number=first,
        first=first,
        count=count,
        together=together,
        attempts=attempts,
        size=loop.collection.size,
        collection=None if loop.collection.kind in ("inline", "workload") else loop.collection,
        items=_items(fixed, state, activation, loop, first, count, moment),
        stop_on_failure=loop.max_failed == 0,
    )
    yield issued(command, moment)
    yield Issue(command, available_at)


def _items(
    fixed: PinnedPlaybook,
    state: Execution,
    activation: Activation,
    loop: LoopState,
    first: int,
    count: int,
    moment: Moment,
) -> tuple[Any, ...]:
    """The items themselves when the server knows them; otherwise the worker reads them from the collection."""
    if loop.collection.kind == "inline":
        return loop.collection.items[first : first + count]
    if loop.collection.kind != "workload":
        return ()
    if activation.step not in fixed.collections:
        answer = sites.evaluate(
            fixed, state, activation, fixed.plan.steps[activation.step].site[IN], moment
        )
        items = as_items(unwrapped(answer[0])) if isinstance(answer, list) else []
        assert isinstance(items, list), (
            "it was a list when the loop started, and a workload never changes"
        )
        fixed.collections[activation.step] = items
    return tuple(fixed.collections[activation.step][first : first + count])


def _frames(
    fixed: PinnedPlaybook, state: Execution, activation: Activation, loop: LoopState, moment: Moment
) -> Made:
    """Cursor: each lane claims a frame, works on it and claims again, until a claim comes back empty. One lane counts its items
    on; of several nobody knows who claims first, so each frame counts from a number that no other frame reaches."""
    if loop.drained:
        return
    for number in range(loop.frames, loop.frames + loop.window - loop.live):
        first = loop.claimed if loop.window == 1 else number * MAX_FRAME_ROWS
        command = command_for(
            fixed,
            state,
            activation,
            "frame",
            moment,
            number=number,
            count=loop.frame,
            stop_on_failure=loop.max_failed == 0,
        )
        command = msgspec.structs.replace(command, first=first)
        yield issued(command, moment)
        yield Issue(command)


# ---- closing ----------------------------------------------------------------------------


def _close(
    fixed: PinnedPlaybook, state: Execution, activation: Activation, loop: LoopState, moment: Moment
) -> Made:
    """What items have gathered is joined by a worker first."""
    stats = tallies.stats(loop)
    assert stats is not None, "there is a loop"
    error = _verdict(fixed, activation, loop, stats)
    joined = REDUCE in activation.values or activation.broken is not None
    if loop.gathered and error is None and not joined:
        inline = [[segment.low, segment.partial] for segment in loop.segments]
        yield from ask(
            fixed, state, activation, "evaluate", REDUCE, moment, site_args={"segments": inline}
        )
        return
    if loop.mode == "spark":
        yield e.LoopFaninCompleted(
            at=moment.at, step=activation.step, activation=activation.id, shards=loop.shards
        )
    yield _done(state, activation, loop, stats, error or activation.broken, moment)


def _done(
    state: Execution,
    activation: Activation,
    loop: LoopState,
    stats: e.Stats,
    error: Failure | None,
    moment: Moment,
) -> e.LoopDone:
    reduced = _reduced(state, activation, loop)
    if isinstance(reduced, Failure):
        error, reduced = error or reduced, {}
    error = error or playbook_state.refusal(state, reduced)
    where = address(state.execution_id, "manifest", activation.step, activation.id)
    whole = tallies.with_inherited(stats, loop.collection)
    manifest = Reference(
        ref_id=RefId(activation.id), type="db", uri=str(where), rows=whole.total, format="manifest"
    )
    context = {"row_count": whole.total, "stats": msgspec.to_builtins(whole)}
    return e.LoopDone(
        at=moment.at,
        step=activation.step,
        activation=activation.id,
        stats=stats,
        result=Envelope(
            status="ok" if error is None else "error",
            reference=manifest,
            context=context,
            error=error,
        ),
        set=reduced if error is None else {},
        recovered=stats.failed if error is None else 0,
    )


def _verdict(
    fixed: PinnedPlaybook, activation: Activation, loop: LoopState, stats: e.Stats
) -> Failure | None:
    if loop.broken is not None:
        return loop.broken
    policy = _loop(fixed, activation).spec.policy.failure
    limit = loop.max_failed
    if limit is None and isinstance(
        policy, MaxFailed
    ):  # a share of a cursor's items: known only now
        limit = int(stats.total * float(str(policy.max_failed).rstrip("%")) / 100)
    if policy == "at_end":
        limit = 0
    if limit is None or stats.failed <= limit:
        return None
    first = loop.first_error
    cause = f"; item {loop.first_failed}: {first.message}" if first is not None else ""
    message = f"{stats.failed} of {stats.total} items of loop {activation.step} failed{cause}"
    return Failure(code="LOOP_FAILED", kind="loop", message=message, detail=_first_error(loop))


def _first_error(loop: LoopState) -> dict[str, Any]:
    """Of the first item that failed, whole: whoever looks for the cause finds its traceback, its response, its child."""
    first = loop.first_error
    if first is None:
        return {}
    cause = {
        "code": first.code,
        "message": first.message,
        "kind": first.kind,
        "detail": first.detail,
    }
    return {"first_error": first.code, "index": loop.first_failed, "cause": cause}


def _reduced(state: Execution, activation: Activation, loop: LoopState) -> dict[str, Any] | Failure:
    """The loop's reductions, folded onto what the variables are now. A worker that joined what was gathered has done so."""
    if loop.gathered:
        found = dict(zip(sorted(loop.reduce), activation.values.get(REDUCE, ()), strict=False))
        values = {
            name: sites.reported(value, for_state=is_state(name))
            for name, value in found.items()
            if value != NOT_WRITTEN
        }
        failures = [value for value in values.values() if isinstance(value, Failure)]
        return failures[0] if failures else values
    try:
        return {
            name: reducers.onto(loop.reduce[name], _current(state, full_name(name)), value)
            for name, value in tallies.reduced(loop).items()
            if name in loop.reduce
        }
    except FailedError as problem:
        return Failure(code="REDUCE_FAILED", kind="template", message=str(problem))


def _current(state: Execution, name: str) -> Any:
    root, path = root_of(name)
    return found_at(playbook_state.visible(state) if root == "state" else state.ctx, path)
