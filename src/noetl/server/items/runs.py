"""The facts of one run of a step: from the state if it is the last run, else from the log."""

from typing import Any

import msgspec
from msgspec import Struct

from noetl.engine.state import Activation, Execution, Record
from noetl.log.events.port import EventLog
from noetl.model import events as e
from noetl.model.envelope import Envelope
from noetl.model.errors import NotFound
from noetl.model.failure_kinds import FailureKind, merge_failure_kinds
from noetl.model.ids import ActivationId, CommandId, ExecutionId
from noetl.server.items.manifests import LoopManifest, parse_manifest, read_collection

MAX_SEARCHED_EVENTS = 10_000  # events that are read to find an earlier run
EVENTS_PER_READ = 2_000


class StepRun(Struct, frozen=True, kw_only=True):
    """One run of a step. `stats` and `manifest` are of a loop."""

    execution_id: ExecutionId
    step: str
    run: int
    activation: ActivationId | None = None
    args: dict[str, Any] = {}
    result: Envelope | None = None  # None while it runs
    stats: e.Stats | None = None
    has_total: bool = True  # False for a cursor that has not come to its end
    collection: e.Collection | None = None
    kinds: tuple[FailureKind, ...] = ()
    command_id: CommandId | None = None  # of its call, if it was read from the log

    @property
    def manifest(self) -> LoopManifest | None:
        """The list of the parts in which the results of its items are."""
        if self.result is not None and self.result.reference is not None:
            return parse_manifest(self.result.reference)
        if self.stats is None or self.activation is None:
            return None
        return LoopManifest(self.execution_id, self.activation)


async def find_run(log: EventLog, state: Execution, step: str, run: int | None) -> StepRun:
    """The run of the step, or its last one. Raises `NotFound`."""
    last = _find_last_run(state, step)
    if last is None:
        known = ", ".join({**state.steps, **state.running}) or "none"
        raise NotFound(f"step {step!r} has not run", hint=f"steps that have: {known}")
    if run is None or run == last.run:
        return last
    found = None
    if run < last.run:
        found = await search_run(log, state.execution_id, step, run)
    if found is None:
        raise NotFound(
            f"run {run} of step {step!r} was not found among the first {MAX_SEARCHED_EVENTS} events",
            hint=f"its last run is {last.run}",
        )
    return found


def _find_last_run(state: Execution, step: str) -> StepRun | None:
    live = [entry for entry in state.activations.values() if entry.step == step]
    if live:
        return _describe_live_run(state, max(live, key=lambda entry: entry.run))
    record = state.steps.get(step)
    if record is None or record.status == "none":
        return None
    return _describe_ended_run(state, step, record)


def _describe_live_run(state: Execution, activation: Activation) -> StepRun:
    loop = activation.loop
    return StepRun(
        execution_id=state.execution_id,
        step=activation.step,
        run=activation.run,
        activation=activation.id,
        args=activation.args,
        result=activation.outcome,
        stats=None if loop is None else e.Stats(loop.size, loop.ok, loop.failed, loop.skipped),
        has_total=loop is None or loop.mode != "cursor" or loop.drained,
        collection=None if loop is None else loop.collection,
        kinds=() if loop is None else loop.kinds,
    )


def _describe_ended_run(state: Execution, step: str, record: Record) -> StepRun:
    return StepRun(
        execution_id=state.execution_id,
        step=step,
        run=record.runs,
        args=record.args,
        result=record.result,
        stats=record.stats,
        collection=None if record.loop is None else record.loop.collection,
        kinds=record.kinds,
    )


async def find_collection(log: EventLog, run: StepRun) -> e.Collection | None:
    """What the loop ran over. The state keeps it of loops with failed items only."""
    if run.collection is not None or run.manifest is None:
        return run.collection
    return await read_collection(log, run.manifest)


async def search_run(
    log: EventLog, execution_id: ExecutionId, step: str, number: int
) -> StepRun | None:
    """Fold the events of one run of the step, from a bounded number of events."""
    run: StepRun | None = None
    after = 0
    for _ in range(MAX_SEARCHED_EVENTS // EVENTS_PER_READ):
        page = await log.read_events(execution_id, after, EVENTS_PER_READ)
        for recorded in page:
            event = recorded.event
            if isinstance(event, e.StepEnter) and (event.step, event.run) == (step, number):
                run = StepRun(
                    execution_id=execution_id,
                    step=step,
                    run=number,
                    activation=event.activation,
                    args=event.args,
                )
            elif run is not None and getattr(event, "activation", None) == run.activation:
                run = _add_run_event(run, event)
        if len(page) < EVENTS_PER_READ:
            break
        after = page[-1].seq
    return run


def _add_run_event(run: StepRun, event: e.Event) -> StepRun:
    match event:
        case e.LoopStarted():
            return msgspec.structs.replace(run, collection=event.collection, stats=e.Stats())
        case e.LoopDone():
            return msgspec.structs.replace(run, result=event.result, stats=event.stats)
        case e.CallDone() | e.CallError():
            return msgspec.structs.replace(run, result=event.result, command_id=event.command_id)
        case e.CommandCompleted() | e.CommandProgress() if event.items is not None:
            kinds = merge_failure_kinds(run.kinds, event.items.kinds)
            return msgspec.structs.replace(run, kinds=kinds)
        case _:
            return run
