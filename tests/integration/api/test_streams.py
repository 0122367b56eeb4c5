"""Server-sent events: from where the reader stands, live, and to the end."""

import asyncio

import pytest

from noetl.server.streams import live
from noetl.server.streams import service as streams
from tests.integration.api.api_server import (
    NOOP,
    SHARDS,
    WAITS,
    make_memory_ports,
    read_messages,
    run_api_server,
    run_worker,
)


async def test_a_stream_goes_on_where_its_reader_stopped() -> None:
    async with run_api_server() as here, run_worker(here):
        await here.register(WAITS)
        execution_id = await here.start("tests/waits")
        url = f"/api/executions/{execution_id}/stream"
        seen: list[int] = []
        async with here.http.stream("GET", url) as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            async for name, seq, data in read_messages(stream):
                assert seq is not None
                assert (data["type"], data["seq"]) == (name, seq)
                seen.append(seq)
                if name == "command.parked":
                    break
        await here.http.post(f"/api/executions/{execution_id}/signals/go")
        async with here.http.stream("GET", url, headers={"Last-Event-ID": str(seen[-1])}) as stream:
            async for name, seq, _ in read_messages(stream):
                if name == "end":
                    break
                assert seq is not None
                seen.append(seq)
        page = await here.get(f"/api/executions/{execution_id}/events")
        assert seen == [event["seq"] for event in page["events"]]
        answer = await here.http.get(url, headers={"Last-Event-ID": str(seen[-1])})
        assert answer.status_code == 204


async def test_a_reader_is_woken_rather_than_polled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "STREAM_POLL_S", 60.0)
    async with run_api_server() as here, run_worker(here):
        await here.register(NOOP)
        row = await here.wait_for_end(await here.start())
        assert row["status"] == "completed"


async def test_a_stream_of_another_servers_execution_comes_by_looking(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(streams, "STREAM_POLL_S", 0.1)
    ports = make_memory_ports()
    async with (
        run_api_server(ports, "s1") as one,
        run_api_server(ports, "s2") as two,
        run_worker(one),
        run_worker(two, "w2"),
    ):
        await one.register(NOOP)
        started = [await one.start() for _ in range(SHARDS)]
        for execution_id in started:
            assert (await two.wait_for_end(execution_id))["status"] == "completed"


async def test_a_stream_of_another_servers_execution_is_woken_by_hints(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(streams, "STREAM_POLL_S", 60.0)
    monkeypatch.setattr(live, "SERVER_COUNT_INTERVAL_S", 0.2)
    ports = make_memory_ports()
    async with (
        run_api_server(ports, "s1", several=True) as one,
        run_api_server(ports, "s2", several=True) as two,
        run_worker(one),
        run_worker(two, "w2"),
    ):
        await one.register(NOOP)
        for execution_id in [await one.start() for _ in range(SHARDS)]:
            assert (await two.wait_for_end(execution_id))["status"] == "completed"


async def test_a_quiet_stream_says_that_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "HEARTBEAT_INTERVAL_S", 0.02)
    monkeypatch.setattr(streams, "STREAM_POLL_S", 0.02)
    async with run_api_server() as here:
        await here.register(WAITS)
        execution_id = await here.start("tests/waits")
        async with here.http.stream("GET", f"/api/executions/{execution_id}/stream") as stream:
            async for line in stream.aiter_lines():
                if line == ":":
                    break


async def test_the_list_is_followed_as_it_changes() -> None:
    async with run_api_server() as here:
        await here.register(NOOP)
        first = await here.start()
        await here.get(f"/api/executions/{first}", min_seq=1)
        async with here.http.stream(
            "GET", "/api/executions/stream", params={"status": "running"}
        ) as stream:
            told = read_messages(stream)
            name, _, data = await anext(told)
            assert (name, data["execution_id"]) == ("execution", first)
            second = await here.start()
            name, _, data = await anext(told)
            assert (name, data["execution_id"]) == ("execution", second)
            await here.http.post(f"/api/executions/{first}/cancel")
            while name != "gone":
                name, _, data = await anext(told)
            assert data["execution_id"] == first


async def test_streams_and_polls_end_with_the_server() -> None:
    async with run_api_server() as here, run_worker(here):
        await here.register(WAITS)
        execution_id = await here.start("tests/waits")
        async with (
            here.http.stream("GET", f"/api/executions/{execution_id}/stream") as stream,
            here.http.stream("GET", "/api/executions/stream") as rows,
        ):
            began = asyncio.get_running_loop().time()
            leaving = asyncio.ensure_future(here.leave())
            async for _ in stream.aiter_bytes():
                pass
            async for _ in rows.aiter_bytes():
                pass
            await leaving
            assert asyncio.get_running_loop().time() - began < 2


async def test_a_reader_that_left_is_forgotten() -> None:
    async with run_api_server() as here:
        await here.register(WAITS)
        execution_id = await here.start("tests/waits")
        async with here.http.stream("GET", f"/api/executions/{execution_id}/stream"):
            assert "noetl_event_streams 1.0" in (await here.http.get("/metrics")).text
        while "noetl_event_streams 0.0" not in (await here.http.get("/metrics")).text:
            pass
        assert here.node.live._watches == {}
