"""Turns of the event loop: who computes for long lets those who wait for an answer go between."""

import asyncio

AT_A_STRETCH = 0.002  # seconds of computing until others get a turn


class Stretch:
    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._since = self._loop.time()

    @property
    def over(self) -> bool:
        return self._loop.time() - self._since > AT_A_STRETCH

    async def pause(self) -> None:
        await asyncio.sleep(0)
        self._since = self._loop.time()
