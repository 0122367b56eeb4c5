"""Lines of step logs that match a filter, in pages or from the end."""

from typing import Any

from msgspec import Struct

from noetl.log.step_logs.port import LogPart, StepLogStore
from noetl.model.identity import Identity, Permission, needs
from noetl.model.ids import CommandId, ExecutionId
from noetl.server.executions.access import Access
from noetl.server.logs.service import PARTS_PER_PAGE, decode_lines

MAX_SEARCHED_PARTS = 64  # parts of about 64 KB each
Line = dict[str, Any]


class LineFilter(Struct, frozen=True, kw_only=True):
    """Which lines are wanted. None matches any."""

    step: str | None = None
    command_id: CommandId | None = None
    item: int | None = None
    text: str | None = None

    def matches(self, line: Line) -> bool:
        if self.item is not None and line["item"] != self.item:
            return False
        return self.text is None or self.text.lower() in line["line"].lower()


class LogSearchService:
    """Searches the lines of one execution, in a bounded number of parts for each request."""

    def __init__(self, step_logs: StepLogStore, access: Access) -> None:
        self._step_logs = step_logs
        self._access = access

    @needs(Permission.READ)
    async def list_lines(
        self,
        identity: Identity,
        execution_id: ExecutionId,
        wanted: LineFilter,
        after: int,
    ) -> list[Line]:
        """The matching lines of the next parts that have some. Empty: there are no more so far.

        If none of the parts that were searched has one, a line says so, with the number of the last
        part: the caller goes on there.
        """
        await self._access.check_tenant(identity, execution_id)
        searched = 0
        while searched < MAX_SEARCHED_PARTS:
            parts = await self._step_logs.read_parts(
                execution_id,
                wanted.step,
                after,
                PARTS_PER_PAGE,
                wanted.command_id,
            )
            if not parts:
                return []
            lines = [line for part in parts for line in decode_lines(part) if wanted.matches(line)]
            if lines:
                return _mark_end(lines, parts[-1])
            searched += len(parts)
            after = parts[-1].number
        return [_make_notice(parts[-1], searched)]

    @needs(Permission.READ)
    async def read_tail(
        self,
        identity: Identity,
        execution_id: ExecutionId,
        wanted: LineFilter,
        count: int,
    ) -> list[Line]:
        """The last matching lines of the last parts."""
        await self._access.check_tenant(identity, execution_id)
        parts = await self._step_logs.read_last_parts(
            execution_id,
            wanted.step,
            PARTS_PER_PAGE,
            wanted.command_id,
        )
        lines = [line for part in parts for line in decode_lines(part) if wanted.matches(line)]
        return lines[-count:]


def _mark_end(lines: list[Line], last: LogPart) -> list[Line]:
    """The last line carries the number of the last part that was read, so that the next page begins
    after it."""
    return [*lines[:-1], {**lines[-1], "part": last.number}]


def _make_notice(last: LogPart, searched: int) -> Line:
    head = next(iter(decode_lines(last)))
    line = f"(no such line in {searched} parts; go on after part {last.number})"
    return {**head, "seq": 0, "item": None, "stream": "noetl", "line": line}
