"""The store's time as this server estimates it, so that timers, leases and event times agree.

A time that the store sends is a little old when it arrives, so it is a lower bound; the largest of
the last few is the best estimate. Between answers the event loop's monotonic time goes on, which
changes of the machine's clock do not affect.
"""

import asyncio
from collections import deque

from noetl.model.clock import Clock
from noetl.model.ids import Micros


class StoreClock:
    """A clock that follows the store's time."""

    def __init__(self, local: Clock) -> None:
        self._local = local
        # the store's time minus the loop's time, of the last answers
        self._offsets: deque[Micros] = deque(maxlen=20)

    def add_sample(self, now: Micros) -> None:
        """Take a time that the store has sent."""
        self._offsets.append(now - _loop_time())

    def now(self) -> Micros:
        """The store's time; the machine's clock before the first answer."""
        if not self._offsets:
            return self._local.now()
        return _loop_time() + max(self._offsets)


def _loop_time() -> Micros:
    return round(asyncio.get_running_loop().time() * 1e6)
