"""Runs Python code in a thread, and interrupts it when the caller is cancelled.

A thread cannot be killed, and the process of a task runs other items too. So an exception is raised
in the thread: it ends code that computes or waits in Python. A call that blocks outside Python
(`time.sleep`, a query) ends before the exception is raised. The caller waits for that, so that two
tries of an item never run at the same time.
"""

import asyncio
import ctypes
from collections.abc import Callable
from contextlib import suppress
from threading import Lock, get_ident
from typing import TypeVar

INTERRUPT_INTERVAL_S = 1.0  # repeated, because code may catch an interrupt as an error of its own

Result = TypeVar("Result")


class Interrupted(BaseException):
    """Raised inside code that must end. Not an `Exception`, so `except Exception` does not catch it."""


class InterruptibleThread:
    """Knows which thread runs a function, while it runs."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._thread: int | None = None
        self._is_interrupted = False

    def run(self, function: Callable[[], Result]) -> Result | None:
        """The result of the function, or None if it was interrupted."""
        try:
            with self._lock:
                if self._is_interrupted:
                    return None
                self._thread = get_ident()
            return function()
        except Interrupted:
            return None
        finally:
            self._leave_thread()

    def interrupt(self) -> None:
        with self._lock:
            self._is_interrupted = True
            if self._thread is not None:
                _raise_in_thread(self._thread, Interrupted)

    def _leave_thread(self) -> None:
        """Take back an exception that is still to be raised: the thread goes on with other work."""
        while self._thread is not None:
            with suppress(Interrupted):
                self._forget_thread()

    def _forget_thread(self) -> None:
        with self._lock:
            if self._thread is not None:
                _raise_in_thread(self._thread, None)
            self._thread = None


def _raise_in_thread(thread: int, exception: type[BaseException] | None) -> None:
    """Raise the exception in the thread. None takes back one that is still to be raised."""
    argument = None if exception is None else ctypes.py_object(exception)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), argument)


async def run_interruptible(function: Callable[[], Result]) -> Result:
    """The result of the function, which runs in a thread.

    When the caller is cancelled, the function is interrupted. It has ended when this returns.
    """
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
