"""Keys of older playbooks with another name, another place or no meaning today.

Each use is a note with the current spelling. A key is dropped only if that cannot change a result;
otherwise it is refused with the reason.
"""

from typing import Any

from noetl.playbook.dialect.editor import Editor, Node
from noetl.playbook.findings import Code
from noetl.playbook.model import BUILT_IN_TASKS, Task, TaskSpec

_STORAGE_HINTS = frozenset({"store", "format", "scope", "ttl", "partition_by"})


def rewrite_tags(document: Node, editor: Editor) -> None:
    """`metadata.tags: [a, b]` becomes labels."""
    metadata = document.get("metadata")
    if not isinstance(metadata, dict) or "tags" not in metadata:
        return
    given = metadata["tags"]
    names = given.split(",") if isinstance(given, str) else given
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        editor.add_error(
            metadata, "tags", Code.BAD_TYPE, "`tags` is a list of words", "labels: {team: data}"
        )
        del metadata["tags"]
        return
    editor.add_note(metadata, "tags", '`metadata.tags: [a]` is now `metadata.labels: {a: "true"}`')
    labels = editor.ensure_map(metadata, "labels", origin="tags")
    for name in names:
        if name.strip() and name.strip() not in labels:
            editor.put(labels, name.strip(), "true", metadata, "tags")
    del metadata["tags"]


def move_task_fields(task: Node, editor: Editor) -> None:
    """Move fields of the task out of its `spec`: `spec: {url: …}`, `spec: {code: …}`."""
    spec = task.get("spec")
    model = BUILT_IN_TASKS.get(str(task.get("kind")), Task)
    if isinstance(spec, dict):
        fields = model.model_fields.keys() - TaskSpec.model_fields.keys() - {"kind", "name"}
        for key in [key for key in spec if key in fields and key not in task]:
            editor.add_note(spec, key, f"`{key}` stands in the task itself, not below `spec`")
            editor.move(spec, key, task)
        if not spec:
            del task["spec"]


def rewrite_libraries(task: Node, editor: Editor) -> None:
    """`libs: {np: numpy}` of a python task becomes imports at the top of its code."""
    if task.get("kind") != "python" or "libs" not in task:
        return
    modules = task["libs"]
    if isinstance(modules, list):
        modules = {name: name for name in modules}
    if modules and not _are_importable(modules):
        message = "`libs` maps names to modules, as in `libs: {np: numpy}`"
        editor.add_error(
            task, "libs", Code.BAD_TYPE, message, "write the imports at the top of `code`"
        )
        del task["libs"]
        return
    if modules and not isinstance(task.get("code"), str):
        editor.add_error(
            task,
            "libs",
            Code.BAD_VALUE,
            "`libs` needs `code`",
            "a script imports what it needs itself",
        )
        del task["libs"]
        return
    editor.add_note(
        task, "libs", "`libs: {np: numpy}` is now `import numpy as np` at the top of `code`"
    )
    if modules:
        editor.put(task, "code", _make_imports(modules) + task["code"], task, "code")
    del task["libs"]


def _are_importable(modules: Any) -> bool:
    if not isinstance(modules, dict):
        return False
    return all(_is_importable(name, module) for name, module in modules.items())


def _is_importable(*names: Any) -> bool:
    for name in names:
        if not isinstance(name, str):
            return False
        if not all(part.isidentifier() for part in name.split(".")):
            return False
    return True


def _make_imports(modules: dict[str, str]) -> str:
    lines: list[str] = []
    for name, module in modules.items():
        if name == module:
            lines.append(f"import {module}\n")
        else:
            lines.append(f"import {module} as {name}\n")
    return "".join(lines)


def drop_connection_pool(task: Node, editor: Editor) -> None:
    """`pool` of a postgres task was the size of its connection pool. Workers share connections, so
    it has no effect and is removed.
    """
    if task.get("kind") != "postgres" or "pool" not in task:
        return
    if isinstance(task["pool"], str):
        message = "`pool` of a postgres task sized its connections, and takes no text"
        editor.add_error(
            task,
            "pool",
            Code.BAD_VALUE,
            message,
            "which workers run a step: `spec: {pool: …}` of the step",
        )
        del task["pool"]
        return
    editor.add_note(
        task,
        "pool",
        "`pool` of a postgres task is not needed: a worker shares its connections; remove it",
    )
    del task["pool"]


def drop_artifact_action(task: Node, editor: Editor) -> None:
    """Remove `action`. `action: get` comes with `ref`, `action: put` with `data` or `value`; today
    the field alone says it.
    """
    if task.get("kind") != "artifact" or "action" not in task:
        return
    action = task["action"]
    field = _find_given_field(task, "put", "data", "value")
    if action in ("get", "fetch", "read") and "ref" in task:
        editor.add_note(task, "action", "`action: get` is not needed: `ref` says it; remove it")
    elif action in ("put", "store", "write") and field is not None:
        editor.add_note(task, "action", f"`action: put` with `{field}` is now `put: …`")
        if field != "put":
            editor.rename(task, field, "put")
    else:
        message = f"`action: {action}` of an artifact is not known"
        editor.add_error(task, "action", Code.BAD_VALUE, message, "`ref: …` reads, `put: …` stores")
    del task["action"]


def _find_given_field(task: Node, *names: str) -> str | None:
    return next((name for name in names if name in task), None)


def move_step_output(step: Node, editor: Editor) -> None:
    """Move storage hints in `output` of a step to its last task."""
    if "output" not in step:
        return
    last = _find_last_task(step.get("tool"))
    if last is None or "output" in last or not _are_hints(step["output"]):
        message = "`output` belongs to a task, where it says how its result is stored"
        editor.add_error(
            step, "output", Code.UNKNOWN_KEY, message, "tool: {…, output: {store: disk}}"
        )
        del step["output"]
        return
    editor.add_note(step, "output", "`output` of a step is now `output` of its last task")
    editor.move(step, "output", last)


def _find_last_task(tool: Any) -> Node | None:
    if isinstance(tool, list) and tool:
        tool = tool[-1]
    if isinstance(tool, dict):
        return tool
    return None


def _are_hints(output: Any) -> bool:
    return isinstance(output, dict) and not set(output) - _STORAGE_HINTS
