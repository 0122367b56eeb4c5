"""`sink` and `save`: data that is stored after success, rewritten to a storage task."""

from typing import Any

from noetl.playbook.dialect.editor import Editor, Node, Nodes, list_maps
from noetl.playbook.dialect.shorthand import expand_tasks
from noetl.playbook.findings import Code

_STATEMENTS = ("query", "command", "sql", "commands", "statement", "code")
_DATA = ("data", "args", "input", "with", "body", "payload", "rows", "value")


def rewrite(sink: Node, editor: Editor) -> None:
    """Rewrite any spelling of a sink to `{target: {kind, …}, data}`."""
    if isinstance(sink.get("tool"), dict):
        editor.rename(sink, "tool", "target")
    if isinstance(sink.get("storage"), dict):
        editor.rename(sink, "storage", "target")
    elif "storage" in sink:
        editor.rename(sink, "storage", "kind")
    _gather_target(sink, editor)
    target = sink["target"]
    for old, new in (
        ("type", "kind"),
        ("storage", "kind"),
        ("credential", "auth"),
        ("endpoint", "url"),
    ):
        if old in target and new not in target:
            editor.rename(target, old, new)
    _take_data(sink, target, editor)
    for name in _STATEMENTS:
        if name in target:
            message = f"a sink writes its data to a table, file or address; it has no `{name}`"
            editor.add_error(
                target,
                name,
                Code.OLD_FORM,
                message,
                "make it a task of the pipeline, or give `table` and `mode`",
            )
            del target[name]


def _take_data(sink: Node, target: Node, editor: Editor) -> None:
    for holder in (sink, target):
        for name in _DATA:
            if name in holder and "data" not in sink:
                editor.move(holder, name, sink, "data")


def _gather_target(sink: Node, editor: Editor) -> None:
    if isinstance(sink.get("target"), dict):
        for key in [key for key in sink if key not in ("target", *_DATA)]:
            editor.move(sink, key, sink["target"])
        return
    keys = [key for key in sink if key not in _DATA]
    first = next(iter(keys), None)
    target = editor.make_map(sink, first)
    for key in keys:
        editor.move(sink, key, target)
    editor.put(sink, "target", target, sink, first or "data")


def rewrite_step_sink(step: Node, editor: Editor) -> None:
    """Rewrite a step's own `sink` (or v1 `save`)."""
    for name in ("save", "sink"):
        if name not in step:
            continue
        editor.add_note(
            step, name, f"`{name}` is now a task of kind `sink` at the end of the pipeline"
        )
        listed = expand_tasks(step, editor)
        for sink in _list_sinks(step[name]):
            append_task(listed, sink, step, name, editor)
        if not _is_well_formed(step[name]):
            editor.add_error(
                step,
                name,
                Code.BAD_TYPE,
                f"`{name}` must be a mapping",
                "sink: {tool: {kind, table}, data}",
            )
        del step[name]


def _is_well_formed(given: Any) -> bool:
    if isinstance(given, dict):
        return True
    found = list_maps(given)
    return bool(found) and len(found) == len(given)


def _list_sinks(given: Any) -> list[Node]:
    if isinstance(given, dict):
        return [given]
    return list_maps(given)


def append_task(
    listed: Nodes,
    sink: Node,
    origin: Any,
    key: str | int,
    editor: Editor,
) -> Node:
    """Append the sink as a named task at the end of `listed`."""
    rewrite(sink, editor)
    task = editor.make_map(origin, key)
    editor.put(task, "name", find_free_name(listed, "sink"), origin, key)
    editor.put(task, "kind", "sink", origin, key)
    for name in ("target", "data"):
        if name in sink:
            editor.move(sink, name, task)
    for name in list(sink):
        editor.move(sink, name, task)  # the model refuses keys that do not belong here
    editor.append(listed, task, origin, key)
    return task


def find_free_name(listed: Nodes, stem: str) -> str:
    used_names = {task.get("name") for task in list_maps(listed)}
    numbered = [f"{stem}_{index}" for index in range(1, len(used_names) + 1)]
    return next(name for name in [stem, *numbered] if name not in used_names)
