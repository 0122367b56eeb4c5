"""SQL with values in it: a template's values become parameters, never text; statements are found.

A rendered template comes with a marker in place of every `{{ expression }}`. Here a marker becomes

- in the statement itself: one parameter;
- inside a quoted literal (`'a {{ x }} b'`, `$$…$$`): the whole literal becomes one parameter, its text with the values in it.
  A literal that is nothing but a null is NULL;
- inside a quoted name (`"t_{{ x }}"`): part of that name, quoted;
- after `| identifier`: a quoted name (a list: a qualified one). After `| sql`: text as it is, the author's explicit wish;
- inside a comment: nothing.

`$name` outside of quotes is the parameter of that name from `params`. One pass over the text, whatever it holds.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from noetl.model.errors import Failure
from noetl.playbook.expressions import WORKER_LIMITS, Meter, text
from noetl.playbook.templates import Marked


class SqlError(Exception):
    """The statement, or a value in it, is not acceptable."""

    def __init__(
        self, code: str, message: str, kind: str = "sql", retryable: bool = False, sqlstate: str | None = None
    ) -> None:
        super().__init__(message)
        self.failure = Failure(code=code, kind=kind, message=message, retryable=retryable, sqlstate=sqlstate)


@dataclass(frozen=True, slots=True)
class Parameter:
    value: Any


Part = str | Parameter


@dataclass(frozen=True, slots=True)
class Statement:
    """Text and parameters in order. `first` is its first word, in capitals."""

    parts: tuple[Part, ...]
    first: str

    def bound(self) -> tuple[str, list[Any]]:
        """With $1, $2 … for the parameters."""
        values: list[Any] = []
        words: list[str] = []
        for part in self.parts:
            if isinstance(part, Parameter):
                values.append(part.value)
                words.append(f" ${len(values)} ")  # never grown together with what stands beside it
            else:
                words.append(part)
        return "".join(words), values

    def quoted(self, quote: Callable[[Any], str]) -> str:
        """With literals in place of the parameters, for statements that take none."""
        return "".join(f" {quote(part.value)} " if isinstance(part, Parameter) else part for part in self.parts)


# ---- reading -----------------------------------------------------------------------------------------------------------

_OPEN = re.compile(
    r"""(?P<escaped>\b[eE]'|\b[uU]&['"])
      | (?P<literal>')
      | (?P<name>")
      | (?P<line>--)
      | (?P<block>/\*)
      | (?P<word>[^\W\d][\w$]*)
      | (?P<dollar>\$(?:[^\W\d]\w*)?\$)
      | (?P<parameter>\$\w+)
      | (?P<end>;)""",
    re.VERBOSE,
)
_IN_BLOCK = re.compile(r"/\*|\*/")
_IN_ESCAPED = re.compile(r"\\.|''|'", re.DOTALL)
# statements whose literals are code of another language: a value in there would be code too
_BODIES = re.compile(r"DO\b|CREATE (?:OR REPLACE )?(?:FUNCTION|PROCEDURE)\b|COPY .*\bPROGRAM\b")
_WORDS = 16  # that tell what a statement is
_TRANSACTION = frozenset(("BEGIN", "COMMIT", "ROLLBACK", "START", "END", "ABORT"))
# statements that a database plans, and so may have parameters
PLANNED = frozenset(("SELECT", "INSERT", "UPDATE", "DELETE", "MERGE", "WITH", "VALUES", "TABLE", "FROM", "CALL", "("))


def statements(source: str, marks: Sequence[Marked] = (), params: Mapping[str, Any] | None = None) -> list[Statement]:
    """The statements of a marked text, in order; empty ones are left out."""
    return list(_Reader(source, marks, params or {}).read())


class _Reader:
    def __init__(self, source: str, marks: Sequence[Marked], params: Mapping[str, Any]) -> None:
        self._values = {mark.marker: mark for mark in marks}
        self._marker = (
            re.compile(f"{re.escape(marks[0].marker[0])}\\d+{re.escape(marks[0].marker[0])}") if marks else None
        )
        self._source = self._with_raw(source)
        self._params = params
        self._parts: list[Part] = []
        self._first = ""
        self._words: list[str] = []
        self._valued_literal = False

    def _with_raw(self, source: str) -> str:
        """`| sql` is part of the statement's text, quotes and all: it takes its place before anything is read."""
        if self._marker is None:
            return source
        own = source and next(iter(self._values))[0]

        def raw(found: re.Match[str]) -> str:
            mark = self._values[found[0]]
            if mark.kind != "sql":
                return found[0]
            if own in (written := _text(mark.value)):
                raise SqlError("SQL_VALUE", "a value given as SQL holds a private character")
            return written

        return self._marker.sub(raw, source)

    def read(self) -> Iterator[Statement]:
        source, at = self._source, 0
        while (found := _OPEN.search(source, at)) is not None:
            self._plain(source[at : found.start()])
            kind, start = found.lastgroup, found.start()
            at = found.end()
            match kind:
                case "end":
                    yield from self._finished()
                case "word":
                    self._first = self._first or found[0].upper()
                    if len(self._words) < _WORDS:
                        self._words.append(found[0].upper())
                    self._parts.append(found[0])
                case "parameter":
                    self._first = self._first or "$"
                    self._parts.append(self._named(found[0][1:]))
                case "line":
                    at = self._line(start)
                case "block":
                    at = self._block(start)
                case "name":
                    at = self._name(start)
                case _:
                    at = self._literal(str(kind), found)
        self._plain(source[at:])
        yield from self._finished()

    def _finished(self) -> Iterator[Statement]:
        parts, first = tuple(self._parts), self._first
        if self._valued_literal and _BODIES.match(" ".join(self._words)):
            message = (
                f"a value inside the body of {first} would be code: give it with set_config('noetl.x', {{{{ x }}}}, true) "
                "and read it with current_setting('noetl.x')"
            )
            raise SqlError("SQL_VALUE_IN_BODY", message)
        self._parts, self._words, self._first, self._valued_literal = [], [], "", False
        if first:  # more than white space and comments
            yield Statement(parts, first)

    # ---- pieces --------------------------------------------------------------------------------------------------------------

    def _plain(self, piece: str) -> None:
        """Text outside of quotes."""
        for part in self._pieces(piece):
            if isinstance(part, str):
                self._parts.append(part)
                self._first = self._first or part.strip()[:1]
                continue
            self._first = self._first or "?"
            if part.kind == "identifier":
                self._parts.append(identifier(part.value))
            else:
                self._parts.append(Parameter(parameter(part.value)))

    def _pieces(self, piece: str) -> Iterator[str | Marked]:
        if self._marker is None:
            yield piece
            return
        at = 0
        for found in self._marker.finditer(piece):
            if found.start() > at:
                yield piece[at : found.start()]
            yield self._values[found[0]]
            at = found.end()
        if at < len(piece):
            yield piece[at:]

    def _marked(self, piece: str) -> bool:
        return self._marker is not None and self._marker.search(piece) is not None

    def _named(self, name: str) -> Part:
        if name.isdigit():
            raise SqlError("SQL_PARAMETER", f"${name}: parameters are used by name; write params: {{x: …}} and $x")
        if name not in self._params:
            known = ", ".join(f"${known}" for known in self._params) or "none"
            raise SqlError("SQL_PARAMETER", f"${name} is not among the params ({known})")
        return Parameter(parameter(self._params[name]))

    def _line(self, start: int) -> int:
        stop = self._source.find("\n", start)
        return self._comment(start, len(self._source) if stop < 0 else stop)

    def _block(self, start: int) -> int:
        depth, at = 1, start + 2
        while depth:
            found = _IN_BLOCK.search(self._source, at)
            if found is None:
                raise _unterminated("comment", self._source, start)
            depth += 1 if found[0] == "/*" else -1
            at = found.end()
        return self._comment(start, at)

    def _comment(self, start: int, stop: int) -> int:
        comment = self._source[start:stop]
        self._parts.append(" " if self._marked(comment) else comment)
        return stop

    def _name(self, start: int) -> int:
        stop, inside = self._quoted(start, '"')
        if self._marked(inside):
            pieces = [p if isinstance(p, str) else _text(p.value) for p in self._pieces(inside.replace('""', '"'))]
            self._parts.append(identifier("".join(pieces)))
        else:
            self._parts.append(self._source[start:stop])
        self._first = self._first or '"'
        return stop

    def _literal(self, kind: str, opening: re.Match[str]) -> int:
        start = opening.start()
        if kind == "literal":
            stop, inside = self._quoted(start, "'")
            inside = inside.replace("''", "'")
        elif kind == "dollar":
            end = self._source.find(opening[0], opening.end())
            if end < 0:
                raise _unterminated("dollar quote", self._source, start)
            stop, inside = end + len(opening[0]), self._source[opening.end() : end]
        else:
            return self._escaped(opening)
        self._first = self._first or "'"
        if self._marked(inside):
            self._valued_literal = True
            self._parts.append(Parameter(self._joined(inside)))
        else:
            self._parts.append(self._source[start:stop])
        return stop

    def _escaped(self, opening: re.Match[str]) -> int:
        """E'…' and U&'…', which have escapes of their own."""
        if opening[0][-1] == '"' or opening[0][0] in "uU":
            stop, _ = self._quoted(opening.end() - 1, opening[0][-1])
        else:
            at = opening.end()
            while True:
                found = _IN_ESCAPED.search(self._source, at)
                if found is None:
                    raise _unterminated("literal", self._source, opening.start())
                at = found.end()
                if found[0] == "'":
                    break
            stop = at
        self._first = self._first or "'"
        written = self._source[opening.start() : stop]
        if self._marked(written):
            raise SqlError(
                "SQL_VALUE", f"a value inside {opening[0]}…{opening[0][-1]} is not possible: use plain quotes"
            )
        self._parts.append(written)
        return stop

    def _quoted(self, start: int, quote: str) -> tuple[int, str]:
        """Where a quoted text ends, and what is inside."""
        at = start + 1
        while True:
            end = self._source.find(quote, at)
            if end < 0:
                raise _unterminated("name" if quote == '"' else "literal", self._source, start)
            if self._source[end + 1 : end + 2] != quote:
                return end + 1, self._source[start + 1 : end]
            at = end + 2

    def _joined(self, inside: str) -> str | None:
        pieces = list(self._pieces(inside))
        if len(pieces) == 1 and isinstance(pieces[0], Marked) and pieces[0].value is None:
            return None
        return "".join(piece if isinstance(piece, str) else _text(piece.value) for piece in pieces)


def _unterminated(what: str, source: str, start: int) -> SqlError:
    line = source.count("\n", 0, start) + 1
    return SqlError("SQL_UNTERMINATED", f"a {what} that begins in line {line} of the statement does not end")


def check_transaction(found: Iterable[Statement]) -> None:
    """The statements of a task are one transaction: they cannot have their own."""
    for statement in found:
        if statement.first in _TRANSACTION:
            message = (
                f"{statement.first}: the statements of a task are one transaction already; or set autocommit: true"
            )
            raise SqlError("SQL_TRANSACTION", message)


# ---- values in ---------------------------------------------------------------------------------------------------------


def _text(value: Any) -> str:
    return text(Meter(WORKER_LIMITS), value)


def identifier(value: Any) -> str:
    """A name, or a list of names for a qualified one."""
    if isinstance(value, list):
        return ".".join(identifier(part) for part in value)
    if not isinstance(value, str) or not value:
        raise SqlError("SQL_IDENTIFIER", f"a name in SQL is text, not {_kind(value)}")
    if "\0" in value:
        raise SqlError("SQL_IDENTIFIER", "a name in SQL cannot hold the character zero")
    return '"' + value.replace('"', '""') + '"'


def parameter(value: Any) -> Any:
    """A list is an array; a map needs `tojson`, since nothing says which type it should have."""
    if isinstance(value, dict):
        raise SqlError("SQL_VALUE", "a map is no SQL value: write {{ x | tojson }}, with ::jsonb where json is meant")
    if isinstance(value, list):
        return [parameter(part) for part in value]
    return value


def _kind(value: Any) -> str:
    return "null" if value is None else f"a {type(value).__name__}"


# ---- values out --------------------------------------------------------------------------------------------------------


def column_names(given: Iterable[str]) -> list[str]:
    """Every column keeps its value: the second `a` is `a_2`."""
    names: list[str] = []
    for name in given:
        unique, number = name, 1
        while unique in names:
            number += 1
            unique = f"{name}_{number}"
        names.append(unique)
    return names


def changed(count: int | None) -> dict[str, Any]:
    """The value of a statement that gives no rows: `row_count` counts those that it changed."""
    return {"rows": [], "row_count": max(count or 0, 0), "columns": []}
