"""The plan of a playbook, compiled once per content hash.

It says what each expression needs, whether the server or a worker computes it, and which step
reaches which.

A *site* is a place where the server evaluates: a step's `admit` rules, its loop's `in`, its `set`,
its arcs' guards (`when`), and what a chosen arc assigns and passes on (`arc.N`). Selections replace
the parts of a site that depend on a step's payload. A worker evaluates a site that cannot be cut.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

from msgspec import Struct, field

from noetl.playbook.assignments import full_name, is_state, split_full_name
from noetl.playbook.model import Arc, Playbook, Step, Task, WorkbookCall
from noetl.playbook.outcomes import mentions_outcome
from noetl.template.model import Selection, Template
from noetl.template.parsing import parse, parse_expression
from noetl.template.scopes import ENVELOPE_MEMBERS
from noetl.template.selections import (
    OWN_INPUT,
    OWN_OUTPUT,
    OWN_PAYLOAD,
    CutTemplate,
    cut_template,
    makes_list_or_map,
    write_expression,
)
from noetl.template.used_names import find_names, find_paths

CutOut: TypeAlias = Callable[[str], CutTemplate]

ADMIT, IN, SET, WHEN = "admit", "in", "set", "when"
REDUCE = "reduce"  # the site of a loop's reducers, which a worker joins; it has no expression
WAITING_KINDS = frozenset({"playbook", "wait", "spark"})  # kinds of tasks that wait or take long


def name_arc_site(number: int) -> str:
    return f"arc.{number}"


class ExpressionSite(Struct, frozen=True):
    """`sources` are the values as written, for a worker.

    `cut` has the selections, for the server.
    """

    name: str
    keys: tuple[str, ...]
    sources: tuple[Any, ...]
    cut: tuple[Any, ...]
    selections: tuple[Selection, ...]
    ctx: tuple[str, ...]  # ctx names it uses: if one holds a reference, a worker evaluates the site
    needs_worker: bool
    is_literal: bool  # no value has a template


class UsedNames(Struct, frozen=True):
    """The names that the templates of a step need.

    `workload`, `ctx` and `state` are keys of these maps, or None for all keys. They may include
    names that are no keys. `state` also has the names that the step writes. `steps` are the steps
    with results that the templates read.
    """

    workload: frozenset[str] | None = frozenset()
    ctx: frozenset[str] | None = frozenset()
    state: frozenset[str] | None = frozenset()
    steps: frozenset[str] = frozenset()


class StepPlan(Struct, frozen=True):
    step: Step
    order: int
    site: dict[str, ExpressionSite]
    uses: UsedNames  # of all its templates
    body_uses: UsedNames  # of those that are rendered while its tasks run
    selections: tuple[Selection, ...] = ()
    workload_loop: bool = False  # its `in` needs only the workload, which never changes
    needs_own_command: bool = False  # each of its items has a command and a journal of its own
    # Arcs with a guard that mentions the outcome. Only these are tried after a failure.
    error_arcs: frozenset[int] = frozenset()

    @property
    def site_sources(self) -> dict[str, tuple[Any, ...]]:
        return {name: site.sources for name, site in self.site.items()}


class Plan(Struct, frozen=True):
    playbook: Playbook
    hash: str
    steps: dict[str, StepPlan]
    # For each step, the steps from which arcs may lead to it: one bit per step, in document order.
    reached_by: dict[str, int]
    workbook: dict[str, Task] = field(default_factory=dict)
    # State names that an execution reads when it begins. None: all names.
    state_names: frozenset[str] | None = frozenset()
    hides_state: bool = False  # `state` is a workload key or a step of this playbook

    @property
    def entry_step(self) -> str:
        return self.playbook.entry_step

    def get_step_bit(self, step: str) -> int:
        return 1 << self.steps[step].order

    def steps_after(self, *steps: str) -> set[str]:
        """Return the steps that arcs of these steps lead to, directly or not."""
        bits = 0
        for step in steps:
            bits |= self.get_step_bit(step)
        return {name for name, sources in self.reached_by.items() if sources & bits}

    @property
    def final_step(self) -> str | None:
        return self.playbook.executor.spec.final_step


def compile_plan(playbook: Playbook, content_hash: str) -> Plan:
    loops = frozenset(step.step for step in playbook.workflow if step.loop is not None)
    all_steps = frozenset(step.step for step in playbook.workflow)
    stable = frozenset({"workload"} | (set(playbook.workload) - all_steps))
    workbook: dict[str, Task] = {task.name: task.tool for task in playbook.workbook}
    keychain = [entry.model_dump(exclude_defaults=True) for entry in playbook.keychain]
    sites = {
        step.step: _compile_sites(step, all_steps, loops, stable) for step in playbook.workflow
    }
    selections = _group_selections(all_steps, sites)
    plans: dict[str, StepPlan] = {}
    for number, step in enumerate(playbook.workflow):
        of_step = selections[step.step]
        # No worker has the result of a whole loop, so none can report selections of it.
        reported = () if step.step in loops else of_step
        plans[step.step] = StepPlan(
            step=step,
            order=number,
            site=sites[step.step],
            uses=_find_uses(step, _STEP_FIELDS, of_step, workbook, all_steps, keychain),
            body_uses=_find_uses(step, _BODY_FIELDS, of_step, workbook, all_steps, keychain),
            selections=reported,
            workload_loop=_needs_only_workload(step, stable),
            needs_own_command=_needs_journal(step, workbook),
            error_arcs=_find_error_arcs(step),
        )
    hides_state = "state" in playbook.workload or "state" in all_steps
    state_names = frozenset() if hides_state else _collect_state_names(plans)
    return Plan(
        playbook,
        content_hash,
        plans,
        compute_reachability(playbook),
        workbook,
        state_names,
        hides_state,
    )


def _group_selections(
    steps: frozenset[str], sites: dict[str, dict[str, ExpressionSite]]
) -> dict[str, tuple[Selection, ...]]:
    """For each step, the selections that all sites make of its payload, ordered by id."""
    by_id: dict[str, Selection] = {}
    for sites_of_step in sites.values():
        for site in sites_of_step.values():
            by_id |= {selection.id: selection for selection in site.selections}
    by_step: dict[str, list[Selection]] = {name: [] for name in steps}
    for selection_id in sorted(by_id):
        selection = by_id[selection_id]
        by_step[selection.step].append(selection)
    return {name: tuple(selections) for name, selections in by_step.items()}


def _collect_state_names(plans: dict[str, StepPlan]) -> frozenset[str] | None:
    found: set[str] = set()
    for plan in plans.values():
        if plan.uses.state is None:
            return None
        found |= plan.uses.state
    return frozenset(found)


def _list_arcs(step: Step) -> list[Arc]:
    return step.next.arcs if step.next is not None else []


def _find_error_arcs(step: Step) -> frozenset[int]:
    return frozenset(
        number
        for number, arc in enumerate(_list_arcs(step))
        if mentions_outcome(arc.when, step.step)
    )


def _needs_journal(step: Step, workbook: dict[str, Task]) -> bool:
    """Whether an item of this step waits, polls, or jumps back to a task that has run.

    Such an item needs a journal, because running it again from its start would not repeat it.
    """
    tasks: list[Task] = []
    for task in step.tool:
        if isinstance(task, WorkbookCall):
            tasks.append(workbook.get(task.task, task))
        else:
            tasks.append(task)
    if any(task.kind in WAITING_KINDS or _is_polling(task) for task in tasks):
        return True
    return any(_goes_back(tasks, number) for number in range(len(tasks)))


def _is_polling(task: Task) -> bool:
    paginate = task.spec.paginate
    if paginate is None:
        return False
    return paginate.delay is not None or paginate.backoff is not None


def _goes_back(tasks: list[Task], number: int) -> bool:
    """Whether a rule of the task jumps to it or to a task before it."""
    earlier = {task.name for task in tasks[: number + 1]} | {"previous"}
    actions = (rule.then for rule in tasks[number].spec.policy.rules)
    return any(action.can_jump and (action.to or "previous") in earlier for action in actions)


# ---- sites -------------------------------------------------------------------------------------------------------------


def _compile_sites(
    step: Step,
    steps: frozenset[str],
    loops: frozenset[str],
    stable: frozenset[str],
) -> dict[str, ExpressionSite]:
    sites: dict[str, ExpressionSite] = {}
    payload = OWN_PAYLOAD
    if _has_input(step):
        payload = OWN_PAYLOAD | OWN_INPUT

    def add_site(
        name: str,
        own: str | None,
        entries: dict[str, Any],
    ) -> None:
        if entries:
            sites[name] = _compile_site(name, own, entries, steps, loops, stable, payload)

    admit = step.spec.policy.admit
    if admit is not None:
        rule_guards = {str(number): rule.when for number, rule in enumerate(admit.rules)}
        add_site(ADMIT, None, rule_guards)
    if step.loop is not None and step.loop.cursor is None:
        add_site(IN, None, {"in": step.loop.in_})
    add_site(SET, step.step, step.set)
    arcs = _list_arcs(step)
    arc_guards = {str(number): arc.when for number, arc in enumerate(arcs)}
    add_site(WHEN, step.step, arc_guards)
    for number, arc in enumerate(arcs):
        assigned = {f"set:{name}": value for name, value in arc.set.items()}
        passed_on = {f"args:{name}": value for name, value in arc.args.items()}
        add_site(name_arc_site(number), step.step, assigned | passed_on)
    return sites


def _has_input(step: Step) -> bool:
    """Whether a worker renders the step's input.

    Input that only arcs give is known to the server.
    """
    if step.loop is not None:
        return False
    return bool(step.input) or any(task.input for task in step.tool)


def _compile_site(
    name: str,
    own: str | None,
    entries: dict[str, Any],
    steps: frozenset[str],
    loops: frozenset[str],
    stable: frozenset[str],
    payload: frozenset[str],
) -> ExpressionSite:
    def cut_out(template: str) -> CutTemplate:
        return cut_template(parse(template), own=own, steps=steps, stable=stable, payload=payload)

    assigns = name not in (ADMIT, IN, WHEN)
    cut_values: list[Any] = []
    selections: dict[str, Selection] = {}
    needs_worker = False
    for key, value in entries.items():
        if assigns and not is_state(key.removeprefix("set:")):
            part = _cut_assigned_value(value, cut_out)
        else:
            part = _cut_templates(value, cut_out)
        cut_values.append(part.value)
        selections |= {selection.id: selection for selection in part.selections}
        needs_worker = needs_worker or part.needs_worker
    of_loops = [selection for selection in selections.values() if selection.step in loops]
    templates = find_templates(list(entries.values()))
    used_ctx = _find_members(templates, ("ctx", "vars"))
    return ExpressionSite(
        name=name,
        keys=tuple(entries),
        sources=tuple(entries.values()),
        cut=tuple(cut_values),
        selections=tuple(selections[key] for key in sorted(selections)),
        ctx=("*",) if used_ctx is None else tuple(sorted(used_ctx)),
        needs_worker=needs_worker or any(map(_reads_beyond_envelope, of_loops)),
        is_literal=not any(isinstance(value, Template) for value in cut_values),
    )


class _CutValue(NamedTuple):
    """A value in which every template is cut."""

    value: Any
    selections: list[Selection]
    needs_worker: bool


def _cut_assigned_value(value: Any, cut_out: CutOut) -> _CutValue:
    """Like `_cut`, but a worker makes a list or map as a whole if it contains a part of a result.

    The worker that reports the result makes it if it needs nothing else. Otherwise the server asks
    a worker to evaluate it. So no event contains texts of a payload.
    """
    cut_value = _cut_templates(value, cut_out)
    if cut_value.needs_worker or not cut_value.selections:
        return cut_value
    left_to_worker = _CutValue(value, [], True)
    if isinstance(value, str):
        if makes_list_or_map(parse(value)) and not cut_out(value).is_one_selection:
            return left_to_worker
        return cut_value
    expression = write_expression(value)
    if expression is None:
        return left_to_worker
    whole = cut_out("{{ " + expression + " }}")
    if not whole.is_one_selection:
        return left_to_worker
    return _CutValue(whole.template, list(whole.selections), False)


def _cut_templates(value: Any, cut_out: CutOut) -> _CutValue:
    """Cut every template in a value."""
    if isinstance(value, str):
        template = cut_out(value)
        return _CutValue(template.template, list(template.selections), template.needs_worker)
    if isinstance(value, dict):
        parts = {key: _cut_templates(part, cut_out) for key, part in value.items()}
        cut_map = {key: part.value for key, part in parts.items()}
        joined = _join_cut_parts(cut_map, parts.values())
        if any("{{" in key or "{%" in key for key in parts):
            return joined._replace(needs_worker=True)
        return joined
    if isinstance(value, list):
        items = [_cut_templates(part, cut_out) for part in value]
        return _join_cut_parts([item.value for item in items], items)
    return _CutValue(value, [], False)


def _join_cut_parts(value: Any, parts: Collection[_CutValue]) -> _CutValue:
    """Return a list or map with the selections of its parts."""
    selections: list[Selection] = []
    needs_worker = False
    for part in parts:
        selections += part.selections
        needs_worker = needs_worker or part.needs_worker
    return _CutValue(value, selections, needs_worker)


def _reads_beyond_envelope(selection: Selection) -> bool:
    """Whether a selection of a loop reads more than its counts and status.

    The server knows only those. No worker holds the result of a whole loop, so one must load it.
    """
    for path in find_paths(parse_expression(selection.source)):
        is_own = path[0] == selection.step or path[0] in OWN_OUTPUT | OWN_PAYLOAD
        if not is_own:
            continue
        if len(path) < 2 or path[1] not in ENVELOPE_MEMBERS:
            return True
    return False


def _needs_only_workload(step: Step, stable: frozenset[str]) -> bool:
    if step.loop is None or step.loop.cursor is not None:
        return False
    return all(find_names(template) <= stable for template in find_templates(step.loop.in_))


# ---- names that a command carries ------------------------------------------------------------------------------------------


def find_templates(value: Any) -> Iterator[Template]:
    """Yield every template in a JSON value."""
    if isinstance(value, str):
        template = parse(value)
        if not template.is_literal:
            yield template
    elif isinstance(value, dict):
        for key, part in value.items():
            if isinstance(key, str):
                yield from find_templates(key)
            yield from find_templates(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from find_templates(part)


def dump_rendered_fields(task: Task) -> dict[str, Any]:
    """Return a task as plain data, without the fields that are never rendered, such as `code`."""
    return task.model_dump(exclude={"code", "name", "kind"}, exclude_defaults=True)


_STEP_FIELDS: dict[str, Any] = {"exclude": {"tool", "step", "desc"}}
_BODY_FIELDS: dict[str, Any] = {"include": {"input": True, "loop": {"cursor", "spec"}}}


def _find_uses(
    step: Step,
    fields: dict[str, Any],
    selections: Collection[Selection],
    workbook: dict[str, Task],
    steps: frozenset[str],
    keychain: list[dict[str, Any]],
) -> UsedNames:
    """Collect the names that the templates in `fields` of a step, in its tasks and selections use.

    The keychain's templates count for every step, because it is unknown which entries a step uses.
    """
    data = step.model_dump(exclude_defaults=True, **fields)
    tasks = _add_called_tasks(step.tool, workbook)
    templates = list(find_templates([data, keychain, *map(dump_rendered_fields, tasks)]))
    templates += [parse_expression(selection.source) for selection in selections]
    roots = frozenset[str]().union(*map(find_names, templates))
    workload = _find_members(templates, ("workload",))
    if workload is not None:
        workload |= roots - steps  # templates may name a key of the workload without `workload.`
    ctx = _find_members(templates, ("ctx", "vars"))
    if ctx is not None:
        ctx |= _find_reduced_names(step)
    state = _find_members(templates, ("state",))
    if state is not None:
        state |= _find_state_targets(step, tasks)
    return UsedNames(workload=workload, ctx=ctx, state=state, steps=roots & steps)


def _add_called_tasks(tasks: Sequence[Task], workbook: dict[str, Task]) -> list[Task]:
    """Return these tasks and the tasks of the workbook that they call, directly or not."""
    found: list[Task] = list(tasks)
    called: set[str] = set()
    for task in found:  # the list grows during the loop, so called tasks are visited too
        if isinstance(task, WorkbookCall) and task.task in workbook and task.task not in called:
            called.add(task.task)
            found.append(workbook[task.task])
    return found


def _find_state_targets(step: Step, tasks: list[Task]) -> frozenset[str]:
    """Return the state names that the step, its arcs, its tasks and their rules assign."""
    assigned = [*step.set]
    for arc in _list_arcs(step):
        assigned += arc.set
    for task in tasks:
        assigned += task.set
        for rule in task.spec.policy.rules:
            assigned += rule.then.set
        collect = None
        if task.spec.paginate is not None:
            collect = task.spec.paginate.collect
        if collect is not None and collect.into is not None:
            assigned.append(collect.into)
    if step.loop is not None:
        assigned += step.loop.spec.reduce
    state_targets = [target for target in assigned if target.startswith("state.")]
    return frozenset(target.split(".")[1] for target in state_targets)


def _find_reduced_names(step: Step) -> frozenset[str]:
    """Return the ctx variables that the step's loop reduces to."""
    if step.loop is None:
        return frozenset()
    names_below_ctx: set[str] = set()
    for target in step.loop.spec.reduce:
        root, path = split_full_name(full_name(target))
        if root == "ctx":
            names_below_ctx.add(path[0])
    return frozenset(names_below_ctx)


def _find_members(
    templates: Collection[Template] | Iterator[Template], roots: tuple[str, ...]
) -> frozenset[str] | None:
    """Return the first members of `roots` that the templates use.

    None if a template uses a root as a whole or computes the name of a member.
    """
    used: set[str] = set()
    for template in templates:
        for path in find_paths(template):
            if path[0] not in roots:
                continue
            if len(path) == 1 or not isinstance(path[1], str):
                return None
            used.add(path[1])
    return frozenset(used)


# ---- the graph ---------------------------------------------------------------------------------------------------------


def list_targets(step: Step) -> tuple[str, ...]:
    """Return the steps that its arcs and admission lead to, in document order, each once."""
    found = [arc.step for arc in _list_arcs(step)]
    admit = step.spec.policy.admit
    if admit is not None:
        found += [rule.then.next for rule in admit.rules if rule.then.next is not None]
    return tuple(dict.fromkeys(found))


def compute_reachability(playbook: Playbook) -> dict[str, int]:
    """For every step, the steps from which one or more arcs lead to it: one bit per step.

    Bits are in document order. The steps are visited forwards and backwards until nothing changes.
    Most playbooks take two rounds in any order of their steps.
    """
    number_of = {step.step: number for number, step in enumerate(playbook.workflow)}
    sources: list[list[int]] = [[] for _ in playbook.workflow]
    for number, step in enumerate(playbook.workflow):
        for target in list_targets(step):
            if target in number_of:
                sources[number_of[target]].append(number)
    reached_by = [0] * len(sources)
    forwards = range(len(sources))
    changed = True
    while changed:
        changed = False
        for number in (*forwards, *reversed(forwards)):
            bits = reached_by[number]
            for source in sources[number]:
                bits |= reached_by[source] | 1 << source
            if bits != reached_by[number]:
                changed = True
            reached_by[number] = bits
    return {name: reached_by[number] for name, number in number_of.items()}
