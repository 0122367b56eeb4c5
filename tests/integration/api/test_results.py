"""Results over HTTP: a look at one, its bytes, what it was made from."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import Any

from noetl.results.tiers.memory import ResultsMemory
from tests.integration.api.api_server import ApiServer, run_api_server, run_worker

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: %s, path: tests/%s}\nworkflow:\n"
CHILD = (
    HEAD % ("child", "child")
    + """
- step: each
  loop: {in: [1, 2, 3], iterator: n}
  tool: {kind: python, code: "result = n * 2", input: {n: "{{ n }}"}}
"""
)
LINES = (
    HEAD % ("lines", "lines")
    + """
- step: fetch
  tool:
    kind: python
    code: "result = [{'id': n, 'password': 'p', 'next_page_token': 't'} for n in range(count)]"
    input: {count: 300}
    provenance: {source: here}
  set: {ctx.first: "{{ fetch.rows[0].id }}"}
  next: s
- step: s
  tool:
    - call: {kind: playbook, path: tests/child, return_step: each}
    - sum:
        kind: python
        code: "result = {'total': sum(rows), 'some': some}"
        input: {rows: "{{ call.rows }}", some: "{{ fetch.rows[1:3] }}"}
  next: t
- step: t
  tool: {kind: python, code: "result = {'x': a}", input: {a: "{{ s.total }}", b: "{{ fetch | length }}"}}
  next: nothing
- step: nothing
  tool: {kind: noop}
  next: bad
- step: bad
  tool:
    - first: {kind: python, code: "result = {'n': 1}"}
    - second: {kind: python, code: "raise ValueError('no')", input: {n: "{{ first.n }}"}}
"""
)


@asynccontextmanager
async def run_playbook(
    text: str = LINES, *more: str, store: ResultsMemory | None = None
) -> AsyncIterator[tuple[ApiServer, str]]:
    """An execution that has ended, and where it is."""
    store = store or ResultsMemory()
    async with run_api_server(store=store) as here, run_worker(here, store=store):
        for each in (CHILD, *more, text):
            await here.register(each)
        execution_id = await here.start("tests/lines")
        await here.wait_for_end(execution_id)
        yield here, f"/api/executions/{execution_id}"


def by_step(trace: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {f"{node['step']}.{node['task']}": node for node in trace["nodes"]}


async def test_a_result_is_traced_across_steps_and_executions() -> None:
    async with run_playbook() as (here, place):
        trace = await here.get(f"{place}/trace/t")
        nodes = by_step(trace)
        assert set(nodes) == {"t.task_0", "s.sum", "fetch.task_0", "each.chunk"}
        root, fetch = nodes["t.task_0"], nodes["fetch.task_0"]
        assert trace["roots"] == [root["ref_id"]] == [trace["reference"]["ref_id"]]
        assert (root["depth"], fetch["depth"], nodes["each.chunk"]["depth"]) == (0, 1, 2)
        assert (fetch["rows"], fetch["format"], fetch["provenance"]) == (
            300,
            "arrow",
            {"source": "here"},
        )
        assert (fetch["tool"]["kind"], fetch["attempt"], fetch["input"]) == (
            "python",
            1,
            {"value": {"count": 300}},
        )
        assert nodes["s.sum"]["input"]["ref"].split("/")[4] == "input"
        assert nodes["each.chunk"]["execution_id"] != root["execution_id"]
        assert nodes["each.chunk"]["tool"]["kind"] == "python"
        edges = {(edge["source"], edge["target"], edge["kind"]) for edge in trace["edges"]}
        assert (fetch["ref_id"], root["ref_id"], "input") in edges
        assert trace["next"] is None


async def test_a_trace_comes_in_pages_and_ends_at_its_depth() -> None:
    async with run_playbook() as (here, place):
        whole = await here.get(f"{place}/trace/t")
        found, after = [], None
        while True:
            page = await here.get(
                f"{place}/trace/t", limit=1, **({} if after is None else {"after": after})
            )
            found += page["nodes"]
            after = page["next"]
            if after is None:
                break
        assert found == whole["nodes"]
        assert [
            node["step"] for node in (await here.get(f"{place}/trace/t", depth=0))["nodes"]
        ] == ["t"]
        refused = await here.http.get(f"{place}/trace/t", params={"after": "x"})
        assert (refused.status_code, refused.json()["code"]) == (422, "INVALID_INPUT")


async def test_a_loop_is_traced_by_its_parts_and_a_failed_step_by_what_it_went_out_from() -> None:
    looped = (
        HEAD % ("lines", "lines")
        + """
- step: fetch
  tool: {kind: python, code: "result = [{'id': n, 'text': 'x' * 20} for n in range(300)]"}
  next: each
- step: each
  loop: {in: "{{ fetch.rows }}", iterator: row, spec: {mode: parallel}}
  tool: {kind: python, code: "result = n", input: {n: "{{ row.id }}"}}
"""
    )
    async with run_playbook(looped) as (here, place):
        trace = await here.get(f"{place}/trace/each")
        assert trace["reference"]["format"] == "manifest"
        parts = [node for node in trace["nodes"] if node["ref_id"] in trace["roots"]]
        assert sum(node["rows"] for node in parts) == 300
        assert len(trace["roots"]) > 1
        page = await here.get(f"{place}/trace/each", limit=1)
        assert page["roots"] == [page["nodes"][0]["ref_id"]]
        assert {node["step"] for node in trace["nodes"]} == {"each", "fetch"}
    async with run_playbook() as (here, place):
        trace = await here.get(f"{place}/trace/bad")
        assert (trace["status"], trace["reference"]) == ("error", None)
        assert set(by_step(trace)) == {"bad.first"}
        assert (await here.get(f"{place}/trace/nothing"))["nodes"] == []


async def test_a_retry_is_traced_into_the_execution_it_inherits_from() -> None:
    retried = (
        HEAD % ("lines", "lines")
        + """
- step: fetch
  tool: {kind: python, code: "result = {'n': 1}"}
  next: use
- step: use
  tool: {kind: python, code: "raise ValueError(n)", input: {n: "{{ fetch.n }}"}}
"""
    )
    store = ResultsMemory()
    async with run_api_server(store=store) as here, run_worker(here, store=store):
        await here.register(retried)
        first = await here.start("tests/lines")
        await here.wait_for_end(first)
        second = (await here.http.post(f"/api/executions/{first}/retry")).json()["execution_id"]
        await here.wait_for_end(second)
        trace = await here.get(f"/api/executions/{second}/trace/fetch")
        assert [node["execution_id"] for node in trace["nodes"]] == [first]


async def test_a_result_is_shown_with_its_beginning() -> None:
    async with run_playbook() as (here, place):
        shown = await here.get(f"{place}/result/fetch", rows=2)
        assert (shown["status"], shown["context"]["row_count"]) == ("ok", 300)
        assert shown["reference"].keys() == {
            "ref_id",
            "uri",
            "tier",
            "bytes",
            "rows",
            "format",
            "sha256",
        }
        assert shown["meta"]["provenance"] == {"source": "here"}
        assert shown["meta"]["input"] == {"value": {"count": 300}}
        preview = shown["preview"]
        assert (preview["row_count"], preview["cut"], preview["value"]) == (300, True, None)
        assert preview["rows"] == [{"id": n, "next_page_token": "t"} for n in range(2)]
        assert preview["columns"][0] == {"name": "id", "type": "int64"}
        assert (await here.get(f"{place}/result/t"))["preview"]["value"] == {"x": 12}
        assert (await here.get(f"{place}/result/nothing"))["preview"] is None
        bad = await here.get(f"{place}/result/bad")
        assert (bad["status"], bad["error"]["code"], bad["preview"]) == (
            "error",
            "PYTHON_ERROR",
            None,
        )
        assert bad["meta"]["tool"]["kind"] == "python"
        missing = await here.http.get(f"{place}/result/nope")
        assert (missing.status_code, "steps that have one" in missing.json()["hint"]) == (404, True)


async def test_data_is_streamed_by_ranges() -> None:
    async with run_playbook() as (here, place):
        whole = await here.http.get(f"{place}/result/s/data")
        assert (whole.status_code, whole.headers["Content-Type"]) == (200, "application/json")
        assert whole.json()["total"] == 12
        assert whole.headers["ETag"] == f'"{sha256(whole.content).hexdigest()}"'
        assert whole.headers["Accept-Ranges"] == "bytes"
        assert whole.headers["Content-Disposition"].endswith('-s.json"')
        size = len(whole.content)
        for asked, span in {
            "bytes=0-3": (0, 4), "bytes=2-": (2, size), "bytes=-5": (size - 5, size), "bytes=3-99999": (3, size),
        }.items():  # fmt: skip
            part = await here.http.get(f"{place}/result/s/data", headers={"Range": asked})
            assert (part.status_code, part.content) == (206, whole.content[slice(*span)]), asked
            assert part.headers["Content-Range"] == f"bytes {span[0]}-{span[1] - 1}/{size}"
            assert part.headers["Content-Length"] == str(span[1] - span[0])
        for asked in ("bytes=99999-", "bytes=-0", "bytes=5-4"):
            refused = await here.http.get(f"{place}/result/s/data", headers={"Range": asked})
            assert (refused.status_code, refused.headers["Content-Range"]) == (
                416,
                f"bytes */{size}",
            ), asked
        for ignored in ("lines=1-2", "bytes=0-1,3-4", "bytes=-", "bytes=x-1"):
            all_of_it = await here.http.get(f"{place}/result/s/data", headers={"Range": ignored})
            assert (all_of_it.status_code, all_of_it.content) == (200, whole.content), ignored
        changed = {"Range": "bytes=0-3", "If-Range": '"other"'}
        assert (await here.http.get(f"{place}/result/s/data", headers=changed)).status_code == 200
        same = {"Range": "bytes=0-3", "If-Range": whole.headers["ETag"]}
        assert (await here.http.get(f"{place}/result/s/data", headers=same)).status_code == 206


async def test_data_is_described_without_being_sent() -> None:
    async with run_playbook() as (here, place):
        for params in ({}, {"format": "csv"}, {"format": "parquet", "start": 5}):
            whole = await here.http.get(f"{place}/result/fetch/data", params=params)
            told = await here.http.head(
                f"{place}/result/fetch/data", params=params, headers={"Range": "bytes=0-3"}
            )
            assert (told.status_code, told.content) == (200, b"")
            for name in (
                "Content-Type",
                "Content-Length",
                "ETag",
                "Repr-Digest",
                "Accept-Ranges",
                "Content-Disposition",
            ):
                assert told.headers.get(name) == whole.headers.get(name), (params, name)
        assert (
            await here.http.head(f"{place}/result/t/data", params={"format": "csv"})
        ).status_code == 422
        assert (await here.http.head(f"{place}/result/nope/data")).status_code == 404


async def test_data_comes_in_other_formats() -> None:
    async with run_playbook() as (here, place):
        lines = await here.http.get(
            f"{place}/result/fetch/data", params={"format": "jsonl", "start": 5, "stop": 7}
        )
        assert [json.loads(line)["id"] for line in lines.text.splitlines()] == [5, 6]
        assert lines.headers["Accept-Ranges"] == "none"
        text = await here.http.get(
            f"{place}/result/fetch/data", params={"format": "csv", "stop": 1}
        )
        assert text.text == "id,password,next_page_token\n0,p,t\n"
        stored = await here.http.get(f"{place}/result/fetch/data")
        assert stored.headers["Content-Type"] == "application/vnd.apache.arrow.stream"
        assert (await here.http.get(f"{place}/result/nothing/data")).json() is None
        refused = await here.http.get(f"{place}/result/t/data", params={"format": "csv"})
        assert (refused.status_code, refused.json()["detail"]) == (422, "the result has no rows")
        unknown = await here.http.get(f"{place}/result/t/data", params={"format": "xml"})
        assert unknown.status_code == 422


async def test_a_server_without_a_store_says_so_and_still_traces() -> None:
    async with run_api_server() as here, run_worker(here):
        await here.register(CHILD)
        await here.register(LINES)
        execution_id = await here.start("tests/lines")
        await here.wait_for_end(execution_id)
        place = f"/api/executions/{execution_id}"
        for what in ("result/t", "result/t/data"):
            refused = await here.http.get(f"{place}/{what}")
            assert (refused.status_code, refused.json()["code"]) == (503, "NO_STORE")
            assert "NOETL_STORAGE_CLOUD_TIER" in refused.json()["hint"]
        assert len((await here.get(f"{place}/trace/t"))["nodes"]) > 2


async def test_another_tenant_finds_nothing() -> None:
    async with run_playbook() as (here, place):
        here.http.headers.update(await here.make_foreign_header())
        paths = [
            place,
            *(f"{place}/{what}" for what in ("result/t", "result/t/data", "trace/t", "status")),
        ]
        answers = await asyncio.gather(*map(here.http.get, paths))
        assert [answer.status_code for answer in answers] == [404] * len(paths)


async def test_a_payload_that_is_gone_is_not_found() -> None:
    store = ResultsMemory()
    async with run_playbook(store=store) as (here, place):
        store._payloads.clear()
        for what in ("result/t", "result/t/data"):
            answer = await here.http.get(f"{place}/{what}")
            assert (answer.status_code, "NOETL_HOME" in answer.json()["hint"]) == (404, True)


VARIABLES = (
    HEAD % ("variables", "variables")
    + """
- step: load
  tool:
    kind: python
    input: {count: "{{ workload.count }}"}
    code: "result = {'rows': [{'n': n, 'text': 'x' * 90} for n in range(count)], 'long': 'y' * 5000}"
    set: {ctx.task: {inner: "{{ result.long }}"}}
  set:
    ctx.all: "{{ load.rows }}"
    ctx.some: "{{ load.rows[:2] }}"
    ctx.long: "{{ load.long }}"
    ctx.n: "{{ load.rows | length }}"
"""
)


async def test_a_variable_is_read_whole_whatever_its_size() -> None:
    store = ResultsMemory()
    async with run_api_server(store=store) as here, run_worker(here, store=store):
        await here.register(VARIABLES)
        execution_id = await here.start("tests/variables", payload={"count": 2_000})
        await here.wait_for_end(execution_id)
        rows = [{"n": n, "text": "x" * 90} for n in range(2_000)]

        async def one(name: str) -> Any:
            found = await here.get(f"/api/vars/{execution_id}/{name}")
            assert (found["execution_id"], found["name"]) == (execution_id, name)
            return found["value"]

        assert [await one(name) for name in ("n", "some", "long", "task")] == [
            2_000, rows[:2], "y" * 5_000, {"inner": "y" * 5_000},
        ]  # fmt: skip
        assert await one("all") == rows
        listed = (await here.get(f"/api/vars/{execution_id}"))["vars"]
        assert {name: listed[name] for name in ("n", "some", "long")} == {
            "n": 2_000,
            "some": rows[:2],
            "long": "y" * 5_000,
        }
        assert listed["all"]["$reference"]["rows"] == 2_000
        missing = await here.http.get(f"/api/vars/{execution_id}/nope")
        assert missing.status_code == 404


async def test_a_server_without_a_store_shows_links() -> None:
    async with run_api_server() as here, run_worker(here):
        await here.register(VARIABLES)
        execution_id = await here.start("tests/variables", payload={"count": 2})
        await here.wait_for_end(execution_id)
        assert "$reference" in (await here.get(f"/api/vars/{execution_id}"))["vars"]["some"]
        answer = await here.http.get(f"/api/vars/{execution_id}/some")
        assert (answer.status_code, answer.json()["code"]) == (503, "NO_STORE")


LOOPS = (
    HEAD % ("lines", "lines")
    + """
- step: load
  tool: {kind: python, code: "result = {'found': [{'id': n} for n in range(3)], 'rows': [{'id': 7}, {'id': 8}]}"}
  set: {ctx.found: "{{ load.found }}"}
  next: of_member
- step: of_member
  loop: {in: "{{ load.found }}", iterator: one}
  tool: {kind: python, code: "result = n", input: {n: "{{ one.id }}"}}
  next: of_rows
- step: of_rows
  loop: {in: "{{ load.rows }}", iterator: one}
  tool: {kind: python, code: "result = n", input: {n: "{{ one.id }}"}}
  next: of_ctx
- step: of_ctx
  loop: {in: "{{ ctx.found }}", iterator: one}
  tool: {kind: python, code: "result = n", input: {n: "{{ one.id }}"}}
"""
)


async def test_the_trace_of_a_small_loop_leads_to_the_step_whose_rows_it_ran_over() -> None:
    async with run_playbook(LOOPS) as (here, place):
        for step in ("of_member", "of_rows", "of_ctx"):
            nodes = by_step(await here.get(f"{place}/trace/{step}"))
            assert {f"{step}.chunk", "load.task_0"} <= set(nodes), (step, set(nodes))
