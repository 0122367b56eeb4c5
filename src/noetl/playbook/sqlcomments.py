"""Values in comments of SQL: `-- where a = {{ x }}` is text that somebody left out, so nothing asks for `x`.

The `{{ expression }}` becomes blanks of the same length before the template is parsed: what follows keeps its place. Tags that
shape the text (`{% if %}`) still work inside comments. An expression stays if such a tag, or one that trims blanks (`{{- x }}`),
decides whether it is in the comment.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import jinja2

from noetl.playbook.sqltext import Dialect, Token, Unterminated, tokens

_SYNTAX = jinja2.Environment(keep_trailing_newline=True)  # noqa: S701 - it finds tags, it never renders
_STAND_IN = "\ue000"  # for a character of an expression: no quote, no blank and no end of a line
_ENDS = {
    "variable_begin": "variable_end",
    "block_begin": "block_end",
    "comment_begin": "comment_end",
}
_ENDS |= {"raw_begin": "raw_begin", "raw_end": "raw_end"}


@dataclass(frozen=True, slots=True)
class _Tag:
    kind: Literal["expression", "other"]
    start: int
    end: int


def blank_commented_values(source: str, dialect: Dialect) -> str:
    """The source without the expressions in its comments; as it is if it cannot be read."""
    if "{{" not in source or not ("--" in source or "/*" in source):
        return source
    try:
        tags = list(_tags(source))
        comments = [
            token for token in tokens(_masked(source, tags), "", dialect) if token.kind == "comment"
        ]
    except (jinja2.TemplateSyntaxError, _Untraceable, Unterminated):
        return source
    left_out = [
        tag
        for tag in tags
        if tag.kind == "expression" and any(_leaves_out(comment, tag, tags) for comment in comments)
    ]
    return _filled(source, [(tag, " ") for tag in left_out])


class _Untraceable(Exception):
    """The tokens of the template do not show where they stand in it."""


def _tags(source: str) -> Iterator[_Tag]:
    at, start, ends_with = 0, 0, ""
    for _, kind, value in _SYNTAX.lex(source):
        begin = source.find(value, at)
        if begin < 0 or source[at:begin].strip():  # only blanks that a tag trims are left out
            raise _Untraceable
        at = begin + len(value)
        if kind in _ENDS and not ends_with:
            start, ends_with = begin, _ENDS[kind]
        if kind == ends_with:
            text = source[start:at]
            is_plain = (
                text.startswith("{{")
                and text[2:3] not in "-+"
                and text.endswith("}}")
                and text[-3:-2] not in "-+"
            )
            yield _Tag("expression" if is_plain else "other", start, at)
            ends_with = ""


def _masked(source: str, tags: list[_Tag]) -> str:
    """The text of the same length that SQL sees."""
    return _filled(source, [(tag, _STAND_IN if tag.kind == "expression" else " ") for tag in tags])


def _filled(source: str, tags: list[tuple[_Tag, str]]) -> str:
    """The source with a character in place of every character of these tags."""
    parts, at = [], 0
    for tag, filler in tags:
        parts += [source[at : tag.start], filler * (tag.end - tag.start)]
        at = tag.end
    return "".join([*parts, source[at:]])


def _leaves_out(comment: Token, tag: _Tag, tags: list[_Tag]) -> bool:
    """Whether the tag is in the comment, and no other tag before it decides that."""
    if not comment.start < tag.start < comment.end:
        return False
    return not any(
        other.kind == "other" and comment.start < other.start < tag.start for other in tags
    )
