"""Finds the guards that test the outcome of their step, when a playbook is registered.

Only an arc with such a guard can handle a failure. A guard like `workload.mode == 'full'` may be
true after a success and after a failure alike. So it handles no failure.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

from jinja2 import nodes

from noetl.template.parsing import parse
from noetl.template.selections import OWN_OUTPUT

STATUS_OR_ERROR = frozenset({"status", "error"})
# The names of `output` that exist after any outcome.
FACTS_OF_A_CALL = frozenset({"http", "pg", "py", "meta", "context"})

Path: TypeAlias = tuple[str, ...]
Locals: TypeAlias = Mapping[str, Path | None]  # names that the template sets, and their paths


def mentions_outcome(guard: Any, step: str) -> bool:
    """Whether the guard tests the outcome of the step.

    It does if it names `output.status`, `output.error`, `error`, `event.name`, or `status` or
    `error` of the step.
    """
    return any(_is_outcome(path, step) for path in find_guard_paths(guard))


def mentions_facts_only(guard: Any, step: str) -> bool:
    """Whether the guard tests facts such as `output.http.status`, but not the outcome."""
    paths = find_guard_paths(guard)
    if any(_is_outcome(path, step) for path in paths):
        return False
    return any(_is_fact_of_call(path) for path in paths)


def _is_outcome(path: Path, step: str) -> bool:
    root = path[0]
    if root == "error":
        return True
    if len(path) == 1:
        return False
    if root == "event":
        return path[1] == "name"
    return (root in OWN_OUTPUT or root == step) and path[1] in STATUS_OR_ERROR


def _is_fact_of_call(path: Path) -> bool:
    return len(path) > 1 and path[0] in OWN_OUTPUT and path[1] in FACTS_OF_A_CALL


def find_guard_paths(guard: Any) -> frozenset[Path]:
    """Return the guard's access paths from names of the scope, up to a computed key."""
    if not isinstance(guard, str):
        return frozenset()
    tree = parse(guard).tree
    if tree is None:
        return frozenset()
    found: set[Path] = set()
    _collect_paths(tree, {}, found)
    return frozenset(found)


def _collect_paths(node: nodes.Node, names: Locals, found: set[Path]) -> Locals:
    """Add the paths at and below a node to `found`. Returns the names that are set after it."""
    path = _find_access_path(node, names)
    if path is not None:
        found.add(path)
    if isinstance(node, nodes.Assign):
        _collect_paths(node.node, names, found)
        path_of_value = _find_access_path(node.node, names)
        return {**names, **_bind_targets(node.target, path_of_value)}
    if isinstance(node, nodes.For):
        _collect_paths(node.iter, names, found)
        names = {**names, **_bind_targets(node.target, None)}
    inside = names
    for child in node.iter_child_nodes():
        inside = _collect_paths(child, inside, found)
    if isinstance(node, nodes.Template | nodes.Output):
        return inside
    return names


def _bind_targets(target: nodes.Node, path: Path | None) -> dict[str, Path | None]:
    if isinstance(target, nodes.Name):
        return {target.name: path}
    targets = [name.name for name in target.find_all(nodes.Name)]
    return dict.fromkeys(targets, None)


def _find_access_path(node: nodes.Node, names: Locals) -> Path | None:
    """Return (a, b) for `a.b`, `a['b']`, `a.get('b')` and `a | get('b')`; None for other nodes."""
    match node:
        case nodes.Name():
            return names.get(node.name, (node.name,))
        case nodes.Getattr():
            return _extend_path(_find_access_path(node.node, names), node.attr)
        case nodes.Getitem(arg=nodes.Const(value=str() as key)):
            return _extend_path(_find_access_path(node.node, names), key)
        case nodes.Filter(name="get", args=[nodes.Const(value=str() as key), *_]) if (
            node.node is not None
        ):
            return _extend_path(_find_access_path(node.node, names), key)
        case nodes.Call(
            node=nodes.Getattr(attr="get") as called, args=[nodes.Const(value=str() as key), *_]
        ):
            return _extend_path(_find_access_path(called.node, names), key)
        case _:
            return None


def _extend_path(path: Path | None, key: str) -> Path | None:
    return None if path is None else (*path, key)
