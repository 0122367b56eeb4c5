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
from typing import NamedTuple

from noetl.caches import LruCache
from noetl.model.commands import Command
from noetl.model.ids import Tenant

NEVER = float("-inf")  # as a loop time
MAX_OWED_WORKERS = 1_000  # workers; a forgotten one gets its command when it renews its leases


class TenantPool(NamedTuple):
    """A pool of a tenant. Pools of two tenants may have the same name."""

    tenant: Tenant
    pool: str


class Holder(NamedTuple):
    """One process of a worker. Workers of two tenants may have the same name."""

    tenant: Tenant
    name: str


class WaitingRequest:
    """A waiting request of a worker, with its free places."""

    def __init__(
        self,
        worker: Holder,
        pools: tuple[TenantPool, ...],
        free: int,
        waiting: "WaitingWorkers",
        *,
        reports: bool = False,
    ) -> None:
        self._waiting = waiting
        self.worker = worker
        self.pools = pools
        self.reports = reports  # it brings reports, so it gets its reply after their commit
        self.open_places = free  # free places without a reservation
        self.reserved_places = 0  # places for commands that are being issued
        self.given_commands: list[Command] = []
        self.is_claim_unsure = False  # the outcome of a claim for it is unknown
        self.woken = asyncio.Event()
        self.is_answered = False  # the request has its reply

    def reserve_one(self) -> None:
        self.open_places -= 1
        self.reserved_places += 1

    def give_command(self, command: Command) -> None:
        self.reserved_places -= 1
        if self.is_answered:
            self._waiting.give_late_command(self.worker, command)
            return
        self.given_commands.append(command)
        self.woken.set()

    def give_back(self) -> None:
        self.reserved_places -= 1
        self.open_places += 1

    def reserve_all(self) -> int:
        """Reserve every open place for a claim, and return their number."""
        places, self.open_places = self.open_places, 0
        return places


class WaitingWorkers:
    """All waiting requests at this server. Also remembers which pools a claim has found empty,
    until a hint says that there is something in them."""

    def __init__(self) -> None:
        # by pool, those that have waited longest first: requests that bring reports, and polls
        self._reporting: dict[TenantPool, dict[WaitingRequest, None]] = {}
        self._polling: dict[TenantPool, dict[WaitingRequest, None]] = {}
        self._empty: dict[TenantPool, float] = {}  # loop time since when, by pool
        self._present: dict[Holder, dict[WaitingRequest, None]] = {}  # by worker
        # workers that got the lease of a command after they had their reply
        self._owed: LruCache[Holder, bool] = LruCache(MAX_OWED_WORKERS)

    def add_request(
        self,
        worker: Holder,
        pools: tuple[TenantPool, ...],
        free: int,
        *,
        reports: bool = False,
    ) -> WaitingRequest:
        """Register a waiting request of a worker."""
        waiter = WaitingRequest(worker, pools, free, self, reports=reports)
        self._present.setdefault(worker, {})[waiter] = None
        waiters = self._list_waiters_like(waiter)
        for pool in pools:
            waiters.setdefault(pool, {})[waiter] = None
        return waiter

    def _list_waiters_like(
        self, waiter: WaitingRequest
    ) -> dict[TenantPool, dict[WaitingRequest, None]]:
        return self._reporting if waiter.reports else self._polling

    def remove_request(self, waiter: WaitingRequest) -> None:
        """Remove a request that gets its reply."""
        waiter.is_answered = True
        waiters = self._list_waiters_like(waiter)
        for pool in waiter.pools:
            waiters.get(pool, {}).pop(waiter, None)
        others = self._present[waiter.worker]
        del others[waiter]
        if not others:
            del self._present[waiter.worker]

    def give_late_command(self, worker: Holder, command: Command) -> None:
        """Hand out a command that was reserved for a request that has its reply by now.

        The lease belongs to the worker, so any request of the same worker may take it.
        """
        for waiter in self._present.get(worker, ()):
            waiter.given_commands.append(command)
            waiter.woken.set()
            return
        self._owed.put(worker, True)

    def take_owed(self, worker: Holder) -> bool:
        """Whether the worker has a lease it may not know of. The caller must read its leases then:
        the next call returns False."""
        return self._owed.pop(worker) is not None

    def reserve_place(self, pool: TenantPool) -> WaitingRequest | None:
        """Reserve a place at the worker that has waited longest; None if there is no open place.

        Requests that bring reports come first: their replies are due after this commit, so the
        command needs no reply of its own.
        """
        for waiters in (self._reporting, self._polling):
            for waiter in waiters.get(pool, ()):
                if waiter.open_places > 0:
                    waiter.reserve_one()
                    return waiter
        return None

    def empty_since(self, pools: Iterable[TenantPool]) -> float:
        """Loop time since when all these pools are known to be empty; -inf if one may not be."""
        times = [self._empty.get(pool, NEVER) for pool in pools]
        return min(times, default=NEVER)

    def mark_empty(self, pools: Iterable[TenantPool], now: float) -> None:
        """Note that a claim found these pools empty."""
        self._empty.update(dict.fromkeys(pools, now))

    def forget_empty(self, pools: Iterable[TenantPool]) -> None:
        """Forget that these pools are empty: the next claim may find something."""
        for pool in pools:
            self._empty.pop(pool, None)

    def wake_pools(self, pools: Iterable[TenantPool]) -> None:
        """Wake the workers of these pools: there may be commands."""
        for pool in pools:
            self._empty.pop(pool, None)
            for waiter in (*self._reporting.get(pool, ()), *self._polling.get(pool, ())):
                waiter.woken.set()
