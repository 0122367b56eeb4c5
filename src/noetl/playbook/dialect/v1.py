"""The first version of the language: `type` on a step, iterator steps, `pass`, `when`, `with`,
implied order.
"""

from itertools import pairwise
from typing import Any

from noetl.playbook.dialect import guards
from noetl.playbook.dialect.editor import Editor, Node, get_text_member, list_maps
from noetl.playbook.dialect.shorthand import expand_arcs, expand_tasks
from noetl.playbook.dialect.tasks import rename_older_key
from noetl.playbook.findings import Code
from noetl.playbook.model import BUILT_IN_TASKS

_OF_STEP = {
    "step",
    "desc",
    "description",
    "spec",
    "loop",
    "input",
    "tool",
    "set",
    "next",
    "case",
    "case_mode",
    "vars",
    "retry",
    "sink",
    "save",
    "when",
    "pass",
    "type",
}
_OF_ITERATOR = ("in", "collection", "iterator", "element", "mode", "concurrency")
_OF_STEP_TASK = ("save", "sink", "vars", "retry")  # keys of an iterator's task that its step gets


def rewrite(step: Node, editor: Editor) -> None:
    rename_older_key(step, "description", "desc", editor)
    has_name = isinstance(step.get("name"), str)
    if "step" not in step and has_name and step.get("type") != "workbook":
        rename_older_key(step, "name", "step", editor)
    if isinstance(step.get("tool"), str) and step["tool"] in BUILT_IN_TASKS:
        editor.rename(step, "tool", "type")
    kind = step.get("type")
    if isinstance(kind, str) and "tool" not in step:
        if kind == "iterator":
            _rewrite_iterator(step, editor)
        else:
            _rewrite_typed_step(step, editor)
    for old in ("args", "with"):
        rename_older_key(step, old, "input", editor)


def _rewrite_typed_step(step: Node, editor: Editor) -> None:
    editor.add_note(
        step, "type", f"`type: {step['type']}` on a step is now `tool: {{kind: {step['type']}}}`"
    )
    tool = editor.make_map(step, "type")
    editor.move(step, "type", tool, "kind")
    for key in [key for key in step if key not in _OF_STEP and key not in ("args", "with")]:
        editor.move(step, key, tool)
    editor.put(step, "tool", tool, tool, "kind")


def _rewrite_iterator(step: Node, editor: Editor) -> None:
    editor.add_note(step, "type", "a step of type `iterator` is now a step with `loop`")
    if "loop" in step:
        editor.add_error(
            step,
            "loop",
            Code.DUPLICATE_KEY,
            "an iterator step has no `loop` of its own",
            "keep one of them",
        )
    loop = editor.make_map(step, "type")
    for name in _OF_ITERATOR:
        if name in step:
            editor.move(step, name, loop)
    editor.put(step, "loop", loop, step, "type")
    del step["type"]
    task = step.get("task")
    if not isinstance(task, dict):
        editor.add_error(
            step,
            "task",
            Code.MISSING_FIELD,
            "an iterator step needs a `task`",
            "task: {type: http, …}",
        )
        return
    kind = task.get("type", task.get("kind"))
    if kind == "iterator" or "loop" in task:
        message = "an iterator inside an iterator has no equivalent in one step"
        editor.add_error(
            step, "task", Code.OLD_FORM, message, "put the inner loop into a child playbook"
        )
        del step["task"]
        return
    for name in _OF_STEP_TASK:
        if name in task and name not in step:
            editor.move(task, name, step)
    if kind == "workbook" and "task" not in task and "name" in task:
        editor.rename(task, "name", "task")
    editor.rename(step, "task", "tool")


def rewrite_admission(step: Node, editor: Editor) -> None:
    """Rewrite `pass` and `when` of a v1 step. A skipped step goes on to its next step."""
    for name in ("pass", "when"):
        if name not in step:
            continue
        expression = guards.parse_guard(step[name])
        if expression is None:
            editor.add_error(
                step,
                name,
                Code.BAD_GUARD,
                f"`{name}` must be true, false or one expression",
                'write "{{ … }}"',
            )
        else:
            editor.add_note(step, name, f"`{name}` on a step is now `spec.policy.admit`")
            if name == "pass":
                expression = guards.exclude_all(expression)
            _skip_unless(step, name, expression, editor)
        del step[name]


def _skip_unless(step: Node, origin: str, expression: str, editor: Editor) -> None:
    if expression in ("not (false)", guards.TRUE_GUARD):
        return
    onward = _find_onward_step(step, editor)
    if onward is None:
        _guard_tasks(step, origin, expression, editor)
        return
    rules = editor.make_seq(step, origin)
    if expression not in ("not (true)", "false"):
        allowing = _make_admit_rule(step, origin, guards.make_guard(expression), None, editor)
        editor.append(rules, allowing, step, origin)
    refusing = _make_admit_rule(step, origin, True, onward, editor)
    editor.append(rules, refusing, step, origin)
    admit = editor.ensure_map(step, "spec", "policy", "admit", origin=origin)
    if "rules" in admit:
        message = f"`{origin}` and `spec.policy.admit` both decide about the step"
        editor.add_error(step, origin, Code.DUPLICATE_KEY, message, "keep one of them")
    editor.put(admit, "rules", rules, step, origin)


def _make_admit_rule(
    step: Node, origin: str, when: str | bool, onward: str | None, editor: Editor
) -> Node:
    """A rule that allows the step if `onward` is None. Else it refuses the step, and the branch
    goes on at `onward`; an empty name ends the branch.
    """
    rule, then = editor.make_map(step, origin), editor.make_map(step, origin)
    editor.put(rule, "when", when, step, origin)
    editor.put(then, "allow", onward is None, step, origin)
    if onward:
        editor.put(then, "next", onward, step, origin)
    editor.put(rule, "then", then, step, origin)
    return rule


def _find_onward_step(step: Node, editor: Editor) -> str | None:
    """The only step that follows; an empty name if none does, None if there is a choice."""
    if "case" in step:
        return None
    if step.get("next") is None:
        return ""
    listed = expand_arcs(step, editor)
    if len(listed) != 1 or not isinstance(listed[0], dict) or "when" in listed[0]:
        return None
    return get_text_member(listed[0], "step")


def _guard_tasks(step: Node, origin: str, expression: str, editor: Editor) -> None:
    for task in list_maps(expand_tasks(step, editor)):
        spec = editor.ensure_map(task, "spec", origin="kind")
        editor.put(spec, "when", guards.make_guard(expression), step, origin)


def imply_order(document: Node, editor: Editor) -> None:
    """In v1, steps without any `next` run in the order of the document."""
    steps: list[Node] = list_maps(document.get("workflow"))
    named_steps = [step for step in steps if isinstance(step.get("step"), str)]
    if len(named_steps) < 2 or any("next" in step or "case" in step for step in steps):
        return
    editor.add_note(
        document,
        "workflow",
        "steps in implied order: every step now names the one that follows in `next`",
    )
    for step, following in pairwise(named_steps):
        editor.put(step, "next", following["step"], step, "step")


def rewrite_workbook_task(entry: Node, editor: Editor) -> None:
    if "type" in entry and "tool" not in entry:
        editor.add_note(entry, "type", "`type` of a workbook task is now `tool: {kind: …}`")
        tool = editor.make_map(entry, "type")
        editor.move(entry, "type", tool, "kind")
        for key in [key for key in entry if key not in ("name", "desc", "description")]:
            editor.move(entry, key, tool)
        rename_older_key(entry, "description", "desc", editor)
        editor.put(entry, "tool", tool, tool, "kind")


def move_metadata(document: Node, editor: Editor) -> None:
    for name in ("name", "path", "version", "description"):
        if name in document:
            editor.add_note(document, name, f"`{name}` stands under `metadata`")
            below: Any = editor.ensure_map(document, "metadata", origin=name)
            editor.move(document, name, below)
