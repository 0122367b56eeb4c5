"""Which tools a worker has: the built-in ones, and those that packages bring by the entry point `noetl.tools`.

A built-in tool is imported when it is first asked for, so a worker that runs no SQL holds no driver in memory.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from noetl.tools.nursery import ForkServer
from noetl.tools.port import Tool

log = logging.getLogger(__name__)

GROUP = "noetl.tools"
Make = Callable[[], Tool]


class Registry:
    """Tools by kind; of two with the same kind the later one is used, and one that is here before one that is yet to be made."""

    def __init__(self, tools: Iterable[Tool] = (), later: Mapping[str, Make] | None = None) -> None:
        self._tools = {tool.kind: tool for tool in tools}
        self._later = dict(later or {})

    def get(self, kind: str) -> Tool | None:
        found = self._tools.get(kind)
        if found is None and kind in self._later:
            found = self._tools[kind] = self._later[kind]()
        return found

    def lacks(self, kind: str) -> bool:
        """It is yet to be made."""
        return kind not in self._tools and kind in self._later

    async def load(self, kind: str) -> None:
        """Make it in a thread: libraries take their time to load, and the loop has leases to renew. What cannot be made says so
        when it is asked for."""
        with suppress(Exception):
            made = await asyncio.to_thread(self._later[kind])
            self._tools.setdefault(kind, made)

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(sorted({*self._tools, *self._later}))

    async def start(self, *kinds: str) -> None:
        """Have these ready before the first call."""
        for kind in kinds:
            if (start := getattr(self.get(kind), "start", None)) is not None:
                await start()

    async def close(self) -> None:
        """Ends every process and connection of the tools."""
        for tool in self._tools.values():
            if (close := getattr(tool, "close", None)) is not None:
                await close()


def built_in() -> dict[str, Make]:
    nursery = ForkServer()  # one for all tools that need processes
    http = cache(lambda: _class("http", "Http")())  # each with its connections, which sinks use too
    postgres = cache(lambda: _class("postgres", "Postgres")())
    return {
        "noop": lambda: _class("noop", "Noop")(),
        "wait": lambda: _class("wait", "Wait")(),
        "playbook": lambda: _class("playbook", "PlaybookTool")(),
        "python": lambda: _class("python", "Python")(nursery),
        "shell": lambda: _class("shell", "Shell")(nursery),
        "http": http,
        "postgres": postgres,
        "duckdb": lambda: _class("duckdb", "Duckdb")(),
        "artifact": lambda: _class("artifact", "Artifact")(),
        "transfer": lambda: _class("transfer", "Transfer")(),
        "sink": lambda: _class("sink", "SinkTool")(postgres, http),
        "nats": lambda: _class("nats", "Nats")(os.environ.get("NOETL_NATS_URL")),
        "secrets": lambda: _class("secrets", "Secrets")(),
    }


def _class(module: str, name: str) -> Any:
    return getattr(import_module(f"noetl.tools.{module}"), name)


def outside() -> list[Tool]:
    """Each entry point names a class or function that makes one tool. One that cannot be made is left out: the others can."""
    found = []
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        try:
            found.append(point.load()())
        except Exception as error:  # somebody else's code
            log.error(
                "tool left out",
                extra={"tool": point.name, "from": point.value, "error": repr(error)},
            )
    return found


def models(tools: Iterable[Tool]) -> dict[str, Any]:
    """What validation must know of kinds that come by entry point: their config models, or None."""
    return {tool.kind: getattr(tool, "config", None) for tool in tools}


def default(more: Mapping[str, Make] | None = None) -> Registry:
    """`more` are kinds that stand above this folder, given by whoever wires the worker."""
    return Registry(outside(), {**built_in(), **(more or {})})
