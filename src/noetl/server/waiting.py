"""Workers that wait at this server. A command issued meanwhile is leased to one of them in the transaction that issues it.

A place is reserved before the commit and given or returned after it. When the worker has left by then, its command goes with
whatever else it waits for here; a worker that waits for nothing is noted, so that its next exchange looks for what it is owed.
When the outcome is unknown, nothing is lost either: what is leased to a worker that does not list it is sent again when it
renews its leases.
"""

import asyncio
from collections.abc import Iterable

from noetl.model.commands import Command

KEPT_OWED = 1_000  # workers; one that is forgotten asks by itself, when it renews


class Waiter:
    def __init__(self, worker: str, pools: tuple[str, ...], free: int, waiting: "Waiting") -> None:
        self._waiting = waiting
        self.worker = worker
        self.pools = pools
        self.open = free  # places that nobody has reserved
        self.reserved = 0  # for commands that are being issued
        self.given: list[Command] = []
        self.unsure = False  # a claim for it may have been made
        self.woken = asyncio.Event()
        self.gone = False  # it has its reply

    def reserve(self) -> None:
        self.open -= 1
        self.reserved += 1

    def give(self, command: Command) -> None:
        self.reserved -= 1
        if self.gone:
            self._waiting.give_late(self.worker, command)
            return
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
        self._present: dict[str, dict[Waiter, None]] = {}  # by worker
        self._owed: dict[
            str, None
        ] = {}  # workers that a command was leased to after they had their reply

    def enter(self, worker: str, pools: tuple[str, ...], free: int) -> Waiter:
        waiter = Waiter(worker, pools, free, self)
        self._present.setdefault(worker, {})[waiter] = None
        for pool in pools:
            self._pools.setdefault(pool, {})[waiter] = None
        return waiter

    def leave(self, waiter: Waiter) -> None:
        waiter.gone = True
        for pool in waiter.pools:
            self._pools.get(pool, {}).pop(waiter, None)
        others = self._present[waiter.worker]
        del others[waiter]
        if not others:
            del self._present[waiter.worker]

    def give_late(self, worker: str, command: Command) -> None:
        """What was reserved for a request that has its reply: the lease is the worker's, so another request may bring it."""
        for waiter in self._present.get(worker, ()):
            waiter.given.append(command)
            waiter.woken.set()
            return
        self._owed[worker] = None
        if len(self._owed) > KEPT_OWED:
            del self._owed[next(iter(self._owed))]

    def owes(self, worker: str) -> bool:
        """Once: whoever asks looks what it is."""
        return self._owed.pop(worker, self) is None

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
