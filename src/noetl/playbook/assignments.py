"""Assignments (`set`): which name changes what, on the server and on a worker alike.

`ctx.x`, `vars.x` and a bare name change the execution's variables; `step.y` and `iter.y` are scratch of the activation. A value
too large for the control plane is a reference: `{"$reference": uri}`.
"""

from typing import Any

REFERENCE = "$reference"


def full_name(target: str) -> str:
    """The target with its root spelled out: ctx.x, step.y or iter.y."""
    root, dot, rest = target.partition(".")
    if dot and root in ("ctx", "step", "iter"):
        return target
    return f"ctx.{rest}" if dot and root == "vars" else f"ctx.{target}"


def root_of(name: str) -> tuple[str, tuple[str, ...]]:
    """The root of a full name, and the path below it."""
    root, *path = name.split(".")
    return root, tuple(path)


def placed(where: dict[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    """A copy of `where` with the value at the path; what is not a map on the way is replaced by one."""
    head, *rest = path
    if not rest:
        return {**where, head: value}
    inner = where.get(head)
    return {**where, head: placed(inner if isinstance(inner, dict) else {}, tuple(rest), value)}


def assign_ctx(where: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    return _assign(where, ("ctx",), values)


def assign_scratch(where: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    return _assign(where, ("step", "iter"), values)


def _assign(where: dict[str, Any], roots: tuple[str, ...], values: dict[str, Any]) -> dict[str, Any]:
    for target, value in values.items():
        root, path = root_of(full_name(target))
        if root in roots:
            where = placed(where, path, value)
    return where


def is_reference(value: Any) -> bool:
    return isinstance(value, dict) and len(value) == 1 and REFERENCE in value
