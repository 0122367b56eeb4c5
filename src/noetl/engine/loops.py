"""Loops: plan the collection, keep the window full, close the epoch once.

The activation of a looping step is its epoch. `loop.started` fixes size and collection before the
first item runs. Commands cover consecutive indexes. A loop is over when none of its commands is
live and nothing is left to issue. Only then is `loop.done` decided, under a key that the log
accepts once. A report of a command that is not live any more counts nothing.
"""

from typing import Any, Literal

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

# Commands of one loop in flight. A larger window puts more items into each command, unless every
# item has a command of its own.
LANES = 16
PARALLEL_WINDOW = 100  # items of a parallel loop in flight, unless `max_in_flight` says otherwise
CHUNK_TIME: Micros = 250_000  # how long an automatic chunk should run
CHEAP_ITEM: Micros = 1_000  # such items keep the worker itself busy, in all its chunks together
CHEAP_CHUNK = 1_500  # items
SHORT_TIME: Micros = 20_000  # a rest of the loop that runs this long is not divided
LARGEST_CHUNK = 10_000  # items
SLOW_ITEM: Micros = 1_000_000  # slower items get a command each
INLINE_BYTES = 4_096
BEFORE = -1  # the position of the earlier run's manifest in the manifest of a retried loop


# ---- planning ---------------------------------------------------------------------------


def plan(pinned: PinnedPlaybook, state: Execution, activation: Activation, moment: Moment) -> Made:
    """Find the collection of the loop, then start it."""
    collection = _collection(pinned, state, activation, moment)
    if isinstance(collection, NeedsWorker):
        yield from ask(pinned, state, activation, "plan", IN, moment)
    elif isinstance(collection, Failure):
        result = failed(collection)
        yield e.CallError(
            at=moment.at,
            step=activation.step,
            activation=activation.id,
            result=result,
        )
    elif not held(state):
        yield from _start(pinned, state, activation, collection, moment)


def _collection(
    pinned: PinnedPlaybook,
    state: Execution,
    activation: Activation,
    moment: Moment,
) -> e.Collection | Failure | NeedsWorker:
    step = pinned.plan.steps[activation.step]
    loop = _loop(pinned, activation)
    if loop.cursor is not None:
        return e.Collection(kind="cursor")
    record = state.steps.get(activation.step)
    inherited = record.loop if record is not None else None
    if (
        record is not None
        and inherited is not None
        and activation.run == record.runs
        and record.status == "inherited"
    ):
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
    answer = sites.evaluate(pinned, state, activation, step.site[IN], moment)
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
        pinned.collections[activation.step] = items
        return e.Collection(kind="workload", size=len(items))
    if len(msgspec.json.encode(items)) <= INLINE_BYTES:
        return e.Collection(kind="inline", size=len(items), items=tuple(items))
    return sites.NEEDS_WORKER


def _stored(reference: Reference) -> e.Collection | NeedsWorker:
    """Loop over a stored list of known length. A worker looks at any other payload first."""
    if not reference.ref_id or reference.rows is None or reference.rows_at is not None:
        return sites.NEEDS_WORKER
    return e.Collection(kind="reference", size=reference.rows, reference=reference)


def as_items(value: Any) -> list[Any] | Failure:
    """The items of `loop.in`: those of a list; one for a map or text; none for null. A number or
    boolean is an error."""
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


def _loop(pinned: PinnedPlaybook, activation: Activation) -> Loop:
    loop = pinned.plan.steps[activation.step].step.loop
    assert loop is not None, "only looping steps come here"
    return loop


def _start(
    pinned: PinnedPlaybook,
    state: Execution,
    activation: Activation,
    collection: e.Collection,
    moment: Moment,
) -> Made:
    loop = _loop(pinned, activation)
    spec = loop.spec
    mode = _choose_mode(loop)
    items = collection.size if collection.total is None else collection.total
    timeout = step_timeout(pinned, activation)
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
        max_failed=_max_failed(loop, items),
        single=pinned.plan.steps[activation.step].alone,
        reduce=dict(spec.reduce),
        timer=timer,
    )
    if timer is not None and timeout is not None:
        yield SetTimer(timer, moment.at + timeout)
    if collection.manifest is not None:  # results of items that run again replace the earlier ones
        yield AddPart(activation.id, BEFORE, 0, collection.manifest)
    if collection.kind == "failed":
        inherited = state.steps[activation.step].loop
        if inherited is not None and inherited.gathered is not None:
            before = _make_manifest_reference(
                pinned.execution_id, activation.step, inherited.gathered
            )
            yield AddPart(gathered_id(activation.id), BEFORE, 0, before)


def _choose_mode(loop: Loop) -> Literal["sequential", "parallel", "cursor", "spark"]:
    if loop.spec.policy.exec == "spark":
        return "spark"
    if loop.cursor is not None:
        return "cursor"
    return loop.spec.mode


def _make_manifest_reference(
    execution_id: str,
    step: str,
    manifest: str,
    rows: int | None = None,
) -> Reference:
    uri = str(address(execution_id, "manifest", step, manifest))
    return Reference(ref_id=RefId(manifest), type="db", uri=uri, rows=rows, format="manifest")


def _window(loop: Loop, mode: str, size: int) -> int:
    """How many items may run at once."""
    if mode == "spark":
        return max(1, size)
    if mode == "sequential":
        return 1
    default = PARALLEL_WINDOW if mode == "parallel" else 1
    return loop.spec.max_in_flight or default


def _max_failed(loop: Loop, size: int) -> int | None:
    """How many items may fail before the loop stops. None: every item runs."""
    policy = loop.spec.policy.failure
    if policy in ("best_effort", "at_end"):
        return None
    if not isinstance(policy, MaxFailed):
        return 0
    limit = policy.max_failed
    if isinstance(limit, int):
        return limit
    if loop.cursor is not None:  # a share of an unknown number of items
        return None
    return _take_share(limit, size)


def _take_share(percentage: str, size: int) -> int:
    return int(size * float(percentage.rstrip("%")) / 100)


# ---- going on ---------------------------------------------------------------------------


def part(event: e.CommandCompleted | e.CommandFailed | e.CommandProgress) -> Made:
    """Add the reported results to the loop's manifest, and gathered values to theirs."""
    reference, items = event.result.reference, event.items
    if reference is not None and items is not None:
        yield AddPart(event.activation, items.first, reference.rows or 0, reference, items.shift)
    if items is not None and items.gathered is not None:
        yield AddPart(gathered_id(event.activation), items.first, 0, items.gathered)


def go_on(pinned: PinnedPlaybook, state: Execution, activation: Activation, moment: Moment) -> Made:
    """Close the loop, stop its commands, or issue the next ones."""
    loop = activation.loop
    assert loop is not None, "the phase is loop"
    if over(loop):
        yield from _close(pinned, state, activation, loop, moment)
    elif loop.stopping:
        yield stop(state, activation)
    elif held(state):
        return
    elif loop.mode == "cursor":
        yield from _frames(pinned, state, activation, loop, moment)
    else:
        yield from _fill(pinned, state, activation, loop, moment)


def over(loop: LoopState) -> bool:
    """Whether no command of the loop is live and nothing is left to issue."""
    if loop.live:
        return False
    if loop.stopping:
        return True
    if loop.mode == "cursor":
        return loop.drained
    return loop.next >= loop.collection.size and not loop.deferred


def stop(state: Execution, activation: Activation) -> Stop:
    """Stop all commands of the activation, in the order in which they were issued."""
    commands = [
        command for command in state.commands.values() if command.activation == activation.id
    ]
    commands.sort(key=lambda command: command.order)
    return Stop(tuple(command.id for command in commands))


def _fill(
    pinned: PinnedPlaybook,
    state: Execution,
    activation: Activation,
    loop: LoopState,
    moment: Moment,
) -> Made:
    """Issue commands until the window is full: first items that are retried, then new indexes."""
    running = loop.running
    for index, attempts, delay in loop.deferred:
        if running < loop.window:
            yield from _chunk(
                pinned,
                state,
                activation,
                loop,
                moment,
                first=index,
                count=1,
                together=1,
                attempts=attempts,
                available_at=moment.at + delay,
            )
            running += 1
    if loop.mode == "spark":
        lanes = 1
    elif loop.single:
        lanes = loop.window
    else:
        lanes = min(loop.window, LANES)
    lane_items = -(-loop.window // lanes)
    in_flight, first, size = loop.live, loop.next, loop.collection.size
    while first < size and running < loop.window and in_flight < lanes:
        together = min(lane_items, loop.window - running)
        count = size
        if loop.mode != "spark":
            left = size - first
            count = min(_chunk_size(loop, together, -(-left // lanes)), left)
        together = min(together, count)
        yield from _chunk(pinned, state, activation, loop, moment, first, count, together)
        first += count
        in_flight += 1
        running += together


def _chunk_size(loop: LoopState, together: int, share: int) -> int:
    """The number of items in the next chunk: as declared, or what fills a chunk's time.

    A chunk takes at most one lane's `share` of the items that are left, unless they are done in a
    short time anyway. Chunks of cheap items are smaller, because four of them keep a worker busy.
    """
    if loop.single:
        return 1
    if loop.chunk:
        return loop.chunk
    if not loop.timed or loop.micros > SLOW_ITEM * loop.timed:
        return 1
    micros = max(1, loop.micros)
    full_chunk = CHUNK_TIME * together * loop.timed // micros
    short_chunk = SHORT_TIME * together * loop.timed // micros
    if loop.window >= LANES and loop.micros < CHEAP_ITEM * loop.timed:
        full_chunk = max(full_chunk // 4, min(full_chunk, CHEAP_CHUNK))
    return max(1, min(LARGEST_CHUNK, full_chunk, max(share, short_chunk)))


def _chunk(
    pinned: PinnedPlaybook,
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
    """Issue a command for the items [first, first + count)."""
    collection = None
    if loop.collection.kind not in ("inline", "workload"):
        collection = loop.collection
    command = command_for(
        pinned,
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
        collection=collection,
        items=_items(pinned, state, activation, loop, first, count, moment),
        stop_on_failure=loop.max_failed == 0,
    )
    yield issued(command, moment)
    yield Issue(command, available_at)


def _items(
    pinned: PinnedPlaybook,
    state: Execution,
    activation: Activation,
    loop: LoopState,
    first: int,
    count: int,
    moment: Moment,
) -> tuple[Any, ...]:
    """The items if the server knows them. Otherwise none: the worker reads the collection."""
    if loop.collection.kind == "inline":
        return loop.collection.items[first : first + count]
    if loop.collection.kind != "workload":
        return ()
    if activation.step not in pinned.collections:
        site = pinned.plan.steps[activation.step].site[IN]
        answer = sites.evaluate(pinned, state, activation, site, moment)
        items: list[Any] | Failure = []
        if isinstance(answer, list):
            items = as_items(unwrapped(answer[0]))
        assert isinstance(items, list), "a workload never changes: `in` still is a list"
        pinned.collections[activation.step] = items
    return tuple(pinned.collections[activation.step][first : first + count])


def _frames(
    pinned: PinnedPlaybook,
    state: Execution,
    activation: Activation,
    loop: LoopState,
    moment: Moment,
) -> Made:
    """Issue the next frames of a cursor loop, until a claim returns no rows.

    With one lane, a frame counts its items from the rows claimed so far. With several lanes the
    order of the claims is unknown, so each frame counts from a number that no other frame reaches.
    """
    if loop.drained:
        return
    for number in range(loop.frames, loop.frames + loop.window - loop.live):
        first = number * MAX_FRAME_ROWS
        if loop.window == 1:
            first = loop.claimed
        command = command_for(
            pinned,
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
    pinned: PinnedPlaybook,
    state: Execution,
    activation: Activation,
    loop: LoopState,
    moment: Moment,
) -> Made:
    """Close the epoch. If items have gathered payloads, a worker joins them first."""
    stats = tallies.stats(loop)
    assert stats is not None, "there is a loop"
    error = _verdict(pinned, activation, loop, stats)
    is_joined = REDUCE in activation.values or activation.broken is not None
    if loop.gathered and error is None and not is_joined:
        inline = [[segment.low, segment.partial] for segment in loop.segments]
        yield from ask(
            pinned,
            state,
            activation,
            "evaluate",
            REDUCE,
            moment,
            site_args={"segments": inline},
        )
        return
    if loop.mode == "spark":
        yield e.LoopFaninCompleted(
            at=moment.at,
            step=activation.step,
            activation=activation.id,
            shards=loop.shards,
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
    """The event that closes the epoch. A loop that failed writes no reductions."""
    reductions = _reduced(state, activation, loop)
    if isinstance(reductions, Failure):
        error, reductions = error or reductions, {}
    error = error or playbook_state.refusal(state, reductions)
    status: Literal["ok", "error"] = "ok"
    recovered = stats.failed
    if error is not None:
        status, recovered, reductions = "error", 0, {}
    totals = tallies.with_inherited(stats, loop.collection)
    context = {"row_count": totals.total, "stats": msgspec.to_builtins(totals)}
    manifest = _make_manifest_reference(
        state.execution_id,
        activation.step,
        activation.id,
        totals.total,
    )
    return e.LoopDone(
        at=moment.at,
        step=activation.step,
        activation=activation.id,
        stats=stats,
        result=Envelope(status=status, reference=manifest, context=context, error=error),
        set=reductions,
        recovered=recovered,
    )


def _verdict(
    pinned: PinnedPlaybook,
    activation: Activation,
    loop: LoopState,
    stats: e.Stats,
) -> Failure | None:
    """The failure of the loop by its failure policy. None if the loop succeeded."""
    if loop.broken is not None:
        return loop.broken
    policy = _loop(pinned, activation).spec.policy.failure
    limit = loop.max_failed
    if limit is None and isinstance(policy, MaxFailed):  # a share of a cursor's rows
        limit = _take_share(str(policy.max_failed), stats.total)
    if policy == "at_end":
        limit = 0
    if limit is None or stats.failed <= limit:
        return None
    message = f"{stats.failed} of {stats.total} items of loop {activation.step} failed"
    if loop.first_error is not None:
        message += f"; item {loop.first_failed}: {loop.first_error.message}"
    return Failure(code="LOOP_FAILED", kind="loop", message=message, detail=_first_error(loop))


def _first_error(loop: LoopState) -> dict[str, Any]:
    """The whole error of the first failed item, with its traceback, response or child."""
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
    """The loop's reductions, folded onto the current values of the variables."""
    if loop.gathered:
        return _read_joined_reductions(activation, loop)
    try:
        return {
            name: reducers.onto(loop.reduce[name], _current(state, full_name(name)), value)
            for name, value in tallies.reduced(loop).items()
            if name in loop.reduce
        }
    except FailedError as error:
        return Failure(code="REDUCE_FAILED", kind="template", message=str(error))


def _read_joined_reductions(activation: Activation, loop: LoopState) -> dict[str, Any] | Failure:
    """The reductions that a worker has joined, already folded onto the current values."""
    values: dict[str, Any] = {}
    reported = activation.values.get(REDUCE, ())
    for name, selected in zip(sorted(loop.reduce), reported, strict=False):
        if selected == NOT_WRITTEN:
            continue
        value = sites.reported(selected, for_state=is_state(name))
        if isinstance(value, Failure):
            return value
        values[name] = value
    return values


def _current(state: Execution, name: str) -> Any:
    root, path = root_of(name)
    values = state.ctx
    if root == "state":
        values = playbook_state.visible(state)
    return found_at(values, path)
