"""How tests wait: in virtual time, or for a fact that another process brings about. None lets time pass and hopes: `stay_awake`
is in force in every test and fails the one that tries.
"""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

LONGEST = 300.0  # virtual seconds
HANG_LIMIT_S = 300.0  # real ones: catches a hang, however busy the machine is
LOOK = 0.005
TESTS = Path(__file__).parent


# ---- virtual time ------------------------------------------------------------------------------------------------------


class VirtualLoop(asyncio.SelectorEventLoop):
    """Time jumps to the next timer whenever nothing is ready."""

    virtual = True
    _virtual = 0.0

    def time(self) -> float:
        return self._virtual

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:  # type: ignore[attr-defined]  # asyncio has no public way to know
            self._virtual = max(self._virtual, self._scheduled[0].when())  # type: ignore[attr-defined]
        super()._run_once()  # type: ignore[misc]


def run_virtually(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run on a loop in which time jumps: a test may wait for a while, but not for ever."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(asyncio.wait_for(coroutine, LONGEST))


# ---- facts of other processes ------------------------------------------------------------------------------------------

_sleep, _asleep = time.sleep, asyncio.sleep


def until(fact: Callable[[], object], within: float = HANG_LIMIT_S, every: float = LOOK) -> None:
    """Looks again until it is so: nothing here can tell us when another process has done it. A look that costs the other
    process something is taken less often."""
    end = time.monotonic() + within
    while not fact():
        assert time.monotonic() < end, f"not so after {within} s"
        _sleep(every)


async def wait_until(fact: Callable[[], Awaitable[object]], wanted: object = True) -> None:
    """The same for a fact that must be asked for; the caller sets the limit."""
    while await fact() != wanted:
        await _asleep(LOOK)


async def look_again() -> None:
    """Between two looks at what another process does, where the look is more than one question."""
    await _asleep(LOOK)


# ---- nobody else sleeps ------------------------------------------------------------------------------------------------


def stay_awake(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on a test that sleeps fails. The product may sleep, and tests may where time is virtual."""
    monkeypatch.setattr(time, "sleep", _sleep_unless_in_test)
    monkeypatch.setattr(asyncio, "sleep", _asleep_if_virtual)


def _sleep_unless_in_test(seconds: float) -> None:
    if seconds > 0 and _in_a_test(sys._getframe(1).f_code.co_filename):
        pytest.fail(f"a test sleeps for {seconds} s", pytrace=True)
    _sleep(seconds)


def _asleep_if_virtual(seconds: float, result: Any = None) -> Coroutine[Any, Any, Any]:
    ours = _in_a_test(sys._getframe(1).f_code.co_filename)

    async def asleep() -> Any:
        if ours and seconds > 0 and not getattr(asyncio.get_running_loop(), "virtual", False):
            pytest.fail(f"a test sleeps for {seconds} s", pytrace=True)
        return await _asleep(seconds, result)

    return asleep()


def _in_a_test(file: str) -> bool:
    return Path(file).is_relative_to(TESTS)
