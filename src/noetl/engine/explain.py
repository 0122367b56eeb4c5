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
from noetl.model.clock import iso
from noetl.model.events import Verdict
from noetl.playbook.plan import targets


class Explanation(Struct, frozen=True, omit_defaults=True):
    """`verdict` is one word. `because` lists sentences, the most direct cause first."""

    step: str
    verdict: str  # ran, failed, skipped, inherited, running, waiting, held, cancelled, not reached
    because: tuple[str, ...]
    runs: int = 0


def explain(fixed: PinnedPlaybook, state: Execution, step: str) -> Explanation:
    record = state.steps.get(step, Record())
    live = [activation for activation in state.activations.values() if activation.step == step]
    if live:
        verdict, because = _live(state, live[0])
    elif step in state.tokens:
        verdict, because = "held", _held(fixed, state, step)
    elif record.status != "none":
        verdict, because = _over(record, _recovered(state, step), _not_admitted(state, step))
    else:
        verdict, because = "not reached", _not_reached(fixed, state, step)
    return Explanation(step, verdict, tuple(because), record.runs)


def _live(state: Execution, activation: Activation) -> tuple[str, list[str]]:
    """Explain an activation that has not ended."""
    commands = [live for live in state.commands.values() if live.activation == activation.id]
    because = [_origin(activation.origins)]
    loop = activation.loop
    if loop is not None:
        counts = f"{loop.ok} ok, {loop.failed} failed, {loop.live} commands in flight"
        because.append(f"its loop is at item {loop.next} of {loop.collection.size}: {counts}")
    waits = [_waits_for(state, live) for live in commands]
    reasons = [reason for reason in waits if reason is not None]
    if state.paused and not commands:
        reasons.append("the execution is paused")
    if reasons:
        return "waiting", reasons + because
    if not commands:
        return "running", because
    if _evaluates(commands):
        return "running", ["a worker evaluates an expression that needs data", *because]
    return "running", ["its command has not ended", *because]


def _evaluates(commands: list[OpenCommand]) -> bool:
    """Whether a worker evaluates an expression for the engine."""
    return any(live.kind in ("evaluate", "plan") for live in commands)


def _waits_for(state: Execution, live: OpenCommand) -> str | None:
    """What the command waits for. Names the CLI command that ends the wait, if a person can."""
    if live.parked is None:
        return None
    match live.parked.reason:
        case "approval":
            remedy = (
                f"`noetl exec approve {state.execution_id} {live.step}` gives it,"
                " `reject` refuses it"
            )
            return f"task {live.parked.task} waits for an approval: {remedy}"
        case "signal":
            remedy = f"`noetl signal {state.execution_id} {live.parked.signal}` sends it"
            return f"task {live.parked.task} waits for the signal {live.parked.signal!r}: {remedy}"
        case "child":
            child = live.parked.child or "which has not started yet"
            return f"task {live.parked.task} waits for its child {child}"
        case _:
            reason = f"task {live.parked.task} waits for a timer"
            if live.parked.until is not None:
                reason += f", until {iso(live.parked.until)}"
            return reason


def _held(fixed: PinnedPlaybook, state: Execution, step: str) -> list[str]:
    """Explain why the arrivals at a join have not entered the step."""
    origins = {token.origin or "the start" for token in state.tokens[step]}
    sources = ", ".join(sorted(origins))
    blockers = ", ".join(joins.blockers(fixed, state, step))
    if state.paused:
        return ["the execution is paused", f"it was reached from {sources}"]
    return [f"it was reached from {sources}, and what is live at {blockers} can still reach it"]


def _over(record: Record, recovered: list[str], not_admitted: list[str]) -> tuple[str, list[str]]:
    """Explain a step that has ended."""
    because = [_origin(record.origins)]
    match record.status:
        case "skipped":
            return "skipped", [f"its admit rule {record.rule} did not allow it", *because]
        case "inherited":
            return "inherited", ["its result was taken over from the execution that is retried"]
        case "cancelled":
            return "cancelled", ["the execution ended while it was live", *because]
    arcs = [_verdict(verdict) for verdict in record.verdicts]
    result = record.result
    if record.status == "error" and result is not None and result.error is not None:
        return "failed", [result.error.message, *recovered, *not_admitted, *because, *arcs]
    return "ran", [*recovered, *_items(record), *because, *arcs]


def _recovered(state: Execution, step: str) -> list[str]:
    """Describe the failures of the step that an arc, a rule or a loop's policy handled."""
    return [_describe_recovery(recovery) for recovery in state.recoveries if recovery.step == step]


def _describe_recovery(recovery: Recovery) -> str:
    text = f"recovered from {recovery.code}"
    if recovery.task is not None:
        text += f" of task {recovery.task}"
    if recovery.count > 1:
        text += f", {recovery.count} times"
    return f"{text}: {recovery.message} (handled by {recovery.by})"


def _not_admitted(state: Execution, step: str) -> list[str]:
    """Explain why a failure is unhandled although an error arc was taken."""
    record = state.steps[step]
    if record.status != "error" or state.failed_step != step or not is_unhandled(state, step):
        return []
    chosen = [verdict.step for verdict in record.verdicts if verdict.verdict == "taken"]
    return [f"nothing handled the failure: {name} was not admitted" for name in chosen]


def _items(record: Record) -> list[str]:
    """Count the failed items of a loop that did not fail itself."""
    stats = record.stats
    if stats is None or not stats.failed:
        return []
    return [f"{stats.failed} of its {stats.total} items failed"]


def _origin(origins: tuple[str, ...]) -> str:
    if not origins:
        return "the execution began here"
    return f"it was reached from {', '.join(origins)}"


def _verdict(verdict: Verdict) -> str:
    text = f"arc to {verdict.step}: {verdict.verdict}"
    saw = ", ".join(f"{name} = {value!r}" for name, value in verdict.saw.items())
    if saw:
        text += f" ({saw})"
    return text


def _false_guard(fixed: PinnedPlaybook, source: str, number: int, verdict: Verdict) -> str:
    """The guard of an arc that was not taken, as the playbook writes it."""
    router = fixed.plan.steps[source].step.next
    if router is None or verdict.verdict != "false" or number >= len(router.arcs):
        return ""
    guard = router.arcs[number].when
    if guard is None:
        return ""
    return f"; its guard is {guard}"


def _not_reached(fixed: PinnedPlaybook, state: Execution, step: str) -> list[str]:
    """Explain why no arrival has come to the step."""
    if step not in fixed.plan.steps:
        return [f"the playbook has no step {step}"]
    because = _cut_short(fixed, state, step)
    if state.status == "pending":
        limit = fixed.plan.playbook.executor.spec.max_concurrent
        because.append(
            f"the execution waits for a place: max_concurrent of {state.path} is {limit}"
        )
    for source, plan in fixed.plan.steps.items():
        if step not in targets(plan.step):
            continue
        record = state.steps.get(source, Record())
        if source in state.running:
            because.append(f"step {source} leads here and is still live")
        elif record.status in _PASSED_BY:
            because.append(f"step {source} leads here and {_PASSED_BY[record.status]}")
        else:
            because += [
                f"from {source}, {_verdict(verdict)}{_false_guard(fixed, source, number, verdict)}"
                for number, verdict in enumerate(record.verdicts)
                if verdict.step == step
            ]
    if because:
        return because
    if step == fixed.plan.final:
        return ["it runs once all others are over"]
    return ["no arc leads here"]


_PASSED_BY = {
    "none": "was not reached itself",
    "skipped": "was skipped",
    "cancelled": "was cancelled",
    "inherited": "was not run again",
}


def _cut_short(fixed: PinnedPlaybook, state: Execution, step: str) -> list[str]:
    """Say that the execution ended while another step could still have led here."""
    end = _ended(state)
    if end is None:
        return []
    unfinished = {start.step for start in state.unfinished} | set(state.running)
    reached_by = fixed.plan.reached_by[step]
    reachable = any(step == other or reached_by & fixed.plan.bit(other) for other in unfinished)
    if reachable or not state.activated:
        return [f"the execution {end} before it was reached"]
    return []


def _ended(state: Execution) -> str | None:
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
