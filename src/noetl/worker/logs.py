"""Step logs: the lines that tools print, numbered per attempt, limited, and stored in parts.

A step never waits for its log and never fails because of it. Lines are collected for a moment and
sent in the background, those of all attempts together. Lines of an attempt that has ended also go
with the exchange that reports its end, so that a reader who sees the end finds them. If there are
too many lines, the last ones are kept, and a line says how many were left out before them. A part
is sent until it is stored. Its address names the attempt and the part, so storing it twice changes
nothing.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from noetl.model.clock import Clock
from noetl.model.commands import Command
from noetl.model.errors import InvalidInput, Unavailable
from noetl.model.exchange import LeaseKey
from noetl.model.messages import StoredRef
from noetl.model.reference import address
from noetl.model.steplogs import Line, encode, part_key
from noetl.results.encoding import checksum, reference_to
from noetl.tools.port import Log
from noetl.worker.channel import Channel

log = logging.getLogger(__name__)

LINE = 16 * 1024  # characters of one line
BESIDE = 80  # bytes that a line takes beside its text, about
ATTEMPT = 1024 * 1024  # bytes of one attempt that are sent at once
LAST = 64 * 1024  # bytes of the last lines, kept while the attempt or the worker has no room
PART = 64 * 1024  # bytes of one part
AT_ONCE = 512 * 1024  # bytes of parts in one call
WITH_ENDINGS = 1024 * 1024  # bytes of parts in one exchange
UNSENT = 8 * 1024 * 1024  # bytes of all attempts that wait in memory
GATHER, LONGEST = 0.1, 2.0  # seconds between two calls; doubles while no server accepts them
PATIENCE = 5.0  # seconds for an answer
FAREWELL = 2.0  # seconds to send the rest when the worker ends


@dataclass(frozen=True, slots=True)
class Unsent:
    """A part of a log that no server has stored yet."""

    held: LeaseKey
    part: StoredRef

    @property
    def size(self) -> int:
        return len(self.part.payload or b"")


class AttemptLog:
    """The lines of one attempt.

    Calling it with the name of a task, and the index of its item, returns the log of that task.
    """

    def __init__(
        self,
        logs: "StepLogs",
        command: Command,
        launch: int,
    ) -> None:
        self._logs = logs
        self._command = command
        self._launch = launch
        self._seq = 0
        self._left = ATTEMPT
        self._parts = 0
        self._pending: list[tuple[Line, int]] = []
        self._late: deque[tuple[Line, int]] = deque()
        self._late_bytes = 0
        self._dropped_lines = self._dropped_bytes = 0

    def __call__(self, task: str, item: int | None = None) -> Log:
        def write_line(stream: str, line: str) -> None:
            self._seq += 1
            self._add(
                Line(
                    seq=self._seq,
                    at=self._logs.now(),
                    stream=stream,
                    line=cut(line),
                    task=task,
                    item=item,
                )
            )

        return write_line

    @property
    def held(self) -> LeaseKey:
        return LeaseKey(self._command.command_id, self._command.attempt)

    def close(self) -> None:
        """The attempt prints nothing more: make parts of all lines."""
        self._rejoin()
        self._logs.seal(self)

    def _add(self, line: Line) -> None:
        size = len(line.line) + BESIDE
        room = min(self._left, self._logs.room)
        if self._late and room >= self._late_bytes + size:
            self._rejoin()
        if self._late or room < size:
            self._postpone(line, size)
        else:
            self._keep(line, size)

    def _keep(self, line: Line, size: int) -> None:
        self._left -= size
        self._pending.append((line, size))
        self._logs.gathered(self, size)

    def _postpone(self, line: Line, size: int) -> None:
        """Keep a line for later.

        It is sent when there is room again, or when the attempt ends, unless later lines push it
        out.
        """
        self._late.append((line, size))
        self._late_bytes += size
        while self._late_bytes > LAST and len(self._late) > 1:
            _, gone = self._late.popleft()
            self._late_bytes -= gone
            self._dropped_lines += 1
            self._dropped_bytes += gone - BESIDE

    def _rejoin(self) -> None:
        """Send the postponed lines, after a line that says how many were left out."""
        if self._dropped_lines:
            text = f"({self._dropped_lines} lines, {self._dropped_bytes} bytes left out)"
            first, _ = self._late[0]
            notice = Line(
                seq=first.seq - 1,
                at=first.at,
                stream="noetl",
                line=text,
            )
            self._keep(notice, len(text) + BESIDE)
        for line, size in self._late:
            self._keep(line, size)
        self._late.clear()
        self._late_bytes = self._dropped_lines = self._dropped_bytes = 0

    def sealed(self) -> list[Unsent]:
        """The pending lines as parts that never change again."""
        pending, self._pending = self._pending, []
        parts: list[Unsent] = []
        lines: list[Line] = []
        room = PART
        for line, size in pending:
            if lines and size > room:
                parts.append(Unsent(self.held, self._part(lines)))
                lines, room = [], PART
            lines.append(line)
            room -= size
        if lines:
            parts.append(Unsent(self.held, self._part(lines)))
        return parts

    def _part(self, lines: list[Line]) -> StoredRef:
        command = self._command
        key = part_key(command.command_id, command.attempt, self._launch, self._parts)
        self._parts += 1
        data = encode(lines)
        uri = str(address(command.execution_id, "log", command.step, key))
        reference = reference_to(uri, "kv", checksum(data), len(data), len(lines))
        return StoredRef(reference=reference, payload=data)


class StepLogs:
    """The logs of one worker."""

    def __init__(self, channel: Channel, clock: Clock) -> None:
        self._channel = channel
        self.now = clock.now
        self._open: dict[AttemptLog, int] = {}  # attempts with pending lines, and their bytes
        self._unsent: dict[str, Unsent] = {}  # by address, in the order they were made
        self._bytes = 0
        self._wake = asyncio.Event()

    def of(self, command: Command, launch: int) -> AttemptLog:
        return AttemptLog(self, command, launch)

    @property
    def room(self) -> int:
        return UNSENT - self._bytes

    def gathered(self, attempt: AttemptLog, size: int) -> None:
        self._open[attempt] = self._open.get(attempt, 0) + size
        self._bytes += size
        self._wake.set()

    def seal(self, attempt: AttemptLog) -> None:
        self._bytes -= self._open.pop(attempt, 0)
        for unsent in attempt.sealed():
            self._unsent[unsent.part.reference.uri] = unsent
            self._bytes += unsent.size

    # ---- sending ---------------------------------------------------------------------------------

    async def run(self) -> None:
        """Send parts until it is cancelled."""
        delay = GATHER
        while True:
            await self._wake.wait()
            await asyncio.sleep(delay)
            self._wake.clear()
            if await self._send():
                delay = GATHER
            else:
                delay = min(2 * delay, LONGEST)
            if self._unsent:
                self._wake.set()

    async def close(self) -> None:
        """Send the rest, as far as that is possible in a short time."""
        try:
            async with asyncio.timeout(FAREWELL):
                while (self._open or self._unsent) and await self._send():
                    pass
        except TimeoutError:
            pass
        if self._unsent:
            log.warning("step logs not stored", extra={"parts": len(self._unsent)})

    def endings(self, lease_keys: Iterable[LeaseKey]) -> tuple[StoredRef, ...]:
        """The parts of these attempts that no server has stored yet, as many as fit into an
        exchange."""
        attempts = set(lease_keys)
        if not attempts or not self._unsent:
            return ()
        unsent = (part for part in self._unsent.values() if part.held in attempts)
        return _within(WITH_ENDINGS, unsent)

    def stored(self, parts: Iterable[StoredRef]) -> None:
        for part in parts:
            unsent = self._unsent.pop(part.reference.uri, None)
            if unsent is not None:
                self._bytes -= unsent.size

    async def _send(self) -> bool:
        """Send one call of parts. Returns False if no server accepted it."""
        for attempt in list(self._open):
            self.seal(attempt)
        parts = _within(AT_ONCE, self._unsent.values())
        if not parts:
            return True
        try:
            async with asyncio.timeout(PATIENCE):
                await self._channel.put_logs(parts)
        except (Unavailable, TimeoutError) as error:
            log.warning("step logs wait", extra={"parts": len(self._unsent), "error": str(error)})
            return False
        except InvalidInput as error:
            log.error("step logs refused", extra={"parts": len(parts), "error": str(error)})
        except Exception:  # a loop that must survive
            log.exception("step logs not stored")
            return False
        self.stored(parts)
        return True


def cut(line: str) -> str:
    if len(line) <= LINE:
        return line
    return f"{line[:LINE]}… ({len(line) - LINE} characters more)"


def _within(limit: int, waiting: Iterable[Unsent]) -> tuple[StoredRef, ...]:
    """The first parts, up to `limit` bytes but at least one."""
    parts: list[StoredRef] = []
    for unsent in waiting:
        limit -= unsent.size
        if limit < 0 and parts:
            break
        parts.append(unsent.part)
    return tuple(parts)
