"""The list of executions with its filters, counts, and changes of many executions at once."""

from typing import Any

import pytest

from noetl.log.projections import memory as list_memory
from noetl.model.ids import ExecutionId, Tenant
from noetl.model.messages import Start
from tests.integration.api.api_server import NOOP, WAITS, ApiServer, run_api_server, run_worker
from tests.waiting import wait_until

FAILS = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: fails, path: tests/fails}
workflow:
  - step: one
    tool: {kind: python, code: "raise ValueError('the disk is full')"}
"""
OTHER = ExecutionId("77")


async def run_all(here: ApiServer) -> dict[str, str]:
    """An execution that completed, one that failed and one that waits for a signal."""
    for text in (NOOP, FAILS, WAITS):
        await here.register(text)
    started = {
        name: await here.start(f"tests/{path}")
        for name, path in (("completed", "simple"), ("failed", "fails"), ("waiting", "waits"))
    }
    for name in ("completed", "failed"):
        await here.wait_for_end(started[name])
    await here.wait_for_event(started["waiting"], "command.parked")
    await wait_until(lambda: list_ids(here, waiting=True), [started["waiting"]])
    return started


async def start_for_other_tenant(here: ApiServer) -> None:
    entry = await here.node.ports.catalog.register("tests/simple", NOOP, Tenant(2))
    start = Start(execution_id=OTHER, path="p", playbook=entry.hash, tenant=Tenant(2))
    await here.node.ports.stores.inbox.start_execution(start, {})
    projections = here.node.ports.stores.projections

    async def is_projected() -> bool:
        return await projections.read_projection(OTHER) is not None

    await wait_until(is_projected)


async def list_ids(here: ApiServer, **params: Any) -> list[str]:
    page = await here.get("/api/executions", **params)
    return [row["execution_id"] for row in page["executions"]]


async def test_the_list_is_filtered_by_statuses_text_and_window() -> None:
    async with run_api_server() as here, run_worker(here):
        started = await run_all(here)
        done, failed, waiting = started.values()
        assert await list_ids(here, status="failed,completed") == [failed, done]
        assert await list_ids(here, status="failed,running") == [waiting, failed]
        assert await list_ids(here, q=failed) == [failed]
        assert set(await list_ids(here, q=failed[:3])) == set(started.values())
        assert await list_ids(here, q="tests/f") == [failed]
        assert await list_ids(here, q="  FULL disk ") == [failed]
        assert await list_ids(here, q="full moon") == []
        assert await list_ids(here, until="1h") == []
        assert await list_ids(here, since="1h", until="2020-01-01") == []
        assert len(await list_ids(here, since="1h")) == 3
        page = await here.get("/api/executions", q="full moon")
        assert (page["next"], page["looked_at"]) == (None, 3)


async def test_live_rows_say_what_they_wait_for() -> None:
    async with run_api_server() as here, run_worker(here):
        started = await run_all(here)
        (row,) = (await here.get("/api/executions", waiting=True))["executions"]
        assert row["execution_id"] == started["waiting"]
        assert (row["waits_for"]["on"], row["waits_for"]["step"], row["waits_for"]["name"]) == (
            "signal",
            "one",
            "go",
        )
        assert (row["waits_for"]["since"] is not None, row["progress"]) == (True, None)
        for row in (await here.get("/api/executions", status="completed,failed"))["executions"]:
            assert (row["waits_for"], row["progress"]) == (None, None)


async def test_a_page_that_looked_at_enough_names_where_to_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(list_memory, "MAX_WALKED_ROWS", 2)
    async with run_api_server() as here, run_worker(here):
        await here.register(NOOP)
        ids = [await here.start() for _ in range(5)]
        for execution_id in ids:
            await here.wait_for_end(execution_id)
        found: list[str] = []
        pages = 0
        before: dict[str, str] = {}
        while True:
            page = await here.get("/api/executions", path="tests/s*", limit=10, **before)
            found += [row["execution_id"] for row in page["executions"]]
            pages += 1
            if page["next"] is None:
                break
            before = {"before": page["next"]}
        assert (found, pages) == ([*reversed(ids)], 3)


async def test_executions_are_counted_by_status_and_over_time() -> None:
    async with run_api_server() as here, run_worker(here):
        await run_all(here)
        counts = await here.get("/api/executions/counts", buckets=10)
        found = {name: each["n"] for name, each in counts["counts"].items() if each["n"]}
        assert found == {"completed": 1, "failed": 1, "running": 1, "waiting": 1}
        assert all(each["more"] is False for each in counts["counts"].values())
        histogram = counts["histogram"]
        assert {name: len(each) for name, each in histogram["by"].items()} == dict.fromkeys(
            histogram["by"], 10
        )
        assert sum(map(sum, histogram["by"].values())) == 3
        assert counts["reaches_back_to"] is None
        hour = await here.get("/api/executions/counts", since="1h", path="tests/fails")
        assert hour["counts"]["failed"]["n"] == 1
        assert hour["counts"]["completed"]["n"] == 0
        assert hour["histogram"]["width_ms"] == 60_000
        assert sum(hour["histogram"]["by"]["failed"][-2:]) == 1
        past = await here.get("/api/executions/counts", until="1h")
        assert sum(each["n"] for each in past["counts"].values()) == 0


async def test_another_tenant_is_neither_listed_nor_counted() -> None:
    async with run_api_server() as here, run_worker(here):
        await start_for_other_tenant(here)
        assert await list_ids(here) == []
        assert await list_ids(here, q="77") == []
        counts = await here.get("/api/executions/counts")
        assert sum(each["n"] for each in counts["counts"].values()) == 0
        body = {"do": "cancel", "ids": [OTHER]}
        answer = await here.http.post("/api/executions/bulk", json=body)
        (outcome,) = answer.json()["outcomes"]
        assert (outcome["ok"], outcome["code"]) == (False, "NOT_FOUND")


@pytest.mark.parametrize(
    "params",
    [
        {"status": "failed,pausd"},
        {"q": "x" * 201},
        {"since": "yesterday"},
        {"until": "tomorrow"},
        {"before": "-1"},
        {"waiting": "maybe"},
        {"limit": "0"},
    ],
)
async def test_a_filter_that_means_nothing_is_refused(params: dict[str, str]) -> None:
    async with run_api_server() as here:
        answer = await here.http.get("/api/executions", params=params)
        assert (answer.status_code, answer.headers["content-type"]) == (
            422,
            "application/problem+json",
        )


@pytest.mark.parametrize(
    "q", ["%", "_", "\\", "'", "0", "9" * 200, "٣", "\u202e", "a\tb", "é" * 200]
)
async def test_odd_search_texts_find_nothing_and_break_nothing(q: str) -> None:
    async with run_api_server() as here, run_worker(here):
        await here.register(NOOP)
        await here.wait_for_end(await here.start())
        assert await list_ids(here, q=q) == []


async def test_counts_refuse_what_they_cannot_divide() -> None:
    async with run_api_server() as here:
        for params in ({"buckets": "0"}, {"buckets": "501"}, {"status": "failed"}):
            answer = await here.http.get("/api/executions/counts", params=params)
            assert answer.status_code == 422, params


async def test_each_execution_of_a_bulk_change_has_its_own_outcome() -> None:
    async with run_api_server() as here, run_worker(here):
        started = await run_all(here)
        ids = [started["failed"], started["waiting"], "12", "x", started["failed"]]
        body = {"do": "retry", "ids": ids}
        headers = {"Idempotency-Key": "once"}
        answer = await here.http.post("/api/executions/bulk", json=body, headers=headers)
        retried, live, unknown, odd = answer.json()["outcomes"]
        assert (retried["execution_id"], retried["ok"]) == (started["failed"], True)
        assert (live["ok"], live["code"], live["started"]) == (False, "CONFLICT", None)
        assert (unknown["code"], odd["code"]) == ("NOT_FOUND", "NOT_FOUND")
        again = await here.http.post("/api/executions/bulk", json=body, headers=headers)
        assert again.json()["outcomes"][0]["started"] == retried["started"]
        row = await here.wait_for_end(retried["started"])
        assert row["retry_of"] == started["failed"]
        retries = await here.node.ports.stores.projections.list_retries(
            ExecutionId(started["failed"])
        )
        assert retries == [retried["started"]]


async def test_many_executions_are_paused_resumed_and_cancelled() -> None:
    async with run_api_server() as here, run_worker(here):
        await here.register(WAITS)
        ids = [await here.start("tests/waits") for _ in range(20)]
        for execution_id in ids:
            await here.wait_for_event(execution_id, "command.parked")

        async def change(do: str) -> list[dict[str, Any]]:
            answer = await here.http.post("/api/executions/bulk", json={"do": do, "ids": ids})
            assert answer.status_code == 200, answer.text
            return list(answer.json()["outcomes"])

        assert all(outcome["ok"] for outcome in await change("pause"))
        again = await change("pause")
        assert {outcome["code"] for outcome in again} == {"NO_EFFECT"}
        assert "paused already" in again[0]["message"]
        assert all(outcome["ok"] for outcome in await change("resume"))
        assert all(outcome["ok"] for outcome in await change("cancel"))
        for execution_id in ids:
            assert (await here.wait_for_end(execution_id))["status"] == "cancelled"
        assert {outcome["code"] for outcome in await change("cancel")} == {"CONFLICT"}


async def test_a_bulk_change_that_is_too_large_or_unknown_is_refused() -> None:
    async with run_api_server() as here:
        for body in (
            {"do": "delete", "ids": ["1"]},
            {"do": "cancel", "ids": []},
            {"do": "cancel", "ids": [str(number) for number in range(1, 202)]},
            {"do": "cancel", "ids": [1]},
            {"do": "cancel", "ids": ["1" * 201]},
            {"do": "cancel"},
        ):
            answer = await here.http.post("/api/executions/bulk", json=body)
            assert answer.status_code == 422, body


async def test_what_a_retry_would_do_can_be_read() -> None:
    async with run_api_server() as here, run_worker(here):
        started = await run_all(here)
        read = await here.get(f"/api/executions/{started['failed']}/retry")
        posted = await here.http.post(f"/api/executions/{started['failed']}/retry/preview")
        assert read == posted.json()
        assert read["again"] == ["one"]
        for execution_id, status in ((started["waiting"], 409), (started["completed"], 409)):
            answer = await here.http.get(f"/api/executions/{execution_id}/retry")
            assert answer.status_code == status
