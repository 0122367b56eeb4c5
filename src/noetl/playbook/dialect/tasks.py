"""Older spellings of a tool: its kind, its fields, labels."""

from typing import Any

from noetl.playbook.dialect import older_keys, retries, sinks
from noetl.playbook.dialect.editor import Editor, Node, get_member, get_policy_rules, list_maps
from noetl.playbook.dialect.shorthand import unlabel_task
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
        _rewrite_label(step, "tool", editor)
        rewrite(step["tool"], editor)
    elif isinstance(tool, list):
        for index, item in enumerate(tool):
            if isinstance(item, dict):
                _rewrite_label(tool, index, editor)
                rewrite(tool[index], editor)


def _rewrite_label(holder: Any, key: Any, editor: Editor) -> None:
    item = holder[key]
    if len(item) == 1:
        ((label, body),) = item.items()
        if isinstance(body, dict) and label not in _TOOL and not _TOOL.isdisjoint(body):
            rename_older_key(body, "type", "kind", editor)
            editor.add_note(item, label, f"the label `{label}:` is written `name: {label}`")
            named = unlabel_task(item, editor)
            if named is not None:
                holder[key] = named


def rewrite(task: Node, editor: Editor) -> None:
    if isinstance(task.get("tool"), dict):
        _unwrap_tool(task, editor)
    for old, new in COMMON.items():
        rename_older_key(task, old, new, editor)
    kind = task.get("kind")
    if isinstance(kind, str) and kind in KINDS:
        editor.add_note(task, "kind", f"the kind `{kind}` is now `{KINDS[kind]}`")
        editor.put(task, "kind", KINDS[kind], task, "kind")
    older_keys.drop_artifact_action(task, editor)
    renamed_fields = FIELDS.get(str(task.get("kind")), {})
    for node in list_maps([task, task.get("spec")]):
        for old, new in renamed_fields.items():
            rename_older_key(node, old, new, editor)
    older_keys.move_task_fields(task, editor)
    older_keys.rewrite_libraries(task, editor)
    older_keys.drop_connection_pool(task, editor)
    if "policy" in task:
        editor.add_note(task, "policy", "`policy` of a task stands under `spec`")
        editor.move(task, "policy", editor.ensure_map(task, "spec", origin="policy"))
    rewrite_assignments(task, editor)
    _rewrite_rule_assignments(task, editor)
    if "retry" in task:
        retries.rewrite(task, [task], editor)
    _rewrite_paginated_sink(task, editor)


def _unwrap_tool(task: Node, editor: Editor) -> None:
    """Rewrite `- name: x, tool: {kind: …}` in a list of tasks."""
    inner = task["tool"]
    if set(task) - {"name", "tool"} or not isinstance(inner, dict):
        return
    editor.add_note(task, "tool", "a task holds its `kind` directly, without `tool`")
    del task["tool"]
    for key in list(inner):
        editor.move(inner, key, task)


def rename_older_key(node: Node, old: str, new: str, editor: Editor) -> None:
    if old not in node:
        return
    if new in node:
        message = f"`{old}` is an older spelling of `{new}`, and both are here"
        editor.add_error(node, old, Code.DUPLICATE_KEY, message, f"keep `{new}`")
        del node[old]
        return
    editor.add_note(node, old, f"`{old}` is now `{new}`")
    editor.rename(node, old, new)


def rewrite_assignments(node: Node, editor: Editor) -> None:
    """`vars: {x: …}` and `set: {vars.x: …}` become `set: {ctx.x: …}`."""
    if isinstance(node.get("vars"), dict):
        editor.add_note(node, "vars", "`vars: {x: …}` is now `set: {ctx.x: …}`")
        variables = node["vars"]
        if "set" not in node:
            editor.rename(node, "vars", "set")
        else:
            del node["vars"]
        target = editor.ensure_map(node, "set")
        for name in list(variables):
            _move_variable(variables, name, target, editor)
    given: Any = node.get("set")
    if not isinstance(given, dict):
        return
    for name in list(given):
        if name.startswith("vars."):
            editor.add_note(given, name, f"`{name}` is now `ctx.{name[5:]}`")
            editor.rename(given, name, f"ctx.{name[5:]}")


def _move_variable(variables: Node, name: str, target: Node, editor: Editor) -> None:
    key = name
    if not name.startswith(("ctx.", "iter.", "step.")):
        key = f"ctx.{name.removeprefix('vars.')}"
    if variables is target:
        if key != name:
            editor.rename(target, name, key)
    elif key in target or key.removeprefix("ctx.") in target:
        editor.add_error(
            variables,
            name,
            Code.DUPLICATE_KEY,
            f"`vars` and `set` both assign `{key}`",
            "keep one of them",
        )
    else:
        editor.move(variables, name, target, key)


def _rewrite_rule_assignments(task: Node, editor: Editor) -> None:
    for rule in list_maps(get_policy_rules(task.get("spec"))):
        branch = rule.get("then", rule.get("else"))
        if isinstance(branch, dict):
            rewrite_assignments(branch, editor)


def _rewrite_paginated_sink(task: Node, editor: Editor) -> None:
    page = get_member(task.get("spec"), "paginate")
    sink = get_member(page, "sink")
    if isinstance(sink, dict):
        sinks.rewrite(sink, editor)
