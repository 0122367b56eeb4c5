"""Names in templates that have another spelling today: `total` for `ctx.total` where a `set` assigns `total`, and `loop_index`
for `loop.index`. A name that means something else where it stands keeps its meaning."""

from collections.abc import Iterator, Mapping
from typing import Any

from noetl.playbook.dialect.editor import Editor, Node, maps, text_of
from noetl.playbook.functions import GLOBALS
from noetl.playbook.respelling import respell
from noetl.playbook.scopes import ACTIVATION, EVERYWHERE, ITERATION, OUTCOME, PIPELINE

_LANGUAGE = EVERYWHERE | ACTIVATION | OUTCOME | PIPELINE | ITERATION | frozenset(GLOBALS)
_LOOP_INDEX = {"loop_index": "loop.index"}
_PER_ITEM = ("input", "tool")  # keys of a looping step that are rendered for each item
_NOT_RENDERED = {
    "step": ("step", "desc"),
    "kind": ("kind", "name", "desc", "code"),
}  # keys of steps, and of tasks


def rewrite(document: Node, editor: Editor) -> None:
    steps = maps(document.get("workflow"))
    shared = [
        tool
        for entry in maps(document.get("workbook"))
        if isinstance(tool := entry.get("tool"), dict)
    ]
    everywhere = _keys(document.get("workload")) | {
        name for step in steps if (name := text_of(step, "step"))
    }
    spellings = _spellings(steps, shared, everywhere)
    for step in steps:
        editor.step = text_of(step, "step")
        own = _without(spellings, _own_names(step))
        outside = _without(own, frozenset(_LOOP_INDEX))
        inside = own if isinstance(step.get("loop"), dict) else outside
        for key in [key for key in step if key not in _NOT_RENDERED["step"]]:
            _respell(step, key, inside if key in _PER_ITEM else outside, editor)
    editor.step = None
    for tool in shared:
        _respell_texts(
            tool, _without(spellings, frozenset().union(*map(_own_names, steps))), editor
        )


def _spellings(steps: list[Node], shared: list[Node], everywhere: frozenset[str]) -> dict[str, str]:
    """Today's spelling of each name that no step and no workload key has."""
    bare = {target for target in _targets(steps, shared) if "." not in target}
    in_ctx = {name: f"ctx.{name}" for name in sorted(bare - _LANGUAGE)}
    found = {**in_ctx, **_LOOP_INDEX}
    return {
        name: spelling
        for name, spelling in found.items()
        if name not in everywhere and spelling.split(".")[0] not in everywhere
    }


def _without(spellings: Mapping[str, str], names: frozenset[str]) -> dict[str, str]:
    return {name: spelling for name, spelling in spellings.items() if name not in names}


# ---- the names of a playbook whose short forms are not spelled out ----


def _own_names(step: Node) -> frozenset[str]:
    """The iterator and the tasks of a step: they come before what a `set` assigns."""
    loop = step.get("loop")
    iterator = {text_of(loop, "iterator") or "item"} if isinstance(loop, dict) else set()
    tasks = {
        text_of(task, "name") or f"task_{index}"
        for index, task in enumerate(_tasks(step.get("tool")))
    }
    return frozenset(iterator | tasks)


def _tasks(tool: Any) -> list[Node]:
    return maps(tool) if isinstance(tool, list) else maps([tool])


def _targets(steps: list[Node], shared: list[Node]) -> Iterator[str]:
    """What the assignments of a playbook assign, as it is written."""
    for step in steps:
        yield from _keys(step.get("set"))
        for arc in _arcs(step.get("next")):
            yield from _keys(arc.get("set"))
    tasks = [task for step in steps for task in _tasks(step.get("tool"))]
    for task in [*tasks, *shared]:
        yield from _task_targets(task)


def _arcs(router: Any) -> list[Node]:
    listed = router.get("arcs", router) if isinstance(router, dict) else router
    return [listed] if isinstance(listed, dict) else maps(listed)


def _task_targets(task: Node) -> Iterator[str]:
    yield from _keys(task.get("set"))
    spec = task.get("spec")
    policy = spec.get("policy") if isinstance(spec, dict) else None
    for rule in maps(policy.get("rules") if isinstance(policy, dict) else policy):
        for branch in (rule.get("then"), rule.get("else")):
            inner = branch.get("then", branch) if isinstance(branch, dict) else None
            yield from _keys(inner.get("set")) if isinstance(inner, dict) else ()
    page = spec.get("paginate") if isinstance(spec, dict) else None
    collect = page.get("collect") if isinstance(page, dict) else None
    if isinstance(collect, dict) and (into := text_of(collect, "into")) is not None:
        yield into


def _keys(value: Any) -> frozenset[str]:
    return frozenset(value) if isinstance(value, dict) else frozenset()


# ---- texts ----


def _respell_texts(node: Any, spellings: Mapping[str, str], editor: Editor) -> None:
    if isinstance(node, dict):
        left_out = {key for mark, keys in _NOT_RENDERED.items() if mark in node for key in keys}
        for key in [key for key in node if key not in left_out]:
            _respell(node, _respell_key(node, key, spellings, editor), spellings, editor)
    elif isinstance(node, list):
        for index in range(len(node)):
            _respell(node, index, spellings, editor)


def _respell_key(node: Node, key: str, spellings: Mapping[str, str], editor: Editor) -> str:
    changed = respell(key, spellings) if "{{" in key else None
    if changed is None or changed.text in node:
        return key
    _note(node, key, changed.names, spellings, editor)
    editor.rename(node, key, changed.text)
    return changed.text


def _respell(node: Any, key: str | int, spellings: Mapping[str, str], editor: Editor) -> None:
    value = node[key]
    if not isinstance(value, str):
        _respell_texts(value, spellings, editor)
        return
    changed = respell(value, spellings)
    if changed is not None:
        _note(node, key, changed.names, spellings, editor)
        editor.respell(node, key, changed)


def _note(
    node: Any, key: str | int, names: list[str], spellings: Mapping[str, str], editor: Editor
) -> None:
    for name in names:
        editor.note(node, key, f"`{name}` is now `{spellings[name]}`")
