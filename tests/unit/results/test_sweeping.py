"""Orphans go, and nothing else."""

import asyncio
import os
from pathlib import Path

import pytest

from noetl.model.errors import StoreUnavailable
from noetl.model.ids import ExecutionId
from noetl.model.reference import Address, make_address
from noetl.results.staging import StagedPayload
from noetl.results.sweeping import MAX_ASKED_ADDRESSES, SweepCounts, sweep_orphans
from noetl.results.tiers.files import FileTier

PLACES = [
    make_address(str(number), "result", "step", f"k{key}")
    for number in (7, 8, 9)
    for key in range(4)
]


class PinServers:
    """Knows what it is told, and of which executions it was asked."""

    def __init__(self, known: list[Address], ended: tuple[str, ...] = ("7", "8", "9")) -> None:
        self._known = set(map(str, known))
        self._ended = ended
        self.asked: list[tuple[str, int]] = []

    async def orphans(self, execution_id: ExecutionId, uris: list[str]) -> list[str]:
        self.asked.append((execution_id, len(uris)))
        return (
            [uri for uri in uris if uri not in self._known] if execution_id in self._ended else []
        )


def fill_tier(root: Path, places: list[Address]) -> FileTier:
    async def run() -> None:
        for where in places:
            await files.write(where, StagedPayload.from_bytes(b"four"))

    files = FileTier(root)
    asyncio.run(run())
    return files


def list_remaining(files: FileTier) -> set[Address]:
    async def run() -> set[Address]:
        return {each.address async for each in files.list_objects()}

    return asyncio.run(run())


def test_what_the_servers_do_not_know_goes(tmp_path: Path) -> None:
    files, servers = fill_tier(tmp_path, PLACES), PinServers(PLACES[::2], ended=("7", "8"))
    assert asyncio.run(sweep_orphans(files, servers.orphans, 1e12)) == SweepCounts(
        looked=12, deleted=4, bytes=16
    )
    assert list_remaining(files) == set(PLACES[::2]) | set(PLACES[8:])
    assert sorted(servers.asked) == [("7", 4), ("8", 4), ("9", 4)]


def test_what_is_young_is_not_asked_about(tmp_path: Path) -> None:
    files, servers = fill_tier(tmp_path, PLACES), PinServers([])
    for where in PLACES[:3]:
        os.utime(tmp_path / where.execution_id / where.kind / where.step / where.key, (1000, 1000))
    assert asyncio.run(sweep_orphans(files, servers.orphans, 2000)).deleted == 3
    assert list_remaining(files) == set(PLACES[3:])
    assert servers.asked == [("7", 3)]


def test_many_of_one_execution_are_asked_about_in_parts(tmp_path: Path) -> None:
    places = [
        make_address("7", "result", "step", f"k{key}") for key in range(MAX_ASKED_ADDRESSES + 3)
    ]
    files, servers = fill_tier(tmp_path, places), PinServers(places)
    assert asyncio.run(sweep_orphans(files, servers.orphans, 1e12)) == SweepCounts(
        looked=len(places)
    )
    assert servers.asked == [("7", MAX_ASKED_ADDRESSES), ("7", 3)]


def test_many_executions_are_asked_about_each(tmp_path: Path) -> None:
    places = [make_address(str(number), "result", "step", "key") for number in range(1, 60)]
    servers = PinServers([], ended=tuple(map(str, range(1, 60))))
    assert (
        asyncio.run(sweep_orphans(fill_tier(tmp_path, places), servers.orphans, 1e12)).deleted == 59
    )


def test_without_an_answer_nothing_goes(tmp_path: Path) -> None:
    async def away(execution_id: ExecutionId, uris: list[str]) -> list[str]:
        raise StoreUnavailable("away")

    files = fill_tier(tmp_path, PLACES)
    with pytest.raises(StoreUnavailable):
        asyncio.run(sweep_orphans(files, away, 1e12))
    assert list_remaining(files) == set(PLACES)
