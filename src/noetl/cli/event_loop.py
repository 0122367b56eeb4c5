"""Runs the coroutines of commands on uvloop, which halves the cost of a connection."""

import asyncio
import gc
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

# Thresholds of the garbage collector. Loading and deciding make many objects, but few cycles.
GC_THRESHOLDS = (50_000, 20, 50)


def run_in_loop(main: Coroutine[Any, Any, T]) -> T:
    import uvloop

    reduce_garbage_collection()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


def reduce_garbage_collection() -> None:
    """Collect garbage rarely, and never look at modules that are loaded by now.

    They stay, and each look at them takes ten milliseconds.
    """
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
