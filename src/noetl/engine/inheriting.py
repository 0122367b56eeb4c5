"""Retrying a finished execution: a new one that takes over what finished and begins where the old one ended badly.

One that completed begins at its loops with failed items. What follows them rests on their results, so it runs again: it is not
taken over. One that was rewound to a step (`rewinding`) has the status "running": results of the steps that begin are those of
earlier activations, and are taken over.
"""

from collections.abc import Iterable

from msgspec import Struct, json
from msgspec.structs import replace

from noetl.engine.state import Execution, Record
from noetl.model import events as e
from noetl.model.envelope import Envelope, without_rows
from noetl.model.ids import Micros
from noetl.playbook.assignments import full_name, root_of
from noetl.playbook.model import Step
from noetl.playbook.plan import Plan

CTX_BYTES = 8_000  # of the variables in one event
START_BYTES = 8_000  # of the steps in one event that an execution begins with


class Repeat(Struct, frozen=True, kw_only=True):
    """What a retry, or a rerun from a step, is going to do."""

    inherited: tuple[str, ...]  # steps whose results are taken over
    begins: tuple[str, ...]
    again: tuple[str, ...]  # steps that run again, if the guards lead there as they did
    items: dict[str, tuple[int, int]] = {}  # by loop: how many of its items run again, of how many
    writes_again: dict[
        str, tuple[str, ...]
    ] = {}  # by step: names that have a value already and that it assigns again


def preview(plan: Plan, old: Execution) -> Repeat:
    begins = tuple(dict.fromkeys(start.step for start in start_at(plan, old))) or (plan.entry,)
    taken_over = (event for event in inherited(plan, old, 0) if isinstance(event, e.StepInherited))
    inherited_steps = tuple(event.step for event in taken_over if event.loop is None)
    following = plan.steps_after(*(step for step in begins if step in plan.steps))
    names = [name for name in plan.steps if name in following or name in begins]
    loops = {step: old.steps[step].loop for step in begins if step in old.steps}
    items = {
        step: (loop.failed + loop.skipped, loop.total)
        for step, loop in loops.items()
        if loop is not None
    }
    written = {
        step: _writes_again(plan.steps[step].step, old) for step in names if step in old.steps
    }
    return Repeat(
        inherited=inherited_steps,
        begins=begins,
        again=tuple(names),
        items=items,
        writes_again={step: found for step, found in written.items() if found},
    )


def changed_loops(before: Plan, plan: Plan, old: Execution) -> tuple[str, ...]:
    """Loops of which only some items run again, over a collection that the other version of the playbook writes differently."""
    again = preview(plan, old).items
    return tuple(
        step
        for step in again
        if step in before.steps and _collection(before, step) != _collection(plan, step)
    )


def _collection(plan: Plan, step: str) -> object:
    loop = plan.steps[step].step.loop
    return None if loop is None else loop.in_


def _writes_again(step: Step, old: Execution) -> tuple[str, ...]:
    """Variables and state that an earlier run has left and that the step assigns. A name with a reducer only takes in the items
    that run again. One that was rewound begins with the values of the moment at which the step was entered."""
    if old.status == "running":
        return ()
    assigned = [*step.set, *(name for task in step.tool for name in task.set)]
    reduced = (
        {full_name(name) for name in step.loop.spec.reduce} if step.loop is not None else set()
    )
    names = dict.fromkeys(full_name(name) for name in assigned)
    return tuple(name for name in names if name not in reduced and _has_value(name, old))


def _has_value(name: str, old: Execution) -> bool:
    root, path = root_of(name)
    values = {"ctx": old.ctx, "state": old.playbook_state}.get(root, {})
    return path[0] in values


def misfits(plan: Plan, old: Execution) -> list[str]:
    """Why this version of the playbook cannot go on from what the execution has finished; empty when it can."""
    found = [
        f"it has no step {start.step!r}, where the retry begins"
        for start in start_at(plan, old)
        if start.step not in plan.steps
    ]
    for event in inherited(plan, old, 0):
        if not isinstance(event, e.StepInherited):
            continue
        step = plan.steps.get(event.step)
        if step is None:
            found.append(f"it has no step {event.step!r}, whose result would be taken over")
        elif event.loop is not None and step.step.loop is None:
            found.append(
                f"its step {event.step!r} is no loop any more, so failed items cannot run again"
            )
        else:
            missing = [
                each.source for each in step.selections if event.result.selected(each.id) is None
            ]
            found += [
                f"it decides on {source}, which was not kept of {event.step!r}"
                for source in missing
            ]
    return found


def start_at(plan: Plan, old: Execution) -> tuple[e.StartAt, ...]:
    """Every arrival at a step that failed or was cut off. A step with `join: each` runs for each of them, any other once with the
    arguments of all."""
    if old.status == "completed":
        return tuple(e.StartAt(step, loop.args) for step, loop in _first_loops(plan, old).items())
    return tuple(e.StartAt(unfinished.step, unfinished.args) for unfinished in old.unfinished)


def start_parts(plan: Plan, old: Execution) -> list[tuple[e.StartAt, ...]]:
    """`start_at`, in parts that fit into events; the first may be empty."""
    parts: list[tuple[e.StartAt, ...]] = [()]
    size = 0
    for start in start_at(plan, old):
        added = len(json.encode(start))
        if parts[-1] and size + added > START_BYTES:
            parts.append(())
            size = 0
        parts[-1] = (*parts[-1], start)
        size += added
    return parts


def loops_with_failed_items(old: Execution) -> dict[str, e.LoopInherited]:
    """Of an execution that completed: loops that did so with failed items, in the order in which they ended."""
    ended = sorted(old.steps.items(), key=lambda entry: entry[1].order)
    return {
        step: record.loop
        for step, record in ended
        if record.status == "ok" and record.loop is not None
    }


def _first_loops(plan: Plan, old: Execution) -> dict[str, e.LoopInherited]:
    """Those that no other one leads to. Where two lead to each other, the one that ended first."""
    found = {
        step: loop for step, loop in loops_with_failed_items(old).items() if step in plan.steps
    }
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
        begins_again = step in again and (record.loop is not None or old.status != "running")
        made = _step(step, record, begins_again, at)
        if made is not None:
            events.append(made)
    return events


def _step(step: str, record: Record, again: bool, at: Micros) -> e.StepInherited | None:
    if again:
        loop = record.loop
        if loop is None:
            return None
        failed = record.result or Envelope(status="error")
        return e.StepInherited(at=at, step=step, result=failed, runs=0, loop=loop)
    if record.result is None or record.status not in ("ok", "error", "inherited"):
        return None
    result = replace(record.result, context=without_rows(record.result.context))
    return e.StepInherited(at=at, step=step, result=result, runs=record.runs)
