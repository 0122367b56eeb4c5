"""Who waits is woken; who does not read is dropped; who is gone is lost."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from msgspec import structs

from noetl.bus.memory import BusMemory
from noetl.leases.memory import LeasesMemory
from noetl.log.presence.memory import PresenceMemory
from noetl.log.projections.port import Projection
from noetl.log.queue.memory import QueueMemory
from noetl.log.tables import MemoryDatabase
from noetl.metrics import Metrics
from noetl.model.commands import Command, Scope
from noetl.model.exchange import MAX_EXCHANGE_BYTES, ExchangeReply, ExchangeRequest
from noetl.model.ids import (
    DEFAULT_TENANT,
    ActivationId,
    CommandId,
    ExecutionId,
    Tenant,
    shard_of,
)
from noetl.server.streams import routes as sse
from noetl.server.streams.live import (
    LiveObserver,
    LiveUpdates,
    announce_changes,
    hear_changes,
    make_events_topic,
    make_row_topic,
)
from noetl.server.streams.service import RowGone, _diff_listed_rows
from noetl.server.workers.presence import Presence
from noetl.server.workers.routes import encode_reply
from noetl.shard_rows import make_shard_rows
from tests.unit.server.cluster import SteppedClock


def row(execution_id: int, seq: int = 1) -> Projection:
    return Projection(
        execution_id=ExecutionId(str(execution_id)), shard=0, tenant=DEFAULT_TENANT, path="p", status="running",
        last_seq=seq, started_at=0, updated_at=0,
    )  # fmt: skip


async def test_a_wake_between_two_waits_counts() -> None:
    live = LiveUpdates()
    with live.watch(make_events_topic(ExecutionId("1"))) as watch:
        assert not await watch.wait_for_change(0.001)
        live.wake([make_events_topic(ExecutionId("1")), make_row_topic(ExecutionId("1"))])
        assert await watch.wait_for_change(0)
        assert not await watch.wait_for_change(0.001)
    assert live._watches == {}


async def test_another_server_wakes_the_readers_of_its_shard() -> None:
    live, bus = LiveUpdates(), BusMemory()
    mine, other = (
        ExecutionId(str(next(n for n in range(1, 99) if shard_of(str(n), 4) == shard)))
        for shard in (1, 2)
    )
    shards = make_shard_rows(4)
    leases = LeasesMemory(shards, SteppedClock())
    for name in ("s1", "s2"):
        await leases.register(name, None, 60_000_000)
    observer = LiveObserver(live, Metrics(), len(shards))
    tasks = [
        asyncio.ensure_future(announce_changes(bus, leases, observer)),
        asyncio.ensure_future(hear_changes(bus, live, 4)),
    ]
    with (
        live.watch(make_events_topic(mine)) as watch,
        live.watch(make_events_topic(other)) as quiet,
        live.watch("rows") as rows,
    ):
        observer.observe_rows([structs.replace(row(1), shard=1)])
        assert await rows.wait_for_change(0)
        assert await watch.wait_for_change(5)
        assert await rows.wait_for_change(0.1)
        assert not await quiet.wait_for_change(0)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_whoever_waits_ends_when_the_server_goes() -> None:
    live = LiveUpdates()
    with live.watch("rows") as watch:
        live.close()
        assert await watch.wait_for_change(0)
    with live.watch("rows") as late:
        assert await late.wait_for_change(0)


def test_a_row_pushed_out_by_newer_ones_is_not_gone() -> None:
    known = {ExecutionId("1"): 1, ExecutionId("2"): 1, ExecutionId("3"): 1}
    assert _diff_listed_rows(known, [row(4), row(3)], full=True) == [row(4)]
    assert _diff_listed_rows(known, [row(3), row(1, 5)], full=False) == [
        RowGone(ExecutionId("2")),
        row(1, 5),
    ]
    assert _diff_listed_rows(known, [row(3), row(2), row(1)], full=True) == []


async def test_a_reader_that_does_not_read_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "READER_TIMEOUT_S", 0.02)
    closed = asyncio.Event()

    async def parts() -> AsyncGenerator[bytes, None]:
        try:
            while True:
                yield b"x"
        finally:
            closed.set()

    async def send(message: Any) -> None:
        if message.get("body") == b"x":
            await asyncio.Event().wait()

    async def receive() -> Any:
        await asyncio.Event().wait()

    readers = sse.StreamReaders(Metrics(), most=1)
    stream = sse.EventStream(parts(), readers)
    sending = asyncio.ensure_future(stream({"type": "http"}, receive, send))
    await asyncio.sleep(0)
    with pytest.raises(sse.TooManyStreams):
        readers.check_room()
    await sending
    assert closed.is_set()
    readers.check_room()


def exchange(worker: str = "w", held: tuple[Any, ...] = ()) -> ExchangeRequest:
    return ExchangeRequest(worker=worker, incarnation="1", free=1, held=held)


class LostWorkers(QueueMemory):
    def __init__(self) -> None:
        super().__init__(MemoryDatabase(make_shard_rows(4), SteppedClock()))
        self.gone: list[str] = []

    async def end_leases(self, worker: str, tenant: Tenant | None = None) -> int:
        assert tenant == DEFAULT_TENANT
        self.gone.append(worker)
        return 0


class NotedWorkers(PresenceMemory):
    def __init__(self) -> None:
        super().__init__(MemoryDatabase(make_shard_rows(4), SteppedClock()))
        self.notes = 0

    async def note_worker(self, *args: Any) -> None:
        self.notes += 1
        await super().note_worker(*args)


async def test_a_worker_is_lost_with_its_last_connection() -> None:
    workers, queue = NotedWorkers(), LostWorkers()
    here = Presence(workers, queue, BusMemory(), 4, "s", Metrics(), grace=0.02)
    one, two = ("127.0.0.1", 1), ("127.0.0.1", 2)
    here.note_request(DEFAULT_TENANT, exchange(), one)
    here.note_request(DEFAULT_TENANT, exchange(), two)
    here.forget_connection(one)
    await asyncio.sleep(0.05)
    assert queue.gone == []
    here.forget_connection(two)
    here.note_request(DEFAULT_TENANT, exchange(), one)  # back in time
    await asyncio.sleep(0.05)
    assert queue.gone == []
    here.forget_connection(one)
    await asyncio.sleep(0.05)
    assert queue.gone == ["w/1"]
    assert workers.notes == 1  # it was noted once for all of that
    here.forget_connection(("127.0.0.1", 9))  # nobody's


async def test_connections_that_end_with_the_server_say_nothing() -> None:
    workers, queue = NotedWorkers(), LostWorkers()
    here = Presence(workers, queue, BusMemory(), 4, "s", Metrics(), grace=0.01)
    here.note_request(DEFAULT_TENANT, exchange(), ("127.0.0.1", 1))
    here.note_request(DEFAULT_TENANT, exchange("v"), ("127.0.0.1", 2))
    here.forget_connection(("127.0.0.1", 2))
    here.close()
    here.forget_connection(("127.0.0.1", 1))
    await asyncio.sleep(0.03)
    assert queue.gone == []


def test_a_reply_that_is_too_large_brings_fewer_commands() -> None:
    big = Scope(workload={"a": "x" * 1_000_000})
    commands = tuple(
        Command(
            command_id=CommandId(str(number)), execution_id=ExecutionId("1"), playbook="p", step="s",
            activation=ActivationId("a"), scope=big,
        )
        for number in range(8)
    )  # fmt: skip
    data = encode_reply(ExchangeReply(commands=commands))
    assert len(data) <= MAX_EXCHANGE_BYTES
    assert data.count(b"command_id") == 4
