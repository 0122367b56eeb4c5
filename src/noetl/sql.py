"""Named queries: plain `.sql` beside the module that owns the tables, `-- name: x` before each, `:name` for a parameter."""

import re
from pathlib import Path
from typing import Any

_NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
# What may hold a colon without naming a parameter: comments, strings, casts.
_TOKEN = re.compile(r"--[^\n]*|'(?:[^']|'')*'|::|:([a-z_]\w*)")


class Query:
    """One statement. `bind` orders values as the statement numbers them."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        numbers: dict[str, int] = {}

        def number(token: re.Match[str]) -> str:
            found = token[1]
            return token[0] if found is None else f"${numbers.setdefault(found, len(numbers) + 1)}"

        self.text = _TOKEN.sub(number, text).strip()
        self.parameters = tuple(numbers)

    def bind(self, **values: Any) -> tuple[Any, ...]:
        if values.keys() != set(self.parameters):
            raise TypeError(f"query {self.name} takes {self.parameters}, not {tuple(values)}")
        return tuple(values[name] for name in self.parameters)


def load(path: Path) -> dict[str, Query]:
    """The queries of a file by name. What stands before the first name is a comment on the file."""
    _, *pieces = _NAME.split(path.read_text(encoding="utf-8"))
    named = list(zip(pieces[::2], pieces[1::2], strict=True))
    queries = {name: Query(name, text) for name, text in named}
    if len(queries) != len(named):
        raise ValueError(f"{path.name} names a query twice")
    return queries
