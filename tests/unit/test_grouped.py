"""Calls made together: each gets its own answer, also if others fail."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from noetl.model.errors import StoreUnavailable
from noetl.postgres.pool import CallBatcher
from tests.waiting import run_virtually


class DoublingDesk:
    """Doubles numbers; refuses those below zero, and is away while told so."""

    def __init__(self) -> None:
        self.asked: list[list[int]] = []
        self.away = False

    async def double(self, given: list[int]) -> list[int]:
        self.asked.append(given)
        await asyncio.sleep(1)
        if self.away:
            raise StoreUnavailable("away")
        if any(each < 0 for each in given):
            raise ValueError(given)
        return [2 * each for each in given]


def play_desk(
    test: Callable[[DoublingDesk, "CallBatcher[int, int]"], Awaitable[None]], limit: int = 100
) -> DoublingDesk:
    async def play() -> DoublingDesk:
        desk = DoublingDesk()
        await test(desk, CallBatcher(desk.double, limit))
        return desk

    desk: DoublingDesk = run_virtually(play())
    return desk


def test_what_comes_at_once_is_asked_at_once_and_what_comes_meanwhile_next() -> None:
    async def test(desk: DoublingDesk, double: "CallBatcher[int, int]") -> None:
        first = asyncio.gather(*map(double, (1, 2, 3)))
        await asyncio.sleep(0.5)
        second = asyncio.gather(*map(double, (4, 5)))
        assert (await first, await second) == ([2, 4, 6], [8, 10])
        assert await double(6) == 12

    assert play_desk(test).asked == [[1, 2, 3], [4, 5], [6]]


def test_a_statement_has_a_limit_and_one_call_always_fits() -> None:
    async def test(desk: DoublingDesk, double: "CallBatcher[int, int]") -> None:
        assert await asyncio.gather(*(double(each, weight=each) for each in (3, 5, 20, 1))) == [
            6,
            10,
            40,
            2,
        ]

    assert play_desk(test, limit=8).asked == [[3, 5], [20], [1]]


def test_one_bad_call_is_not_the_others_fault() -> None:
    async def test(desk: DoublingDesk, double: "CallBatcher[int, int]") -> None:
        got = await asyncio.gather(*map(double, (1, -1, 2)), return_exceptions=True)
        assert (got[0], got[2]) == (2, 4)
        assert isinstance(got[1], ValueError)

    assert play_desk(test).asked == [[1, -1, 2], [1], [-1], [2]]


def test_a_store_that_is_away_is_told_to_all_and_asked_again_by_the_next() -> None:
    async def test(desk: DoublingDesk, double: "CallBatcher[int, int]") -> None:
        desk.away = True
        got = await asyncio.gather(*map(double, (1, 2)), return_exceptions=True)
        assert [type(each) for each in got] == [StoreUnavailable] * 2
        desk.away = False
        assert await double(3) == 6

    assert play_desk(test).asked == [[1, 2], [3]]


def test_who_gave_up_waiting_is_not_asked_for() -> None:
    async def test(desk: DoublingDesk, double: "CallBatcher[int, int]") -> None:
        first = asyncio.ensure_future(double(1))
        await asyncio.sleep(0.5)
        gone, stays = asyncio.ensure_future(double(2)), asyncio.ensure_future(double(3))
        await asyncio.sleep(0.1)
        gone.cancel()
        assert (await first, await stays) == (2, 6)
        with pytest.raises(asyncio.CancelledError):
            await gone

    assert play_desk(test).asked == [[1], [3]]


def test_nothing_is_asked_when_everyone_gave_up_waiting() -> None:
    async def test(desk: DoublingDesk, double: "CallBatcher[int, int]") -> None:
        first = asyncio.ensure_future(double(1))
        await asyncio.sleep(0.5)
        gone = asyncio.ensure_future(double(2))
        await asyncio.sleep(0.1)
        gone.cancel()
        assert await first == 2
        assert await double(3) == 6

    assert play_desk(test).asked == [[1], [3]]


def test_a_bad_call_that_nobody_waits_for_is_not_the_others_fault() -> None:
    async def test(desk: DoublingDesk, double: "CallBatcher[int, int]") -> None:
        bad, good = asyncio.ensure_future(double(-1)), asyncio.ensure_future(double(1))
        await asyncio.sleep(1.5)  # together it was refused; now it is tried alone
        bad.cancel()
        assert await good == 2

    assert play_desk(test).asked == [[-1, 1], [-1], [1]]
