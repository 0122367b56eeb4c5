"""What happens, as it happens. A stream reads the log by `(shard, seq)` from where its reader stands, one page ahead of the
reader at most: a slow one slows only itself. Wake-ups make it quick, looking now and then makes it sure."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from noetl.log.port import EventLog, ExecutionFilter, Projection, Recorded
from noetl.model.errors import Unavailable
from noetl.model.events import Terminal
from noetl.model.identity import Identity
from noetl.model.ids import ExecutionId
from noetl.server.services.access import Access
from noetl.server.services.live import ROWS, LiveUpdates, events_of

PAGE = 200
LOOK_EVERY = 1.0  # seconds, without a wake-up
QUIET = 10.0  # seconds until a reader hears that the stream is still there
GATHER = 0.25  # seconds between two looks at a list


@dataclass(frozen=True, slots=True)
class Quiet:
    """Nothing happened; the stream is alive."""


@dataclass(frozen=True, slots=True)
class End:
    """The execution has ended and everything was said."""


@dataclass(frozen=True, slots=True)
class Gone:
    """No longer among what was asked for."""

    execution_id: ExecutionId


class StreamService:
    def __init__(self, log: EventLog, live: LiveUpdates, access: Access) -> None:
        self._log = log
        self._live = live
        self._access = access

    async def ended_before(self, identity: Identity, execution_id: ExecutionId, after: int) -> bool:
        """Nothing will ever come after `after`. Also checks that the execution may be seen."""
        await self._access.check(identity, execution_id)
        if after == 0 or await self._log.last_seq(execution_id) > after:
            return False
        return await has_ended(self._log, execution_id)

    async def events(
        self, identity: Identity, execution_id: ExecutionId, after: int = 0
    ) -> AsyncGenerator[list[Recorded] | Quiet | End, None]:
        await self._access.check(identity, execution_id)
        loop = asyncio.get_running_loop()
        spoke = loop.time()
        with self._live.watch(events_of(execution_id)) as watch:
            while not self._live.closing:
                page = await self._page(execution_id, after)
                if page:
                    after, spoke = page[-1].seq, loop.time()
                    yield page
                    if isinstance(page[-1].event, Terminal):
                        yield End()
                        return
                    continue
                if loop.time() - spoke >= QUIET:
                    spoke = loop.time()
                    yield Quiet()
                await watch.changed(LOOK_EVERY)

    async def rows(
        self, identity: Identity, wanted: ExecutionFilter, limit: int
    ) -> AsyncGenerator[list[Projection | Gone] | Quiet, None]:
        """The newest `limit` rows of the list, then every change among them. A row that leaves because newer ones came is
        not spoken of again; one that no longer is what was asked for is `Gone`."""
        loop = asyncio.get_running_loop()
        spoke, known = loop.time(), dict[ExecutionId, int]()
        with self._live.watch(ROWS) as watch:
            while not self._live.closing:
                rows = await self._rows(identity, wanted, limit)
                if rows is not None and (changes := _changes(known, rows, full=len(rows) == limit)):
                    known, spoke = {row.execution_id: row.last_seq for row in rows}, loop.time()
                    yield changes
                elif loop.time() - spoke >= QUIET:
                    spoke = loop.time()
                    yield Quiet()
                await watch.changed(LOOK_EVERY)
                await asyncio.sleep(GATHER)

    async def _page(self, execution_id: ExecutionId, after: int) -> list[Recorded]:
        try:
            return await self._log.events(execution_id, after, PAGE)
        except Unavailable:
            return []

    async def _rows(
        self, identity: Identity, wanted: ExecutionFilter, limit: int
    ) -> list[Projection] | None:
        try:
            return await self._log.executions(identity.tenant, wanted, None, limit)
        except Unavailable:
            return None


async def has_ended(log: EventLog, execution_id: ExecutionId) -> bool:
    last = await log.events(execution_id, await log.last_seq(execution_id) - 1, 1)
    return bool(last) and isinstance(last[0].event, Terminal)


def _changes(
    known: dict[ExecutionId, int], rows: list[Projection], *, full: bool
) -> list[Projection | Gone]:
    here = {row.execution_id for row in rows}
    oldest = (
        int(rows[-1].execution_id) if full else 0
    )  # below it, a row may only have been pushed out
    gone = [Gone(each) for each in known if each not in here and int(each) > oldest]
    changed = [row for row in reversed(rows) if known.get(row.execution_id) != row.last_seq]
    return [*gone, *changed]
