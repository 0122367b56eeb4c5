"""Rewrites a playbook's text in the current spelling. Keeps its comments, order and quoting."""

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
from noetl.playbook.respelling import RespelledText
from noetl.playbook.text import START_MARK, Mark
from noetl.playbook.validation import PlaybookInvalid, load


@dataclass(frozen=True, slots=True)
class ConvertedText:
    """`text` is the unchanged source if there was nothing to rewrite."""

    text: str
    changes: list[Finding]


def convert(source: str, *, file: str = "<text>") -> ConvertedText:
    """Rewrite older spellings.

    Raises PlaybookInvalid for unreadable text and forms without equivalent.
    """
    _refuse_unreadable(source, file)
    yaml = _make_round_trip_yaml()
    document: Any = yaml.load(source)
    before = sorted(set(_find_comments(document)))
    starts = _find_step_starts(document)
    editor = RoundTrip(file)
    dialect.rewrite(document, editor)
    errors = [finding for finding in editor.findings if finding.severity == "error"]
    if errors:
        raise PlaybookInvalid(errors)
    if not editor.findings:
        return ConvertedText(source, [])
    written = io.StringIO()
    yaml.dump(document, written)
    converted = _insert_lost_comments(written.getvalue(), before, starts)
    return ConvertedText(converted, editor.findings)


def _refuse_unreadable(source: str, file: str) -> None:
    """Apply the limits and YAML checks of `text` before the round-trip parser reads the source."""
    document = text.read_document(source)
    if document.problems or not isinstance(document.data, text.Map):
        raise PlaybookInvalid(load(source, file=file).findings)


def _make_round_trip_yaml() -> YAML:
    yaml = YAML(typ="rt")
    yaml.preserve_quotes = True
    yaml.width = 4096  # keeps the author's line breaks
    yaml.indent(mapping=2, sequence=4, offset=2)
    yaml.representer.add_representer(type(None), _represent_null)
    return yaml


def _represent_null(representer: Any, _: None) -> Any:
    return representer.represent_scalar("tag:yaml.org,2002:null", "null")


# ---- comments of removed keys ----


def _find_comments(node: Any) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of every comment in a round-trip document."""
    if not isinstance(node, CommentedMap | CommentedSeq):
        return
    comments_of_keys = list(node.ca.items.values())
    for token in _flatten_comment_tokens([node.ca.comment, comments_of_keys, node.ca.end]):
        for offset, line in enumerate(str(token.value).split("\n")):
            comment = line.strip()
            if comment.startswith("#"):
                yield token.start_mark.line + offset, comment
    children: Iterable[Any] = node
    if isinstance(node, CommentedMap):
        children = node.values()
    for child in children:
        yield from _find_comments(child)


def _flatten_comment_tokens(found: Any) -> Iterator[CommentToken]:
    """Yield the comments in nested lists, the form in which ruamel.yaml keeps them."""
    if isinstance(found, CommentToken):
        yield found
    elif isinstance(found, list):
        for item in found:
            yield from _flatten_comment_tokens(item)


def _find_step_starts(document: Any) -> list[tuple[int, str]]:
    """Return the first line and the name of each step."""
    workflow = document.get("workflow", document.get("steps"))
    starts: list[tuple[int, str]] = []
    for step in workflow or []:
        if isinstance(step, CommentedMap) and isinstance(step.get("step"), str):
            starts.append((step.lc.line, step["step"]))
    return starts


def _insert_lost_comments(
    written: str,
    before: list[tuple[int, str]],
    starts: list[tuple[int, str]],
) -> str:
    """Insert the comments of removed keys above their step, so that no comment is lost."""
    comments_after = set(_find_comments(_make_round_trip_yaml().load(written)))
    kept = Counter(comment for _, comment in comments_after)
    lost: dict[str | None, list[str]] = {}
    for line, comment in before:
        if kept[comment] > 0:
            kept[comment] -= 1
        else:
            step = _find_enclosing_step(line, starts)
            lost.setdefault(step, []).append(comment)
    lines = written.split("\n")
    for step, comments in lost.items():
        line_number, indent = _find_step_line(lines, step)
        lines[line_number:line_number] = [indent + comment for comment in comments]
    return "\n".join(lines)


def _find_enclosing_step(line: int, starts: list[tuple[int, str]]) -> str | None:
    """Return the step that contains this line, or None if it is before the first step."""
    for start, name in reversed(starts):
        if start <= line:
            return name
    return None


def _find_step_line(lines: list[str], name: str | None) -> tuple[int, str]:
    """Return index and indent of a step's first line, or (0, "") if it is not found."""
    if name:
        start = re.compile(rf"""( *)- (?:\{{ *)?step: ["']?{re.escape(name)}["']?(?:\s|,|$)""")
        for index, line in enumerate(lines):
            match = start.match(line)
            if match is not None:
                return index, match[1]
    return 0, ""


class RoundTrip(Editor):
    """Applies the edits of `dialect` to data that has comments."""

    def get_mark(self, node: Any, key: str | int | None = None) -> Mark:
        if not isinstance(node, CommentedMap | CommentedSeq):
            return START_MARK
        if key is not None and key in (node.lc.data or {}):
            line, column = node.lc.data[key][:2]
            return Mark(line + 1, column + 1)
        if node.lc.line is not None:
            return Mark(node.lc.line + 1, node.lc.col + 1)
        return START_MARK

    def get_value_mark(self, node: Any, key: str | int) -> Mark:
        return self.get_mark(node, key)

    def make_map(self, origin: Any, key: str | int | None = None) -> Node:
        node = CommentedMap()
        self._set_position(node, origin, key)
        return node

    def make_seq(self, origin: Any, key: str | int | None = None) -> Nodes:
        node = CommentedSeq()
        self._set_position(node, origin, key)
        return node

    def append(
        self,
        target: Nodes,
        value: Any,
        source: Any,
        key: str | int | None = None,
    ) -> None:
        target.append(value)

    def insert(
        self,
        target: Nodes,
        index: int,
        value: Any,
        source: Any,
        key: str | int | None = None,
    ) -> None:
        target.insert(index, value)

    def respell_template(self, node: Any, key: str | int, changed: RespelledText) -> None:
        """Replace a text. Keeps its quotes or block style, but not its anchor.

        Other places that use the anchor may keep the old text.
        """
        old = node[key]
        new: Any = changed.text
        if isinstance(old, ScalarString):
            new = type(old)(changed.text)
        if hasattr(old, "comment"):
            new.comment = old.comment
        if hasattr(old, "fold_pos"):
            new.fold_pos = [_move_position(position, changed.growth) for position in old.fold_pos]
        node[key] = new

    def _set_position(
        self, node: CommentedMap | CommentedSeq, origin: Any, key: str | int | None
    ) -> None:
        mark = self.get_mark(origin, key)
        node.lc.line = mark.line - 1
        node.lc.col = mark.column - 1

    def _carry_mark(
        self,
        source: Any,
        key: str | int,
        target: Node,
        name: str,
    ) -> None:
        """Give the key in `target` the position that it had in `source`."""
        if not isinstance(target, CommentedMap):
            return
        mark = self.get_mark(source, key)
        if target.lc.data is None:
            target.lc.data = {}
        target.lc.data[name] = [mark.line - 1, mark.column - 1] * 2

    def move(
        self,
        source: Node,
        key: str,
        target: Node,
        name: str | None = None,
    ) -> None:
        comment = _take_comment(source, key)
        super().move(source, key, target, name)
        if comment is not None and isinstance(target, CommentedMap):
            target.ca.items[name or key] = comment

    def rename(self, node: Node, old: str, new: str) -> None:
        comment = _take_comment(node, old)
        super().rename(node, old, new)
        if comment is not None and isinstance(node, CommentedMap):
            node.ca.items[new] = comment

    def _reorder(self, node: Node, keys: Iterable[str]) -> None:
        for key in keys:
            if isinstance(node, CommentedMap):
                node.move_to_end(key)


def _take_comment(node: Node, key: str) -> Any:
    """Remove and return the comment of a key, before the key itself goes."""
    if not isinstance(node, CommentedMap):
        return None
    return node.ca.items.pop(key, None)


def _move_position(position: int, growth: list[tuple[int, int]]) -> int:
    """Return a position of the old text in the new text."""
    return position + sum(added for offset, added in growth if offset < position)
