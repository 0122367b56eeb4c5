"""Older spellings of a tool: its kind, its fields, labels."""

from typing import Any

from noetl.playbook.dialect import older, retries, sinks
from noetl.playbook.dialect.editor import Editor, Node, get_member, maps, policy_rules
from noetl.playbook.dialect.shorthand import unlabel
from noetl.playbook.findings import Code

KINDS = {"result_fetch": "artifact", "resolve": "artifact"}
COMMON = {"type": "kind", "args": "input", "with": "input"}
_SQL = {"command": "query", "sql": "query", "commands": "query"}
FIELDS = {
    "http": {
        "endpoint": "url",
        "json": "body",
        "payload": "body",
        "data": "body",
        "verify_ssl": "verify",
    },
    "postgres": {**_SQL, "credential": "auth"},
    "duckdb": {**_SQL, "credential": "auth"},
    "playbook": {"payload": "input"},
    "shell": {"cmd": "cmds", "command": "cmds"},
    "artifact": {"reference": "ref"},
}
_TOOL = {"kind", "type"}


def rewrite_all(step: Node, editor: Editor) -> None:
    """Rewrite every task of a step, in any shape of `tool`. Keys that belong to the step are moved
    there.
    """
    tool: Any = step.get("tool")
    if isinstance(tool, dict):
        _label(step, "tool", editor)
        rewrite(step["tool"], editor)
    elif isinstance(tool, list):
        for index, item in enumerate(tool):
            if isinstance(item, dict):
                _label(tool, index, editor)
                rewrite(tool[index], editor)


def _label(holder: Any, key: Any, editor: Editor) -> None:
    item = holder[key]
    if len(item) == 1:
        ((label, body),) = item.items()
        if isinstance(body, dict) and label not in _TOOL and not _TOOL.isdisjoint(body):
            alias(body, "type", "kind", editor)
            editor.note(item, label, f"the label `{label}:` is written `name: {label}`")
            named = unlabel(item, editor)
            if named is not None:
                holder[key] = named


def rewrite(task: Node, editor: Editor) -> None:
    if isinstance(task.get("tool"), dict):
        _unwrap(task, editor)
    for old, new in COMMON.items():
        alias(task, old, new, editor)
    kind = task.get("kind")
    if isinstance(kind, str) and kind in KINDS:
        editor.note(task, "kind", f"the kind `{kind}` is now `{KINDS[kind]}`")
        editor.put(task, "kind", KINDS[kind], task, "kind")
    older.artifact_action(task, editor)
    renamed_fields = FIELDS.get(str(task.get("kind")), {})
    for node in maps([task, task.get("spec")]):
        for old, new in renamed_fields.items():
            alias(node, old, new, editor)
    older.task_fields(task, editor)
    older.libraries(task, editor)
    older.connection_pool(task, editor)
    if "policy" in task:
        editor.note(task, "policy", "`policy` of a task stands under `spec`")
        editor.move(task, "policy", editor.below(task, "spec", origin="policy"))
    assignments(task, editor)
    _rule_assignments(task, editor)
    if "retry" in task:
        retries.rewrite(task, [task], editor)
    _paginated_sink(task, editor)


def _unwrap(task: Node, editor: Editor) -> None:
    """Rewrite `- name: x, tool: {kind: …}` in a list of tasks."""
    inner = task["tool"]
    if set(task) - {"name", "tool"} or not isinstance(inner, dict):
        return
    editor.note(task, "tool", "a task holds its `kind` directly, without `tool`")
    del task["tool"]
    for key in list(inner):
        editor.move(inner, key, task)


def alias(node: Node, old: str, new: str, editor: Editor) -> None:
    if old not in node:
        return
    if new in node:
        message = f"`{old}` is an older spelling of `{new}`, and both are here"
        editor.fault(node, old, Code.DUPLICATE_KEY, message, f"keep `{new}`")
        del node[old]
        return
    editor.note(node, old, f"`{old}` is now `{new}`")
    editor.rename(node, old, new)


def assignments(node: Node, editor: Editor) -> None:
    """`vars: {x: …}` and `set: {vars.x: …}` become `set: {ctx.x: …}`."""
    if isinstance(node.get("vars"), dict):
        editor.note(node, "vars", "`vars: {x: …}` is now `set: {ctx.x: …}`")
        variables = node["vars"]
        if "set" not in node:
            editor.rename(node, "vars", "set")
        else:
            del node["vars"]
        target = editor.below(node, "set")
        for name in list(variables):
            _assign(variables, name, target, editor)
    given: Any = node.get("set")
    if not isinstance(given, dict):
        return
    for name in list(given):
        if name.startswith("vars."):
            editor.note(given, name, f"`{name}` is now `ctx.{name[5:]}`")
            editor.rename(given, name, f"ctx.{name[5:]}")


def _assign(variables: Node, name: str, target: Node, editor: Editor) -> None:
    key = name
    if not name.startswith(("ctx.", "iter.", "step.")):
        key = f"ctx.{name.removeprefix('vars.')}"
    if variables is target:
        if key != name:
            editor.rename(target, name, key)
    elif key in target or key.removeprefix("ctx.") in target:
        editor.fault(
            variables,
            name,
            Code.DUPLICATE_KEY,
            f"`vars` and `set` both assign `{key}`",
            "keep one of them",
        )
    else:
        editor.move(variables, name, target, key)


def _rule_assignments(task: Node, editor: Editor) -> None:
    for rule in maps(policy_rules(task.get("spec"))):
        branch = rule.get("then", rule.get("else"))
        if isinstance(branch, dict):
            assignments(branch, editor)


def _paginated_sink(task: Node, editor: Editor) -> None:
    page = get_member(task.get("spec"), "paginate")
    sink = get_member(page, "sink")
    if isinstance(sink, dict):
        sinks.rewrite(sink, editor)
