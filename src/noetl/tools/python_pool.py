"""A pool of Python children that are forked once and take many calls, and the queue before them.

A child works on one batch at a time: calls of the same code that waited together, as many as fill a few milliseconds by what
such calls took before, so cheap calls share a message and others never wait behind them for long. For every call of a batch
there is a byte in the child's token pipe; the child takes it before it starts that call, and the pool takes back what is left
when the batch stalls, a call of it is cancelled or the child dies. So it is always known which calls were started.

When a child dies, the call it was working on has crashed. Calls before it in the batch whose answers died with the child (at
most a millisecond's worth) and calls it never started go to another child.
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
STALLED = 0.005  # seconds without an answer after which a batch is taken apart
SLOW = 0.025  # seconds without an answer after which a child counts as busy for long, and the pool grows
BATCH_MICROS = 5_000
ALONE_MICROS = (
    500  # work that is not divided among children: to wake another takes longer than it saves
)
BATCH_CALLS = 1_000
BATCH_BYTES = 1 << 20
IDLE = 30.0  # seconds until a child beyond `size` is let go
LOSSES = 3  # times that a call may lose its child before it started
LOG_LIMIT = 1024 * 1024  # bytes of one stream
LINE_LIMIT = 64 * 1024
KNOWN_PROGRAMS = 1024


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """`size` children are kept ready, `most` exist at most; one is replaced after `calls` calls, or when it holds `memory`
    bytes."""

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
    """The process ended without an answer; the exit code, or minus the signal."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class StreamLines:
    """Lines of one stream of one call. One without an end does not fill the memory, and a flood takes no more time than it takes
    to count it."""

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
    """Calls that somebody makes at once and waits for; when one fails, `stop` is called, if there is one. From then on none
    begins."""

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
    """Calls of which one runs at a time: one child gets them all. A strict one begins none after one that failed."""

    __slots__ = ("strict",)

    def __init__(self, strict: bool) -> None:
        self.strict = strict


class PoolCall:
    """One call: waiting, or in the batch of a child."""

    __slots__ = (
        "answer",
        "begun",
        "child",
        "given",
        "lines",
        "lost",
        "nth",
        "over",
        "program",
        "strand",
        "together",
    )

    def __init__(
        self, program: Program, given: bytes, nth: int, together: Together, strand: "Strand | None"
    ) -> None:
        self.program = program
        self.strand = strand
        self.given = given
        self.nth = nth
        self.together = together
        self.answer: Any = None
        self.over = False  # it has its answer, or nobody wants it any more
        self.begun = False  # and its answer was lost
        self.child: PoolProcess | None = None
        self.lost = 0
        self.lines: dict[int, StreamLines] | None = None

    def logged(self, stream: int, data: bytes) -> None:
        if self.lines is None:
            self.lines = {}
        if stream not in self.lines:
            self.lines[stream] = StreamLines(STREAMS[stream], self.together.log(self.nth))
        self.lines[stream].add(data)

    def ended(self, answer: Any) -> None:
        if self.lines is not None:
            for lines in self.lines.values():
                lines.end()
        if not self.over:
            self.answer, self.over = answer, True
            self.together.one_ended(
                isinstance(answer, PythonProcessCrashed)
                or (answer is not None and "error" in answer)
            )


class PoolProcess:
    """One process and what connects it with the pool. `batch[answered:]` are the calls it still owes."""

    def __init__(self, pool: "PythonPool") -> None:
        self._pool = pool
        self._loop = pool.loop
        self.batch: list[PoolCall] = []
        self.answered = 0
        self.stolen = 0
        self.calls = 0
        self.doomed = False  # it gets no more calls, and its death is nobody's fault
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
        self._owned = weakref.finalize(self, _close, [self._socket, take, self._give, out, err])
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

    # ---- giving --------------------------------------------------------------------------------------------------------------

    def start(self, batch: list[PoolCall]) -> None:
        self.batch, self.answered, self.stolen, self._last = batch, 0, 0, None
        self.progress = self._begun = self._loop.time()
        for work in batch:
            work.child = self
        program, limit = batch[0].program, self._pool.settings.result_limit
        stop = batch[0].strand is not None and batch[0].strand.strict
        about = {
            "code": program.code,
            "env": dict(program.env) or None,
            "limit": limit,
            "stop": stop,
        }
        head = msgspec.json.encode(about)
        body = b'%b,"inputs":[%b]}' % (head[:-1], b",".join(work.given for work in batch))
        if len(batch) > 1:  # a call alone is started by being sent
            os.write(self._give, b"." * len(batch))
        self._unsent = memoryview(len(body).to_bytes(4, "big") + body)
        if not self._sent():
            self._loop.add_writer(self._socket, self._writable)

    def _sent(self) -> bool:
        try:
            self._unsent = self._unsent[os.write(self._socket, self._unsent) :]
        except BlockingIOError:
            return False
        except OSError:  # it is dying: that is told elsewhere
            return True
        return not self._unsent

    def _writable(self) -> None:
        if self._sent():
            self._loop.remove_writer(self._socket)

    def steal(self) -> list[PoolCall]:
        """Calls that the child has not started, and now never will."""
        with suppress(BlockingIOError):
            self.stolen += len(os.read(self._take, BATCH_CALLS))
        stop = len(self.batch) - self.stolen
        stolen, self.batch, self.stolen = self.batch[stop:], self.batch[:stop], 0
        for work in stolen:
            work.child = None
        return stolen

    # ---- taking --------------------------------------------------------------------------------------------------------------

    def _readable(self) -> None:
        if self._receive():
            return
        self._loop.remove_reader(self._socket)  # its end is told by the nursery

    def _receive(self) -> bool:
        """Whatever is there; False at the end of the stream."""
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
            self._pool.leave(self)  # what it sends is not what a child of ours sends
            self.process.kill(signal.SIGKILL)
        return True

    def _frames(self) -> None:
        buffer, at = self._buffer, 0
        limit = self._pool.settings.result_limit + (1 << 20)
        while len(buffer) - at >= HEADER.size:
            kind, size = HEADER.unpack_from(buffer, at)
            if size > limit or kind not in (ANSWERS, LOG, LAST):
                raise ValueError(size)
            if len(buffer) - at - HEADER.size < size:
                break
            payload = bytes(memoryview(buffer)[at + HEADER.size : at + HEADER.size + size])
            at += HEADER.size + size
            self._frame(kind, payload)
        del buffer[:at]

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
        """How long a call takes is said at the end of a batch; whoever has an answer before that must not take it for nothing."""
        if not self._pool.mean(self.batch[0].program):
            micros = (
                (self.progress - self._begun) * 1e6 / max(1, self.answered + more)
            )  # code may send anything
            self._pool.took(self.batch[0].program, max(1.0, micros))

    def _ended(self, last: dict[str, Any]) -> None:
        done = self.answered + len(last["answers"])
        if done:
            self._pool.took(self.batch[0].program, last["micros"] / done)
        self.calls += done
        self.batch[0].together.stopped |= last["stopped"]
        if done < len(self.batch):
            self._pool.requeue(self.steal())
        if last["spoiled"] is not None:
            self.doom()
            self._last = last  # told when nothing of the call is left
            return
        self._answered(last["answers"])
        self.batch = []
        self._pool.idle(self)

    def _printed(self, stream: int) -> None:
        """What went to the descriptors themselves: from processes that the code started."""
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

    # ---- the end -------------------------------------------------------------------------------------------------------------

    def doom(self) -> None:
        self.doomed = True
        self._pool.leave(self)

    def retire(self) -> None:
        """An idle child ends by itself when its socket closes."""
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
            work.begun = True
        if owed and not self.doomed:
            owed.pop().ended(PythonProcessCrashed(status))
        self._pool.requeue([*owed, *unstarted], status)
        self._owned()

    def _receive_rest(self) -> bool:
        size = len(self._buffer)
        return self._receive() and (len(self._buffer) > size or waiting(self._socket) > 0)


def waiting(descriptor: int) -> int:
    """Bytes to be read."""
    return int.from_bytes(fcntl.ioctl(descriptor, termios.FIONREAD, b"\0\0\0\0"), sys.byteorder)


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        with suppress(OSError):
            os.close(descriptor)


def _goes_along(batch: list[PoolCall], work: PoolCall, room: bool) -> bool:
    """A strand is not divided, and never shares a batch with calls that another child may take over; a strict one is alone."""
    last = batch[-1].strand
    if work.strand is not None and work.strand is last:
        return True
    if (last is not None and last.strict) or (work.strand is not None and work.strand.strict):
        return False
    return room and (work.strand is None) == (last is None)


class PythonPool:
    """Bound to one event loop."""

    def __init__(self, nursery: ForkServer, settings: PoolSettings) -> None:
        self.loop = asyncio.get_running_loop()
        self.nursery = nursery
        self.settings = settings
        self._children: set[PoolProcess] = set()  # those that take calls
        self._idle: list[PoolProcess] = []
        self._queue: OrderedDict[Program, deque[PoolCall]] = OrderedDict()
        self._queued = 0
        self._outstanding = 0  # callers that wait
        self.closed = False
        self._pumping = False
        self._micros: OrderedDict[Program, float] = OrderedDict()  # a call's mean time
        self._stall: asyncio.TimerHandle | None = None
        self._sweep: asyncio.TimerHandle | None = None

    def close(self) -> None:
        """Calls that lose their children from now on end with them."""
        self.closed = True

    def start(self) -> None:
        """Children ready before the first call."""
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
        """What the children answer, in the order of the calls; a Crashed where one died. A call's number is what its log is
        asked for by. So many run at once at most. `stop`: when one fails, those not begun yet end with None; if one runs at
        a time, that is every one after it. When it is cancelled, all of them are over when this returns."""
        if not calls:
            return []
        together = Together(len(calls), log, self.loop)
        size = -(-len(calls) // at_once)
        strict = stop and at_once == 1
        strands = [Strand(strict) if size > 1 else None for _ in range(at_once)]
        works = [
            PoolCall(program, given, nth, together, strands[at // size])
            for at, (given, nth) in enumerate(calls)
        ]
        if stop:
            together.stop = lambda: self._stop(together, works)
        self._queue.setdefault(program, deque()).extend(works)
        self._queued += len(works)
        self._outstanding += 1
        if self._outstanding == 1:
            self._pump()
        elif not self._pumping:  # whoever calls in the same turn of the loop shares the message
            self._pumping = True
            self.loop.call_soon(self._pump)
        try:
            await together.done
        except asyncio.CancelledError:
            unwanted = [work for work in works if not work.over]
            for work in unwanted:
                work.over = True
            for work in unwanted:
                await self._withdraw(work)
            raise
        finally:
            self._outstanding -= 1
        return [work.answer for work in works]

    def idle(self, child: PoolProcess) -> None:
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
        """Microseconds that a call takes its child."""
        return self._micros.get(program, 0.0)

    def took(self, program: Program, micros: float) -> None:
        known = self._micros.pop(program, None)
        self._micros[program] = micros if known is None else known + (micros - known) / 4
        if len(self._micros) > KNOWN_PROGRAMS:
            self._micros.popitem(last=False)

    # ---- the queue -----------------------------------------------------------------------------------------------------------

    def requeue(self, works: list[PoolCall], status: int = 0) -> None:
        """Calls that came back from a child go first."""
        for work in reversed(works):
            if work.over:
                continue
            if work.together.stopped and not work.begun:
                work.ended(None)
                continue
            work.child = None
            work.lost += status != 0
            if work.lost > LOSSES or self.closed:
                work.ended(PythonProcessCrashed(status))
                continue
            self._queue.setdefault(work.program, deque()).appendleft(work)
            self._queue.move_to_end(work.program, last=False)
            self._queued += 1
        self._pump()

    def _pump(self) -> None:
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
        program, waiting = next(iter(self._queue.items()))
        micros = self._micros.get(program)
        count = (
            1 if micros is None else max(1, min(BATCH_CALLS, int(BATCH_MICROS / max(micros, 1))))
        )
        alone = 0 if micros is None else int(ALONE_MICROS / max(micros, 1))
        count = min(count, max(alone, -(-len(waiting) // self.settings.size)))
        batch = [waiting.popleft()]
        size = len(batch[0].given)
        while waiting:
            size += len(waiting[0].given)
            if not _goes_along(batch, waiting[0], len(batch) < count and size <= BATCH_BYTES):
                break
            batch.append(waiting.popleft())
        self._queued -= len(batch)
        if waiting:
            self._queue.move_to_end(program)
        else:
            del self._queue[program]
        return batch

    def _stop(self, together: Together, works: list[PoolCall]) -> None:
        """What waits here is left at once; what waits in children in the next turn: one is in the middle of its answers."""
        together.stop, together.stopped = None, True
        waiting = self._queue.pop(works[0].program, deque())
        self._queued -= len(waiting)
        kept = deque(work for work in waiting if work.together is not together or work.begun)
        if kept:
            self._queue[works[0].program] = kept
            self._queued += len(kept)
        for work in waiting:
            if work.together is together and not work.begun:
                work.ended(None)
        self.loop.call_soon(self._recall, works)

    def _recall(self, works: list[PoolCall]) -> None:
        for child in {work.child for work in works if not work.over and work.child is not None}:
            self.requeue(child.steal())

    async def _withdraw(self, work: PoolCall) -> None:
        child = work.child
        if child is None:
            waiting = self._queue.get(work.program)
            if waiting is not None and work in waiting:
                waiting.remove(work)
                self._queued -= 1
                if not waiting:
                    del self._queue[work.program]
            return
        if child.process.ended.done() or work not in child.batch[child.answered :]:
            return
        stolen = child.steal()
        self.requeue([other for other in stolen if other is not work])
        if work not in stolen:
            child.doom()
            await child.process.stop()

    # ---- growing and shrinking -----------------------------------------------------------------------------------------------

    def _grow(self) -> None:
        child = PoolProcess(self)
        self._children.add(child)
        self._idle.append(child)

    def _stalled(self) -> None:
        """Calls wait and children are busy with longer ones: take batches apart, and have more children."""
        self._stall = None
        if not self._queued:
            return
        late = self.loop.time() - STALLED
        for child in list(self._children):
            if (
                child.progress <= late
                and len(child.batch) - child.answered > 1
                and child.batch[-1].strand is None
            ):
                self.requeue(child.steal())
        if all(
            child.progress <= self.loop.time() - SLOW for child in self._children if child.batch
        ):
            for _ in range(
                min(self._queued, len(self._children), self.settings.most - len(self._children))
            ):
                self._grow()
        if self._sweep is None and len(self._children) > self.settings.size:
            self._sweep = self.loop.call_later(IDLE, self._shrink)
        self._pump()

    def _shrink(self) -> None:
        self._sweep = None
        late = self.loop.time() - IDLE
        for child in [child for child in self._idle if child.progress <= late]:
            if len(self._children) > self.settings.size:
                child.retire()
        if len(self._children) > self.settings.size:
            self._sweep = self.loop.call_later(IDLE, self._shrink)
