"""The loop of a duty: when it runs."""

import asyncio
from contextlib import suppress

from noetl.server.duties.loop import Counts, DutyLoop
from tests.waiting import run_virtually


class TimedDuty:
    name = "timed"

    def __init__(self) -> None:
        self.runs: list[float] = []

    async def run_once(self) -> Counts:
        self.runs.append(round(asyncio.get_running_loop().time(), 3))
        return Counts()


def run_with_wakes(wakes: list[float]) -> list[float]:
    """The times at which a duty with an interval of a second runs, in two seconds; `wakes` are the
    times at which it is woken with a pause of 0.1 s."""
    duty = TimedDuty()

    async def scene() -> None:
        loop = DutyLoop(duty, 1.0)
        running = asyncio.ensure_future(loop.run())
        clock = asyncio.get_running_loop()
        began = clock.time()
        for wake in wakes:
            await asyncio.sleep(began + wake - clock.time())
            loop.wake_soon(0.1)
        await asyncio.sleep(began + 2.05 - clock.time())
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running

    run_virtually(scene())
    first = duty.runs[0]
    return [round(run - first, 3) for run in duty.runs]


def test_a_duty_runs_at_its_interval() -> None:
    assert run_with_wakes([]) == [0.0, 1.0, 2.0]


def test_a_duty_that_has_not_run_for_a_while_is_woken_at_once() -> None:
    assert run_with_wakes([0.5]) == [0.0, 0.5, 1.5]


def test_many_wake_ups_lead_to_runs_with_pauses_between() -> None:
    assert run_with_wakes([0.5, 0.51, 0.52, 0.58]) == [0.0, 0.5, 0.6, 1.6]
