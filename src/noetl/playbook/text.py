"""YAML text to plain data that remembers where everything stood.

The text comes from outside, so it is bounded before anything is built: bytes before parsing, depth and nodes while
events arrive. An alias costs as many nodes as its anchor and is copied, so a bomb is refused after a few hundred bytes
and no two places share a value. Scalars follow the YAML 1.2 core schema: `yes`, `on` and dates stay text.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import yaml

from noetl.playbook.findings import Code

MAX_BYTES = 1_000_000
MAX_DEPTH = 50
MAX_NODES = 100_000

_PARSER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # both offer the same event stream
_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_BOOL = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", re.ASCII)
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", re.ASCII)
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")


class Mark(NamedTuple):
    """Where a key or value starts, counted from 1, and how a text was quoted (`|`, `>`, `'`, `"` or nothing)."""

    line: int
    column: int
    style: str = ""


START = Mark(1, 1)


class Map(dict[str, Any]):
    """A mapping that knows where it, its keys and its values stood."""

    __slots__ = ("mark", "marks")

    def __init__(self, mark: Mark = START) -> None:
        super().__init__()
        self.mark = mark
        self.marks: dict[str, tuple[Mark, Mark]] = {}


class Seq(list[Any]):
    """A sequence that knows where it and its items stood."""

    __slots__ = ("mark", "marks")

    def __init__(self, mark: Mark = START) -> None:
        super().__init__()
        self.mark = mark
        self.marks: list[Mark] = []


class TextProblem(NamedTuple):
    code: Code
    message: str
    mark: Mark
    hint: str | None = None


class UnreadableText(Exception):
    """The text cannot be read any further."""

    def __init__(self, problem: TextProblem) -> None:
        super().__init__(problem.message)
        self.problem = problem


@dataclass(frozen=True, slots=True)
class Document:
    """`data` is None when the text could not be read; `problems` then says why."""

    data: Any
    problems: list[TextProblem]
    lines: list[str]


def read(source: str | bytes) -> Document:
    """The one document in `source`; never raises for what a text may contain."""
    try:
        text = _decode(source)
        problems: list[TextProblem] = []
        data = _Builder(_events(text), problems).document()
    except UnreadableText as exc:
        return Document(None, [exc.problem], [])
    return Document(data, problems, text.split("\n"))


def plain(node: Any) -> Any:
    """The same data as ordinary dicts and lists."""
    if isinstance(node, dict):
        return {key: plain(value) for key, value in node.items()}
    if isinstance(node, list):
        return [plain(value) for value in node]
    return node


def _decode(source: str | bytes) -> str:
    if len(source) > MAX_BYTES:
        raise _limit(
            f"the text is {len(source):,} long; at most {MAX_BYTES:,} bytes are read", START
        )
    if isinstance(source, str):
        if not source.isascii() and len(source.encode("utf-8", "surrogatepass")) > MAX_BYTES:
            raise _limit(f"the text has more than {MAX_BYTES:,} bytes", START)
        return source.removeprefix("\ufeff")
    try:
        return source.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        line = source.count(b"\n", 0, exc.start) + 1
        raise UnreadableText(
            TextProblem(Code.YAML_SYNTAX, f"not UTF-8 (byte {exc.start})", Mark(line, 1))
        ) from exc


def _limit(message: str, mark: Mark) -> UnreadableText:
    return UnreadableText(
        TextProblem(
            Code.YAML_LIMIT,
            message,
            mark,
            "data belongs into files and tables, not into a playbook",
        )
    )


def _events(text: str) -> Iterator[Any]:
    try:
        yield from yaml.parse(text, Loader=_PARSER)
    except yaml.YAMLError as exc:
        raise UnreadableText(_syntax(exc, text)) from exc
    except UnicodeError as exc:
        raise UnreadableText(
            TextProblem(Code.YAML_SYNTAX, "the text holds a character that is not Unicode", START)
        ) from exc


def _syntax(exc: yaml.YAMLError, text: str) -> TextProblem:
    at, opened = getattr(exc, "problem_mark", None), getattr(exc, "context_mark", None)
    if opened is not None and "end of stream" in str(getattr(exc, "problem", "")):
        at = opened  # where the quote or bracket was opened, not where the file ends
    if at is None:
        place = getattr(exc, "position", 0)
        mark = Mark(text.count("\n", 0, place) + 1, place - text.rfind("\n", 0, place))
        return TextProblem(
            Code.YAML_SYNTAX,
            f"a character that YAML does not allow: {getattr(exc, 'reason', exc)}",
            mark,
        )
    context, what = getattr(exc, "context", None), getattr(exc, "problem", None) or str(exc)
    message = f"{what} {context}" if context else what
    return TextProblem(
        Code.YAML_SYNTAX, f"not YAML: {message}", Mark(at.line + 1, at.column + 1), _advice(what)
    )


def _advice(what: str) -> str | None:
    if "mapping values are not allowed" in what:
        return "quote a text that contains `: `"
    if "tab" in what or "cannot start any token" in what:
        return "indent with spaces; quote a text that starts with @, ` or %"
    if "did not find expected key" in what or "block end" in what:
        return "check the indentation, and quote texts that start with {{"
    return None


@dataclass(slots=True)
class _Anchor:
    node: Any
    nodes: int
    depth: int


@dataclass(slots=True)
class _Builder:
    """Turns events into nodes; counts what aliases would cost before it copies them."""

    events: Iterator[Any]
    problems: list[TextProblem]
    nodes: int = 0
    depth: int = 0
    deepest: int = 0
    anchors: dict[str, _Anchor | None] = field(
        default_factory=dict
    )  # None while the anchored node is still open

    def document(self) -> Any:
        data: Any = None
        documents = 0
        for event in self.events:
            if not isinstance(event, yaml.DocumentStartEvent):
                continue
            documents += 1
            if documents > 1:
                raise UnreadableText(
                    TextProblem(
                        Code.YAML_SYNTAX,
                        "a second document; a file holds one playbook",
                        _mark(event),
                        "remove `---`",
                    )
                )
            data = self._node(next(self.events))
        if documents == 0:
            raise UnreadableText(TextProblem(Code.YAML_SYNTAX, "the text is empty", START))
        return data

    def _node(self, event: Any) -> Any:
        mark = _mark(event)
        if isinstance(event, yaml.AliasEvent):
            return self._alias(str(event.anchor), mark)
        self._count(1, mark)
        anchor, first, depth_before = event.anchor, self.nodes, self.deepest
        if anchor is not None:
            self.anchors[anchor] = None
            self.deepest = self.depth
        self._refuse_tag(event, mark)
        if isinstance(event, yaml.ScalarEvent):
            node = self._scalar(event, mark)
        elif isinstance(event, yaml.SequenceStartEvent):
            node = self._sequence(mark)
        else:
            node = self._mapping(mark)
        if anchor is not None:
            self.anchors[anchor] = _Anchor(node, self.nodes - first + 1, self.deepest - self.depth)
            self.deepest = max(self.deepest, depth_before)
        return node

    def _alias(self, name: str, mark: Mark) -> Any:
        anchor = self.anchors[name] if name in self.anchors else _unknown(name, mark)
        if anchor is None:
            raise _limit(f"the alias *{name} contains itself", mark)
        self._count(anchor.nodes, mark)
        self.deepest = max(self.deepest, self.depth + anchor.depth)
        if self.deepest > MAX_DEPTH:
            raise _limit(f"nested deeper than {MAX_DEPTH} levels", mark)
        return _copy(anchor.node)

    def _count(self, nodes: int, mark: Mark) -> None:
        self.nodes += nodes
        if self.nodes > MAX_NODES:
            raise _limit(
                f"more than {MAX_NODES:,} values, aliases counted as what they stand for", mark
            )

    def _refuse_tag(self, event: Any, mark: Mark) -> None:
        if event.tag is not None:
            message = f"the tag {event.tag} is not allowed: a playbook is plain data"
            self.problems.append(TextProblem(Code.YAML_TAG, message, mark, "remove the tag"))

    def _enter(self, mark: Mark) -> None:
        self.depth += 1
        self.deepest = max(self.deepest, self.depth)
        if self.depth > MAX_DEPTH:
            raise _limit(f"nested deeper than {MAX_DEPTH} levels", mark)

    def _sequence(self, mark: Mark) -> Seq:
        self._enter(mark)
        seq = Seq(mark)
        for event in self.events:
            if isinstance(event, yaml.SequenceEndEvent):
                break
            seq.marks.append(_mark(event))
            seq.append(self._node(event))
        self.depth -= 1
        return seq

    def _mapping(self, mark: Mark) -> Map:
        self._enter(mark)
        found = Map(mark)
        for event in self.events:
            if isinstance(event, yaml.MappingEndEvent):
                break
            at = _mark(event)
            key = self._key(self._node(event), at, found)
            value_event = next(self.events)
            value_mark, value = _mark(value_event), self._node(value_event)
            if key is not None:
                found[key] = value
                found.marks[key] = (at, value_mark)
        self.depth -= 1
        return found

    def _key(self, key: Any, at: Mark, found: Map) -> str | None:
        if not isinstance(key, str):
            shown = "null" if key is None else str(key).lower() if isinstance(key, bool) else key
            simple = not isinstance(key, dict | list)
            message = (
                f"the key {shown} is not text"
                if simple
                else "a key must be text, not a list or a mapping"
            )
            hint = (
                f'write "{shown}": …'
                if simple
                else "quote the key; texts that start with {{ or [ need quotes"
            )
            self.problems.append(TextProblem(Code.BAD_KEY, message, at, hint))
            return None
        if key in found:
            message = f"the key `{key}` stands twice in one mapping; it is first on line {found.marks[key][0].line}"
            self.problems.append(TextProblem(Code.DUPLICATE_KEY, message, at, "keep one of them"))
            return None
        return key

    def _scalar(self, event: Any, mark: Mark) -> Any:
        text: str = event.value
        if mark.style or not event.implicit[0]:
            return text
        if text in _NULL:
            return None
        if text in _BOOL:
            return _BOOL[text]
        if _INT.fullmatch(text) or _FLOAT.fullmatch(text) or _NOT_FINITE.fullmatch(text):
            return self._number(text, mark)
        return text

    def _number(self, text: str, mark: Mark) -> int | float | str:
        if _INT.fullmatch(text):
            whole = (
                int(text, 0)
                if text[:2] in ("0o", "0x")
                else int(text)
                if len(text) < 25
                else 1 << 64
            )
            if -(1 << 63) <= whole < 1 << 63:
                return whole
        elif _FLOAT.fullmatch(text) and abs(number := float(text)) != float("inf"):
            return number
        message = f"{text[:40]} is not a finite 64-bit number"
        self.problems.append(
            TextProblem(Code.YAML_VALUE, message, mark, "quote it to keep it as text")
        )
        return text


def _unknown(name: str, mark: Mark) -> _Anchor:
    raise UnreadableText(
        TextProblem(Code.YAML_SYNTAX, f"the alias *{name} has no anchor &{name} before it", mark)
    )


def _mark(event: Any) -> Mark:
    style = getattr(event, "style", None) or ""
    return Mark(event.start_mark.line + 1, event.start_mark.column + 1, style)


def _copy(node: Any) -> Any:
    if isinstance(node, Map):
        twin = Map(node.mark)
        twin.marks = dict(node.marks)
        for key, value in node.items():
            twin[key] = _copy(value)
        return twin
    if isinstance(node, Seq):
        items = Seq(node.mark)
        items.marks = list(node.marks)
        items.extend(_copy(value) for value in node)
        return items
    return node


def is_template(value: Any) -> bool:
    """A text that has to be rendered."""
    return isinstance(value, str) and ("{{" in value or "{%" in value)
