"""Retry an ended execution: the new one inherits its results and begins where it failed.

The retry of a completed execution begins at its loops with failed items. Steps after them depend
on their results, so those steps run again and are not inherited. An execution that was rewound to
a step (see `rewinding`) has the status "running". The results of the steps at which it begins are
those of earlier activations, so they are inherited.
"""

from collections.abc import Iterable

from msgspec import Struct, json
from msgspec.structs import replace

from noetl.engine.loops import allows_failed_items
from noetl.engine.state import Execution, Record
from noetl.model import events as e
from noetl.model.envelope import Envelope, remove_rows
from noetl.model.ids import Micros
from noetl.model.messages import MAX_CHOSEN_ITEMS, RetryChoice
from noetl.playbook.assignments import full_name, split_full_name
from noetl.playbook.model import Router, Step
from noetl.playbook.plan import Plan

MAX_CTX_PART_BYTES = 8_000  # of the variables in one `ctx.inherited`
MAX_START_PART_BYTES = 8_000  # of the steps in one `arrivals.inherited`


class Way(Struct, frozen=True, kw_only=True):
    """Where a step that runs again leads: `to` for certain, `maybe` as its guards decide. With `one`,
    only the first of these that holds is taken."""

    step: str
    to: tuple[str, ...] = ()
    maybe: tuple[str, ...] = ()
    one: bool = False
    has_else: bool = False  # one of `maybe` is taken in any case


class RetryPreview(Struct, frozen=True, kw_only=True):
    """What a retry, or a rerun from a step, is going to do."""

    inherited: tuple[str, ...]  # steps with results that are taken over
    begins: tuple[str, ...]
    again: tuple[str, ...]  # steps that run again, if the guards decide as before
    items: dict[str, tuple[int, int]] = {}  # by loop: items that run again, items in all
    left: dict[str, int] = {}  # by loop: failed items that were not chosen and stay failed
    fails_again: tuple[str, ...] = ()  # loops that fail even if every chosen item succeeds
    writes_again: dict[str, tuple[str, ...]] = {}  # by step: names with a value that it reassigns
    ways: tuple[Way, ...] = ()  # of the steps that run again


def predict_retry(plan: Plan, retried: Execution) -> RetryPreview:
    """Compute what a retry would do, without starting it."""
    begins = tuple(dict.fromkeys(start.step for start in list_starts(plan, retried))) or (
        plan.entry_step,
    )
    inherited_steps = [
        event.step
        for event in list_inherited(plan, retried, 0)
        if isinstance(event, e.StepInherited) and event.loop is None
    ]
    following = plan.steps_after(*(step for step in begins if step in plan.steps))
    again = [step for step in plan.steps if step in following or step in begins]
    loops = {
        step: loop
        for step in begins
        if step in retried.steps and (loop := retried.steps[step].loop) is not None
    }
    left = {step: loop.failed - len(loop.only) for step, loop in loops.items() if loop.only}
    writes_again: dict[str, tuple[str, ...]] = {}
    for step in again:
        if step not in retried.steps:
            continue
        names = _list_rewritten_names(plan.steps[step].step, retried)
        if names:
            writes_again[step] = names
    return RetryPreview(
        inherited=tuple(inherited_steps),
        begins=begins,
        again=tuple(again),
        items={step: (len(loop.only) or loop.failed, loop.total) for step, loop in loops.items()},
        left={step: count for step, count in left.items() if count},
        fails_again=tuple(
            step for step, count in left.items() if _fails_anyway(plan, loops[step], step, count)
        ),
        writes_again=writes_again,
        ways=list_ways(plan, again),
    )


def list_ways(plan: Plan, steps: Iterable[str]) -> tuple[Way, ...]:
    """Where these steps lead, without those that lead nowhere."""
    return tuple(
        _make_way(name, router)
        for name in steps
        if (router := plan.steps[name].step.next) is not None and router.arcs
    )


def _make_way(step: str, router: Router) -> Way:
    """An arc without a guard is always taken. In an exclusive router, no arc after it is."""
    is_open = [arc.when is None or arc.when is True for arc in router.arcs]
    targets = [arc.step for arc in router.arcs]
    if router.spec.mode == "inclusive":
        to = [target for target, opens in zip(targets, is_open, strict=True) if opens]
        maybe = [target for target, opens in zip(targets, is_open, strict=True) if not opens]
        return Way(step=step, to=_drop_repeats(to), maybe=_drop_repeats(maybe))
    if is_open[0]:
        return Way(step=step, to=(targets[0],))
    reachable = targets[: is_open.index(True) + 1] if any(is_open) else targets
    return Way(step=step, maybe=_drop_repeats(reachable), one=True, has_else=any(is_open))


def _drop_repeats(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


def _fails_anyway(plan: Plan, inherited: e.LoopInherited, step: str, left: int) -> bool:
    """Whether the loop fails because of the items that do not run again."""
    loop = plan.steps[step].step.loop if step in plan.steps else None
    return loop is not None and not allows_failed_items(loop, left, inherited.total)


# ---- choosing ---------------------------------------------------------------------------


def narrow_retry(retried: Execution, only: RetryChoice | None) -> Execution:
    """The ended execution with nothing unfinished but what was chosen."""
    if only is None:
        return retried
    steps = dict(retried.steps)
    for step, indexes in only.items.items():
        record = steps[step]
        assert record.loop is not None, "the request was checked"
        chosen = tuple(sorted(set(indexes)))
        steps[step] = replace(record, loop=replace(record.loop, only=chosen))
    if retried.status == "completed":
        for step in find_loops_with_failed_items(retried):
            if step not in only.loops:
                steps[step] = replace(steps[step], loop=None)
    return replace(retried, steps=steps)


def find_choice_problems(plan: Plan, retried: Execution, only: RetryChoice) -> list[str]:
    """Why a retry cannot be limited to this; empty if it can."""
    begins = list(dict.fromkeys(start.step for start in list_starts(plan, retried)))
    if retried.status == "completed":
        begins = list(find_loops_with_failed_items(retried))
    problems = [
        f"step {step!r} is not one that a retry begins with: {', '.join(begins) or 'there is none'}"
        for step in sorted(only.loops)
        if step not in begins
    ]
    if problems:
        return problems
    left_out = [step for step in begins if only.steps and step not in only.loops]
    if left_out and retried.status != "completed":
        names = ", ".join(left_out)
        problems.append(f"{names} did not finish either, and the execution cannot end without it")
    for step, indexes in only.items.items():
        record = retried.steps.get(step, Record())
        problems += _find_item_problems(step, record.loop, indexes)
    if problems:
        return problems
    starts = {start.step for start in list_starts(plan, narrow_retry(retried, only))}
    return [
        f"step {step!r} runs again as a whole, because another one that was chosen leads to it"
        for step in sorted(only.loops - starts)
    ]


def _find_item_problems(
    step: str, loop: e.LoopInherited | None, indexes: tuple[int, ...]
) -> list[str]:
    if loop is None:
        return [f"step {step!r} has no items that can run again by themselves"]
    if len(indexes) > MAX_CHOSEN_ITEMS:
        return [f"{len(indexes)} items of {step!r} are more than {MAX_CHOSEN_ITEMS} at once"]
    outside = [index for index in indexes if not 0 <= index < loop.total]
    if outside:
        return [
            f"item {outside[0]} of {step!r} does not exist: its items are 0 to {loop.total - 1}"
        ]
    return []


def find_changed_loops(before: Plan, plan: Plan, retried: Execution) -> tuple[str, ...]:
    """Loops that run some of their items again although the new version of the playbook has
    another `in` for them."""
    again = predict_retry(plan, retried).items
    return tuple(
        step
        for step in again
        if step in before.steps and _get_loop_source(before, step) != _get_loop_source(plan, step)
    )


def _get_loop_source(plan: Plan, step: str) -> object:
    loop = plan.steps[step].step.loop
    if loop is None:
        return None
    return loop.in_


def _list_rewritten_names(step: Step, retried: Execution) -> tuple[str, ...]:
    """The names of ctx and state that have a value and that the step assigns again.

    Names with a reducer are left out: they take in only the items that run again. A rewound
    execution has none, because it begins with the values of the moment when the step was entered.
    """
    if retried.status == "running":
        return ()
    assigned_names = list(step.set)
    for task in step.tool:
        assigned_names += task.set
    reduced: set[str] = set()
    if step.loop is not None:
        reduced = {full_name(name) for name in step.loop.spec.reduce}
    names = dict.fromkeys(full_name(name) for name in assigned_names)
    return tuple(name for name in names if name not in reduced and _has_value(name, retried))


def _has_value(name: str, retried: Execution) -> bool:
    root, path = split_full_name(name)
    values = {"ctx": retried.ctx, "state": retried.playbook_state}.get(root, {})
    return path[0] in values


def find_misfits(plan: Plan, retried: Execution) -> list[str]:
    """Why this version of the playbook cannot continue the execution; empty if it can."""
    problems = [
        f"it has no step {start.step!r}, where the retry begins"
        for start in list_starts(plan, retried)
        if start.step not in plan.steps
    ]
    for event in list_inherited(plan, retried, 0):
        if not isinstance(event, e.StepInherited):
            continue
        step = plan.steps.get(event.step)
        if step is None:
            problems.append(
                f"it has no step {event.step!r}, so the result of that step cannot be reused"
            )
        elif event.loop is not None and step.step.loop is None:
            problems.append(
                f"its step {event.step!r} is no loop any more, so failed items cannot run again"
            )
        else:
            problems += [
                f"it decides on {selection.source}, which was not kept of {event.step!r}"
                for selection in step.selections
                if event.result.find_selection(selection.id) is None
            ]
    return problems


def list_starts(plan: Plan, retried: Execution) -> tuple[e.StartAt, ...]:
    """Every arrival at a step that failed or was cut off. A step with `join: each` runs for each
    arrival; any other step runs once, with the arguments of all."""
    if retried.status == "completed":
        return tuple(
            e.StartAt(step, loop.args) for step, loop in _find_first_loops(plan, retried).items()
        )
    return tuple(e.StartAt(unfinished.step, unfinished.args) for unfinished in retried.unfinished)


def split_starts(plan: Plan, retried: Execution) -> list[tuple[e.StartAt, ...]]:
    """Split the starts into parts that fit into events. The first part may be empty."""
    parts: list[tuple[e.StartAt, ...]] = [()]
    size = 0
    for start in list_starts(plan, retried):
        added = len(json.encode(start))
        if parts[-1] and size + added > MAX_START_PART_BYTES:
            parts.append(())
            size = 0
        parts[-1] = (*parts[-1], start)
        size += added
    return parts


def find_loops_with_failed_items(retried: Execution) -> dict[str, e.LoopInherited]:
    """The loops of a completed execution that completed with failed items, in order of their
    end."""
    in_order = sorted(retried.steps.items(), key=lambda entry: entry[1].order)
    return {
        step: record.loop
        for step, record in in_order
        if record.status == "ok" and record.loop is not None
    }


def _find_first_loops(plan: Plan, retried: Execution) -> dict[str, e.LoopInherited]:
    """The loops with failed items that no other such loop leads to. Of two that lead to each
    other, the one that ended first."""
    loops = {
        step: loop
        for step, loop in find_loops_with_failed_items(retried).items()
        if step in plan.steps
    }
    first: dict[str, e.LoopInherited] = {}
    for step, loop in loops.items():
        before = [other for other in loops if other != step and _leads_to(plan, other, step)]
        if all(_leads_to(plan, step, other) and other not in first for other in before):
            first[step] = loop
    return first


def _leads_to(plan: Plan, step: str, other: str) -> bool:
    return bool(plan.reached_by[other] & plan.get_step_bit(step))


def _runs_only_after(plan: Plan, step: str, loops: Iterable[str]) -> bool:
    """Whether the step runs only after one of these loops. A step that also runs before them, in a
    cycle, does not count: its result is needed."""
    if step not in plan.steps:
        return False
    return any(_leads_to(plan, loop, step) and not _leads_to(plan, step, loop) for loop in loops)


def list_inherited(plan: Plan, retried: Execution, at: Micros) -> list[e.Event]:
    """The events of what the new execution inherits: variables in parts that fit into events, then
    results by reference."""
    again = {start.step for start in list_starts(plan, retried)}
    loops = again if retried.status == "completed" else frozenset()
    events: list[e.Event] = []
    part: dict[str, object] = {}
    for name in sorted(retried.ctx):
        if part and len(json.encode({**part, name: retried.ctx[name]})) > MAX_CTX_PART_BYTES:
            events.append(e.CtxInherited(at=at, set=part, part=len(events)))
            part = {}
        part[name] = retried.ctx[name]
    if part:
        events.append(e.CtxInherited(at=at, set=part, part=len(events)))
    for step, record in sorted(retried.steps.items(), key=lambda entry: entry[1].order):
        if step not in again and _runs_only_after(plan, step, loops):
            continue
        begins_again = step in again and (record.loop is not None or retried.status != "running")
        event = _inherit_step(step, record, begins_again, at)
        if event is not None:
            events.append(event)
    return events


def _inherit_step(
    step: str,
    record: Record,
    again: bool,
    at: Micros,
) -> e.StepInherited | None:
    if again:
        loop = record.loop
        if loop is None:
            return None
        failed = record.result or Envelope(status="error")
        return e.StepInherited(at=at, step=step, result=failed, runs=0, loop=loop)
    if record.result is None or record.status not in ("ok", "error", "inherited"):
        return None
    result = replace(record.result, context=remove_rows(record.result.context))
    return e.StepInherited(at=at, step=step, result=result, runs=record.runs)
