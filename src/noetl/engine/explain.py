"""Why a step ran, did not run, or waits: answered from the folded log alone."""

from msgspec import Struct

from noetl.engine import joins
from noetl.engine.state import Activation, Execution, OpenCommand, PinnedPlaybook, Record
from noetl.engine.unhandled import is_unhandled
from noetl.model.clock import iso
from noetl.model.events import Verdict
from noetl.playbook.plan import targets


class Explanation(Struct, frozen=True, omit_defaults=True):
    """`verdict` in a word, `because` in sentences, most direct cause first."""

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
    commands = [live for live in state.commands.values() if live.activation == activation.id]
    because = [_origin(activation.origins)]
    loop = activation.loop
    if loop is not None:
        counted = f"{loop.ok} ok, {loop.failed} failed, {loop.live} commands in flight"
        because.append(f"its loop is at item {loop.next} of {loop.collection.size}: {counted}")
    waiting = [reason for live in commands if (reason := _waits_for(state, live)) is not None]
    if state.paused and not commands:
        waiting.append("the execution is paused")
    if waiting:
        return "waiting", waiting + because
    where = (
        "a worker evaluates an expression that needs data"
        if _evaluates(commands)
        else "its command has not ended"
    )
    return "running", [*([where] if commands else []), *because]


def _evaluates(commands: list[OpenCommand]) -> bool:
    return any(live.kind in ("evaluate", "plan") for live in commands)


def _waits_for(state: Execution, live: OpenCommand) -> str | None:
    """With the command that ends the wait, where a person can."""
    if live.parked is None:
        return None
    match live.parked.reason:
        case "approval":
            sent = f"`noetl exec approve {state.execution_id} {live.step}` gives it, `reject` refuses it"
            return f"task {live.parked.task} waits for an approval: {sent}"
        case "signal":
            sent = f"`noetl signal {state.execution_id} {live.parked.signal}` sends it"
            return f"task {live.parked.task} waits for the signal {live.parked.signal!r}: {sent}"
        case "child":
            child = live.parked.child or "which has not started yet"
            return f"task {live.parked.task} waits for its child {child}"
        case _:
            until = live.parked.until
            when = "" if until is None else f", until {iso(until)}"
            return f"task {live.parked.task} waits for a timer{when}"


def _held(fixed: PinnedPlaybook, state: Execution, step: str) -> list[str]:
    arrived = ", ".join(sorted({token.origin or "the start" for token in state.tokens[step]}))
    blockers = ", ".join(joins.blockers(fixed, state, step))
    if state.paused:
        return ["the execution is paused", f"it was reached from {arrived}"]
    return [f"it was reached from {arrived}, and what is live at {blockers} can still reach it"]


def _over(record: Record, recovered: list[str], not_admitted: list[str]) -> tuple[str, list[str]]:
    because = [_origin(record.origins)]
    match record.status:
        case "skipped":
            return "skipped", [f"its admit rule {record.rule} did not allow it", *because]
        case "inherited":
            return "inherited", ["its result was taken over from the execution that is retried"]
        case "cancelled":
            return "cancelled", ["the execution ended while it was live", *because]
    routed = [_verdict(verdict) for verdict in record.verdicts]
    if record.status == "error" and record.result is not None and record.result.error is not None:
        return "failed", [record.result.error.message, *recovered, *not_admitted, *because, *routed]
    return "ran", [*recovered, *_items(record), *because, *routed]


def _recovered(state: Execution, step: str) -> list[str]:
    """Failures of the step that something handled."""
    return [
        f"recovered from {each.code}"
        + (f" of task {each.task}" if each.task is not None else "")
        + (f", {each.count} times" if each.count > 1 else "")
        + f": {each.message} (handled by {each.by})"
        for each in state.recoveries
        if each.step == step
    ]


def _not_admitted(state: Execution, step: str) -> list[str]:
    """Why a failure stands although an error arc was taken."""
    record = state.steps[step]
    if record.status != "error" or state.failed_step != step or not is_unhandled(state, step):
        return []
    chosen = [verdict.step for verdict in record.verdicts if verdict.verdict == "taken"]
    return [f"nothing handled the failure: {name} was not admitted" for name in chosen]


def _items(record: Record) -> list[str]:
    """Items that failed though their loop did not."""
    stats = record.stats
    return (
        [f"{stats.failed} of its {stats.total} items failed"]
        if stats is not None and stats.failed
        else []
    )


def _origin(origins: tuple[str, ...]) -> str:
    return f"it was reached from {', '.join(origins)}" if origins else "the execution began here"


def _verdict(verdict: Verdict) -> str:
    saw = ", ".join(f"{name} = {value!r}" for name, value in verdict.saw.items())
    return f"arc to {verdict.step}: {verdict.verdict}" + (f" ({saw})" if saw else "")


def _false_guard(fixed: PinnedPlaybook, source: str, number: int, verdict: Verdict) -> str:
    """The guard of an arc that was not taken, as it is written."""
    router = fixed.plan.steps[source].step.next
    arcs = router.arcs if router is not None else []
    guard = arcs[number].when if verdict.verdict == "false" and number < len(arcs) else None
    return "" if guard is None else f"; its guard is {guard}"


def _not_reached(fixed: PinnedPlaybook, state: Execution, step: str) -> list[str]:
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
    return because or [
        "it runs once all others are over" if step == fixed.plan.final else "no arc leads here"
    ]


_PASSED_BY = {
    "none": "was not reached itself",
    "skipped": "was skipped",
    "cancelled": "was cancelled",
    "inherited": "was not run again",
}


def _cut_short(fixed: PinnedPlaybook, state: Execution, step: str) -> list[str]:
    """The end of the execution, when it came while something could still lead here."""
    ended = _ended(state)
    left = {unfinished.step for unfinished in state.unfinished} | set(state.running)
    near = any(
        step == other or fixed.plan.reached_by[step] & fixed.plan.bit(other) for other in left
    )
    return (
        [f"the execution {ended} before it was reached"]
        if ended and (near or not state.activated)
        else []
    )


def _ended(state: Execution) -> str | None:
    match state.finished or state.status:
        case "cancelled":
            return "was cancelled"
        case "cancelling" if state.reason in ("requested", "parent"):
            return "was cancelled"
        case "cancelling" | "failed" if state.failed_step is not None:
            return f"failed at {state.failed_step}"
        case "cancelling" | "failed":
            return (
                "timed out"
                if state.failure is not None and state.failure.code == "TIMEOUT"
                else "failed"
            )
        case _:
            return None
