"""`evolve` folds one event into the state. It is total and deterministic and needs no playbook.

Each event type has one function in the table `FOLDS`; a test compares the table with the union of
events. This module folds the execution, its steps and its commands. Loop counts, journals and
waits have modules of their own.
"""

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from noetl.engine import journals, loop_counts, playbook_state, recoveries, waits
from noetl.engine.outcome import add_outcome_fact
from noetl.engine.state import (
    Activation,
    Arrival,
    Execution,
    LoopState,
    OpenCommand,
    Record,
    Segment,
    TimerUse,
    Unfinished,
)
from noetl.engine.unhandled import fold_unhandled
from noetl.model import events as e
from noetl.model.envelope import Envelope, make_failed_envelope
from noetl.model.errors import Failure
from noetl.model.ids import ActivationId, CommandId, Micros, timer_id
from noetl.playbook.assignments import assign_ctx, assign_scratch

LOOP_COMMAND_KINDS = ("chunk", "frame")  # kinds of commands that a loop counts
FINAL_CAUSE = "final"  # the cause of the final step's activation
ASSIGNING_EVENTS = e.list_types_with("set")
FAILED_EVENT = "call.error"  # `event` for the router of a failed step, loop or `set`


def evolve(state: Execution, event: e.Event) -> Execution:
    event_type = type(event)
    new_state = FOLDS[event_type](state, event)
    if event_type in ASSIGNING_EVENTS:
        new_state = playbook_state.fold_writes(new_state, event)
    return replace(new_state, last_at=event.at, events=state.events + 1)


# ---- the execution ----------------------------------------------------------------------


def _fold_initialized(state: Execution, event: e.PlaybookInitialized) -> Execution:
    timers = state.timers
    if event.timeout is not None:
        timer = timer_id(event.execution_id, "execution")
        timers = {timer: TimerUse("execution", event.execution_id)}
    return replace(
        state,
        status="pending",
        path=event.path,
        version=event.version,
        playbook=event.playbook,
        by=event.by,
        parent=event.parent,
        depth=event.depth,
        retry_of=event.retry_of,
        from_step=event.from_step,
        return_step=event.return_step,
        start_at=event.start_at,
        pins=event.pins,
        workload_by_reference=event.workload_by_reference,
        started_at=event.at,
        timers=timers,
    )


def _fold_admitted(state: Execution, event: e.WorkflowInitialized) -> Execution:
    tokens: dict[str, tuple[Arrival, ...]] = {}
    for number, start in enumerate(state.start_at):
        token = Arrival(
            cause=f"{event.key}:{number}",
            order=(-1, number),
            arrival=number,
            args=start.args,
        )
        tokens[start.step] = (*tokens.get(start.step, ()), token)
    return replace(state, status="running", tokens=tokens, start_at=())


def _fold_step_inherited(state: Execution, event: e.StepInherited) -> Execution:
    record = Record(
        runs=event.runs,
        status="inherited",
        result=event.result,
        loop=event.loop,
        order=state.events,
    )
    if event.loop is None:
        state = replace(state, last_step=event.step)
    return replace(state, steps={**state.steps, event.step: record})


def _fold_arrivals_inherited(state: Execution, event: e.ArrivalsInherited) -> Execution:
    return replace(state, start_at=state.start_at + event.start_at)


def _fold_ctx_inherited(state: Execution, event: e.CtxInherited) -> Execution:
    return replace(state, ctx={**state.ctx, **event.set})


def _fold_paused(state: Execution, event: e.PlaybookPaused) -> Execution:
    return replace(state, paused=True)


def _fold_resumed(state: Execution, event: e.PlaybookResumed) -> Execution:
    return waits.unpark_ready(replace(state, paused=False), event.key)


def _fold_cancelling(state: Execution, event: e.ExecutionCancelling) -> Execution:
    arrivals: list[tuple[int, str, Arrival]] = []
    for step, tokens in state.tokens.items():
        arrivals += [(token.arrival, step, token) for token in tokens]
    arrivals.sort(key=_arrival_order)
    dropped = tuple(Unfinished(step, token.args) for _, step, token in arrivals)
    reason: str | None = event.reason
    if state.status == "cancelling":
        reason = state.reason
    failure, failed_step = state.failure, state.failed_step
    if failure is None and event.error is not None:
        failure, failed_step = event.error, event.step
    return replace(
        state,
        status="cancelling",
        reason=reason,
        paused=False,
        failure=failure,
        failed_step=failed_step,
        tokens={},
        timers={},
        unfinished=state.unfinished + dropped,
    )


def _arrival_order(entry: tuple[int, str, Arrival]) -> tuple[int, str]:
    return entry[:2]


def _fold_completed(state: Execution, event: e.PlaybookCompleted) -> Execution:
    return _end_execution(replace(state, status="completed"), event.at)


def _fold_failed(state: Execution, event: e.PlaybookFailed) -> Execution:
    state = replace(state, status="failed", failure=event.error, failed_step=event.step)
    return _end_execution(state, event.at)


def _fold_cancelled(state: Execution, event: e.ExecutionCancelled) -> Execution:
    return _end_execution(replace(state, status="cancelled"), event.at)


def _end_execution(state: Execution, at: Micros) -> Execution:
    """Drop everything that only a live execution needs."""
    state = _cancel_live_activations(state, at)
    unfinished = () if state.status == "completed" else state.unfinished
    return replace(
        state,
        ended_at=at,
        commands={},
        tokens={},
        timers={},
        signals={},
        waiting_signals=0,
        calls={},
        paused=False,
        unfinished=unfinished,
    )


def _cancel_live_activations(state: Execution, at: Micros) -> Execution:
    """End all live activations as cancelled. A retry begins at their steps."""
    activations = sorted(state.activations.values(), key=lambda activation: activation.order)
    unfinished = tuple(Unfinished(activation.step, activation.args) for activation in activations)
    steps = dict(state.steps)
    for activation in activations:
        record = steps.get(activation.step, Record())
        steps[activation.step] = replace(record, status="cancelled", ended_at=at)
    return replace(
        state,
        activations={},
        running={},
        steps=steps,
        unfinished=state.unfinished + unfinished,
    )


def _fold_quarantined(state: Execution, event: e.ExecutionQuarantined) -> Execution:
    return replace(state, quarantined=event.error)


def _fold_released(state: Execution, event: e.ExecutionReleased) -> Execution:
    return replace(state, quarantined=None)


# ---- steps ------------------------------------------------------------------------------


def _fold_step_enter(state: Execution, event: e.StepEnter) -> Execution:
    remaining = state.tokens.get(event.step, ())[event.joined :]
    tokens = {step: waiting for step, waiting in state.tokens.items() if step != event.step}
    if remaining:
        tokens[event.step] = remaining
    record = replace(
        state.steps.get(event.step, Record()),
        runs=event.run,
        origins=event.origins,
        entered_at=event.at,
        ended_at=None,
    )
    activation = Activation(
        id=event.activation,
        step=event.step,
        run=event.run,
        cause=event.cause,
        origins=event.origins,
        args=event.args,
        entered_at=event.at,
        order=state.activated,
    )
    if event.cause == FINAL_CAUSE:
        state = _fix_outcome(state, event.at)
    return replace(
        state,
        tokens=tokens,
        steps={**state.steps, event.step: record},
        activations={**state.activations, event.activation: activation},
        running={**state.running, event.step: state.running.get(event.step, 0) + 1},
        activated=state.activated + 1,
    )


def _fix_outcome(state: Execution, at: Micros) -> Execution:
    """Fix the outcome before the final step runs. Only a failure of the final step changes it."""
    if state.status == "cancelling" and state.reason in ("requested", "parent"):
        finished = "cancelled"
    elif state.failure is not None:
        finished = "failed"
    else:
        finished = "completed"
    return replace(_cancel_live_activations(state, at), status="running", finished=finished)


def _fold_step_skipped(state: Execution, event: e.StepSkipped) -> Execution:
    record = replace(
        state.steps.get(event.step, Record()),
        status="skipped",
        rule=event.rule,
        skipped_to=event.next,
        verdicts=(),
        order=state.events,
        ended_at=event.at,
    )
    final = state.activations[event.activation].cause == FINAL_CAUSE
    state = _remove_activation(state, event.activation)
    state = replace(
        state,
        steps={**state.steps, event.step: record},
        outcome=add_outcome_fact(state.outcome, "skip", event.step),
    )
    if final:
        return replace(state, final_done=True)
    if event.next is None:
        return fold_unhandled(state, event)
    return _add_arrival(state, event.next, Arrival(event.key, event.step, arrival=state.events))


def _fold_call(state: Execution, event: e.CallDone | e.CallError) -> Execution:
    activation = state.activations[event.activation]
    outcome = activation.outcome
    if outcome is None or outcome.status != event.result.status:
        outcome = event.result
    state = _remove_step_timer(state, activation)
    activation = replace(activation, phase="set", outcome=outcome, event=event.type, timer=None)
    return _with_activation(state, activation)


def _fold_step_exit(state: Execution, event: e.StepExit) -> Execution:
    activation = state.activations[event.activation]
    outcome, router_event = activation.outcome, activation.event
    if outcome is None or (outcome.ok and not event.result.ok):
        outcome = event.result
        if not outcome.ok:
            router_event = FAILED_EVENT
    activation = replace(
        activation,
        phase="when",
        outcome=outcome,
        event=router_event,
        scratch=assign_scratch(activation.scratch, event.set),
    )
    state = replace(state, ctx=assign_ctx(state.ctx, event.set))
    return _with_activation(state, activation)


def _fold_next_evaluated(state: Execution, event: e.NextEvaluated) -> Execution:
    activation = state.activations[event.activation]
    outcome = activation.outcome or Envelope(status="ok")
    error = event.failure or outcome.error or event.error
    unhandled = error is not None and not event.chosen
    succeeded = outcome.ok and event.error is None
    record = Record(
        runs=state.steps[event.step].runs,
        status="ok" if succeeded else "error",
        result=outcome,
        origins=activation.origins,
        event=event.event,
        verdicts=event.verdicts,
        stats=loop_counts.make_stats(activation.loop),
        loop=loop_counts.inherit_loop(activation, outcome),
        order=state.events,
        args=activation.args,
        entered_at=activation.entered_at,
        ended_at=event.at,
        kinds=() if activation.loop is None else activation.loop.kinds,
    )
    state = _remove_activation(state, event.activation)
    state = replace(
        state,
        ctx=assign_ctx(state.ctx, event.set),
        steps={**state.steps, event.step: record},
        last_step=event.step,
        outcome=_mark_step_outcome(state.outcome, activation, outcome, event),
    )
    state = recoveries.count_arc_recovery(state, event, outcome)
    if activation.cause == FINAL_CAUSE:
        finished = "failed" if unhandled else state.finished
        state = replace(state, final_done=True, finished=finished)
    if unhandled:
        failure, failed_step = state.failure, state.failed_step
        if failure is None:
            failure, failed_step = error, event.step
        state = replace(
            state,
            failure=failure,
            failed_step=failed_step,
            unfinished=(*state.unfinished, Unfinished(event.step, activation.args)),
        )
    for chosen in event.chosen:
        token = Arrival(event.key, event.step, (event.order, chosen.arc), state.events, chosen.args)
        state = _add_arrival(state, chosen.step, token)
    return state


def _mark_step_outcome(
    outcome: int,
    activation: Activation,
    result: Envelope,
    event: e.NextEvaluated,
) -> int:
    """Add the end of an activation to the hash of the outcome."""
    payload: str | None = ""
    if result.reference is not None and activation.loop is None:
        payload = result.reference.sha256
    counts: tuple[int, ...] = ()
    stats = loop_counts.make_stats(activation.loop)
    if stats:
        counts = (stats.total, stats.ok, stats.failed, stats.skipped)
    arcs = ",".join(chosen.step for chosen in event.chosen)
    return add_outcome_fact(
        outcome,
        "step",
        event.step,
        activation.run,
        result.status,
        payload or "",
        arcs,
        *counts,
    )


def _fold_expression_evaluated(state: Execution, event: e.ExpressionEvaluated) -> Execution:
    state = _close_command(state, event.command_id)
    activation = state.activations.get(event.activation)
    if activation is None:
        return state
    values = {**activation.values, event.site: event.values}
    return _with_activation(
        state, replace(activation, values=values, planned=event.plan, broken=event.error)
    )


def _add_arrival(state: Execution, step: str, token: Arrival) -> Execution:
    return replace(state, tokens={**state.tokens, step: (*state.tokens.get(step, ()), token)})


def _with_activation(state: Execution, activation: Activation) -> Execution:
    return replace(state, activations={**state.activations, activation.id: activation})


def _remove_activation(state: Execution, activation_id: ActivationId) -> Execution:
    activations = dict(state.activations)
    activation = activations.pop(activation_id)
    running = dict(state.running)
    running[activation.step] -= 1
    if not running[activation.step]:
        del running[activation.step]
    state = replace(state, activations=activations, running=running)
    return _remove_step_timer(state, activation)


def _remove_step_timer(state: Execution, activation: Activation) -> Execution:
    """Drop the step's timer. A step's timeout limits only its call."""
    if activation.timer is None:
        return state
    timers = {timer: use for timer, use in state.timers.items() if timer != activation.timer}
    return replace(state, timers=timers)


# ---- commands ---------------------------------------------------------------------------


def _fold_command_issued(state: Execution, event: e.CommandIssued) -> Execution:
    command = OpenCommand(
        id=event.command_id,
        activation=event.activation,
        step=event.step,
        kind=event.kind,
        first=event.first,
        count=event.count,
        together=event.together,
        attempts=event.attempts,
        site=event.site,
        order=state.issued,
    )
    activation = state.activations.get(event.activation)
    if activation is not None and activation.pool != event.pool:
        state = _with_activation(state, replace(activation, pool=event.pool))
    activation = state.activations[event.activation]
    if activation.loop is not None and event.kind in LOOP_COMMAND_KINDS:
        activation = replace(activation, loop=loop_counts.count_issued(activation.loop, event))
    elif event.kind == "run":
        activation = replace(activation, phase="call", timer=event.timer)
    elif event.kind == "plan":
        activation = replace(activation, phase="plan")
    timers = state.timers
    if event.timer is not None:
        timers = {**timers, event.timer: TimerUse("step", event.activation)}
    return replace(
        state,
        commands={**state.commands, command.id: command},
        activations={**state.activations, activation.id: activation},
        timers=timers,
        issued=state.issued + 1,
    )


def _fold_command_noticed(
    state: Execution, event: e.CommandClaimed | e.CommandStarted
) -> Execution:
    command = state.commands[event.command_id]
    return replace(
        state, commands={**state.commands, command.id: replace(command, worker=event.worker)}
    )


def _fold_command_reported(
    state: Execution, event: e.CommandCompleted | e.CommandFailed
) -> Execution:
    command = state.commands[event.command_id]
    activation = state.activations[command.activation]
    if activation.loop is not None and command.kind in LOOP_COMMAND_KINDS:
        activation = replace(
            activation, loop=loop_counts.count_report(activation.loop, command, event)
        )
    else:
        activation = replace(activation, outcome=event.result.without_input())
    activation = replace(activation, scratch=assign_scratch(activation.scratch, event.set))
    state = replace(state, ctx=assign_ctx(state.ctx, event.set))
    state = _count_rule_recoveries(state, event)
    return _with_activation(_close_command(state, command.id), activation)


def _count_rule_recoveries(
    state: Execution, event: e.CommandCompleted | e.CommandFailed
) -> Execution:
    state = recoveries.count_rule_recovery(state, event.step, getattr(event, "recovered", None))
    if event.items is None:
        return state
    return recoveries.count_rule_recovery(state, event.step, event.items.recovered)


def _fold_command_dead(state: Execution, event: e.CommandDead) -> Execution:
    command = state.commands[event.command_id]
    activation = state.activations[command.activation]
    failure = make_worker_lost(command, event.attempt)
    if activation.loop is not None and command.kind in LOOP_COMMAND_KINDS:
        activation = replace(
            activation, loop=loop_counts.count_lost(activation.loop, command, failure)
        )
    elif command.kind in ("evaluate", "plan"):
        activation = replace(activation, broken=failure)
    else:
        activation = replace(activation, outcome=make_failed_envelope(failure))
    return _with_activation(_close_command(state, command.id), activation)


def make_worker_lost(command: OpenCommand, attempt: int) -> Failure:
    message = f"step {command.step}: {attempt} workers were lost while they ran this command"
    return Failure(code="WORKER_LOST", kind="worker_lost", message=message, attempt=attempt)


def _fold_command_cancelled(state: Execution, event: e.CommandCancelled) -> Execution:
    command = state.commands[event.command_id]
    activation = state.activations[command.activation]
    if activation.loop is not None and command.kind in LOOP_COMMAND_KINDS:
        state = _with_activation(
            state, replace(activation, loop=loop_counts.count_cancelled(activation.loop, command))
        )
    return _close_command(state, command.id)


def _fold_command_returned(state: Execution, event: e.CommandReturned) -> Execution:
    command = state.commands[event.command_id]
    returned = replace(command, attempt=command.attempt + 1, worker=None)
    return replace(state, commands={**state.commands, command.id: returned})


def _fold_command_reclaimed(state: Execution, event: e.CommandReclaimed) -> Execution:
    command = state.commands[event.command_id]
    reclaimed = replace(command, attempt=event.attempt, lost=command.lost + 1, worker=None)
    return replace(state, commands={**state.commands, command.id: reclaimed})


def _close_command(state: Execution, command_id: CommandId) -> Execution:
    """Remove an ended command, and the timers of its wait."""
    commands = dict(state.commands)
    command = commands.pop(command_id)
    if command.parked is None:
        return replace(state, commands=commands)
    return waits.forget_wait_timers(replace(state, commands=commands), command.parked)


# ---- loops ------------------------------------------------------------------------------


def _fold_loop_started(state: Execution, event: e.LoopStarted) -> Execution:
    loop = LoopState(
        mode=event.mode,
        collection=event.collection,
        window=event.window,
        chunk=event.chunk,
        frame=event.frame,
        max_failed=event.max_failed,
        single=event.single,
        reduce=event.reduce,
        segments=_list_inherited_segments(state, event),
        gathered=_get_inherited_field(state, event, "gathered") is not None,
    )
    activation = replace(
        state.activations[event.activation],
        phase="loop",
        loop=loop,
        timer=event.timer,
        planned=None,
    )
    if event.timer is not None:
        timers = {**state.timers, event.timer: TimerUse("step", event.activation)}
        state = replace(state, timers=timers)
    return _with_activation(state, activation)


def _list_inherited_segments(state: Execution, event: e.LoopStarted) -> tuple[Segment, ...]:
    """The inherited reductions of the items that do not run again, as the first segment."""
    partial = _get_inherited_field(state, event, "partial")
    if not partial:
        return ()
    return (Segment(-1, 0, partial),)


def _get_inherited_field(state: Execution, event: e.LoopStarted, field: str) -> Any:
    """A field of the inherited loop. None if the loop does not continue an inherited one."""
    if event.collection.kind != "failed":
        return None
    loop = state.steps[event.step].loop
    if loop is None:
        return None
    return getattr(loop, field)


def _fold_loop_done(state: Execution, event: e.LoopDone) -> Execution:
    activation = state.activations[event.activation]
    state = _remove_step_timer(replace(state, ctx=assign_ctx(state.ctx, event.set)), activation)
    state = recoveries.count_loop_recovery(state, event)
    router_event = event.type if event.result.ok else FAILED_EVENT
    activation = replace(
        activation,
        phase="set",
        outcome=event.result,
        event=router_event,
        timer=None,
    )
    return _with_activation(state, activation)


def _keep_state(state: Execution, event: e.Event) -> Execution:
    return state


Fold = Callable[[Execution, Any], Execution]

FOLDS: dict[type, Fold] = {
    e.PlaybookInitialized: _fold_initialized,
    e.WorkflowInitialized: _fold_admitted,
    e.StepInherited: _fold_step_inherited,
    e.ArrivalsInherited: _fold_arrivals_inherited,
    e.CtxInherited: _fold_ctx_inherited,
    e.StateRead: playbook_state.fold_read,
    e.StateConflict: playbook_state.fold_conflict,
    e.PlaybookPaused: _fold_paused,
    e.PlaybookResumed: _fold_resumed,
    e.ExecutionCancelling: _fold_cancelling,
    e.ExecutionCancelled: _fold_cancelled,
    e.PlaybookCompleted: _fold_completed,
    e.PlaybookFailed: _fold_failed,
    e.ExecutionQuarantined: _fold_quarantined,
    e.ExecutionReleased: _fold_released,
    e.StepEnter: _fold_step_enter,
    e.StepSkipped: _fold_step_skipped,
    e.CallDone: _fold_call,
    e.CallError: _fold_call,
    e.StepExit: _fold_step_exit,
    e.NextEvaluated: _fold_next_evaluated,
    e.ExpressionEvaluated: _fold_expression_evaluated,
    e.TimerFired: waits.fold_timer_fired,
    e.SignalReceived: waits.fold_signal_received,
    e.ChildStarted: waits.fold_child_started,
    e.ChildEnded: waits.fold_child_ended,
    e.CommandIssued: _fold_command_issued,
    e.CommandClaimed: _fold_command_noticed,
    e.CommandStarted: _fold_command_noticed,
    e.CommandCompleted: _fold_command_reported,
    e.CommandFailed: _fold_command_reported,
    e.CommandParked: waits.fold_parked,
    e.CommandReturned: _fold_command_returned,
    e.CommandReclaimed: _fold_command_reclaimed,
    e.CommandDead: _fold_command_dead,
    e.CommandCancelled: _fold_command_cancelled,
    e.TaskDone: journals.fold_task_done,
    e.CallPage: journals.fold_page,
    e.RetryStarted: journals.fold_retry,
    e.CommandProgress: journals.fold_progress,
    e.FrameClaimed: journals.fold_frame_claimed,
    e.SinkProcessed: _keep_state,
    e.LoopStarted: _fold_loop_started,
    e.LoopShardDone: journals.fold_shard_done,
    e.LoopFaninCompleted: _keep_state,
    e.LoopDone: _fold_loop_done,
}
