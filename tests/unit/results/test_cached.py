"""The cache on this machine's disk: bounded, shared, checked, and never needed."""

import asyncio
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from obstore.store import MemoryStore

from noetl.model.errors import BadReference, NotFound
from noetl.model.ids import ExecutionId, RefId
from noetl.model.reference import Address, Reference, make_address
from noetl.results.staging import StagedPayload, Staging
from noetl.results.tiers.cached import CACHE_BLOCK_BYTES, CachedTier
from noetl.results.tiers.file_pool import FilePool, WriteAllowance
from noetl.results.tiers.objects import ObjectTier
from tests.examples import count_examples
from tests.stores import make_cached_tier
from tests.unit.results.test_files import kinds, parts

PLACE = make_address("7", "result", "step", "key")
DATA = os.urandom(10 * CACHE_BLOCK_BYTES + 5)


def to(where: Address = PLACE) -> Reference:
    return Reference(ref_id=RefId("1"), type="disk", uri=str(where))


class Far:
    """An object store that says how often it was asked for data."""

    def __init__(self) -> None:
        self._store: Any = MemoryStore()
        self.asked = 0

    def __getattr__(self, name: str) -> Any:
        self.asked += name.startswith("get")
        return getattr(self._store, name)


@pytest.fixture
def far() -> Far:
    return Far()


@pytest.fixture
def tier(far: Far, tmp_path: Path) -> CachedTier:
    return make_cached_tier(ObjectTier(far, "far"), tmp_path / "cache")


def write(
    tier: CachedTier, data: bytes, staging: Path | None = None, where: Address = PLACE
) -> None:
    async def run() -> None:
        async with Staging(staging).open_draft() as draft:
            draft.write(data)
            await tier.write(where, draft.finish())

    asyncio.run(run())


def read(tier: CachedTier, offset: int = 0, length: int = 1 << 30, where: Address = PLACE) -> bytes:
    source = asyncio.run(tier.open(to(where)))
    try:
        return source.read(offset, length)
    finally:
        source.close()


def entries(folder: Path, pool: str = "*") -> list[Path]:
    return [path for path in folder.glob(f"cache/{pool}/*") if path.is_file()]


# ---- what is kept --------------------------------------------------------------------------------------------------------------


def test_what_was_read_is_not_asked_for_again(far: Far, tier: CachedTier, tmp_path: Path) -> None:
    write(tier, DATA)
    assert read(tier, 3 * CACHE_BLOCK_BYTES + 7, 10) == DATA[3 * CACHE_BLOCK_BYTES + 7 :][:10]
    asked = far.asked
    for reader in (
        tier,
        make_cached_tier(ObjectTier(far, "far"), tmp_path / "cache"),
    ):  # another process begins with what is there
        assert (
            read(reader, 3 * CACHE_BLOCK_BYTES, CACHE_BLOCK_BYTES)
            == DATA[3 * CACHE_BLOCK_BYTES : 4 * CACHE_BLOCK_BYTES]
        )
    assert far.asked == asked
    assert read(tier) == DATA
    assert read(tier) == DATA
    assert far.asked == asked + 1


def test_a_staged_file_stays_as_it_is(far: Far, tier: CachedTier, tmp_path: Path) -> None:
    write(tier, DATA, tmp_path / "cache" / "staging")
    source = asyncio.run(tier.open(to()))
    assert source.path is not None
    assert source.path.read_bytes() == source.read(0, 1 << 30) == DATA
    source.close()
    assert read(tier, 5, 5) == DATA[5:10]
    assert far.asked == 0
    assert entries(tmp_path, "staging") == []


def test_the_ends_of_files_are_apart_from_the_rest(tier: CachedTier, tmp_path: Path) -> None:
    write(tier, DATA)
    read(tier)
    blocks = {
        pool: {path.name.rpartition("-")[2] for path in entries(tmp_path, pool)}
        for pool in ("meta", "data")
    }
    assert blocks == {"meta": {"9", "10", "size"}, "data": {str(number) for number in range(9)}}


# ---- what happens to it --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("staged", [True, False])
@pytest.mark.parametrize("damage", ["flip", "cut", "empty"])
def test_a_damaged_entry_is_dropped_and_read_from_afar(
    far: Far, tier: CachedTier, tmp_path: Path, staged: bool, damage: str
) -> None:
    write(tier, DATA, tmp_path / "cache" / "staging" if staged else None)
    assert read(tier) == DATA
    for path in entries(tmp_path):
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes({"flip": content, "cut": content[:-1], "empty": b""}[damage])
    assert read(tier, 2 * CACHE_BLOCK_BYTES, 3) == DATA[2 * CACHE_BLOCK_BYTES :][:3]
    assert read(tier) == DATA
    asked = far.asked
    assert read(tier) == DATA
    assert far.asked == asked


def test_deleting_the_cache_costs_time_only(far: Far, tier: CachedTier, tmp_path: Path) -> None:
    write(tier, DATA, tmp_path / "cache" / "staging")

    async def run() -> None:
        source = await tier.open(to())
        shutil.rmtree(tmp_path / "cache")
        assert source.read(0, 1 << 30) == DATA
        source.close()

    asyncio.run(run())
    assert read(tier) == DATA
    assert far.asked > 0
    assert entries(tmp_path)


def test_a_cache_that_cannot_be_written_is_none(far: Far, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("not a folder")
    tier = make_cached_tier(ObjectTier(far, "far"), tmp_path / "cache")
    write(tier, DATA, tmp_path / "staging")
    assert read(tier) == DATA


def test_what_is_deleted_is_not_read_from_the_cache(tier: CachedTier, tmp_path: Path) -> None:
    write(tier, DATA, tmp_path / "cache" / "staging")
    read(tier)
    asyncio.run(tier.delete(PLACE))
    with pytest.raises(NotFound):
        read(tier)
    assert entries(tmp_path) == []


# ---- bounds --------------------------------------------------------------------------------------------------------------------


def pool(folder: Path, limit: int = 1000, rate: float = 1 << 30) -> FilePool:
    return FilePool(folder, limit, WriteAllowance(rate, lambda: 0.0))


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def set_age(folder: Path, name: str, seconds: int) -> None:
    os.utime(folder / name, (0, seconds))


def test_what_was_not_used_for_longest_goes_first(tmp_path: Path) -> None:
    kept = pool(tmp_path)
    for number, name in enumerate("abcd"):
        kept.add(name, bytes(200))
        set_age(tmp_path, name, number)
    assert kept.get("a") == bytes(200)  # used now
    kept.add("e", bytes(200))
    assert names(tmp_path) == {"a", "d", "e"} | (names(tmp_path) & {"c"})
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 1000


def test_what_others_added_counts(tmp_path: Path) -> None:
    one, two = pool(tmp_path), pool(tmp_path)
    for number in range(50):
        (one if number % 2 else two).add(str(number), bytes(100))
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 1000 + 1000 // 4


def test_an_entry_that_would_push_out_the_rest_is_not_kept(tmp_path: Path) -> None:
    kept = pool(tmp_path / "pool")
    kept.add("a", bytes(300))
    (tmp_path / "file").write_bytes(bytes(300))
    assert not kept.adopt_file("b", tmp_path / "file", 300)
    assert kept.get("a") is None


def test_beyond_the_rate_nothing_is_kept_and_nobody_waits(tmp_path: Path) -> None:
    now = 0.0
    kept = FilePool(tmp_path, 1 << 20, WriteAllowance(1000, lambda: now))
    for name in "abc":
        kept.add(name, bytes(400))
    assert names(tmp_path) == {"a", "b"}
    now = 0.25
    kept.add("c", bytes(400))
    assert names(tmp_path) == {"a", "b", "c"}
    (tmp_path / "file").write_bytes(bytes(9_000))
    assert kept.adopt_file("d", tmp_path / "file", 9_000)  # it is on the disk already


# ---- places --------------------------------------------------------------------------------------------------------------------


@settings(max_examples=count_examples(80), deadline=None)
@given(st.sampled_from(["7", "8", "07", "9" * 19]) | parts, kinds, parts, parts)
def test_whatever_an_address_says_it_stays_in_its_execution(
    execution: str, kind: str, step: str, key: str
) -> None:
    store = MemoryStore()
    mine, forged = (
        make_address("8", "result", "step", "key"),
        Address(ExecutionId(execution), kind, step, key),
    )
    with tempfile.TemporaryDirectory() as folder:
        tier = make_cached_tier(ObjectTier(store, "memory"), Path(folder) / "cache")
        asyncio.run(tier.write(mine, StagedPayload.from_bytes(b"mine")))
        assert read(tier, where=mine) == b"mine"
        try:
            asyncio.run(tier.write(forged, StagedPayload.from_bytes(b"mine")))
        except BadReference:
            assert [each["path"] for each in store.list().collect()] == ["8/result/step/key"]
            for act in (lambda: read(tier, where=forged), lambda: asyncio.run(tier.delete(forged))):
                with pytest.raises(BadReference):
                    act()
            return
        found = {each["path"] for each in store.list().collect()}
        assert found == {"8/result/step/key", f"{execution}/{kind}/{step}/{key}"}
        outside = [
            path
            for path in Path(folder).rglob("*")
            if not path.is_relative_to(Path(folder) / "cache")
        ]
        assert outside == []
