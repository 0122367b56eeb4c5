"""Calls that block, in a thread of their own, stopped when whoever waits for them is cancelled."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

INTERRUPT_EVERY = 0.05  # seconds: an interrupt between two statements is lost


async def in_thread(run: Callable[[], Any], interrupt: Callable[[], None], name: str) -> Any:
    """The result of `run`. Cancelled, it is interrupted until it ends."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[Any] = loop.create_future()

    def work() -> None:
        try:
            value = run()
        except BaseException as error:  # without its frames, which would keep the connection
            loop.call_soon_threadsafe(ended.set_exception, error.with_traceback(None))
        else:
            loop.call_soon_threadsafe(ended.set_result, value)

    threading.Thread(target=work, name=name).start()
    try:
        return await asyncio.shield(ended)
    except asyncio.CancelledError:
        while not ended.done():
            interrupt()
            await asyncio.wait([ended], timeout=INTERRUPT_EVERY)
        ended.exception()  # seen: an interrupted statement says so
        raise
