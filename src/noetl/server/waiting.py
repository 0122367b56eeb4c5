"""Workers that wait at this server. A command issued meanwhile is leased to one of them in the transaction that issues it.

A place is reserved before the commit and given or returned after it. When the worker has left by then, or the outcome is
unknown, nothing is lost: what is leased to a worker that does not list it is sent again at its next exchange.
"""

import asyncio
from collections.abc import Iterable

from noetl.model.commands import Command


class Waiter:
    def __init__(self, worker: str, pools: tuple[str, ...], free: int) -> None:
        self.worker = worker
        self.pools = pools
        self.open = free  # places that nobody has reserved
        self.reserved = 0  # for commands that are being issued
        self.given: list[Command] = []
        self.unsure = False  # a claim for it may have been made
        self.woken = asyncio.Event()

    def reserve(self) -> None:
        self.open -= 1
        self.reserved += 1

    def give(self, command: Command) -> None:
        self.reserved -= 1
        self.given.append(command)
        self.woken.set()

    def give_back(self) -> None:
        self.reserved -= 1
        self.open += 1

    def take_open(self) -> int:
        """Reserve every open place, for a claim."""
        taken, self.open = self.open, 0
        return taken


class Waiting:
    """It also knows in which pools a look into the queue found nothing more, until somebody says that there is something."""

    def __init__(self) -> None:
        self._pools: dict[str, dict[Waiter, None]] = {}
        self._empty: dict[str, float] = {}  # since when

    def enter(self, worker: str, pools: tuple[str, ...], free: int) -> Waiter:
        waiter = Waiter(worker, pools, free)
        for pool in pools:
            self._pools.setdefault(pool, {})[waiter] = None
        return waiter

    def leave(self, waiter: Waiter) -> None:
        for pool in waiter.pools:
            self._pools.get(pool, {}).pop(waiter, None)

    def reserve(self, pool: str) -> Waiter | None:
        """A place at the worker that has waited longest."""
        for waiter in self._pools.get(pool, ()):
            if waiter.open > 0:
                waiter.reserve()
                return waiter
        return None

    def empty_since(self, pools: Iterable[str]) -> float:
        return min((self._empty.get(pool, float("-inf")) for pool in pools), default=float("-inf"))

    def emptied(self, pools: Iterable[str], now: float) -> None:
        self._empty.update(dict.fromkeys(pools, now))

    def doubt(self, pools: Iterable[str]) -> None:
        """Whoever looks next may find something."""
        for pool in pools:
            self._empty.pop(pool, None)

    def wake(self, pools: Iterable[str]) -> None:
        for pool in pools:
            self._empty.pop(pool, None)
            for waiter in self._pools.get(pool, ()):
                waiter.woken.set()

    def wake_all(self) -> None:
        self._empty.clear()
        self.wake(self._pools)
