"""Assignments (`set`): what each target changes. The server and workers share these rules.

`ctx.x`, `vars.x` and a bare name change the execution's variables. `step.y` and `iter.y` are
scratch values of the activation. `state.z` is a value of the playbook that outlives the execution.
A variable holds a list or map of a payload as a link: `{"$reference": {ref_id, type, uri, rows,
…}}`. Links in older logs have only the address. `state` holds no links, because its values are part
of the events.

Only NoETL makes links. Data from outside (a workload, a signal, a literal of the playbook) may look
like a link. Such data is wrapped as `{"$literal": data}` before it is stored beside links, and
unwrapped where links are followed. So no data from outside can refer to a stored value.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from noetl.model.ids import RefId
from noetl.model.reference import Reference

LINK_KEY = "$reference"
LITERAL_KEY = "$literal"


def full_name(target: str) -> str:
    """Return the target with its root: ctx.x, step.y, iter.y or state.z."""
    root, dot, rest = target.partition(".")
    if dot and root in ("ctx", "step", "iter", "state"):
        return target
    if dot and root == "vars":
        return f"ctx.{rest}"
    return f"ctx.{target}"


def is_state(target: str) -> bool:
    """Whether the target is a state value. Events contain those: at most 4 KB of scalars."""
    return full_name(target).startswith("state.")


def split_full_name(name: str) -> tuple[str, tuple[str, ...]]:
    """Split a full name into its root and the path below it."""
    root, *path = name.split(".")
    return root, tuple(path)


def place_value(
    where: dict[str, Any],
    path: tuple[str, ...],
    value: Any,
) -> dict[str, Any]:
    """Return a copy of `where` with the value at the path.

    Anything on the way that is no map becomes one.
    """
    head, *rest = path
    if not rest:
        return {**where, head: value}
    inner = where.get(head)
    if not isinstance(inner, dict):
        inner = {}
    return {**where, head: place_value(inner, tuple(rest), value)}


def get_at_path(where: Any, path: tuple[str, ...]) -> Any:
    """Return the value at the path, or None if there is none."""
    for part in path:
        if not isinstance(where, dict):
            return None
        where = where.get(part)
    return where


def assign_ctx(where: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    return _assign_roots(where, ("ctx",), values)


def compute_state_writes(known: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """Return the new state values by name.

    `known` are the current values. A target such as `state.a.b` changes a part of the map `a`.
    """
    written: dict[str, Any] = {}
    for target, value in values.items():
        if not target.startswith("state."):
            continue
        _, path = split_full_name(target)
        name = path[0]
        current = written.get(name, known.get(name))
        changed = place_value({name: current}, path, value)
        written[name] = changed[name]
    return written


def assign_scratch(where: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    return _assign_roots(where, ("step", "iter"), values)


def _assign_roots(
    where: dict[str, Any],
    roots: tuple[str, ...],
    values: dict[str, Any],
) -> dict[str, Any]:
    for target, value in values.items():
        root, path = split_full_name(full_name(target))
        if root in roots:
            where = place_value(where, path, value)
    return where


def is_reference(value: Any) -> bool:
    return isinstance(value, dict) and len(value) == 1 and LINK_KEY in value


def make_link(reference: Reference) -> dict[str, Any]:
    """Return the link that a variable holds for this reference."""
    if not reference.ref_id:
        return {LINK_KEY: reference.uri}
    return {LINK_KEY: msgspec.to_builtins(reference)}


def read_link(value: dict[str, Any]) -> Reference:
    """Return the reference that a link holds. Older links have only an address and no checksum."""
    content = value[LINK_KEY]
    if isinstance(content, str):
        return Reference(ref_id=RefId(""), type="kv", uri=content)
    return msgspec.convert(content, Reference)


def wrap_links(data: Any) -> Any:
    """Wrap every map in the data that looks like a link or like a wrapped map.

    Lists stay as they are, because links in lists are never followed.
    """
    if not isinstance(data, dict):
        return data
    if len(data) == 1 and (LINK_KEY in data or LITERAL_KEY in data):
        return {LITERAL_KEY: data}
    return {name: wrap_links(part) for name, part in data.items()}


def is_wrapped(value: Any) -> bool:
    return isinstance(value, dict) and len(value) == 1 and LITERAL_KEY in value


def unwrap_links(value: Any) -> Any:
    """Undo `wrapped`. Links stay."""
    if not isinstance(value, dict):
        return value
    if is_wrapped(value):
        return value[LITERAL_KEY]
    return {name: unwrap_links(part) for name, part in value.items()}


def replace_links(value: Any, follow: Callable[[Reference], Any]) -> Any:
    """Return the value with every link in it, also inside maps, replaced by what `follow` gives."""
    if not isinstance(value, dict):
        return value
    if is_reference(value):
        return follow(read_link(value))
    if is_wrapped(value):
        return value[LITERAL_KEY]
    return {name: replace_links(part, follow) for name, part in value.items()}
