"""Columns as the text of Postgres's arrays: the driver looks long at every element of a list, to see whether it is a list itself.

A column is written by a few passes over all of it, not by a call for each of its values.
"""

from collections.abc import Iterable

_BETWEEN, _NULL = "\x1f", "\x1e"  # of values while they are one text; nearly no text has them


def numbers(values: Iterable[int | None]) -> str:
    return "{" + ",".join(map(str, values)).replace("None", "null") + "}"


def texts(values: Iterable[str | None]) -> str:
    given = list(values)
    if not given:
        return "{}"
    nulls = given.count(None)
    joined = _BETWEEN.join([_NULL if value is None else value for value in given])
    if joined.count(_BETWEEN) != len(given) - 1 or joined.count(_NULL) != nulls:
        return "{" + ",".join(["null" if value is None else f'"{_escaped(value)}"' for value in given]) + "}"
    written = '{"' + _escaped(joined).replace(_BETWEEN, '","') + '"}'
    return written.replace(f'"{_NULL}"', "null") if nulls else written


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"')
