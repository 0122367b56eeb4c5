"""`sink` and `save`: what is stored after success, as a storage task."""

from typing import Any

from noetl.playbook.dialect.editor import Editor, Node, Nodes, maps
from noetl.playbook.dialect.shorthand import tasks
from noetl.playbook.findings import Code

_STATEMENTS = ("query", "command", "sql", "commands", "statement", "code")
_DATA = ("data", "args", "input", "with", "body", "payload", "rows", "value")


def rewrite(sink: Node, editor: Editor) -> None:
    """Any spelling of a sink as `{target: {kind, …}, data}`."""
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
            editor.fault(
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
    target = editor.map(sink, keys[0] if keys else None)
    for key in keys:
        editor.move(sink, key, target)
    editor.put(sink, "target", target, sink, keys[0] if keys else "data")


def to_step(step: Node, editor: Editor) -> None:
    """A step's own `sink` (or v1 `save`)."""
    for name in ("save", "sink"):
        if name not in step:
            continue
        editor.note(step, name, f"`{name}` is now a task of kind `sink` at the end of the pipeline")
        listed = tasks(step, editor)
        for sink in _each(step[name]):
            append_task(listed, sink, step, name, editor)
        if not _well_formed(step[name]):
            editor.fault(
                step,
                name,
                Code.BAD_TYPE,
                f"`{name}` must be a mapping",
                "sink: {tool: {kind, table}, data}",
            )
        del step[name]


def _well_formed(given: Any) -> bool:
    found = _each(given)
    return bool(found) and (isinstance(given, dict) or len(found) == len(given))


def _each(given: Any) -> list[Node]:
    return [given] if isinstance(given, dict) else maps(given)


def append_task(listed: Nodes, sink: Node, origin: Any, key: str | int, editor: Editor) -> Node:
    """The sink as a named task at the end of `listed`."""
    rewrite(sink, editor)
    task = editor.map(origin, key)
    editor.put(task, "name", fresh_name(listed, "sink"), origin, key)
    editor.put(task, "kind", "sink", origin, key)
    for name in ("target", "data"):
        if name in sink:
            editor.move(sink, name, task)
    for name in list(sink):
        editor.move(sink, name, task)  # the model names what does not belong
    editor.append(listed, task, origin, key)
    return task


def fresh_name(listed: Nodes, stem: str) -> str:
    taken = {item.get("name") for item in listed if isinstance(item, dict)}
    names = (stem if index == 0 else f"{stem}_{index}" for index in range(len(taken) + 1))
    return next(name for name in names if name not in taken)
