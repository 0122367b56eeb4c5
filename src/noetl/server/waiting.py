"""Handoff of new commands to workers that wait at this server.

A command is leased to a waiting worker in the transaction that issues it. The dispatcher reserves a
place before the commit, and fills it or gives it back after the commit. If the worker's request has
its reply by then, another waiting request of that worker takes the command. If there is none, the
server notes that it owes the worker a command, so that its next exchange reads its leases.
If the outcome of the commit is unknown, nothing is lost either: when the worker renews its leases,
the server sends the commands that are leased to it and that it does not list.
"""

import asyncio
from collections.abc import Iterable

from noetl.model.commands import Command

NEVER = float("-inf")  # as a loop time
KEPT_OWED = 1_000  # workers; a forgotten one gets its command when it renews its leases


class Waiter:
    """A waiting request of a worker, with its free places."""

    def __init__(self, worker: str, pools: tuple[str, ...], free: int, waiting: "Waiting") -> None:
        self._waiting = waiting
        self.worker = worker
        self.pools = pools
        self.open = free  # free places without a reservation
        self.reserved = 0  # places for commands that are being issued
        self.given: list[Command] = []
        self.unsure = False  # the outcome of a claim for it is unknown
        self.woken = asyncio.Event()
        self.gone = False  # the request has its reply

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
        """Reserve every open place for a claim, and return their number."""
        places, self.open = self.open, 0
        return places


class Waiting:
    """All waiting requests at this server. Also remembers which pools a claim has found empty,
    until a hint says that there is something in them."""

    def __init__(self) -> None:
        self._pools: dict[str, dict[Waiter, None]] = {}
        self._empty: dict[str, float] = {}  # loop time since when, by pool
        self._present: dict[str, dict[Waiter, None]] = {}  # by worker
        # workers that got the lease of a command after they had their reply
        self._owed: dict[str, None] = {}

    def enter(self, worker: str, pools: tuple[str, ...], free: int) -> Waiter:
        """Register a waiting request of a worker."""
        waiter = Waiter(worker, pools, free, self)
        self._present.setdefault(worker, {})[waiter] = None
        for pool in pools:
            self._pools.setdefault(pool, {})[waiter] = None
        return waiter

    def leave(self, waiter: Waiter) -> None:
        """Remove a request that gets its reply."""
        waiter.gone = True
        for pool in waiter.pools:
            self._pools.get(pool, {}).pop(waiter, None)
        others = self._present[waiter.worker]
        del others[waiter]
        if not others:
            del self._present[waiter.worker]

    def give_late(self, worker: str, command: Command) -> None:
        """Hand out a command that was reserved for a request that has its reply by now.

        The lease belongs to the worker, so any request of the same worker may take it.
        """
        for waiter in self._present.get(worker, ()):
            waiter.given.append(command)
            waiter.woken.set()
            return
        self._owed[worker] = None
        if len(self._owed) > KEPT_OWED:
            del self._owed[next(iter(self._owed))]

    def owes(self, worker: str) -> bool:
        """Whether the worker has a lease it may not know of. The caller must read its leases then:
        the next call returns False."""
        return self._owed.pop(worker, self) is None

    def reserve(self, pool: str) -> Waiter | None:
        """Reserve a place at the worker that has waited longest; None if there is no open place."""
        for waiter in self._pools.get(pool, ()):
            if waiter.open > 0:
                waiter.reserve()
                return waiter
        return None

    def empty_since(self, pools: Iterable[str]) -> float:
        """Loop time since when all these pools are known to be empty; -inf if one may not be."""
        times = [self._empty.get(pool, NEVER) for pool in pools]
        return min(times, default=NEVER)

    def emptied(self, pools: Iterable[str], now: float) -> None:
        """Note that a claim found these pools empty."""
        self._empty.update(dict.fromkeys(pools, now))

    def doubt(self, pools: Iterable[str]) -> None:
        """Forget that these pools are empty: the next claim may find something."""
        for pool in pools:
            self._empty.pop(pool, None)

    def wake(self, pools: Iterable[str]) -> None:
        """Wake the workers of these pools: there may be commands."""
        for pool in pools:
            self._empty.pop(pool, None)
            for waiter in self._pools.get(pool, ()):
                waiter.woken.set()
