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
from typing import Any

import msgspec
from msgspec import Struct

from noetl.tools.nursery import ForkServer, Process, ProcessLimits
from noetl.tools.port import Log

HEADER = struct.Struct(">BI")
LOG_HEADER = struct.Struct(">IB")
ANSWERS, LOG, LAST = 1, 2, 3
STREAMS = {1: "stdout", 2: "stderr"}
STALLED = 0.005  # seconds without an answer after which a batch is split
SLOW = 0.025  # seconds without an answer after which the pool grows
BATCH_MICROS = 5_000
# Less work than this goes to one child: waking another one takes longer than it saves.
ALONE_MICROS = 500
BATCH_CALLS = 1_000
BATCH_BYTES = 1 << 20
IDLE = 30.0  # seconds until an idle child beyond `size` is retired
LOSSES = 3  # how often a call may lose its child
LOG_LIMIT = 1024 * 1024  # bytes of one stream
LINE_LIMIT = 64 * 1024
KNOWN_PROGRAMS = 1024


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
        self._more = 0
        self._left = LOG_LIMIT
        self._lost = 0

    def add(self, data: bytes) -> None:
        if self._left <= 0:
            self._lost += len(data)
            return
        first, *others = data.split(b"\n")
        self._extend(first)
        for line in others:
            self._ended()
            self._extend(line)

    def end(self) -> None:
        if self._line:
            self._ended()
        if self._lost:
            self._log(self._name, f"({self._lost} bytes more were not kept)")
            self._lost = 0

    def _extend(self, data: bytes) -> None:
        room = LINE_LIMIT - len(self._line)
        self._line += data[:room]
        self._more += len(data[room:])

    def _ended(self) -> None:
        size = len(self._line) + self._more + 1
        if self._left <= 0:
            self._lost += size
        else:
            self._log(self._name, self._line.decode("utf-8", "replace"))
            if self._more:
                self._log(self._name, f"({self._more} bytes of this line left out)")
        self._left -= size
        self._line.clear()
        self._more = 0


class Together:
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

    def one_ended(self, failed: bool) -> None:
        if failed and self.stop is not None:
            self.stop()
        self.left -= 1
        if not self.left and not self.done.done():
            self.done.set_result(None)


class Strand:
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
        together: Together,
        strand: "Strand | None",
    ) -> None:
        self.program = program
        self.strand = strand
        self.encoded_input = encoded_input
        self.nth = nth
        self.together = together
        self.answer: Any = None
        self.is_over = False  # it has its answer, or the caller was cancelled
        self.was_started = False  # a child started it, and died before it sent the answer
        self.child: PoolProcess | None = None
        self.losses = 0
        self.lines: dict[int, StreamLines] | None = None

    def logged(self, stream: int, data: bytes) -> None:
        if self.lines is None:
            self.lines = {}
        if stream not in self.lines:
            log = self.together.log(self.nth)
            self.lines[stream] = StreamLines(STREAMS[stream], log)
        self.lines[stream].add(data)

    def ended(self, answer: Any) -> None:
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
            failed = answer is not None and "error" in answer
        self.together.one_ended(failed)


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
        self.doomed = False  # it gets no more calls, and its death is not a crash of a call
        self.progress = self._begun = 0.0
        self._buffer = bytearray()
        self._unsent = memoryview(b"")
        self._last: dict[str, Any] | None = None
        ours, theirs = socket.socketpair()
        take, self._give = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        out, out_end = os.pipe2(os.O_CLOEXEC)
        err, err_end = os.pipe2(os.O_CLOEXEC)
        self._take, self._socket = take, ours.detach()
        self._streams = {1: out, 2: err}
        for descriptor in (self._socket, out, err):
            os.set_blocking(descriptor, False)
        descriptors = [self._socket, take, self._give, out, err]
        self._owned = weakref.finalize(self, _close, descriptors)
        settings = pool.settings
        self.process: Process = pool.nursery.spawn(
            "python",
            [out_end, err_end, theirs.detach(), os.dup(take)],
            {},
            settings.limits,
            memory=settings.memory,
        )
        self.process.ended.add_done_callback(lambda ended: self._died(ended.result()))
        for descriptor, read in self._readers():
            self._loop.add_reader(descriptor, read)

    def _readers(self) -> Iterable[tuple[int, Callable[[], object]]]:
        yield self._socket, self._readable
        for stream, descriptor in self._streams.items():
            yield descriptor, lambda stream=stream: self._printed(stream)  # type: ignore[misc]  # the default binds it

    # ---- sending ---------------------------------------------------------------------------------

    def start(self, batch: list[PoolCall]) -> None:
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
        request = {
            "code": program.code,
            "env": dict(program.env) or None,
            "limit": self._pool.settings.result_limit,
            "stop": strand is not None and strand.strict,
        }
        head = msgspec.json.encode(request)
        inputs = b",".join(work.encoded_input for work in batch)
        body = b'%b,"inputs":[%b]}' % (head[:-1], inputs)
        if len(batch) > 1:  # a single call needs no token: it starts when it arrives
            os.write(self._give, b"." * len(batch))
        self._unsent = memoryview(len(body).to_bytes(4, "big") + body)
        if not self._sent():
            self._loop.add_writer(self._socket, self._writable)

    def _sent(self) -> bool:
        """Send as much as the socket takes. True if nothing is left to send."""
        try:
            size = os.write(self._socket, self._unsent)
        except BlockingIOError:
            return False
        except OSError:  # the child is dying: the fork server reports it
            return True
        self._unsent = self._unsent[size:]
        return not self._unsent

    def _writable(self) -> None:
        if self._sent():
            self._loop.remove_writer(self._socket)

    def steal(self) -> list[PoolCall]:
        """Take back the calls that the child has not started. It cannot start them any more."""
        with suppress(BlockingIOError):
            self.stolen += len(os.read(self._take, BATCH_CALLS))
        kept = len(self.batch) - self.stolen
        stolen = self.batch[kept:]
        self.batch = self.batch[:kept]
        self.stolen = 0
        for work in stolen:
            work.child = None
        return stolen

    # ---- receiving -------------------------------------------------------------------------------

    def _readable(self) -> None:
        if self._receive():
            return
        self._loop.remove_reader(self._socket)  # the fork server reports the end of the child

    def _receive(self) -> bool:
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
            self._frames()
        except (
            msgspec.MsgspecError,
            KeyError,
            TypeError,
            ValueError,
            IndexError,
            struct.error,
            RecursionError,
        ):
            self._pool.leave(self)  # the code has written to the socket: the child is unusable
            self.process.kill(signal.SIGKILL)
        return True

    def _frames(self) -> None:
        """Handle the complete frames of the buffer."""
        buffer = self._buffer
        offset = 0
        limit = self._pool.settings.result_limit + (1 << 20)
        while len(buffer) - offset >= HEADER.size:
            kind, size = HEADER.unpack_from(buffer, offset)
            if size > limit or kind not in (ANSWERS, LOG, LAST):
                raise ValueError(size)
            start = offset + HEADER.size
            if len(buffer) - start < size:
                break
            offset = start + size
            payload = bytes(memoryview(buffer)[start:offset])
            self._frame(kind, payload)
        del buffer[:offset]

    def _frame(self, kind: int, payload: bytes) -> None:
        self.progress = self._loop.time()
        if kind == LOG:
            number, stream = LOG_HEADER.unpack_from(payload)
            self.batch[number].logged(stream, payload[LOG_HEADER.size :])
        elif kind == ANSWERS:
            answers = msgspec.json.decode(payload)
            self._took_about(len(answers))
            self._answered(answers)
        else:
            self._ended(msgspec.json.decode(payload))

    def _answered(self, answers: list[Any]) -> None:
        self._drain()
        for answer in answers:
            self.batch[self.answered].ended(answer)
            self.answered += 1

    def _took_about(self, more: int) -> None:
        """Estimate the duration of a call from its first answers.

        The child reports the real duration at the end of the batch. Until then, callers that have
        their answers would see a duration of 0.
        """
        program = self.batch[0].program
        if not self._pool.mean(program):
            micros = (self.progress - self._begun) * 1e6
            answers = max(1, self.answered + more)  # code may have sent an empty list itself
            self._pool.took(program, max(1.0, micros / answers))

    def _ended(self, last: dict[str, Any]) -> None:
        """Handle the last frame of a batch."""
        done = self.answered + len(last["answers"])
        if done:
            self._pool.took(self.batch[0].program, last["micros"] / done)
        self.calls += done
        self.batch[0].together.stopped |= last["stopped"]
        if done < len(self.batch):
            self._pool.requeue(self.steal())
        if last["spoiled"] is not None:
            self.doom()
            self._last = last  # answered when the child and its processes are gone
            return
        self._answered(last["answers"])
        self.batch = []
        self._pool.idle(self)

    def _printed(self, stream: int) -> None:
        """Log what processes of the code, or the code itself, wrote to descriptor 1 or 2."""
        with suppress(BlockingIOError):
            data = os.read(self._streams[stream], 64 * 1024)
            if not data:
                self._loop.remove_reader(self._streams[stream])
            elif self.answered < len(self.batch):
                self.batch[self.answered].logged(stream, data)

    def _drain(self) -> None:
        for stream, descriptor in self._streams.items():
            while waiting(descriptor):
                self._printed(stream)

    # ---- ending ----------------------------------------------------------------------------------

    def doom(self) -> None:
        self.doomed = True
        self._pool.leave(self)

    def retire(self) -> None:
        """Close the child's socket: an idle child then ends by itself."""
        self.doom()
        with suppress(OSError), socket.socket(fileno=os.dup(self._socket)) as end:
            end.shutdown(socket.SHUT_WR)

    def _died(self, status: int) -> None:
        while self._receive_rest():
            pass
        for descriptor, _ in self._readers():
            self._loop.remove_reader(descriptor)
        self._loop.remove_writer(self._socket)
        self._drain()
        if self._last is not None:
            self._answered(self._last["answers"])
        unstarted = self.steal()
        owed = self.batch[self.answered :]
        self.batch, self.answered = [], 0
        self._pool.leave(self)
        for work in owed:
            work.was_started = True
        if owed and not self.doomed:
            owed.pop().ended(PythonProcessCrashed(status))
        self._pool.requeue([*owed, *unstarted], status)
        self._owned()

    def _receive_rest(self) -> bool:
        """Read more data of a dead child. True if there may be more."""
        size = len(self._buffer)
        if not self._receive():
            return False
        return len(self._buffer) > size or waiting(self._socket) > 0


def waiting(descriptor: int) -> int:
    """The number of bytes that can be read."""
    count = fcntl.ioctl(descriptor, termios.FIONREAD, b"\0\0\0\0")
    return int.from_bytes(count, sys.byteorder)


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        with suppress(OSError):
            os.close(descriptor)


def _goes_along(batch: list[PoolCall], work: PoolCall, room: bool) -> bool:
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
        self.nursery = fork_server
        self.settings = settings
        self._children: set[PoolProcess] = set()  # those that take calls
        self._idle: list[PoolProcess] = []
        self._queue: OrderedDict[Program, deque[PoolCall]] = OrderedDict()
        self._queued = 0
        self._outstanding = 0  # number of waiting callers
        self.closed = False
        self._pumping = False
        self._micros: OrderedDict[Program, float] = OrderedDict()  # mean duration of a call
        self._stall: asyncio.TimerHandle | None = None
        self._sweep: asyncio.TimerHandle | None = None

    def close(self) -> None:
        """From now on, a call that loses its child fails instead of being repeated."""
        self.closed = True

    def start(self) -> None:
        """Start `size` children before the first call."""
        while len(self._children) < self.settings.size:
            self._grow()

    async def call(
        self,
        program: Program,
        calls: Sequence[tuple[bytes, int]],
        log: Callable[[int], Log],
        at_once: int,
        stop: bool,
    ) -> list[Any]:
        """Run the calls. Returns the answers in order, a `PythonProcessCrashed` for a crash.

        A call is its input and the number by which its log is asked for. At most `at_once` calls
        run at the same time. With `stop`, the calls that have not begun when one fails get None;
        with `at_once=1` these are all calls after it. When this is cancelled, it returns after all
        calls have ended.
        """
        if not calls:
            return []
        together = Together(len(calls), log, self.loop)
        size = -(-len(calls) // at_once)  # rounded up
        strands: list[Strand | None] = [None] * at_once
        if size > 1:
            strict = stop and at_once == 1
            strands = [Strand(strict) for _ in range(at_once)]
        works = [
            PoolCall(program, call_input, nth, together, strands[position // size])
            for position, (call_input, nth) in enumerate(calls)
        ]
        if stop:
            together.stop = lambda: self._stop(together, works)
        self._queue.setdefault(program, deque()).extend(works)
        self._queued += len(works)
        self._outstanding += 1
        if self._outstanding == 1:
            self._pump()
        elif not self._pumping:  # calls that are made in the same turn of the loop share a message
            self._pumping = True
            self.loop.call_soon(self._pump)
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

    def idle(self, child: PoolProcess) -> None:
        """Take back a child that has finished its batch."""
        if child.calls >= self.settings.calls:
            child.retire()
        elif child in self._children:
            self._idle.append(child)
        self._pump()

    def leave(self, child: PoolProcess) -> None:
        self._children.discard(child)
        if child in self._idle:
            self._idle.remove(child)

    def mean(self, program: Program) -> float:
        """The mean duration of a call in microseconds; 0 if it is not known."""
        return self._micros.get(program, 0.0)

    def took(self, program: Program, micros: float) -> None:
        """Update the mean duration: a moving average."""
        mean = self._micros.pop(program, None)
        if mean is None:
            mean = micros
        else:
            mean += (micros - mean) / 4
        self._micros[program] = mean
        if len(self._micros) > KNOWN_PROGRAMS:
            self._micros.popitem(last=False)

    # ---- the queue -------------------------------------------------------------------------------

    def requeue(self, works: list[PoolCall], status: int = 0) -> None:
        """Put calls that a child has not run at the front of the queue."""
        for work in reversed(works):
            if work.is_over:
                continue
            if work.together.stopped and not work.was_started:
                work.ended(None)
                continue
            work.child = None
            work.losses += status != 0
            if work.losses > LOSSES or self.closed:
                work.ended(PythonProcessCrashed(status))
                continue
            self._queue.setdefault(work.program, deque()).appendleft(work)
            self._queue.move_to_end(work.program, last=False)
            self._queued += 1
        self._pump()

    def _pump(self) -> None:
        """Give queued calls to idle children."""
        self._pumping = False
        while self._queued:
            if not self._idle:
                if len(self._children) >= min(self.settings.size, self.settings.most):
                    break
                self._grow()
            child = self._idle.pop()
            child.start(self._batch())
        if self._queued and self._stall is None:
            self._stall = self.loop.call_later(STALLED, self._stalled)

    def _batch(self) -> list[PoolCall]:
        """Take the next batch from the queue."""
        program, waiting = next(iter(self._queue.items()))
        count = self._batch_size(program, len(waiting))
        batch = [waiting.popleft()]
        size = len(batch[0].encoded_input)
        while waiting:
            work = waiting[0]
            size += len(work.encoded_input)
            room = len(batch) < count and size <= BATCH_BYTES
            if not _goes_along(batch, work, room):
                break
            batch.append(waiting.popleft())
        self._queued -= len(batch)
        if waiting:
            self._queue.move_to_end(program)
        else:
            del self._queue[program]
        return batch

    def _batch_size(self, program: Program, waiting: int) -> int:
        """How many of the waiting calls one child may get."""
        micros = self._micros.get(program)
        if micros is None:
            return 1
        micros = max(micros, 1)
        fitting = max(1, min(BATCH_CALLS, int(BATCH_MICROS / micros)))
        undivided = int(ALONE_MICROS / micros)
        share = -(-waiting // self.settings.size)  # rounded up
        return min(fitting, max(undivided, share))

    def _stop(self, together: Together, works: list[PoolCall]) -> None:
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
                work.ended(None)
        self.loop.call_soon(self._recall, works)

    def _recall(self, works: list[PoolCall]) -> None:
        children = {work.child for work in works if not work.is_over}
        for child in children:
            if child is not None:
                self.requeue(child.steal())

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
        stolen = child.steal()
        self.requeue([other for other in stolen if other is not work])
        if work not in stolen:
            child.doom()
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

    def _grow(self) -> None:
        child = PoolProcess(self)
        self._children.add(child)
        self._idle.append(child)

    def _stalled(self) -> None:
        """Calls wait while children are busy with longer ones: split batches, and add children."""
        self._stall = None
        if not self._queued:
            return
        stalled_since = self.loop.time() - STALLED
        for child in list(self._children):
            if child.progress > stalled_since:
                continue
            unanswered = len(child.batch) - child.answered
            if unanswered > 1 and child.batch[-1].strand is None:
                self.requeue(child.steal())
        slow_since = self.loop.time() - SLOW
        if all(child.progress <= slow_since for child in self._children if child.batch):
            room = self.settings.most - len(self._children)
            for _ in range(min(self._queued, len(self._children), room)):
                self._grow()
        if self._sweep is None and len(self._children) > self.settings.size:
            self._sweep = self.loop.call_later(IDLE, self._shrink)
        self._pump()

    def _shrink(self) -> None:
        """Retire idle children beyond `size`."""
        self._sweep = None
        idle_since = self.loop.time() - IDLE
        idle = [child for child in self._idle if child.progress <= idle_since]
        for child in idle:
            if len(self._children) > self.settings.size:
                child.retire()
        if len(self._children) > self.settings.size:
            self._sweep = self.loop.call_later(IDLE, self._shrink)
