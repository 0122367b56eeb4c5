"""`set`: which name changes what. A bare name and `vars.x` are `ctx.x`; `step.y` and `iter.y` are scratch."""

from typing import Any


def full_name(target: str) -> str:
    root, dot, rest = target.partition(".")
    if dot and root in ("ctx", "step", "iter"):
        return target
    return f"ctx.{rest}" if dot and root == "vars" else f"ctx.{target}"


def root_of(name: str) -> tuple[str, tuple[str, ...]]:
    root, *path = name.split(".")
    return root, tuple(path)


def placed(where: dict[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    """A copy of `where` with the value at the path; what is not a map on the way is replaced by one."""
    head, *rest = path
    if not rest:
        return {**where, head: value}
    inner = where.get(head)
    return {**where, head: placed(inner if isinstance(inner, dict) else {}, tuple(rest), value)}
