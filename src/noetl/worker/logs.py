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

from msgspec import Struct

from noetl.backoff import Backoff
from noetl.model.clock import Clock
from noetl.model.commands import Command
from noetl.model.errors import InvalidInput, Unavailable
from noetl.model.exchange import LeaseKey
from noetl.model.messages import StoredRef
from noetl.model.reference import make_address
from noetl.model.steplogs import Line, encode, make_log_part_key
from noetl.results.formats.encoding import compute_payload_checksum, make_json_reference
from noetl.tools.port import Log
from noetl.worker.channel import Channel

log = logging.getLogger(__name__)

MAX_LINE_CHARS = 16 * 1024  # characters of one line
LINE_OVERHEAD_BYTES = 80  # bytes that a line takes beside its text, about
MAX_ATTEMPT_BYTES = 1024 * 1024  # bytes of one attempt that are sent at once
# Bytes of the last lines, kept while the attempt or the worker has no room.
MAX_POSTPONED_BYTES = 64 * 1024
MAX_PART_BYTES = 64 * 1024  # bytes of one part
MAX_CALL_BYTES = 512 * 1024  # bytes of parts in one call
MAX_EXCHANGE_LOG_BYTES = 1024 * 1024  # bytes of parts in one exchange
MAX_UNSENT_BYTES = 8 * 1024 * 1024  # bytes of all attempts that wait in memory
MIN_SEND_INTERVAL_S, MAX_SEND_INTERVAL_S = (
    0.1,
    2.0,
)  # seconds between two calls; doubles while no server accepts them
SEND_TIMEOUT_S = 5.0  # seconds for an answer
CLOSE_TIMEOUT_S = 2.0  # seconds to send the rest when the worker ends


class UnsentPart(Struct, frozen=True):
    """A part of a log that no server has stored yet."""

    lease_key: LeaseKey
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
        self._bytes_left = MAX_ATTEMPT_BYTES
        self._part_count = 0
        self._pending: list[tuple[Line, int]] = []
        self._postponed: deque[tuple[Line, int]] = deque()
        self._postponed_bytes = 0
        self._dropped_lines = self._dropped_bytes = 0

    def __call__(self, task: str, item: int | None = None) -> Log:
        def write_line(stream: str, line: str) -> None:
            self._seq += 1
            self._add_line(
                Line(
                    seq=self._seq,
                    at=self._logs.now(),
                    stream=stream,
                    line=cut_line(line),
                    task=task,
                    item=item,
                )
            )

        return write_line

    @property
    def lease_key(self) -> LeaseKey:
        return LeaseKey(self._command.command_id, self._command.attempt)

    def close(self) -> None:
        """The attempt prints nothing more: make parts of all lines."""
        self._send_postponed()
        self._logs.seal_attempt(self)

    def _add_line(self, line: Line) -> None:
        size = len(line.line) + LINE_OVERHEAD_BYTES
        room = min(self._bytes_left, self._logs.free_bytes)
        if self._postponed and room >= self._postponed_bytes + size:
            self._send_postponed()
        if self._postponed or room < size:
            self._postpone_line(line, size)
        else:
            self._keep_line(line, size)

    def _keep_line(self, line: Line, size: int) -> None:
        self._bytes_left -= size
        self._pending.append((line, size))
        self._logs.note_line(self, size)

    def _postpone_line(self, line: Line, size: int) -> None:
        """Keep a line for later.

        It is sent when there is room again, or when the attempt ends, unless later lines push it
        out.
        """
        self._postponed.append((line, size))
        self._postponed_bytes += size
        while self._postponed_bytes > MAX_POSTPONED_BYTES and len(self._postponed) > 1:
            _, gone = self._postponed.popleft()
            self._postponed_bytes -= gone
            self._dropped_lines += 1
            self._dropped_bytes += gone - LINE_OVERHEAD_BYTES

    def _send_postponed(self) -> None:
        """Send the postponed lines, after a line that says how many were left out."""
        if self._dropped_lines:
            text = f"({self._dropped_lines} lines, {self._dropped_bytes} bytes left out)"
            first, _ = self._postponed[0]
            notice = Line(
                seq=first.seq - 1,
                at=first.at,
                stream="noetl",
                line=text,
            )
            self._keep_line(notice, len(text) + LINE_OVERHEAD_BYTES)
        for line, size in self._postponed:
            self._keep_line(line, size)
        self._postponed.clear()
        self._postponed_bytes = self._dropped_lines = self._dropped_bytes = 0

    def take_parts(self) -> list[UnsentPart]:
        """The pending lines as parts that never change again."""
        pending, self._pending = self._pending, []
        parts: list[UnsentPart] = []
        lines: list[Line] = []
        room = MAX_PART_BYTES
        for line, size in pending:
            if lines and size > room:
                parts.append(UnsentPart(self.lease_key, self._make_part(lines)))
                lines, room = [], MAX_PART_BYTES
            lines.append(line)
            room -= size
        if lines:
            parts.append(UnsentPart(self.lease_key, self._make_part(lines)))
        return parts

    def _make_part(self, lines: list[Line]) -> StoredRef:
        command = self._command
        key = make_log_part_key(command.command_id, command.attempt, self._launch, self._part_count)
        self._part_count += 1
        data = encode(lines)
        uri = str(make_address(command.execution_id, "log", command.step, key))
        reference = make_json_reference(
            uri, "kv", compute_payload_checksum(data), len(data), len(lines)
        )
        return StoredRef(reference=reference, payload=data)


class StepLogs:
    """The logs of one worker."""

    def __init__(self, channel: Channel, clock: Clock) -> None:
        self._channel = channel
        self.now = clock.now
        self._open_attempts: dict[
            AttemptLog, int
        ] = {}  # attempts with pending lines, and their bytes
        self._unsent: dict[str, UnsentPart] = {}  # by address, in the order they were made
        self._bytes = 0
        self._wake = asyncio.Event()

    def open_attempt(self, command: Command, launch: int) -> AttemptLog:
        return AttemptLog(self, command, launch)

    @property
    def free_bytes(self) -> int:
        return MAX_UNSENT_BYTES - self._bytes

    def note_line(self, attempt: AttemptLog, size: int) -> None:
        self._open_attempts[attempt] = self._open_attempts.get(attempt, 0) + size
        self._bytes += size
        self._wake.set()

    def seal_attempt(self, attempt: AttemptLog) -> None:
        self._bytes -= self._open_attempts.pop(attempt, 0)
        for unsent in attempt.take_parts():
            self._unsent[unsent.part.reference.uri] = unsent
            self._bytes += unsent.size

    # ---- sending ---------------------------------------------------------------------------------

    async def run(self) -> None:
        """Send parts until it is cancelled."""
        backoff = Backoff(MIN_SEND_INTERVAL_S, MAX_SEND_INTERVAL_S)
        while True:
            await self._wake.wait()
            await asyncio.sleep(backoff.delay)
            self._wake.clear()
            if await self._send_parts():
                backoff.reset()
            else:
                backoff.count_failure()
            if self._unsent:
                self._wake.set()

    async def close(self) -> None:
        """Send the rest, as far as that is possible in a short time."""
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                while (self._open_attempts or self._unsent) and await self._send_parts():
                    pass
        except TimeoutError:
            pass
        if self._unsent:
            log.warning("step logs not stored", extra={"parts": len(self._unsent)})

    def list_ending_parts(self, lease_keys: Iterable[LeaseKey]) -> tuple[StoredRef, ...]:
        """The parts of these attempts that no server has stored yet, as many as fit into an
        exchange."""
        attempts = set(lease_keys)
        if not attempts or not self._unsent:
            return ()
        unsent = (part for part in self._unsent.values() if part.lease_key in attempts)
        return _take_within(MAX_EXCHANGE_LOG_BYTES, unsent)

    def forget_stored(self, parts: Iterable[StoredRef]) -> None:
        for part in parts:
            unsent = self._unsent.pop(part.reference.uri, None)
            if unsent is not None:
                self._bytes -= unsent.size

    async def _send_parts(self) -> bool:
        """Send one call of parts. Returns False if no server accepted it."""
        for attempt in list(self._open_attempts):
            self.seal_attempt(attempt)
        parts = _take_within(MAX_CALL_BYTES, self._unsent.values())
        if not parts:
            return True
        try:
            async with asyncio.timeout(SEND_TIMEOUT_S):
                await self._channel.put_logs(parts)
        except (Unavailable, TimeoutError) as error:
            log.warning("step logs wait", extra={"parts": len(self._unsent), "error": str(error)})
            return False
        except InvalidInput as error:
            log.error("step logs refused", extra={"parts": len(parts), "error": str(error)})
        except Exception:  # a loop that must survive
            log.exception("step logs not stored")
            return False
        self.forget_stored(parts)
        return True


def cut_line(line: str) -> str:
    if len(line) <= MAX_LINE_CHARS:
        return line
    return f"{line[:MAX_LINE_CHARS]}… ({len(line) - MAX_LINE_CHARS} characters more)"


def _take_within(limit: int, waiting: Iterable[UnsentPart]) -> tuple[StoredRef, ...]:
    """The first parts, up to `limit` bytes but at least one."""
    parts: list[StoredRef] = []
    for unsent in waiting:
        limit -= unsent.size
        if limit < 0 and parts:
            break
        parts.append(unsent.part)
    return tuple(parts)
