"""Live streams of events and of rows.

A stream reads the log by `(shard, seq)` from its reader's position, at most one page ahead, so a
slow reader slows only itself. Wake-ups make a stream fast; polling at an interval makes it
reliable.
"""

import asyncio
from collections.abc import AsyncGenerator

from msgspec import Struct

from noetl.log.events.port import EventLog, RecordedEvent
from noetl.log.projections.port import ExecutionFilter, Projection, Projections
from noetl.model.errors import Unavailable
from noetl.model.events import Terminal
from noetl.model.identity import Identity, Permission, needs
from noetl.model.ids import ExecutionId
from noetl.server.executions.access import Access
from noetl.server.streams.live import ROWS_TOPIC, LiveUpdates, make_events_topic

EVENTS_PER_PAGE = 200
STREAM_POLL_S = 1.0  # seconds between reads without a wake-up
HEARTBEAT_INTERVAL_S = 10.0  # seconds until a stream without news sends a sign of life
MIN_LIST_INTERVAL_S = 0.25  # seconds between two reads of a list, at least


class StreamHeartbeat(Struct, frozen=True):
    """A sign of life: nothing happened."""


class StreamEnd(Struct, frozen=True):
    """The execution has ended, and the stream has sent everything."""


class RowGone(Struct, frozen=True):
    """The execution no longer matches the filter of the stream."""

    execution_id: ExecutionId


class StreamService:
    def __init__(
        self, log: EventLog, projections: Projections, live: LiveUpdates, access: Access
    ) -> None:
        self._log = log
        self._projections = projections
        self._live = live
        self._access = access

    @needs(Permission.READ)
    async def has_ended_before(
        self, identity: Identity, execution_id: ExecutionId, after: int
    ) -> bool:
        """Whether nothing will ever come after `after`. Also checks the caller's access."""
        await self._access.check_tenant(identity, execution_id)
        if after == 0 or await self._log.read_last_seq(execution_id) > after:
            return False
        return await has_ended(self._log, execution_id)

    @needs(Permission.READ)
    async def follow_events(
        self, identity: Identity, execution_id: ExecutionId, after: int = 0
    ) -> AsyncGenerator[list[RecordedEvent] | StreamHeartbeat | StreamEnd, None]:
        """The events after `after`, page by page, until the execution ends."""
        await self._access.check_tenant(identity, execution_id)
        loop = asyncio.get_running_loop()
        last_sent = loop.time()
        with self._live.watch(make_events_topic(execution_id)) as watch:
            while not self._live.closing:
                page = await self._read_event_page(execution_id, after)
                if page:
                    after = page[-1].seq
                    last_sent = loop.time()
                    yield page
                    if isinstance(page[-1].event, Terminal):
                        yield StreamEnd()
                        return
                    continue
                if loop.time() - last_sent >= HEARTBEAT_INTERVAL_S:
                    last_sent = loop.time()
                    yield StreamHeartbeat()
                await watch.wait_for_change(STREAM_POLL_S)

    @needs(Permission.READ)
    async def follow_rows(
        self, identity: Identity, wanted: ExecutionFilter, limit: int
    ) -> AsyncGenerator[list[Projection | RowGone] | StreamHeartbeat, None]:
        """The newest `limit` rows of the list, then every change among them.

        The stream says when a row no longer matches the filter. It does not mention a row that
        newer ones push out of the list.
        """
        loop = asyncio.get_running_loop()
        last_sent = loop.time()
        sent_seqs: dict[ExecutionId, int] = {}
        with self._live.watch(ROWS_TOPIC) as watch:
            while not self._live.closing:
                rows = await self._read_listed_rows(identity, wanted, limit)
                changes: list[Projection | RowGone] = []
                if rows is not None:
                    changes = _diff_listed_rows(sent_seqs, rows, full=len(rows) == limit)
                if rows is not None and changes:
                    sent_seqs = {row.execution_id: row.last_seq for row in rows}
                    last_sent = loop.time()
                    yield changes
                elif loop.time() - last_sent >= HEARTBEAT_INTERVAL_S:
                    last_sent = loop.time()
                    yield StreamHeartbeat()
                await watch.wait_for_change(STREAM_POLL_S)
                await asyncio.sleep(MIN_LIST_INTERVAL_S)

    async def _read_event_page(self, execution_id: ExecutionId, after: int) -> list[RecordedEvent]:
        try:
            return await self._log.read_events(execution_id, after, EVENTS_PER_PAGE)
        except Unavailable:
            return []

    async def _read_listed_rows(
        self, identity: Identity, wanted: ExecutionFilter, limit: int
    ) -> list[Projection] | None:
        try:
            return await self._projections.list_executions(identity.tenant, wanted, None, limit)
        except Unavailable:
            return None


async def has_ended(log: EventLog, execution_id: ExecutionId) -> bool:
    last_seq = await log.read_last_seq(execution_id)
    last_events = await log.read_events(execution_id, last_seq - 1, 1)
    return bool(last_events) and isinstance(last_events[0].event, Terminal)


def _diff_listed_rows(
    sent_seqs: dict[ExecutionId, int], rows: list[Projection], *, full: bool
) -> list[Projection | RowGone]:
    """How the list differs from the rows that were sent, oldest change first."""
    listed = {row.execution_id for row in rows}
    # A missing row that is older than the oldest of a full list may only have been pushed out.
    oldest = int(rows[-1].execution_id) if full else 0
    gone = [RowGone(id_) for id_ in sent_seqs if id_ not in listed and int(id_) > oldest]
    changed = [row for row in reversed(rows) if sent_seqs.get(row.execution_id) != row.last_seq]
    return [*gone, *changed]
