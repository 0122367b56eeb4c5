"""Names in templates with another spelling today.

`total` becomes `ctx.total` where a `set` assigns `total`, and `loop_index` becomes `loop.index`. A
name with another meaning at its place keeps its meaning.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from noetl.playbook.dialect.editor import (
    Editor,
    Node,
    as_list,
    get_member,
    get_policy_rules,
    get_text_member,
    list_maps,
)
from noetl.playbook.respelling import respell
from noetl.template.functions.globals import GLOBALS
from noetl.template.scopes import (
    ACTIVATION_NAMES,
    COMMON_NAMES,
    LOOP_ITEM_NAMES,
    OUTCOME_NAMES,
    PIPELINE_NAMES,
)

_LANGUAGE = (
    COMMON_NAMES
    | ACTIVATION_NAMES
    | OUTCOME_NAMES
    | PIPELINE_NAMES
    | LOOP_ITEM_NAMES
    | frozenset(GLOBALS)
)
_LOOP_INDEX = {"loop_index": "loop.index"}
_PER_ITEM = ("input", "tool")  # keys of a looping step that are rendered for each item
# Keys of steps (mappings with `step`) and of tasks (mappings with `kind`).
_NOT_RENDERED = {
    "step": ("step", "desc"),
    "kind": ("kind", "name", "desc", "code"),
}


def rewrite(document: Node, editor: Editor) -> None:
    steps = list_maps(document.get("workflow"))
    tools = [entry.get("tool") for entry in list_maps(document.get("workbook"))]
    shared = list_maps(tools)
    step_names = {get_text_member(step, "step") for step in steps}
    everywhere = _get_keys(document.get("workload")) | {name for name in step_names if name}
    spellings = _find_spellings(steps, shared, everywhere)
    for step in steps:
        _rewrite_step(step, spellings, editor)
    editor.step = None
    names_of_steps = frozenset().union(*map(_list_own_names, steps))
    for tool in shared:
        _respell_texts(tool, _leave_out(spellings, names_of_steps), editor)


def _rewrite_step(step: Node, spellings: Mapping[str, str], editor: Editor) -> None:
    editor.step = get_text_member(step, "step")
    own = _leave_out(spellings, _list_own_names(step))
    outside = _leave_out(own, frozenset(_LOOP_INDEX))
    inside = own if isinstance(step.get("loop"), dict) else outside
    for key in list(step):
        if key in _NOT_RENDERED["step"]:
            continue
        if key in _PER_ITEM:
            _respell_value(step, key, inside, editor)
        else:
            _respell_value(step, key, outside, editor)


def _find_spellings(
    steps: list[Node], shared: list[Node], everywhere: frozenset[str]
) -> dict[str, str]:
    """The current spelling of each name that is neither a step nor a workload key."""
    bare = {target for target in _iterate_targets(steps, shared) if "." not in target}
    in_ctx = {name: f"ctx.{name}" for name in sorted(bare - _LANGUAGE)}
    spellings = {**in_ctx, **_LOOP_INDEX}
    return {
        name: spelling
        for name, spelling in spellings.items()
        if name not in everywhere and spelling.split(".")[0] not in everywhere
    }


def _leave_out(spellings: Mapping[str, str], names: frozenset[str]) -> dict[str, str]:
    return {name: spelling for name, spelling in spellings.items() if name not in names}


# ---- the names of a playbook; its short forms are not spelled out yet ----


def _list_own_names(step: Node) -> frozenset[str]:
    """The iterator and the tasks of a step. They hide names that a `set` assigns."""
    names = {
        get_text_member(task, "name") or f"task_{index}"
        for index, task in enumerate(_list_tasks(step.get("tool")))
    }
    loop = step.get("loop")
    if isinstance(loop, dict):
        names.add(get_text_member(loop, "iterator") or "item")
    return frozenset(names)


def _list_tasks(tool: Any) -> list[Node]:
    return list_maps(as_list(tool))


def _iterate_targets(steps: list[Node], shared: list[Node]) -> Iterator[str]:
    """The targets of all assignments, as they are written."""
    for step in steps:
        yield from _get_keys(step.get("set"))
        for arc in _list_arcs(step.get("next")):
            yield from _get_keys(arc.get("set"))
    tasks = [task for step in steps for task in _list_tasks(step.get("tool"))]
    for task in [*tasks, *shared]:
        yield from _iterate_task_targets(task)


def _list_arcs(router: Any) -> list[Node]:
    if isinstance(router, dict):
        router = router.get("arcs", router)
    if isinstance(router, dict):
        return [router]
    return list_maps(router)


def _iterate_task_targets(task: Node) -> Iterator[str]:
    yield from _get_keys(task.get("set"))
    spec = task.get("spec")
    for rule in list_maps(get_policy_rules(spec)):
        for branch in (rule.get("then"), rule.get("else")):
            if isinstance(branch, dict):
                branch = branch.get("then", branch)
            yield from _get_keys(get_member(branch, "set"))
    collect = get_member(get_member(spec, "paginate"), "collect")
    into = get_member(collect, "into")
    if isinstance(into, str):
        yield into


def _get_keys(value: Any) -> frozenset[str]:
    if isinstance(value, dict):
        return frozenset(value)
    return frozenset()


# ---- texts ----


def _respell_texts(node: Any, spellings: Mapping[str, str], editor: Editor) -> None:
    if isinstance(node, dict):
        left_out: set[str] = set()
        for mark, keys in _NOT_RENDERED.items():
            if mark in node:
                left_out.update(keys)
        for key in [key for key in node if key not in left_out]:
            new_key = _respell_key(node, key, spellings, editor)
            _respell_value(node, new_key, spellings, editor)
    elif isinstance(node, list):
        for index in range(len(node)):
            _respell_value(node, index, spellings, editor)


def _respell_key(
    node: Node,
    key: str,
    spellings: Mapping[str, str],
    editor: Editor,
) -> str:
    if "{{" not in key:
        return key
    changed = respell(key, spellings)
    if changed is None or changed.text in node:
        return key
    _note_names(node, key, changed.names, spellings, editor)
    editor.rename(node, key, changed.text)
    return changed.text


def _respell_value(
    node: Any,
    key: str | int,
    spellings: Mapping[str, str],
    editor: Editor,
) -> None:
    value = node[key]
    if not isinstance(value, str):
        _respell_texts(value, spellings, editor)
        return
    changed = respell(value, spellings)
    if changed is not None:
        _note_names(node, key, changed.names, spellings, editor)
        editor.respell_template(node, key, changed)


def _note_names(
    node: Any, key: str | int, names: list[str], spellings: Mapping[str, str], editor: Editor
) -> None:
    for name in names:
        editor.add_note(node, key, f"`{name}` is now `{spellings[name]}`")
