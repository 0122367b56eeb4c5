"""Delivers the inbox rows of owned shards to the dispatcher.

A row stays in the inbox until the append that consumes it.
"""

import asyncio

from noetl.log.inbox.port import Inbox
from noetl.server.dispatch.dispatcher import Dispatcher
from noetl.server.dispatch.shards import OwnedShards
from noetl.server.duties.loop import Counts


class InboxDrain:
    name = "inbox"

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
        rows = await self._inbox.read_messages(
            owned, self._limit, self._dispatcher.list_quarantined()
        )
        answers = await asyncio.gather(*[self._dispatcher.deliver(row) for row in rows])
        done = sum(answer != "retry" for answer in answers)
        return Counts(done, has_more=done > 0)  # more rows may have come while these were written
