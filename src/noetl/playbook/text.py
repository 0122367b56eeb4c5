"""Reads YAML text into plain data that knows the line and column of every key and value.

The text is not trusted, so limits apply before anything is built: bytes before parsing, depth and
nodes while YAML events arrive. An alias counts as many nodes as its anchor and is copied. So an
alias bomb is refused after a few hundred bytes, and no two places share a value. Scalars follow the
YAML 1.2 core schema: `yes`, `on` and dates stay text.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import yaml
from msgspec import Struct

from noetl.playbook.findings import Code

MAX_BYTES = 1_000_000
MAX_DEPTH = 50
MAX_NODES = 100_000
MAX_EXPRESSION_CHARACTERS = 200_000  # between the braces of all templates

_OPENING = re.compile(r"\{[{%]")
_CLOSINGS = {"{{": "}}", "{%": "%}"}
_PARSER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # both offer the same event stream
_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_BOOL = {
    "true": True,
    "True": True,
    "TRUE": True,
    "false": False,
    "False": False,
    "FALSE": False,
}
_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", re.ASCII)
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", re.ASCII)
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")


class Mark(NamedTuple):
    """Where a key or value starts, counted from 1.

    `style` is the quoting: `|`, `>`, `'`, `"` or "".
    """

    line: int
    column: int
    style: str = ""


START_MARK = Mark(1, 1)


class Map(dict[str, Any]):
    """A mapping with its position. `marks` has the positions of each key and its value."""

    __slots__ = ("mark", "marks")

    def __init__(self, mark: Mark = START_MARK) -> None:
        super().__init__()
        self.mark = mark
        self.marks: dict[str, tuple[Mark, Mark]] = {}


class Seq(list[Any]):
    """A sequence with its position. `marks` has the positions of its items."""

    __slots__ = ("mark", "marks")

    def __init__(self, mark: Mark = START_MARK) -> None:
        super().__init__()
        self.mark = mark
        self.marks: list[Mark] = []


class TextProblem(NamedTuple):
    code: Code
    message: str
    mark: Mark
    hint: str | None = None


class UnreadableText(Exception):
    """The rest of the text cannot be read."""

    def __init__(self, problem: TextProblem) -> None:
        super().__init__(problem.message)
        self.problem = problem


class Document(Struct, frozen=True):
    """`data` is None if the text could not be read; `problems` then says why."""

    data: Any
    problems: list[TextProblem]
    lines: list[str]


def read_document(source: str | bytes) -> Document:
    """Read the only document in `source`. Problems of the text are returned, never raised."""
    try:
        text = _decode_source(source)
        problems: list[TextProblem] = []
        data = _Builder(_parse_events(text), problems).build_document()
    except UnreadableText as exc:
        return Document(None, [exc.problem], [])
    return Document(data, problems, text.split("\n"))


def strip_marks(node: Any) -> Any:
    """Return the same data as ordinary dicts and lists."""
    if isinstance(node, dict):
        return {key: strip_marks(value) for key, value in node.items()}
    if isinstance(node, list):
        return [strip_marks(value) for value in node]
    return node


def _decode_source(source: str | bytes) -> str:
    size = len(source)
    if size > MAX_BYTES:
        raise _make_limit_error(
            f"the text is {size:,} long; at most {MAX_BYTES:,} bytes are read", START_MARK
        )
    if isinstance(source, str):
        if not source.isascii() and len(source.encode("utf-8", "surrogatepass")) > MAX_BYTES:
            raise _make_limit_error(f"the text has more than {MAX_BYTES:,} bytes", START_MARK)
        return source.removeprefix("\ufeff")
    try:
        return source.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        line = source.count(b"\n", 0, exc.start) + 1
        message = f"not UTF-8 (byte {exc.start})"
        raise UnreadableText(TextProblem(Code.YAML_SYNTAX, message, Mark(line, 1))) from exc


def _make_limit_error(message: str, mark: Mark) -> UnreadableText:
    hint = "data belongs into files and tables, not into a playbook"
    return UnreadableText(TextProblem(Code.YAML_LIMIT, message, mark, hint))


def _parse_events(text: str) -> Iterator[Any]:
    try:
        yield from yaml.parse(text, Loader=_PARSER)
    except yaml.YAMLError as exc:
        raise UnreadableText(_describe_syntax_error(exc, text)) from exc
    except UnicodeError as exc:
        message = "the text holds a character that is not Unicode"
        raise UnreadableText(TextProblem(Code.YAML_SYNTAX, message, START_MARK)) from exc


def _describe_syntax_error(exc: yaml.YAMLError, text: str) -> TextProblem:
    position = getattr(exc, "problem_mark", None)
    opening = getattr(exc, "context_mark", None)
    if opening is not None and "end of stream" in str(getattr(exc, "problem", "")):
        position = opening  # where the quote or bracket was opened, not where the file ends
    if position is None:
        return _describe_forbidden_character(exc, text)
    problem = getattr(exc, "problem", None) or str(exc)
    context = getattr(exc, "context", None)
    message = f"not YAML: {problem}"
    if context:
        message = f"{message} {context}"
    mark = Mark(position.line + 1, position.column + 1)
    return TextProblem(Code.YAML_SYNTAX, message, mark, _suggest_fix(problem))


def _describe_forbidden_character(exc: yaml.YAMLError, text: str) -> TextProblem:
    offset = getattr(exc, "position", 0)
    line = text.count("\n", 0, offset) + 1
    column = offset - text.rfind("\n", 0, offset)
    message = f"a character that YAML does not allow: {getattr(exc, 'reason', exc)}"
    return TextProblem(Code.YAML_SYNTAX, message, Mark(line, column))


def _suggest_fix(problem: str) -> str | None:
    if "mapping values are not allowed" in problem:
        return "quote a text that contains `: `"
    if "tab" in problem or "cannot start any token" in problem:
        return "indent with spaces; quote a text that starts with @, ` or %"
    if "did not find expected key" in problem or "block end" in problem:
        return "check the indentation, and quote texts that start with {{"
    return None


def _count_expression_characters(text: str) -> int:
    count = 0
    position = 0
    for opening in _OPENING.finditer(text):
        if opening.start() < position:
            continue
        closing = text.find(_CLOSINGS[opening[0]], opening.end())
        if closing < 0:
            closing = len(text)
        count += closing - opening.end()
        position = closing
    return count


@dataclass(slots=True)
class _Anchor:
    node: Any
    nodes: int
    depth: int


@dataclass(slots=True)
class _Builder:
    """Turns YAML events into nodes. Counts the nodes of an alias before it copies them."""

    events: Iterator[Any]
    problems: list[TextProblem]
    nodes: int = 0
    depth: int = 0
    deepest: int = 0
    expression_characters: int = 0
    # Anchors by name. None while the anchored node is still open.
    anchors: dict[str, _Anchor | None] = field(default_factory=dict)

    def build_document(self) -> Any:
        data: Any = None
        documents = 0
        for event in self.events:
            if not isinstance(event, yaml.DocumentStartEvent):
                continue
            documents += 1
            if documents > 1:
                message = "a second document; a file holds one playbook"
                problem = TextProblem(
                    Code.YAML_SYNTAX, message, _read_event_mark(event), "remove `---`"
                )
                raise UnreadableText(problem)
            data = self._build_node(next(self.events))
        if documents == 0:
            raise UnreadableText(TextProblem(Code.YAML_SYNTAX, "the text is empty", START_MARK))
        return data

    def _build_node(self, event: Any) -> Any:
        mark = _read_event_mark(event)
        if isinstance(event, yaml.AliasEvent):
            return self._build_alias(str(event.anchor), mark)
        self._add_nodes(1, mark)
        anchor = event.anchor
        nodes_before, deepest_before = self.nodes, self.deepest
        if anchor is not None:
            self.anchors[anchor] = None
            self.deepest = self.depth
        self._refuse_tag(event, mark)
        if isinstance(event, yaml.ScalarEvent):
            self._add_expressions(event.value, mark)
            node = self._build_scalar(event, mark)
        elif isinstance(event, yaml.SequenceStartEvent):
            node = self._build_sequence(mark)
        else:
            node = self._build_mapping(mark)
        if anchor is not None:
            nodes = self.nodes - nodes_before + 1
            self.anchors[anchor] = _Anchor(node, nodes, self.deepest - self.depth)
            self.deepest = max(self.deepest, deepest_before)
        return node

    def _build_alias(self, name: str, mark: Mark) -> Any:
        if name not in self.anchors:
            message = f"the alias *{name} has no anchor &{name} before it"
            raise UnreadableText(TextProblem(Code.YAML_SYNTAX, message, mark))
        anchor = self.anchors[name]
        if anchor is None:
            raise _make_limit_error(f"the alias *{name} contains itself", mark)
        self._add_nodes(anchor.nodes, mark)
        self.deepest = max(self.deepest, self.depth + anchor.depth)
        if self.deepest > MAX_DEPTH:
            raise _make_limit_error(f"nested deeper than {MAX_DEPTH} levels", mark)
        return _copy_node(anchor.node)

    def _add_nodes(self, nodes: int, mark: Mark) -> None:
        self.nodes += nodes
        if self.nodes > MAX_NODES:
            raise _make_limit_error(
                f"more than {MAX_NODES:,} values, aliases counted as what they stand for", mark
            )

    def _add_expressions(self, text: str, mark: Mark) -> None:
        """Count what stands between braces: parsing it takes far longer than reading it."""
        if "{" not in text:
            return
        self.expression_characters += _count_expression_characters(text)
        if self.expression_characters > MAX_EXPRESSION_CHARACTERS:
            raise _make_limit_error(
                f"templates have more than {MAX_EXPRESSION_CHARACTERS:,} characters in their braces",
                mark,
            )

    def _refuse_tag(self, event: Any, mark: Mark) -> None:
        if event.tag is not None:
            message = f"the tag {event.tag} is not allowed: a playbook is plain data"
            self.problems.append(TextProblem(Code.YAML_TAG, message, mark, "remove the tag"))

    def _open_level(self, mark: Mark) -> None:
        self.depth += 1
        self.deepest = max(self.deepest, self.depth)
        if self.depth > MAX_DEPTH:
            raise _make_limit_error(f"nested deeper than {MAX_DEPTH} levels", mark)

    def _build_sequence(self, mark: Mark) -> Seq:
        self._open_level(mark)
        seq = Seq(mark)
        for event in self.events:
            if isinstance(event, yaml.SequenceEndEvent):
                break
            seq.marks.append(_read_event_mark(event))
            seq.append(self._build_node(event))
        self.depth -= 1
        return seq

    def _build_mapping(self, mark: Mark) -> Map:
        self._open_level(mark)
        mapping = Map(mark)
        for event in self.events:
            if isinstance(event, yaml.MappingEndEvent):
                break
            key_mark = _read_event_mark(event)
            key = self._check_key(self._build_node(event), key_mark, mapping)
            value_event = next(self.events)
            value_mark, value = _read_event_mark(value_event), self._build_node(value_event)
            if key is not None:
                mapping[key] = value
                mapping.marks[key] = (key_mark, value_mark)
        self.depth -= 1
        return mapping

    def _check_key(self, key: Any, mark: Mark, mapping: Map) -> str | None:
        """Return the key, or None (and report a problem) if it is not text or a duplicate."""
        if not isinstance(key, str):
            self.problems.append(_describe_bad_key(key, mark))
            return None
        if key in mapping:
            first_line = mapping.marks[key][0].line
            message = (
                f"the key `{key}` stands twice in one mapping; it is first on line {first_line}"
            )
            self.problems.append(TextProblem(Code.DUPLICATE_KEY, message, mark, "keep one of them"))
            return None
        return key

    def _build_scalar(self, event: Any, mark: Mark) -> Any:
        text: str = event.value
        if mark.style or not event.implicit[0]:
            return text
        if text in _NULL:
            return None
        if text in _BOOL:
            return _BOOL[text]
        if _INT.fullmatch(text) or _FLOAT.fullmatch(text) or _NOT_FINITE.fullmatch(text):
            return self._build_number(text, mark)
        return text

    def _build_number(self, text: str, mark: Mark) -> int | float | str:
        if _INT.fullmatch(text):
            integer = _parse_integer(text)
            if -(1 << 63) <= integer < 1 << 63:
                return integer
        elif _FLOAT.fullmatch(text):
            number = float(text)
            if abs(number) != float("inf"):
                return number
        message = f"{text[:40]} is not a finite 64-bit number"
        hint = "quote it to keep it as text"
        self.problems.append(TextProblem(Code.YAML_VALUE, message, mark, hint))
        return text


def _parse_integer(text: str) -> int:
    """Parse an integer. Returns a number beyond 64 bits for long decimals, without parsing them."""
    if text[:2] in ("0o", "0x"):
        return int(text, 0)
    if len(text) < 25:
        return int(text)
    return 1 << 64


def _describe_bad_key(key: Any, mark: Mark) -> TextProblem:
    if isinstance(key, dict | list):
        message = "a key must be text, not a list or a mapping"
        hint = "quote the key; texts that start with {{ or [ need quotes"
        return TextProblem(Code.BAD_KEY, message, mark, hint)
    spelling = key
    if key is None:
        spelling = "null"
    elif isinstance(key, bool):
        spelling = str(key).lower()
    return TextProblem(
        Code.BAD_KEY, f"the key {spelling} is not text", mark, f'write "{spelling}": …'
    )


def _read_event_mark(event: Any) -> Mark:
    style = getattr(event, "style", None) or ""
    return Mark(event.start_mark.line + 1, event.start_mark.column + 1, style)


def _copy_node(node: Any) -> Any:
    if isinstance(node, Map):
        twin = Map(node.mark)
        twin.marks = dict(node.marks)
        for key, value in node.items():
            twin[key] = _copy_node(value)
        return twin
    if isinstance(node, Seq):
        items = Seq(node.mark)
        items.marks = list(node.marks)
        items.extend(_copy_node(value) for value in node)
        return items
    return node


def is_template(value: Any) -> bool:
    """Whether the value is text that contains a template."""
    return isinstance(value, str) and ("{{" in value or "{%" in value)
