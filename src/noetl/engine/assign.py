"""Assignments: `ctx.x` and a bare name change the execution's variables, `step.y` and `iter.y` the activation's scratch."""

from typing import Any

from noetl.model.envelope import Selected

REFERENCE = "$reference"  # a value too large for the control plane: {"$reference": uri}


def split(name: str) -> tuple[str, tuple[str, ...]]:
    """`ctx` or `scratch`, and the path below it."""
    root, *rest = name.split(".")
    if rest and root in ("ctx", "vars"):
        return "ctx", tuple(rest)
    if rest and root in ("step", "iter"):
        return "scratch", tuple(rest)
    return "ctx", (root, *rest)


def assign(where: dict[str, Any], scope: str, values: dict[str, Any]) -> dict[str, Any]:
    """A copy of `where` with every assignment that concerns `scope`."""
    if not values:
        return where
    changed = where
    for name, value in values.items():
        root, path = split(name)
        if root == scope:
            changed = _put(changed, path, value)
    return changed


def _put(where: dict[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    head, *rest = path
    if not rest:
        return {**where, head: value}
    inner = where.get(head)
    return {**where, head: _put(inner if isinstance(inner, dict) else {}, tuple(rest), value)}


def by_reference(selected: Selected) -> dict[str, str]:
    return {REFERENCE: selected.reference or ""}


def is_reference(value: Any) -> bool:
    return isinstance(value, dict) and len(value) == 1 and REFERENCE in value
