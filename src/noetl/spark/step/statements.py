"""Spark SQL with values: `{{ }}` becomes a parameter, never text.

A rendered template has a marker in place of every `{{ expression }}`. A marker becomes

- in the statement itself: one parameter;
- inside a quoted literal (`'a {{ x }} b'`, `"…"`): the whole literal becomes one parameter, its text
  with the values in it. After the name of a type (`date '{{ d }}'`, `interval '{{ n }}' day`) this is
  a cast, since a parameter cannot stand there;
- inside backticks: a part of that quoted name;
- with `| identifier`: a quoted name (a list: a qualified one);
- with `| sql`: text as it is, because the author asks for it explicitly;
- inside a comment: nothing.

If Spark reads a text differently from this module, a marker is still the name of a parameter: a
value can never become text.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from noetl.playbook.sqlplaces import find_misplaced
from noetl.playbook.sqltext import UnterminatedSql, drop_comments, split_statements, tokenize_sql
from noetl.spark.messages import SparkStatement
from noetl.template.limits import WORKER_LIMITS, Meter
from noetl.template.model import MarkedValue
from noetl.template.writing import format_as_text
from noetl.tools.sql.statements import SqlError

PARAMETER_PREFIX = "noetl_"
HINT_START = "/*+"  # looks like a comment, but Spark reads it
_TOKEN = re.compile(
    r"""(?P<raw>\b[rR]'[^']*'|\b[rR]"[^"]*")
      | (?P<literal>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
      | (?P<name>`(?:[^`]|``)*`)
      | (?P<comment>--[^\n]*|/\*.*?\*/)
      | (?P<end>;)""",
    re.VERBOSE | re.DOTALL,
)
_TYPE_NAME = re.compile(
    r"\b(DATE|TIMESTAMP|TIMESTAMP_NTZ|TIMESTAMP_LTZ|INTERVAL)\s*$", re.IGNORECASE
)
_INTERVAL_UNIT = re.compile(
    r"\s+(?:YEAR|MONTH|DAY|HOUR|MINUTE|SECOND)(?:\s+TO\s+(?:MONTH|HOUR|MINUTE|SECOND))?\b",
    re.IGNORECASE,
)


def parse_spark_sql(source: str, marks: Sequence[MarkedValue] = ()) -> list[SparkStatement]:
    """The statements of a text in order, without empty ones."""
    reader = _SqlReader(source, marks)
    reader.check_places()
    return list(reader.read())


def parse_spark_expressions(source: str, marks: Sequence[MarkedValue] = ()) -> list[SparkStatement]:
    """Parse a part of a statement, which may begin with a value."""
    return list(_SqlReader(source, marks).read())


class _SqlReader:
    """Reads a text with markers, and collects the parts and values of the current statement."""

    def __init__(self, source: str, marks: Sequence[MarkedValue]) -> None:
        self._marks = {mark.marker: mark for mark in marks}
        self._marker: re.Pattern[str] | None = None
        if marks:
            private = re.escape(marks[0].marker[0])
            self._marker = re.compile(f"{private}\\d+{private}")
        self._source = source
        self._parts: list[str] = []
        self._values: dict[str, Any] = {}

    def read(self) -> Iterator[SparkStatement]:
        position = 0
        for found in _TOKEN.finditer(self._source):
            self._add_plain(self._source[position : found.start()])
            position = found.end()
            if found.lastgroup == "end":
                yield from self._finish_statement()
            elif found.lastgroup in ("literal", "raw") and self._has_marker(found[0]):
                position = self._add_literal(found)
            else:
                self._add_quoted(str(found.lastgroup), found[0])
        self._add_plain(self._source[position:])
        yield from self._finish_statement()

    def check_places(self) -> None:
        """Refuse a value in the place of a name or a keyword.

        A text that this module cannot split is left to Spark, which reports what is wrong.
        """
        if self._marker is None:
            return
        private = next(iter(self._marks))[0]
        kinds = {marker: mark.kind for marker, mark in self._marks.items()}
        try:
            parts = split_statements(tokenize_sql(self._source, private, "spark"))
            significant_parts = [drop_comments(part) for part in parts]
        except UnterminatedSql:
            return
        for part in significant_parts:
            for wrong in find_misplaced(part, kinds, private, "spark"):
                shown = self._show_templates(wrong.token.text)
                raise SqlError("SQL_PLACE", f"{shown}: {wrong.message}; {wrong.hint}")

    def _show_templates(self, piece: str) -> str:
        """The text with the templates of its markers, for an error message."""
        parts = []
        for part in self._split_markers(piece):
            parts.append(part if isinstance(part, str) else "{{ " + part.source + " }}")
        return "".join(parts)

    def _has_marker(self, piece: str) -> bool:
        return self._marker is not None and self._marker.search(piece) is not None

    def _finish_statement(self) -> Iterator[SparkStatement]:
        """The current statement, if it is not empty. The next one starts."""
        text, values = "".join(self._parts).strip(), self._values
        self._parts, self._values = [], {}
        if text:
            yield SparkStatement(text, values)

    def _add_plain(self, piece: str) -> None:
        """Add text that is neither quoted nor a comment."""
        for part in self._split_markers(piece):
            if isinstance(part, str):
                self._parts.append(part)
            elif part.kind == "identifier":
                self._parts.append(quote_spark_name(part.value))
            elif part.kind == "sql":
                self._parts.append(_value_to_text(part.value))
            else:
                self._add_parameter(part.value)

    def _add_quoted(self, kind: str, token: str) -> None:
        """Add a literal without markers, a name or a comment."""
        if self._has_marker(token):
            if kind == "name":
                name = token[1:-1].replace("``", "`")
                self._parts.append(quote_spark_name(self._join_values(name)))
            return
        is_comment = kind == "comment" and not token.startswith(HINT_START)
        self._parts.append(" " if is_comment else token)

    def _add_literal(self, found: re.Match[str]) -> int:
        """Add a literal with markers: a parameter, or a cast of one after the name of a type.

        Returns the position after it.
        """
        token = found[0]
        inside = token.partition(token[-1])[2][:-1]
        if found.lastgroup == "literal" and "\\" in inside:
            raise SqlError(
                "SQL_VALUE", "a literal with both a value and a backslash: use concat('…', {{ x }})"
            )
        before = self._parts[-1] if self._parts else ""
        typed = _TYPE_NAME.search(before)
        if typed is None:
            self._add_parameter(self._join_values(inside))
            return found.end()
        type_name, end = typed[1], found.end()
        if type_name.upper() == "INTERVAL":
            unit = _INTERVAL_UNIT.match(self._source, end)
            if unit is not None:
                type_name, end = type_name + unit[0], unit.end()
        self._parts[-1] = before[: typed.start()]
        self._parts.append("CAST(")
        self._add_parameter(self._join_values(inside))
        self._parts.append(f"AS {type_name})")
        return end

    def _split_markers(self, piece: str) -> Iterator[str | MarkedValue]:
        """The text between the markers, and the marks, in order."""
        if self._marker is None:
            yield piece
            return
        position = 0
        for found in self._marker.finditer(piece):
            yield piece[position : found.start()]
            yield self._marks[found[0]]
            position = found.end()
        yield piece[position:]

    def _join_values(self, inside: str) -> str:
        """The text with the values in place of their markers."""
        parts = []
        for piece in self._split_markers(inside):
            parts.append(piece if isinstance(piece, str) else _value_to_text(piece.undoubled))
        return "".join(parts)

    def _add_parameter(self, value: Any) -> None:
        if isinstance(value, dict):
            raise SqlError("SQL_VALUE", "a map cannot be a parameter: use {{ x | tojson }}")
        name = f"{PARAMETER_PREFIX}{len(self._values) + 1}"
        self._values[name] = value
        self._parts.append(f" :{name} ")


def quote_spark_name(value: Any) -> str:
    """Quote a name, or a list of names as a qualified name."""
    if isinstance(value, list):
        return ".".join(quote_spark_name(part) for part in value)
    if not isinstance(value, str) or not value:
        raise SqlError("SQL_NAME", f"{value!r} is not a name")
    return "`" + value.replace("`", "``") + "`"


def _value_to_text(value: Any) -> str:
    return format_as_text(Meter(WORKER_LIMITS), value)
