"""How commands run coroutines: on uvloop, which halves the cost of a connection, and with few looks for garbage."""

import asyncio
import gc
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

GARBAGE = (
    50_000,
    20,
    50,
)  # objects between looks for cycles: loading and deciding make many that stay, and few cycles


def in_loop(main: Coroutine[Any, Any, T]) -> T:
    import uvloop

    rarely_collect()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


def rarely_collect() -> None:
    """What is loaded by now stays: looking through it would take ten milliseconds each time."""
    gc.freeze()
    gc.set_threshold(*GARBAGE)
