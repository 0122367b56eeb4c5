"""Older spellings of `next`: guards with branches, `input` on an arc, the mode beside the arcs."""

from typing import Any

from noetl.playbook.dialect.editor import Editor, Node, Nodes, list_maps
from noetl.playbook.dialect.tasks import rename_older_key, rewrite_assignments
from noetl.playbook.findings import Code

_ARGS = ("input", "with", "payload")


def rewrite(step: Node, editor: Editor) -> None:
    router = step.get("next")
    if isinstance(router, dict) and "mode" in router:
        editor.add_note(router, "mode", "`next.mode` is now `next.spec.mode`")
        editor.move(router, "mode", editor.ensure_map(router, "spec", origin="mode"))
    if isinstance(router, dict) and isinstance(router.get("arcs"), list):
        _flatten_branches(router, "arcs", editor)
        _rewrite_arcs(router["arcs"], editor)
    elif isinstance(router, list):
        _flatten_branches(step, "next", editor)
        _rewrite_arcs(step["next"], editor)
    elif isinstance(router, dict) and "step" in router:
        _rewrite_arc(router, editor)


def _rewrite_arcs(listed: Nodes, editor: Editor) -> None:
    for arc in list_maps(listed):
        _rewrite_arc(arc, editor)


def _rewrite_arc(arc: Node, editor: Editor) -> None:
    for name in _ARGS:
        rename_older_key(arc, name, "args", editor)
    rewrite_assignments(arc, editor)


def _flatten_branches(holder: Node, key: str, editor: Editor) -> None:
    """Rewrite `[{when, then: [a, b]}, {else: [c]}]` to a flat list of arcs."""
    listed: Nodes = holder[key]
    if not any(_is_branch(item) for item in listed):
        return
    editor.add_note(holder, key, "`when/then/else` in `next` is now a list of arcs `{step, when}`")
    flat = editor.make_seq(holder, key)
    last = editor.make_seq(holder, key)
    for index, item in enumerate(listed):
        if not _is_branch(item):
            editor.append(flat, item, listed, index)
            continue
        for arc in list_branch_targets(item.get("then"), item, "then", editor):
            if "when" in item and "when" not in arc:
                editor.put(arc, "when", item["when"], item, "when")
            editor.append(flat, arc, listed, index)
        for arc in list_branch_targets(item.get("else"), item, "else", editor):
            editor.append(last, arc, listed, index)
    for index, arc in enumerate(last):
        editor.append(flat, arc, last, index)
    editor.put(holder, key, flat, holder, key)


def _is_branch(item: Any) -> bool:
    if not isinstance(item, dict) or "step" in item:
        return False
    return "then" in item or "else" in item


def list_branch_targets(
    value: Any,
    origin: Node,
    key: str,
    editor: Editor,
) -> list[Node]:
    """The targets of a branch as arcs. A branch is a name, an arc, `{next: …}`, or a list of them."""
    if isinstance(value, str):
        arc = editor.make_map(origin, key)
        editor.put(arc, "step", value, origin, key)
        return [arc]
    if isinstance(value, dict) and "step" in value:
        _rewrite_arc(value, editor)
        return [value]
    if isinstance(value, dict):
        inner = "arcs" if "arcs" in value else "next"
        return list_branch_targets(value.get(inner), value, inner, editor)
    if isinstance(value, list):
        found: list[Node] = []
        for item in value:
            found += list_branch_targets(item, origin, key, editor)
        return found
    if key in origin:
        message = f"`{key}` names a step, an arc, or a list of them"
        editor.add_error(origin, key, Code.BAD_TYPE, message, "next: done")
    return []
