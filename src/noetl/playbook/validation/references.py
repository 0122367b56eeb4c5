"""Names that refer to each other: steps, arcs, tasks, workbook, keychain."""

from collections.abc import Iterable

from noetl.playbook.dialect.editor import Editor, Node, list_maps
from noetl.playbook.findings import Code
from noetl.playbook.outcomes import mentions_facts_only
from noetl.playbook.validation.document_facts import (
    RESERVED,
    DocumentFacts,
    get_child,
    get_text,
    get_texts,
    list_tasks,
)
from noetl.playbook.validation.shape import did_you_mean
from noetl.template.errors import TemplateError


def check(world: DocumentFacts, editor: Editor) -> None:
    _check_steps(world, editor)
    _check_entries(world, editor)
    for step in world.steps:
        editor.step = get_text(step, "step")
        _check_tasks(step, world, editor)
        _check_targets(step, world, editor)
        _warn_of_dead_arcs(step, editor)
        _note_half_error_arcs(step, editor)
        _check_iterator(step, world, editor)
    editor.step = None
    _check_executor(world, editor)
    _warn_of_unreachable_steps(world, editor)


def _check_steps(world: DocumentFacts, editor: Editor) -> None:
    first: dict[str, int] = {}
    for step in world.steps:
        name = get_text(step, "step")
        if name is None:
            continue
        editor.step = name
        line = editor.get_mark(step, "step").line
        if name in first:
            message = f"the step `{name}` exists already, on line {first[name]}"
            editor.add_error(
                step, "step", Code.DUPLICATE_STEP, message, "every step has a name of its own"
            )
        first.setdefault(name, line)
        _check_reserved(step, "step", name, "step", editor)
        if name in world.workload_keys:
            message = f"the step `{name}` hides the workload key of the same name"
            editor.add_finding(
                step,
                "step",
                Code.SHADOWED_NAME,
                message,
                f"write workload.{name} for the input",
                "warning",
            )
    editor.step = None


def _check_reserved(
    node: Node,
    key: str,
    name: str,
    what: str,
    editor: Editor,
) -> None:
    if name in RESERVED:
        article = "an" if what == "iterator" else "a"
        message = f"`{name}` is a name of the language and cannot name {article} {what}"
        editor.add_error(
            node, key, Code.RESERVED_NAME, message, f"for example `{name.strip('_')}_{what}`"
        )


def _check_entries(world: DocumentFacts, editor: Editor) -> None:
    for group, code, what in (
        ("keychain", Code.DUPLICATE_ENTRY, "keychain entry"),
        ("workbook", Code.DUPLICATE_TASK, "workbook task"),
    ):
        _check_unique(list_maps(world.document.get(group)), code, what, editor)


def _check_unique(
    nodes: Iterable[Node],
    code: Code,
    what: str,
    editor: Editor,
) -> None:
    seen: set[str] = set()
    for node in nodes:
        name = get_text(node, "name")
        if name is not None and name in seen:
            editor.add_error(
                node,
                "name",
                code,
                f"the {what} `{name}` exists already",
                f"every {what} has a name of its own",
            )
        elif name is not None:
            seen.add(name)


def _check_tasks(step: Node, world: DocumentFacts, editor: Editor) -> None:
    tasks = list_tasks(step)
    _check_unique(tasks, Code.DUPLICATE_TASK, "task", editor)
    names = get_texts(tasks, "name")
    for task in tasks:
        _check_reserved(task, "name", get_text(task, "name") or "", "task", editor)
        _check_workbook_task(task, world, editor)
        for rule in list_maps(get_child(task, "spec", "policy").get("rules")):
            then = get_child(rule, "then")
            target = get_text(then, "to")
            if target is not None and target != "previous" and target not in names:
                message = f"jump to `{target}`, which is no task of this pipeline"
                hint = did_you_mean(target, [*names, "previous"]) or f"tasks: {', '.join(names)}"
                editor.add_error(then, "to", Code.UNKNOWN_TASK, message, hint)


def _check_workbook_task(task: Node, world: DocumentFacts, editor: Editor) -> None:
    if task.get("kind") != "workbook":
        return
    name = get_text(task, "task")
    if name is not None and name not in world.workbook_tasks:
        hint = did_you_mean(name, world.workbook_tasks) or "define it under `workbook`"
        editor.add_error(
            task, "task", Code.UNKNOWN_TASK, f"the workbook has no task `{name}`", hint
        )


def list_arcs(step: Node) -> list[Node]:
    return list_maps(get_child(step, "next").get("arcs"))


def _list_admit_rules(step: Node) -> list[Node]:
    return list_maps(get_child(step, "spec", "policy", "admit").get("rules"))


def _check_targets(step: Node, world: DocumentFacts, editor: Editor) -> None:
    final = get_text(get_child(world.document, "executor", "spec"), "final_step")
    for arc in list_arcs(step):
        _check_target(arc, "step", world, editor)
        if final is not None and arc.get("step") == final:
            message = (
                f"`{final}` is the final step: it runs by itself when everything else has ended"
            )
            editor.add_finding(
                arc, "step", Code.FINAL_STEP_ARC, message, "remove the arc", "warning"
            )
    for rule in _list_admit_rules(step):
        _check_target(get_child(rule, "then"), "next", world, editor)
    if final is not None and get_text(step, "step") == final:
        _check_final_step(step, editor)


def _check_final_step(final: Node, editor: Editor) -> None:
    """The execution ends with its final step, so no arc of that step is followed."""
    message = "nothing follows the final step: the execution ends with it"
    hint = "remove it, or do the work in a step that runs before; `final_step` runs when all others have ended"
    if list_arcs(final):
        editor.add_error(final, "next", Code.FINAL_STEP_ARC, message, hint)
    for rule in _list_admit_rules(final):
        if "next" in get_child(rule, "then"):
            editor.add_error(get_child(rule, "then"), "next", Code.FINAL_STEP_ARC, message, hint)


def _check_target(node: Node, key: str, world: DocumentFacts, editor: Editor) -> None:
    name = get_text(node, key)
    if name is None or name in world.known_steps:
        return
    if "{{" in name:
        message = "an arc names its target; it cannot be computed"
        hint = "write one arc per target, each with `when`"
    else:
        message = f"there is no step `{name}`"
        hint = did_you_mean(name, world.step_names) or f"steps: {', '.join(world.step_names[:20])}"
    editor.add_error(node, key, Code.UNKNOWN_STEP, message, hint)


def _warn_of_dead_arcs(step: Node, editor: Editor) -> None:
    if get_child(step, "next", "spec").get("mode") in ("inclusive", "all"):
        return
    always: int | None = None
    for arc in list_arcs(step):
        if always is not None and arc.get("when") in (None, True):
            message = f"never taken: the arc on line {always} has no `when` and stands first"
            hint = "give the earlier arc a `when`, or fork with `next: {spec: {mode: inclusive}, arcs: […]}`"
            editor.add_finding(arc, "step", Code.UNREACHABLE_ARC, message, hint, "warning")
        elif arc.get("when") in (None, True) and always is None:
            always = editor.get_mark(arc, "step").line


def _note_half_error_arcs(step: Node, editor: Editor) -> None:
    """A guard on `output.http.status` looks like an error handler, but the arc is not tried after a
    failure.
    """
    for arc in list_arcs(step):
        try:
            facts_only = mentions_facts_only(arc.get("when"), get_text(step, "step") or "")
        except TemplateError:  # reported where templates are checked
            continue
        if facts_only:
            message = "this arc is not tried after a failure: its guard looks at the call, not at whether it failed"
            hint = "to handle a failure, begin the guard with `output.status == 'error' and`"
            editor.add_finding(arc, "when", Code.NOT_AN_ERROR_ARC, message, hint, "note")


def _check_iterator(step: Node, world: DocumentFacts, editor: Editor) -> None:
    loop = get_child(step, "loop")
    name = get_text(loop, "iterator")
    if name is None:
        return
    _check_reserved(loop, "iterator", name, "iterator", editor)
    if name in world.known_steps:
        message = f"the iterator `{name}` hides the step of the same name"
        editor.add_finding(
            loop, "iterator", Code.SHADOWED_NAME, message, "give it another name", "warning"
        )


def _check_executor(world: DocumentFacts, editor: Editor) -> None:
    spec = get_child(world.document, "executor", "spec")
    for key in ("entry_step", "final_step"):
        name = get_text(spec, key)
        if name is not None and name not in world.known_steps:
            editor.add_error(
                spec,
                key,
                Code.UNKNOWN_STEP,
                f"there is no step `{name}`",
                did_you_mean(name, world.step_names),
            )
    entry = get_text(spec, "entry_step")
    if entry is not None and entry == spec.get("final_step"):
        message = "one step cannot be both the entry and the final step"
        editor.add_error(spec, "final_step", Code.BAD_VALUE, message)


def _warn_of_unreachable_steps(world: DocumentFacts, editor: Editor) -> None:
    """Warn of steps that no arc leads to.

    Not if the document has an error: a wrong arc would make a warning of every step after it.
    """
    has_error = any(finding.severity == "error" for finding in editor.findings)
    if has_error or not world.step_names:
        return
    spec = get_child(world.document, "executor", "spec")
    entry = get_text(spec, "entry_step") or _find_default_entry(world)
    reached = _find_reached_steps([entry, *get_texts([spec], "final_step")], world)
    for step in world.steps:
        name = get_text(step, "step") or ""
        if name and name not in reached:
            editor.step = name
            message = f"no arc leads from the entry `{entry}` to the step `{name}`"
            hint = "add an arc, or remove the step"
            editor.add_finding(step, "step", Code.UNREACHABLE_STEP, message, hint, "warning")
    editor.step = None


def _find_default_entry(world: DocumentFacts) -> str:
    if "start" in world.step_names:
        return "start"
    return world.step_names[0]


def _find_reached_steps(entries: list[str], world: DocumentFacts) -> set[str]:
    """The steps that arcs and admit rules lead to, with the entries."""
    edges: dict[str, list[str]] = {}
    for step in world.steps:
        targets = edges.setdefault(get_text(step, "step") or "", [])
        targets += get_texts(list_arcs(step), "step")
        targets += get_texts([get_child(rule, "then") for rule in _list_admit_rules(step)], "next")
    reached: set[str] = set()
    waiting = list(entries)
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting.extend(edges.get(name, ()))
    return reached
