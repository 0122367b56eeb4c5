"""A Python child process and its connections to the pool.

A child works on one message at a time. A message holds the inputs of one or more calls of a
program. For every call of a message there is a byte in the child's token pipe. The child takes the
byte before it starts the call. The pool takes the remaining bytes back when the calls shall go
elsewhere, when a call is cancelled or when the child dies. So the pool always knows which calls
were started.
"""

import asyncio
import fcntl
import os
import signal
import socket
import struct
import sys
import termios
import weakref
from array import array
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from noetl.results.formats.shared_records import SharedRecords
from noetl.results.formats.tables import ValueHead
from noetl.tools.port import PlaybookKey
from noetl.tools.processes.fork_server import ForkServer, Process
from noetl.tools.processes.limits import StepLimits, make_step_limits
from noetl.tools.python.calls import CallGroup, PoolCall, PythonProcessCrashed
from noetl.tools.python.messages import (
    AttachedRecords,
    BatchEnd,
    PythonAnswer,
    PythonAnswers,
    PythonRequest,
)

HEADER = struct.Struct(">BI")
LOG_HEADER = struct.Struct(">IB")
ANSWERS_FRAME, LOG_FRAME, LAST_FRAME = 1, 2, 3
MAX_MESSAGE_CALLS = 4_096  # a pipe takes so many tokens at once, or none
MAX_MESSAGE_BYTES = 1 << 20
READ_BYTES = 64 * 1024  # a larger buffer is mapped and unmapped for every read
MSG_CMSG_CLOEXEC = int(socket.MSG_CMSG_CLOEXEC)
MAX_ANSWER_DESCRIPTORS = 4  # that come with one part of an answer; a child sends one
ANCILLARY_BYTES = socket.CMSG_SPACE(4 * MAX_ANSWER_DESCRIPTORS)
_decode_answers = msgspec.json.Decoder(PythonAnswers).decode
_decode_batch_end = msgspec.json.Decoder(BatchEnd).decode


class ForeignPlaybook(Exception):
    """A bug: a child was to run code of another playbook than before."""


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """At most `size` children work at the same time, or up to `most` while calls are slow.

    At most `kept` idle children of other playbooks are kept when a playbook gets its first child.
    The pool replaces a child after `calls` calls, or when the child uses `memory` bytes.
    """

    size: int = max(2, min(os.cpu_count() or 2, 8))
    most: int = 64
    kept: int = 8
    calls: int = 10_000
    memory: int = 256 * 1024 * 1024
    result_limit: int = 64 * 1024 * 1024
    limits: StepLimits = field(default_factory=make_step_limits)


class ChildOwner(Protocol):
    """The pool as a child sees it."""

    loop: asyncio.AbstractEventLoop
    fork_server: ForkServer
    settings: PoolSettings

    def requeue_calls(self, calls: list[PoolCall], status: int = 0) -> None: ...
    def release_groups(self, child: "PoolProcess") -> None: ...
    def return_child(self, child: "PoolProcess") -> None: ...
    def remove_child(self, child: "PoolProcess") -> None: ...


class PoolProcess:
    """One child and its connections to the pool.

    `batch` has the calls of its message, `batch[answered:]` those without an answer. `groups` has
    the groups of these calls. All its calls are of one `playbook`; a new child has none yet.
    """

    def __init__(self, pool: ChildOwner) -> None:
        self._pool = pool
        self._loop = pool.loop
        self.playbook: PlaybookKey | None = None
        self.groups: list[CallGroup] = []
        self.batch: list[PoolCall] = []
        self.answered = 0
        self.calls = 0
        self.has_held_records = False  # long lists of records leave holes in its memory
        self.is_discarded = False  # it gets no more calls, and its death is not a crash of a call
        self.began_at = 0.0  # when it got the message
        self.progress_at = 0.0  # when it got the message, or sent something since
        self._buffer = bytearray()
        self._unsent = memoryview(b"")
        self._unsent_descriptors: list[int] = []  # go with the first bytes of a message
        self._received_descriptors: list[int] = []  # of answers that are not complete yet
        self._takes_columns = False
        self._last: BatchEnd | None = None
        ours, theirs = socket.socketpair()
        take, self._give = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        out, out_end = os.pipe2(os.O_CLOEXEC)
        err, err_end = os.pipe2(os.O_CLOEXEC)
        self._connection = ours
        self._take, self._socket = take, ours.fileno()
        self._streams = {1: out, 2: err}
        for descriptor in (self._socket, out, err):
            os.set_blocking(descriptor, False)
        descriptors = [take, self._give, out, err]
        self._owned = weakref.finalize(
            self, _close_descriptors, ours, descriptors, self._received_descriptors
        )
        settings = pool.settings
        self.process: Process = pool.fork_server.spawn(
            "python",
            [out_end, err_end, theirs.detach(), os.dup(take)],
            {},
            settings.limits.usual,
            highest=settings.limits.highest,
            memory=settings.memory,
        )
        self.process.ended.add_done_callback(lambda ended: self._on_death(ended.result()))
        for descriptor, read in self._list_readers():
            self._loop.add_reader(descriptor, read)

    def _list_readers(self) -> Iterable[tuple[int, Callable[[], object]]]:
        yield self._socket, self._on_readable
        for stream, descriptor in self._streams.items():
            yield descriptor, lambda stream=stream: self._read_printed(stream)  # type: ignore[misc]  # the default binds it

    # ---- sending ---------------------------------------------------------------------------------

    def start_batch(self, groups: list[CallGroup], batch: list[PoolCall]) -> None:
        """Send calls of these groups to the child in one message."""
        self.groups = groups
        self.batch = batch
        self.answered = 0
        self._last = None
        self.began_at = self.progress_at = self._loop.time()
        program = groups[0].program
        if self.playbook is None:
            self.playbook = program.playbook
        elif self.playbook != program.playbook:
            raise ForeignPlaybook
        attached = batch[0].attached  # a call with attached records is alone in its message
        self.has_held_records |= bool(attached)
        self._takes_columns = all(group.columns for group in groups)
        request = PythonRequest(
            code=program.code,
            env=dict(program.env) or None,
            limit=self._pool.settings.result_limit,
            stop=groups[0].stop is not None,
            columns=self._takes_columns,
            attached=[AttachedRecords(path, records.layout) for path, records in attached],
            limits=program.limits,
        )
        head = msgspec.json.encode(request)
        inputs = b",".join([call.encoded_input for call in batch])
        body = b'%b,"inputs":[%b]}' % (head[:-1], inputs)
        if len(batch) > 1:  # a single call needs no token: it starts when it arrives
            os.write(self._give, b"." * len(batch))
        self._unsent = memoryview(len(body).to_bytes(4, "big") + body)
        self._unsent_descriptors = [records.descriptor for _, records in attached]
        if not self._send_rest():
            self._loop.add_writer(self._socket, self._on_writable)

    def _send_rest(self) -> bool:
        """Send as much as the socket takes. True if nothing is left to send."""
        try:
            if self._unsent_descriptors:
                size = socket.send_fds(self._connection, [self._unsent], self._unsent_descriptors)
            else:
                size = os.write(self._socket, self._unsent)
        except BlockingIOError:
            return False
        except OSError:  # the child is dying: the fork server reports it
            return True
        self._unsent_descriptors = []
        self._unsent = self._unsent[size:]
        return not self._unsent

    def _on_writable(self) -> None:
        if self._send_rest():
            self._loop.remove_writer(self._socket)

    def take_unstarted(self) -> list[PoolCall]:
        """Take back the calls that the child has not started. It cannot start them any more."""
        taken = 0
        with suppress(BlockingIOError):
            taken = len(os.read(self._take, MAX_MESSAGE_CALLS))
        kept = len(self.batch) - taken
        unstarted = self.batch[kept:]
        del self.batch[kept:]
        return unstarted

    @property
    def unanswered(self) -> int:
        """The number of calls without an answer."""
        return len(self.batch) - self.answered

    def is_stalled(self, since: float) -> bool:
        """Whether the child has sent nothing since then."""
        return self.progress_at <= since and not count_readable_bytes(self._socket)

    def can_be_divided(self) -> bool:
        """Whether other children may take over calls of the message."""
        return len(self.groups) > 1 or len(self.groups[0].children) < self.groups[0].at_once

    # ---- receiving -------------------------------------------------------------------------------

    def _on_readable(self) -> None:
        if self._receive_available():
            return
        self._loop.remove_reader(self._socket)  # the fork server reports the end of the child

    def _receive_available(self) -> bool:
        """Read the available data. False at the end of the stream."""
        try:
            data = self._read_socket()
        except BlockingIOError:
            return True
        except OSError:
            return False
        if not data:
            return False
        self._buffer += data
        try:
            self._handle_frames()
        except (
            msgspec.MsgspecError,
            KeyError,
            TypeError,
            ValueError,
            IndexError,
            struct.error,
            RecursionError,
        ):
            self._pool.remove_child(
                self
            )  # the code has written to the socket: the child is unusable
            self.process.kill(signal.SIGKILL)
        return True

    def _read_socket(self) -> bytes:
        if not self._takes_columns:
            return os.read(self._socket, READ_BYTES)
        data, ancillary, _, _ = self._connection.recvmsg(
            READ_BYTES, ANCILLARY_BYTES, MSG_CMSG_CLOEXEC
        )
        for _, _, descriptors in ancillary:
            self._received_descriptors += array("i", descriptors)
        return data

    def _handle_frames(self) -> None:
        """Handle the complete frames of the buffer."""
        if len(self._received_descriptors) > MAX_ANSWER_DESCRIPTORS:
            raise ValueError("the code sends descriptors")
        buffer = self._buffer
        offset = 0
        limit = self._pool.settings.result_limit + (1 << 20)
        while len(buffer) - offset >= HEADER.size:
            kind, size = HEADER.unpack_from(buffer, offset)
            if size > limit or kind not in (ANSWERS_FRAME, LOG_FRAME, LAST_FRAME):
                raise ValueError(size)
            start = offset + HEADER.size
            if len(buffer) - start < size:
                break
            offset = start + size
            payload = bytes(memoryview(buffer)[start:offset])
            self._handle_frame(kind, payload)
        del buffer[:offset]

    def _handle_frame(self, kind: int, payload: bytes) -> None:
        self.progress_at = self._loop.time()
        if kind == LOG_FRAME:
            number, stream = LOG_HEADER.unpack_from(payload)
            self.batch[number].log_data(stream, payload[LOG_HEADER.size :])
        elif kind == ANSWERS_FRAME:
            self._record_answers(_decode_answers(payload))
        else:
            self._end_batch(_decode_batch_end(payload))

    def _record_answers(self, part: PythonAnswers) -> None:
        self._drain_streams()
        if not part.answers:
            return
        seconds = part.micros / len(part.answers) / 1_000_000
        for answer in part.answers:
            if answer.layout is not None:
                answer = self._take_shared_records(answer)
            self.batch[self.answered].end_with(answer, seconds)
            self.answered += 1

    def _take_shared_records(self, answer: PythonAnswer) -> PythonAnswer:
        """The answer with its records, of which the descriptor has come before it."""
        assert answer.layout is not None
        head = ValueHead()
        if answer.at is not None:
            if not isinstance(answer.value, dict):
                raise ValueError("records that are a member of no map")
            head = ValueHead(answer.at, answer.value)
        self.has_held_records = True
        descriptor = self._received_descriptors.pop(0)
        records = SharedRecords(descriptor, answer.layout, head)
        return msgspec.structs.replace(answer, value=records, layout=None)

    def _end_batch(self, last: BatchEnd) -> None:
        """Handle the last frame of a message."""
        if self._received_descriptors or any(answer.layout for answer in last.answers):
            raise ValueError("descriptors without answers, or answers without descriptors")
        done = self.answered + len(last.answers)
        self.calls += done
        self.groups[0].stopped |= last.stopped
        unstarted: list[PoolCall] = []
        if done < len(self.batch):
            unstarted = self.take_unstarted()
        if last.spoiled is not None:
            self._last = last  # answered when the child and its processes are gone
            self.stop_using()
            self._pool.requeue_calls(unstarted)
            return
        self._record_answers(last)
        self._pool.release_groups(self)
        self.batch = []
        self._pool.requeue_calls(unstarted)
        self._pool.return_child(self)

    def _read_printed(self, stream: int) -> None:
        """Log what processes of the code, or the code itself, wrote to descriptor 1 or 2."""
        with suppress(BlockingIOError):
            data = os.read(self._streams[stream], 64 * 1024)
            if not data:
                self._loop.remove_reader(self._streams[stream])
            elif self.answered < len(self.batch):
                self.batch[self.answered].log_data(stream, data)

    def _drain_streams(self) -> None:
        for stream, descriptor in self._streams.items():
            while count_readable_bytes(descriptor):
                self._read_printed(stream)

    # ---- ending ----------------------------------------------------------------------------------

    def stop_using(self) -> None:
        self.is_discarded = True
        self._pool.remove_child(self)

    def retire(self) -> None:
        """Close the child's socket: an idle child then ends by itself."""
        self.stop_using()
        with suppress(OSError), socket.socket(fileno=os.dup(self._socket)) as end:
            end.shutdown(socket.SHUT_WR)

    def _on_death(self, status: int) -> None:
        while self._receive_rest():
            pass
        for descriptor, _ in self._list_readers():
            self._loop.remove_reader(descriptor)
        self._loop.remove_writer(self._socket)
        self._drain_streams()
        if self._last is not None:
            self._record_answers(self._last)
        unstarted = self.take_unstarted()
        owed = self.batch[self.answered :]
        self.batch = []
        self.answered = 0
        self._pool.remove_child(self)
        self._pool.release_groups(self)
        for call in owed:
            call.was_started = True
        if owed and not self.is_discarded:
            seconds = self._loop.time() - self.progress_at
            owed.pop().end_with(PythonProcessCrashed(status), seconds)
        self._pool.requeue_calls([*owed, *unstarted], status)
        self._owned()

    def _receive_rest(self) -> bool:
        """Read more data of a dead child. True if there may be more."""
        size = len(self._buffer)
        if not self._receive_available():
            return False
        return len(self._buffer) > size or count_readable_bytes(self._socket) > 0


def count_readable_bytes(descriptor: int) -> int:
    """The number of bytes that can be read."""
    count = fcntl.ioctl(descriptor, termios.FIONREAD, b"\0\0\0\0")
    return int.from_bytes(count, sys.byteorder)


def _close_descriptors(
    connection: socket.socket, descriptors: list[int], received: list[int]
) -> None:
    connection.close()
    for descriptor in (*descriptors, *received):
        with suppress(OSError):
            os.close(descriptor)
