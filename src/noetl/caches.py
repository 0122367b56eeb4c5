"""Bounded caches: by entries, by weight, and by time.

All are pure: the caller passes the time, so any package may use them. None is safe for
threads: a caller that uses one from several threads guards it with a lock.
"""

import sys
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, ValuesView
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class LruCache(Generic[K, V]):
    """A cache of the `max_entries` most recently used entries. Every operation is O(1).

    A value is never None: None stands for a missing entry.
    """

    __slots__ = ("_entries", "_max_entries")

    def __init__(self, max_entries: int) -> None:
        self._entries: OrderedDict[K, V] = OrderedDict()  # the least recently used one first
        self._max_entries = max_entries

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[K]:
        """The keys, the least recently used first."""
        return iter(self._entries)

    def values(self) -> ValuesView[V]:
        return self._entries.values()

    def get(self, key: K) -> V | None:
        """The value, which becomes the most recently used one."""
        entries = self._entries
        value = entries.get(key)
        if value is not None:
            entries.move_to_end(key)
        return value

    def peek(self, key: K) -> V | None:
        """The value. The order of use stays as it is."""
        return self._entries.get(key)

    def peek_oldest(self) -> V | None:
        """The value that is dropped next."""
        return next(iter(self._entries.values()), None)

    def put(self, key: K, value: V) -> None:
        """Add or replace an entry, which becomes the most recently used one."""
        entries = self._entries
        entries[key] = value
        entries.move_to_end(key)
        if len(entries) > self._max_entries:
            entries.popitem(last=False)

    def pop(self, key: K) -> V | None:
        """Remove an entry and return its value."""
        return self._entries.pop(key, None)

    def pop_oldest(self) -> V:
        """Remove the least recently used entry, and return its value. There must be one."""
        return self._entries.popitem(last=False)[1]

    def clear(self) -> None:
        self._entries.clear()


class WeightedLruCache(LruCache[K, V]):
    """An LRU cache that also bounds the total weight of its entries.

    The weight of an entry is `weigh(value)`, which must not change while the entry is cached. The
    `min_entries` most recently used entries stay even if they are too heavy.
    """

    __slots__ = ("_max_weight", "_min_entries", "_weigh", "weight")

    def __init__(
        self,
        max_weight: int,
        weigh: Callable[[V], int],
        *,
        max_entries: int = sys.maxsize,
        min_entries: int = 0,
    ) -> None:
        super().__init__(max_entries)
        self._max_weight = max_weight
        self._weigh = weigh
        self._min_entries = min_entries
        self.weight = 0  # of all entries

    def put(self, key: K, value: V) -> None:
        self.add_untrimmed(key, value)
        if self.weight > self._max_weight or len(self._entries) > self._max_entries:
            self.trim()

    def add_untrimmed(self, key: K, value: V) -> None:
        """Add or replace an entry. The bounds do not apply until `trim` is called."""
        entries = self._entries
        added = self._weigh(value)
        former = entries.get(key)
        if former is not None:
            added -= self._weigh(former)
            entries.move_to_end(key)
        entries[key] = value
        self.weight += added

    def trim(self) -> None:
        """Drop the least recently used entries that exceed a bound."""
        entries = self._entries
        weight = self.weight
        while weight > self._max_weight or len(entries) > self._max_entries:
            if len(entries) <= self._min_entries:
                break
            _, value = entries.popitem(last=False)
            weight -= self._weigh(value)
        self.weight = weight

    def pop(self, key: K) -> V | None:
        value = self._entries.pop(key, None)
        if value is not None:
            self.weight -= self._weigh(value)
        return value

    def pop_oldest(self) -> V:
        _, value = self._entries.popitem(last=False)
        self.weight -= self._weigh(value)
        return value

    def clear(self) -> None:
        self._entries.clear()
        self.weight = 0


class ExpiringCache(Generic[K, V]):
    """A cache of at most `max_entries` entries, each of which expires at a time of its own.

    It drops the entries in the order in which they were added. Using an entry does not prolong it.
    """

    __slots__ = ("_entries",)

    def __init__(self, max_entries: int) -> None:
        self._entries: LruCache[K, tuple[V, float]] = LruCache(max_entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[K]:
        """The keys, expired ones too, the oldest first."""
        return iter(self._entries)

    def get(self, key: K, now: float) -> V | None:
        """The value; None if there is none, or if it has expired."""
        entry = self._entries.peek(key)
        if entry is None:
            return None
        value, until = entry
        if now < until:
            return value
        self._entries.pop(key)
        return None

    def put(
        self,
        key: K,
        value: V,
        *,
        until: float,
        now: float,
    ) -> None:
        """Add or replace an entry, and drop the oldest ones as far as they have expired."""
        self._entries.put(key, (value, until))
        oldest = self._entries.peek_oldest()
        while oldest is not None and oldest[1] <= now:
            self._entries.pop_oldest()
            oldest = self._entries.peek_oldest()
