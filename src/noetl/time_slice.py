"""Cooperative yielding: long computations give waiting requests a turn of the event loop."""

import asyncio
from collections import deque
from time import perf_counter

# Seconds that a server computes before it yields, because clients may wait for an answer.
SERVER_TIME_SLICE_S = 0.0005
MAX_ADMITTED_PER_TURN = 4  # callers that the gate admits in one turn of the loop


class TimeSlice:
    """A budget of `seconds` to compute before yielding. None means no limit.

    A process that answers no clients uses None: yielding between its own tasks only delays them.
    """

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self._since = perf_counter()  # the loop's own clock has only milliseconds

    @property
    def is_used_up(self) -> bool:
        return self._seconds is not None and perf_counter() - self._since > self._seconds

    async def pause(self) -> None:
        await asyncio.sleep(0)
        self._since = perf_counter()

    async def pause_if_used_up(self) -> None:
        if self.is_used_up:
            await self.pause()


class AdmissionGate:
    """Admits a few callers per turn of the event loop, in order of arrival.

    When hundreds of requests arrive at once, other clients still get answers in between.
    """

    def __init__(self) -> None:
        self._admitted_count = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def wait_for_turn(self) -> None:
        if not self._admitted_count:
            asyncio.get_running_loop().call_soon(self._admit_waiting)
        if self._admitted_count < MAX_ADMITTED_PER_TURN and not self._waiting:
            self._admitted_count += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        await turn

    def _admit_waiting(self) -> None:
        self._admitted_count = 0
        while self._waiting and self._admitted_count < MAX_ADMITTED_PER_TURN:
            turn = self._waiting.popleft()
            if not turn.done():  # the caller may have been cancelled
                turn.set_result(None)
                self._admitted_count += 1
        if self._admitted_count:
            asyncio.get_running_loop().call_soon(self._admit_waiting)
