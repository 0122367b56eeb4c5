"""Stored credentials on a worker: kept for a moment, in bounds; and what it says of one that is not there."""

import asyncio
from typing import Any

import pytest

from noetl.model.errors import NotFound, Unavailable, Unreached
from noetl.worker.credentials import CACHE_TTL_S, MAX_CACHED_CREDENTIALS, StoredCredentials
from tests.unit.pipeline.bench import run_virtually


class CredentialDesk:
    """The one call of a channel that is made here."""

    def __init__(self, **known: dict[str, Any]) -> None:
        self.known = known
        self.asked: list[str] = []
        self.down = False

    async def read_credential(self, name: str) -> dict[str, Any]:
        self.asked.append(name)
        if self.down:
            raise Unavailable("no server")
        if name not in self.known:
            raise NotFound(f"http://127.0.0.1:8082/api/worker/credentials/{name}: 404")
        return self.known[name]


def make_credentials(desk: CredentialDesk) -> StoredCredentials:
    return StoredCredentials(desk)  # type: ignore[arg-type]  # the one call that it makes


def test_a_credential_is_asked_for_once_in_a_while() -> None:
    async def live() -> None:
        desk = CredentialDesk(db={"password": "old"})
        credentials = make_credentials(desk)
        found = await credentials.get("db")
        found["password"] = "spoilt by a caller"
        assert await credentials.get("db") == {"password": "old"}
        desk.known["db"] = {"password": "new"}
        await asyncio.sleep(CACHE_TTL_S - 0.1)
        assert await credentials.get("db") == {"password": "old"}
        await asyncio.sleep(0.1)
        assert await credentials.get("db") == {"password": "new"}
        assert desk.asked == ["db", "db"]

    run_virtually(live())


def test_one_that_is_missing_is_asked_for_again_and_the_answer_says_what_to_do() -> None:
    async def live() -> None:
        desk = CredentialDesk()
        credentials = make_credentials(desk)
        with pytest.raises(NotFound) as refused:
            await credentials.get("my-db")
        assert "'my-db'" in str(refused.value)
        assert "noetl credential add my-db" in str(refused.value)
        assert "NOETL_CREDENTIAL_MY_DB" in str(refused.value)
        desk.known["my-db"] = {"a": 1}
        assert await credentials.get("my-db") == {"a": 1}
        desk.down = True
        await asyncio.sleep(CACHE_TTL_S)
        with pytest.raises(Unavailable):
            await credentials.get("my-db")

    run_virtually(live())


def test_a_server_that_starts_again_is_waited_for() -> None:
    async def live() -> None:
        desk = CredentialDesk(db={"password": "p"})
        asked = desk.read_credential

        async def away(name: str) -> dict[str, Any]:
            if asyncio.get_running_loop().time() < 30:
                raise Unreached("no server")
            return await asked(name)

        desk.read_credential = away  # type: ignore[method-assign]
        credentials = make_credentials(desk)
        assert await credentials.get("db") == {"password": "p"}
        assert await credentials.get("db") == {"password": "p"}
        assert desk.asked == ["db"]

    run_virtually(live())


def test_only_so_many_are_kept_and_none_longer_than_its_time() -> None:
    async def live() -> None:
        desk = CredentialDesk(
            **{f"c{number}": {"n": number} for number in range(MAX_CACHED_CREDENTIALS + 20)}
        )
        credentials = make_credentials(desk)
        for name in desk.known:
            await credentials.get(name)
        assert len(credentials._cache) == MAX_CACHED_CREDENTIALS
        await asyncio.sleep(CACHE_TTL_S)
        await credentials.get("c0")
        assert list(credentials._cache) == ["c0"]

    run_virtually(live())
