"""Limits how often a caller may fail, with memory that does not grow with the number of callers.

Each key has a bucket of tries. A failure takes one, and tries come back with time. The least
recently used buckets are forgotten, so they are full again.
"""

import ipaddress
import math

from msgspec import Struct

from noetl.caches import LruCache
from noetl.model.errors import TooManyRequests

MAX_BUCKETS = 10_000
IPV6_NETWORK_BITS = 64  # a caller has at least as many addresses as the rest of the bits


class TryLimit(Struct, frozen=True):
    """How many tries may fail at once, and in how many seconds one comes back."""

    tries: int
    seconds_per_try: float


class TryBucket(Struct, frozen=True):
    tries: float
    changed_at: float  # seconds, by the clock of the caller


class Throttle:
    """`now_s` is the time of any clock that never goes back."""

    def __init__(self, limit: TryLimit, max_buckets: int = MAX_BUCKETS) -> None:
        self._limit = limit
        self._buckets: LruCache[str, TryBucket] = LruCache(max_buckets)

    def __len__(self) -> int:
        return len(self._buckets)

    def take_try(self, key: str, now_s: float) -> None:
        """Take a try before it is made. Raises `TooManyRequests` if the key has none left."""
        self.check_tries(key, now_s)
        self.count_failure(key, now_s)

    def check_tries(self, key: str, now_s: float) -> None:
        """Raise `TooManyRequests` if the key has no try left."""
        tries = self._read_tries(key, now_s)
        if tries >= 1:
            return
        wait_s = math.ceil((1 - tries) * self._limit.seconds_per_try)
        raise TooManyRequests(
            "too many tries have failed",
            hint=f"try again in {wait_s} seconds",
            retry_after_s=wait_s,
        )

    def count_failure(self, key: str, now_s: float) -> None:
        """Take a try that has failed."""
        tries = max(self._read_tries(key, now_s) - 1, 0.0)
        self._buckets.put(key, TryBucket(tries, now_s))

    def give_back(self, key: str) -> None:
        """Give the try of a success back."""
        bucket = self._buckets.peek(key)
        if bucket is not None:
            tries = min(bucket.tries + 1, float(self._limit.tries))
            self._buckets.put(key, TryBucket(tries, bucket.changed_at))

    def _read_tries(self, key: str, now_s: float) -> float:
        """The tries that the key has by now."""
        bucket = self._buckets.get(key)
        if bucket is None:
            return float(self._limit.tries)
        back = (now_s - bucket.changed_at) / self._limit.seconds_per_try
        return min(bucket.tries + max(back, 0.0), float(self._limit.tries))


def make_address_key(address: str) -> str:
    """The key of a caller's address: of IPv6, the network, because a caller has all of it."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed, IPV6_NETWORK_BITS), strict=False))
