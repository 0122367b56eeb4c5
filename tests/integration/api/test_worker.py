"""The worker's way to the server."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256

import pytest

from noetl.model.errors import InvalidInput, NotFound, OutcomeUnknown, Unavailable, Unreached
from noetl.model.exchange import MAX_EXCHANGE_BYTES, ExchangeReply, ExchangeRequest, LeaseKey
from noetl.model.ids import ExecutionId, RefId
from noetl.model.reference import Address, Reference
from noetl.runtime.listening import open_listener
from noetl.worker.http import HttpChannel
from tests.integration.api.api_server import (
    NOOP,
    TOKENS,
    ApiServer,
    make_memory_ports,
    run_api_server,
)


@asynccontextmanager
async def channel(*urls: str) -> AsyncIterator[HttpChannel]:
    made = HttpChannel(urls, TOKENS.get)
    try:
        yield made
    finally:
        await made.close()


def asking(
    free: int = 1,
    wait: float = 0,
    worker: str = "w1",
    life: str = "1",
    held: tuple[LeaseKey, ...] = (),
) -> ExchangeRequest:
    return ExchangeRequest(
        worker=worker, incarnation=life, free=free, wait=round(wait * 1e6), held=held
    )


async def start_execution(here: ApiServer) -> str:
    await here.register(NOOP)
    execution_id = await here.start()
    await here.get(f"/api/executions/{execution_id}", min_seq=1)
    return execution_id


async def test_a_poll_is_answered_when_work_comes() -> None:
    async with run_api_server(poll_interval=60.0) as here, channel(here.url) as way:
        await here.register(NOOP)
        polling = asyncio.ensure_future(way.exchange(asking(wait=10)))
        while not await here.get("/api/workers"):
            pass
        execution_id = await here.start()
        reply = await polling
        assert [command.execution_id for command in reply.commands] == [execution_id]


async def test_playbooks_and_manifests_are_read_through_the_channel() -> None:
    async with run_api_server() as here, channel(here.url) as way:
        await here.register(NOOP)
        content = (await here.get("/api/catalog/playbooks/tests/simple"))["hash"]
        assert await way.fetch_playbook(content) == NOOP
        assert await way.list_manifest_parts("none") == []
        with pytest.raises(NotFound, match="no playbook"):
            await way.fetch_playbook("0" * 64)


async def test_small_payloads_are_kept_by_the_server() -> None:
    async with run_api_server() as here, channel(here.url) as way:
        execution_id = ExecutionId(await start_execution(here))
        data = bytes(range(256)) * 100
        uri = str(Address(execution_id, "result", "one", "k-1"))
        reference = Reference(
            ref_id=RefId("77"), type="kv", uri=uri, sha256=sha256(data).hexdigest(), bytes=len(data)
        )
        assert await way.payload(reference.ref_id, uri) is None
        await way.put_payload(reference, data)
        await way.put_payload(reference, data)
        assert await way.payload(reference.ref_id, uri) == data
        assert await way.payload(reference.ref_id, uri + "x") is None
        with pytest.raises(InvalidInput, match="checksum"):
            await way.put_payload(reference, b"other")
        with pytest.raises(InvalidInput, match="not a NoETL reference"):
            await way.payload(RefId("77"), "file:///etc/passwd")
        with pytest.raises(InvalidInput, match="413"):
            await way.put_payload(reference, b"x" * 3_000_000)
        answer = await here.http.put("/api/worker/payloads", params={"reference": "{"}, content=b"")
        assert answer.status_code == 422


async def test_a_poll_ends_with_the_server() -> None:
    async with run_api_server() as here, channel(here.url) as way:
        polling = asyncio.ensure_future(way.exchange(asking(wait=20)))
        while not await here.get("/api/workers"):
            pass
        leaving = asyncio.ensure_future(here.leave())
        with pytest.raises(Unavailable):
            await polling
        await leaving


async def test_no_server_is_unreached_and_nothing_was_done() -> None:
    free = open_listener(port=0)
    url = f"http://127.0.0.1:{free.getsockname()[1]}"
    free.close()
    async with channel(url) as way:
        with pytest.raises(Unreached):
            await way.exchange(asking())


async def test_the_next_server_is_asked_when_one_is_not_there() -> None:
    free = open_listener(port=0)
    dead = f"http://127.0.0.1:{free.getsockname()[1]}"
    free.close()
    async with run_api_server() as here, channel(dead, here.url) as way:
        assert await way.exchange(asking()) == ExchangeReply()


async def test_an_answer_that_breaks_off_leaves_the_outcome_unknown() -> None:
    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(cut, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, channel(f"http://127.0.0.1:{port}") as way:
        with pytest.raises(OutcomeUnknown):
            await way.exchange(asking())


async def test_what_is_no_exchange_is_refused() -> None:
    async with run_api_server() as here, channel(here.url) as way:
        for body in (
            b"",
            b"{}",
            b"[" * 5000,
            b'{"worker":"w","incarnation":"1","free":"x"}',
            b'{"worker":"","incarnation":"1"}',
        ):
            answer = await here.http.post("/api/worker/exchange", content=body)
            assert (answer.status_code, answer.json()["code"]) == (422, "INVALID_INPUT"), body[:40]
        answer = await here.http.post(
            "/api/worker/exchange", content=b" " * (MAX_EXCHANGE_BYTES + 1)
        )
        assert answer.status_code == 413
        with pytest.raises(InvalidInput, match="422"):
            await way.exchange(asking(free=-1))


async def test_a_worker_whose_connection_broke_is_lost_soon() -> None:
    async with run_api_server() as here:
        here.node.presence._grace = 0.05
        execution_id = await start_execution(here)
        async with channel(here.url) as way:
            (command,) = (await way.exchange(asking())).commands
        async with channel(here.url) as other:  # long before the lease of six seconds is over
            reply = ExchangeReply()
            while not reply.commands:
                reply = await other.exchange(asking(worker="w2", wait=0.2))
            assert "noetl_workers_lost_total 1.0" in (await here.http.get("/metrics")).text
        assert [(each.command_id, each.attempt) for each in reply.commands] == [
            (command.command_id, 2)
        ]
        assert (await here.get("/api/queue", execution_id=execution_id))["commands"][0][
            "worker"
        ] == "w2/1"


async def test_a_worker_that_comes_back_in_time_keeps_its_work() -> None:
    async with run_api_server() as here:
        presence = here.node.presence
        presence._grace = 3600
        await start_execution(here)
        async with channel(here.url) as way:
            (command,) = (await way.exchange(asking())).commands
        while not presence._loss_timers:
            await here.get("/health")
        held = (LeaseKey(command.command_id, command.attempt),)
        async with channel(here.url) as way:
            await way.exchange(asking(free=0, held=held))
            assert not presence._loss_timers  # nobody waits any more to give it up
            assert (await way.exchange(asking(free=0, held=held))).stop == ()


async def test_a_worker_that_another_server_hears_of_is_not_lost() -> None:
    ports = make_memory_ports()
    async with run_api_server(ports, "s1") as one, run_api_server(ports, "s2") as two:
        for here in (one, two):
            here.node.presence._grace = 0.1
        await start_execution(one)
        async with channel(one.url) as first, channel(two.url) as second:
            command = None
            while command is None:
                command = next(iter((await first.exchange(asking())).commands), None)
            held = (LeaseKey(command.command_id, command.attempt),)
            await first.close()
            await second.exchange(asking(free=0, held=held))
            while (
                one.node.presence._connections
                or one.node.presence._loss_timers
                or one.node.presence._tasks
            ):
                await one.get("/health")  # until it has given it up
            assert (await second.exchange(asking(free=0, held=held))).stop == ()


async def test_a_poll_whose_worker_left_is_given_nothing() -> None:
    async with run_api_server() as here:
        await here.register(NOOP)
        async with channel(here.url) as way:
            polling = asyncio.ensure_future(way.exchange(asking(wait=20)))
            while not await here.get("/api/workers"):
                pass
            polling.cancel()
            await asyncio.wait((polling,))
        while here.node.worker_routes._waiting:
            await here.get("/health")
        execution_id = await here.start()
        await here.get(f"/api/executions/{execution_id}", min_seq=1)
        (command,) = (await here.get("/api/queue"))["commands"]
        assert command["status"] == "queued"


async def test_connections_are_reused() -> None:
    async with run_api_server() as here, channel(here.url) as way:
        for _ in range(5):
            await way.exchange(asking(free=0))
        assert len(here.node.presence._holders) == 1
        await asyncio.gather(*[way.exchange(asking(free=0, wait=0.05)) for _ in range(3)])
        assert len(here.node.presence._holders) == 3
        await asyncio.gather(*[way.exchange(asking(free=0)) for _ in range(3)])
        assert len(here.node.presence._holders) == 3


async def test_a_connection_that_the_server_closed_is_not_used_again() -> None:
    ports = make_memory_ports()
    async with run_api_server(ports) as here, channel(here.url) as way:
        await way.exchange(asking(free=0))
        await here.leave()
        with pytest.raises(Unreached):
            await way.exchange(asking(free=0))


@pytest.mark.parametrize(
    "url", ["", "127.0.0.1:8082", "ftp://x", "http://", "http://u:p@x", "http://x?y"]
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput):
        HttpChannel([url])


async def test_an_answer_that_is_no_http_leaves_the_outcome_unknown() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"hello\r\n\r\n")
        await writer.drain()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    async with server, channel(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}") as way:
        with pytest.raises(OutcomeUnknown, match="not HTTP"):
            await way.exchange(asking())


async def test_a_token_that_comes_after_the_connection_is_sent_at_once() -> None:
    async with run_api_server() as here:
        for found, is_answered in (
            ([None, TOKENS[here.url]], True),
            (["noetl_old", TOKENS[here.url]], True),
            ([None, None], False),
            (["noetl_wrong", "noetl_wrong"], False),
        ):
            left = iter(found)
            way = HttpChannel([here.url], lambda _, left=left: next(left))  # type: ignore[misc]
            if is_answered:
                await way.exchange(asking(free=0))
            else:
                with pytest.raises(Unreached, match="401"):
                    await way.exchange(asking(free=0))
            await way.close()
