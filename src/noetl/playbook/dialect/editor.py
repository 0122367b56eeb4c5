"""Edits of a document that keep the positions of its parts.

The rewrites use only this small interface, so they run on the positioned data of `text` and on
round-trip data with comments (`convert`). A new part inherits the position of the part that caused
it.
"""

from collections.abc import Mapping
from typing import Any

from noetl.playbook.findings import Code, Finding, Severity
from noetl.playbook.respelling import RespelledText
from noetl.playbook.text import START_MARK, Map, Mark, Seq

Node = dict[str, Any]
Nodes = list[Any]


class Editor:
    """Edits `Map` and `Seq`. Collects findings, each with its position and step."""

    def __init__(self, file: str = "<text>") -> None:
        self.file = file
        self.step: str | None = None
        self.findings: list[Finding] = []

    # ---- methods that `convert` overrides for data with comments ----

    def get_mark(self, node: Any, key: str | int | None = None) -> Mark:
        """The position of the key (of a mapping), of the item (of a sequence) or of the node itself."""
        if isinstance(node, Map):
            if isinstance(key, str) and key in node.marks:
                return node.marks[key][0]
            return node.mark
        if isinstance(node, Seq):
            if isinstance(key, int) and key < len(node.marks):
                return node.marks[key]
            return node.mark
        return START_MARK

    def get_value_mark(self, node: Any, key: str | int) -> Mark:
        if isinstance(node, Map) and isinstance(key, str) and key in node.marks:
            return node.marks[key][1]
        return self.get_mark(node, key)

    def make_map(self, origin: Any, key: str | int | None = None) -> Node:
        return Map(self.get_mark(origin, key))

    def make_seq(self, origin: Any, key: str | int | None = None) -> Nodes:
        return Seq(self.get_mark(origin, key))

    def _carry_mark(
        self,
        source: Any,
        key: str | int,
        target: Node,
        name: str,
    ) -> None:
        if isinstance(target, Map):
            target.marks[name] = (self.get_mark(source, key), self.get_value_mark(source, key))

    def _reorder(self, node: Node, keys: list[str]) -> None:
        items = {key: node[key] for key in keys}
        node.clear()
        node.update(items)

    def append(
        self,
        target: Nodes,
        value: Any,
        source: Any,
        key: str | int | None = None,
    ) -> None:
        target.append(value)
        if isinstance(target, Seq):
            target.marks.append(self.get_mark(source, key))

    def insert(
        self, target: Nodes, index: int, value: Any, source: Any, key: str | int | None = None
    ) -> None:
        target.insert(index, value)
        if isinstance(target, Seq):
            target.marks.insert(index, self.get_mark(source, key))

    def respell_template(self, node: Any, key: str | int, changed: RespelledText) -> None:
        """Replace the template at `node[key]` by one with other spellings of its names."""
        node[key] = changed.text

    # ---- edits built from the methods above ----

    def put(
        self,
        target: Node,
        name: str,
        value: Any,
        source: Any,
        key: str | int,
    ) -> None:
        """Set `name`. It gets the position of `source[key]`."""
        target[name] = value
        self._carry_mark(source, key, target, name)

    def move(
        self,
        source: Node,
        key: str,
        target: Node,
        name: str | None = None,
    ) -> None:
        value = source[key]
        self.put(target, name or key, value, source, key)
        del source[key]

    def rename(self, node: Node, old: str, new: str) -> None:
        """Put the value under another key, at the same place in the order."""
        keys = [new if key == old else key for key in node]
        self.put(node, new, node[old], node, old)
        del node[old]
        self._reorder(node, keys)

    def ensure_map(self, node: Node, *path: str, origin: str | None = None) -> Node:
        """Return the mapping at `path` below `node`; create it if it is missing.

        `origin` names the key that caused it.
        """
        for name in path:
            if node.get(name) is None:
                position_key = name if origin is None else origin
                self.put(node, name, self.make_map(node, origin), node, position_key)
            if not isinstance(node[name], dict):
                self.add_error(node, name, Code.BAD_TYPE, f"`{name}` must be a mapping")
                return self.make_map(node, name)  # it is never used: the playbook is invalid
            node = node[name]
        return node

    # ---- findings ----

    def add_note(
        self, node: Any, key: str | int | None, message: str, hint: str | None = None
    ) -> None:
        self.add_finding(node, key, Code.OLD_SPELLING, message, hint, "note")

    def add_error(
        self, node: Any, key: str | int | None, code: Code, message: str, hint: str | None = None
    ) -> None:
        self.add_finding(node, key, code, message, hint, "error")

    def add_finding(
        self,
        node: Any,
        key: str | int | None,
        code: Code,
        message: str,
        hint: str | None,
        severity: Severity,
    ) -> None:
        mark = self.get_mark(node, key)
        self.findings.append(
            Finding(self.file, mark.line, mark.column, self.step, code, message, hint, severity)
        )


def list_maps(value: Any) -> list[Node]:
    """The mappings among the items of a sequence."""
    if not isinstance(value, list):
        return []
    return [item for item in value if isinstance(item, dict)]


def get_member(node: Any, key: str) -> Any:
    """The member of a mapping; None if the node is no mapping."""
    if isinstance(node, dict):
        return node.get(key)
    return None


def as_list(value: Any) -> Nodes:
    """A list as it is, anything else as a list of one."""
    if isinstance(value, list):
        return value
    return [value]


def get_policy_rules(spec: Any) -> Any:
    """The policy rules in a task's `spec`: `policy: {rules: …}`, or `policy` itself."""
    policy = get_member(spec, "policy")
    if isinstance(policy, dict):
        return policy.get("rules")
    return policy


def get_text_member(node: Mapping[str, Any], key: str) -> str | None:
    """The member of a mapping if it is text."""
    value = node.get(key)
    return value if isinstance(value, str) else None
