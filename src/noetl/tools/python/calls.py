"""Calls that wait for a Python child or are in one, and the groups in which callers make them."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from msgspec import Struct

from noetl.results.formats.shared_records import SharedRecords
from noetl.tools.port import Log, PlaybookKey
from noetl.tools.processes.messages import ProcessLimits
from noetl.tools.python.messages import PythonAnswer
from noetl.tools.python.printed_lines import StreamLines

if TYPE_CHECKING:
    from noetl.tools.python.process import PoolProcess

STREAM_NAMES = {1: "stdout", 2: "stderr"}


class Program(Struct, frozen=True):
    """Calls of the same program may share a message to a child."""

    playbook: PlaybookKey
    code: str
    env: tuple[tuple[str, str], ...] = ()
    limits: ProcessLimits | None = None  # None: those of the pool


AttachedInput = tuple[list[str], SharedRecords]  # records, and their path in the input


class CallInput(Struct, frozen=True):
    """An input as JSON, and the records in shared memory that belong into it."""

    encoded: bytes
    attached: tuple[AttachedInput, ...] = ()


class PythonProcessCrashed(Exception):
    """The process ended without an answer.

    `status` is the exit code, or minus the signal number.
    """

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


# What a child answered, or that it crashed.
Answer = PythonAnswer | PythonProcessCrashed
# Called with the number of the call, its answer, the seconds that it ran, and how many children
# were at work on its group.
AnswerListener = Callable[[int, Answer, float, int], None]


class PoolCall:
    """One call, which waits in its group or is in the message of a child."""

    __slots__ = (
        "attached",
        "encoded_input",
        "group",
        "is_over",
        "lines",
        "losses",
        "nth",
        "was_started",
    )

    def __init__(self, group: "CallGroup", call_input: CallInput, nth: int) -> None:
        self.group = group
        self.encoded_input = call_input.encoded
        self.attached = call_input.attached
        self.nth = nth
        self.is_over = False  # it has its answer, or the caller was cancelled
        self.was_started = False  # a child started it, and died before it sent the answer
        self.losses = 0
        self.lines: dict[int, StreamLines] | None = None

    def log_data(self, stream: int, data: bytes) -> None:
        if self.lines is None:
            self.lines = {}
        if stream not in self.lines:
            log = self.group.log(self.nth)
            self.lines[stream] = StreamLines(STREAM_NAMES[stream], log)
        self.lines[stream].add(data)

    def end_with(self, answer: Answer | None, seconds: float = 0.0) -> None:
        """End the call with an answer; None if it is not made."""
        if self.lines is not None:
            for lines in self.lines.values():
                lines.end()
        if not self.is_over:
            self.is_over = True
            self.group.count_ended(self.nth, answer, seconds)


class CallGroup:
    """Calls of one program that one caller makes together and waits for.

    At most `at_once` children work on them at the same time. When a call fails, `stop` is called if
    there is one. After that no call of the group begins.
    """

    __slots__ = (
        "at_once",
        "children",
        "columns",
        "done",
        "is_divided",
        "is_queued",
        "is_single",
        "left",
        "listener",
        "log",
        "program",
        "stop",
        "stopped",
        "waiting",
    )

    def __init__(
        self,
        program: Program,
        calls: Iterable[tuple[CallInput, int]],
        log: Callable[[int], Log],
        listener: AnswerListener,
        at_once: int,
        done: asyncio.Future[None],
    ) -> None:
        self.program = program
        self.waiting = deque(PoolCall(self, call_input, nth) for call_input, nth in calls)
        self.left = len(self.waiting)
        self.is_single = self.left == 1
        self.log = log
        self.listener = listener
        self.at_once = at_once
        self.done = done
        self.children: set[PoolProcess] = set()  # those that work on calls of the group
        self.columns = False  # answers may be in shared memory
        self.is_queued = False
        self.is_divided = False  # a child took too long, so several children share the rest
        self.stop: Callable[[], None] | None = None
        self.stopped = False

    @property
    def can_use_child(self) -> bool:
        """Whether a further child may work on the group."""
        return bool(self.waiting) and len(self.children) < self.at_once

    def count_usable_children(self) -> int:
        """The number of further children that may work on the group."""
        return min(len(self.waiting), self.at_once - len(self.children))

    def count_ended(self, nth: int, answer: Answer | None, seconds: float) -> None:
        if answer is not None:
            if self.stop is not None and _is_failure(answer):
                self.stop()
            self.listener(nth, answer, seconds, max(1, len(self.children)))
        self.left -= 1
        if not self.left and not self.done.done():
            self.done.set_result(None)


def _is_failure(answer: Answer) -> bool:
    return isinstance(answer, PythonProcessCrashed) or answer.error is not None
