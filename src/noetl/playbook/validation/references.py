"""Names that refer to each other: steps, arcs, tasks, workbook, keychain."""

from collections.abc import Iterable

from noetl.playbook.dialect.editor import Editor, Node, maps
from noetl.playbook.expressions import TemplateError
from noetl.playbook.findings import Code
from noetl.playbook.outcomes import mentions_facts_only
from noetl.playbook.validation.shape import did_you_mean
from noetl.playbook.validation.world import RESERVED, World, child, tasks_of, text, texts_of


def check(world: World, editor: Editor) -> None:
    _steps(world, editor)
    _entries(world, editor)
    for step in world.steps:
        editor.step = text(step, "step")
        _tasks(step, world, editor)
        _targets(step, world, editor)
        _dead_arcs(step, editor)
        _half_error_arcs(step, editor)
        _iterator(step, world, editor)
    editor.step = None
    _executor(world, editor)
    _reachable(world, editor)


def _steps(world: World, editor: Editor) -> None:
    first: dict[str, int] = {}
    for step in world.steps:
        name = text(step, "step")
        if name is None:
            continue
        editor.step = name
        line = editor.mark(step, "step").line
        if name in first:
            message = f"the step `{name}` exists already, on line {first[name]}"
            editor.fault(
                step, "step", Code.DUPLICATE_STEP, message, "every step has a name of its own"
            )
        first.setdefault(name, line)
        _reserved(step, "step", name, "step", editor)
        if name in world.workload:
            message = f"the step `{name}` hides the workload key of the same name"
            editor.report(
                step,
                "step",
                Code.SHADOWED_NAME,
                message,
                f"write workload.{name} for the input",
                "warning",
            )
    editor.step = None


def _reserved(node: Node, key: str, name: str, what: str, editor: Editor) -> None:
    if name in RESERVED:
        article = "an" if what == "iterator" else "a"
        message = f"`{name}` is a name of the language and cannot name {article} {what}"
        editor.fault(
            node, key, Code.RESERVED_NAME, message, f"for example `{name.strip('_')}_{what}`"
        )


def _entries(world: World, editor: Editor) -> None:
    for group, code, what in (
        ("keychain", Code.DUPLICATE_ENTRY, "keychain entry"),
        ("workbook", Code.DUPLICATE_TASK, "workbook task"),
    ):
        _once(maps(world.document.get(group)), code, what, editor)


def _once(nodes: Iterable[Node], code: Code, what: str, editor: Editor) -> None:
    seen: set[str] = set()
    for node in nodes:
        name = text(node, "name")
        if name is not None and name in seen:
            editor.fault(
                node,
                "name",
                code,
                f"the {what} `{name}` exists already",
                f"every {what} has a name of its own",
            )
        elif name is not None:
            seen.add(name)


def _tasks(step: Node, world: World, editor: Editor) -> None:
    tasks = tasks_of(step)
    _once(tasks, Code.DUPLICATE_TASK, "task", editor)
    names = texts_of(tasks, "name")
    for task in tasks:
        _reserved(task, "name", text(task, "name") or "", "task", editor)
        _workbook(task, world, editor)
        for rule in maps(child(task, "spec", "policy").get("rules")):
            then = child(rule, "then")
            target = text(then, "to")
            if target is not None and target != "previous" and target not in names:
                message = f"jump to `{target}`, which is no task of this pipeline"
                hint = did_you_mean(target, [*names, "previous"]) or f"tasks: {', '.join(names)}"
                editor.fault(then, "to", Code.UNKNOWN_TASK, message, hint)


def _workbook(task: Node, world: World, editor: Editor) -> None:
    if task.get("kind") != "workbook":
        return
    name = text(task, "task")
    if name is not None and name not in world.workbook:
        hint = did_you_mean(name, world.workbook) or "define it under `workbook`"
        editor.fault(task, "task", Code.UNKNOWN_TASK, f"the workbook has no task `{name}`", hint)


def arcs(step: Node) -> list[Node]:
    return maps(child(step, "next").get("arcs"))


def _admit_rules(step: Node) -> list[Node]:
    return maps(child(step, "spec", "policy", "admit").get("rules"))


def _targets(step: Node, world: World, editor: Editor) -> None:
    final = text(child(world.document, "executor", "spec"), "final_step")
    for arc in arcs(step):
        _target(arc, "step", world, editor)
        if final is not None and arc.get("step") == final:
            message = (
                f"`{final}` is the final step: it runs by itself when everything else has ended"
            )
            editor.report(arc, "step", Code.FINAL_STEP_ARC, message, "remove the arc", "warning")
    for rule in _admit_rules(step):
        _target(child(rule, "then"), "next", world, editor)
    if final is not None and text(step, "step") == final:
        _nothing_follows(step, editor)


def _nothing_follows(final: Node, editor: Editor) -> None:
    """The execution ends with its final step, so no arc of that step is followed."""
    message = "nothing follows the final step: the execution ends with it"
    hint = "remove it, or do the work in a step that runs before; `final_step` runs when all others have ended"
    if arcs(final):
        editor.fault(final, "next", Code.FINAL_STEP_ARC, message, hint)
    for rule in _admit_rules(final):
        if "next" in child(rule, "then"):
            editor.fault(child(rule, "then"), "next", Code.FINAL_STEP_ARC, message, hint)


def _target(node: Node, key: str, world: World, editor: Editor) -> None:
    name = text(node, key)
    if name is None or name in world.known_steps:
        return
    if "{{" in name:
        message = "an arc names its target; it cannot be computed"
        hint = "write one arc per target, each with `when`"
    else:
        message = f"there is no step `{name}`"
        hint = did_you_mean(name, world.step_names) or f"steps: {', '.join(world.step_names[:20])}"
    editor.fault(node, key, Code.UNKNOWN_STEP, message, hint)


def _dead_arcs(step: Node, editor: Editor) -> None:
    if child(step, "next", "spec").get("mode") in ("inclusive", "all"):
        return
    always: int | None = None
    for arc in arcs(step):
        if always is not None and arc.get("when") in (None, True):
            message = f"never taken: the arc on line {always} has no `when` and stands first"
            hint = "give the earlier arc a `when`, or fork with `next: {spec: {mode: inclusive}, arcs: […]}`"
            editor.report(arc, "step", Code.UNREACHABLE_ARC, message, hint, "warning")
        elif arc.get("when") in (None, True) and always is None:
            always = editor.mark(arc, "step").line


def _half_error_arcs(step: Node, editor: Editor) -> None:
    """A guard on `output.http.status` looks like an error handler, but the arc is not tried after a
    failure.
    """
    for arc in arcs(step):
        try:
            facts_only = mentions_facts_only(arc.get("when"), text(step, "step") or "")
        except TemplateError:  # reported where templates are checked
            continue
        if facts_only:
            message = "this arc is not tried after a failure: its guard looks at the call, not at whether it failed"
            hint = "to handle a failure, begin the guard with `output.status == 'error' and`"
            editor.report(arc, "when", Code.NOT_AN_ERROR_ARC, message, hint, "note")


def _iterator(step: Node, world: World, editor: Editor) -> None:
    loop = child(step, "loop")
    name = text(loop, "iterator")
    if name is None:
        return
    _reserved(loop, "iterator", name, "iterator", editor)
    if name in world.known_steps:
        message = f"the iterator `{name}` hides the step of the same name"
        editor.report(
            loop, "iterator", Code.SHADOWED_NAME, message, "give it another name", "warning"
        )


def _executor(world: World, editor: Editor) -> None:
    spec = child(world.document, "executor", "spec")
    for key in ("entry_step", "final_step"):
        name = text(spec, key)
        if name is not None and name not in world.known_steps:
            editor.fault(
                spec,
                key,
                Code.UNKNOWN_STEP,
                f"there is no step `{name}`",
                did_you_mean(name, world.step_names),
            )
    entry = text(spec, "entry_step")
    if entry is not None and entry == spec.get("final_step"):
        message = "one step cannot be both the entry and the final step"
        editor.fault(spec, "final_step", Code.BAD_VALUE, message)


def _reachable(world: World, editor: Editor) -> None:
    if not world.step_names:
        return
    spec = child(world.document, "executor", "spec")
    entry = text(spec, "entry_step") or _default_entry(world)
    reached = _reached_from([entry, *texts_of([spec], "final_step")], world)
    for step in world.steps:
        name = text(step, "step") or ""
        if name and name not in reached:
            editor.step = name
            message = f"no arc leads from the entry `{entry}` to the step `{name}`"
            hint = "add an arc, or remove the step"
            editor.report(step, "step", Code.UNREACHABLE_STEP, message, hint, "warning")
    editor.step = None


def _default_entry(world: World) -> str:
    if "start" in world.step_names:
        return "start"
    return world.step_names[0]


def _reached_from(entries: list[str], world: World) -> set[str]:
    """The steps that arcs and admit rules lead to, with the entries."""
    edges: dict[str, list[str]] = {}
    for step in world.steps:
        targets = edges.setdefault(text(step, "step") or "", [])
        targets += texts_of(arcs(step), "step")
        targets += texts_of([child(rule, "then") for rule in _admit_rules(step)], "next")
    reached: set[str] = set()
    waiting = list(entries)
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting.extend(edges.get(name, ()))
    return reached
