"""Fires due timers of owned shards, by the store's clock.

A timer stays in the store until the append that consumes it. Only the owner of a shard sets timers
in it, so without an append the next timer is due when the last look has found.
"""

import asyncio
from collections.abc import Iterable

from noetl.log.inbox.port import DueTimer, Inbox
from noetl.model.clock import Clock
from noetl.model.ids import Micros
from noetl.server.dispatch.dispatcher import Dispatcher
from noetl.server.dispatch.shards import OwnedShards
from noetl.server.duties.loop import Counts

RUNS_PER_FULL_READ = 10  # a change that nobody noted is found after so many runs


class Timers:
    name = "timers"

    def __init__(
        self,
        inbox: Inbox,
        dispatcher: Dispatcher,
        shards: OwnedShards,
        clock: Clock,
        limit: int,
    ) -> None:
        self._inbox = inbox
        self._dispatcher = dispatcher
        self._shards = shards
        self._clock = clock
        self._limit = limit
        self._runs = 0
        self._has_changes = True
        self._next_due: Micros | None = None
        shards.on_change.append(self._note_shard)

    def mark_changed(self, shards: Iterable[int]) -> None:
        """Note that these shards may have new timers."""
        self._has_changes = True

    async def run_once(self) -> Counts:
        owned = self._shards.list_owned()
        if not owned or not self._may_find_timers():
            return Counts()
        due = await self._read_timers(owned)
        if not due:
            return Counts()
        answers = await asyncio.gather(
            *[self._dispatcher.fire_timer(each.execution_id, each.timer) for each in due]
        )
        done = sum(answer != "retry" for answer in answers)
        return Counts(done, has_more=done > 0 and len(due) == self._limit)

    async def _read_timers(self, owned: list[int]) -> list[DueTimer]:
        """The timers that are due. If there are none, note when the next one is."""
        self._has_changes = False
        try:
            due = await self._inbox.read_due_timers(owned, self._limit)
            if not due:
                self._next_due = await self._inbox.find_next_timer(owned)
        except BaseException:
            self._has_changes = True
            raise
        if due:
            self._has_changes = True  # there may be more, and one that does not fire is due again
        return due

    def _may_find_timers(self) -> bool:
        self._runs += 1
        if self._has_changes or self._runs % RUNS_PER_FULL_READ == 1:
            return True
        return self._next_due is not None and self._clock.now() >= self._next_due

    def _note_shard(self, shard: int) -> None:
        self._has_changes = True
