"""Inputs of an item that need no rendering.

These are the item, a part of it, its index, and what is the same for every item. The first item is
rendered; the others take the fixed values from it. A case that is not that simple (a missing part,
data in the store, a list) is left to the templates, which report errors properly.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

from noetl.pipeline.names import LoopItem
from noetl.playbook import templates
from noetl.playbook.expressions import SCALARS
from noetl.playbook.scopes import OF_ITEMS
from noetl.playbook.templates import Template

MISSING: Final = object()
INDEXES = frozenset(
    {("loop", "index"), ("iter", "index"), ("iter", "_index"), ("_index",), ("loop_index",)}
)


class Direct:
    """Computes the input of items by copying, where a template only names a value."""

    def __init__(self, parts: dict[str, Callable[[LoopItem], Any]]) -> None:
        self._parts = tuple(parts.items())
        self.rendered: dict[str, Any] | None = None  # the input of the first item

    @classmethod
    def of(cls, template: dict[str, Any], iterator: str) -> "Direct | None":
        """None if some of the input has to be rendered for every item."""
        parts: dict[str, Callable[[LoopItem], Any]] = {}
        for name, value in template.items():
            part = _part(value, iterator)
            if part is MISSING or "{" in name:
                return None
            if part is not None:
                parts[name] = part
        return cls(parts)

    def learn(self, rendered: dict[str, Any]) -> None:
        self.rendered = rendered

    def inputs(self, items: Sequence[LoopItem]) -> list[dict[str, Any] | None]:
        """The input of each item; None where it has to be rendered."""
        if self.rendered is None:
            return [None] * len(items)
        return [self._input(dict(self.rendered), item) for item in items]

    def _input(self, values: dict[str, Any], item: LoopItem) -> dict[str, Any] | None:
        for name, part in self._parts:
            value = part(item)
            kind = type(value)
            if kind not in SCALARS and not (
                kind is dict and SCALARS.issuperset(map(type, value.values()))
            ):
                return None
            values[name] = value
        return values


def _part(value: Any, iterator: str) -> Any:
    """A function of the item; None for a fixed value; MISSING if the value has to be rendered."""
    if not isinstance(value, Template):
        return None if type(value) in SCALARS else MISSING
    if value.is_literal:
        return None
    path = templates.path(value)
    if path is None:
        return MISSING
    root, *keys = path
    if root in OF_ITEMS:
        is_index = tuple(path) in INDEXES and iterator not in ("index", "_index")
        return _index if is_index else MISSING
    if root != iterator:
        return None
    if keys:
        return _member(tuple(keys))
    return _whole


def _whole(item: LoopItem) -> Any:
    return item.value


def _index(item: LoopItem) -> int:
    return item.index


def _member(keys: tuple[str, ...]) -> Callable[[LoopItem], Any]:
    def read_member(item: LoopItem) -> Any:
        value = item.value
        for key in keys:
            if type(value) is not dict or key not in value:
                return MISSING
            value = value[key]
        return value

    return read_member
