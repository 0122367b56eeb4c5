"""Finds values in SQL at places where a value cannot be.

A `{{ value }}` is data, so it may be used where SQL allows a literal. Where SQL expects a name, a
keyword or a whole statement, a value is an error, or worse: `ORDER BY {{ column }}` orders every
row by the same text, which changes nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from msgspec import Struct

from noetl.playbook.sqltext import LITERALS, Dialect, Token

MarkKind = Literal["value", "identifier", "sql"]

NAME_HINT = "write {{ x | identifier }} for a name"
RAW_HINT = (
    "write {{ x | sql }} for a part of the statement itself, and only for text that you trust"
)
NAME_OR_RAW_HINT = f"{NAME_HINT}; {RAW_HINT}"


class MisplacedValue(Struct, frozen=True):
    """A value at a place where it cannot be."""

    token: Token
    message: str
    hint: str


@dataclass(slots=True)
class _Bracket:
    """An open bracket, or the statement itself."""

    opener: str = ""  # the word before the bracket
    clause: str = ""  # the clause at the current token, such as ORDER BY
    columns: bool = False  # it lists columns: INSERT INTO t (…), CREATE TABLE t (…)


class SqlPlace(Struct, frozen=True):
    """A token and its context.

    `opener`, `clause` and `columns` are those of the innermost bracket.
    """

    token: Token
    previous: Token | None
    before: Token | None  # the token before `previous`
    next: Token | None
    opener: str
    clause: str
    columns: bool
    first: str  # the first word of the statement


# SQL expects a name after these words
_NAME_FOLLOWS = {
    "FROM": "a table",
    "JOIN": "a table",
    "INTO": "a table",
    "UPDATE": "a table",
    "TABLE": "a table",
    "TRUNCATE": "a table",
    "VIEW": "a view",
    "INDEX": "an index",
    "SCHEMA": "a schema",
    "DATABASE": "a database",
    "SEQUENCE": "a sequence",
    "COLUMN": "a column",
    "CONSTRAINT": "a constraint",
    "ROLE": "a role",
    "REFERENCES": "a table",
    "USE": "a schema",
    "AS": "a name, a type or a query",
    "SET": "a column",
    "TYPE": "a type",
    "CALL": "a procedure",
}
_FUNCTIONS_WITH_FROM = frozenset(
    {"EXTRACT", "SUBSTRING", "TRIM", "OVERLAY", "POSITION", "LTRIM", "RTRIM", "BTRIM"}
)
_CLAUSES = frozenset({"ORDER", "GROUP", "PARTITION"})
_END_OF_CLAUSE = frozenset(
    {
        "HAVING",
        "LIMIT",
        "OFFSET",
        "FETCH",
        "WINDOW",
        "QUALIFY",
        "UNION",
        "EXCEPT",
        "INTERSECT",
        "ROWS",
        "RANGE",
        "GROUPS",
        "FOR",
        "RETURNING",
        "ORDER",
        "GROUP",
        "PARTITION",
        "WHERE",
        "FROM",
        "SELECT",
        "CLUSTER",
        "DISTRIBUTE",
        "SORT",
    }
)
_END_OF_ITEM = frozenset({"ASC", "DESC", "NULLS", "USING"})
_OPERATOR_WORDS = frozenset(
    {
        "AND",
        "OR",
        "NOT",
        "IN",
        "LIKE",
        "ILIKE",
        "IS",
        "CASE",
        "WHEN",
        "THEN",
        "ELSE",
        "COLLATE",
        "DISTINCT",
        "BETWEEN",
        "TO",
        "BY",
        "FROM",
        "DIV",
        "RLIKE",
        "SIMILAR",
        "ZONE",
        "INTERVAL",
        "DATE",
        "TIME",
        "TIMESTAMP",
        "TIMESTAMPTZ",
        "ALL",
        "ANY",
        "SOME",
    }
)
_CLAUSE_NAMES = {"ORDER": "ORDER BY", "GROUP": "GROUP BY", "PARTITION": "PARTITION BY"}
_CONSTANT_ITEM_EFFECTS = {
    "ORDER BY": "every row has the same one, so the rows are not ordered",
    "GROUP BY": "every row has the same one, so all rows are one group",
    "PARTITION BY": "every row has the same one, so all rows are one partition",
}


def walk_places(statement: Sequence[Token]) -> Iterator[SqlPlace]:
    """Yield the place of every token. The statement has no comments."""
    brackets = [_Bracket()]
    first = next((token.word for token in statement if token.word), "")
    before: Token | None = None
    previous: Token | None = None
    for index, token in enumerate(statement):
        following = None
        if index + 1 < len(statement):
            following = statement[index + 1]
        current = brackets[-1]
        yield SqlPlace(
            token,
            previous,
            before,
            following,
            current.opener,
            current.clause,
            current.columns,
            first,
        )
        match token.text:
            case "(" | "[" if token.kind == "symbol":
                opener = ""
                if previous is not None and token.text == "(":
                    opener = previous.word
                brackets.append(_Bracket(opener, columns=_lists_columns(statement, index)))
            case ")" | "]" if token.kind == "symbol" and len(brackets) > 1:
                brackets.pop()
            case _:
                current.clause = _follow_clause(current.clause, token, previous)
        before, previous = previous, token


def _follow_clause(clause: str, token: Token, previous: Token | None) -> str:
    """Return the clause after this token."""
    word = token.word
    if word == "BY" and previous is not None and previous.word in _CLAUSES:
        return _CLAUSE_NAMES[previous.word]
    if word == "SET":
        return "SET"
    if word in _END_OF_CLAUSE:
        return ""
    return clause


def _lists_columns(statement: Sequence[Token], index: int) -> bool:
    """Whether this is the bracket of INSERT INTO name (…) or CREATE TABLE name (…)."""
    name = index - 1
    while name > 1 and statement[name - 1].text == ".":
        name -= 2
    if name < 1 or statement[name].kind not in ("word", "name", "mark"):
        return False
    word = statement[name - 1].word
    if word == "INTO":
        return True
    if statement[0].word != "CREATE":
        return False
    if word == "EXISTS":
        return any(token.word == "TABLE" for token in statement[:name])
    return word == "TABLE"


def find_misplaced(
    statement: Sequence[Token],
    kinds: Mapping[str, MarkKind],
    private: str,
    dialect: Dialect,
) -> Iterator[MisplacedValue]:
    """Yield the misplaced values of a statement without comments.

    `kinds` has the kind of every marker. `private` is the character that markers begin with.
    """
    if not private:
        return
    if _is_whole_statement(statement, kinds):
        message = "the whole statement is a value, and a value is never SQL"
        yield MisplacedValue(statement[0], message, RAW_HINT)
        return
    for place in walk_places(statement):
        problem = _find_place_problem(place, kinds, private, dialect)
        if problem is not None:
            message, hint = problem
            yield MisplacedValue(place.token, message, hint)


def _is_whole_statement(statement: Sequence[Token], kinds: Mapping[str, MarkKind]) -> bool:
    return len(statement) == 1 and kinds.get(statement[0].text) == "value"


def _find_place_problem(
    place: SqlPlace,
    kinds: Mapping[str, MarkKind],
    private: str,
    dialect: Dialect,
) -> tuple[str, str] | None:
    """Return message and hint if the token is, or contains in quotes, a misplaced value."""
    token = place.token
    is_value = token.kind == "mark" and kinds.get(token.text) == "value"
    has_value_in_quotes = token.kind in LITERALS and private in token.text
    if not is_value and not has_value_in_quotes:
        return None
    if _is_constant_item(place):
        return f"{place.clause} a value: {_CONSTANT_ITEM_EFFECTS[place.clause]}", NAME_HINT
    if is_value:
        return _check_value_place(place, kinds) or _check_name_place(place)
    if _is_file(place, dialect):
        return None
    return _check_name_place(place)


def _is_file(place: SqlPlace, dialect: Dialect) -> bool:
    """Whether this is the path of a file, as in DuckDB's FROM '{{ path }}'."""
    if dialect != "duckdb" or place.previous is None:
        return False
    return place.previous.word in ("FROM", "JOIN", "TO")


def _check_value_place(place: SqlPlace, kinds: Mapping[str, MarkKind]) -> tuple[str, str] | None:
    """Return the problem of a value without quotes that no SQL statement allows."""
    previous, following = place.previous, place.next
    if previous is None:
        return "a statement cannot begin with a value", RAW_HINT
    touches_previous = _touches(previous, place.token, kinds)
    touches_next = following is not None and _touches(place.token, following, kinds)
    if touches_previous or touches_next:
        return (
            "a value cannot be a part of a name",
            "make the whole name: {{ ('part_' ~ x) | identifier }}",
        )
    if previous.text == "::":
        return "a value cannot be a type", RAW_HINT
    is_before_literal = following is not None and following.kind in LITERALS
    if is_before_literal or _follows_operand(place, kinds):
        return "a value cannot follow another value without an operator", RAW_HINT
    return None


def _touches(left: Token, right: Token, kinds: Mapping[str, MarkKind]) -> bool:
    """Whether a value and its neighbour form one name, because nothing separates them."""
    if left.end != right.start:
        return False
    neighbour = left if kinds.get(right.text) == "value" else right
    if neighbour.kind == "mark":
        return kinds.get(neighbour.text) != "sql"
    if neighbour.kind in ("word", "number", "name", "parameter"):
        return True
    return neighbour.kind in LITERALS or neighbour.text in (".", "$")


def _follows_operand(place: SqlPlace, kinds: Mapping[str, MarkKind]) -> bool:
    """Whether the token before is a value: `a {{ operator }} b`, `ORDER BY a {{ direction }}`."""
    previous = place.previous
    assert previous is not None
    if previous.kind == "mark":
        return kinds.get(previous.text) in ("value", "identifier")
    if previous.kind in ("name", "number") or previous.kind in LITERALS or previous.text == ")":
        return True
    if previous.kind != "word" or place.clause not in _CONSTANT_ITEM_EFFECTS:
        return False
    return previous.word not in _OPERATOR_WORDS | _END_OF_CLAUSE


def _check_name_place(place: SqlPlace) -> tuple[str, str] | None:
    """Return the problem of a value at a place where SQL expects a name."""
    if place.previous is None:
        return None
    word = place.previous.word
    word_before = "" if place.before is None else place.before.word
    if place.columns and place.previous.text in ("(", ","):
        return "a value cannot be the name of a column", NAME_HINT
    if word == "FROM" and (place.opener in _FUNCTIONS_WITH_FROM or word_before == "DISTINCT"):
        return None
    wanted = _NAME_FOLLOWS.get(word)
    takes_literal = word in ("SET", "AS") and place.token.kind != "mark"
    if wanted is not None and not takes_literal:
        return f"a value cannot be {wanted}, which {word} wants", NAME_OR_RAW_HINT
    if word == "EXISTS" and word_before in ("IF", "NOT") and place.first != "SELECT":
        return "a value cannot be a name", NAME_HINT
    if word == "ON" and place.first == "CREATE":
        return "a value cannot be a table", NAME_HINT
    if word == "TO" and place.first in ("ALTER", "GRANT"):
        return "a value cannot be a name", NAME_HINT
    if _is_assigned_column(place):
        return "a value cannot be the name of a column", NAME_HINT
    return None


def _is_assigned_column(place: SqlPlace) -> bool:
    """Whether the token is the `b` of UPDATE t SET a = 1, b = 2."""
    if place.clause != "SET" or place.first == "SET":
        return False
    if place.previous is None or place.previous.text != ",":
        return False
    return place.next is not None and place.next.text == "="


def _is_constant_item(place: SqlPlace) -> bool:
    """Whether the value is a whole item of ORDER BY, GROUP BY or PARTITION BY."""
    previous, following = place.previous, place.next
    if place.clause not in _CONSTANT_ITEM_EFFECTS or previous is None:
        return False
    if previous.word != "BY" and previous.text != ",":
        return False
    if following is None or following.text in (",", ")", "::"):
        return True
    return following.word in _END_OF_ITEM | _END_OF_CLAUSE
