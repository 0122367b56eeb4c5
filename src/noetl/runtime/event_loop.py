"""Runs the coroutines of servers and workers.

They run on uvloop, which halves the cost of a connection. Other processes cannot read them.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import uvloop

from noetl.runtime.garbage import reduce_garbage_collection
from noetl.runtime.process_memory import close_process_memory

T = TypeVar("T")


def run_in_loop(main: Coroutine[Any, Any, T]) -> T:
    reduce_garbage_collection()
    close_process_memory()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)
