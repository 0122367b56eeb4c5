"""A playbook made ready to run, once per content hash: what each expression needs, who computes it, and which step reaches which.

A *site* is a place where the server evaluates: a step's `admit` rules, its loop's `in`, its `set`, its arcs' guards (`when`) and
what a chosen arc assigns and passes on (`arc.N`). Parts of a site that depend on a step's payload are cut out as selections of
that step; a site that cannot be cut is evaluated by a worker.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from noetl.playbook.assignments import full_name, is_state, root_of
from noetl.playbook.model import Playbook, Step, Task, WorkbookCall
from noetl.playbook.outcomes import mentions_outcome
from noetl.playbook.selections import (
    ENVELOPE,
    OWN_INPUT,
    OWN_OUTPUT,
    OWN_PAYLOAD,
    CutTemplate,
    as_expression,
    cut,
    makes_list_or_map,
    names,
    paths,
)
from noetl.playbook.templates import Selection, Template, parse, parse_expression

ADMIT, IN, SET, WHEN = "admit", "in", "set", "when"
REDUCE = "reduce"  # what a worker joins at the end of a loop; no expression
WAITING = frozenset({"playbook", "wait", "spark"})  # kinds that wait, or last


def arc_site(number: int) -> str:
    return f"arc.{number}"


@dataclass(frozen=True, slots=True)
class ExpressionSite:
    """`sources` as written, for a worker; `cut` the same with the selections taken out, for the server."""

    name: str
    keys: tuple[str, ...]
    sources: tuple[Any, ...]
    cut: tuple[Any, ...]
    selections: tuple[Selection, ...]
    ctx: tuple[str, ...]  # ctx names it uses: when one holds a reference, a worker evaluates
    needs_worker: bool


@dataclass(frozen=True, slots=True)
class Uses:
    """Names the templates of a step need: keys of workload, ctx and state (None: all of them; more names than there are keys do
    no harm), and steps whose results they read. State names that the step writes are among them."""

    workload: frozenset[str] | None = frozenset()
    ctx: frozenset[str] | None = frozenset()
    state: frozenset[str] | None = frozenset()
    steps: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class StepPlan:
    step: Step
    order: int
    site: dict[str, ExpressionSite]
    uses: Uses  # of all its templates
    body: Uses  # of those that are rendered while its tasks run
    selections: tuple[Selection, ...] = ()
    workload_loop: bool = False  # its `in` needs nothing but the workload, which never changes
    alone: bool = False  # its items share no command, and keep a journal
    error_arcs: frozenset[int] = (
        frozenset()
    )  # arcs whose guard mentions the outcome: only these are tried after a failure

    @property
    def sites(self) -> dict[str, tuple[Any, ...]]:
        return {name: site.sources for name, site in self.site.items()}


@dataclass(frozen=True, slots=True)
class Plan:
    playbook: Playbook
    hash: str
    steps: dict[str, StepPlan]
    reached_by: dict[str, int]  # a bit per step, by document order: those whose arcs may lead here
    workbook: dict[str, Task] = field(default_factory=dict)
    state_names: frozenset[str] | None = (
        frozenset()
    )  # that an execution reads when it begins; None: all there are
    hides_state: bool = False  # `state` is a workload key or a step of this playbook

    @property
    def entry(self) -> str:
        return self.playbook.entry

    def bit(self, step: str) -> int:
        return 1 << self.steps[step].order

    def steps_after(self, *steps: str) -> set[str]:
        """The steps that arcs of these lead to, directly or not."""
        bits = 0
        for step in steps:
            bits |= self.bit(step)
        return {name for name, sources in self.reached_by.items() if sources & bits}

    @property
    def final(self) -> str | None:
        return self.playbook.executor.spec.final_step


def compile_plan(playbook: Playbook, content_hash: str) -> Plan:
    loops = frozenset(step.step for step in playbook.workflow if step.loop is not None)
    all_steps = frozenset(step.step for step in playbook.workflow)
    stable = frozenset({"workload"} | (set(playbook.workload) - all_steps))
    workbook: dict[str, Task] = {task.name: task.tool for task in playbook.workbook}
    keychain = [entry.model_dump(exclude_defaults=True) for entry in playbook.keychain]
    sites = {step.step: _sites(step, all_steps, loops, stable) for step in playbook.workflow}
    wanted: dict[str, dict[str, Selection]] = {name: {} for name in all_steps}
    for site in (site for named in sites.values() for site in named.values()):
        for selection in site.selections:
            wanted[selection.step][selection.id] = selection
    plans = {
        step.step: StepPlan(
            step=step,
            order=number,
            site=sites[step.step],
            uses=_uses(step, _WRITTEN, wanted[step.step].values(), workbook, all_steps, keychain),
            body=_uses(step, _IN_BODY, wanted[step.step].values(), workbook, all_steps, keychain),
            selections=tuple(wanted[step.step][name] for name in sorted(wanted[step.step]))
            if step.step not in loops
            else (),
            workload_loop=_only_workload(step, stable),
            alone=_alone(step, workbook),
            error_arcs=_error_arcs(step),
        )
        for number, step in enumerate(playbook.workflow)
    }
    hides_state = "state" in playbook.workload or "state" in all_steps
    state_names = frozenset() if hides_state else _state_names(plans)
    return Plan(
        playbook, content_hash, plans, reachability(playbook), workbook, state_names, hides_state
    )


def _state_names(plans: dict[str, StepPlan]) -> frozenset[str] | None:
    found: set[str] = set()
    for plan in plans.values():
        if plan.uses.state is None:
            return None
        found |= plan.uses.state
    return frozenset(found)


def _error_arcs(step: Step) -> frozenset[int]:
    arcs = step.next.arcs if step.next is not None else []
    return frozenset(
        number for number, arc in enumerate(arcs) if mentions_outcome(arc.when, step.step)
    )


def _alone(step: Step, workbook: dict[str, Task]) -> bool:
    """An item of this step waits, or asks again after a while, or goes back to a task it has run: begun anew it would not do what
    it did before."""
    tasks = [
        workbook.get(task.task, task) if isinstance(task, WorkbookCall) else task
        for task in step.tool
    ]
    polls = (task.spec.paginate for task in tasks if task.spec.paginate is not None)
    return (
        any(task.kind in WAITING for task in tasks)
        or any(page.delay is not None or page.backoff is not None for page in polls)
        or any(_goes_back(tasks, number) for number in range(len(tasks)))
    )


def _goes_back(tasks: list[Task], number: int) -> bool:
    before = {"previous", *(task.name for task in tasks[: number + 1])}
    actions = (rule.then for rule in tasks[number].spec.policy.rules)
    return any(action.jumps and (action.to or "previous") in before for action in actions)


# ---- sites -------------------------------------------------------------------------------------------------------------


def _sites(
    step: Step, steps: frozenset[str], loops: frozenset[str], stable: frozenset[str]
) -> dict[str, ExpressionSite]:
    made: dict[str, ExpressionSite] = {}
    payload = OWN_PAYLOAD | OWN_INPUT if _has_input(step) else OWN_PAYLOAD

    def add(name: str, own: str | None, entries: dict[str, Any]) -> None:
        if entries:
            made[name] = _site(name, own, entries, steps, loops, stable, payload)

    admit = step.spec.policy.admit
    add(
        ADMIT,
        None,
        {str(number): rule.when for number, rule in enumerate(admit.rules)} if admit else {},
    )
    if step.loop is not None and step.loop.cursor is None:
        add(IN, None, {"in": step.loop.in_})
    add(SET, step.step, step.set)
    arcs = step.next.arcs if step.next else []
    add(WHEN, step.step, {str(number): arc.when for number, arc in enumerate(arcs)})
    for number, arc in enumerate(arcs):
        assigned = {f"set:{name}": value for name, value in arc.set.items()}
        add(
            arc_site(number),
            step.step,
            assigned | {f"args:{name}": value for name, value in arc.args.items()},
        )
    return made


def _has_input(step: Step) -> bool:
    """Its input is rendered by a worker; one that only arcs bring is known to the server."""
    return step.loop is None and bool(step.input or any(task.input for task in step.tool))


def _site(
    name: str,
    own: str | None,
    entries: dict[str, Any],
    steps: frozenset[str],
    loops: frozenset[str],
    stable: frozenset[str],
    payload: frozenset[str],
) -> ExpressionSite:
    def cut_out(template: str) -> CutTemplate:
        return cut(parse(template), own=own, steps=steps, stable=stable, payload=payload)

    assigns = name not in (ADMIT, IN, WHEN)
    parts = [
        _cut_assigned(value, cut_out)
        if assigns and not is_state(key.removeprefix("set:"))
        else _cut(value, cut_out)
        for key, value in entries.items()
    ]
    selections = {selection.id: selection for _, found, _ in parts for selection in found}
    ctx = _members(templates_in(list(entries.values())), ("ctx", "vars"))
    return ExpressionSite(
        name=name,
        keys=tuple(entries),
        sources=tuple(entries.values()),
        cut=tuple(value for value, _, _ in parts),
        selections=tuple(selections[key] for key in sorted(selections)),
        ctx=tuple(sorted(ctx)) if ctx is not None else ("*",),
        needs_worker=any(worker for _, _, worker in parts)
        or any(
            _beyond_envelope(selection)
            for selection in selections.values()
            if selection.step in loops
        ),
    )


def _cut_assigned(
    value: Any, cut_out: Callable[[str], CutTemplate]
) -> tuple[Any, list[Selection], bool]:
    """As `_cut`, but a list or map that has a part of a result is made where the data is, as a whole: by the worker that reports
    the result if nothing else is in it, otherwise by a worker that is asked. So no event has its texts."""
    cut_value, selections, worker = _cut(value, cut_out)
    if worker or not selections:
        return cut_value, selections, worker
    if isinstance(value, str):
        made = cut_out(value)
        in_parts = makes_list_or_map(parse(value)) and not made.is_one_selection
        return (value, [], True) if in_parts else (cut_value, selections, worker)
    expression = as_expression(value)
    if expression is None:
        return value, [], True
    whole = cut_out("{{ " + expression + " }}")
    return (
        (whole.template, list(whole.selections), False)
        if whole.is_one_selection
        else (value, [], True)
    )


def _cut(value: Any, cut_out: Callable[[str], CutTemplate]) -> tuple[Any, list[Selection], bool]:
    """The value with every template in it cut; what was taken out; whether only a worker can evaluate it."""
    if isinstance(value, str):
        made = cut_out(value)
        return made.template, list(made.selections), made.needs_worker
    if isinstance(value, dict):
        parts = {key: _cut(part, cut_out) for key, part in value.items()}
        templated = any("{{" in key or "{%" in key for key in parts)
        return {key: part[0] for key, part in parts.items()}, *_joined(parts.values(), templated)
    if isinstance(value, list):
        listed = [_cut(part, cut_out) for part in value]
        return [part[0] for part in listed], *_joined(listed, False)
    return value, [], False


def _joined(
    parts: Collection[tuple[Any, list[Selection], bool]], worker: bool
) -> tuple[list[Selection], bool]:
    return [selection for part in parts for selection in part[1]], worker or any(
        part[2] for part in parts
    )


def _beyond_envelope(selection: Selection) -> bool:
    """No worker holds a whole loop's result: the server knows its counts and status, a worker must open the rest."""
    for path in paths(parse_expression(selection.source)):
        if path[0] != selection.step and path[0] not in OWN_OUTPUT | {"response", "result"}:
            continue
        if len(path) < 2 or path[1] not in ENVELOPE:
            return True
    return False


def _only_workload(step: Step, stable: frozenset[str]) -> bool:
    if step.loop is None or step.loop.cursor is not None:
        return False
    return all(names(template) <= stable for template in templates_in(step.loop.in_))


# ---- what a command carries ------------------------------------------------------------------------------------------------


def templates_in(value: Any) -> Iterator[Template]:
    """Every template in a JSON value."""
    if isinstance(value, str):
        template = parse(value)
        if not template.is_literal:
            yield template
    elif isinstance(value, dict):
        for key, part in value.items():
            if isinstance(key, str):
                yield from templates_in(key)
            yield from templates_in(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from templates_in(part)


def rendered_fields(task: Task) -> dict[str, Any]:
    """A task as data, without what is never rendered (code)."""
    return task.model_dump(exclude={"code", "name", "kind"}, exclude_defaults=True)


_WRITTEN: dict[str, Any] = {"exclude": {"tool", "step", "desc"}}
_IN_BODY: dict[str, Any] = {"include": {"input": True, "loop": {"cursor", "spec"}}}


def _uses(
    step: Step,
    fields: dict[str, Any],
    selections: Collection[Selection],
    workbook: dict[str, Task],
    steps: frozenset[str],
    keychain: list[dict[str, Any]],
) -> Uses:
    """The keychain's templates count for every step: which entries a step uses is not known."""
    data = step.model_dump(exclude_defaults=True, **fields)
    tasks = _with_called(step.tool, workbook)
    found = list(templates_in([data, keychain, *(rendered_fields(task) for task in tasks)]))
    found += [parse_expression(selection.source) for selection in selections]
    bare = {name for template in found for name in names(template)}
    from_workload = _members(found, ("workload",))
    from_ctx = _members(found, ("ctx", "vars"))
    read = _members(found, ("state",))
    return Uses(
        workload=None if from_workload is None else from_workload | (bare - steps),
        ctx=None if from_ctx is None else from_ctx | _reduced(step),
        state=None if read is None else read | _state_targets(step, tasks),
        steps=frozenset(bare & steps),
    )


def _with_called(tasks: Sequence[Task], workbook: dict[str, Task]) -> list[Task]:
    """These, and the workbook's tasks that they call, those called by them included."""
    found: list[Task] = list(tasks)
    called: set[str] = set()
    for task in found:  # it grows while it is gone through
        if isinstance(task, WorkbookCall) and task.task in workbook and task.task not in called:
            called.add(task.task)
            found.append(workbook[task.task])
    return found


def _state_targets(step: Step, tasks: list[Task]) -> frozenset[str]:
    """State names that the step, its arcs, its tasks and their rules assign to."""
    arcs = step.next.arcs if step.next is not None else []
    rules = [rule for task in tasks for rule in task.spec.policy.rules]
    pages = [task.spec.paginate for task in tasks if task.spec.paginate is not None]
    targets = [*step.set]
    targets += [target for arc in arcs for target in arc.set]
    targets += [target for task in tasks for target in task.set]
    targets += [target for rule in rules for target in rule.then.set]
    targets += [
        page.collect.into
        for page in pages
        if page.collect is not None and page.collect.into is not None
    ]
    if step.loop is not None:
        targets += step.loop.spec.reduce
    return frozenset(target.split(".")[1] for target in targets if target.startswith("state."))


def _reduced(step: Step) -> frozenset[str]:
    """Variables that the step's loop reduces onto."""
    targets = step.loop.spec.reduce if step.loop is not None else ()
    return frozenset(
        path[0] for root, path in (root_of(full_name(name)) for name in targets) if root == "ctx"
    )


def _members(
    templates: Collection[Template] | Iterator[Template], roots: tuple[str, ...]
) -> frozenset[str] | None:
    """First members of `roots` that the templates use; None when one is used whole or by a computed name."""
    used: set[str] = set()
    for template in templates:
        for path in paths(template):
            if path[0] not in roots:
                continue
            if len(path) == 1 or not isinstance(path[1], str):
                return None
            used.add(path[1])
    return frozenset(used)


# ---- the graph ---------------------------------------------------------------------------------------------------------


def targets(step: Step) -> tuple[str, ...]:
    """Steps its arcs (and its admission) may lead to, in document order."""
    arcs = [arc.step for arc in step.next.arcs] if step.next else []
    admit = step.spec.policy.admit
    skipped = (
        [rule.then.next for rule in admit.rules if rule.then.next is not None] if admit else []
    )
    return tuple(dict.fromkeys(arcs + skipped))


def reachability(playbook: Playbook) -> dict[str, int]:
    """For every step, the steps from which one or more arcs lead to it: a bit each, by document order.

    Steps are gone through forwards and backwards until nothing changes: two rounds for most playbooks, whatever way they are
    written, and never more than the longest zigzag.
    """
    number = {step.step: order for order, step in enumerate(playbook.workflow)}
    sources: list[list[int]] = [[] for _ in playbook.workflow]
    for order, step in enumerate(playbook.workflow):
        for target in targets(step):
            if target in number:
                sources[number[target]].append(order)
    reached = [0] * len(sources)
    changed = True
    while changed:
        changed = False
        for step_number in (*range(len(sources)), *reversed(range(len(sources)))):
            found = reached[step_number]
            for source in sources[step_number]:
                found |= reached[source] | 1 << source
            changed = changed or found != reached[step_number]
            reached[step_number] = found
    return {name: reached[order] for name, order in number.items()}
