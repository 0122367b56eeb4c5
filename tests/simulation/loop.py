"""The kernel: an asyncio event loop with virtual time, a seeded order of what is ready, and processes that can die.

Time stands still while anything is ready and jumps to the next timer when nothing is. There is no I/O and there are no threads.
What is ready runs in an order the seed chooses (`order`).

Every callback belongs to the `Process` found in its context. Killing a process means that its callbacks never run again: its
tasks stay where they are, as the memory of a dead machine would, and nobody hears their `finally`. They are kept referenced until
the loop is disposed of, because collecting a suspended coroutine would run code of the dead. A paused process keeps its callbacks
until it wakes, and then finds that time has passed.
"""

import asyncio
import contextvars
import heapq
from collections.abc import Callable, Coroutine
from contextlib import suppress
from random import Random
from typing import Any, Literal, TypeVar

T = TypeVar("T")
MAX_STEPS_AT_ONE_MOMENT = 20_000
MAX_STEPS = 100_000  # of one history; a usual one takes some thousands


class Killed(BaseException):
    """Raised inside a process that dies, so that the code being run stops; ports raise it for everything that it still tries."""


class Livelock(Exception):
    """Callbacks follow each other for ever without time moving on."""


class SimProcess:
    """One life of a node. A restart is a new one: nothing of the old one's memory is left."""

    __slots__ = ("alive", "held", "name", "paused", "pauses")

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.paused = False
        self.pauses = 0
        self.held: list[Handle] = []

    def check(self) -> None:
        if not self.alive:
            raise Killed(self.name)

    def __repr__(self) -> str:
        return f"<{self.name}{'' if self.alive else ' dead'}{' paused' if self.paused else ''}>"


_process: contextvars.ContextVar[SimProcess | None] = contextvars.ContextVar(
    "process", default=None
)


def current() -> SimProcess | None:
    """The process that runs now; None for the world outside (stores, network, the oracle)."""
    return _process.get()


class Handle:
    """A callback to run; also the handle of a timer. Not asyncio's own: that one asks for more of its loop than there is here."""

    __slots__ = ("args", "callback", "context", "due", "process")

    def __init__(
        self,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: contextvars.Context,
        due: float,
    ) -> None:
        self.callback: Callable[..., object] | None = callback
        self.args = args
        self.context = context
        self.due = due
        self.process = context.get(_process)

    def cancel(self) -> None:
        self.callback = None
        self.args = ()

    def cancelled(self) -> bool:
        return self.callback is None

    def when(self) -> float:
        return self.due


def name_of(callback: Callable[..., object]) -> str:
    owner = getattr(callback, "__self__", None)
    return (
        owner.get_name()
        if isinstance(owner, asyncio.Task)
        else getattr(callback, "__qualname__", "a callback")
    )


class SimLoop(asyncio.AbstractEventLoop):
    """`order`: what runs next of what is ready. `process`: a random process, and there what became ready first, as asyncio
    promises; `any`: as the seed says, to find code that relies on that promise; `fifo`: no chance at all."""

    virtual = True

    def __init__(self, rng: Random, order: Literal["process", "any", "fifo"] = "process") -> None:
        self._random = rng.random
        self._order = order
        self._now = 0.0
        self._ready: list[Handle] = []
        self._timers: list[tuple[float, float, int, Handle]] = []
        self._count = 0
        self._tasks: list[asyncio.Task[Any]] = []
        self._stopping = False
        self._closed = False
        self._running = False
        self._context = contextvars.Context()
        self.steps = 0
        self.errors: list[dict[str, Any]] = []

    # -- time and scheduling -------------------------------------------------------------------------------------------

    def time(self) -> float:
        return self._now

    def call_soon(
        self,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> Any:
        handle = Handle(
            callback, args, contextvars.copy_context() if context is None else context, self._now
        )
        process = handle.process
        if process is not None:
            if not process.alive:
                return handle
            if process.paused:
                process.held.append(handle)
                return handle
        self._ready.append(handle)
        return handle

    def call_at(
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> Any:
        handle = Handle(
            callback, args, contextvars.copy_context() if context is None else context, when
        )
        self._count += 1
        heapq.heappush(
            self._timers,
            (when, 0.0 if self._order == "fifo" else self._random(), self._count, handle),
        )
        return handle

    def call_later(
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> Any:
        return self.call_at(self._now + max(delay, 0.0), callback, *args, context=context)

    def call_outside(self, delay: float, callback: Callable[..., object], *args: Any) -> Any:
        """Call later in the world outside every process: what is on the wire goes on when its sender dies."""
        return self.call_at(self._now + delay, callback, *args, context=self._context)

    def _step(self) -> bool:
        """Run one callback, after moving time on if none is ready. False: nothing will ever happen."""
        ready, timers = self._ready, self._timers
        if not ready:
            while timers and timers[0][3].callback is None:
                heapq.heappop(timers)
            if not timers:
                return False
            self._still = 0
            self._now = max(self._now, timers[0][0])
            while timers and timers[0][0] <= self._now:
                handle = heapq.heappop(timers)[3]
                if handle.callback is not None:
                    self._wake(handle)
            if not ready:
                return True
        handle = ready.pop(self._choose()) if len(ready) > 1 else ready.pop()
        callback = handle.callback
        if callback is None:
            return True
        process = handle.process
        if process is not None:
            if not process.alive:
                return True
            if process.paused:
                process.held.append(handle)
                return True
        self.steps += 1
        self._still += 1
        if self._still > MAX_STEPS_AT_ONE_MOMENT:
            raise Livelock(
                f"{self._still} callbacks at {self._now:.3f} s, the last one {name_of(callback)}"
            )
        if self.steps > MAX_STEPS:
            raise Livelock(f"{self.steps} callbacks in {self._now:.3f} s")
        try:
            handle.context.run(callback, *handle.args)
        except (SystemExit, KeyboardInterrupt):
            raise
        except Killed:
            pass
        except BaseException as error:
            self.call_exception_handler({"message": "exception in a callback", "exception": error})
        return True

    _still = 0

    def _choose(self) -> int:
        if self._order == "fifo":
            return 0
        ready = self._ready
        chosen = int(self._random() * len(ready))
        if self._order == "any":
            return chosen
        process = ready[chosen].process
        return next(number for number, handle in enumerate(ready) if handle.process is process)

    def _wake(self, handle: Handle) -> None:
        process = handle.process
        if process is None or (process.alive and not process.paused):
            self._ready.append(handle)
        elif process.alive:
            process.held.append(handle)

    # -- processes -----------------------------------------------------------------------------------------------------

    def spawn(
        self, process: SimProcess | None, coroutine: Coroutine[Any, Any, T], name: str | None = None
    ) -> "asyncio.Task[T]":
        context = self._context.copy()
        context.run(_process.set, process)
        return self.create_task(coroutine, name=name, context=context)

    def kill(self, process: SimProcess) -> None:
        process.alive = False
        process.held.clear()

    def pause(self, process: SimProcess, duration: float) -> None:
        if process.paused or not process.alive:
            return
        process.paused = True
        process.pauses += 1
        self.call_outside(duration, self._resume, process)

    def _resume(self, process: SimProcess) -> None:
        process.paused = False
        held, process.held = process.held, []
        if process.alive:
            self._ready.extend(held)

    # -- what asyncio asks of a loop -----------------------------------------------------------------------------------

    def create_future(self) -> "asyncio.Future[Any]":
        return asyncio.Future(loop=self)

    def create_task(
        self, coro: Any, *, name: str | None = None, context: contextvars.Context | None = None
    ) -> Any:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name, context=context)
        self._tasks.append(task)
        if len(self._tasks) > 4096:  # the ended ones need no keeping
            self._tasks = [kept for kept in self._tasks if not kept.done()]
        return task

    def run_until_complete(self, future: Any) -> Any:
        future = asyncio.ensure_future(future, loop=self)
        previous = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        self._running = True
        try:
            while not future.done():
                if not self._step():
                    raise Livelock(
                        "nothing is ready and no timer is set, but the main task has not ended"
                    )
        finally:
            self._running = False
            asyncio._set_running_loop(previous)
        return future.result()

    def run_until(self, moment: float, done: Callable[[], bool] = lambda: False) -> None:
        """Run until the moment, or until `done` says so, asked after every few callbacks."""
        previous = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        self._running = True
        try:
            while not done():
                for _ in range(8):
                    if not self._ready:
                        while self._timers and self._timers[0][3].callback is None:
                            heapq.heappop(self._timers)
                        if not self._timers or self._timers[0][0] > moment:
                            self._now = max(self._now, moment)
                            return
                    self._step()
        finally:
            self._running = False
            asyncio._set_running_loop(previous)

    def dispose(self) -> None:
        """The history is over. Close what is left without a sound; every port must refuse by now."""
        self._closed = True
        self._ready.clear()
        self._timers.clear()
        previous = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        try:
            for task in self._tasks:
                if task.done():
                    if not task.cancelled():
                        task.exception()  # retrieved: nobody will ask
                    continue
                task._log_destroy_pending = False  # type: ignore[attr-defined]  # asyncio has no public way to say so
                with suppress(BaseException):  # code of the dead may raise anything
                    task.get_coro().close()  # type: ignore[union-attr]
        finally:
            asyncio._set_running_loop(previous)
        self._tasks.clear()

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self._closed:
            self.errors.append(context)

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.call_exception_handler(context)

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return self._closed

    def call_soon_threadsafe(
        self, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> Any:
        raise RuntimeError("no threads in a simulation")

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        raise RuntimeError("no threads in a simulation")

    async def shutdown_asyncgens(self) -> None:
        return None

    async def shutdown_default_executor(self) -> None:
        return None

    def close(self) -> None:
        self.dispose()
