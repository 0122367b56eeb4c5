"""How long a command waits for a server, and how often it asks a store."""

import asyncio

import pytest

from noetl.model.errors import NoetlError, NotFound, StoreUnavailable, Unreached
from noetl.pipeline.retries import MAX_TRIES, retry_while_unavailable
from tests.waiting import run_virtually


class FailingPlace:
    """Fails with each of `errors` in turn, then answers."""

    def __init__(self, *errors: NoetlError) -> None:
        self._errors = list(errors)
        self.asked = 0

    async def ask(self) -> str:
        self.asked += 1
        if self._errors:
            raise self._errors.pop(0)
        return "answer"


def test_a_server_that_is_away_is_waited_for_however_long_it_takes() -> None:
    async def live() -> None:
        place = FailingPlace(*[Unreached("no server")] * 100)
        assert await retry_while_unavailable(place.ask) == "answer"
        assert asyncio.get_running_loop().time() > 150

    run_virtually(live())


def test_a_store_that_does_not_answer_is_asked_for_some_seconds() -> None:
    async def live() -> None:
        assert (
            await retry_while_unavailable(
                FailingPlace(*[StoreUnavailable("down")] * (MAX_TRIES - 1)).ask
            )
            == "answer"
        )
        waited = asyncio.get_running_loop().time()
        assert 5 < waited < 10
        place = FailingPlace(*[StoreUnavailable("down")] * MAX_TRIES)
        with pytest.raises(StoreUnavailable):
            await retry_while_unavailable(place.ask)
        assert place.asked == MAX_TRIES

    run_virtually(live())


def test_tries_that_found_no_server_do_not_count() -> None:
    async def live() -> None:
        away = [Unreached("no server")] * 20
        place = FailingPlace(*away, *[StoreUnavailable("down")] * (MAX_TRIES - 1), *away)
        assert await retry_while_unavailable(place.ask) == "answer"

    run_virtually(live())


def test_what_waiting_does_not_mend_is_raised_at_once() -> None:
    async def live() -> None:
        place = FailingPlace(NotFound("no such"))
        with pytest.raises(NotFound):
            await retry_while_unavailable(place.ask)
        assert place.asked == 1

    run_virtually(live())
