"""Runs a blocking call in its own thread, and interrupts it when its caller is cancelled."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

# Seconds; repeated, because an interrupt between two statements has no effect.
THREAD_INTERRUPT_INTERVAL_S = 0.05


async def run_in_thread(
    run: Callable[[], Any],
    interrupt: Callable[[], None],
    name: str,
) -> Any:
    """Return the result of `run`. When cancelled, call `interrupt` until `run` has ended."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[Any] = loop.create_future()

    def work() -> None:
        try:
            value = run()
        except BaseException as error:  # without its frames, which would keep the connection alive
            loop.call_soon_threadsafe(ended.set_exception, error.with_traceback(None))
        else:
            loop.call_soon_threadsafe(ended.set_result, value)

    threading.Thread(target=work, name=name).start()
    try:
        return await asyncio.shield(ended)
    except asyncio.CancelledError:
        while not ended.done():
            interrupt()
            await asyncio.wait([ended], timeout=THREAD_INTERRUPT_INTERVAL_S)
        ended.exception()  # mark it as retrieved: an interrupted statement always raises
        raise
