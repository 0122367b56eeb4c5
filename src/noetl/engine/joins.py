"""Joins: when an arrival makes its step run.

An arrival waits while another live step could still reach its step. When none can, the step runs
once with all its arrivals. A step is live if it runs, waits, or is held at another join. When only
held steps are left, the step that no other held step reaches runs. If all of them reach each
other, the step with the earliest arrival runs.
"""

from typing import Any

from noetl.engine.expressions import Moment
from noetl.engine.issuing import Decision
from noetl.engine.state import Arrival, Execution, PinnedPlaybook
from noetl.model import events as e
from noetl.model.errors import Failure
from noetl.model.ids import activation_id


def release_arrivals(pinned: PinnedPlaybook, state: Execution, moment: Moment) -> Decision:
    """Enter every step at which no arrival has to wait any longer."""
    if not state.tokens:
        return
    limit = min(pinned.limits.activations, pinned.plan.playbook.executor.spec.max_activations)
    if state.activated >= limit:
        message = (
            f"the execution has run {state.activated} steps: a cycle without an end?"
            " If not, raise executor.spec.max_activations"
        )
        runaway = Failure(code="RUNAWAY", kind="runaway", message=message)
        yield e.ExecutionCancelling(
            at=moment.at,
            reason="failed",
            error=runaway,
            step=min(state.tokens),
        )
        return
    held_steps = sorted(state.tokens, key=lambda step: (state.tokens[step][0].arrival, step))
    live = _find_live_steps(pinned, state)
    free = [
        step
        for step in held_steps
        if _joins_each(pinned, step) or not _is_blocked(pinned, live, step)
    ]
    if not free and not state.running:
        free = held_steps[:1]
    for step in free:
        yield from _enter_step(pinned, state, step, moment)


def _find_live_steps(pinned: PinnedPlaybook, state: Execution) -> int:
    """A bit set of the steps that run, wait or are held."""
    live = 0
    for step in (*state.running, *state.tokens):
        live |= pinned.plan.get_step_bit(step)
    return live


def _is_blocked(pinned: PinnedPlaybook, live: int, step: str) -> bool:
    return bool(pinned.plan.reached_by[step] & live & ~pinned.plan.get_step_bit(step))


def list_blockers(pinned: PinnedPlaybook, state: Execution, step: str) -> list[str]:
    """The live steps that could still reach this one, in document order."""
    blocking = (
        pinned.plan.reached_by[step]
        & _find_live_steps(pinned, state)
        & ~pinned.plan.get_step_bit(step)
    )
    return [name for name in pinned.plan.steps if blocking & pinned.plan.get_step_bit(name)]


def _joins_each(pinned: PinnedPlaybook, step: str) -> bool:
    return pinned.plan.steps[step].step.spec.join == "each"


def _enter_step(pinned: PinnedPlaybook, state: Execution, step: str, moment: Moment) -> Decision:
    """Enter the step once for all its arrivals; with `join: each`, once for each arrival."""
    tokens = state.tokens[step]
    record = state.steps.get(step)
    runs = record.runs if record is not None else 0
    groups: list[tuple[Arrival, ...]] = [tokens]
    if _joins_each(pinned, step):
        groups = [(token,) for token in tokens]
    for number, group in enumerate(groups, start=1):
        args: dict[str, Any] = {}
        for token in sorted(group, key=lambda token: token.order):
            args |= token.args
        cause = group[-1].cause
        origins = dict.fromkeys(token.origin for token in group if token.origin is not None)
        yield e.StepEnter(
            at=moment.at,
            step=step,
            activation=activation_id(state.execution_id, step, cause),
            run=runs + number,
            cause=cause,
            joined=len(group),
            origins=tuple(origins),
            args=args,
        )
