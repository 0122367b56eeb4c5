"""A pool of Python child processes, each of which takes many calls, and the queue of waiting calls.

A child works on one batch at a time. A batch holds waiting calls of the same code: as many as
should fill a few milliseconds, judging by earlier calls. So cheap calls share a message, and other
calls never wait behind them for long.

For every call of a batch there is a byte in the child's token pipe. The child takes the byte before
it starts the call. The pool takes the remaining bytes back when the batch stalls, when a call is
cancelled or when the child dies. So the pool always knows which calls were started.

When a child dies, the call that it was working on has crashed. Calls that it never started go to
another child. So do finished calls that had not been answered yet: at most a millisecond's worth of
them.
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
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec
from msgspec import Struct

from noetl.caches import LruCache
from noetl.tools.port import Log
from noetl.tools.processes.fork_server import ForkServer, Process
from noetl.tools.processes.messages import ProcessLimits
from noetl.tools.python.messages import BatchEnd, PythonAnswer, PythonRequest

HEADER = struct.Struct(">BI")
LOG_HEADER = struct.Struct(">IB")
ANSWERS_FRAME, LOG_FRAME, LAST_FRAME = 1, 2, 3
STREAM_NAMES = {1: "stdout", 2: "stderr"}
STALL_TIMEOUT_S = 0.005  # seconds without an answer after which a batch is split
SLOW_CALL_S = 0.025  # seconds without an answer after which the pool grows
TARGET_BATCH_MICROS = 5_000
# Less work than this goes to one child: waking another one takes longer than it saves.
MIN_SHARED_MICROS = 500
MAX_BATCH_CALLS = 1_000
MAX_POOL_BATCH_BYTES = 1 << 20
MAX_IDLE_CHILD_S = 30.0  # seconds until an idle child beyond `size` is retired
MAX_LOST_CHILDREN = 3  # how often a call may lose its child
MAX_STREAM_BYTES = 1024 * 1024  # bytes of one stream
MAX_LINE_BYTES = 64 * 1024
MAX_KNOWN_PROGRAMS = 1024
_decode_answers = msgspec.json.Decoder(list[PythonAnswer]).decode
_decode_batch_end = msgspec.json.Decoder(BatchEnd).decode


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """The pool keeps `size` children ready and has at most `most`.

    It replaces a child after `calls` calls, or when the child uses `memory` bytes.
    """

    size: int = max(2, min(os.cpu_count() or 2, 8))
    most: int = 64
    calls: int = 10_000
    memory: int = 256 * 1024 * 1024
    result_limit: int = 64 * 1024 * 1024
    limits: ProcessLimits = field(default_factory=ProcessLimits)


class Program(Struct, frozen=True):
    """Calls of the same program may share a batch."""

    code: str
    env: tuple[tuple[str, str], ...] = ()


class PythonProcessCrashed(Exception):
    """The process ended without an answer.

    `status` is the exit code, or minus the signal number.
    """

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class StreamLines:
    """Splits one stream of one call into lines for its log.

    It cuts long lines, and only counts the bytes beyond the limit of a stream.
    """

    def __init__(self, name: str, log: Log) -> None:
        self._name = name
        self._log = log
        self._line = bytearray()
        self._cut_byte_count = 0
        self._stream_bytes_left = MAX_STREAM_BYTES
        self._dropped_bytes = 0

    def add(self, data: bytes) -> None:
        if self._stream_bytes_left <= 0:
            self._dropped_bytes += len(data)
            return
        first, *others = data.split(b"\n")
        self._extend(first)
        for line in others:
            self._end_line()
            self._extend(line)

    def end(self) -> None:
        if self._line:
            self._end_line()
        if self._dropped_bytes:
            self._log(self._name, f"({self._dropped_bytes} bytes more were not kept)")
            self._dropped_bytes = 0

    def _extend(self, data: bytes) -> None:
        room = MAX_LINE_BYTES - len(self._line)
        self._line += data[:room]
        self._cut_byte_count += len(data[room:])

    def _end_line(self) -> None:
        size = len(self._line) + self._cut_byte_count + 1
        if self._stream_bytes_left <= 0:
            self._dropped_bytes += size
        else:
            self._log(self._name, self._line.decode("utf-8", "replace"))
            if self._cut_byte_count:
                self._log(self._name, f"({self._cut_byte_count} bytes of this line left out)")
        self._stream_bytes_left -= size
        self._line.clear()
        self._cut_byte_count = 0


class CallGroup:
    """Calls that one caller makes together and waits for.

    When a call fails, `stop` is called if there is one. After that no call of the group begins.
    """

    __slots__ = ("done", "left", "log", "stop", "stopped")

    def __init__(
        self, number: int, log: Callable[[int], Log], loop: asyncio.AbstractEventLoop
    ) -> None:
        self.left = number
        self.log = log
        self.stop: Callable[[], None] | None = None
        self.stopped = False
        self.done: asyncio.Future[None] = loop.create_future()

    def count_ended(self, failed: bool) -> None:
        if failed and self.stop is not None:
            self.stop()
        self.left -= 1
        if not self.left and not self.done.done():
            self.done.set_result(None)


class SerialCalls:
    """Calls that run one after the other, so one child gets all of them.

    With `strict`, no call begins after one that failed.
    """

    __slots__ = ("strict",)

    def __init__(self, strict: bool) -> None:
        self.strict = strict


class PoolCall:
    """One call, which waits in the queue or is in the batch of a child."""

    __slots__ = (
        "answer",
        "child",
        "encoded_input",
        "is_over",
        "lines",
        "losses",
        "nth",
        "program",
        "strand",
        "together",
        "was_started",
    )

    def __init__(
        self,
        program: Program,
        encoded_input: bytes,
        nth: int,
        together: CallGroup,
        strand: "SerialCalls | None",
    ) -> None:
        self.program = program
        self.strand = strand
        self.encoded_input = encoded_input
        self.nth = nth
        self.together = together
        self.answer: PythonAnswer | PythonProcessCrashed | None = None
        self.is_over = False  # it has its answer, or the caller was cancelled
        self.was_started = False  # a child started it, and died before it sent the answer
        self.child: PoolProcess | None = None
        self.losses = 0
        self.lines: dict[int, StreamLines] | None = None

    def log_data(self, stream: int, data: bytes) -> None:
        if self.lines is None:
            self.lines = {}
        if stream not in self.lines:
            log = self.together.log(self.nth)
            self.lines[stream] = StreamLines(STREAM_NAMES[stream], log)
        self.lines[stream].add(data)

    def end_with(self, answer: PythonAnswer | PythonProcessCrashed | None) -> None:
        if self.lines is not None:
            for lines in self.lines.values():
                lines.end()
        if self.is_over:
            return
        self.answer = answer
        self.is_over = True
        if isinstance(answer, PythonProcessCrashed):
            failed = True
        else:
            failed = answer is not None and answer.error is not None
        self.together.count_ended(failed)


class PoolProcess:
    """One child and its connections to the pool.

    `batch[answered:]` are the calls without an answer.
    """

    def __init__(self, pool: "PythonPool") -> None:
        self._pool = pool
        self._loop = pool.loop
        self.batch: list[PoolCall] = []
        self.answered = 0
        self.stolen = 0
        self.calls = 0
        self.is_discarded = False  # it gets no more calls, and its death is not a crash of a call
        self.progress = self._begun = 0.0
        self._buffer = bytearray()
        self._unsent = memoryview(b"")
        self._last: BatchEnd | None = None
        ours, theirs = socket.socketpair()
        take, self._give = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        out, out_end = os.pipe2(os.O_CLOEXEC)
        err, err_end = os.pipe2(os.O_CLOEXEC)
        self._take, self._socket = take, ours.detach()
        self._streams = {1: out, 2: err}
        for descriptor in (self._socket, out, err):
            os.set_blocking(descriptor, False)
        descriptors = [self._socket, take, self._give, out, err]
        self._owned = weakref.finalize(self, _close_descriptors, descriptors)
        settings = pool.settings
        self.process: Process = pool.fork_server.spawn(
            "python",
            [out_end, err_end, theirs.detach(), os.dup(take)],
            {},
            settings.limits,
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

    def start_batch(self, batch: list[PoolCall]) -> None:
        """Send a batch to the child."""
        self.batch = batch
        self.answered = 0
        self.stolen = 0
        self._last = None
        self.progress = self._begun = self._loop.time()
        for work in batch:
            work.child = self
        program = batch[0].program
        strand = batch[0].strand
        request = PythonRequest(
            code=program.code,
            env=dict(program.env) or None,
            limit=self._pool.settings.result_limit,
            stop=strand is not None and strand.strict,
        )
        head = msgspec.json.encode(request)
        inputs = b",".join(work.encoded_input for work in batch)
        body = b'%b,"inputs":[%b]}' % (head[:-1], inputs)
        if len(batch) > 1:  # a single call needs no token: it starts when it arrives
            os.write(self._give, b"." * len(batch))
        self._unsent = memoryview(len(body).to_bytes(4, "big") + body)
        if not self._send_rest():
            self._loop.add_writer(self._socket, self._on_writable)

    def _send_rest(self) -> bool:
        """Send as much as the socket takes. True if nothing is left to send."""
        try:
            size = os.write(self._socket, self._unsent)
        except BlockingIOError:
            return False
        except OSError:  # the child is dying: the fork server reports it
            return True
        self._unsent = self._unsent[size:]
        return not self._unsent

    def _on_writable(self) -> None:
        if self._send_rest():
            self._loop.remove_writer(self._socket)

    def steal_unstarted(self) -> list[PoolCall]:
        """Take back the calls that the child has not started. It cannot start them any more."""
        with suppress(BlockingIOError):
            self.stolen += len(os.read(self._take, MAX_BATCH_CALLS))
        kept = len(self.batch) - self.stolen
        stolen = self.batch[kept:]
        self.batch = self.batch[:kept]
        self.stolen = 0
        for work in stolen:
            work.child = None
        return stolen

    # ---- receiving -------------------------------------------------------------------------------

    def _on_readable(self) -> None:
        if self._receive_available():
            return
        self._loop.remove_reader(self._socket)  # the fork server reports the end of the child

    def _receive_available(self) -> bool:
        """Read the available data. False at the end of the stream."""
        try:
            data = os.read(self._socket, 256 * 1024)
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

    def _handle_frames(self) -> None:
        """Handle the complete frames of the buffer."""
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
        self.progress = self._loop.time()
        if kind == LOG_FRAME:
            number, stream = LOG_HEADER.unpack_from(payload)
            self.batch[number].log_data(stream, payload[LOG_HEADER.size :])
        elif kind == ANSWERS_FRAME:
            answers = _decode_answers(payload)
            self._estimate_duration(len(answers))
            self._record_answers(answers)
        else:
            self._end_batch(_decode_batch_end(payload))

    def _record_answers(self, answers: list[PythonAnswer]) -> None:
        self._drain_streams()
        for answer in answers:
            self.batch[self.answered].end_with(answer)
            self.answered += 1

    def _estimate_duration(self, more: int) -> None:
        """Estimate the duration of a call from its first answers.

        The child reports the real duration at the end of the batch. Until then, callers that have
        their answers would see a duration of 0.
        """
        program = self.batch[0].program
        if not self._pool.mean_call_micros(program):
            micros = (self.progress - self._begun) * 1e6
            answers = max(1, self.answered + more)  # code may have sent an empty list itself
            self._pool.record_duration(program, max(1.0, micros / answers))

    def _end_batch(self, last: BatchEnd) -> None:
        """Handle the last frame of a batch."""
        done = self.answered + len(last.answers)
        if done:
            self._pool.record_duration(self.batch[0].program, last.micros / done)
        self.calls += done
        self.batch[0].together.stopped |= last.stopped
        if done < len(self.batch):
            self._pool.requeue_calls(self.steal_unstarted())
        if last.spoiled is not None:
            self.stop_using()
            self._last = last  # answered when the child and its processes are gone
            return
        self._record_answers(last.answers)
        self.batch = []
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
            self._record_answers(self._last.answers)
        unstarted = self.steal_unstarted()
        owed = self.batch[self.answered :]
        self.batch, self.answered = [], 0
        self._pool.remove_child(self)
        for work in owed:
            work.was_started = True
        if owed and not self.is_discarded:
            owed.pop().end_with(PythonProcessCrashed(status))
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


def _close_descriptors(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        with suppress(OSError):
            os.close(descriptor)


def _may_join_batch(batch: list[PoolCall], work: PoolCall, room: bool) -> bool:
    """Whether a call may be added to a batch.

    All calls of a strand are in one batch. A strand never shares a batch with calls that another
    child may take over. A strict strand has a batch of its own.
    """
    strand = work.strand
    last = batch[-1].strand
    if strand is not None and strand is last:
        return True
    if last is not None and last.strict:
        return False
    if strand is not None and strand.strict:
        return False
    return room and (strand is None) == (last is None)


class PythonPool:
    """The children and the queue. A pool is bound to one event loop."""

    def __init__(self, fork_server: ForkServer, settings: PoolSettings) -> None:
        self.loop = asyncio.get_running_loop()
        self.fork_server = fork_server
        self.settings = settings
        self._children: set[PoolProcess] = set()  # those that take calls
        self._idle: list[PoolProcess] = []
        self._queue: OrderedDict[Program, deque[PoolCall]] = OrderedDict()
        self._queued = 0
        self._outstanding = 0  # number of waiting callers
        self.closed = False
        self._dispatch_scheduled = False
        self._micros: LruCache[Program, float] = LruCache(MAX_KNOWN_PROGRAMS)  # mean of a call
        self._stall_timer: asyncio.TimerHandle | None = None
        self._retire_timer: asyncio.TimerHandle | None = None

    def close(self) -> None:
        """From now on, a call that loses its child fails instead of being repeated."""
        self.closed = True

    def start(self) -> None:
        """Start `size` children before the first call."""
        while len(self._children) < self.settings.size:
            self._add_idle_child()

    async def run_calls(
        self,
        program: Program,
        calls: Sequence[tuple[bytes, int]],
        log: Callable[[int], Log],
        at_once: int,
        stop: bool,
    ) -> list[PythonAnswer | PythonProcessCrashed | None]:
        """Run the calls. Returns the answers in order, a `PythonProcessCrashed` for a crash.

        A call is its input and the number by which its log is asked for. At most `at_once` calls
        run at the same time. With `stop`, the calls that have not begun when one fails get None;
        with `at_once=1` these are all calls after it. When this is cancelled, it returns after all
        calls have ended.
        """
        if not calls:
            return []
        together = CallGroup(len(calls), log, self.loop)
        size = -(-len(calls) // at_once)  # rounded up
        strands: list[SerialCalls | None] = [None] * at_once
        if size > 1:
            strict = stop and at_once == 1
            strands = [SerialCalls(strict) for _ in range(at_once)]
        works = [
            PoolCall(program, call_input, nth, together, strands[position // size])
            for position, (call_input, nth) in enumerate(calls)
        ]
        if stop:
            together.stop = lambda: self._stop_group(together, works)
        self._queue.setdefault(program, deque()).extend(works)
        self._queued += len(works)
        self._outstanding += 1
        if self._outstanding == 1:
            self._dispatch_queued()
        elif (
            not self._dispatch_scheduled
        ):  # calls that are made in the same turn of the loop share a message
            self._dispatch_scheduled = True
            self.loop.call_soon(self._dispatch_queued)
        try:
            await together.done
        except asyncio.CancelledError:
            unwanted = [work for work in works if not work.is_over]
            for work in unwanted:
                work.is_over = True
            for work in unwanted:
                await self._withdraw(work)
            raise
        finally:
            self._outstanding -= 1
        return [work.answer for work in works]

    def return_child(self, child: PoolProcess) -> None:
        """Take back a child that has finished its batch."""
        if child.calls >= self.settings.calls:
            child.retire()
        elif child in self._children:
            self._idle.append(child)
        self._dispatch_queued()

    def remove_child(self, child: PoolProcess) -> None:
        self._children.discard(child)
        if child in self._idle:
            self._idle.remove(child)

    def mean_call_micros(self, program: Program) -> float:
        """The mean duration of a call in microseconds; 0 if it is not known."""
        return self._micros.peek(program) or 0.0

    def record_duration(self, program: Program, micros: float) -> None:
        """Update the mean duration: a moving average."""
        mean = self._micros.peek(program)
        if mean is None:
            mean = micros
        else:
            mean += (micros - mean) / 4
        self._micros.put(program, mean)

    # ---- the queue -------------------------------------------------------------------------------

    def requeue_calls(self, works: list[PoolCall], status: int = 0) -> None:
        """Put calls that a child has not run at the front of the queue."""
        for work in reversed(works):
            if work.is_over:
                continue
            if work.together.stopped and not work.was_started:
                work.end_with(None)
                continue
            work.child = None
            work.losses += status != 0
            if work.losses > MAX_LOST_CHILDREN or self.closed:
                work.end_with(PythonProcessCrashed(status))
                continue
            self._queue.setdefault(work.program, deque()).appendleft(work)
            self._queue.move_to_end(work.program, last=False)
            self._queued += 1
        self._dispatch_queued()

    def _dispatch_queued(self) -> None:
        """Give queued calls to idle children."""
        self._dispatch_scheduled = False
        while self._queued:
            if not self._idle:
                if len(self._children) >= min(self.settings.size, self.settings.most):
                    break
                self._add_idle_child()
            child = self._idle.pop()
            child.start_batch(self._take_call_batch())
        if self._queued and self._stall_timer is None:
            self._stall_timer = self.loop.call_later(STALL_TIMEOUT_S, self._relieve_stall)

    def _take_call_batch(self) -> list[PoolCall]:
        """Take the next batch from the queue."""
        program, waiting = next(iter(self._queue.items()))
        count = self._compute_batch_size(program, len(waiting))
        batch = [waiting.popleft()]
        size = len(batch[0].encoded_input)
        while waiting:
            work = waiting[0]
            size += len(work.encoded_input)
            room = len(batch) < count and size <= MAX_POOL_BATCH_BYTES
            if not _may_join_batch(batch, work, room):
                break
            batch.append(waiting.popleft())
        self._queued -= len(batch)
        if waiting:
            self._queue.move_to_end(program)
        else:
            del self._queue[program]
        return batch

    def _compute_batch_size(self, program: Program, waiting: int) -> int:
        """How many of the waiting calls one child may get."""
        micros = self._micros.peek(program)
        if micros is None:
            return 1
        micros = max(micros, 1)
        fitting = max(1, min(MAX_BATCH_CALLS, int(TARGET_BATCH_MICROS / micros)))
        undivided = int(MIN_SHARED_MICROS / micros)
        share = -(-waiting // self.settings.size)  # rounded up
        return min(fitting, max(undivided, share))

    def _stop_group(self, together: CallGroup, works: list[PoolCall]) -> None:
        """End the calls of a group that have not begun.

        Queued calls end at once. Calls in batches end in the next turn of the event loop, because a
        child is just handling its answers.
        """
        together.stop = None
        together.stopped = True
        program = works[0].program
        waiting = self._queue.pop(program, deque())
        self._queued -= len(waiting)
        kept = deque(work for work in waiting if work.together is not together or work.was_started)
        if kept:
            self._queue[program] = kept
            self._queued += len(kept)
        for work in waiting:
            if work.together is together and not work.was_started:
                work.end_with(None)
        self.loop.call_soon(self._recall_unstarted, works)

    def _recall_unstarted(self, works: list[PoolCall]) -> None:
        children = {work.child for work in works if not work.is_over}
        for child in children:
            if child is not None:
                self.requeue_calls(child.steal_unstarted())

    async def _withdraw(self, work: PoolCall) -> None:
        """End a call of a cancelled caller. A child that has started it is stopped."""
        child = work.child
        if child is None:
            self._remove_queued(work)
            return
        if child.process.ended.done():
            return
        if work not in child.batch[child.answered :]:
            return
        stolen = child.steal_unstarted()
        self.requeue_calls([other for other in stolen if other is not work])
        if work not in stolen:
            child.stop_using()
            await child.process.stop()

    def _remove_queued(self, work: PoolCall) -> None:
        waiting = self._queue.get(work.program)
        if waiting is None or work not in waiting:
            return
        waiting.remove(work)
        self._queued -= 1
        if not waiting:
            del self._queue[work.program]

    # ---- growing and shrinking -------------------------------------------------------------------

    def _add_idle_child(self) -> None:
        child = PoolProcess(self)
        self._children.add(child)
        self._idle.append(child)

    def _relieve_stall(self) -> None:
        """Calls wait while children are busy with longer ones: split batches, and add children."""
        self._stall_timer = None
        if not self._queued:
            return
        stalled_since = self.loop.time() - STALL_TIMEOUT_S
        for child in list(self._children):
            if child.progress > stalled_since:
                continue
            unanswered = len(child.batch) - child.answered
            if unanswered > 1 and child.batch[-1].strand is None:
                self.requeue_calls(child.steal_unstarted())
        slow_since = self.loop.time() - SLOW_CALL_S
        if all(child.progress <= slow_since for child in self._children if child.batch):
            room = self.settings.most - len(self._children)
            for _ in range(min(self._queued, len(self._children), room)):
                self._add_idle_child()
        if self._retire_timer is None and len(self._children) > self.settings.size:
            self._retire_timer = self.loop.call_later(MAX_IDLE_CHILD_S, self._retire_idle)
        self._dispatch_queued()

    def _retire_idle(self) -> None:
        """Retire idle children beyond `size`."""
        self._retire_timer = None
        idle_since = self.loop.time() - MAX_IDLE_CHILD_S
        idle = [child for child in self._idle if child.progress <= idle_since]
        for child in idle:
            if len(self._children) > self.settings.size:
                child.retire()
        if len(self._children) > self.settings.size:
            self._retire_timer = self.loop.call_later(MAX_IDLE_CHILD_S, self._retire_idle)
