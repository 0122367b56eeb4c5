"""Where in a statement a value stands, and where none can.

A `{{ value }}` is data: it may stand where a literal may. Where SQL wants a name, a keyword or a whole statement, a value is an
error, or worse: `ORDER BY {{ column }}` orders every row by the same text and changes nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from noetl.playbook.sqltext import LITERALS, Dialect, Token

MarkKind = Literal["value", "identifier", "sql"]

NAME = "write {{ x | identifier }} for a name"
RAW = "write {{ x | sql }} for a part of the statement itself, and only for text that you trust"
EITHER = f"{NAME}; {RAW}"


@dataclass(frozen=True, slots=True)
class Misplaced:
    """A value in a place where it cannot be one."""

    token: Token
    message: str
    hint: str


@dataclass(slots=True)
class _Bracket:
    """An open bracket, or the statement itself: what stands before it, and the clause that is being read in it."""

    opener: str = ""
    clause: str = ""
    columns: bool = False  # of INSERT INTO t (…) and CREATE TABLE t (…)


@dataclass(frozen=True, slots=True)
class SqlPlace:
    """`opener` is the word before the innermost bracket, `previous` the token before."""

    token: Token
    previous: Token | None
    before: Token | None  # the one before that
    next: Token | None
    opener: str
    clause: str
    columns: bool
    first: str


# a value cannot stand after these
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
_FROM_A_VALUE = frozenset(
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
_GOES_ON = frozenset(
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
_LISTING = {"ORDER": "ORDER BY", "GROUP": "GROUP BY", "PARTITION": "PARTITION BY"}
_CONSTANT = {
    "ORDER BY": "every row has the same one, so the rows are not ordered",
    "GROUP BY": "every row has the same one, so all rows are one group",
    "PARTITION BY": "every row has the same one, so all rows are one partition",
}


def places(statement: Sequence[Token]) -> Iterator[SqlPlace]:
    """Of every token of a statement without its comments."""
    brackets = [_Bracket()]
    first = next((token.word for token in statement if token.word), "")
    for at, token in enumerate(statement):
        previous = statement[at - 1] if at else None
        before = statement[at - 2] if at > 1 else None
        following = statement[at + 1] if at + 1 < len(statement) else None
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
                opener = "" if previous is None or token.text == "[" else previous.word
                brackets.append(_Bracket(opener, columns=_lists_columns(statement, at)))
            case ")" | "]" if token.kind == "symbol" and len(brackets) > 1:
                brackets.pop()
            case _:
                current.clause = _clause(current.clause, token, previous)


def _clause(clause: str, token: Token, previous: Token | None) -> str:
    word = token.word
    if word == "BY" and previous is not None and previous.word in _CLAUSES:
        return _LISTING[previous.word]
    if word == "SET":
        return "SET"
    return "" if word in _END_OF_CLAUSE else clause


def _lists_columns(statement: Sequence[Token], at: int) -> bool:
    """Whether the bracket here is that of INSERT INTO name (…) or CREATE TABLE name (…)."""
    name = at - 1
    while name > 1 and statement[name - 1].text == ".":
        name -= 2
    if name < 1 or statement[name].kind not in ("word", "name", "mark"):
        return False
    word = statement[name - 1].word
    creates = word == "TABLE" or (
        word == "EXISTS" and any(token.word == "TABLE" for token in statement[:name])
    )
    return word == "INTO" or (creates and statement[0].word == "CREATE")


def misplaced(
    statement: Sequence[Token], kinds: Mapping[str, MarkKind], private: str, dialect: Dialect
) -> Iterator[Misplaced]:
    """Of a statement without its comments. `kinds` has the kind of every marker, `private` the character they begin with."""
    if not private:
        return
    if _is_whole(statement, kinds):
        yield Misplaced(
            statement[0], "the whole statement is a value, and a value is never SQL", RAW
        )
        return
    for place in places(statement):
        found = _misplaced(place, kinds, private, dialect)
        if found is not None:
            yield Misplaced(place.token, *found)


def _is_whole(statement: Sequence[Token], kinds: Mapping[str, MarkKind]) -> bool:
    return len(statement) == 1 and kinds.get(statement[0].text) == "value"


def _misplaced(
    place: SqlPlace, kinds: Mapping[str, MarkKind], private: str, dialect: Dialect
) -> tuple[str, str] | None:
    token = place.token
    plain = token.kind == "mark" and kinds.get(token.text) == "value"
    literal = token.kind in LITERALS and private in token.text
    if not plain and not literal:
        return None
    if _is_constant_item(place):
        return f"{place.clause} a value: {_CONSTANT[place.clause]}", NAME
    if plain:
        return _as_value(place, kinds) or _as_name(place)
    return None if _is_file(place, dialect) else _as_name(place)


def _is_file(place: SqlPlace, dialect: Dialect) -> bool:
    """DuckDB reads files so: FROM '{{ path }}'."""
    return (
        dialect == "duckdb"
        and place.previous is not None
        and place.previous.word in ("FROM", "JOIN", "TO")
    )


def _as_value(place: SqlPlace, kinds: Mapping[str, MarkKind]) -> tuple[str, str] | None:
    """What speaks against a value that is not in quotes, whatever SQL wants there."""
    previous = place.previous
    if previous is None:
        return "a statement cannot begin with a value", RAW
    if _touches(previous, place.token, kinds) or (
        place.next is not None and _touches(place.token, place.next, kinds)
    ):
        return (
            "a value cannot be a part of a name",
            "make the whole name: {{ ('part_' ~ x) | identifier }}",
        )
    if previous.text == "::":
        return "a value cannot be a type", RAW
    if _is_operand(place, kinds) or (place.next is not None and place.next.kind in LITERALS):
        return "a value cannot follow another value without an operator", RAW
    return None


def _touches(left: Token, right: Token, kinds: Mapping[str, MarkKind]) -> bool:
    if left.end != right.start:
        return False
    other = left if kinds.get(right.text) == "value" else right
    if other.kind == "mark":
        return kinds.get(other.text) != "sql"
    return (
        other.kind in ("word", "number", "name", "parameter")
        or other.kind in LITERALS
        or other.text in (".", "$")
    )


def _is_operand(place: SqlPlace, kinds: Mapping[str, MarkKind]) -> bool:
    """Whether a value stands right before this one: `a {{ operator }} b`, `ORDER BY a {{ direction }}`."""
    previous = place.previous
    assert previous is not None
    if previous.kind == "mark":
        return kinds.get(previous.text) in ("value", "identifier")
    if previous.kind in ("name", "number") or previous.kind in LITERALS or previous.text == ")":
        return True
    if previous.kind != "word" or place.clause not in _CONSTANT:
        return False
    return previous.word not in _GOES_ON | _END_OF_CLAUSE


def _as_name(place: SqlPlace) -> tuple[str, str] | None:
    previous = place.previous
    word = "" if previous is None else previous.word
    if place.columns and word != "DEFAULT" and previous is not None and previous.text in ("(", ","):
        return "a value cannot be the name of a column", NAME
    if word == "FROM" and (
        place.opener in _FROM_A_VALUE
        or (place.before is not None and place.before.word == "DISTINCT")
    ):
        return None
    wanted = _NAME_FOLLOWS.get(word)
    if wanted is not None and not (word in ("SET", "AS") and place.token.kind != "mark"):
        return f"a value cannot be {wanted}, which {word} wants", EITHER
    if (
        word == "EXISTS"
        and place.before is not None
        and place.before.word in ("IF", "NOT")
        and place.first != "SELECT"
    ):
        return "a value cannot be a name", NAME
    if word == "ON" and place.first == "CREATE":
        return "a value cannot be a table", NAME
    if word == "TO" and place.first in ("ALTER", "GRANT"):
        return "a value cannot be a name", NAME
    sets = (
        place.clause == "SET"
        and place.first != "SET"
        and place.next is not None
        and place.next.text == "="
    )
    if sets and word == "" and previous is not None and previous.text == ",":
        return "a value cannot be the name of a column", NAME
    return None


def _is_constant_item(place: SqlPlace) -> bool:
    """Whether an item of ORDER BY, GROUP BY or PARTITION BY is nothing but a value."""
    previous, following = place.previous, place.next
    if (
        place.clause not in _CONSTANT
        or previous is None
        or not (previous.word == "BY" or previous.text == ",")
    ):
        return False
    if following is None or following.text in (",", ")", "::"):
        return True
    return following.word in _END_OF_ITEM | _END_OF_CLAUSE
