"""Splits SQL into tokens: literals, names, comments, and the ends of statements.

The text may have markers in place of a template's expressions (`Renderer.render_marked`). A marker
outside of quotes is a token of its own; a marker inside quotes is part of the quoted token. DuckDB
shares the rules of Postgres. In Spark, quotes and backslashes mean something else.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Literal

from msgspec import Struct

Kind = Literal[
    "word",
    "number",
    "literal",
    "escaped",
    "unicode",
    "raw",
    "name",
    "dollar",
    "parameter",
    "comment",
    "mark",
    "symbol",
    "end",
]
Dialect = Literal["postgres", "duckdb", "spark"]
LITERALS = frozenset({"literal", "escaped", "unicode", "raw", "dollar"})


class Token(Struct, frozen=True):
    kind: Kind
    text: str
    start: int

    @property
    def end(self) -> int:
        return self.start + len(self.text)

    @property
    def word(self) -> str:
        """The word in capitals, or "" for any other kind of token."""
        return self.text.upper() if self.kind == "word" else ""


class UnterminatedSql(ValueError):
    """A quote or a comment does not end."""

    def __init__(self, what: str, line: int) -> None:
        super().__init__(f"a {what} that begins in line {line} of the statement does not end")


_PLAIN = r"""
      | (?P<word>[^\W\d][\w$]*)
      | (?P<dollar>\$(?:[^\W\d]\w*)?\$)
      | (?P<parameter>\$\w+)
      | (?P<number>\d[\w.]*)
      | (?P<end>;)
      | (?P<symbol>::|->>|->|\|\||[^\s])"""
_POSTGRES = r"(?P<escaped>[eE]')|(?P<unicode>[uU]&['\"])|(?P<literal>')|(?P<name>\")|(?P<line>--)|(?P<block>/\*)"
_SPARK = r"(?P<raw>[rR]['\"])|(?P<literal>['\"])|(?P<name>`)|(?P<line>--)|(?P<block>/\*)"
_NO_MARK = r"(?!)"
_IN_BLOCK = re.compile(r"/\*|\*/")
_LINE_END = re.compile(r"[\r\n]")
_IN_ESCAPED = re.compile(r"\\.|''|'", re.DOTALL)
_CONTINUED = re.compile(r"[ \t\f\v]*[\r\n]\s*'")  # 'a' and 'b' on two lines are one literal


def marker_pattern(private: str) -> re.Pattern[str]:
    """Return the pattern of markers that begin and end with this character."""
    return re.compile(f"{re.escape(private)}\\d+{re.escape(private)}")


def tokenize_sql(
    source: str,
    private: str = "",
    dialect: Dialect = "postgres",
) -> Iterator[Token]:
    """Yield every token except white space. `private` is the character of the markers."""
    mark = marker_pattern(private).pattern if private else _NO_MARK
    quotes = _SPARK if dialect == "spark" else _POSTGRES
    opening = re.compile(f"(?P<mark>{mark})|{quotes}{_PLAIN}", re.VERBOSE | re.DOTALL)
    position = 0
    while (found := opening.search(source, position)) is not None:
        kind, stop = _find_token_end(source, found, dialect)
        start = found.start()
        yield Token(kind, source[start:stop], start)
        position = stop


def split_statements(found: Iterator[Token]) -> Iterator[list[Token]]:
    """Yield the tokens of each statement, without the semicolons. Statements may be empty."""
    statement: list[Token] = []
    for token in found:
        if token.kind == "end":
            yield statement
            statement = []
        else:
            statement.append(token)
    yield statement


def drop_comments(statement: Sequence[Token]) -> list[Token]:
    return [token for token in statement if token.kind != "comment"]


def unquote_token(token: Token) -> str:
    """Return the text between the quotes, with doubled quotes undone. Escapes stay as written."""
    match token.kind:
        case "literal" | "name":
            quote = token.text[0]
            return token.text[1:-1].replace(quote * 2, quote)
        case "dollar":
            tag = token.text.index("$", 1) + 1
            return token.text[tag:-tag]
        case _:
            quote = token.text[-1]
            start = token.text.index(quote) + 1
            return token.text[start:-1]


def _find_token_end(
    source: str,
    found: re.Match[str],
    dialect: Dialect,
) -> tuple[Kind, int]:
    start, position = found.start(), found.end()
    match found.lastgroup:
        case "line":
            end = _LINE_END.search(source, position)
            if end is None:
                return "comment", len(source)
            return "comment", end.start()
        case "block":
            return "comment", _block_end(source, start, nested=dialect != "spark")
        case "escaped":
            return "escaped", _escaped_end(source, start, position)
        case "literal" if dialect == "spark":
            return "literal", _backslashed_end(source, start)
        case "raw":
            end_of_raw = source.find(found[0][-1], position)
            if end_of_raw < 0:
                raise _make_unterminated_error("literal", source, start)
            return "raw", end_of_raw + 1
        case "literal":
            return "literal", _doubled_end(source, position - 1, "literal")
        case "unicode":
            return "unicode", _doubled_end(source, position - 1, "literal")
        case "name":
            return "name", _doubled_end(source, position - 1, "name")
        case "dollar":
            end_of_quote = source.find(found[0], position)
            if end_of_quote < 0:
                raise _make_unterminated_error("dollar quote", source, start)
            return "dollar", end_of_quote + len(found[0])
        case "mark" | "word" | "parameter" | "number" | "end" as kind:
            return kind, position
        case _:
            return "symbol", position


def _block_end(source: str, start: int, *, nested: bool) -> int:
    depth, position = 1, start + 2
    while depth:
        found = _IN_BLOCK.search(source, position)
        if found is None:
            raise _make_unterminated_error("comment", source, start)
        position = found.end()
        if found[0] == "*/":
            depth -= 1
        elif nested:
            depth += 1
    return position


def _escaped_end(source: str, start: int, position: int) -> int:
    """Return where E'…' ends. It may continue on the next line, still with escapes."""
    while True:
        found = _IN_ESCAPED.search(source, position)
        if found is None:
            raise _make_unterminated_error("literal", source, start)
        position = found.end()
        if found[0] == "'":
            more = _CONTINUED.match(source, position)
            if more is None:
                return position
            position = more.end()


def _backslashed_end(source: str, start: int) -> int:
    position = start + 1
    while position < len(source) and source[position] != source[start]:
        if source[position] == "\\":
            position += 1  # the escaped character cannot end the literal
        position += 1
    if position >= len(source):
        raise _make_unterminated_error("literal", source, start)
    return position + 1


def _doubled_end(source: str, opened: int, what: str) -> int:
    """Return where a quoted text ends. Inside it, a quote is written twice."""
    quote, position = source[opened], opened + 1
    while True:
        end = source.find(quote, position)
        if end < 0:
            raise _make_unterminated_error(what, source, opened)
        if source[end + 1 : end + 2] != quote:
            return end + 1
        position = end + 2


def _make_unterminated_error(what: str, source: str, start: int) -> UnterminatedSql:
    return UnterminatedSql(what, source.count("\n", 0, start) + 1)
