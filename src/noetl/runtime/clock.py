"""The clock of this machine."""

import time

from noetl.model.ids import Micros


class SystemClock:
    def now(self) -> Micros:
        return time.time_ns() // 1000


def to_micros(seconds: float) -> Micros:
    return round(seconds * 1e6)
