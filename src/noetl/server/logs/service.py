"""The log lines of an execution's steps, in the order they came: as pages, and live.

The service opens the stored parts, one page at a time.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from typing import Any

import msgspec

from noetl.log.events.port import EventLog
from noetl.log.step_logs.port import LogPart, StepLogStore
from noetl.model.clock import format_iso
from noetl.model.errors import Unavailable
from noetl.model.identity import Identity, Permission, needs
from noetl.model.ids import ExecutionId
from noetl.model.reference import parse_uri
from noetl.model.steplogs import decode, parse_log_part_key
from noetl.server.executions.access import Access
from noetl.server.streams.live import LiveUpdates, make_logs_topic, make_row_topic
from noetl.server.streams.service import (
    HEARTBEAT_INTERVAL_S,
    STREAM_POLL_S,
    StreamEnd,
    StreamHeartbeat,
    has_ended,
)

PARTS_PER_PAGE = 16  # parts of about 64 KB each


class LogService:
    """`every` is the number of seconds between reads without a wake-up."""

    def __init__(
        self,
        log: EventLog,
        step_logs: StepLogStore,
        live: LiveUpdates,
        access: Access,
        every: float = STREAM_POLL_S,
    ) -> None:
        self._log = log
        self._step_logs = step_logs
        self._live = live
        self._access = access
        self._every = every

    @needs(Permission.READ)
    async def list_page(
        self, identity: Identity, execution_id: ExecutionId, step: str | None = None, after: int = 0
    ) -> list[LogPart]:
        """The parts after `after`; empty if there are no more so far."""
        await self._access.check_tenant(identity, execution_id)
        return await self._step_logs.read_parts(execution_id, step, after, PARTS_PER_PAGE)

    @needs(Permission.READ)
    async def is_complete(
        self, identity: Identity, execution_id: ExecutionId, step: str | None, after: int
    ) -> bool:
        """Whether nothing will ever come after `after`."""
        await self._access.check_tenant(identity, execution_id)
        if not await has_ended(self._log, execution_id):
            return False
        rest = await self._step_logs.read_parts(execution_id, step, after, 1)
        return not rest

    @needs(Permission.READ)
    async def follow(
        self, identity: Identity, execution_id: ExecutionId, step: str | None = None, after: int = 0
    ) -> AsyncGenerator[list[LogPart] | StreamHeartbeat | StreamEnd, None]:
        """The parts after `after`, page by page, until the execution has ended."""
        await self._access.check_tenant(identity, execution_id)
        loop = asyncio.get_running_loop()
        last_sent = loop.time()
        with self._live.watch(make_logs_topic(execution_id), make_row_topic(execution_id)) as watch:
            while not self._live.closing:
                ended, page = await self._read_page(execution_id, step, after)
                if page:
                    after = page[-1].number
                    last_sent = loop.time()
                    yield page
                    continue
                if ended:
                    yield StreamEnd()
                    return
                if loop.time() - last_sent >= HEARTBEAT_INTERVAL_S:
                    last_sent = loop.time()
                    yield StreamHeartbeat()
                await watch.wait_for_change(self._every)

    async def _read_page(
        self, execution_id: ExecutionId, step: str | None, after: int
    ) -> tuple[bool, list[LogPart]]:
        """Whether the execution has ended, and the next page.

        The end is read first: lines are stored before the end is recorded, so an empty page after
        an end means that there are no more lines.
        """
        try:
            ended = await has_ended(self._log, execution_id)
            page = await self._step_logs.read_parts(execution_id, step, after, PARTS_PER_PAGE)
        except Unavailable:
            return False, []
        return ended, page


def decode_lines(part: LogPart) -> Iterator[dict[str, Any]]:
    """The lines of a part as JSON. A part that cannot be decoded becomes one line that says so."""
    where = parse_uri(part.uri)
    origin = parse_log_part_key(where.key)
    head = {
        "part": part.number,
        "step": where.step,
        "command_id": None if origin is None else origin.command_id,
        "attempt": None if origin is None else origin.attempt,
    }
    try:
        decoded = decode(part.payload)
    except msgspec.DecodeError:
        yield {
            **head,
            "seq": 0,
            "at": None,
            "task": "",
            "item": None,
            "stream": "noetl",
            "line": f"({part.uri} is damaged)",
        }
        return
    for line in decoded:
        yield {
            **head,
            "seq": line.seq,
            "at": format_iso(line.at),
            "task": line.task,
            "item": line.item,
            "stream": line.stream,
            "line": line.line,
        }
