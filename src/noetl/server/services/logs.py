"""What the steps of an execution printed, in the order it came: pages, and live. Parts are opened here, a page at a time."""

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

PAGE = 16  # parts; each is 64 KB or so


class LogService:
    """`every`: seconds between looks when nobody wakes those who wait."""

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
        """Empty: that was all so far."""
        await self._access.check(identity, execution_id)
        return await self._log.logs(execution_id, step, after, PAGE)

    async def over(
        self, identity: Identity, execution_id: ExecutionId, step: str | None, after: int
    ) -> bool:
        """Nothing will ever come after `after`."""
        await self._access.check(identity, execution_id)
        return await has_ended(self._log, execution_id) and not await self._log.logs(
            execution_id, step, after, 1
        )

    async def follow(
        self, identity: Identity, execution_id: ExecutionId, step: str | None = None, after: int = 0
    ) -> AsyncGenerator[list[LogPart] | Quiet | End, None]:
        await self._access.check(identity, execution_id)
        loop = asyncio.get_running_loop()
        spoke = loop.time()
        with self._live.watch(logs_of(execution_id), row_of(execution_id)) as watch:
            while not self._live.closing:
                ended, page = await self._look(execution_id, step, after)
                if page:
                    after, spoke = page[-1].number, loop.time()
                    yield page
                    continue
                if ended:
                    yield End()
                    return
                if loop.time() - spoke >= QUIET:
                    spoke = loop.time()
                    yield Quiet()
                await watch.changed(self._every)

    async def _look(
        self, execution_id: ExecutionId, step: str | None, after: int
    ) -> tuple[bool, list[LogPart]]:
        """In this order: a step's lines are stored before its end is recorded."""
        try:
            ended = await has_ended(self._log, execution_id)
            return ended, await self._log.logs(execution_id, step, after, PAGE)
        except Unavailable:
            return False, []


def lines(part: LogPart) -> Iterator[dict[str, Any]]:
    """As the API has them. What cannot be read says so instead."""
    where = parse_uri(part.uri)
    made = made_by(where.key)
    head = {
        "part": part.number,
        "step": where.step,
        "command_id": None if made is None else made.command_id,
        "attempt": None if made is None else made.attempt,
    }
    try:
        found = decode(part.payload)
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
    for line in found:
        yield {
            **head,
            "seq": line.seq,
            "at": iso(line.at),
            "task": line.task,
            "item": line.item,
            "stream": line.stream,
            "line": line.line,
        }
