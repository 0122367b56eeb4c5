"""Explain why a step ran, did not run, or waits. The folded log is the only source.

The state says what happened. The bands, if they are given, say at which event; the lines of the
playbook say where its text asks for it.
"""

from collections.abc import Mapping
from types import MappingProxyType

from msgspec import Struct

from noetl.engine import joins
from noetl.engine.bands import Bands, RunBand, name_arc
from noetl.engine.causes import (
    AdmitCause,
    AnyCause,
    ArcCause,
    EndedCause,
    FailedCause,
    HeldCause,
    InheritedCause,
    ItemKind,
    ItemsCause,
    NotReachedCause,
    ReachedCause,
    RecoveredCause,
    WaitReason,
    WaitsCause,
    WorksCause,
    describe_cause,
    format_moment,
)
from noetl.engine.state import Activation, Execution, OpenCommand, PinnedPlaybook, Record
from noetl.engine.unhandled import is_unhandled
from noetl.model.events import Verdict
from noetl.playbook.lines import StepLines
from noetl.playbook.plan import list_targets

_NO_LINES: Mapping[str, StepLines] = MappingProxyType({})


class Explanation(Struct, frozen=True):
    """`verdict` is one word. `causes` lists the most direct cause first; `because` says them."""

    step: str
    verdict: str  # ran, failed, skipped, inherited, running, waiting, held, cancelled, not reached
    because: tuple[str, ...]
    runs: int = 0
    causes: tuple[AnyCause, ...] = ()


def explain(
    pinned: PinnedPlaybook,
    state: Execution,
    step: str,
    bands: Bands | None = None,
    lines: Mapping[str, StepLines] = _NO_LINES,
    run: int | None = None,
) -> Explanation:
    """Explain a step as it is; with `run`, its last run although it may be about to run again."""
    return _Explainer(pinned, state, bands or Bands(), lines).explain(step, run)


def describe_causes(
    state: Execution, step: str, causes: tuple[AnyCause, ...] | list[AnyCause]
) -> tuple[str, ...]:
    return tuple(describe_cause(state.execution_id, step, cause) for cause in causes)


_PARKED_REASONS: dict[str, WaitReason] = {
    "time": "timer",
    "retry": "retry",
    "signal": "signal",
    "approval": "approval",
    "child": "child",
}
_STATUS_REASONS = {
    "none": "was not reached itself",
    "skipped": "was skipped",
    "cancelled": "was cancelled",
    "inherited": "was not run again",
}


class _Explainer:
    """Explains the steps of one execution as of one event."""

    def __init__(
        self,
        pinned: PinnedPlaybook,
        state: Execution,
        bands: Bands,
        lines: Mapping[str, StepLines],
    ) -> None:
        self._pinned = pinned
        self._state = state
        self._bands = bands
        self._lines = lines

    def explain(self, step: str, run: int | None) -> Explanation:
        state = self._state
        record = state.steps.get(step, Record())
        activations = [
            entry
            for entry in state.activations.values()
            if entry.step == step and run in (None, entry.run)
        ]
        causes: list[AnyCause]
        if activations:
            verdict, causes = self._explain_live_step(activations[0])
        elif step in state.tokens and run is None:
            verdict, causes = "held", self._explain_held_step(step)
        elif record.status != "none":
            verdict, causes = self._explain_ended_step(step, record)
        else:
            verdict, causes = "not reached", self._explain_unreached_step(step)
        because = describe_causes(state, step, causes)
        return Explanation(step, verdict, because, record.runs, tuple(causes))

    # -- live steps --

    def _explain_live_step(self, activation: Activation) -> tuple[str, list[AnyCause]]:
        """Explain an activation that has not ended."""
        state = self._state
        commands = [
            command for command in state.commands.values() if command.activation == activation.id
        ]
        causes: list[AnyCause] = [self._make_reached(activation)]
        if activation.loop is not None:
            causes.append(self._count_loop(activation))
        waits: list[AnyCause] = [
            self._make_wait(command) for command in commands if command.parked is not None
        ]
        if state.paused and not commands:
            waits.append(WaitsCause(on="resume"))
        if waits:
            return "waiting", waits + causes
        if not commands:
            return "running", causes
        is_evaluating = any(command.kind in ("evaluate", "plan") for command in commands)
        work = WorksCause(what="evaluation" if is_evaluating else "command")
        return "running", [work, *causes]

    def _make_reached(self, activation: Activation) -> ReachedCause:
        run = self._find_run(activation.step, activation.run)
        return ReachedCause(
            origins=list(activation.origins),
            seq=None if run is None else run.first_seq,
            args=activation.args,
        )

    def _count_loop(self, activation: Activation) -> ItemsCause:
        loop = activation.loop
        assert loop is not None, "only a loop has items"
        return ItemsCause(
            failed=loop.failed,
            total=loop.collection.size,
            ok=loop.ok,
            next=loop.next,
            commands=loop.live,
            kinds=self._list_kinds(activation.step),
        )

    def _make_wait(self, command: OpenCommand) -> WaitsCause:
        parked = command.parked
        assert parked is not None, "the caller has looked"
        timed = self._bands.commands.get(command.id)
        return WaitsCause(
            on=_PARKED_REASONS.get(parked.reason, "timer"),
            name=parked.signal,
            since=None if timed is None else format_moment(timed.parked_at),
            until=format_moment(parked.until),
            child=parked.child,
            task=parked.task,
            question=parked.question,
            by=self._state.by if parked.reason == "approval" else None,
        )

    def _explain_held_step(self, step: str) -> list[AnyCause]:
        """Explain why the arrivals at a join have not entered the step."""
        origins = sorted({token.origin or "the start" for token in self._state.tokens[step]})
        if self._state.paused:
            return [WaitsCause(on="resume"), ReachedCause(origins=origins)]
        blockers = joins.list_blockers(self._pinned, self._state, step)
        return [HeldCause(origins=origins, by=blockers)]

    # -- steps that have ended --

    def _explain_ended_step(self, step: str, record: Record) -> tuple[str, list[AnyCause]]:
        run = self._find_run(step, record.runs)
        reached = ReachedCause(
            origins=list(record.origins),
            seq=None if run is None else run.first_seq,
            args=record.args,
        )
        lines = self._lines.get(step)
        match record.status:
            case "skipped":
                line = None
                if lines is not None and record.rule is not None:
                    line = lines.get_rule_line(record.rule)
                return "skipped", [AdmitCause(rule=record.rule, line=line), reached]
            case "inherited":
                return "inherited", [InheritedCause(source=self._state.retry_of)]
            case "cancelled":
                return "cancelled", [
                    EndedCause(how="the execution ended while it was live"),
                    reached,
                ]
        recovered = self._list_recoveries(step)
        arcs: list[AnyCause] = [
            self._make_arc(step, number, verdict, run)
            for number, verdict in enumerate(record.verdicts)
        ]
        failure = self._find_failure(step, record, run)
        if failure is None:
            return "ran", [*recovered, *self._list_failed_items(step, record), reached, *arcs]
        causes = [failure, *recovered, *self._list_missing_admissions(step)]
        return "failed", [*causes, *self._list_failed_items(step, record), reached, *arcs]

    def _find_failure(self, step: str, record: Record, run: RunBand | None) -> FailedCause | None:
        """Why the step failed: by its result, or by its router."""
        if record.status != "error":
            return None
        lines = self._lines.get(step)
        line = None if lines is None else lines.line
        seq = None if run is None or run.error is None else run.error.seq
        result = record.result
        if result is not None and result.error is not None:
            error = result.error
            return FailedCause(
                code=error.code, message=error.message, task=error.task, seq=seq, line=line
            )
        if run is not None and run.error is not None:
            return FailedCause(
                code=run.error.code,
                message=run.error.message,
                task=run.error.task,
                seq=seq,
                line=line,
            )
        failure = self._state.failure
        if failure is not None and self._state.failed_step == step:
            return FailedCause(code=failure.code, message=failure.message, line=line)
        return FailedCause(code="FAILED", message="its router failed", line=line)

    def _list_recoveries(self, step: str) -> list[AnyCause]:
        """The failures of the step that an arc, a rule or a loop's policy handled."""
        return [
            RecoveredCause(
                by=recovery.by,
                code=recovery.code,
                message=recovery.message,
                task=recovery.task,
                count=recovery.count,
            )
            for recovery in self._state.recoveries
            if recovery.step == step
        ]

    def _list_missing_admissions(self, step: str) -> list[AnyCause]:
        """Explain why a failure is unhandled although an error arc was taken."""
        state = self._state
        if state.failed_step != step or not is_unhandled(state, step):
            return []
        verdicts = state.steps[step].verdicts
        chosen = [verdict.step for verdict in verdicts if verdict.verdict == "taken"]
        return [
            EndedCause(how=f"nothing handled the failure: {name} was not admitted")
            for name in chosen
        ]

    def _list_failed_items(self, step: str, record: Record) -> list[AnyCause]:
        """Count the failed items of a loop."""
        stats = record.stats
        if stats is None or not stats.failed:
            return []
        return [
            ItemsCause(
                failed=stats.failed, total=stats.total, ok=stats.ok, kinds=self._list_kinds(step)
            )
        ]

    def _list_kinds(self, step: str) -> list[ItemKind]:
        band = self._bands.steps.get(step)
        if band is None:
            return []
        return [
            ItemKind(kind.shape, kind.code, kind.count, kind.item, kind.seq) for kind in band.kinds
        ]

    def _make_arc(
        self,
        source: str,
        number: int,
        verdict: Verdict,
        run: RunBand | None = None,
        *,
        is_foreign: bool = False,
    ) -> ArcCause:
        arc = self._bands.arcs.get(name_arc(source, number))
        lines = self._lines.get(source)
        error = None
        if verdict.verdict == "error" and run is not None and run.error is not None:
            error = run.error.message
        return ArcCause(
            to=verdict.step,
            verdict=verdict.verdict,
            saw=verdict.saw,
            when=self._find_guard(source, number),
            line=None if lines is None else lines.get_arc_line(number),
            error=error,
            seq=None if arc is None else arc.seq,
            source=source if is_foreign else None,
        )

    def _find_guard(self, source: str, number: int) -> str | None:
        """The guard of an arc, as the playbook writes it."""
        plan = self._pinned.plan.steps.get(source)
        router = None if plan is None else plan.step.next
        if router is None or number >= len(router.arcs):
            return None
        guard = router.arcs[number].when
        return None if guard is None else str(guard)

    # -- steps that were not reached --

    def _explain_unreached_step(self, step: str) -> list[AnyCause]:
        """Explain why no arrival has come to the step."""
        pinned, state = self._pinned, self._state
        if step not in pinned.plan.steps:
            return [NotReachedCause(origins=[], reason=f"the playbook has no step {step}")]
        causes = self._explain_early_end(step)
        if state.status == "pending":
            limit = pinned.plan.playbook.executor.spec.max_concurrent
            causes.append(WaitsCause(on="place", name=state.path, limit=limit))
        for source, plan in pinned.plan.steps.items():
            if step in list_targets(plan.step):
                causes += self._explain_source(source, step)
        if causes:
            return causes
        if step == pinned.plan.final_step:
            return [NotReachedCause(origins=[], reason="it runs once all others are over")]
        return [NotReachedCause(origins=[], reason="no arc leads here")]

    def _explain_source(self, source: str, step: str) -> list[AnyCause]:
        """Why a step that leads to another has not led there."""
        record = self._state.steps.get(source, Record())
        if source in self._state.running:
            reason = f"step {source} leads here and is still live"
            return [NotReachedCause(origins=[source], reason=reason)]
        if record.status in _STATUS_REASONS:
            reason = f"step {source} leads here and {_STATUS_REASONS[record.status]}"
            return [NotReachedCause(origins=[source], reason=reason)]
        run = self._find_run(source, record.runs)
        return [
            self._make_arc(source, number, verdict, run, is_foreign=True)
            for number, verdict in enumerate(record.verdicts)
            if verdict.step == step
        ]

    def _explain_early_end(self, step: str) -> list[AnyCause]:
        """Say that the execution ended while another step could still have led here."""
        state, plan = self._state, self._pinned.plan
        end = _describe_early_end(state)
        if end is None:
            return []
        unfinished = {start.step for start in state.unfinished} | set(state.running)
        reached_by = plan.reached_by[step]
        reachable = any(
            step == other or reached_by & plan.get_step_bit(other) for other in unfinished
        )
        if reachable or not state.activated:
            return [EndedCause(how=f"the execution {end} before it was reached")]
        return []

    def _find_run(self, step: str, number: int) -> RunBand | None:
        band = self._bands.steps.get(step)
        if band is None:
            return None
        return next((run for run in reversed(band.runs) if run.run == number), None)


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
