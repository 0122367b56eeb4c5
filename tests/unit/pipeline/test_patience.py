"""How long a command waits for a server, and how often it asks a store."""

import asyncio

import pytest

from noetl.model.errors import NoetlError, NotFound, StoreUnavailable, Unreached
from noetl.pipeline.patience import TRIES, patiently
from tests.waiting import virtually


class Place:
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
        place = Place(*[Unreached("no server")] * 100)
        assert await patiently(place.ask) == "answer"
        assert asyncio.get_running_loop().time() > 150

    virtually(live())


def test_a_store_that_does_not_answer_is_asked_for_some_seconds() -> None:
    async def live() -> None:
        assert await patiently(Place(*[StoreUnavailable("down")] * (TRIES - 1)).ask) == "answer"
        waited = asyncio.get_running_loop().time()
        assert 5 < waited < 10
        place = Place(*[StoreUnavailable("down")] * TRIES)
        with pytest.raises(StoreUnavailable):
            await patiently(place.ask)
        assert place.asked == TRIES

    virtually(live())


def test_tries_that_found_no_server_do_not_count() -> None:
    async def live() -> None:
        away = [Unreached("no server")] * 20
        place = Place(*away, *[StoreUnavailable("down")] * (TRIES - 1), *away)
        assert await patiently(place.ask) == "answer"

    virtually(live())


def test_what_waiting_does_not_mend_is_raised_at_once() -> None:
    async def live() -> None:
        place = Place(NotFound("no such"))
        with pytest.raises(NotFound):
            await patiently(place.ask)
        assert place.asked == 1

    virtually(live())
