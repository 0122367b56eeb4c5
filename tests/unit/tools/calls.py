"""Calls as the pipeline makes them, and what tools log."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from noetl.model.ids import ExecutionId
from noetl.results.formats.tables import EncodedTable
from noetl.template.limits import WORKER_LIMITS
from noetl.template.model import MarkedValue
from noetl.tools.egress.guard import EgressGuard
from noetl.tools.egress.rules import EgressRules
from noetl.tools.port import Call, CallIdentity, Failed, Outcome, Rows, Success, Tool
from tests.rendering import render_marked, render_value
from tests.waiting import HANG_LIMIT_S

# As in `noetl run`: servers of tests listen on this machine.
LOCAL_GUARD = EgressGuard(EgressRules(allows_private=True))


class Scope:
    """A rendering over plain names."""

    def __init__(self, names: dict[str, Any]) -> None:
        self._names = names

    async def value(self, template: Any) -> Any:
        return render_value(template, self._names)

    async def source(self, template: Any) -> Any:
        return await self.value(template)

    async def rows(self, template: Any) -> Any:
        return template if isinstance(template, Rows) else render_value(template, self._names)

    async def marked(self, template: str) -> tuple[str, list[MarkedValue]]:
        return render_marked(template, self._names, limits=WORKER_LIMITS)


def call(config: dict[str, Any], scope: dict[str, Any] | None = None, **more: Any) -> Call:
    identity = CallIdentity(ExecutionId("1"), "s", "t")
    given = {"input": {}, "key": "k", "identity": identity, "rendering": Scope(scope or {}), **more}
    return Call(config=config, **given)


def run(work: Coroutine[Any, Any, Any]) -> Any:
    """On a loop of its own; a test may wait for a while, but not for ever."""
    return asyncio.run(asyncio.wait_for(work, HANG_LIMIT_S))


async def closing(tool: Tool, *calls: Call) -> list[Outcome]:
    """The outcomes of the calls, made together, on a tool that is closed afterwards."""
    try:
        return list(await asyncio.gather(*(tool.run(one) for one in calls)))
    finally:
        if (close := getattr(tool, "close", None)) is not None:
            await close()


def value(outcome: Outcome) -> Any:
    """As templates see it."""
    assert isinstance(outcome, Success), outcome
    found = outcome.value
    if not isinstance(found, EncodedTable):
        return found
    try:
        return found.value()
    finally:
        found.close()


def failure(outcome: Outcome) -> Any:
    assert isinstance(outcome, Failed), outcome
    return outcome.failure
