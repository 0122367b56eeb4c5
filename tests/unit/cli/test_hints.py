"""Hints that the command prints name commands: a user of the command cannot call routes."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import noetl

SOURCE = Path(noetl.__file__).parent
# Modules that only requests of HTTP clients reach.
HTTP_ONLY = ("server/http/", "server/variables/", "server/inspection/runs.py")
ROUTE = re.compile(r"/api/|\b(GET|POST|PUT|DELETE) ")


def list_hints() -> Iterator[tuple[str, str]]:
    """The place and the text of each hint that is written where an error is raised."""
    for file in sorted(SOURCE.rglob("*.py")):
        place = str(file.relative_to(SOURCE))
        if place.startswith(HTTP_ONLY) or place.endswith("/routes.py"):
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.keyword) and node.arg == "hint":
                yield f"{place}:{node.value.lineno}", ast.unparse(node.value)


def test_no_hint_names_a_route() -> None:
    hints = list(list_hints())
    assert len(hints) > 100
    assert [place for place, text in hints if ROUTE.search(text)] == []
