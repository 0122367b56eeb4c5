"""Splits SQL into statements, and inserts a template's values as literals, safe from injection.

A rendered template has a marker in place of every `{{ expression }}`. Here a marker becomes

- in the statement itself: a literal of the value's type;
- inside a quoted literal (`'a {{ x }} b'`, `$$…$$`): text in that literal, which is quoted again.
  A literal that contains only a null is NULL;
- inside the body of DO and CREATE FUNCTION: the same, one level deeper;
- inside a quoted name (`"t_{{ x }}"`): part of that name, quoted;
- after `| identifier`: a quoted name; a list is a qualified name;
- after `| sql`: text as it is, because the author asks for it;
- inside a comment: nothing.

`$name` outside of quotes is the value of that name in `params`. Why literals and not parameters of
the protocol: `docs/decisions/0015-values-in-sql-are-literals.md`. A value from a keychain is a
parameter nevertheless, where the statement may have parameters.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from noetl.model.errors import Failure
from noetl.playbook.sqlplaces import SqlPlace, find_misplaced, walk_places
from noetl.playbook.sqltext import (
    LITERALS,
    Dialect,
    Token,
    UnterminatedSql,
    marker_pattern,
    split_statements,
    tokenize_sql,
    unquote_token,
)
from noetl.template.limits import WORKER_LIMITS, Meter
from noetl.template.model import MarkedValue
from noetl.template.writing import format_as_text


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


# ---- statements ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Parameter:
    """A value in a statement. `shown` is the author's text for it."""

    value: Any
    shown: str = ""
    function: str = ""  # the function that it is an argument of, in capitals
    typed_by_place: bool = False  # a column or an operand beside it determines its type
    in_list: bool = False  # it is in the list of IN (…)
    spaced: bool = False  # it is not in quotes, so it needs a space on both sides
    secret: bool = False


@dataclass(frozen=True, slots=True)
class QuotedCode:
    """The quoted code of DO and CREATE FUNCTION."""

    parts: "tuple[StatementPart, ...]"
    shown: str


StatementPart = str | Parameter | QuotedCode
LiteralFormatter = Callable[[Parameter], str]


@dataclass(frozen=True, slots=True)
class Statement:
    """The texts and values of a statement, in order.

    `first` is its first word, in capitals. `line` is the line of the task's text in which it
    begins.
    """

    parts: tuple[StatementPart, ...]
    first: str
    line: int = 1

    @property
    def has_secrets(self) -> bool:
        return any(isinstance(part, Parameter) and part.secret for part in self.parts)

    def format_literals(self, quote: LiteralFormatter) -> str:
        """The text with a literal for every value."""
        return "".join(_format_part(part, quote) for part in self.parts)

    def format_bound(self, quote: LiteralFormatter) -> tuple[str, list[Any]]:
        """The text with $1, $2 … for secrets and literals for other values, and the secrets."""
        values: list[Any] = []
        words: list[str] = []
        for part in self.parts:
            if isinstance(part, Parameter) and part.secret:
                values.append(part.value)
                words.append(f" ${len(values)} ")
            else:
                words.append(_format_part(part, quote))
        return "".join(words), values

    def format_excerpt(self, position: int | None, quote: LiteralFormatter) -> str:
        """The author's line for a position (from 1) in the sent text, with a caret below.

        Without a position it is the first line of the statement.
        """
        shown = "".join(part if isinstance(part, str) else part.shown for part in self.parts)
        if position is None:
            offset = len(shown) - len(shown.lstrip())
        else:
            offset = self._find_shown_offset(position - 1, quote)
        begin = shown.rfind("\n", 0, offset) + 1
        line = shown[begin:].partition("\n")[0]
        column = offset - begin
        cut = max(0, column - MAX_EXCERPT_LINE // 2)
        label = f"LINE {self.line + shown.count(chr(10), 0, begin)}: "
        if cut:
            label += "..."
        excerpt = label + line[cut : cut + MAX_EXCERPT_LINE]
        if len(line) > cut + MAX_EXCERPT_LINE:
            excerpt += "..."
        if position is None:
            return excerpt
        return f"{excerpt}\n{' ' * (len(label) + column - cut)}^"

    def _find_shown_offset(self, position: int, quote: LiteralFormatter) -> int:
        """The offset in the author's text of a position in the sent text."""
        sent_offset = 0
        shown_offset = 0
        number = 0
        for part in self.parts:
            if isinstance(part, Parameter) and part.secret:
                number += 1
                size = len(f" ${number} ")
            else:
                size = len(_format_part(part, quote))
            if isinstance(part, str):
                if position < sent_offset + size:
                    return shown_offset + position - sent_offset
                shown_offset += len(part)
            else:
                if position < sent_offset + size:
                    return shown_offset
                shown_offset += len(part.shown)
            sent_offset += size
        return shown_offset


MAX_EXCERPT_LINE = 120  # characters of a line that an error shows
# Statements that a database plans: these may have parameters.
PLANNED_STATEMENTS = frozenset(
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
_TRANSACTION_STATEMENTS = frozenset(("BEGIN", "COMMIT", "ROLLBACK", "START", "END", "ABORT"))


def _format_part(part: StatementPart, quote: LiteralFormatter) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, Parameter):
        literal = quote(part)
        if part.spaced:
            literal = f" {literal} "
        return literal
    return quote_sql_text("".join(_format_part(inner, quote) for inner in part.parts))


def quote_sql_text(value: str) -> str:
    """A literal. Only the quote is special in it, because `standard_conforming_strings` is on."""
    return "'" + value.replace("'", "''") + "'"


def check_transaction(task_statements: Iterable[Statement]) -> None:
    """Refuse BEGIN, COMMIT and the like: the statements of a task are one transaction."""
    for statement in task_statements:
        if statement.first in _TRANSACTION_STATEMENTS:
            message = f"{statement.first}: the statements of a task are one transaction already; or set autocommit: true"
            raise SqlError("SQL_TRANSACTION", message)


def open_transaction_error() -> SqlError:
    """The failure of an `autocommit` task that began a transaction and did not end it."""
    message = "a transaction is still open at the end of the statements, so its changes are rolled back; add `commit`"
    return SqlError("SQL_TRANSACTION", message)


# ---- reading -------------------------------------------------------------------------------------


def parse_statements(
    source: str,
    marks: Sequence[MarkedValue] = (),
    params: Mapping[str, Any] | None = None,
    dialect: Dialect = "postgres",
) -> list[Statement]:
    """The statements of a marked text, in order, without empty ones."""
    try:
        reader = _StatementReader(source, marks, params or {}, dialect)
        return list(reader.read_statements())
    except UnterminatedSql as error:
        raise SqlError("SQL_UNTERMINATED", str(error)) from error


class _StatementReader:
    """Reads the statements of one text."""

    def __init__(
        self, source: str, marks: Sequence[MarkedValue], params: Mapping[str, Any], dialect: Dialect
    ) -> None:
        self._marks = {mark.marker: mark for mark in marks}
        self._private = ""
        self._pattern: re.Pattern[str] | None = None
        if marks:
            self._private = marks[0].marker[0]
            self._pattern = marker_pattern(self._private)
        self._source = self._insert_raw_sql(source)
        self._params = params
        self._dialect = dialect
        self._kinds = {marker: mark.kind for marker, mark in self._marks.items()}
        self._counted = 0  # the position up to which lines are counted
        self._lines = 1  # the line at that position

    def _insert_raw_sql(self, source: str) -> str:
        """Insert the values of `| sql`.

        Such a value is part of the statement's text and may contain quotes, so it is inserted
        before the text is read.
        """
        if self._pattern is None:
            return source

        def replace_mark(match: re.Match[str]) -> str:
            mark = self._marks[match[0]]
            if mark.kind != "sql":
                return match[0]
            sql = _to_text(mark.value)
            if self._private in sql:
                raise SqlError("SQL_VALUE", "a value given as SQL holds a private character")
            return sql

        return self._pattern.sub(replace_mark, source)

    def read_statements(self) -> Iterator[Statement]:
        start = 0
        all_tokens = tokenize_sql(self._source, self._private, self._dialect)
        for statement_tokens in split_statements(all_tokens):
            solid = [token for token in statement_tokens if token.kind != "comment"]
            if solid:
                yield self._read_statement(statement_tokens, solid, start)
            end = start
            if statement_tokens:
                end = statement_tokens[-1].end
            start = self._source.find(";", end) + 1 or len(self._source)

    def _read_statement(
        self, statement_tokens: Sequence[Token], solid: Sequence[Token], start: int
    ) -> Statement:
        """Read one statement. `solid` are its tokens without comments."""
        line = self._find_line(start)
        for wrong in find_misplaced(solid, self._kinds, self._private, self._dialect):
            line = self._find_line(wrong.token.start)
            raise SqlError(
                "SQL_PLACE",
                f"{self.show_source(wrong.token.text)} in line {line}: {wrong.message}; {wrong.hint}",
            )
        _refuse_copy(solid)
        by_start = {place.token.start: place for place in walk_places(solid)}
        reading = _TokenReader(self, solid)
        parts: list[StatementPart] = []
        position = start
        for token in statement_tokens:
            parts.append(self._source[position : token.start])
            if token.kind == "comment":
                parts.append(self._strip_comment(token))
            else:
                parts.append(reading.read_part(by_start[token.start]))
            position = token.end
        end = self._source.find(";", position)
        if end < 0:
            end = len(self._source)
        parts.append(self._source[position:end])
        return Statement(_join_texts(parts), _first_word(solid[0]), line)

    def _find_line(self, position: int) -> int:
        """The line of the template at a position. Callers must ask for positions in order.

        Lines that a loop or a condition of the template made are counted from the value before
        them.
        """
        if self._pattern is not None:
            for match in self._pattern.finditer(self._source, self._counted, position):
                self._counted = match.end()
                self._lines = self._marks[match[0]].line
        self._lines += self._source.count("\n", self._counted, position)
        self._counted = max(self._counted, position)
        return self._lines

    def _strip_comment(self, token: Token) -> str:
        """The text of a comment; only its line breaks if there are values in it."""
        if not self.has_marks(token.text):
            return token.text
        return "\n" * token.text.count("\n") or " "

    # ---- for the reader of one statement ----

    @property
    def dialect(self) -> Dialect:
        return self._dialect

    def has_marks(self, piece: str) -> bool:
        return self._pattern is not None and self._pattern.search(piece) is not None

    def find_mark(self, token: Token) -> MarkedValue:
        return self._marks[token.text]

    def split_at_marks(self, piece: str) -> Iterator[str | MarkedValue]:
        """Split a text at its marks."""
        position = 0
        if self._pattern is not None:
            for match in self._pattern.finditer(piece):
                if match.start() > position:
                    yield piece[position : match.start()]
                yield self._marks[match[0]]
                position = match.end()
        if position < len(piece):
            yield piece[position:]

    def show_source(self, piece: str) -> str:
        """The text as the author wrote it."""
        words: list[str] = []
        for part in self.split_at_marks(piece):
            if isinstance(part, str):
                words.append(part)
            else:
                words.append("{{ " + part.source + " }}")
        return "".join(words)

    def read_tokens(self, source: str) -> "list[Token]":
        return list(tokenize_sql(source, self._private, self._dialect))

    def find_param(self, name: str) -> Any:
        if name.isdigit():
            message = f"${name}: parameters are used by name; write params: {{x: …}} and $x"
            raise SqlError("SQL_PARAMETER", message)
        if name not in self._params:
            known = ", ".join(f"${known}" for known in self._params) or "none"
            raise SqlError("SQL_PARAMETER", f"${name} is not among the params ({known})")
        return self._params[name]


# Functions in which an array gets the type of the array beside it.
_ARRAY_TYPED_BY_PEER = frozenset(
    {"ANY", "ALL", "SOME", "COALESCE", "NULLIF", "ARRAY_CAT", "GREATEST", "LEAST"}
)
_COMPARISON_ENDINGS = frozenset("=<>&@!?")
_RAISE_LEVELS = frozenset({"EXCEPTION", "NOTICE", "WARNING", "INFO", "LOG", "DEBUG", "RAISE"})
_KEYCHAIN_PATTERN = re.compile(r"\bkeychain\b")


class _TokenReader:
    """Reads the tokens of one statement, or of the body of one."""

    def __init__(
        self, reader: _StatementReader, solid: Sequence[Token], in_body: bool = False
    ) -> None:
        self._reader = reader
        self._in_body = in_body
        words = [token.word for token in solid]
        self._first = _first_word(solid[0]) if solid else ""
        self._body_of = ""  # the kind of the statement, if its body is code
        if self._first == "DO":
            self._body_of = "DO"
        elif self._first == "CREATE" and {"FUNCTION", "PROCEDURE"} & set(words[1:4]):
            self._body_of = "CREATE FUNCTION"
        self._copies_program = self._first == "COPY" and "PROGRAM" in words
        self._numbered = in_body or self._first == "PREPARE"  # $1 is a parameter of the statement
        self._language = _find_language(solid)
        self._dynamic = False  # after EXECUTE, until the statement of the body ends

    def read_part(self, place: SqlPlace) -> StatementPart:
        """The part of the statement that a token becomes."""
        token = place.token
        if self._in_body and (token.word in ("EXECUTE", "USING") or token.kind == "end"):
            self._dynamic = token.word == "EXECUTE"
        match token.kind:
            case "mark":
                return self._read_mark(place)
            case "parameter":
                if self._numbered and token.text[1:].isdigit():
                    return token.text
                value = self._reader.find_param(token.text[1:])
                return self._make_parameter(value, place, token.text)
            case kind if kind in LITERALS and self._reader.has_marks(token.text):
                return self._read_literal(place)
            case "name" if self._reader.has_marks(token.text):
                return quote_sql_name(self._join_pieces(unquote_token(token)))
            case _:
                return token.text

    def _read_mark(self, place: SqlPlace) -> StatementPart:
        mark = self._reader.find_mark(place.token)
        if mark.kind == "identifier":
            return quote_sql_name(mark.value)
        shown = self._reader.show_source(place.token.text)
        return self._make_parameter(mark.value, place, shown)

    def _make_parameter(self, value: Any, place: SqlPlace, shown: str) -> StatementPart:
        may_bind = not self._in_body and self._first in PLANNED_STATEMENTS
        return replace(
            _make_placed_parameter(place),
            value=check_parameter(value),
            shown=shown,
            spaced=place.token.kind in ("mark", "parameter"),
            secret=may_bind and _KEYCHAIN_PATTERN.search(shown) is not None,
        )

    # ---- literals ----

    def _read_literal(self, place: SqlPlace) -> StatementPart:
        """A quoted literal with values in it."""
        token = place.token
        if self._copies_program:
            message = "a value inside the command of COPY … PROGRAM would be code"
            raise SqlError("SQL_VALUE_IN_BODY", message)
        if self._is_body(place):
            return self._read_code_body(token)
        if self._dynamic and _is_code(place):
            message = "a value inside a text that EXECUTE runs would be code: give it with USING, or format('%L', …)"
            raise SqlError("SQL_VALUE_IN_BODY", message)
        if token.kind == "unicode":
            raise SqlError("SQL_VALUE", "a value inside U&'…' is not possible: use plain quotes")
        if token.kind == "escaped":
            return self._read_escaped(token)
        value = self._join_pieces(unquote_token(token), _is_raise_message(place))
        return self._make_parameter(value, place, self._reader.show_source(token.text))

    def _read_escaped(self, token: Token) -> str:
        """Keep E'…', and escape the values in it."""
        words: list[str] = []
        for piece in self._reader.split_at_marks(token.text):
            if isinstance(piece, str):
                words.append(piece)
            else:
                value = _refuse_nul(_to_text(piece.undoubled))
                words.append(value.replace("\\", "\\\\").replace("'", "''"))
        return "".join(words)

    def _join_pieces(self, content: str, raising: bool = False) -> str | None:
        """The text of a literal with its values; None if it is only a null."""
        pieces = list(self._reader.split_at_marks(content))
        first = pieces[0] if pieces else None
        if len(pieces) == 1 and isinstance(first, MarkedValue) and first.undoubled is None:
            return None
        words: list[str] = []
        for piece in pieces:
            if isinstance(piece, str):
                words.append(piece)
                continue
            value = _to_text(piece.undoubled)
            if raising:
                value = value.replace("%", "%%")
            words.append(value)
        return "".join(words)

    # ---- bodies ----

    def _is_body(self, place: SqlPlace) -> bool:
        if self._reader.dialect != "postgres" or not self._body_of:
            return False
        if self._body_of == "DO":
            return True
        return place.previous is not None and place.previous.word == "AS"

    def _read_code_body(self, token: Token) -> QuotedCode:
        if self._language not in ("", "PLPGSQL", "SQL"):
            message = f"a value inside a body in {self._language.lower()} would be code: give it as an argument"
            raise SqlError("SQL_VALUE_IN_BODY", message)
        if token.kind not in ("literal", "dollar"):
            message = "a value inside a body needs plain quotes or dollar quotes around it"
            raise SqlError("SQL_VALUE_IN_BODY", message)
        source = unquote_token(token)
        body_tokens = self._reader.read_tokens(source)
        solid = [inner for inner in body_tokens if inner.kind != "comment"]
        by_start = {place.token.start: place for place in walk_places(solid)}
        reading = _TokenReader(self._reader, solid, in_body=True)
        parts: list[StatementPart] = []
        position = 0
        for inner in body_tokens:
            parts.append(source[position : inner.start])
            if inner.kind != "comment":
                parts.append(reading.read_part(by_start[inner.start]))
            elif self._reader.has_marks(inner.text):
                parts.append(" ")
            else:
                parts.append(inner.text)
            position = inner.end
        parts.append(source[position:])
        return QuotedCode(_join_texts(parts), self._reader.show_source(token.text))


def _refuse_copy(solid: Sequence[Token]) -> None:
    if solid[0].word != "COPY":
        return
    words = {token.word for token in solid}
    if words & {"STDIN", "STDOUT"}:
        message = "COPY has nothing to read from or to write to here: use `kind: transfer`, a `sink`, or INSERT"
        raise SqlError("SQL_COPY", message)


def _find_language(solid: Sequence[Token]) -> str:
    """The word after LANGUAGE, in capitals."""
    for position, token in enumerate(solid[:-1]):
        if token.word == "LANGUAGE":
            return solid[position + 1].text.strip("'\"").upper()
    return ""


def _is_raise_message(place: SqlPlace) -> bool:
    """Whether this is the message of RAISE, in which a percent sign stands for an argument."""
    return place.previous is not None and place.previous.word in _RAISE_LEVELS


def _is_code(place: SqlPlace) -> bool:
    """Whether EXECUTE runs this literal, or uses it as the pattern of `format`.

    Any other argument of a function is data.
    """
    if not place.opener:
        return True
    previous = place.previous
    return place.opener == "FORMAT" and previous is not None and previous.text == "("


def _make_placed_parameter(place: SqlPlace) -> Parameter:
    """A parameter without a value, with the facts about its place."""
    previous = place.previous
    compared = (
        previous is not None
        and previous.kind == "symbol"
        and previous.text[-1] in _COMPARISON_ENDINGS
    )
    stored = place.opener == "VALUES" and place.first in ("INSERT", "MERGE", "WITH")
    inside_in = place.opener == "IN" and previous is not None and previous.text in ("(", ",")
    return Parameter(
        None,
        function=place.opener,
        typed_by_place=compared or stored or place.opener in _ARRAY_TYPED_BY_PEER,
        in_list=inside_in,
    )


def _join_texts(parts: Sequence[StatementPart]) -> tuple[StatementPart, ...]:
    """Join adjacent texts into one part."""
    joined: list[StatementPart] = []
    for part in parts:
        if isinstance(part, str) and joined and isinstance(joined[-1], str):
            joined[-1] += part
        elif part != "":
            joined.append(part)
    return tuple(joined)


def _first_word(token: Token) -> str:
    return token.word or token.text[:1]


# ---- values in -----------------------------------------------------------------------------------


def _to_text(value: Any) -> str:
    return format_as_text(Meter(WORKER_LIMITS), value)


def _refuse_nul(value: str) -> str:
    if "\0" in value:
        raise SqlError("SQL_VALUE", "a text in this statement cannot hold the character zero")
    return value


def format_scalar(value: Any) -> str | None:
    """The literal of a number, a bool or a null in any SQL; None for other values."""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, int | float):
        if value >= 0:
            return repr(value)
        return f"({value!r})"
    return None


def format_in_list(value: Parameter, quote: LiteralFormatter) -> str:
    """The items of a list in IN (…)."""
    if not value.value:
        message = f"{value.shown}: the list of IN (…) is empty, which SQL does not allow: write = ANY({value.shown})"
        raise SqlError("SQL_VALUE", message)
    items = [quote(Parameter(item, value.shown)) for item in value.value]
    return ", ".join(items)


def quote_sql_name(value: Any) -> str:
    """Quote a name. A list of names is a qualified name."""
    if isinstance(value, list):
        return ".".join(quote_sql_name(part) for part in value)
    if not isinstance(value, str) or not value:
        raise SqlError("SQL_IDENTIFIER", f"a name in SQL is text, not {_describe_type(value)}")
    if "\0" in value:
        raise SqlError("SQL_IDENTIFIER", "a name in SQL cannot hold the character zero")
    return '"' + value.replace('"', '""') + '"'


def check_parameter(value: Any) -> Any:
    """Check a value. A map is refused: it needs `tojson`, because its SQL type is not known."""
    if isinstance(value, dict):
        message = "a map is no SQL value: write {{ x | tojson }}, with ::jsonb where json is meant"
        raise SqlError("SQL_VALUE", message)
    if isinstance(value, list):
        return [check_parameter(part) for part in value]
    return value


def _describe_type(value: Any) -> str:
    if value is None:
        return "null"
    return f"a {type(value).__name__}"


# ---- values out ----------------------------------------------------------------------------------


def make_unique_names(original_names: Iterable[str]) -> list[str]:
    """Make the names of columns unique: the second `a` is `a_2`."""
    names: list[str] = []
    for name in original_names:
        unique = name
        number = 1
        while unique in names:
            number += 1
            unique = f"{name}_{number}"
        names.append(unique)
    return names


def make_changed_result(count: int | None) -> dict[str, Any]:
    """The value of a statement without rows. `row_count` is the number of rows that it changed."""
    row_count = max(count or 0, 0)
    return {"rows": [], "row_count": row_count, "columns": []}
