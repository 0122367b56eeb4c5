"""Joins: when an arrival makes its step run.

An arrival waits while another live step could still reach its step; when none can, the step runs once with all arrivals. Live
is what runs or waits, and what is held at another join. When only held steps are left, the one that no other held step reaches
runs; if all reach each other, the earliest arrival.
"""

from typing import Any

from noetl.engine.issuing import Made
from noetl.engine.sites import Moment
from noetl.engine.state import Arrival, Execution, PinnedPlaybook
from noetl.model import events as e
from noetl.model.errors import Failure
from noetl.model.ids import activation_id


def release(fixed: PinnedPlaybook, state: Execution, moment: Moment) -> Made:
    """Enter every step whose arrivals need not wait any longer."""
    if not state.tokens:
        return
    if state.activated >= min(
        fixed.limits.activations, fixed.plan.playbook.executor.spec.max_activations
    ):
        message = (
            f"the execution has run {state.activated} steps: a cycle without an end?"
            " If not, raise executor.spec.max_activations"
        )
        runaway = Failure(code="RUNAWAY", kind="runaway", message=message)
        yield e.ExecutionCancelling(
            at=moment.at, reason="failed", error=runaway, step=min(state.tokens)
        )
        return
    held = sorted(state.tokens, key=lambda step: (state.tokens[step][0].arrival, step))
    live = _live(fixed, state)
    free = [step for step in held if _each(fixed, step) or not _blocked(fixed, live, step)]
    if not free and not state.running:
        free = held[:1]
    for step in free:
        yield from _enter(fixed, state, step, moment)


def _live(fixed: PinnedPlaybook, state: Execution) -> int:
    """The steps that run, wait or are held, a bit each."""
    live = 0
    for step in (*state.running, *state.tokens):
        live |= fixed.plan.bit(step)
    return live


def _blocked(fixed: PinnedPlaybook, live: int, step: str) -> bool:
    return bool(fixed.plan.reached_by[step] & live & ~fixed.plan.bit(step))


def blockers(fixed: PinnedPlaybook, state: Execution, step: str) -> list[str]:
    """The live steps that could still reach this one, in document order."""
    found = fixed.plan.reached_by[step] & _live(fixed, state) & ~fixed.plan.bit(step)
    return [name for name in fixed.plan.steps if found & fixed.plan.bit(name)]


def _each(fixed: PinnedPlaybook, step: str) -> bool:
    return fixed.plan.steps[step].step.spec.join == "each"


def _enter(fixed: PinnedPlaybook, state: Execution, step: str, moment: Moment) -> Made:
    tokens = state.tokens[step]
    record = state.steps.get(step)
    runs = record.runs if record is not None else 0
    groups: list[tuple[Arrival, ...]] = (
        [(token,) for token in tokens] if _each(fixed, step) else [tokens]
    )
    for number, group in enumerate(groups, start=1):
        args: dict[str, Any] = {}
        for token in sorted(group, key=lambda token: token.order):
            args |= token.args
        cause = group[-1].cause
        yield e.StepEnter(
            at=moment.at,
            step=step,
            activation=activation_id(state.execution_id, step, cause),
            run=runs + number,
            cause=cause,
            joined=len(group),
            origins=tuple(
                dict.fromkeys(token.origin for token in group if token.origin is not None)
            ),
            args=args,
        )
