"""Counts over time in a bounded number of buckets, which double in width when they do not suffice.

Bucket boundaries are multiples of the width since the epoch, so buckets of several steps line up, and
two neighbours become one without a rest. A bucket holds sums; only `slowest_us` is a maximum.
"""

from msgspec import Struct

from noetl.model.ids import Micros

MAX_BUCKETS = 512
MIN_WIDTH_US: Micros = 1_000
SUMMED = ("started", "ended", "items", "failed", "retried", "busy_us")
SERIES = (*SUMMED, "slowest_us")


class Buckets(Struct, omit_defaults=True):
    """Changed in place: a fold of a long log adds to it for nearly every event."""

    width_us: Micros = MIN_WIDTH_US
    origin: int = 0  # the number of bucket 0: it begins at `origin * width_us`
    started: list[int] = []
    ended: list[int] = []
    items: list[int] = []
    failed: list[int] = []
    retried: list[int] = []
    busy_us: list[int] = []
    slowest_us: list[int] = []

    @property
    def start(self) -> Micros:
        return self.origin * self.width_us

    def find_bucket(self, at: Micros) -> int:
        """The number of the bucket that covers this moment. Makes room for it if there is none.

        A moment before the first bucket counts in the first one.
        """
        if not self.started:
            self.origin = at // self.width_us
        number = at // self.width_us - self.origin
        while number >= MAX_BUCKETS:
            self._double_width()
            number = at // self.width_us - self.origin
        number = max(number, 0)
        missing = number + 1 - len(self.started)
        if missing > 0:
            for name in SERIES:
                getattr(self, name).extend([0] * missing)
        return number

    def add(self, series: str, at: Micros, amount: int = 1) -> None:
        """Add to one series. The bucket is found first: making room for it may replace the lists."""
        number = self.find_bucket(at)
        getattr(self, series)[number] += amount

    def add_busy_time(self, start: Micros, end: Micros) -> None:
        """Add the time from `start` to `end` to the buckets that it covers."""
        last = self.find_bucket(end)
        start = max(start, self.start)
        if end <= start:
            return
        width = self.width_us
        first = start // width - self.origin
        busy = self.busy_us
        if first == last:
            busy[last] += end - start
            return
        busy[first] += (self.origin + first + 1) * width - start
        for number in range(first + 1, last):
            busy[number] += width
        busy[last] += end - (self.origin + last) * width

    def note_duration(self, at: Micros, duration: Micros) -> None:
        number = self.find_bucket(at)
        self.slowest_us[number] = max(self.slowest_us[number], duration)

    def _double_width(self) -> None:
        odd = self.origin % 2
        self.origin //= 2
        self.width_us *= 2
        for name in SUMMED:
            values = [0] * odd + getattr(self, name)
            setattr(self, name, [sum(values[n : n + 2]) for n in range(0, len(values), 2)])
        slowest = [0] * odd + self.slowest_us
        self.slowest_us = [max(slowest[n : n + 2]) for n in range(0, len(slowest), 2)]
