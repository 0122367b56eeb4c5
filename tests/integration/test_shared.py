"""Small results that workers share by NATS: found there, never believed without a look, never waited for."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from noetl.model.ids import RefId
from noetl.model.reference import Reference, make_address
from noetl.results.router import ResultRouter
from noetl.results.tiers import shared_cache
from noetl.results.tiers.shared_cache import SharedCache
from tests import nats
from tests.stores import in_files
from tests.waiting import HANG_LIMIT_S, wait_until

PLACE = make_address("7", "result", "step", "key")
VALUE = {"a": "x" * 100_000}


class ManifestServers:
    """Keeps what it is given and counts who asks for it."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}
        self.asked = 0

    async def payload(self, ref_id: RefId, uri: str) -> bytes | None:
        self.asked += 1
        return self.kept.get(uri)

    async def put_payload(self, reference: Reference, payload: bytes) -> None:
        self.kept[reference.uri] = payload


class Workers:
    """Any number of them, with nothing in memory."""

    def __init__(self, folder: Path) -> None:
        self.servers = ManifestServers()
        self.bucket = nats.server().bucket()
        self.caches: list[SharedCache] = []
        self._folder = folder

    async def worker(self) -> ResultRouter:
        cache = SharedCache(nats.server().url, self.bucket, nats.LIMIT)
        await cache.open()
        self.caches.append(cache)
        return ResultRouter(self.servers, in_files(self._folder), cache=0, near=cache)


@asynccontextmanager
async def workers(folder: Path) -> AsyncIterator[Workers]:
    made = Workers(folder)
    try:
        yield made
    finally:
        for cache in made.caches:
            await cache.close()


@pytest.fixture(autouse=True)
def there(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """However busy the machine is, it is not taken for one that does not answer."""
    monkeypatch.setattr(shared_cache, "NATS_TIMEOUT_S", HANG_LIMIT_S)
    nats.server().start()
    yield
    nats.server().stop()
    nats.server().start()


def play(work: Callable[[Workers], Awaitable[None]], folder: Path) -> None:
    async def run() -> None:
        async with asyncio.timeout(HANG_LIMIT_S), workers(folder) as here:
            await work(here)

    asyncio.run(run())


async def share_value(here: Workers, value: Any = VALUE) -> tuple[ResultRouter, Reference]:
    """A second worker, and what a first one has put and read."""
    first, second = await here.worker(), await here.worker()
    reference = await first.put(PLACE, value)
    assert await first.resolve(reference) == value
    await wait_until(lambda: here.caches[1].get(reference.uri), here.servers.kept[reference.uri])
    return second, reference


def test_what_one_worker_has_read_another_finds(tmp_path: Path) -> None:
    async def work(here: Workers) -> None:
        second, reference = await share_value(here)
        assert await second.resolve(reference) == VALUE
        assert here.servers.asked == 1

    play(work, tmp_path)


def test_what_is_there_is_not_believed_without_its_checksum(tmp_path: Path) -> None:
    async def work(here: Workers) -> None:
        second, reference = await share_value(here)
        here.caches[0].add(reference.uri, b'"another"')
        await wait_until(lambda: here.caches[1].get(reference.uri), b'"another"')
        assert await second.resolve(reference) == VALUE
        assert here.servers.asked == 2

    play(work, tmp_path)


@pytest.mark.parametrize("how", ["stopped", "frozen"])
def test_a_nats_that_does_not_answer_is_not_missed(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(here: Workers) -> None:
        second, reference = await share_value(here)
        monkeypatch.setattr(shared_cache, "NATS_TIMEOUT_S", 0.25)
        if how == "stopped":
            nats.server().stop()
        else:
            nats.server().freeze()
        for _ in range(20):
            assert await second.resolve(reference) == VALUE
        assert here.servers.asked in (
            20,
            21,
        )  # a signal takes a moment: one question may still have been answered

    play(work, tmp_path)


def test_a_nats_that_was_never_there_is_not_missed_and_found_when_it_comes(tmp_path: Path) -> None:
    async def work(here: Workers) -> None:
        nats.server().stop()
        worker = await here.worker()
        reference = await worker.put(PLACE, VALUE)
        assert await worker.resolve(reference) == VALUE
        nats.server().start()
        assert await here.caches[0].open()
        assert await worker.resolve(reference) == VALUE
        await wait_until(
            lambda: here.caches[0].get(reference.uri), here.servers.kept[reference.uri]
        )

    play(work, tmp_path)


def test_what_does_not_fit_into_a_message_is_read_from_servers(tmp_path: Path) -> None:
    async def work(here: Workers) -> None:
        first, second = await here.worker(), await here.worker()
        value = "x" * (1024 * 1024 - 2)
        reference = await first.put(PLACE, value)
        for worker in (first, second):
            assert await worker.resolve(reference) == value
        assert here.servers.asked == 2

    play(work, tmp_path)


def test_a_nats_that_comes_back_is_used_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(here: Workers) -> None:
        second, reference = await share_value(here)
        monkeypatch.setattr(shared_cache, "NATS_PAUSE_S", 1e-3)
        nats.server().stop()
        assert await second.resolve(reference) == VALUE
        nats.server().start()
        monkeypatch.setattr(shared_cache, "NATS_PAUSE_S", 1.0)

        async def find_cached() -> bytes | None:
            assert await second.resolve(reference) == VALUE
            return await here.caches[1].get(reference.uri)

        await wait_until(find_cached, here.servers.kept[reference.uri])

    play(work, tmp_path)
