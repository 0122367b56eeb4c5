"""A playbook's text in the current spelling, with its comments, order and quoting kept."""

import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.scalarstring import ScalarString
from ruamel.yaml.tokens import CommentToken

from noetl.playbook import dialect, text
from noetl.playbook.dialect.editor import Editor, Node, Nodes
from noetl.playbook.findings import Finding
from noetl.playbook.respelling import Respelled
from noetl.playbook.text import START, Mark
from noetl.playbook.validation import PlaybookInvalid, load


@dataclass(frozen=True, slots=True)
class Converted:
    """`text` is the same as the source when there was nothing to rewrite."""

    text: str
    changes: list[Finding]


def convert(source: str, *, file: str = "<text>") -> Converted:
    """Rewrite older spellings; PlaybookInvalid when the text cannot be read or a form has no equivalent."""
    _refuse_unreadable(source, file)
    yaml = _round_trip()
    document: Any = yaml.load(source)
    before = sorted(set(_comments(document)))
    starts = _starts(document)
    editor = RoundTrip(file)
    dialect.rewrite(document, editor)
    errors = [finding for finding in editor.findings if finding.severity == "error"]
    if errors:
        raise PlaybookInvalid(errors)
    if not editor.findings:
        return Converted(source, [])
    written = io.StringIO()
    yaml.dump(document, written)
    return Converted(_with_lost_comments(written.getvalue(), before, starts), editor.findings)


def _refuse_unreadable(source: str, file: str) -> None:
    """Limits and YAML errors are found by the reader that has them, before the round-trip parser sees the text."""
    document = text.read(source)
    if document.problems or not isinstance(document.data, text.Map):
        raise PlaybookInvalid(load(source, file=file).findings)


def _round_trip() -> YAML:
    yaml = YAML(typ="rt")
    yaml.preserve_quotes = True
    yaml.width = 4096  # lines are the author's business
    yaml.indent(mapping=2, sequence=4, offset=2)
    yaml.representer.add_representer(type(None), _null)
    return yaml


def _null(representer: Any, _: None) -> Any:
    return representer.represent_scalar("tag:yaml.org,2002:null", "null")


# ---- comments whose key is gone ----


def _comments(node: Any) -> Iterator[tuple[int, str]]:
    """(line, text) of every comment in a round-trip document."""
    if not isinstance(node, CommentedMap | CommentedSeq):
        return
    for token in _tokens([node.ca.comment, list(node.ca.items.values()), node.ca.end]):
        for offset, said in enumerate(str(token.value).split("\n")):
            if said.strip().startswith("#"):
                yield token.start_mark.line + offset, said.strip()
    for child in node.values() if isinstance(node, CommentedMap) else node:
        yield from _comments(child)


def _tokens(found: Any) -> Iterator[CommentToken]:
    if isinstance(found, CommentToken):
        yield found
    elif isinstance(found, list):
        for item in found:
            yield from _tokens(item)


def _starts(document: Any) -> list[tuple[int, str]]:
    """Where each step begins."""
    listed = document.get("workflow", document.get("steps"))
    steps = [
        step
        for step in listed or []
        if isinstance(step, CommentedMap) and isinstance(step.get("step"), str)
    ]
    return [(step.lc.line, step["step"]) for step in steps]


def _with_lost_comments(
    written: str, before: list[tuple[int, str]], starts: list[tuple[int, str]]
) -> str:
    """Comments of keys that are gone stand above the step they were in; none is dropped."""
    kept = Counter(said for _, said in set(_comments(_round_trip().load(written))))
    lost: dict[str | None, list[str]] = {}
    for line, said in before:
        if kept[said] > 0:
            kept[said] -= 1
        else:
            lost.setdefault(
                next((name for start, name in reversed(starts) if start <= line), None), []
            ).append(said)
    lines = written.split("\n")
    for name, texts in lost.items():
        at, indent = _line_of(lines, name)
        lines[at:at] = [indent + said for said in texts]
    return "\n".join(lines)


def _line_of(lines: list[str], name: str | None) -> tuple[int, str]:
    wanted = (
        re.compile(rf"""( *)- (?:\{{ *)?step: ["']?{re.escape(name)}["']?(?:\s|,|$)""")
        if name
        else None
    )
    for index, line in enumerate(lines if wanted else []):
        if wanted is not None and (found := wanted.match(line)) is not None:
            return index, found[1]
    return 0, ""


class RoundTrip(Editor):
    """The same edits on data that carries comments."""

    def mark(self, node: Any, key: str | int | None = None) -> Mark:
        if (
            key is not None
            and isinstance(node, CommentedMap | CommentedSeq)
            and key in (node.lc.data or {})
        ):
            line, column = node.lc.data[key][:2]
            return Mark(line + 1, column + 1)
        if isinstance(node, CommentedMap | CommentedSeq) and node.lc.line is not None:
            return Mark(node.lc.line + 1, node.lc.col + 1)
        return START

    def value_mark(self, node: Any, key: str | int) -> Mark:
        return self.mark(node, key)

    def map(self, origin: Any, key: str | int | None = None) -> Node:
        node = CommentedMap()
        self._place(node, origin, key)
        return node

    def seq(self, origin: Any, key: str | int | None = None) -> Nodes:
        node = CommentedSeq()
        self._place(node, origin, key)
        return node

    def append(self, target: Nodes, value: Any, source: Any, key: str | int | None = None) -> None:
        target.append(value)

    def insert(
        self, target: Nodes, index: int, value: Any, source: Any, key: str | int | None = None
    ) -> None:
        target.insert(index, value)

    def respell(self, node: Any, key: str | int, changed: Respelled) -> None:
        """In the quotes or the block that the text had. An anchor is left out: what shares it may keep the old text."""
        old = node[key]
        new: Any = type(old)(changed.text) if isinstance(old, ScalarString) else changed.text
        if hasattr(old, "comment"):
            new.comment = old.comment
        if hasattr(old, "fold_pos"):
            new.fold_pos = [
                at + sum(more for offset, more in changed.growth if offset < at)
                for at in old.fold_pos
            ]
        node[key] = new

    def _place(self, node: CommentedMap | CommentedSeq, origin: Any, key: str | int | None) -> None:
        mark = self.mark(origin, key)
        node.lc.line, node.lc.col = mark.line - 1, mark.column - 1

    def _carry(self, source: Any, key: str | int, target: Node, name: str) -> None:
        """Position and comments of what moves; a comment moves once, with the key that is about to go."""
        if not isinstance(target, CommentedMap):
            return
        mark = self.mark(source, key)
        at = [mark.line - 1, mark.column - 1] * 2
        if target.lc.data is None:
            target.lc.data = {}
        target.lc.data[name] = at

    def move(self, source: Node, key: str, target: Node, name: str | None = None) -> None:
        comment = source.ca.items.pop(key, None) if isinstance(source, CommentedMap) else None
        super().move(source, key, target, name)
        if comment is not None and isinstance(target, CommentedMap):
            target.ca.items[name or key] = comment

    def rename(self, node: Node, old: str, new: str) -> None:
        comment = node.ca.items.pop(old, None) if isinstance(node, CommentedMap) else None
        super().rename(node, old, new)
        if comment is not None and isinstance(node, CommentedMap):
            node.ca.items[new] = comment

    def _reorder(self, node: Node, keys: Iterable[str]) -> None:
        for key in keys:
            if isinstance(node, CommentedMap):
                node.move_to_end(key)
