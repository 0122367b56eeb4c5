"""The store's time, as this server knows it: whatever the machine's own clock says, timers and leases agree with `at`.

Each answer of the store is a little old when it arrives, so it is a lower bound; of the last few the largest is the best.
Between answers the event loop's time goes on, which no clock change touches.
"""

import asyncio
from collections import deque

from noetl.model.clock import Clock
from noetl.model.ids import Micros


class StoreClock:
    def __init__(self, local: Clock) -> None:
        self._local = local
        self._ahead: deque[Micros] = deque(
            maxlen=20
        )  # how far the store's clock is ahead of the loop's

    def heard(self, now: Micros) -> None:
        self._ahead.append(now - _loop_time())

    def now(self) -> Micros:
        """Before the first answer, the machine's clock."""
        return _loop_time() + max(self._ahead) if self._ahead else self._local.now()


def _loop_time() -> Micros:
    return round(asyncio.get_running_loop().time() * 1e6)
