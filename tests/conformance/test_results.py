"""The result store: in memory, in files, and the router over the log of each world."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from msgspec.structs import replace

from noetl.log.payloads.port import MAX_BLOB_BYTES, PayloadStore
from noetl.model.errors import BadReference, Conflict, CorruptLog, InvalidInput, NotFound
from noetl.model.ids import DEFAULT_TENANT, ExecutionId, RefId
from noetl.model.messages import Start, StoredRef
from noetl.model.reference import Address, Reference, make_address
from noetl.results.formats import rowsets
from noetl.results.formats.rowsets import RowSetWriter
from noetl.results.formats.tables import EncodedTable, TableOptions, ValueHead
from noetl.results.port import ResultStore
from noetl.results.router import ResultRouter
from noetl.results.tiers.kv import MAX_KV_BYTES
from noetl.results.tiers.memory import ResultsMemory
from noetl.results.tiers.objects import ObjectTier
from noetl.results.tiers.shared_cache import SharedCache
from tests import nats, s3
from tests.conformance.conftest import WORLDS, PortWorld
from tests.conformance.shard_owner import owner, signal_like
from tests.stores import in_files, in_tier, make_cached_tier

EXECUTION = ExecutionId("7")
PLACE = make_address(EXECUTION, "result", "step", "key")
Make = Callable[[PortWorld], Awaitable[ResultStore]]


class Door:
    """What a worker's channel leads to."""

    def __init__(self, payloads: PayloadStore) -> None:
        self._payloads = payloads

    async def payload(self, ref_id: RefId, uri: str) -> bytes | None:
        return await self._payloads.read_payload(DEFAULT_TENANT, ref_id, uri)

    async def put_payload(self, reference: Reference, payload: bytes) -> None:
        await self._payloads.put_payload(DEFAULT_TENANT, reference, payload)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Only the router uses the world."""
    if "make" in metafunc.fixturenames:
        alone = [
            "memory", "files", "objects", "cached objects", "router without cache", "router on objects", "router behind NATS",
        ]  # fmt: skip
        pairs = [("memory", kind) for kind in alone]
        metafunc.parametrize(
            ("world", "make"), pairs + [(world, "router") for world in WORLDS], indirect=True
        )
    elif "world" in metafunc.fixturenames:
        metafunc.parametrize("world", list(WORLDS), indirect=True)


@pytest.fixture
def world(request: pytest.FixtureRequest) -> Any:
    return WORLDS[request.param]


@pytest.fixture
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    bucket = (
        s3.server().place()
        if "objects" in request.param
        else nats.server().bucket()
        if "NATS" in request.param
        else ""
    )

    def objects() -> ObjectTier:
        return ObjectTier(s3.server().connect_bucket(bucket), bucket)

    async def make_store(world: PortWorld) -> ResultStore:
        """Another one of the same kind over the same data each time."""
        await world.inbox.start_execution(
            Start(execution_id=EXECUTION, path="p", playbook="hash"), {}
        )
        match request.param:
            case "memory":
                memory = getattr(world, "memory", None) or ResultsMemory()
                world.memory = memory  # type: ignore[attr-defined]
                return memory
            case "files":
                return in_files(tmp_path)
            case "objects":
                return in_tier(objects(), tmp_path)
            case "cached objects":
                return in_tier(make_cached_tier(objects(), tmp_path / "cache"), tmp_path / "cache")
            case "router on objects":
                return ResultRouter(
                    Door(world.payloads),
                    in_tier(make_cached_tier(objects(), tmp_path / "cache"), tmp_path),
                    cache=0,
                )
            case "router behind NATS":
                near = SharedCache(nats.server().url, bucket, nats.LIMIT)
                assert await near.open()
                return ResultRouter(Door(world.payloads), in_files(tmp_path), cache=0, near=near)
            case kind:
                return ResultRouter(
                    Door(world.payloads),
                    in_files(tmp_path),
                    cache=0 if "without" in kind else 1 << 20,
                )

    return make_store


def items(count: int) -> list[Any]:
    return [
        {"id": n, "name": f"é{n}", "more": [None, n / 7, {"x": "y" * (n % 40)}]}
        for n in range(count)
    ]


VALUES = {
    "a number": 7,
    "text": "é\u2028\x00",
    "nothing in a list": [],
    "a small map": {"a": [1, {"b": None}], "": True},
    "what does not ride": {"a": "x" * 100_000},
    "a large text": "é" * 1_000_000,
    "a large map": {"rows": items(20_000)},
    "a large list": items(20_000),
    "a list with one large item": [1, "x" * 2_000_000, 2],
}


@pytest.mark.parametrize("name", VALUES)
async def test_a_value_comes_back_as_it_was_also_to_another_process(
    world: PortWorld, make: Make, name: str
) -> None:
    value = VALUES[name]
    reference = await (await make(world)).put(PLACE, value)
    for store in (await make(world), await make(world)):
        assert await store.resolve(reference) == value
    assert (reference.uri, reference.format) == (str(PLACE), "json")
    assert reference.rows == (len(value) if isinstance(value, list) else None)
    assert reference.bytes is not None
    assert reference.sha256 is not None


def table(store: ResultStore, count: int, head: ValueHead | None = None) -> EncodedTable:
    schema = pa.schema([("id", pa.int64()), ("name", pa.string()), ("noise", pa.string())])
    writer = RowSetWriter(schema, TableOptions(store.staging), head)
    chance = Random(count)
    for first in range(0, count, 5_000):
        ids = range(first, min(first + 5_000, count))
        columns = [list(ids), [f"é{n}" for n in ids], [chance.randbytes(60).hex() for _ in ids]]
        writer.write(pa.RecordBatch.from_arrays(columns, schema=schema))
    return writer.finish()


@pytest.mark.parametrize(
    ("count", "format"), [(0, "arrow"), (10, "arrow"), (5_000, "arrow"), (100_000, "parquet")]
)
async def test_a_row_set_comes_back_whole_and_by_parts(
    world: PortWorld, make: Make, count: int, format: str
) -> None:
    store = await make(world)
    made = table(store, count)
    expected = made.value()
    reference = await store.put(PLACE, made)
    assert await store.put(PLACE, made) == reference
    made.close()
    assert (reference.rows, reference.rows_at, reference.format) == (count, "rows", format)
    store = await make(world)
    bare = Reference(ref_id=RefId(""), type="kv", uri=reference.uri)
    for known in (reference, bare):
        assert await store.resolve(known) == expected
        for start, stop in ((0, 1), (count // 2, count // 2 + 3), (count - 1, count + 9), (3, 2)):
            assert (
                await store.read_rows(known, start, stop) == expected["rows"][max(start, 0) : stop]
            )
        reader = rowsets.open_rowset_reader(await store.open(known), known.uri)
        assert sum(batch.num_rows for batch in reader.batches(columns=["id"])) == count
        reader.close()
    with pytest.raises(CorruptLog):
        await store.resolve(replace(reference, sha256="0" * 64))


async def test_another_row_set_is_refused_where_one_is(world: PortWorld, make: Make) -> None:
    store = await make(world)
    for count in (10, 50_000):
        where = make_address(EXECUTION, "result", "step", f"k{count}")
        first, second = table(store, count), table(store, count + 1)
        await store.put(where, first)
        with pytest.raises(Conflict):
            await store.put(where, second)
        first.close()
        second.close()


@pytest.mark.parametrize("count", [0, 1, 10, 3_000, 20_000])
async def test_rows_are_a_slice(world: PortWorld, make: Make, count: int) -> None:
    value = items(count)
    reference = await (await make(world)).put(PLACE, value)
    store = await make(world)
    middle = count // 2
    for start, stop in (
        (0, 1),
        (0, count),
        (middle, middle + 3),
        (count - 1, count + 9),
        (count, count + 1),
        (3, 2),
    ):
        assert await store.read_rows(reference, start, stop) == value[max(start, 0) : stop]


@pytest.mark.parametrize("name", ["a small map", "what does not ride", "a large map", "text"])
async def test_only_a_list_has_rows(world: PortWorld, make: Make, name: str) -> None:
    store = await make(world)
    with pytest.raises(InvalidInput):
        await store.read_rows(await store.put(PLACE, VALUES[name]), 0, 1)


@pytest.mark.parametrize("size", [1, 100_000, 2_000_000])
async def test_the_same_again_is_the_same_and_another_payload_is_refused(
    world: PortWorld, make: Make, size: int
) -> None:
    first = await (await make(world)).put(PLACE, ["x" * size])
    assert await (await make(world)).put(PLACE, ["x" * size]) == first
    with pytest.raises(Conflict):
        await (await make(world)).put(PLACE, ["y" * size])
    assert await (await make(world)).resolve(first) == ["x" * size]


@pytest.mark.parametrize("size", [1, 100_000, 2_000_000])
async def test_what_is_gone_or_differs_is_never_given(
    world: PortWorld, make: Make, size: int
) -> None:
    store = await make(world)
    reference = await store.put(PLACE, ["x" * size])
    for reader in (store, await make(world)):
        for wrong, error in (
            (replace(reference, sha256="0" * 64), CorruptLog),
            (
                replace(reference, uri=str(make_address(EXECUTION, "result", "step", "other"))),
                NotFound,
            ),
            (replace(reference, uri=str(make_address("8", "result", "step", "key"))), NotFound),
            (replace(reference, uri="noetl://execution/7/result/step/../key"), BadReference),
            (replace(reference, uri="/etc/passwd"), BadReference),
        ):
            with pytest.raises(error):
                await reader.resolve(wrong)
            with pytest.raises(error):
                await reader.read_rows(wrong, 0, 1)


@pytest.mark.parametrize("size", [1, 100_000, 2_000_000])
async def test_an_address_alone_is_enough(world: PortWorld, make: Make, size: int) -> None:
    reference = await (await make(world)).put(PLACE, ["x" * size])
    bare = Reference(ref_id=RefId(""), type="kv", uri=reference.uri)
    assert await (await make(world)).resolve(bare) == ["x" * size]
    assert await (await make(world)).read_rows(bare, 0, 5) == ["x" * size]


async def test_a_value_that_is_no_json_is_not_stored(world: PortWorld, make: Make) -> None:
    store = await make(world)
    for value in (object(), [1] * 5_000 + [object()], ["x" * 2_000_000, object()]):
        with pytest.raises(TypeError):
            await store.put(PLACE, value)
    await store.put(PLACE, 1)


# ---- with the report ---------------------------------------------------------------------------------------------------------


async def test_the_log_takes_what_the_router_puts(world: PortWorld) -> None:
    assert MAX_KV_BYTES == MAX_BLOB_BYTES


async def carry_value(
    world: PortWorld, router: ResultRouter, where: Address, value: Any
) -> Reference:
    reference, rider = await router.carry(where, value, 1 << 20)
    assert rider is not None
    assert await router.resolve(reference) == value
    one = await owner(world)
    await one.write(
        EXECUTION, signal_like("a"), refs=(StoredRef(reference=reference, payload=rider.payload),)
    )
    return reference


async def test_what_rode_with_a_report_is_readable_once_it_is_recorded(
    world: PortWorld, tmp_path: Path
) -> None:
    await world.inbox.start_execution(Start(execution_id=EXECUTION, path="p", playbook="hash"), {})
    reference = await carry_value(
        world, ResultRouter(Door(world.payloads), in_files(tmp_path)), PLACE, items(100)
    )
    other = ResultRouter(Door(world.payloads), in_files(tmp_path))
    assert await other.resolve(reference) == items(100)
    assert await other.read_rows(reference, 98, 200) == items(100)[98:]
    assert await other.put(PLACE, items(100)) == reference
    with pytest.raises(Conflict):
        await other.put(PLACE, 1)
