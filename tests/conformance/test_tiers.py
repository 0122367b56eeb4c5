"""Every tier keeps bytes under addresses, by the same rules."""

import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from obstore.store import LocalStore, MemoryStore

from noetl.model.errors import BadReference, Conflict, NotFound
from noetl.model.ids import ExecutionId, RefId
from noetl.model.reference import Address, Reference, make_address
from noetl.results.port import ByteSource, Tier
from noetl.results.staging import StagedPayload, Staging
from noetl.results.tiers.files import FileTier
from noetl.results.tiers.memory import TierMemory
from noetl.results.tiers.objects import MAX_REQUEST_BYTES, ObjectTier
from tests import s3
from tests.stores import make_cached_tier

PLACE = make_address("7", "result", "step", "key")
Make = Callable[[], Tier]
KINDS = ["memory", "files", "objects in memory", "objects in a directory", "objects in S3"]
KINDS += [f"cache before {kind}" for kind in KINDS[1:]]


@pytest.fixture(params=KINDS)
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """Another one over the same bytes each time, as another process has it."""
    kind = request.param.removeprefix("cache before ")
    memory, objects, bucket = (
        TierMemory(),
        MemoryStore(),
        s3.server().place() if "S3" in kind else "",
    )

    def make_tier() -> Tier:
        match kind:
            case "memory":
                return memory
            case "files":
                return FileTier(tmp_path / "files")
            case "objects in memory":
                return ObjectTier(objects, "memory")
            case "objects in a directory":
                return ObjectTier(LocalStore(tmp_path / "objects", mkdir=True), "directory")
            case _:
                return ObjectTier(s3.server().connect_bucket(bucket), bucket)

    return (
        (lambda: make_cached_tier(make_tier(), tmp_path / "cache"))
        if kind != request.param
        else make_tier
    )


@pytest.fixture
def staging(tmp_path: Path) -> Staging:
    return Staging(tmp_path / "cache" / "staging")


async def write(tier: Tier, staging: Staging, data: bytes, where: Address = PLACE) -> None:
    async with staging.open_draft() as draft:
        draft.write(data)
        await tier.write(where, draft.finish())


def to(where: Address = PLACE) -> Reference:
    return Reference(ref_id=RefId("1"), type="disk", uri=str(where))


async def read_whole(tier: Tier, where: Address = PLACE) -> bytes:
    source = await tier.open(to(where))
    try:
        return source.read(0, source.size)
    finally:
        source.close()


SIZES = [1, 1000, 300_000, 3 << 20, MAX_REQUEST_BYTES, MAX_REQUEST_BYTES + 1, 20_000_000]


@pytest.mark.parametrize("size", SIZES)
async def test_bytes_come_back_also_to_others_and_from_anywhere_in_them(
    make: Make, staging: Staging, size: int
) -> None:
    data = os.urandom(size)
    await write(make(), staging, data)
    for _ in range(2):  # the second time from a cache, if there is one
        source: ByteSource = await make().open(to())
        assert source.size == size
        for offset, length in (
            (0, 1), (0, size), (size - 1, 1), (size // 2, 1000), (size - 10, 1000), (size, 1), (max(size - 70_000, 0), 70_000),
            (262_143, 2), (262_144, 262_144), (1, 600_000),
        ):  # fmt: skip
            offset = max(offset, 0)
            assert source.read(offset, length) == data[offset : offset + length]
        source.close()


@pytest.mark.parametrize("size", [10, MAX_REQUEST_BYTES + 1])
async def test_the_same_again_is_fine_and_others_are_refused(
    make: Make, staging: Staging, size: int
) -> None:
    data = os.urandom(size)
    await write(make(), staging, data)
    await write(make(), staging, data)
    await make().write(PLACE, StagedPayload.from_bytes(data))
    for other in (os.urandom(size), data[:-1], data + b"x"):
        with pytest.raises(Conflict):
            await write(make(), staging, other)
    assert await read_whole(make()) == data


async def test_what_is_deleted_is_gone_and_may_be_written_anew(
    make: Make, staging: Staging
) -> None:
    await write(make(), staging, b"one")
    assert await read_whole(make()) == b"one"
    tier = make()
    await tier.delete(PLACE)
    await tier.delete(PLACE)
    with pytest.raises(NotFound):
        await read_whole(make())
    await write(make(), staging, b"another")
    assert await read_whole(make()) == b"another"


async def test_what_was_never_there_is_not_found(make: Make, staging: Staging) -> None:
    await write(make(), staging, b"one")
    for where in (
        make_address("7", "result", "step", "other"),
        make_address("8", "result", "step", "key"),
    ):
        with pytest.raises(NotFound):
            await read_whole(make(), where)


async def test_everything_is_listed_and_by_execution(make: Make, staging: Staging) -> None:
    places = [
        make_address(str(number), kind, "step", "key")
        for number in (7, 71, 8)
        for kind in ("result", "log")
    ]
    for number, where in enumerate(places):
        await write(make(), staging, b"x" * (number + 1), where)
    found = {each.address: each.bytes async for each in list_objects(make())}
    assert found == {where: number + 1 for number, where in enumerate(places)}
    of_one = {each.address async for each in make().list_objects(ExecutionId("7"))}
    assert of_one == set(places[:2])
    assert [each async for each in make().list_objects(ExecutionId("9"))] == []
    with pytest.raises(BadReference):
        _ = [each async for each in make().list_objects(ExecutionId("../7"))]


async def list_objects(tier: Tier) -> AsyncIterator:  # type: ignore[type-arg]
    async for each in tier.list_objects():
        assert each.modified >= 0
        yield each


@pytest.mark.parametrize(
    "part", ["..", "", "a/b", "../../8/result/step/key", "/etc", "\x00", ".key", "é", "%2e%2e"]
)
async def test_nothing_but_an_address_leads_anywhere(
    make: Make, staging: Staging, part: str
) -> None:
    for forged in (
        Address(ExecutionId(part), "result", "step", "key"),
        Address(ExecutionId("7"), part, "step", "key"),
        Address(ExecutionId("7"), "result", part, "key"),
        Address(ExecutionId("7"), "result", "step", part),
    ):
        with pytest.raises(BadReference):
            await write(make(), staging, b"x", forged)
        with pytest.raises(BadReference):
            await read_whole(make(), forged)
        with pytest.raises(BadReference):
            await make().delete(forged)
    assert [each async for each in make().list_objects()] == []
