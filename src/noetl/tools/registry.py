"""Which tools a worker has: the built-in ones, and those that packages bring by the entry point `noetl.tools`."""

from collections.abc import Iterable
from importlib.metadata import entry_points

from noetl.tools.noop import Noop
from noetl.tools.playbook import Child
from noetl.tools.port import Tool
from noetl.tools.python import Python
from noetl.tools.wait import Wait

GROUP = "noetl.tools"


class Registry:
    """Tools by kind; of two with the same kind the later one is used."""

    def __init__(self, tools: Iterable[Tool]) -> None:
        self._tools = {tool.kind: tool for tool in tools}

    def get(self, kind: str) -> Tool | None:
        return self._tools.get(kind)

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(sorted(self._tools))


def built_in() -> list[Tool]:
    return [Noop(), Python(), Wait(), Child()]


def outside() -> list[Tool]:
    """Each entry point names a class or function that makes one tool."""
    return [point.load()() for point in sorted(entry_points(group=GROUP), key=lambda point: point.name)]


def default() -> Registry:
    return Registry([*built_in(), *outside()])
