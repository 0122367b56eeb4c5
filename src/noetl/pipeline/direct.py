"""Inputs of an item that need no rendering: the item, a part of it, its index, and what is the same for every item.

The first item is rendered; the others take what is fixed from it. What is not as simple as it looks (a part that is missing, data
that is elsewhere, a list) is left to the templates, which know what to say.
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
    def __init__(self, parts: dict[str, Callable[[LoopItem], Any]]) -> None:
        self._parts = tuple(parts.items())
        self.rendered: dict[str, Any] | None = None  # what the first item was given

    @classmethod
    def of(cls, template: dict[str, Any], iterator: str) -> "Direct | None":
        """None: some of it has to be rendered for every item."""
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
        """None: render it."""
        if self.rendered is None:
            return [None] * len(items)
        return [self._input(dict(self.rendered), item) for item in items]

    def _input(self, made: dict[str, Any], item: LoopItem) -> dict[str, Any] | None:
        for name, part in self._parts:
            value = part(item)
            kind = type(value)
            if kind not in SCALARS and not (
                kind is dict and SCALARS.issuperset(map(type, value.values()))
            ):
                return None
            made[name] = value
        return made


def _part(value: Any, iterator: str) -> Any:
    """A function of the item; None of what is fixed; MISSING of everything else."""
    if not isinstance(value, Template):
        return None if type(value) in SCALARS else MISSING
    if value.is_literal:
        return None
    path = templates.path(value)
    if path is None:
        return MISSING
    root, *keys = path
    if root not in OF_ITEMS:
        return (_member(tuple(keys)) if keys else _whole) if root == iterator else None
    return _index if tuple(path) in INDEXES and iterator not in ("index", "_index") else MISSING


def _whole(item: LoopItem) -> Any:
    return item.value


def _index(item: LoopItem) -> int:
    return item.index


def _member(keys: tuple[str, ...]) -> Callable[[LoopItem], Any]:
    def part(item: LoopItem) -> Any:
        value = item.value
        for key in keys:
            if type(value) is not dict or key not in value:
                return MISSING
            value = value[key]
        return value

    return part
