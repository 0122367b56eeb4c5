"""Does two things at a time while a process starts: it loads modules while it waits for others."""

import asyncio
import sys
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from importlib import import_module
from types import ModuleType
from typing import Any, TypeVar

T = TypeVar("T")

# Seconds after which a thread that loads modules lets the event loop run. The usual five
# milliseconds would delay every answer of the database by that much.
SWITCH_INTERVAL_S = 0.0005


@asynccontextmanager
async def run_meanwhile(work: Coroutine[Any, Any, T]) -> AsyncIterator["asyncio.Task[T]"]:
    """Run `work` beside the block, which awaits what this yields. It is cancelled if the block ends
    before it does."""
    task = asyncio.ensure_future(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait((task,))
        if not task.cancelled():
            task.exception()  # the block has got it, or ends with another error


async def load_modules(*names: str) -> list[ModuleType]:
    """Import these modules in a thread, in their order."""
    usual_interval = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        return await asyncio.to_thread(_import_modules, names)
    finally:
        sys.setswitchinterval(usual_interval)


def _import_modules(names: tuple[str, ...]) -> list[ModuleType]:
    return [import_module(name) for name in names]
