"""The small ports: hints, payloads, playbooks, credentials."""

import asyncio

import pytest

from noetl.model.errors import Conflict, CorruptLog, NotFound
from noetl.model.ids import DEFAULT_TENANT, Tenant
from noetl.model.reference import make_address
from tests.conformance.conftest import PortWorld
from tests.waiting import HANG_LIMIT_S

PLACE = make_address("7", "result", "step", "key")


async def test_a_hint_reaches_everyone_who_asked_for_its_subject(world: PortWorld) -> None:
    one, two, other = (
        world.bus.subscribe("a"),
        world.bus.subscribe("a", "b"),
        world.bus.subscribe("c"),
    )
    await world.bus.publish("a")
    assert await asyncio.wait_for(anext(one), HANG_LIMIT_S) == "a"
    assert await asyncio.wait_for(anext(two), HANG_LIMIT_S) == "a"
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(anext(other), 0.02)


async def test_hints_are_coalesced(world: PortWorld) -> None:
    hints = world.bus.subscribe("a", "b")
    for subject in ("a", "a", "b", "a"):
        await world.bus.publish(subject)
    assert {await anext(hints), await anext(hints)} == {"a", "b"}
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(anext(hints), 0.02)
    await world.bus.publish("a")
    assert await asyncio.wait_for(anext(hints), HANG_LIMIT_S) == "a"


async def test_a_payload_comes_back_whole_and_by_rows(world: PortWorld) -> None:
    value = [{"id": n, "name": f"é{n}"} for n in range(10)]
    reference = await world.results.put(PLACE, value)
    assert await world.results.resolve(reference) == value
    assert await world.results.read_rows(reference, 2, 5) == value[2:5]
    assert await world.results.read_rows(reference, 8, 50) == value[8:]
    assert reference.uri == str(PLACE)
    assert reference.sha256 is not None
    assert reference.rows == 10


async def test_putting_the_same_again_is_putting_it_once_and_another_payload_is_refused(
    world: PortWorld,
) -> None:
    first = await world.results.put(PLACE, {"a": 1})
    assert await world.results.put(PLACE, {"a": 1}) == first
    with pytest.raises(Conflict):
        await world.results.put(PLACE, {"a": 2})
    assert await world.results.resolve(first) == {"a": 1}


async def test_a_payload_that_is_gone_or_differs_is_never_returned(world: PortWorld) -> None:
    from msgspec.structs import replace

    reference = await world.results.put(PLACE, {"a": 1})
    with pytest.raises(CorruptLog):
        await world.results.resolve(replace(reference, sha256="0" * 64))
    with pytest.raises(NotFound):
        await world.results.resolve(
            replace(reference, uri=str(make_address("7", "result", "step", "other")))
        )


async def test_a_path_has_versions_and_a_hash_names_one_text(world: PortWorld) -> None:
    first = await world.catalog.register("p", "text one")
    second = await world.catalog.register("p", "text two")
    assert (first.version, second.version) == (1, 2)
    assert await world.catalog.register("p", "text two") == second
    assert await world.catalog.find("p") == second
    assert await world.catalog.find("p", 1) == first
    assert await world.catalog.find("p", 3) is None
    assert await world.catalog.find("q") is None
    found = await world.catalog.find_by_hash(second.hash)
    assert found is not None
    assert found.text == "text two"
    assert await world.catalog.find_by_hash("0") is None
    await world.catalog.register("a", "text one")
    assert [(each.path, each.version) for each in await world.catalog.list_latest_entries()] == [
        ("a", 1),
        ("p", 2),
    ]


async def test_text_registered_last_is_the_latest_version_though_an_earlier_version_has_it(
    world: PortWorld,
) -> None:
    catalog = world.catalog
    first = await catalog.register("p", "text one")
    await catalog.register("p", "text two")
    rolled_back = await catalog.register("p", "text one")
    assert (rolled_back.version, rolled_back.hash, rolled_back.text) == (3, first.hash, "text one")
    assert await catalog.register("p", "text one") == rolled_back
    assert await catalog.find("p") == rolled_back
    assert await catalog.find("p", 1) == first
    assert await catalog.list_latest_entries() == [rolled_back]
    assert [each.version for each in await catalog.list_path_versions("p")] == [3, 2, 1]
    assert (
        await catalog.find_by_hash(first.hash)
        == await catalog.find_by_hash(first.hash, DEFAULT_TENANT)
        == rolled_back
    )


async def test_same_text_registered_by_many_at_once_is_one_version(world: PortWorld) -> None:
    entries = await asyncio.gather(*(world.catalog.register("p", "text one") for _ in range(8)))
    assert {entry.version for entry in entries} == {1}


async def test_lists_of_the_catalog_come_in_pages(world: PortWorld) -> None:
    paths = ["Z", "a", "a/b", "a/c", "a_b", "ab", "b"]
    for path in paths:
        for version in range(3):
            await world.catalog.register(path, f"text {version}")
    catalog = world.catalog
    assert [each.path for each in await catalog.list_latest_entries()] == sorted(paths)
    assert {each.version for each in await catalog.list_latest_entries()} == {3}
    assert [each.path for each in await catalog.list_latest_entries("a/")] == ["a/b", "a/c"]
    assert [each.path for each in await catalog.list_latest_entries("a", after="a/b", limit=2)] == [
        "a/c",
        "a_b",
    ]
    assert await catalog.list_latest_entries("a", after="ab") == []
    assert (
        await catalog.list_latest_entries("c") == await catalog.list_latest_entries(limit=0) == []
    )
    assert [each.version for each in await catalog.list_path_versions("a")] == [3, 2, 1]
    assert [each.version for each in await catalog.list_path_versions("a", before=3, limit=1)] == [
        2
    ]
    assert (
        await catalog.list_path_versions("nowhere")
        == await catalog.list_path_versions("a", before=1)
        == []
    )


async def test_a_tenant_sees_its_own_playbooks_only(world: PortWorld) -> None:
    other, catalog = Tenant(2), world.catalog
    mine = await catalog.register("p", "mine")
    theirs = await catalog.register("p", "theirs", other)
    assert (mine.version, theirs.version) == (1, 1)
    assert await catalog.find("p", tenant=other) == theirs
    assert [each.text for each in await catalog.list_latest_entries()] == ["mine"]
    assert [each.text for each in await catalog.list_path_versions("p", tenant=other)] == ["theirs"]
    assert await catalog.find_by_hash(theirs.hash, DEFAULT_TENANT) is None
    assert await catalog.find_by_hash(theirs.hash) == theirs


async def test_resealed_credential_is_the_one_that_was_read(world: PortWorld) -> None:
    first, second = await world.vault.reserve_version(), await world.vault.reserve_version()
    assert second > first
    put = world.vault.put
    await put(DEFAULT_TENANT, "db", "generic", b"later", second)
    row = await put(DEFAULT_TENANT, "db", "generic", b"earlier", first)  # a slower server
    assert (row.data, row.version) == (b"later", second)
    third = await world.vault.reserve_version()
    assert await world.vault.reseal(DEFAULT_TENANT, row, b"sealed again", third)
    assert not await world.vault.reseal(DEFAULT_TENANT, row, b"too late", third)
    found = await world.vault.find(DEFAULT_TENANT, "db")
    assert found is not None
    assert (found.data, found.version, found.kind) == (b"sealed again", third, "generic")
