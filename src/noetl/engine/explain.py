"""Explain why a step ran, did not run, or waits. The folded log is the only source."""

from msgspec import Struct

from noetl.engine import joins
from noetl.engine.state import (
    Activation,
    Execution,
    OpenCommand,
    PinnedPlaybook,
    Record,
    Recovery,
)
from noetl.engine.unhandled import is_unhandled
from noetl.model.clock import format_iso
from noetl.model.events import Verdict
from noetl.playbook.plan import list_targets


class Explanation(Struct, frozen=True, omit_defaults=True):
    """`verdict` is one word. `because` lists sentences, the most direct cause first."""

    step: str
    verdict: str  # ran, failed, skipped, inherited, running, waiting, held, cancelled, not reached
    because: tuple[str, ...]
    runs: int = 0


def explain(pinned: PinnedPlaybook, state: Execution, step: str) -> Explanation:
    record = state.steps.get(step, Record())
    activations = [entry for entry in state.activations.values() if entry.step == step]
    if activations:
        verdict, because = _explain_live_step(state, activations[0])
    elif step in state.tokens:
        verdict, because = "held", _explain_held_step(pinned, state, step)
    elif record.status != "none":
        verdict, because = _explain_ended_step(
            record, _describe_recoveries(state, step), _explain_missing_admission(state, step)
        )
    else:
        verdict, because = "not reached", _explain_unreached_step(pinned, state, step)
    return Explanation(step, verdict, tuple(because), record.runs)


def _explain_live_step(state: Execution, activation: Activation) -> tuple[str, list[str]]:
    """Explain an activation that has not ended."""
    commands = [
        command for command in state.commands.values() if command.activation == activation.id
    ]
    because = [_describe_origins(activation.origins)]
    loop = activation.loop
    if loop is not None:
        counts = f"{loop.ok} ok, {loop.failed} failed, {loop.live} commands in flight"
        because.append(f"its loop is at item {loop.next} of {loop.collection.size}: {counts}")
    waits = [_explain_wait(state, command) for command in commands]
    reasons = [reason for reason in waits if reason is not None]
    if state.paused and not commands:
        reasons.append("the execution is paused")
    if reasons:
        return "waiting", reasons + because
    if not commands:
        return "running", because
    if _is_evaluating(commands):
        return "running", ["a worker evaluates an expression that needs data", *because]
    return "running", ["its command has not ended", *because]


def _is_evaluating(commands: list[OpenCommand]) -> bool:
    """Whether a worker evaluates an expression for the engine."""
    return any(command.kind in ("evaluate", "plan") for command in commands)


def _explain_wait(state: Execution, command: OpenCommand) -> str | None:
    """What the command waits for. Names the CLI command that ends the wait, if a person can."""
    if command.parked is None:
        return None
    match command.parked.reason:
        case "approval":
            remedy = (
                f"`noetl exec approve {state.execution_id} {command.step}` gives it,"
                " `reject` refuses it"
            )
            return f"task {command.parked.task} waits for an approval: {remedy}"
        case "signal":
            signal = command.parked.signal
            remedy = f"`noetl signal {state.execution_id} {signal}` sends it"
            return f"task {command.parked.task} waits for the signal {signal!r}: {remedy}"
        case "child":
            child = command.parked.child or "which has not started yet"
            return f"task {command.parked.task} waits for its child {child}"
        case _:
            reason = f"task {command.parked.task} waits for a timer"
            if command.parked.until is not None:
                reason += f", until {format_iso(command.parked.until)}"
            return reason


def _explain_held_step(pinned: PinnedPlaybook, state: Execution, step: str) -> list[str]:
    """Explain why the arrivals at a join have not entered the step."""
    origins = {token.origin or "the start" for token in state.tokens[step]}
    sources = ", ".join(sorted(origins))
    blockers = ", ".join(joins.list_blockers(pinned, state, step))
    if state.paused:
        return ["the execution is paused", f"it was reached from {sources}"]
    return [f"it was reached from {sources}, and what is live at {blockers} can still reach it"]


def _explain_ended_step(
    record: Record, recovered: list[str], not_admitted: list[str]
) -> tuple[str, list[str]]:
    """Explain a step that has ended."""
    because = [_describe_origins(record.origins)]
    match record.status:
        case "skipped":
            return "skipped", [f"its admit rule {record.rule} did not allow it", *because]
        case "inherited":
            return "inherited", ["its result was taken over from the execution that is retried"]
        case "cancelled":
            return "cancelled", ["the execution ended while it was live", *because]
    arcs = [_describe_arc_verdict(verdict) for verdict in record.verdicts]
    result = record.result
    if record.status == "error" and result is not None and result.error is not None:
        return "failed", [result.error.message, *recovered, *not_admitted, *because, *arcs]
    return "ran", [*recovered, *_describe_failed_items(record), *because, *arcs]


def _describe_recoveries(state: Execution, step: str) -> list[str]:
    """Describe the failures of the step that an arc, a rule or a loop's policy handled."""
    return [_describe_recovery(recovery) for recovery in state.recoveries if recovery.step == step]


def _describe_recovery(recovery: Recovery) -> str:
    text = f"recovered from {recovery.code}"
    if recovery.task is not None:
        text += f" of task {recovery.task}"
    if recovery.count > 1:
        text += f", {recovery.count} times"
    return f"{text}: {recovery.message} (handled by {recovery.by})"


def _explain_missing_admission(state: Execution, step: str) -> list[str]:
    """Explain why a failure is unhandled although an error arc was taken."""
    record = state.steps[step]
    if record.status != "error" or state.failed_step != step or not is_unhandled(state, step):
        return []
    chosen = [verdict.step for verdict in record.verdicts if verdict.verdict == "taken"]
    return [f"nothing handled the failure: {name} was not admitted" for name in chosen]


def _describe_failed_items(record: Record) -> list[str]:
    """Count the failed items of a loop that did not fail itself."""
    stats = record.stats
    if stats is None or not stats.failed:
        return []
    return [f"{stats.failed} of its {stats.total} items failed"]


def _describe_origins(origins: tuple[str, ...]) -> str:
    if not origins:
        return "the execution began here"
    return f"it was reached from {', '.join(origins)}"


def _describe_arc_verdict(verdict: Verdict) -> str:
    text = f"arc to {verdict.step}: {verdict.verdict}"
    saw = ", ".join(f"{name} = {value!r}" for name, value in verdict.saw.items())
    if saw:
        text += f" ({saw})"
    return text


def _describe_guard(pinned: PinnedPlaybook, source: str, number: int, verdict: Verdict) -> str:
    """The guard of an arc that was not taken, as the playbook writes it."""
    router = pinned.plan.steps[source].step.next
    if router is None or verdict.verdict != "false" or number >= len(router.arcs):
        return ""
    guard = router.arcs[number].when
    if guard is None:
        return ""
    return f"; its guard is {guard}"


def _explain_unreached_step(pinned: PinnedPlaybook, state: Execution, step: str) -> list[str]:
    """Explain why no arrival has come to the step."""
    if step not in pinned.plan.steps:
        return [f"the playbook has no step {step}"]
    because = _explain_early_end(pinned, state, step)
    if state.status == "pending":
        limit = pinned.plan.playbook.executor.spec.max_concurrent
        because.append(
            f"the execution waits for a place: max_concurrent of {state.path} is {limit}"
        )
    for source, plan in pinned.plan.steps.items():
        if step not in list_targets(plan.step):
            continue
        record = state.steps.get(source, Record())
        if source in state.running:
            because.append(f"step {source} leads here and is still live")
        elif record.status in _STATUS_REASONS:
            because.append(f"step {source} leads here and {_STATUS_REASONS[record.status]}")
        else:
            for number, verdict in enumerate(record.verdicts):
                if verdict.step == step:
                    guard = _describe_guard(pinned, source, number, verdict)
                    because.append(f"from {source}, {_describe_arc_verdict(verdict)}{guard}")
    if because:
        return because
    if step == pinned.plan.final_step:
        return ["it runs once all others are over"]
    return ["no arc leads here"]


_STATUS_REASONS = {
    "none": "was not reached itself",
    "skipped": "was skipped",
    "cancelled": "was cancelled",
    "inherited": "was not run again",
}


def _explain_early_end(pinned: PinnedPlaybook, state: Execution, step: str) -> list[str]:
    """Say that the execution ended while another step could still have led here."""
    end = _describe_early_end(state)
    if end is None:
        return []
    unfinished = {start.step for start in state.unfinished} | set(state.running)
    reached_by = pinned.plan.reached_by[step]
    reachable = any(
        step == other or reached_by & pinned.plan.get_step_bit(other) for other in unfinished
    )
    if reachable or not state.activated:
        return [f"the execution {end} before it was reached"]
    return []


def _describe_early_end(state: Execution) -> str | None:
    """How the execution ended early. None if it runs or completed."""
    match state.finished or state.status:
        case "cancelled":
            return "was cancelled"
        case "cancelling" if state.reason in ("requested", "parent"):
            return "was cancelled"
        case "cancelling" | "failed" if state.failed_step is not None:
            return f"failed at {state.failed_step}"
        case "cancelling" | "failed":
            if state.failure is not None and state.failure.code == "TIMEOUT":
                return "timed out"
            return "failed"
        case _:
            return None
