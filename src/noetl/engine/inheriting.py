"""Retrying a finished execution: a new one that takes over what finished and begins where the old one ended badly.

One that completed begins at its loops with failed items. What follows them rests on their results, so it runs again: it is not
taken over.
"""

from collections.abc import Iterable

from msgspec import json

from noetl.engine.state import Execution, Record
from noetl.model import events as e
from noetl.model.envelope import Envelope
from noetl.model.ids import Micros
from noetl.playbook.plan import Plan

CTX_BYTES = 8_000


def start_at(plan: Plan, old: Execution) -> tuple[e.StartAt, ...]:
    """Each step that failed or was cut off, once; the arguments of its last arrival."""
    if old.status == "completed":
        return tuple(e.StartAt(step, loop.args) for step, loop in _first_loops(plan, old).items())
    starts = {unfinished.step: e.StartAt(unfinished.step, unfinished.args) for unfinished in old.unfinished}
    return tuple(starts.values())


def loops_with_failed_items(old: Execution) -> dict[str, e.LoopInherited]:
    """Of an execution that completed: loops that did so with failed items, in the order in which they ended."""
    ended = sorted(old.steps.items(), key=lambda entry: entry[1].order)
    return {step: record.loop for step, record in ended if record.status == "ok" and record.loop is not None}


def _first_loops(plan: Plan, old: Execution) -> dict[str, e.LoopInherited]:
    """Those that no other one leads to. Where two lead to each other, the one that ended first."""
    found = {step: loop for step, loop in loops_with_failed_items(old).items() if step in plan.steps}
    first: dict[str, e.LoopInherited] = {}
    for step, loop in found.items():
        before = [other for other in found if other != step and _leads_to(plan, other, step)]
        if all(_leads_to(plan, step, other) and other not in first for other in before):
            first[step] = loop
    return first


def _leads_to(plan: Plan, step: str, other: str) -> bool:
    return bool(plan.reached_by[other] & plan.bit(step))


def _follows(plan: Plan, step: str, loops: Iterable[str]) -> bool:
    """It runs after one of these loops. In a cycle it also runs before; then its result is needed."""
    if step not in plan.steps:
        return False
    return any(_leads_to(plan, loop, step) and not _leads_to(plan, step, loop) for loop in loops)


def inherited(plan: Plan, old: Execution, at: Micros) -> list[e.Event]:
    """What the new execution takes over: variables in parts that fit an event, then results by reference."""
    again = {start.step for start in start_at(plan, old)}
    loops = again if old.status == "completed" else frozenset()
    events: list[e.Event] = []
    part: dict[str, object] = {}
    for name in sorted(old.ctx):
        if part and len(json.encode({**part, name: old.ctx[name]})) > CTX_BYTES:
            events.append(e.CtxInherited(at=at, set=part, part=len(events)))
            part = {}
        part[name] = old.ctx[name]
    if part:
        events.append(e.CtxInherited(at=at, set=part, part=len(events)))
    for step, record in sorted(old.steps.items(), key=lambda entry: entry[1].order):
        if step not in again and _follows(plan, step, loops):
            continue
        made = _step(step, record, step in again, at)
        if made is not None:
            events.append(made)
    return events


def _step(step: str, record: Record, again: bool, at: Micros) -> e.StepInherited | None:
    if again:
        loop = record.loop
        if loop is None:
            return None
        return e.StepInherited(at=at, step=step, result=record.result or Envelope(status="error"), runs=0, loop=loop)
    if record.result is None or record.status not in ("ok", "error", "inherited"):
        return None
    return e.StepInherited(at=at, step=step, result=record.result, runs=record.runs)
