"""Columns as the text of Postgres arrays. This is faster than passing lists, because the driver
inspects every element of a list for nested lists.

Postgres's arrays differ from JSON's in their brackets, and after a backslash: `\\n` is a line break
in JSON and an `n` in Postgres.
"""

from collections.abc import Iterable, Sequence

from noetl.model.codec import encode
from noetl.model.stored_text import replace_nul


def format_numbers(values: Sequence[int | None]) -> str:
    return _replace_brackets(encode(values))


def format_documents(values: Sequence[str | None]) -> str:
    """Texts that are JSON. They have no control characters, so only quotes and backslashes are
    escaped.
    """
    return _replace_brackets(encode(values))


def format_texts(values: Sequence[str | None]) -> str:
    data = encode(values)
    if b"\\" in data:
        return _quote_items(values)
    return _replace_brackets(data)


def _replace_brackets(data: bytes) -> str:
    return "{" + data[1:-1].decode() + "}"


def _quote_items(values: Iterable[str | None]) -> str:
    items = ["null" if value is None else f'"{_escape_text(value)}"' for value in values]
    return "{" + ",".join(items) + "}"


def _escape_text(value: str) -> str:
    """Escape the text, which becomes one that Postgres can store."""
    return replace_nul(value).replace("\\", "\\\\").replace('"', '\\"')
