"""Fires due timers of owned shards, by the store's clock.

A timer stays in the store until the append that consumes it.
"""

import asyncio

from noetl.log.inbox.port import Inbox
from noetl.server.dispatch.dispatcher import Dispatcher
from noetl.server.dispatch.shards import OwnedShards
from noetl.server.duties.loop import Counts


class Timers:
    name = "timers"

    def __init__(
        self, inbox: Inbox, dispatcher: Dispatcher, shards: OwnedShards, limit: int
    ) -> None:
        self._inbox = inbox
        self._dispatcher = dispatcher
        self._shards = shards
        self._limit = limit

    async def run_once(self) -> Counts:
        owned = self._shards.list_owned()
        if not owned:
            return Counts()
        due = await self._inbox.read_due_timers(owned, self._limit)
        answers = await asyncio.gather(
            *[self._dispatcher.fire_timer(each.execution_id, each.timer) for each in due]
        )
        done = sum(answer != "retry" for answer in answers)
        return Counts(done, has_more=done > 0 and len(due) == self._limit)
