"""Loops: plan the collection, keep the window full, close the epoch once.

The activation of a looping step is its epoch. `loop.started` fixes size and collection before the
first item runs. Commands cover consecutive indexes. A loop is over when none of its commands is
live and nothing is left to issue. Only then is `loop.done` decided, under a key that the log
accepts once. A report of a command that is not live any more counts nothing.
"""

from typing import Any, Literal

import msgspec

from noetl.engine import expressions, loop_counts, playbook_state
from noetl.engine.expressions import Moment, NeedsWorker
from noetl.engine.issuing import (
    Decision,
    ask_for_evaluation,
    get_step_timeout,
    is_held,
    make_command,
    make_command_issued,
)
from noetl.engine.state import Activation, Execution, LoopState, PinnedPlaybook
from noetl.model import events as e
from noetl.model.commands import MAX_FRAME_ROWS
from noetl.model.decisions import AddPart, Issue, SetTimer, Stop
from noetl.model.envelope import NOT_WRITTEN, Envelope, make_failed_envelope
from noetl.model.errors import Failure
from noetl.model.ids import Micros, RefId, gathered_id, timer_id
from noetl.model.reference import Reference, make_address
from noetl.playbook import reducers
from noetl.playbook.assignments import (
    full_name,
    get_at_path,
    is_reference,
    is_state,
    read_link,
    split_full_name,
    unwrap_links,
)
from noetl.playbook.loop_items import list_loop_items
from noetl.playbook.model import Loop, MaxFailed
from noetl.playbook.plan import IN, REDUCE
from noetl.template.errors import FailedError, LimitError

# Commands of one loop in flight. A larger window puts more items into each command, unless every
# item has a command of its own.
MAX_LOOP_COMMANDS = 16
# The same with `chunk: 1`, where a command cannot take more items. Reports that arrive together
# share an append, so a window of few commands costs an append for every few items.
MAX_ITEM_COMMANDS = 256
# Items of a parallel loop in flight, unless `max_in_flight` says otherwise.
DEFAULT_WINDOW_ITEMS = 100
CHUNK_MICROS: Micros = 250_000  # how long an automatic chunk should run
# Items that take less than this keep the worker itself busy, in all its chunks together.
CHEAP_ITEM_MICROS: Micros = 1_000
CHEAP_CHUNK_ITEMS = 1_500  # items
SHORT_REST_MICROS: Micros = 20_000  # a rest of the loop that runs this long is not divided
MAX_CHUNK_ITEMS = 10_000  # items
SLOW_ITEM_MICROS: Micros = 1_000_000  # slower items get a command each
MAX_INLINE_COLLECTION_BYTES = 4_096
# The position of the earlier run's manifest in the manifest of a retried loop.
EARLIER_RUN_INDEX = -1


# ---- planning ---------------------------------------------------------------------------


def plan_epoch(
    pinned: PinnedPlaybook, state: Execution, activation: Activation, moment: Moment
) -> Decision:
    """Find the collection of the loop, then start it."""
    collection = _find_collection(pinned, state, activation, moment)
    if isinstance(collection, NeedsWorker):
        yield from ask_for_evaluation(pinned, state, activation, "plan", IN, moment)
    elif isinstance(collection, Failure):
        result = make_failed_envelope(collection)
        yield e.CallError(
            at=moment.at,
            step=activation.step,
            activation=activation.id,
            result=result,
        )
    elif not is_held(state):
        yield from _start_loop(pinned, state, activation, collection, moment)


def _find_collection(
    pinned: PinnedPlaybook,
    state: Execution,
    activation: Activation,
    moment: Moment,
) -> e.Collection | Failure | NeedsWorker:
    step = pinned.plan.steps[activation.step]
    loop = _get_loop(pinned, activation)
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
        return _plan_failed_items(inherited)
    if activation.planned is not None:
        return activation.planned
    answer = expressions.evaluate_on_server(pinned, state, activation, step.site[IN], moment)
    if isinstance(answer, Failure | NeedsWorker):
        return answer
    value = answer[0]
    if is_reference(value):
        return _plan_stored_list(read_link(value))
    if isinstance(value, Failure) and value.code == LimitError.code:
        return expressions.NEEDS_WORKER
    if isinstance(value, Failure):
        return Failure(code=value.code, kind=value.kind, message=f"loop.in: {value.message}")
    items = list_loop_items(unwrap_links(value))
    if isinstance(items, Failure):
        return items
    if step.workload_loop:
        pinned.collections[activation.step] = items
        return e.Collection(kind="workload", size=len(items))
    if len(msgspec.json.encode(items)) <= MAX_INLINE_COLLECTION_BYTES:
        return e.Collection(kind="inline", size=len(items), items=tuple(items))
    return expressions.NEEDS_WORKER


def _plan_failed_items(inherited: e.LoopInherited) -> e.Collection:
    """The items that an earlier execution did not finish, or those of them that were chosen."""
    size = len(inherited.only) or inherited.failed
    return msgspec.structs.replace(
        inherited.collection,
        kind="failed",
        size=size,
        total=inherited.total,
        skipped=inherited.skipped,
        manifest=inherited.manifest,
        only=inherited.only,
        left=inherited.failed - size,
    )


def _plan_stored_list(reference: Reference) -> e.Collection | NeedsWorker:
    """Loop over a stored list of known length. A worker looks at any other payload first."""
    if not reference.ref_id or reference.rows is None or reference.rows_at is not None:
        return expressions.NEEDS_WORKER
    return e.Collection(kind="reference", size=reference.rows, reference=reference)


def _get_loop(pinned: PinnedPlaybook, activation: Activation) -> Loop:
    loop = pinned.plan.steps[activation.step].step.loop
    assert loop is not None, "only looping steps come here"
    return loop


def _start_loop(
    pinned: PinnedPlaybook,
    state: Execution,
    activation: Activation,
    collection: e.Collection,
    moment: Moment,
) -> Decision:
    loop = _get_loop(pinned, activation)
    spec = loop.spec
    mode = _choose_mode(loop)
    items = collection.size if collection.total is None else collection.total
    timeout = get_step_timeout(pinned, activation)
    timer = timer_id(activation.id, "timeout") if timeout is not None else None
    yield e.LoopStarted(
        at=moment.at,
        step=activation.step,
        activation=activation.id,
        mode=mode,
        collection=collection,
        window=_choose_window(loop, mode, collection.size),
        chunk=0 if spec.chunk == "auto" else spec.chunk,
        frame=spec.frame.size if spec.frame is not None else 50,
        max_failed=_choose_max_failed(loop, items),
        single=pinned.plan.steps[activation.step].needs_own_command,
        reduce=dict(spec.reduce),
        timer=timer,
    )
    if timer is not None and timeout is not None:
        yield SetTimer(timer, moment.at + timeout)
    if collection.manifest is not None:  # results of items that run again replace the earlier ones
        yield AddPart(
            activation.id, EARLIER_RUN_INDEX, 0, collection.manifest, only=collection.only
        )
    if collection.kind == "failed":
        inherited = state.steps[activation.step].loop
        if inherited is not None and inherited.gathered is not None:
            before = _make_manifest_reference(
                pinned.execution_id, activation.step, inherited.gathered
            )
            yield AddPart(gathered_id(activation.id), EARLIER_RUN_INDEX, 0, before)


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
    uri = str(make_address(execution_id, "manifest", step, manifest))
    return Reference(ref_id=RefId(manifest), type="db", uri=uri, rows=rows, format="manifest")


def _choose_window(loop: Loop, mode: str, size: int) -> int:
    """How many items may run at once."""
    if mode == "spark":
        return max(1, size)
    if mode == "sequential":
        return 1
    default = DEFAULT_WINDOW_ITEMS if mode == "parallel" else 1
    return loop.spec.max_in_flight or default


def _choose_max_failed(loop: Loop, size: int) -> int | None:
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


def allows_failed_items(loop: Loop, failed: int, total: int) -> bool:
    """Whether a loop over a known number of items completes with so many failed ones."""
    if loop.spec.policy.failure == "at_end":
        return failed == 0
    limit = _choose_max_failed(loop, total)
    return limit is None or failed <= limit


def _take_share(percentage: str, size: int) -> int:
    return int(size * float(percentage.rstrip("%")) / 100)


# ---- going on ---------------------------------------------------------------------------


def add_parts(event: e.CommandCompleted | e.CommandFailed | e.CommandProgress) -> Decision:
    """Add the reported results to the loop's manifest, and gathered values to theirs."""
    reference, items = event.result.reference, event.items
    if reference is not None and items is not None:
        rows = reference.rows or 0
        yield AddPart(event.activation, items.first, rows, reference, items.shift, items.failed)
    if items is not None and items.gathered is not None:
        yield AddPart(gathered_id(event.activation), items.first, 0, items.gathered)


def continue_loop(
    pinned: PinnedPlaybook, state: Execution, activation: Activation, moment: Moment
) -> Decision:
    """Close the loop, stop its commands, or issue the next ones."""
    loop = activation.loop
    assert loop is not None, "the phase is loop"
    if is_loop_over(loop):
        yield from _close_epoch(pinned, state, activation, loop, moment)
    elif loop.stopping:
        yield stop_commands(state, activation)
    elif is_held(state):
        return
    elif loop.mode == "cursor":
        yield from _issue_frames(pinned, state, activation, loop, moment)
    else:
        yield from _fill_window(pinned, state, activation, loop, moment)


def is_loop_over(loop: LoopState) -> bool:
    """Whether no command of the loop is live and nothing is left to issue."""
    if loop.live:
        return False
    if loop.stopping:
        return True
    if loop.mode == "cursor":
        return loop.drained
    return loop.next >= loop.collection.size and not loop.deferred


def stop_commands(state: Execution, activation: Activation) -> Stop:
    """Stop all commands of the activation, in the order in which they were issued."""
    commands = [
        command for command in state.commands.values() if command.activation == activation.id
    ]
    commands.sort(key=lambda command: command.order)
    return Stop(tuple(command.id for command in commands))


def _fill_window(
    pinned: PinnedPlaybook,
    state: Execution,
    activation: Activation,
    loop: LoopState,
    moment: Moment,
) -> Decision:
    """Issue commands until the window is full: first items that are retried, then new indexes."""
    running = loop.running
    for index, attempts, delay in loop.deferred:
        if running < loop.window:
            yield from _issue_chunk(
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
    lanes = _count_lanes(loop)
    lane_items = -(-loop.window // lanes)
    in_flight, first, size = loop.live, loop.next, loop.collection.size
    while first < size and running < loop.window and in_flight < lanes:
        together = min(lane_items, loop.window - running)
        count = size
        if loop.mode != "spark":
            left = size - first
            count = min(_choose_chunk_size(loop, together, -(-left // lanes)), left)
        together = min(together, count)
        yield from _issue_chunk(pinned, state, activation, loop, moment, first, count, together)
        first += count
        in_flight += 1
        running += together


def _count_lanes(loop: LoopState) -> int:
    """How many commands of the loop may be in flight."""
    if loop.mode == "spark":
        return 1
    if loop.single:
        return loop.window
    if loop.chunk == 1:
        return min(loop.window, MAX_ITEM_COMMANDS)
    return min(loop.window, MAX_LOOP_COMMANDS)


def _choose_chunk_size(loop: LoopState, together: int, share: int) -> int:
    """The number of items in the next chunk: as declared, or what fills a chunk's time.

    A chunk takes at most one lane's `share` of the items that are left, unless they are done in a
    short time anyway. Chunks of cheap items are smaller, because four of them keep a worker busy.
    """
    if loop.single:
        return 1
    if loop.chunk:
        return loop.chunk
    if not loop.timed or loop.micros > SLOW_ITEM_MICROS * loop.timed:
        return 1
    micros = max(1, loop.micros)
    full_chunk = CHUNK_MICROS * together * loop.timed // micros
    short_chunk = SHORT_REST_MICROS * together * loop.timed // micros
    if loop.window >= MAX_LOOP_COMMANDS and loop.micros < CHEAP_ITEM_MICROS * loop.timed:
        full_chunk = max(full_chunk // 4, min(full_chunk, CHEAP_CHUNK_ITEMS))
    return max(1, min(MAX_CHUNK_ITEMS, full_chunk, max(share, short_chunk)))


def _issue_chunk(
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
) -> Decision:
    """Issue a command for the items [first, first + count)."""
    collection = None
    if loop.collection.kind not in ("inline", "workload"):
        collection = loop.collection
    command = make_command(
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
        items=_list_chunk_items(pinned, state, activation, loop, first, count, moment),
        stop_on_failure=loop.max_failed == 0,
    )
    yield make_command_issued(command, moment)
    yield Issue(command, available_at)


def _list_chunk_items(
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
    return tuple(find_workload_items(pinned, state, activation, moment)[first : first + count])


def find_workload_items(
    pinned: PinnedPlaybook, state: Execution, activation: Activation, moment: Moment
) -> list[Any]:
    """The items of a loop over the workload. They are evaluated once, and cached."""
    if activation.step not in pinned.collections:
        site = pinned.plan.steps[activation.step].site[IN]
        answer = expressions.evaluate_on_server(pinned, state, activation, site, moment)
        items: list[Any] | Failure = []
        if isinstance(answer, list):
            items = list_loop_items(unwrap_links(answer[0]))
        assert isinstance(items, list), "a workload never changes: `in` still is a list"
        pinned.collections[activation.step] = items
    return pinned.collections[activation.step]


def _issue_frames(
    pinned: PinnedPlaybook,
    state: Execution,
    activation: Activation,
    loop: LoopState,
    moment: Moment,
) -> Decision:
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
        command = make_command(
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
        yield make_command_issued(command, moment)
        yield Issue(command)


# ---- closing ----------------------------------------------------------------------------


def _close_epoch(
    pinned: PinnedPlaybook,
    state: Execution,
    activation: Activation,
    loop: LoopState,
    moment: Moment,
) -> Decision:
    """Close the epoch. If items have gathered payloads, a worker joins them first."""
    stats = loop_counts.make_stats(loop)
    assert stats is not None, "there is a loop"
    error = _find_loop_failure(pinned, activation, loop, stats)
    is_joined = REDUCE in activation.values or activation.broken is not None
    if loop.gathered and error is None and not is_joined:
        inline = [[segment.low, segment.partial] for segment in loop.segments]
        yield from ask_for_evaluation(
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
    yield _make_loop_done(state, activation, loop, stats, error or activation.broken, moment)


def _make_loop_done(
    state: Execution,
    activation: Activation,
    loop: LoopState,
    stats: e.Stats,
    error: Failure | None,
    moment: Moment,
) -> e.LoopDone:
    """The event that closes the epoch. A loop that failed writes no reductions."""
    reductions = _reduce_results(state, activation, loop)
    if isinstance(reductions, Failure):
        error, reductions = error or reductions, {}
    error = error or playbook_state.find_write_refusal(state, reductions)
    status: Literal["ok", "error"] = "ok"
    recovered = stats.failed + loop.collection.left
    if error is not None:
        status, recovered, reductions = "error", 0, {}
    totals = loop_counts.add_inherited_counts(stats, loop.collection)
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


def _find_loop_failure(
    pinned: PinnedPlaybook,
    activation: Activation,
    loop: LoopState,
    stats: e.Stats,
) -> Failure | None:
    """The failure of the loop by its failure policy. None if the loop succeeded."""
    if loop.broken is not None:
        return loop.broken
    policy = _get_loop(pinned, activation).spec.policy.failure
    limit = loop.max_failed
    if limit is None and isinstance(policy, MaxFailed):  # a share of a cursor's rows
        limit = _take_share(str(policy.max_failed), stats.total)
    if policy == "at_end":
        limit = 0
    left = loop.collection.left
    if limit is None or stats.failed + left <= limit:
        return None
    message = f"{stats.failed} of {stats.total} items of loop {activation.step} failed"
    if left:
        message += f"; {left} more failed before and were left out of this retry"
    if loop.first_error is not None:
        place = "one item" if loop.first_failed is None else f"item {loop.first_failed}"
        message += f"; {place}: {loop.first_error.message}"
    return Failure(
        code="LOOP_FAILED", kind="loop", message=message, detail=_describe_first_error(loop)
    )


def _describe_first_error(loop: LoopState) -> dict[str, Any]:
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


def _reduce_results(
    state: Execution, activation: Activation, loop: LoopState
) -> dict[str, Any] | Failure:
    """The loop's reductions, folded onto the current values of the variables."""
    if loop.gathered:
        return _read_joined_reductions(activation, loop)
    try:
        return {
            name: reducers.apply_reduction(
                loop.reduce[name], _get_current_value(state, full_name(name)), value
            )
            for name, value in loop_counts.reduce_segments(loop).items()
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
        value = expressions.convert_selected(selected, for_state=is_state(name))
        if isinstance(value, Failure):
            return value
        values[name] = value
    return values


def _get_current_value(state: Execution, name: str) -> Any:
    root, path = split_full_name(name)
    values = state.ctx
    if root == "state":
        values = playbook_state.get_visible_state(state)
    return get_at_path(values, path)
