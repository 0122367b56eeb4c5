"""Turns of the event loop: who computes for long lets those who wait for an answer go between."""

import asyncio
from collections import deque
from time import perf_counter

AT_A_STRETCH = (
    0.0005  # seconds of computing until others get a turn, where somebody may wait for an answer
)
IN_A_TURN = 4  # of many that come at once


class TimeSlice:
    """`seconds` of computing; None: as long as it takes. Where others only work, to let them between makes everything later."""

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self._since = perf_counter()  # the loop's own clock counts milliseconds

    @property
    def over(self) -> bool:
        return self._seconds is not None and perf_counter() - self._since > self._seconds

    async def pause(self) -> None:
        await asyncio.sleep(0)
        self._since = perf_counter()

    async def pause_if_over(self) -> None:
        if self.over:
            await self.pause()


class AdmissionGate:
    """Lets few in at each turn of the loop, in their order: when hundreds come at once, others are still answered between."""

    def __init__(self) -> None:
        self._let_in = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def enter(self) -> None:
        if not self._let_in:
            asyncio.get_running_loop().call_soon(self._turn)
        if self._let_in < IN_A_TURN and not self._waiting:
            self._let_in += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        await turn

    def _turn(self) -> None:
        self._let_in = 0
        while self._waiting and self._let_in < IN_A_TURN:
            turn = self._waiting.popleft()
            if not turn.done():  # who waited may have gone
                turn.set_result(None)
                self._let_in += 1
        if self._let_in:
            asyncio.get_running_loop().call_soon(self._turn)
