"""The log lines of an execution's steps, in the order they came: as pages, and live.

The service opens the stored parts, one page at a time.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from typing import Any

import msgspec

from noetl.log.port import EventLog, LogPart
from noetl.model.clock import iso
from noetl.model.errors import Unavailable
from noetl.model.identity import Identity
from noetl.model.ids import ExecutionId
from noetl.model.reference import parse_uri
from noetl.model.steplogs import decode, made_by
from noetl.server.services.access import Access
from noetl.server.services.live import LiveUpdates, logs_of, row_of
from noetl.server.services.streams import LOOK_EVERY, QUIET, End, Quiet, has_ended

PAGE = 16  # parts of about 64 KB each


class LogService:
    """`every` is the number of seconds between reads without a wake-up."""

    def __init__(
        self, log: EventLog, live: LiveUpdates, access: Access, every: float = LOOK_EVERY
    ) -> None:
        self._log = log
        self._live = live
        self._access = access
        self._every = every

    async def page(
        self, identity: Identity, execution_id: ExecutionId, step: str | None = None, after: int = 0
    ) -> list[LogPart]:
        """The parts after `after`; empty if there are no more so far."""
        await self._access.check(identity, execution_id)
        return await self._log.logs(execution_id, step, after, PAGE)

    async def over(
        self, identity: Identity, execution_id: ExecutionId, step: str | None, after: int
    ) -> bool:
        """Whether nothing will ever come after `after`."""
        await self._access.check(identity, execution_id)
        if not await has_ended(self._log, execution_id):
            return False
        rest = await self._log.logs(execution_id, step, after, 1)
        return not rest

    async def follow(
        self, identity: Identity, execution_id: ExecutionId, step: str | None = None, after: int = 0
    ) -> AsyncGenerator[list[LogPart] | Quiet | End, None]:
        """The parts after `after`, page by page, until the execution has ended."""
        await self._access.check(identity, execution_id)
        loop = asyncio.get_running_loop()
        last_sent = loop.time()
        with self._live.watch(logs_of(execution_id), row_of(execution_id)) as watch:
            while not self._live.closing:
                ended, page = await self._look(execution_id, step, after)
                if page:
                    after = page[-1].number
                    last_sent = loop.time()
                    yield page
                    continue
                if ended:
                    yield End()
                    return
                if loop.time() - last_sent >= QUIET:
                    last_sent = loop.time()
                    yield Quiet()
                await watch.changed(self._every)

    async def _look(
        self, execution_id: ExecutionId, step: str | None, after: int
    ) -> tuple[bool, list[LogPart]]:
        """Whether the execution has ended, and the next page.

        The end is read first: lines are stored before the end is recorded, so an empty page after
        an end means that there are no more lines.
        """
        try:
            ended = await has_ended(self._log, execution_id)
            page = await self._log.logs(execution_id, step, after, PAGE)
        except Unavailable:
            return False, []
        return ended, page


def lines(part: LogPart) -> Iterator[dict[str, Any]]:
    """The lines of a part as JSON. A part that cannot be decoded becomes one line that says so."""
    where = parse_uri(part.uri)
    origin = made_by(where.key)
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
            "at": iso(line.at),
            "task": line.task,
            "item": line.item,
            "stream": line.stream,
            "line": line.line,
        }
