"""Runs the coroutines of processes on uvloop, which halves the cost of a connection."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import uvloop

from noetl.runtime.garbage import reduce_garbage_collection

T = TypeVar("T")


def run_in_loop(main: Coroutine[Any, Any, T]) -> T:
    reduce_garbage_collection()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)
