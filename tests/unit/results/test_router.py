"""Which tier, what stays in memory, and what rides with a report."""

import asyncio
import gc
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from noetl.model.commands import Command
from noetl.model.errors import Conflict, NotFound, StoreUnavailable
from noetl.model.ids import ActivationId, CommandId, ExecutionId, RefId
from noetl.model.messages import StoredRef
from noetl.model.reference import Reference, make_address
from noetl.pipeline.environment import read_no_manifest
from noetl.pipeline.failures import TaskFailed
from noetl.pipeline.output.result_writer import MAX_REPORT_PAYLOAD_BYTES, ResultWriter
from noetl.pipeline.retries import MAX_TRIES
from noetl.pipeline.scope.results import ResultReader
from noetl.results.router import MAX_RIDER_BYTES, ResultRouter, warn_of_older_store
from noetl.results.staging import StagedPayload
from noetl.results.tiers.kv import MAX_KV_BYTES
from noetl.results.tiers.memory_cache import ENTRY_OVERHEAD_BYTES, MemoryCache
from tests.stores import in_files
from tests.waiting import run_virtually

PLACE = make_address("7", "result", "step", "key")


class FailingServers:
    """Keeps what it is given and counts who asked. `failures` calls fail first."""

    def __init__(self, failures: int = 0) -> None:
        self.kept: dict[tuple[str, str], bytes] = {}
        self.calls: list[str] = []
        self.failures = failures

    async def payload(self, ref_id: RefId, uri: str) -> bytes | None:
        self._note_call("payload")
        return self.kept.get((ref_id, uri))

    async def put_payload(self, reference: Reference, payload: bytes) -> None:
        self._note_call("put_payload")
        if self.kept.setdefault((reference.ref_id, reference.uri), payload) != payload:
            raise Conflict("another")

    def _note_call(self, name: str) -> None:
        self.calls.append(name)
        if self.failures > 0:
            self.failures -= 1
            raise StoreUnavailable("down")

    def record(self, refs: tuple[StoredRef, ...]) -> None:
        """A report that brings these is committed."""
        for ref in refs:
            if ref.payload is not None:
                self.kept.setdefault((ref.reference.ref_id, ref.reference.uri), ref.payload)


def text(size: int) -> str:
    return "x" * (size - 2)  # its JSON has quotes


@pytest.mark.parametrize(
    ("size", "home", "rides"),
    [
        (10, "kv", True),
        (MAX_RIDER_BYTES, "kv", True),
        (MAX_RIDER_BYTES + 1, "kv", False),
        (MAX_KV_BYTES, "kv", False),
        (MAX_KV_BYTES + 1, "disk", False),
    ],
)
def test_size_decides(tmp_path: Path, size: int, home: str, rides: bool) -> None:
    servers = FailingServers()
    router = ResultRouter(servers, in_files(tmp_path))
    reference, rider = asyncio.run(router.carry(PLACE, text(size), MAX_REPORT_PAYLOAD_BYTES))
    assert (reference.type, reference.bytes, rider is not None) == (home, size, rides)
    assert servers.calls == (["put_payload"] if home == "kv" and not rides else [])
    assert asyncio.run(router.resolve(reference)) == text(size)


@pytest.mark.parametrize(
    ("hint", "setting", "home"),
    [
        (None, "auto", "kv"),
        ("disk", "auto", "disk"),
        ("object", "auto", "disk"),
        (None, "disk", "disk"),
        (None, "object", "disk"),
        ("kv", "disk", "kv"),
        ("db", "auto", "kv"),
    ],
)
def test_a_hint_decides_before_size(
    tmp_path: Path, hint: str | None, setting: str, home: str
) -> None:
    router = ResultRouter(FailingServers(), in_files(tmp_path), tier=setting)
    reference, rider = asyncio.run(router.carry(PLACE, [1, 2], MAX_REPORT_PAYLOAD_BYTES, hint))
    assert (reference.type, rider is not None) == (home, home == "kv")
    assert asyncio.run(router.read_rows(reference, 1, 2)) == [2]


def test_a_hint_of_kv_does_not_make_a_large_payload_small(tmp_path: Path) -> None:
    router = ResultRouter(FailingServers(), in_files(tmp_path))
    assert (
        asyncio.run(router.carry(PLACE, text(MAX_KV_BYTES + 1), MAX_REPORT_PAYLOAD_BYTES, "kv"))[
            0
        ].type
        == "disk"
    )


def test_object_reads_as_disk_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING")
    warn_of_older_store.cache_clear()
    router = ResultRouter(FailingServers(), in_files(tmp_path))
    reference = asyncio.run(router.put(PLACE, text(MAX_KV_BYTES + 1)))
    for _ in range(3):
        assert asyncio.run(router.resolve(replace(reference, type="object_store"))) == text(
            MAX_KV_BYTES + 1
        )
    assert [record.getMessage() for record in caplog.records] == ["this store reads as disk"]


@pytest.mark.parametrize(("size", "home"), [(10, "kv"), (MAX_KV_BYTES + 1, "disk")])
def test_bytes_of_any_format_are_stored_and_opened(tmp_path: Path, size: int, home: str) -> None:
    async def run() -> None:
        servers, data = FailingServers(), bytes(size)
        router = ResultRouter(servers, in_files(tmp_path))
        reference = await router.put_staged(
            PLACE, StagedPayload.from_bytes(data), rows=3, format="arrow"
        )
        assert (reference.type, reference.format, reference.rows, reference.bytes) == (
            home,
            "arrow",
            3,
            size,
        )
        for reader in (router, ResultRouter(servers, in_files(tmp_path))):
            source = await reader.open(reference)
            assert source.read(0, source.size) == data
            source.close()

    asyncio.run(run())


def test_what_a_process_has_put_or_read_it_does_not_ask_for(tmp_path: Path) -> None:
    async def run() -> None:
        servers = FailingServers()
        router, other = (
            ResultRouter(servers, in_files(tmp_path)),
            ResultRouter(servers, in_files(tmp_path)),
        )
        reference = await router.put(PLACE, [1, 2, 3])
        assert await router.resolve(reference) == [1, 2, 3]
        assert await router.read_rows(reference, 1, 2) == [2]
        assert servers.calls == ["put_payload"]
        for _ in range(3):
            assert await other.resolve(reference) == [1, 2, 3]
        assert servers.calls == ["put_payload", "payload"]

    asyncio.run(run())


def test_a_value_from_memory_is_nobody_elses_object(tmp_path: Path) -> None:
    async def run() -> None:
        router = ResultRouter(FailingServers(), in_files(tmp_path))
        reference = await router.put(PLACE, {"a": [1]})
        (await router.resolve(reference))["a"].append(2)
        assert await router.resolve(reference) == {"a": [1]}

    asyncio.run(run())


def test_a_rider_is_read_from_memory_while_it_is_held_and_no_longer(tmp_path: Path) -> None:
    async def run() -> None:
        servers = FailingServers()
        router = ResultRouter(servers, in_files(tmp_path), cache=0)
        reference, rider = await router.carry(PLACE, {"a": 1}, MAX_REPORT_PAYLOAD_BYTES)
        assert rider is not None
        assert await router.resolve(reference) == {"a": 1}
        with pytest.raises(Conflict):
            await router.carry(PLACE, {"a": 2}, MAX_REPORT_PAYLOAD_BYTES)
        again = await router.carry(PLACE, {"a": 1}, MAX_REPORT_PAYLOAD_BYTES)
        assert again == (reference, rider)
        del rider, again
        gc.collect()
        with pytest.raises(NotFound):
            await router.resolve(reference)

    asyncio.run(run())


# ---- a command's puts ----------------------------------------------------------------------------------------------------------


def persist(store: Any, launch: int = 1) -> ResultWriter:
    command = Command(
        command_id=CommandId("c0ffee"),
        execution_id=ExecutionId("7"),
        playbook="hash",
        step="s",
        activation=ActivationId("a"),
    )
    return ResultWriter(command, store, ResultReader(store, read_no_manifest), launch)


def test_small_results_cost_nothing_before_their_report(tmp_path: Path) -> None:
    async def run() -> None:
        servers = FailingServers()
        router = ResultRouter(servers, in_files(tmp_path), cache=0)
        puts = persist(router)
        first, second = (
            await puts.put_value("a", {"n": 1}),
            await puts.put_value("b", {"n": 2}, parent=RefId("5")),
        )
        assert await router.resolve(first) == {"n": 1}
        assert servers.calls == []
        refs = puts.take_references()
        assert [(ref.reference, ref.payload, ref.parent) for ref in refs] == [
            (first, b'{"n":1}', None),
            (second, b'{"n":2}', "5"),
        ]
        assert puts.take_references() == ()
        servers.record(refs)
        assert await ResultRouter(servers, in_files(tmp_path)).resolve(second) == {"n": 2}

    asyncio.run(run())


def test_a_report_carries_so_much_and_no_more(tmp_path: Path) -> None:
    async def run() -> None:
        servers = FailingServers()
        puts = persist(ResultRouter(servers, in_files(tmp_path)))
        for number in range(6):
            await puts.put_value(f"t{number}", text(60_000))
        riding = [ref.payload for ref in puts.take_references() if ref.payload is not None]
        assert sum(map(len, riding)) == 240_000
        assert servers.calls == ["put_payload"] * 2
        await puts.put_value("next", text(60_000))
        assert puts.take_references()[0].payload is not None

    asyncio.run(run())


def test_a_command_that_is_begun_again_puts_everything_before_its_report(tmp_path: Path) -> None:
    async def run() -> None:
        servers = FailingServers()
        puts = persist(ResultRouter(servers, in_files(tmp_path)), launch=2)
        reference = await puts.put_value("t", 1)
        assert [ref.payload for ref in puts.take_references()] == [None]
        assert await ResultRouter(servers, in_files(tmp_path)).resolve(reference) == 1

    asyncio.run(run())


def test_a_put_through_the_servers_is_repeated_for_a_while(tmp_path: Path) -> None:
    async def run() -> None:
        await persist(
            ResultRouter(FailingServers(failures=MAX_TRIES - 1), in_files(tmp_path))
        ).put_value("t", text(100_000))
        with pytest.raises(TaskFailed) as failing:
            await persist(
                ResultRouter(FailingServers(failures=MAX_TRIES), in_files(tmp_path))
            ).put_value("t", text(100_000))
        assert failing.value.final
        assert (failing.value.failure.code, failing.value.failure.retryable) == (
            "REFERENCE_NOT_AVAILABLE",
            True,
        )

    run_virtually(run())


# ---- cache ---------------------------------------------------------------------------------------------------------------------


def test_the_cache_is_bounded_by_bytes_and_forgets_what_was_not_used() -> None:
    cache = MemoryCache(5 * (100 + ENTRY_OVERHEAD_BYTES))
    for number in range(5):
        cache.add(str(number), b"x" * 100, "sum")
    assert cache.get("0") == (b"x" * 100, "sum")
    cache.add("5", b"y" * 100, "sum")
    assert [name for name in map(str, range(6)) if cache.get(name) is not None] == [
        "0",
        "2",
        "3",
        "4",
        "5",
    ]
    assert cache.count_bytes() == 5 * (100 + ENTRY_OVERHEAD_BYTES)
    cache.add("5", b"z", "sum")
    assert cache.count_bytes() == 4 * (100 + ENTRY_OVERHEAD_BYTES) + 1 + ENTRY_OVERHEAD_BYTES


def test_the_cache_does_not_keep_what_would_push_out_the_rest() -> None:
    cache = MemoryCache(8_000)
    cache.add("a", b"x" * 2_000, "sum")
    assert cache.get("a") is None
    assert cache.count_bytes() == 0
