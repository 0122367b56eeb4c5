"""Spells out the short forms of the language: a single task becomes a list, a step's name becomes
an arc, and so on.

Short forms are as good as long forms, so no note is made. The model knows the long forms only.
"""

from collections.abc import Callable
from typing import Any

from noetl.playbook.dialect import guards
from noetl.playbook.dialect.editor import (
    Editor,
    Node,
    Nodes,
    get_member,
    get_text_member,
    list_maps,
)
from noetl.playbook.findings import Code
from noetl.playbook.model import BUILT_IN_TASKS, Task

# By kind: the field that may be written as `name`.
NAME_FIELDS = {
    "workbook": "task",
    "secrets": "secret",
}
LABELLED_FIELDS = frozenset({"kind", "name", "tool", "type"})


def expand(document: Node, editor: Editor) -> None:
    for task in list_maps(document.get("workbook")):
        _expand_workbook_tool(task, editor)
    for step in list_maps(document.get("workflow")):
        editor.step = get_text_member(step, "step")
        if "tool" not in step and step.get("input"):
            _add_noop(step, editor)
        if "tool" in step:
            for task in list_maps(expand_tasks(step, editor)):
                spell_out_task(task, editor)
        if "next" in step:
            expand_arcs(step, editor)
            _expand_router_mode(step, editor)
        expand_admit(step, editor)
        _rename_events(step)
    editor.step = None


def _expand_workbook_tool(entry: Node, editor: Editor) -> None:
    tool = entry.get("tool")
    if not isinstance(tool, dict):
        return
    _take_name(tool, editor)
    if isinstance(entry.get("name"), str):
        editor.put(tool, "name", entry["name"], entry, "name")
    spell_out_task(tool, editor)


def expand_tasks(step: Node, editor: Editor) -> Nodes:
    """The step's `tool` as a list of named tasks. Items that are no tasks stay; the model refuses them."""
    tool = step.get("tool")
    if isinstance(tool, list):
        _name_all(tool, editor)
        return tool
    origin = "tool" if "tool" in step else "step"
    listed = editor.make_seq(step, origin)
    if isinstance(tool, dict):
        task = unlabel_task(tool, editor)
        if task is None:
            task = tool
            _take_name(task, editor)
        editor.append(listed, task, step, "tool")
    elif tool is not None:
        return listed
    _name_all(listed, editor)
    editor.put(step, "tool", listed, step, origin)
    return listed


def _add_noop(step: Node, editor: Editor) -> None:
    """Add a noop to a step with an input and no tool. Its value is the input."""
    task = editor.make_map(step, "input")
    editor.put(task, "kind", "noop", step, "input")
    editor.put(step, "tool", task, step, "input")


def _name_all(listed: Nodes, editor: Editor) -> None:
    for index, item in enumerate(listed):
        if not isinstance(item, dict):
            continue
        labelled = unlabel_task(item, editor)
        if labelled is not None:
            listed[index] = item = labelled
        field = NAME_FIELDS.get(str(item.get("kind")))
        if field is not None and field not in item and isinstance(item.get("name"), str):
            editor.put(item, field, item["name"], item, "name")
        if item.get("name") is None:
            origin = "kind" if "kind" in item else "name"
            editor.put(item, "name", f"task_{index}", item, origin)


def unlabel_task(item: Node, editor: Editor) -> Node | None:
    """The task of `label: {kind: …}`; None if the mapping is no labelled task."""
    if len(item) != 1:
        return None
    ((label, body),) = item.items()
    if not isinstance(body, dict) or label in LABELLED_FIELDS or "kind" not in body:
        return None
    _take_name(body, editor)
    if "name" in body:
        message = f"the task has two names: the label `{label}` and `name: {body['name']}`"
        editor.add_error(body, "name", Code.DUPLICATE_KEY, message, "keep the label")
    editor.put(body, "name", label, item, label)
    return body


def _take_name(task: Node, editor: Editor) -> None:
    """Rename `name` of a single tool to the field of its kind, if it has one."""
    field = NAME_FIELDS.get(str(task.get("kind")))
    if field is not None and field not in task and "name" in task:
        editor.rename(task, "name", field)


def spell_out_task(task: Node, editor: Editor) -> None:
    spec = task.get("spec")
    if isinstance(spec, dict):
        if isinstance(spec.get("policy"), list):
            _wrap_rules(spec, "policy", editor)
        for rule in list_maps(get_member(spec.get("policy"), "rules")):
            spell_out_else(rule, editor)
    _collect_options(task, editor)


def _wrap_rules(node: Node, key: str, editor: Editor) -> None:
    """`key: […]` becomes `key: {rules: […]}`."""
    wrapped = editor.make_map(node, key)
    editor.put(wrapped, "rules", node[key], node, key)
    editor.put(node, key, wrapped, node, key)


def _collect_options(task: Node, editor: Editor) -> None:
    """Collect the fields of a kind that comes by entry point under `options`."""
    kind = task.get("kind")
    if isinstance(kind, str) and kind in BUILT_IN_TASKS:
        return
    own = [key for key in task if key not in Task.model_fields and key != "options"]
    if own:
        options = editor.ensure_map(task, "options", origin=own[0])
        for key in own:
            editor.move(task, key, options)


def spell_out_else(rule: Node, editor: Editor) -> None:
    """`else: {…}` and `else: {then: {…}}` become a rule that always matches."""
    if "else" not in rule or "when" in rule or "then" in rule:
        return
    branch = rule["else"]
    if isinstance(branch, dict) and set(branch) == {"then"}:
        branch = branch["then"]
    editor.put(rule, "when", True, rule, "else")
    editor.put(rule, "then", branch, rule, "else")
    del rule["else"]


def expand_arcs(step: Node, editor: Editor) -> Nodes:
    """The step's arcs as a list of mappings inside `next: {arcs: …}`."""
    router = _ensure_router(step, editor)
    if router.get("arcs") is None:
        editor.put(router, "arcs", editor.make_seq(step, "next"), step, "next")
    listed: Any = router["arcs"]
    if isinstance(listed, str) or (isinstance(listed, dict) and "step" in listed):
        single = editor.make_seq(router, "arcs")
        editor.append(single, listed, router, "arcs")
        editor.put(router, "arcs", single, router, "arcs")
        listed = single
    if not isinstance(listed, list):
        return editor.make_seq(step, "next")
    for index, arc in enumerate(listed):
        if isinstance(arc, str):
            listed[index] = _make_arc(arc, listed, index, editor)
    return listed


def _ensure_router(step: Node, editor: Editor) -> Node:
    """The step's `next` as a mapping with `arcs`; it is created if it is missing."""
    router: Any = step.get("next")
    if router is None:
        origin = "next" if "next" in step else "step"
        created = editor.make_map(step, origin)
        editor.put(created, "arcs", editor.make_seq(step, origin), step, origin)
        editor.put(step, "next", created, step, origin)
        return created
    if isinstance(router, dict) and "step" not in router:
        return router
    if not isinstance(router, list):
        router = _make_list_of_one(router, step, editor)
    wrapped = editor.make_map(step, "next")
    editor.put(wrapped, "arcs", router, step, "next")
    editor.put(step, "next", wrapped, step, "next")
    return wrapped


def _make_list_of_one(target: Any, step: Node, editor: Editor) -> Nodes:
    listed = editor.make_seq(step, "next")
    editor.append(listed, target, step, "next")
    return listed


def _make_arc(
    target: str,
    origin: Any,
    key: str | int,
    editor: Editor,
) -> Node:
    arc = editor.make_map(origin, key)
    editor.put(arc, "step", target, origin, key)
    return arc


def _expand_router_mode(step: Node, editor: Editor) -> None:
    spec = get_member(step["next"], "spec")
    if isinstance(spec, dict) and spec.get("mode") == "all":
        editor.put(spec, "mode", "inclusive", spec, "mode")


def _rename_events(step: Node) -> None:
    """Use one name for each event in `event.name`."""
    _change_texts(step, guards.use_first_event_names)


def _change_texts(node: Any, change: Callable[[str], str]) -> None:
    """Change, in place, every text that mentions `event.`, also in maps and lists. `code` stays as it is."""
    keys = node if isinstance(node, dict) else range(len(node))
    for key in keys:
        value = node[key]
        if isinstance(value, dict | list):
            _change_texts(value, change)
        elif isinstance(value, str) and "event." in value and key != "code":
            node[key] = change(value)


def expand_admit(step: Node, editor: Editor) -> None:
    """`admit: […]` becomes `admit: {rules: […]}`. A bare guard stays as it is."""
    policy = get_member(step.get("spec"), "policy")
    if not isinstance(policy, dict):
        return
    if isinstance(policy.get("admit"), list):
        _wrap_rules(policy, "admit", editor)
    given = policy.get("admit")
    if not isinstance(given, dict):
        return
    if "else" in given and isinstance(given.get("rules"), list):
        last = editor.make_map(given, "else")
        editor.move(given, "else", last)
        editor.append(given["rules"], last, given, "rules")
    for rule in list_maps(given.get("rules")):
        if "when" in rule and "else" in rule:
            _split_admit_else(given["rules"], rule, editor)
        spell_out_else(rule, editor)


def _split_admit_else(rules: Nodes, rule: Node, editor: Editor) -> None:
    """`{when, then, else}` in one rule becomes two rules."""
    at = next(index for index, item in enumerate(rules) if item is rule)
    last = editor.make_map(rule, "else")
    editor.put(last, "else", rule["else"], rule, "else")
    del rule["else"]
    spell_out_else(last, editor)
    editor.insert(rules, at + 1, last, rule)
