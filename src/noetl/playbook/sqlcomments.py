"""Removes values from SQL comments: in `-- where a = {{ x }}` nothing needs `x`.

The `{{ expression }}` becomes blanks of the same length before the template is parsed, so the text
after it keeps its position. Tags that shape the text (`{% if %}`) still work inside comments. An
expression stays if such a tag, or one that trims blanks (`{{- x }}`), decides whether the
expression is in the comment.
"""

from collections.abc import Iterator
from typing import Literal

import jinja2
from msgspec import Struct

from noetl.playbook.sqltext import Dialect, Token, UnterminatedSql, tokenize_sql

_SYNTAX = jinja2.Environment(keep_trailing_newline=True)  # noqa: S701 - it finds tags, it never renders
_STAND_IN = "\ue000"  # replaces characters of an expression: not a quote, a blank or a line end
_ENDS = {
    "variable_begin": "variable_end",
    "block_begin": "block_end",
    "comment_begin": "comment_end",
    "raw_begin": "raw_begin",
    "raw_end": "raw_end",
}


class _Tag(Struct, frozen=True):
    kind: Literal["expression", "other"]
    start: int
    end: int


def blank_commented_values(source: str, dialect: Dialect) -> str:
    """Blank the expressions in comments. Returns the source unchanged if it cannot be read."""
    if "{{" not in source or not ("--" in source or "/*" in source):
        return source
    try:
        tags = list(_find_tags(source))
        masked_tokens = list(tokenize_sql(_mask_tags(source, tags), "", dialect))
    except (jinja2.TemplateSyntaxError, _Untraceable, UnterminatedSql):
        return source
    comments = [token for token in masked_tokens if token.kind == "comment"]
    blanked: list[tuple[_Tag, str]] = []
    for tag in tags:
        is_expression = tag.kind == "expression"
        if is_expression and any(_leaves_out(comment, tag, tags) for comment in comments):
            blanked.append((tag, " "))
    return _fill_tags(source, blanked)


class _Untraceable(Exception):
    """The positions of the template's tokens cannot be found in its source."""


def _find_tags(source: str) -> Iterator[_Tag]:
    end_of_token = 0
    tag_start = 0
    end_kind = ""  # the kind of token that ends the open tag, "" outside of tags
    for _, kind, value in _SYNTAX.lex(source):
        start_of_token = source.find(value, end_of_token)
        # The lexer leaves out nothing but blanks that a tag trims.
        if start_of_token < 0 or source[end_of_token:start_of_token].strip():
            raise _Untraceable
        end_of_token = start_of_token + len(value)
        if kind in _ENDS and not end_kind:
            tag_start, end_kind = start_of_token, _ENDS[kind]
        if kind == end_kind:
            text = source[tag_start:end_of_token]
            yield _Tag(_classify_tag(text), tag_start, end_of_token)
            end_kind = ""


def _classify_tag(text: str) -> Literal["expression", "other"]:
    """Tags that trim blanks (`{{- x }}`) change the text around them, so they count as other."""
    if not text.startswith("{{") or not text.endswith("}}"):
        return "other"
    if text[2:3] in "-+" or text[-3:-2] in "-+":
        return "other"
    return "expression"


def _mask_tags(source: str, tags: list[_Tag]) -> str:
    """Return the text that SQL sees, with the same length as the source."""
    fillers: list[tuple[_Tag, str]] = []
    for tag in tags:
        filler = _STAND_IN if tag.kind == "expression" else " "
        fillers.append((tag, filler))
    return _fill_tags(source, fillers)


def _fill_tags(source: str, tags: list[tuple[_Tag, str]]) -> str:
    """Replace every character of each tag by its filler."""
    parts: list[str] = []
    end = 0
    for tag, filler in tags:
        parts.append(source[end : tag.start])
        parts.append(filler * (tag.end - tag.start))
        end = tag.end
    return "".join([*parts, source[end:]])


def _leaves_out(comment: Token, tag: _Tag, tags: list[_Tag]) -> bool:
    """Whether the tag is in the comment, and no statement before it decides that."""
    if not comment.start < tag.start < comment.end:
        return False
    before = [other for other in tags if comment.start < other.start < tag.start]
    return all(other.kind == "expression" for other in before)
