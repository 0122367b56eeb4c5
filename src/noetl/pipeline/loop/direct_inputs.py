"""Inputs of an item that need no rendering.

These are the item, a part of it, its index, and what is the same for every item. The first item is
rendered; the others take the fixed values from it. A case that is not that simple (a missing part,
data in the store, a list) is left to the templates, which report errors properly.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

from noetl.pipeline.scope.names import LoopItem
from noetl.template.model import Template, find_dotted_path
from noetl.template.scopes import NAMES_PER_ITEM
from noetl.template.values import JSON_SCALAR_TYPES

MISSING: Final = object()
INDEX_PATHS = frozenset(
    {("loop", "index"), ("iter", "index"), ("iter", "_index"), ("_index",), ("loop_index",)}
)


class DirectInputs:
    """Computes the input of items by copying, where a template only names a value."""

    def __init__(self, parts: dict[str, Callable[[LoopItem], Any]]) -> None:
        self._parts = tuple(parts.items())
        self.rendered: dict[str, Any] | None = None  # the input of the first item

    @classmethod
    def from_template(cls, template: dict[str, Any], iterator: str) -> "DirectInputs | None":
        """None if some of the input has to be rendered for every item."""
        parts: dict[str, Callable[[LoopItem], Any]] = {}
        for name, value in template.items():
            part = _compile_part(value, iterator)
            if part is MISSING or "{" in name:
                return None
            if part is not None:
                parts[name] = part
        return cls(parts)

    def set_rendered(self, rendered: dict[str, Any]) -> None:
        self.rendered = rendered

    def make_inputs(self, items: Sequence[LoopItem]) -> list[dict[str, Any] | None]:
        """The input of each item; None where it has to be rendered."""
        if self.rendered is None:
            return [None] * len(items)
        return [self._copy_input(dict(self.rendered), item) for item in items]

    def _copy_input(self, values: dict[str, Any], item: LoopItem) -> dict[str, Any] | None:
        for name, part in self._parts:
            value = part(item)
            kind = type(value)
            if kind not in JSON_SCALAR_TYPES and not (
                kind is dict and JSON_SCALAR_TYPES.issuperset(map(type, value.values()))
            ):
                return None
            values[name] = value
        return values


def _compile_part(value: Any, iterator: str) -> Any:
    """A function of the item; None for a fixed value; MISSING if the value has to be rendered."""
    if not isinstance(value, Template):
        return None if type(value) in JSON_SCALAR_TYPES else MISSING
    if value.is_literal:
        return None
    path = find_dotted_path(value)
    if path is None:
        return MISSING
    root, *keys = path
    if root in NAMES_PER_ITEM:
        is_index = tuple(path) in INDEX_PATHS and iterator not in ("index", "_index")
        return _read_index if is_index else MISSING
    if root != iterator:
        return None
    if keys:
        return _member_reader(tuple(keys))
    return _read_whole_item


def _read_whole_item(item: LoopItem) -> Any:
    return item.value


def _read_index(item: LoopItem) -> int:
    return item.index


def _member_reader(keys: tuple[str, ...]) -> Callable[[LoopItem], Any]:
    def read_member(item: LoopItem) -> Any:
        value = item.value
        for key in keys:
            if type(value) is not dict or key not in value:
                return MISSING
            value = value[key]
        return value

    return read_member
