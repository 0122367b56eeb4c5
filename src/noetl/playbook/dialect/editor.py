"""Edits on a document that keep what the document knows about itself.

The rewrites speak to this small surface only, so they run on the positioned data of `text` and on round-trip data that
carries comments (`convert`). Whatever a rewrite makes new inherits the place of what caused it.
"""

from collections.abc import Mapping
from typing import Any

from noetl.playbook.findings import Code, Finding, Severity
from noetl.playbook.respelling import Respelled
from noetl.playbook.text import START, Map, Mark, Seq

Node = dict[str, Any]
Nodes = list[Any]


class Editor:
    """Edits `Map` and `Seq`; collects findings, each with the position and step it is about."""

    def __init__(self, file: str = "<text>") -> None:
        self.file = file
        self.step: str | None = None
        self.findings: list[Finding] = []

    # ---- what differs between kinds of data ----

    def mark(self, node: Any, key: str | int | None = None) -> Mark:
        """Where the key (of a mapping), the item (of a sequence) or the node itself stood."""
        if isinstance(node, Map):
            return node.marks[key][0] if isinstance(key, str) and key in node.marks else node.mark
        if isinstance(node, Seq):
            return node.marks[key] if isinstance(key, int) and key < len(node.marks) else node.mark
        return START

    def value_mark(self, node: Any, key: str | int) -> Mark:
        if isinstance(node, Map) and isinstance(key, str) and key in node.marks:
            return node.marks[key][1]
        return self.mark(node, key)

    def map(self, origin: Any, key: str | int | None = None) -> Node:
        return Map(self.mark(origin, key))

    def seq(self, origin: Any, key: str | int | None = None) -> Nodes:
        return Seq(self.mark(origin, key))

    def _carry(self, source: Any, key: str | int, target: Node, name: str) -> None:
        if isinstance(target, Map):
            target.marks[name] = (self.mark(source, key), self.value_mark(source, key))

    def _reorder(self, node: Node, keys: list[str]) -> None:
        items = {key: node[key] for key in keys}
        node.clear()
        node.update(items)

    def append(self, target: Nodes, value: Any, source: Any, key: str | int | None = None) -> None:
        target.append(value)
        if isinstance(target, Seq):
            target.marks.append(self.mark(source, key))

    def insert(
        self, target: Nodes, index: int, value: Any, source: Any, key: str | int | None = None
    ) -> None:
        target.insert(index, value)
        if isinstance(target, Seq):
            target.marks.insert(index, self.mark(source, key))

    def respell(self, node: Any, key: str | int, changed: Respelled) -> None:
        """The template at `node[key]` with other spellings of its names."""
        node[key] = changed.text

    # ---- edits made of them ----

    def put(self, target: Node, name: str, value: Any, source: Any, key: str | int) -> None:
        """Set `name`; it stood where `source[key]` stands."""
        target[name] = value
        self._carry(source, key, target, name)

    def move(self, source: Node, key: str, target: Node, name: str | None = None) -> None:
        value = source[key]
        self.put(target, name or key, value, source, key)
        del source[key]

    def take(self, source: Node, key: str) -> Any:
        return source.pop(key)

    def rename(self, node: Node, old: str, new: str) -> None:
        """The same value at the same place in the order, under another key."""
        keys = [new if key == old else key for key in node]
        self.put(node, new, node[old], node, old)
        del node[old]
        self._reorder(node, keys)

    def below(self, node: Node, *path: str, origin: str | None = None) -> Node:
        """The mapping at `path` below `node`, made when absent; `origin` names the key that caused it."""
        for name in path:
            if node.get(name) is None:
                self.put(
                    node, name, self.map(node, origin), node, origin if origin is not None else name
                )
            if not isinstance(node[name], dict):
                self.fault(node, name, Code.BAD_TYPE, f"`{name}` must be a mapping")
                return self.map(node, name)  # nobody looks at it: the fault stops the playbook
            node = node[name]
        return node

    # ---- findings ----

    def note(self, node: Any, key: str | int | None, message: str, hint: str | None = None) -> None:
        self.report(node, key, Code.OLD_SPELLING, message, hint, "note")

    def fault(
        self, node: Any, key: str | int | None, code: Code, message: str, hint: str | None = None
    ) -> None:
        self.report(node, key, code, message, hint, "error")

    def report(
        self,
        node: Any,
        key: str | int | None,
        code: Code,
        message: str,
        hint: str | None,
        severity: Severity,
    ) -> None:
        mark = self.mark(node, key)
        self.findings.append(
            Finding(self.file, mark.line, mark.column, self.step, code, message, hint, severity)
        )


def maps(value: Any) -> list[Node]:
    """The mappings among the items of a sequence."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def text_of(node: Mapping[str, Any], key: str) -> str | None:
    value = node.get(key)
    return value if isinstance(value, str) else None
