"""Columns as the text of Postgres's arrays: the driver looks long at every element of a list, to see whether it is a list itself.

JSON's arrays differ from Postgres's in their brackets, and in what follows a backslash: `\\n` is a line there and an n here.
"""

from collections.abc import Iterable, Sequence

from noetl.model.codec import encode


def numbers(values: Sequence[int | None]) -> str:
    return _braced(encode(values))


def documents(values: Sequence[str | None]) -> str:
    """Texts that are JSON: they have neither lines nor other control characters, so only quotes and backslashes are escaped."""
    return _braced(encode(values))


def texts(values: Sequence[str | None]) -> str:
    data = encode(values)
    return _quoted(values) if b"\\" in data else _braced(data)


def _braced(data: bytes) -> str:
    return "{" + data[1:-1].decode() + "}"


def _quoted(values: Iterable[str | None]) -> str:
    return (
        "{"
        + ",".join(["null" if value is None else f'"{_escaped(value)}"' for value in values])
        + "}"
    )


def _escaped(value: str) -> str:
    """Postgres has no text with the character zero: it stands there as the replacement character."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\0", "\ufffd")
