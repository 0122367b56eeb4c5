"""Assignments (`set`): which name changes what, on the server and on a worker alike.

`ctx.x`, `vars.x` and a bare name change the execution's variables; `step.y` and `iter.y` are scratch of the activation; `state.z`
is a value of the playbook that outlives the execution. A list or map of a payload is a link: `{"$reference": {ref_id, type, uri,
rows, …}}`; in older logs it has the address alone. `state` holds none: its values stand in the events.

Only NoETL makes links. Data from outside (a workload, a signal, a literal of the playbook) that looks like one is wrapped before
it is stored beside links, `{"$literal": data}`, and unwrapped where links are followed: no data can name a stored value.
"""

from typing import Any

import msgspec

from noetl.model.ids import RefId
from noetl.model.reference import Reference

REFERENCE = "$reference"
LITERAL = "$literal"


def full_name(target: str) -> str:
    """The target with its root spelled out: ctx.x, step.y, iter.y or state.z."""
    root, dot, rest = target.partition(".")
    if dot and root in ("ctx", "step", "iter", "state"):
        return target
    return f"ctx.{rest}" if dot and root == "vars" else f"ctx.{target}"


def is_state(target: str) -> bool:
    """Whether it is a value of the playbook: those stand in events as they are, at most 4 KB of scalars."""
    return full_name(target).startswith("state.")


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


def found_at(where: Any, path: tuple[str, ...]) -> Any:
    """The value at the path; None where there is none."""
    for part in path:
        where = where.get(part) if isinstance(where, dict) else None
    return where


def assign_ctx(where: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    return _assign(where, ("ctx",), values)


def state_writes(known: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """The state values that these assignments make of the known ones, by name: a path below a name changes a part of its map."""
    made: dict[str, Any] = {}
    for target, value in values.items():
        if not target.startswith("state."):
            continue
        _, path = root_of(target)
        name = path[0]
        changed = placed({name: made.get(name, known.get(name))}, path, value)
        made[name] = changed[name]
    return made


def assign_scratch(where: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    return _assign(where, ("step", "iter"), values)


def _assign(
    where: dict[str, Any], roots: tuple[str, ...], values: dict[str, Any]
) -> dict[str, Any]:
    for target, value in values.items():
        root, path = root_of(full_name(target))
        if root in roots:
            where = placed(where, path, value)
    return where


def is_reference(value: Any) -> bool:
    return isinstance(value, dict) and len(value) == 1 and REFERENCE in value


def link_to(reference: Reference) -> dict[str, Any]:
    """The reference as a variable holds it."""
    return {REFERENCE: msgspec.to_builtins(reference) if reference.ref_id else reference.uri}


def linked(value: dict[str, Any]) -> Reference:
    """The reference that a link holds. Of an older link only the address is known: its checksum is not checked."""
    found = value[REFERENCE]
    if isinstance(found, str):
        return Reference(ref_id=RefId(""), type="kv", uri=found)
    return msgspec.convert(found, Reference)


def wrapped(data: Any) -> Any:
    """Plain data as it may stand beside links: every map in it that looks like a link, or like a wrapped map, is wrapped. Lists
    are not looked into, because links are not looked for in lists."""
    if not isinstance(data, dict):
        return data
    if len(data) == 1 and (REFERENCE in data or LITERAL in data):
        return {LITERAL: data}
    return {name: wrapped(part) for name, part in data.items()}


def is_wrapped(value: Any) -> bool:
    return isinstance(value, dict) and len(value) == 1 and LITERAL in value


def unwrapped(value: Any) -> Any:
    """What `wrapped` was given. Links stay."""
    if not isinstance(value, dict):
        return value
    if is_wrapped(value):
        return value[LITERAL]
    return {name: unwrapped(part) for name, part in value.items()}
