"""Which guards look at the outcome of their step: decided from the text of the guard, when the playbook is registered.

Only an arc with such a guard can handle a failure. `workload.mode == 'full'` is true of a step that failed as well as of one that
succeeded, so it says nothing about the failure, and the failure stands.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

from jinja2 import nodes

from noetl.playbook.selections import OWN_OUTPUT
from noetl.playbook.templates import parse

STATUS_OR_ERROR = frozenset({"status", "error"})
FACTS_OF_A_CALL = frozenset(
    {"http", "pg", "py", "meta", "context"}
)  # of `output`: they do not say whether it failed

Path: TypeAlias = tuple[str, ...]
Locals: TypeAlias = Mapping[
    str, Path | None
]  # names that the template sets itself, and what they stand for


def mentions_outcome(guard: Any, step: str) -> bool:
    """Whether the guard names `output.status`, `output.error`, `error`, `event.name`, or this step's `status` or `error`."""
    return any(_is_outcome(path, step) for path in paths_in(guard))


def mentions_facts_only(guard: Any, step: str) -> bool:
    """Whether it looks at facts of the call, such as `output.http.status`, without saying whether the call failed."""
    found = paths_in(guard)
    looks_at_facts = any(
        len(path) > 1 and path[0] in OWN_OUTPUT and path[1] in FACTS_OF_A_CALL for path in found
    )
    return looks_at_facts and not any(_is_outcome(path, step) for path in found)


def _is_outcome(path: Path, step: str) -> bool:
    root, member = path[0], path[1] if len(path) > 1 else None
    if root == "error":
        return True
    if root == "event":
        return member == "name"
    return (root in OWN_OUTPUT or root == step) and member in STATUS_OR_ERROR


def paths_in(guard: Any) -> frozenset[Path]:
    """Every access path of the guard that starts at a name of the scope, in each spelling that has a constant key."""
    if not isinstance(guard, str):
        return frozenset()
    tree = parse(guard).tree
    if tree is None:
        return frozenset()
    found: set[Path] = set()
    _walk(tree, {}, found)
    return frozenset(found)


def _walk(node: nodes.Node, names: Locals, found: set[Path]) -> Locals:
    """Collect the paths at and below a node. Returns the names that are set after it."""
    path = _path(node, names)
    if path is not None:
        found.add(path)
    if isinstance(node, nodes.Assign):
        _walk(node.node, names, found)
        return {**names, **_bound(node.target, _path(node.node, names))}
    if isinstance(node, nodes.For):
        _walk(node.iter, names, found)
        names = {**names, **_bound(node.target, None)}
    inside = names
    for child in node.iter_child_nodes():
        inside = _walk(child, inside, found)
    return inside if isinstance(node, nodes.Template | nodes.Output) else names


def _bound(target: nodes.Node, path: Path | None) -> dict[str, Path | None]:
    if isinstance(target, nodes.Name):
        return {target.name: path}
    return dict.fromkeys((name.name for name in target.find_all(nodes.Name)), None)


def _path(node: nodes.Node, names: Locals) -> Path | None:
    """`a.b`, `a['b']`, `a.get('b')` and `a | get('b')` are all the path (a, b)."""
    match node:
        case nodes.Name():
            return names.get(node.name, (node.name,))
        case nodes.Getattr():
            return _longer(_path(node.node, names), node.attr)
        case nodes.Getitem(arg=nodes.Const(value=str() as key)):
            return _longer(_path(node.node, names), key)
        case nodes.Filter(name="get", args=[nodes.Const(value=str() as key), *_]) if (
            node.node is not None
        ):
            return _longer(_path(node.node, names), key)
        case nodes.Call(
            node=nodes.Getattr(attr="get") as called, args=[nodes.Const(value=str() as key), *_]
        ):
            return _longer(_path(called.node, names), key)
        case _:
            return None


def _longer(path: Path | None, key: str) -> Path | None:
    return None if path is None else (*path, key)
