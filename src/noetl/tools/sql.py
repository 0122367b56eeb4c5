"""SQL with values in it: a template's values become literals that cannot be left; statements are found.

A rendered template comes with a marker in place of every `{{ expression }}`. Here a marker becomes

- in the statement itself: a literal of the value's type;
- inside a quoted literal (`'a {{ x }} b'`, `$$…$$`): the whole literal is written anew, its text with the values in it.
  A literal that is nothing but a null is NULL;
- inside the body of DO and CREATE FUNCTION: the same, one level deeper;
- inside a quoted name (`"t_{{ x }}"`): part of that name, quoted;
- after `| identifier`: a quoted name (a list: a qualified one). After `| sql`: text as it is, the author's explicit wish;
- inside a comment: nothing.

`$name` outside of quotes is the value of that name from `params`. Why literals and not parameters of the protocol:
`docs/decisions/0015-values-in-sql-are-literals.md`. What reads a keychain is a parameter all the same, where there can be one.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from noetl.model.errors import Failure
from noetl.playbook.expressions import WORKER_LIMITS, Meter, text
from noetl.playbook.sqlplaces import SqlPlace, misplaced, places
from noetl.playbook.sqltext import (
    LITERALS,
    Dialect,
    Token,
    Unterminated,
    inside,
    marker_pattern,
    split,
    tokens,
)
from noetl.playbook.templates import Marked


class SqlError(Exception):
    """The statement, or a value in it, is not acceptable."""

    def __init__(
        self,
        code: str,
        message: str,
        kind: str = "sql",
        retryable: bool = False,
        sqlstate: str | None = None,
    ) -> None:
        super().__init__(message)
        self.failure = Failure(
            code=code, kind=kind, message=message, retryable=retryable, sqlstate=sqlstate
        )


# ---- statements --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Parameter:
    """A value in a statement. `shown` is what the author wrote for it."""

    value: Any
    shown: str = ""
    function: str = ""  # in capitals: whose argument it is
    typed_by_place: bool = False  # a column or an operand beside it says which type it has
    in_list: bool = False  # of IN (…)
    spaced: bool = False  # not in quotes: what stands beside it must not grow together with it
    secret: bool = False


@dataclass(frozen=True, slots=True)
class QuotedCode:
    """Code in quotes: of DO and CREATE FUNCTION."""

    parts: "tuple[Part, ...]"
    shown: str


Part = str | Parameter | QuotedCode
Quote = Callable[[Parameter], str]


@dataclass(frozen=True, slots=True)
class Statement:
    """Text and values in order. `first` is its first word, in capitals; `line` says where it begins in the text of the task."""

    parts: tuple[Part, ...]
    first: str
    line: int = 1

    @property
    def has_secrets(self) -> bool:
        return any(isinstance(part, Parameter) and part.secret for part in self.parts)

    def written(self, quote: Quote) -> str:
        """With a literal for every value."""
        return "".join(_written(part, quote) for part in self.parts)

    def bound(self, quote: Quote) -> tuple[str, list[Any]]:
        """As `written`, but with $1, $2 … for secrets."""
        values: list[Any] = []
        words: list[str] = []
        for part in self.parts:
            if isinstance(part, Parameter) and part.secret:
                values.append(part.value)
                words.append(f" ${len(values)} ")
            else:
                words.append(_written(part, quote))
        return "".join(words), values

    def excerpt(self, position: int | None, quote: Quote) -> str:
        """The line of a position (from 1) in the text that `bound` gives, as the author wrote it, and a caret below. Without a
        position: the first line of the statement."""
        shown, at = self._shown(None if position is None else position - 1, quote)
        begin = shown.rfind("\n", 0, at) + 1
        line = shown[begin:].partition("\n")[0]
        column = at - begin
        cut = max(0, column - EXCERPT // 2)
        label = f"LINE {self.line + shown.count(chr(10), 0, begin)}: {'...' if cut else ''}"
        written = f"{label}{line[cut : cut + EXCERPT]}{'...' if len(line) > cut + EXCERPT else ''}"
        if position is None:
            return written
        return f"{written}\n{' ' * (len(label) + column - cut)}^"

    def _shown(self, position: int | None, quote: Quote) -> tuple[str, int]:
        """The statement as it was written, and where in it the position is."""
        words: list[str] = []
        sent, shown, number = 0, 0, 0
        found: int | None = None
        for part in self.parts:
            if isinstance(part, Parameter) and part.secret:
                number += 1
                size = len(f" ${number} ")
            else:
                size = len(_written(part, quote))
            word = part if isinstance(part, str) else part.shown
            if position is not None and found is None and position < sent + size:
                found = shown + (position - sent if isinstance(part, str) else 0)
            sent, shown = sent + size, shown + len(word)
            words.append(word)
        written = "".join(words)
        if position is None:
            return written, len(written) - len(written.lstrip())
        return written, len(written) if found is None else found


EXCERPT = 120  # characters of a line that an error shows
# statements that a database plans, and so may have parameters
PLANNED = frozenset(
    (
        "SELECT",
        "INSERT",
        "UPDATE",
        "DELETE",
        "MERGE",
        "WITH",
        "VALUES",
        "TABLE",
        "FROM",
        "CALL",
        "(",
    )
)
_TRANSACTION = frozenset(("BEGIN", "COMMIT", "ROLLBACK", "START", "END", "ABORT"))


def _written(part: Part, quote: Quote) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, Parameter):
        return f" {quote(part)} " if part.spaced else quote(part)
    return quoted("".join(_written(each, quote) for each in part.parts))


def quoted(value: str) -> str:
    """A literal in which nothing but the quote has a meaning: `standard_conforming_strings` is on."""
    return "'" + value.replace("'", "''") + "'"


def check_transaction(found: Iterable[Statement]) -> None:
    """The statements of a task are one transaction: they cannot have their own."""
    for statement in found:
        if statement.first in _TRANSACTION:
            message = f"{statement.first}: the statements of a task are one transaction already; or set autocommit: true"
            raise SqlError("SQL_TRANSACTION", message)


def open_transaction() -> SqlError:
    """The failure of an `autocommit` task that began a transaction and did not end it."""
    message = "a transaction is still open at the end of the statements, so its changes are rolled back; add `commit`"
    return SqlError("SQL_TRANSACTION", message)


# ---- reading -----------------------------------------------------------------------------------------------------------


def statements(
    source: str,
    marks: Sequence[Marked] = (),
    params: Mapping[str, Any] | None = None,
    dialect: Dialect = "postgres",
) -> list[Statement]:
    """The statements of a marked text, in order; empty ones are left out."""
    try:
        return list(_StatementReader(source, marks, params or {}, dialect).read())
    except Unterminated as error:
        raise SqlError("SQL_UNTERMINATED", str(error)) from error


class _StatementReader:
    def __init__(
        self, source: str, marks: Sequence[Marked], params: Mapping[str, Any], dialect: Dialect
    ) -> None:
        self._marks = {mark.marker: mark for mark in marks}
        self._private = marks[0].marker[0] if marks else ""
        self._pattern = marker_pattern(self._private) if marks else None
        self._source = self._with_raw(source)
        self._params = params
        self._dialect = dialect
        self._kinds = {marker: mark.kind for marker, mark in self._marks.items()}
        self._counted, self._lines = 0, 1  # lines up to a position

    def _with_raw(self, source: str) -> str:
        """`| sql` is part of the statement's text, quotes and all: it takes its place before anything is read."""
        if self._pattern is None:
            return source

        def raw(found: re.Match[str]) -> str:
            mark = self._marks[found[0]]
            if mark.kind != "sql":
                return found[0]
            if self._private in (written := _text(mark.value)):
                raise SqlError("SQL_VALUE", "a value given as SQL holds a private character")
            return written

        return self._pattern.sub(raw, source)

    def read(self) -> Iterator[Statement]:
        at = 0
        for found in split(tokens(self._source, self._private, self._dialect)):
            solid = [token for token in found if token.kind != "comment"]
            if solid:
                yield self._statement(found, solid, at)
            end = found[-1].end if found else at
            at = self._source.find(";", end) + 1 or len(self._source)

    def _statement(self, found: Sequence[Token], solid: Sequence[Token], start: int) -> Statement:
        line = self._line(start)
        for wrong in misplaced(solid, self._kinds, self._private, self._dialect):
            line = self._line(wrong.token.start)
            raise SqlError(
                "SQL_PLACE",
                f"{self._shown(wrong.token.text)} in line {line}: {wrong.message}; {wrong.hint}",
            )
        _refuse_copy(solid)
        by_start = {place.token.start: place for place in places(solid)}
        reading = _Reading(self, solid)
        parts: list[Part] = []
        at = start
        for token in found:
            parts.append(self._source[at : token.start])
            if token.kind == "comment":
                parts.append(self._comment(token))
            else:
                parts.append(reading.part(by_start[token.start]))
            at = token.end
        end = self._source.find(";", at)
        parts.append(self._source[at : end if end >= 0 else len(self._source)])
        return Statement(_joined(parts), _first(solid[0]), line)

    def _line(self, at: int) -> int:
        """Of the template: text that a loop or a condition made counts from the value before it. Asked for in order."""
        for found in (
            self._pattern.finditer(self._source, self._counted, at)
            if self._pattern is not None
            else ()
        ):
            self._counted, self._lines = found.end(), self._marks[found[0]].line
        self._lines += self._source.count("\n", self._counted, at)
        self._counted = max(self._counted, at)
        return self._lines

    def _comment(self, token: Token) -> str:
        if not self.marked(token.text):
            return token.text
        return "\n" * token.text.count("\n") or " "

    # ---- for those who read one statement ----

    @property
    def dialect(self) -> Dialect:
        return self._dialect

    def marked(self, piece: str) -> bool:
        return self._pattern is not None and self._pattern.search(piece) is not None

    def mark(self, token: Token) -> Marked:
        return self._marks[token.text]

    def pieces(self, piece: str) -> Iterator[str | Marked]:
        at = 0
        for found in self._pattern.finditer(piece) if self._pattern is not None else ():
            if found.start() > at:
                yield piece[at : found.start()]
            yield self._marks[found[0]]
            at = found.end()
        if at < len(piece):
            yield piece[at:]

    def shown(self, piece: str) -> str:
        return self._shown(piece)

    def _shown(self, piece: str) -> str:
        return "".join(
            part if isinstance(part, str) else "{{ " + part.source + " }}"
            for part in self.pieces(piece)
        )

    def inner(self, source: str) -> "list[Token]":
        return list(tokens(source, self._private, self._dialect))

    def named(self, name: str) -> Any:
        if name.isdigit():
            raise SqlError(
                "SQL_PARAMETER",
                f"${name}: parameters are used by name; write params: {{x: …}} and $x",
            )
        if name not in self._params:
            known = ", ".join(f"${known}" for known in self._params) or "none"
            raise SqlError("SQL_PARAMETER", f"${name} is not among the params ({known})")
        return self._params[name]


# functions that take an array of whatever type the array beside it has
_LIKE_THE_OTHERS = frozenset(
    {"ANY", "ALL", "SOME", "COALESCE", "NULLIF", "ARRAY_CAT", "GREATEST", "LEAST"}
)
_COMPARES = frozenset("=<>&@!?")
_LEVELS = frozenset({"EXCEPTION", "NOTICE", "WARNING", "INFO", "LOG", "DEBUG", "RAISE"})
_SECRET = re.compile(r"\bkeychain\b")


class _Reading:
    """One statement, or the body of one."""

    def __init__(
        self, reader: _StatementReader, solid: Sequence[Token], in_body: bool = False
    ) -> None:
        self._reader = reader
        self._in_body = in_body
        words = [token.word for token in solid]
        self._first = _first(solid[0]) if solid else ""
        creates = self._first == "CREATE" and any(
            word in ("FUNCTION", "PROCEDURE") for word in words[1:4]
        )
        self._body_of = self._first if self._first == "DO" else "CREATE FUNCTION" if creates else ""
        self._copies_program = self._first == "COPY" and "PROGRAM" in words
        self._numbered = in_body or self._first == "PREPARE"  # $1 is a parameter of its own
        self._language = _language(solid)
        self._dynamic = False  # after EXECUTE, until the statement of the body ends

    def part(self, place: SqlPlace) -> Part:
        token = place.token
        if self._in_body and (token.word in ("EXECUTE", "USING") or token.kind == "end"):
            self._dynamic = token.word == "EXECUTE"
        match token.kind:
            case "mark":
                return self._value(place)
            case "parameter":
                if self._numbered and token.text[1:].isdigit():
                    return token.text
                return self._parameter(self._reader.named(token.text[1:]), place, token.text)
            case kind if kind in LITERALS and self._reader.marked(token.text):
                return self._literal(place)
            case "name" if self._reader.marked(token.text):
                return identifier(self._joined(inside(token)))
            case _:
                return token.text

    def _value(self, place: SqlPlace) -> Part:
        mark = self._reader.mark(place.token)
        if mark.kind == "identifier":
            return identifier(mark.value)
        return self._parameter(mark.value, place, self._reader.shown(place.token.text))

    def _parameter(self, value: Any, place: SqlPlace, shown: str) -> Part:
        secret = not self._in_body and self._first in PLANNED and _SECRET.search(shown) is not None
        spaced = place.token.kind in ("mark", "parameter")
        return replace(
            _placed(place), value=parameter(value), shown=shown, spaced=spaced, secret=secret
        )

    # ---- literals ----

    def _literal(self, place: SqlPlace) -> Part:
        token = place.token
        if self._copies_program:
            raise SqlError(
                "SQL_VALUE_IN_BODY", "a value inside the command of COPY … PROGRAM would be code"
            )
        if self._is_body(place):
            return self._body(token)
        if self._dynamic and _is_code(place):
            message = "a value inside a text that EXECUTE runs would be code: give it with USING, or format('%L', …)"
            raise SqlError("SQL_VALUE_IN_BODY", message)
        if token.kind == "unicode":
            raise SqlError("SQL_VALUE", "a value inside U&'…' is not possible: use plain quotes")
        if token.kind == "escaped":
            return self._escaped(token)
        return self._parameter(
            self._joined(inside(token), _message_of_raise(place)),
            place,
            self._reader.shown(token.text),
        )

    def _escaped(self, token: Token) -> str:
        """E'…' stays what it is; a value in it is escaped the same way."""
        words: list[str] = []
        for piece in self._reader.pieces(token.text):
            if isinstance(piece, str):
                words.append(piece)
            else:
                words.append(
                    _no_zero(_text(piece.undoubled)).replace("\\", "\\\\").replace("'", "''")
                )
        return "".join(words)

    def _joined(self, written: str, raising: bool = False) -> str | None:
        pieces = list(self._reader.pieces(written))
        if len(pieces) == 1 and isinstance(pieces[0], Marked) and pieces[0].undoubled is None:
            return None
        words: list[str] = []
        for piece in pieces:
            if isinstance(piece, str):
                words.append(piece)
            else:
                value = _text(piece.undoubled)
                words.append(value.replace("%", "%%") if raising else value)
        return "".join(words)

    # ---- bodies ----

    def _is_body(self, place: SqlPlace) -> bool:
        if self._reader.dialect != "postgres" or not self._body_of:
            return False
        return self._body_of == "DO" or (place.previous is not None and place.previous.word == "AS")

    def _body(self, token: Token) -> QuotedCode:
        if self._language not in ("", "PLPGSQL", "SQL"):
            message = f"a value inside a body in {self._language.lower()} would be code: give it as an argument"
            raise SqlError("SQL_VALUE_IN_BODY", message)
        if token.kind not in ("literal", "dollar"):
            raise SqlError(
                "SQL_VALUE_IN_BODY",
                "a value inside a body needs plain quotes or dollar quotes around it",
            )
        source = inside(token)
        found = self._reader.inner(source)
        solid = [each for each in found if each.kind != "comment"]
        by_start = {place.token.start: place for place in places(solid)}
        reading = _Reading(self._reader, solid, in_body=True)
        parts: list[Part] = []
        at = 0
        for each in found:
            parts.append(source[at : each.start])
            if each.kind == "comment":
                parts.append(" " if self._reader.marked(each.text) else each.text)
            else:
                parts.append(reading.part(by_start[each.start]))
            at = each.end
        parts.append(source[at:])
        return QuotedCode(_joined(parts), self._reader.shown(token.text))


def _refuse_copy(solid: Sequence[Token]) -> None:
    words = {token.word for token in solid} if solid[0].word == "COPY" else set()
    if words & {"STDIN", "STDOUT"}:
        message = "COPY has nothing to read from or to write to here: use `kind: transfer`, a `sink`, or INSERT"
        raise SqlError("SQL_COPY", message)


def _language(solid: Sequence[Token]) -> str:
    for at, token in enumerate(solid[:-1]):
        if token.word == "LANGUAGE":
            return solid[at + 1].text.strip("'\"").upper()
    return ""


def _message_of_raise(place: SqlPlace) -> bool:
    """Whether this is the message of RAISE, in which a percent sign stands for an argument."""
    return place.previous is not None and place.previous.word in _LEVELS


def _is_code(place: SqlPlace) -> bool:
    """Whether a literal after EXECUTE is what runs, or the pattern that makes it; not an argument of a function."""
    patterns = (
        place.opener == "FORMAT" and place.previous is not None and place.previous.text == "("
    )
    return not place.opener or patterns


def _placed(place: SqlPlace) -> Parameter:
    previous = place.previous
    compared = previous is not None and previous.kind == "symbol" and previous.text[-1] in _COMPARES
    stored = place.opener == "VALUES" and place.first in ("INSERT", "MERGE", "WITH")
    inside_in = place.opener == "IN" and previous is not None and previous.text in ("(", ",")
    return Parameter(
        None,
        function=place.opener,
        typed_by_place=compared or stored or place.opener in _LIKE_THE_OTHERS,
        in_list=inside_in,
    )


def _joined(parts: Sequence[Part]) -> tuple[Part, ...]:
    """Texts that stand side by side are one."""
    made: list[Part] = []
    for part in parts:
        if isinstance(part, str) and made and isinstance(made[-1], str):
            made[-1] += part
        elif part != "":
            made.append(part)
    return tuple(made)


def _first(token: Token) -> str:
    return token.word or token.text[:1]


# ---- values in ---------------------------------------------------------------------------------------------------------


def _text(value: Any) -> str:
    return text(Meter(WORKER_LIMITS), value)


def _no_zero(value: str) -> str:
    if "\0" in value:
        raise SqlError("SQL_VALUE", "a text in this statement cannot hold the character zero")
    return value


def scalar(value: Any) -> str | None:
    """A number, bool or null as every SQL writes it; None of anything else."""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, int | float):
        return repr(value) if value >= 0 else f"({value!r})"
    return None


def listed(value: Parameter, quote: Quote) -> str:
    """The items of a list in IN (…)."""
    if not value.value:
        message = f"{value.shown}: the list of IN (…) is empty, which SQL does not allow: write = ANY({value.shown})"
        raise SqlError("SQL_VALUE", message)
    return ", ".join(quote(Parameter(item, value.shown)) for item in value.value)


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
        raise SqlError(
            "SQL_VALUE",
            "a map is no SQL value: write {{ x | tojson }}, with ::jsonb where json is meant",
        )
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
