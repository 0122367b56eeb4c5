"""The short forms of the language, spelled out: one task for a list of one, a step's name for an arc, and the like.

They are as good as the long forms, so nothing is noted; the model knows the long forms only.
"""

from collections.abc import Callable
from typing import Any

from noetl.playbook.dialect import guards
from noetl.playbook.dialect.editor import Editor, Node, Nodes, maps
from noetl.playbook.findings import Code
from noetl.playbook.model import BUILT_IN, Task

NAMED_OTHERWISE = {
    "workbook": "task",
    "secrets": "secret",
}  # kinds whose single tool spells this field `name`
LABELLED_FIELDS = frozenset({"kind", "name", "tool", "type"})


def expand(document: Node, editor: Editor) -> None:
    for task in maps(document.get("workbook")):
        _workbook_tool(task, editor)
    for step in maps(document.get("workflow")):
        editor.step = step["step"] if isinstance(step.get("step"), str) else None
        if "tool" not in step and step.get("input"):
            _noop(step, editor)
        if "tool" in step:
            for task in maps(tasks(step, editor)):
                spell_out_task(task, editor)
        if "next" in step:
            arcs(step, editor)
            _router_mode(step, editor)
        admit(step, editor)
        _event_names(step)
    editor.step = None


def _workbook_tool(entry: Node, editor: Editor) -> None:
    tool = entry.get("tool")
    if not isinstance(tool, dict):
        return
    _take_name(tool, editor)
    if isinstance(entry.get("name"), str):
        editor.put(tool, "name", entry["name"], entry, "name")
    spell_out_task(tool, editor)


def tasks(step: Node, editor: Editor) -> Nodes:
    """The step's `tool` as a list of named tasks; anything that is no task stays for the model to refuse."""
    tool = step.get("tool")
    if isinstance(tool, list):
        _name_all(tool, editor)
        return tool
    listed = editor.seq(step, "tool" if "tool" in step else "step")
    if isinstance(tool, dict):
        label = unlabel(tool, editor)
        task = label if label is not None else tool
        if label is None:
            _take_name(task, editor)
        editor.append(listed, task, step, "tool")
    elif tool is not None:
        return listed
    _name_all(listed, editor)
    editor.put(step, "tool", listed, step, "tool" if "tool" in step else "step")
    return listed


def _noop(step: Node, editor: Editor) -> None:
    """A step with an input and no tool: a noop, whose value is its input."""
    task = editor.map(step, "input")
    editor.put(task, "kind", "noop", step, "input")
    editor.put(step, "tool", task, step, "input")


def _name_all(listed: Nodes, editor: Editor) -> None:
    for index, item in enumerate(listed):
        if not isinstance(item, dict):
            continue
        labelled = unlabel(item, editor)
        if labelled is not None:
            listed[index] = item = labelled
        field = NAMED_OTHERWISE.get(str(item.get("kind")))
        if field is not None and field not in item and isinstance(item.get("name"), str):
            editor.put(item, field, item["name"], item, "name")
        if item.get("name") is None:
            editor.put(item, "name", f"task_{index}", item, "kind" if "kind" in item else "name")


def unlabel(item: Node, editor: Editor) -> Node | None:
    """`label: {kind: …}` as the task it names; None when the mapping is no labelled task."""
    if len(item) != 1:
        return None
    ((label, body),) = item.items()
    if not isinstance(body, dict) or label in LABELLED_FIELDS or "kind" not in body:
        return None
    _take_name(body, editor)
    if "name" in body:
        message = f"the task has two names: the label `{label}` and `name: {body['name']}`"
        editor.fault(body, "name", Code.DUPLICATE_KEY, message, "keep the label")
    editor.put(body, "name", label, item, label)
    return body


def _take_name(task: Node, editor: Editor) -> None:
    """In a single tool `name` belongs to the kind that has such a field."""
    field = NAMED_OTHERWISE.get(str(task.get("kind")))
    if field is not None and field not in task and "name" in task:
        editor.rename(task, "name", field)


def spell_out_task(task: Node, editor: Editor) -> None:
    spec = task.get("spec")
    if isinstance(spec, dict) and isinstance(spec.get("policy"), list):
        rules = editor.map(spec, "policy")
        editor.put(rules, "rules", spec["policy"], spec, "policy")
        editor.put(spec, "policy", rules, spec, "policy")
    if isinstance(spec, dict) and isinstance(spec.get("policy"), dict):
        for rule in maps(spec["policy"].get("rules")):
            spell_out_else(rule, editor)
    _outside_options(task, editor)


def _outside_options(task: Node, editor: Editor) -> None:
    """The fields of a kind that comes by entry point are collected under `options`."""
    kind = task.get("kind")
    if isinstance(kind, str) and kind in BUILT_IN:
        return
    own = [key for key in task if key not in Task.model_fields and key != "options"]
    if own:
        options = editor.below(task, "options", origin=own[0])
        for key in own:
            editor.move(task, key, options)


def spell_out_else(rule: Node, editor: Editor) -> None:
    """`else: {…}` and `else: {then: {…}}` are a rule that always matches."""
    if "else" not in rule or "when" in rule or "then" in rule:
        return
    otherwise = rule["else"]
    branch = (
        otherwise["then"]
        if isinstance(otherwise, dict) and set(otherwise) == {"then"}
        else otherwise
    )
    editor.put(rule, "when", True, rule, "else")
    editor.put(rule, "then", branch, rule, "else")
    del rule["else"]


def arcs(step: Node, editor: Editor) -> Nodes:
    """The step's arcs as a list of mappings inside `next: {arcs: …}`."""
    router = step.get("next")
    if router is None:
        origin = "next" if "next" in step else "step"
        router = editor.map(step, origin)
        editor.put(router, "arcs", editor.seq(step, origin), step, origin)
        editor.put(step, "next", router, step, origin)
    elif not isinstance(router, dict) or "step" in router:
        wrapped = editor.map(step, "next")
        given = router if isinstance(router, list) else _one(router, step, editor)
        editor.put(wrapped, "arcs", given, step, "next")
        editor.put(step, "next", wrapped, step, "next")
        router = wrapped
    if router.get("arcs") is None:
        editor.put(router, "arcs", editor.seq(step, "next"), step, "next")
    listed: Any = router["arcs"]
    if isinstance(listed, str) or (isinstance(listed, dict) and "step" in listed):
        single = editor.seq(router, "arcs")
        editor.append(single, listed, router, "arcs")
        editor.put(router, "arcs", single, router, "arcs")
        listed = single
    if not isinstance(listed, list):
        return editor.seq(step, "next")
    for index, arc in enumerate(listed):
        if isinstance(arc, str):
            listed[index] = _arc(arc, listed, index, editor)
    found: Nodes = listed
    return found


def _one(target: Any, step: Node, editor: Editor) -> Nodes:
    listed = editor.seq(step, "next")
    editor.append(listed, target, step, "next")
    return listed


def _arc(target: str, origin: Any, key: str | int, editor: Editor) -> Node:
    arc = editor.map(origin, key)
    editor.put(arc, "step", target, origin, key)
    return arc


def _router_mode(step: Node, editor: Editor) -> None:
    router = step["next"]
    spec = router.get("spec") if isinstance(router, dict) else None
    if isinstance(spec, dict) and spec.get("mode") == "all":
        editor.put(spec, "mode", "inclusive", spec, "mode")


def _event_names(step: Node) -> None:
    """`event.name` has one name for each event."""
    _each_text(step, guards.in_words_of_the_log)


def _each_text(node: Any, change: Callable[[str], str]) -> None:
    """In place, wherever templates may stand."""
    for key in node if isinstance(node, dict) else range(len(node)):
        value = node[key]
        if isinstance(value, dict | list):
            _each_text(value, change)
        elif isinstance(value, str) and "event." in value and key != "code":
            node[key] = change(value)


def admit(step: Node, editor: Editor) -> None:
    """`admit: […]` is `admit: {rules: […]}`; a bare guard is not guessed at."""
    spec = step.get("spec")
    policy = spec.get("policy") if isinstance(spec, dict) else None
    if not isinstance(policy, dict):
        return
    if isinstance(policy.get("admit"), list):
        rules = editor.map(policy, "admit")
        editor.put(rules, "rules", policy["admit"], policy, "admit")
        editor.put(policy, "admit", rules, policy, "admit")
    given = policy.get("admit")
    if isinstance(given, dict):
        if "else" in given and isinstance(given.get("rules"), list):
            last = editor.map(given, "else")
            editor.move(given, "else", last)
            editor.append(given["rules"], last, given, "rules")
        for rule in maps(given.get("rules")):
            if "when" in rule and "else" in rule:
                _admit_else(given["rules"], rule, editor)
            spell_out_else(rule, editor)


def _admit_else(rules: Nodes, rule: Node, editor: Editor) -> None:
    """`{when, then, else}` in one rule is two rules."""
    at = next(index for index, item in enumerate(rules) if item is rule)
    last = editor.map(rule, "else")
    editor.put(last, "else", rule["else"], rule, "else")
    del rule["else"]
    spell_out_else(last, editor)
    editor.insert(rules, at + 1, last, rule)
