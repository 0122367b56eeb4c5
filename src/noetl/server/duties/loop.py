"""Repeats a duty at an interval. A wake-up shortens the pause, and no failure stops the loop."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec import Struct

from noetl.backoff import Backoff
from noetl.bus.port import Bus
from noetl.model.errors import Unavailable

log = logging.getLogger(__name__)

MAX_RETRY_INTERVAL_S = 2.0  # seconds between tries while the store is unavailable, at most


class Counts(Struct, frozen=True):
    """How much one run did, and whether there is more to do."""

    done: int = 0
    has_more: bool = False  # True: run again at once


class Duty(Protocol):
    """A background loop of the server; one run does a bounded amount of work."""

    name: str

    async def run_once(self) -> Counts: ...


class DutyLoop:
    """Runs one duty until it is cancelled."""

    def __init__(
        self,
        duty: Duty,
        interval: float,
        slowest: float = MAX_RETRY_INTERVAL_S,
        *,
        after: float = 0.0,
    ) -> None:
        """`after` is the delay of the first run, in seconds."""
        self._after = after
        self._duty = duty
        self._interval = interval
        self._slowest = slowest
        self.wake = asyncio.Event()
        self.done = 0
        self.failures = 0
        self._ran_at = float("-inf")
        self._due_wake: asyncio.TimerHandle | None = None

    def wake_soon(self, pause: float) -> None:
        """Wake the loop now, or `pause` seconds after its last run if that is later."""
        if self._due_wake is not None:
            return
        loop = asyncio.get_running_loop()
        at = max(loop.time(), self._ran_at + pause)
        self._due_wake = loop.call_at(at, self._wake_now)

    def _wake_now(self) -> None:
        self._due_wake = None
        self.wake.set()

    async def run(self) -> None:
        backoff = Backoff(self._interval, self._slowest)
        if self._after:
            await asyncio.sleep(self._after)
        while True:
            self.wake.clear()
            self._ran_at = asyncio.get_running_loop().time()
            try:
                counts = await self._duty.run_once()
            except Unavailable as error:
                self.failures += 1
                log.warning(
                    "duty waits for the store", extra={"duty": self._duty.name, "error": str(error)}
                )
                await asyncio.sleep(backoff.delay)
                backoff.count_failure()
                continue
            except Exception:  # this loop must survive
                self.failures += 1
                log.exception("duty failed", extra={"duty": self._duty.name})
                await asyncio.sleep(backoff.delay)
                backoff.count_failure()
                continue
            self.done += counts.done
            backoff.reset()
            if not counts.has_more:
                await self._pause_until_woken()

    async def _pause_until_woken(self) -> None:
        try:
            async with asyncio.timeout(self._interval):
                await self.wake.wait()
        except TimeoutError:
            pass


async def listen_to_hints(
    bus: Bus,
    subjects: Sequence[str],
    hear: Callable[[], None],
) -> None:
    """Call `hear` for every hint, for as long as the process lives.

    Lost hints do no harm: duties also run at their intervals.
    """
    while True:
        try:
            async for _ in bus.subscribe(*subjects):
                hear()
        except Exception:  # this loop must survive
            log.exception("the bus is not there")
        hear()
        await asyncio.sleep(MAX_RETRY_INTERVAL_S)
