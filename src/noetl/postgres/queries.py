"""Named queries, read from the `.sql` file beside the module that owns the tables.

`-- name: x` starts a query. `:name` is a parameter.
"""

import re
from pathlib import Path
from typing import Any

_QUERY_NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
# Parameters, and everything else that may contain a colon: comments, strings, casts.
_TOKEN = re.compile(r"--[^\n]*|'(?:[^']|'')*'|::|:([a-z_]\w*)")


class Query:
    """One statement, its parameters rewritten from `:name` to `$1`, `$2` and so on."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        numbers: dict[str, int] = {}

        def number_parameter(token: re.Match[str]) -> str:
            parameter = token[1]
            if parameter is None:
                return token[0]
            number = numbers.setdefault(parameter, len(numbers) + 1)
            return f"${number}"

        self.text = _TOKEN.sub(number_parameter, text).strip()
        self.parameters = tuple(numbers)

    def bind(self, **values: Any) -> tuple[Any, ...]:
        """The values in the order in which the statement numbers them."""
        if values.keys() != set(self.parameters):
            raise TypeError(f"query {self.name} takes {self.parameters}, not {tuple(values)}")
        return tuple(values[name] for name in self.parameters)


def load_queries(path: Path) -> dict[str, Query]:
    """The queries of a file by name. The text before the first name is a comment on the file."""
    _, *pieces = _QUERY_NAME.split(path.read_text(encoding="utf-8"))
    names, texts = pieces[::2], pieces[1::2]
    queries = {name: Query(name, text) for name, text in zip(names, texts, strict=True)}
    if len(queries) != len(names):
        raise ValueError(f"{path.name} names a query twice")
    return queries
