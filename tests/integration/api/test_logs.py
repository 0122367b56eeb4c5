"""Step logs over HTTP: while a step runs, afterwards, from where a reader stands."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from noetl.model.ids import RefId
from noetl.model.messages import StoredRef
from noetl.model.reference import Reference
from noetl.server.streams import live
from tests.integration.api.api_server import (
    ApiServer,
    make_memory_ports,
    read_messages,
    run_api_server,
    run_worker,
)

PRINTS = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: prints, path: tests/prints}}
workflow:
  - step: one
    tool:
      kind: python
      code: |
        import os, sys, time
        print("begun")
        print("oops", file=sys.stderr)
        while not os.path.exists({file!r}):
            time.sleep(0.01)
        print("ended")
    next: two
  - step: two
    tool: {{kind: python, code: "print('after')"}}
"""


async def start_printing(here: ApiServer, file: Path) -> str:
    await here.register(PRINTS.format(file=str(file)))
    return await here.start("tests/prints")


async def page(here: ApiServer, execution_id: str, **params: Any) -> list[dict[str, Any]]:
    answer = await here.http.get(f"/api/executions/{execution_id}/logs", params=params)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("application/x-ndjson")
    return [msgspec.json.decode(line) for line in answer.content.splitlines()]


@asynccontextmanager
async def follow_logs(here: ApiServer, execution_id: str, **params: Any) -> AsyncIterator[Any]:
    async with here.http.stream(
        "GET", f"/api/executions/{execution_id}/logs/stream", params=params
    ) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        yield read_messages(stream)


def list_lines(rows: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    return [(row["step"], row["stream"], row["line"]) for row in rows]


async def test_lines_are_seen_while_their_step_runs_by_wake_ups_alone(tmp_path: Path) -> None:
    file = tmp_path / "go"
    async with run_api_server() as here, run_worker(here):
        here.node.services.logs._every = 60.0
        execution_id = await start_printing(here, file)
        rows: list[dict[str, Any]] = []
        async with follow_logs(here, execution_id) as stream:
            while len(rows) < 2:
                name, number, data = await anext(stream)
                assert (name, number) == ("lines", data[-1]["part"])
                rows += data
            assert sorted(list_lines(rows)) == [
                ("one", "stderr", "oops"),
                ("one", "stdout", "begun"),
            ]
            assert sorted(list_lines(await page(here, execution_id))) == sorted(list_lines(rows))
            row = await here.get(f"/api/executions/{execution_id}")
            assert row["status"] == "running"
            file.touch()
            async for name, _, data in stream:
                if name == "end":
                    break
                rows += data
        assert list_lines(rows)[2:] == [("one", "stdout", "ended"), ("two", "stdout", "after")]
        assert [row["seq"] for row in rows] == [1, 2, 3, 1]
        assert {row["attempt"] for row in rows} == {1}
        assert await page(here, execution_id) == rows
        assert here.node.live._watches == {}
        events = (await here.get(f"/api/executions/{execution_id}/events"))["events"]
        assert b"oops" not in msgspec.json.encode(events)


async def test_a_reader_goes_on_where_it_stopped_and_may_ask_for_one_step(tmp_path: Path) -> None:
    file = tmp_path / "go"
    file.touch()
    async with run_api_server() as here, run_worker(here):
        execution_id = await start_printing(here, file)
        await here.wait_for_end(execution_id)
        rows = await page(here, execution_id)
        last = rows[-1]["part"]
        assert await page(here, execution_id, after=last) == []
        assert await page(here, execution_id, after=last - 1) == rows[-1:]
        assert list_lines(await page(here, execution_id, step="two")) == [
            ("two", "stdout", "after")
        ]
        assert await page(here, execution_id, step="three") == []
        async with follow_logs(here, execution_id, after=last - 1) as stream:
            assert [name async for name, _, _ in stream] == ["lines", "end"]
        url = f"/api/executions/{execution_id}/logs/stream"
        assert (await here.http.get(url, headers={"Last-Event-ID": str(last)})).status_code == 204
        for place in ("logs", "logs/stream"):
            assert (await here.http.get(f"/api/executions/77/{place}")).status_code == 404


async def test_lines_stored_at_another_server_wake_readers_here(
    tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(live, "SERVER_COUNT_INTERVAL_S", 0.2)
    file, ports = tmp_path / "go", make_memory_ports()
    async with (
        run_api_server(ports, "s1", several=True) as one,
        run_api_server(ports, "s2", several=True) as two,
        run_worker(one),
    ):
        two.node.services.logs._every = 60.0
        execution_id = await start_printing(one, file)
        async with follow_logs(two, execution_id) as stream:
            assert (await anext(stream))[0] == "lines"
            file.touch()
            async for name, _, _ in stream:
                if name == "end":
                    break


async def test_what_is_no_log_is_passed_over_and_what_cannot_be_read_says_so(
    tmp_path: Path,
) -> None:
    async with run_api_server() as here:
        execution_id = await start_printing(here, tmp_path / "go")
        head = f"noetl://execution/{execution_id}"
        good = make_stored_ref(
            f"{head}/log/one/c-1-0", b'[{"seq":1,"at":1,"stream":"stdout","line":"hi"}]', "1"
        )
        wrong = [
            make_stored_ref(f"{head}/result/one/k", b"[]", "2"),
            make_stored_ref("elsewhere", b"[]", "3"),
            make_stored_ref(f"{head}/log/one/c-1-1", b"[]", "4", sha="0" * 64),
        ]
        broken = make_stored_ref(f"{head}/log/one/c-1-3", b"\xff", "5")
        for parts in ([good, *wrong], [good, broken]):
            answer = await here.http.post("/api/worker/logs", content=msgspec.json.encode(parts))
            assert answer.status_code == 200, answer.text
        assert [row["line"] for row in await page(here, execution_id)] == [
            "hi",
            f"({broken.reference.uri} is damaged)",
        ]
        no_number = msgspec.json.encode([make_stored_ref(f"{head}/log/one/c-1-2", b"[]", "x")])
        for malformed in (b"[1]", no_number):
            assert (await here.http.post("/api/worker/logs", content=malformed)).status_code == 422


def make_stored_ref(uri: str, payload: bytes, ref_id: str, sha: str | None = None) -> StoredRef:

    reference = Reference(
        ref_id=RefId(ref_id), type="kv", uri=uri, sha256=sha or sha256(payload).hexdigest()
    )
    return StoredRef(reference=reference, payload=payload)


async def test_a_stream_of_lines_ends_with_the_server(tmp_path: Path) -> None:
    async with run_api_server() as here:
        execution_id = await start_printing(here, tmp_path / "go")
        async with follow_logs(here, execution_id) as stream:
            leaving = asyncio.ensure_future(here.leave())
            assert [name async for name, _, _ in stream] == []
            await leaving


async def test_every_reader_takes_a_place(tmp_path: Path) -> None:
    async with run_api_server() as here:
        execution_id = await start_printing(here, tmp_path / "go")
        async with follow_logs(here, execution_id):
            assert "noetl_event_streams 1.0" in (await here.http.get("/metrics")).text
