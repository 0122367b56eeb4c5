"""Spark SQL with values in it: `{{ }}` becomes a parameter, never text.

A rendered template comes with a marker in place of every `{{ expression }}`. Here a marker becomes

- in the statement itself: one parameter;
- inside a quoted literal (`'a {{ x }} b'`, `"…"`): the whole literal becomes one parameter, its text with the values in it. After
  the name of a type (`date '{{ d }}'`, `interval '{{ n }}' day`) that is a cast, since a parameter cannot stand there;
- inside backticks: part of that name, quoted;
- after `| identifier`: a quoted name (a list: a qualified one). After `| sql`: text as it is, the author's explicit wish;
- inside a comment: nothing.

Should Spark read a text otherwise than this does, a marker is still the name of a parameter: a value can never become text.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct

from noetl.playbook.expressions import WORKER_LIMITS, Meter, text
from noetl.playbook.sqlplaces import misplaced
from noetl.playbook.sqltext import Unterminated, significant, split, tokens
from noetl.playbook.templates import Marked
from noetl.tools.sql import SqlError

PARAMETER = "noetl_"
HINT = "/*+"  # no comment: Spark reads it
_TOKEN = re.compile(
    r"""(?P<raw>\b[rR]'[^']*'|\b[rR]"[^"]*")
      | (?P<literal>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
      | (?P<name>`(?:[^`]|``)*`)
      | (?P<comment>--[^\n]*|/\*.*?\*/)
      | (?P<end>;)""",
    re.VERBOSE | re.DOTALL,
)
_TYPE = re.compile(r"\b(DATE|TIMESTAMP|TIMESTAMP_NTZ|TIMESTAMP_LTZ|INTERVAL)\s*$", re.IGNORECASE)
_UNIT = re.compile(
    r"\s+(?:YEAR|MONTH|DAY|HOUR|MINUTE|SECOND)(?:\s+TO\s+(?:MONTH|HOUR|MINUTE|SECOND))?\b",
    re.IGNORECASE,
)


class SparkStatement(Struct, frozen=True):
    text: str
    values: dict[str, Any]


def statements(source: str, marks: Sequence[Marked] = ()) -> list[SparkStatement]:
    """In order; empty ones are left out."""
    reader = _SqlReader(source, marks)
    reader.check_places()
    return list(reader.read())


def expressions(source: str, marks: Sequence[Marked] = ()) -> list[SparkStatement]:
    """As `statements`, of what is only a part of one and may begin with a value."""
    return list(_SqlReader(source, marks).read())


class _SqlReader:
    def __init__(self, source: str, marks: Sequence[Marked]) -> None:
        self._marks = {mark.marker: mark for mark in marks}
        private = re.escape(marks[0].marker[0]) if marks else ""
        self._marker = re.compile(f"{private}\\d+{private}") if marks else None
        self._source = source
        self._parts: list[str] = []
        self._values: dict[str, Any] = {}

    def read(self) -> Iterator[SparkStatement]:
        at = 0
        for found in _TOKEN.finditer(self._source):
            self._plain(self._source[at : found.start()])
            at = found.end()
            if found.lastgroup == "end":
                yield from self._finished()
            elif found.lastgroup in ("literal", "raw") and self._marked(found[0]):
                at = self._literal(found)
            else:
                self._quoted(str(found.lastgroup), found[0])
        self._plain(self._source[at:])
        yield from self._finished()

    def check_places(self) -> None:
        """A value cannot be a name or a keyword; where this reads a text otherwise than Spark, Spark says what is wrong."""
        if self._marker is None:
            return
        private = next(iter(self._marks))[0]
        kinds = {marker: mark.kind for marker, mark in self._marks.items()}
        try:
            found = [significant(each) for each in split(tokens(self._source, private, "spark"))]
        except Unterminated:
            return
        for wrong in (
            wrong for each in found for wrong in misplaced(each, kinds, private, "spark")
        ):
            raise SqlError(
                "SQL_PLACE", f"{self._shown(wrong.token.text)}: {wrong.message}; {wrong.hint}"
            )

    def _shown(self, piece: str) -> str:
        return "".join(
            p if isinstance(p, str) else "{{ " + p.source + " }}" for p in self._pieces(piece)
        )

    def _marked(self, piece: str) -> bool:
        return self._marker is not None and self._marker.search(piece) is not None

    def _finished(self) -> Iterator[SparkStatement]:
        written, values = "".join(self._parts).strip(), self._values
        self._parts, self._values = [], {}
        if written:
            yield SparkStatement(written, values)

    def _plain(self, piece: str) -> None:
        for part in self._pieces(piece):
            if isinstance(part, str):
                self._parts.append(part)
            elif part.kind == "identifier":
                self._parts.append(identifier(part.value))
            elif part.kind == "sql":
                self._parts.append(_text(part.value))
            else:
                self._parameter(part.value)

    def _quoted(self, kind: str, token: str) -> None:
        if not self._marked(token):
            self._parts.append(" " if kind == "comment" and not token.startswith(HINT) else token)
        elif kind == "name":
            self._parts.append(identifier(self._joined(token[1:-1].replace("``", "`"))))

    def _literal(self, found: re.Match[str]) -> int:
        """A parameter, or a cast of one after the name of a type. Where the text goes on."""
        token = found[0]
        inside = token.partition(token[-1])[2][:-1]
        if found.lastgroup == "literal" and "\\" in inside:
            raise SqlError(
                "SQL_VALUE", "a literal with both a value and a backslash: use concat('…', {{ x }})"
            )
        before = self._parts[-1] if self._parts else ""
        typed = _TYPE.search(before)
        if typed is None:
            self._parameter(self._joined(inside))
            return found.end()
        unit = _UNIT.match(self._source, found.end()) if typed[1].upper() == "INTERVAL" else None
        self._parts[-1] = before[: typed.start()]
        self._parts.append("CAST(")
        self._parameter(self._joined(inside))
        self._parts.append(f"AS {typed[1]}{'' if unit is None else unit[0]})")
        return found.end() if unit is None else unit.end()

    def _pieces(self, piece: str) -> Iterator[str | Marked]:
        at = 0
        for found in self._marker.finditer(piece) if self._marker is not None else ():
            yield piece[at : found.start()]
            yield self._marks[found[0]]
            at = found.end()
        yield piece[at:]

    def _joined(self, inside: str) -> str:
        return "".join(
            piece if isinstance(piece, str) else _text(piece.undoubled)
            for piece in self._pieces(inside)
        )

    def _parameter(self, value: Any) -> None:
        if isinstance(value, dict):
            raise SqlError("SQL_VALUE", "a map cannot be a parameter: use {{ x | tojson }}")
        name = f"{PARAMETER}{len(self._values) + 1}"
        self._values[name] = value
        self._parts.append(f" :{name} ")


def identifier(value: Any) -> str:
    """A name, or a list of names for a qualified one."""
    if isinstance(value, list):
        return ".".join(identifier(part) for part in value)
    if not isinstance(value, str) or not value:
        raise SqlError("SQL_NAME", f"{value!r} is not a name")
    return "`" + value.replace("`", "``") + "`"


def _text(value: Any) -> str:
    return text(Meter(WORKER_LIMITS), value)
