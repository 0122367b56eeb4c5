"""The clock of this machine."""

import time

from noetl.model.ids import Micros


class SystemClock:
    def now(self) -> Micros:
        return time.time_ns() // 1000
