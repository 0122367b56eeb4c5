"""Limits how often a caller may fail, with memory that does not grow with the number of callers.

Each key has a bucket of tries. A try takes one, a try that succeeds gives it back, and tries come
back with time. The least recently used buckets are forgotten, so they are full again.
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


class TryBucket(Struct):
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
        """Raise `TooManyRequests` if the key has no try left."""
        bucket = self._refill_bucket(key, now_s)
        if bucket.tries < 1:
            wait_s = math.ceil((1 - bucket.tries) * self._limit.seconds_per_try)
            raise TooManyRequests(
                "too many tries have failed",
                hint=f"try again in {wait_s} seconds",
                retry_after_s=wait_s,
            )
        bucket.tries -= 1

    def give_back(self, key: str) -> None:
        """Give the try of a success back."""
        bucket = self._buckets.peek(key)
        if bucket is not None:
            bucket.tries = min(bucket.tries + 1, float(self._limit.tries))

    def _refill_bucket(self, key: str, now_s: float) -> TryBucket:
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = TryBucket(float(self._limit.tries), now_s)
            self._buckets.put(key, bucket)
            return bucket
        back = (now_s - bucket.changed_at) / self._limit.seconds_per_try
        bucket.tries = min(bucket.tries + max(back, 0.0), float(self._limit.tries))
        bucket.changed_at = now_s
        return bucket


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
