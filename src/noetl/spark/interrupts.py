"""Python code that runs in a thread and ends when its caller is cancelled.

A thread cannot be killed, and a task's process runs other items too. An exception is raised in the thread instead: it ends code
that computes or waits in Python. A call that blocks outside Python (`time.sleep`, a query) ends first. The caller waits for that,
so that no two tries of an item run side by side.
"""

import asyncio
import ctypes
from collections.abc import Callable
from contextlib import suppress
from threading import Lock, get_ident
from typing import TypeVar

INTERRUPT_INTERVAL_S = (
    1.0  # code may handle an interrupt as if it were an error of its own, so there is another one
)

Result = TypeVar("Result")


class Interrupted(BaseException):
    """Raised inside code whose time is up. Not an `Exception`: code that handles its own errors does not handle this one."""


class InterruptibleThread:
    """The thread that runs a function, as long as it does."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._thread: int | None = None
        self._is_interrupted = False

    def run(self, function: Callable[[], Result]) -> Result | None:
        """None if it was interrupted before it began, or when it ended by that."""
        try:
            with self._lock:
                if self._is_interrupted:
                    return None
                self._thread = get_ident()
            return function()
        except Interrupted:
            return None
        finally:
            self._leave()

    def interrupt(self) -> None:
        with self._lock:
            self._is_interrupted = True
            if self._thread is not None:
                _raise_in(self._thread, Interrupted)

    def _leave(self) -> None:
        """The thread goes on with work of others, which an exception that is still to come must not end."""
        while self._thread is not None:
            with suppress(Interrupted):
                self._forget()

    def _forget(self) -> None:
        with self._lock:
            if self._thread is not None:
                _raise_in(self._thread, None)
            self._thread = None


def _raise_in(thread: int, exception: type[BaseException] | None) -> None:
    """None takes back an exception that is still to be raised."""
    raised = ctypes.py_object(exception) if exception is not None else None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), raised)


async def run_interruptible(function: Callable[[], Result]) -> Result:
    """Its result. When the caller is cancelled, the function is interrupted, and has ended when this ends."""
    thread = InterruptibleThread()
    running = asyncio.ensure_future(asyncio.to_thread(thread.run, function))
    try:
        result = await asyncio.shield(running)
    except asyncio.CancelledError:
        while not running.done():
            thread.interrupt()
            await asyncio.wait([running], timeout=INTERRUPT_INTERVAL_S)
        raise
    assert result is not None, "only a cancelled caller interrupts it"
    return result
