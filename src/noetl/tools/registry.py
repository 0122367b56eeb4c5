"""The tools of a worker: built-in ones, and those of packages with the entry point `noetl.tools`.

A built-in tool is imported on its first use, so a worker that runs no SQL has no driver in memory.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from noetl.tools.egress.guard import EgressGuard
from noetl.tools.port import Tool
from noetl.tools.processes.fork_server import ForkServer
from noetl.tools.processes.limits import StepLimits

log = logging.getLogger(__name__)

ENTRY_POINT_GROUP = "noetl.tools"
ToolFactory = Callable[[], Tool]


class Registry:
    """Tools by kind.

    Of two tools with the same kind the later one is used. Tools in `tools` win over those in
    `later`, which are made on first use.
    """

    def __init__(
        self,
        tools: Iterable[Tool] = (),
        later: Mapping[str, ToolFactory] | None = None,
        guard: EgressGuard | None = None,
    ) -> None:
        self.guard = guard or EgressGuard()
        self._tools = {tool.kind: tool for tool in tools}
        self._later = dict(later or {})

    def get(self, kind: str) -> Tool | None:
        tool = self._tools.get(kind)
        if tool is None and kind in self._later:
            tool = self._later[kind]()
            self._tools[kind] = tool
        return tool

    def is_unloaded(self, kind: str) -> bool:
        """Whether the tool is known but not made yet."""
        return kind not in self._tools and kind in self._later

    async def load(self, kind: str) -> None:
        """Make the tool in a thread.

        Its libraries may load for seconds, and the event loop must renew leases meanwhile. An error
        is ignored here: `get` raises it again.
        """
        with suppress(Exception):
            tool = await asyncio.to_thread(self._later[kind])
            self._tools.setdefault(kind, tool)

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(sorted({*self._tools, *self._later}))

    async def start(self, *kinds: str) -> None:
        """Start these tools before the first call."""
        for kind in kinds:
            start = getattr(self.get(kind), "start", None)
            if start is not None:
                await start()

    async def close(self) -> None:
        """End every process and connection of the tools."""
        for tool in self._tools.values():
            close = getattr(tool, "close", None)
            if close is not None:
                await close()


def make_factories(
    guard: EgressGuard | None = None,
    limits: StepLimits | None = None,
    folders: Sequence[str] = (),
) -> dict[str, ToolFactory]:
    """A function for each built-in kind that makes the tool.

    `guard` checks where they connect to. Without one they reach public addresses only. `limits` are
    those of their processes. SQL of `duckdb` reaches the files below `folders`.
    """
    guard = guard or EgressGuard()
    fork_server = ForkServer()  # one for all tools that need processes
    # Cached: the sink tool shares the connections of these two.
    http = cache(lambda: import_class("http.tool", "Http")(guard))
    postgres = cache(lambda: import_class("postgres.tool", "Postgres")(guard))
    return {
        "noop": lambda: import_class("noop", "Noop")(),
        "wait": lambda: import_class("wait", "Wait")(),
        "playbook": lambda: import_class("playbook", "PlaybookTool")(),
        "python": lambda: import_class("python.tool", "make_python")(fork_server, limits),
        "shell": lambda: import_class("shell", "Shell")(fork_server, limits),
        "http": http,
        "postgres": postgres,
        "duckdb": lambda: import_class("duckdb.tool", "Duckdb")(folders),
        "artifact": lambda: import_class("artifact", "Artifact")(),
        "transfer": lambda: import_class("transfer.tool", "Transfer")(guard, folders),
        "sink": lambda: import_class("sink.tool", "SinkTool")(postgres, http, guard),
        "nats": lambda: import_class("nats", "Nats")(os.environ.get("NOETL_NATS_URL"), guard),
        "secrets": lambda: import_class("secrets", "Secrets")(),
    }


def import_class(module: str, name: str) -> Any:
    return getattr(import_module(f"noetl.tools.{module}"), name)


def load_entry_point_tools() -> list[Tool]:
    """The tools of the entry points.

    Each entry point names a class or function that makes one tool. A tool that cannot be made is
    logged and left out, so that the others still work.
    """
    tools: list[Tool] = []
    points = sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda point: point.name)
    for point in points:
        try:
            make = point.load()
            tools.append(make())
        except Exception as error:  # somebody else's code
            log.error(
                "tool left out",
                extra={"tool": point.name, "from": point.value, "error": repr(error)},
            )
    return tools


def list_config_models(tools: Iterable[Tool]) -> dict[str, Any]:
    """The config models of kinds from entry points, for validation; None for a tool without one."""
    return {tool.kind: getattr(tool, "config", None) for tool in tools}


def make_registry(
    more: Mapping[str, ToolFactory] | None = None,
    guard: EgressGuard | None = None,
    limits: StepLimits | None = None,
    folders: Sequence[str] = (),
) -> Registry:
    """The registry of a worker. `more` are kinds from packages that this one must not import.

    Without a `guard`, tools reach public addresses only.
    """
    guard = guard or EgressGuard()
    factories = make_factories(guard, limits, folders)
    if more is not None:
        factories.update(more)
    return Registry(load_entry_point_tools(), factories, guard)
