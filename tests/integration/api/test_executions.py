"""Executions over HTTP, with a worker that speaks HTTP too."""

import asyncio
import dataclasses
from collections import Counter
from typing import Any

import httpx
import pytest

from noetl.leases.memory import LeasesMemory
from noetl.log.inbox.memory import InboxMemory
from noetl.log.inbox.port import MessageState
from noetl.log.memory import make_memory_stores
from noetl.log.tables import MemoryDatabase
from noetl.model.errors import StoreUnavailable
from noetl.model.ids import ExecutionId
from noetl.shard_rows import make_shard_rows
from tests.integration.api.api_server import (
    NOOP,
    SHARDS,
    WAITS,
    ApiServer,
    WallClock,
    make_memory_ports,
    run_api_server,
    run_worker,
)


async def test_an_execution_runs_to_its_end_over_http() -> None:
    async with run_api_server() as here, run_worker(here):
        await here.register(NOOP)
        execution_id = await here.start(payload={"n": 7})
        row = await here.wait_for_end(execution_id)
        assert (row["status"], row["path"], row["execution_id"]) == (
            "completed",
            "tests/simple",
            execution_id,
        )
        assert {name: (step["status"], step["runs"]) for name, step in row["steps"].items()} == {
            "one": ("completed", 1),
            "two": ("completed", 1),
        }
        assert all(step["seconds"] >= 0 for step in row["steps"].values())
        assert await here.get(f"/api/vars/{execution_id}") == {
            "execution_id": execution_id,
            "vars": {"n": 7},
        }
        assert (await here.get(f"/api/vars/{execution_id}/n"))["value"] == 7
        status = await here.get(f"/api/executions/{execution_id}/status")
        assert (status["status"], status["ended"]) == ("completed", True)


async def test_what_was_just_started_can_be_read() -> None:
    async with run_api_server(projector_interval=0.3) as here:
        await here.register(NOOP)
        execution_id = await here.start()
        row = await here.get(f"/api/executions/{execution_id}")
        assert (row["status"], row["last_seq"], row["path"]) == ("pending", 0, "tests/simple")
        row = await here.get(f"/api/executions/{execution_id}", min_seq=1)
        assert (row["status"], list(row["steps"])) == ("running", ["one"])
        step = row["steps"]["one"]
        assert (step["status"], step["runs"], step["ended_at"], step["seconds"]) == (
            "running",
            1,
            None,
            None,
        )
        assert row["last_seq"] >= 1


async def test_one_idempotency_key_starts_one_execution() -> None:
    async with run_api_server() as here:
        await here.register(NOOP)
        answers = [
            await here.http.post(
                path, json={"path": "tests/simple"}, headers={"Idempotency-Key": "k1"}
            )
            for path in ("/api/execute", "/api/executions/execute")
        ]
        first, second = [answer.json() for answer in answers]
        assert first["execution_id"] == second["execution_id"]
        assert (first["created"], second["created"]) == (True, False)


async def test_one_idempotency_key_is_for_one_request() -> None:
    async with run_api_server() as here:
        await here.register(NOOP)
        await here.register(WAITS)

        async def ask(**body: Any) -> httpx.Response:
            return await here.http.post("/api/execute", json=body, headers={"Idempotency-Key": "k"})

        first = (await ask(path="tests/simple", payload={"n": 1, "m": {"a": 1, "b": 2}})).json()
        await here.register(NOOP.replace("{n: 1}", "{n: 1, later: true}"))
        again = {"n": 1, "m": {"b": 2, "a": 1}}
        for repeated in (
            await ask(path="tests/simple", payload=again),
            await ask(path="tests/simple", version="latest", payload=again),
            await ask(path="tests/simple", version=1, payload=again),
        ):
            assert (repeated.status_code, repeated.json()["execution_id"]) == (
                202,
                first["execution_id"],
            )
        for other in (
            await ask(path="tests/simple"),
            await ask(path="tests/simple", payload={**again, "n": True}),
            await ask(path="tests/simple", payload={**again, "more": None}),
            await ask(path="tests/simple", version=2, payload=again),
            await ask(path="tests/waits", payload=again),
        ):
            assert (other.status_code, other.json()["code"]) == (409, "CONFLICT")
            assert other.headers["content-type"] == "application/problem+json"
            assert (
                f"this key has started execution {first['execution_id']}" in other.json()["detail"]
            )
            assert "new key" in other.json()["hint"]


async def test_a_playbook_can_be_named_by_its_hash() -> None:
    async with run_api_server() as here:
        await here.register(NOOP)
        content = (await here.get("/api/catalog/playbooks/tests/simple"))["hash"]
        for playbook in (content, "tests/simple"):
            answer = await here.http.post("/api/execute", json={"playbook": playbook})
            assert answer.status_code == 202


async def test_events_come_in_order_by_page_and_by_type() -> None:
    async with run_api_server() as here, run_worker(here):
        await here.register(NOOP)
        execution_id = await here.start()
        await here.wait_for_end(execution_id)
        events, after = [], 0
        while after is not None:
            page = await here.get(f"/api/executions/{execution_id}/events", after=after, limit=3)
            events += page["events"]
            after = page["next"]
        seqs = [event["seq"] for event in events]
        assert seqs == sorted(set(seqs))
        assert events[0]["type"] == "playbook.initialized"
        assert events[-1]["type"] == "playbook.completed"
        assert all(event["execution_id"] == execution_id for event in events)
        exits = await here.get(
            f"/api/executions/{execution_id}/events", types="step.exit,step.enter", limit=3
        )
        assert [event["type"] for event in exits["events"]] == [
            "step.enter",
            "step.exit",
            "step.enter",
        ]
        more = await here.get(
            f"/api/executions/{execution_id}/events", types="step.exit", after=exits["next"]
        )
        assert ([event["data"]["step"] for event in more["events"]], more["next"]) == (
            ["two"],
            None,
        )


LOOPS = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: loops, path: tests/loops}
workflow:
  - step: each
    loop: {in: "{{ [1, 2, 3] }}", iterator: item, mode: parallel}
    tool: {kind: noop}
    next: last
  - step: last
    tool: {kind: noop}
"""


async def older_events(here: ApiServer, execution_id: str, **params: Any) -> list[dict[str, Any]]:
    page = await here.get(f"/api/executions/{execution_id}/events", names="older", **params)
    return list(page["events"])


STEP_IN_OLDER_NAMES = (
    "step.started", "command.issued", "tool.started", "action_started", "tool.finished", "action_completed",
    "step.done", "step.finished", "result", "case.started", "case.evaluated", "next.evaluated",
)  # fmt: skip


async def test_older_names_are_views_over_the_same_events() -> None:
    async with run_api_server() as here, run_worker(here):
        await here.register(NOOP)
        execution_id = await here.start()
        await here.wait_for_end(execution_id)
        assert [event["type"] for event in await older_events(here, execution_id)] == [
            "playbook.execution.requested", "playbook.request.evaluated", "execution_start", "workflow.started",
            *STEP_IN_OLDER_NAMES,
            *STEP_IN_OLDER_NAMES,
            "workflow.finished", "playbook.processed", "execution_completed",
        ]  # fmt: skip
        (first, _) = await older_events(here, execution_id, types="action_completed")
        (started, _) = await older_events(here, execution_id, types="action_started")
        assert (first["of"], started["of"], first["key"]) == (
            "command.completed",
            "command.completed",
            started["key"],
        )
        assert started["at"] < first["at"]
        path = f"/api/executions/{execution_id}/events"
        refused = await here.http.get(path, params={"names": "older", "types": "step.exit"})
        assert (refused.status_code, "step.exit" in refused.text) == (422, True)


async def test_a_loop_has_its_older_names_and_each_iteration_begins_and_ends() -> None:
    async with run_api_server() as here, run_worker(here):
        await here.register(LOOPS)
        execution_id = await here.start("tests/loops")
        await here.wait_for_end(execution_id)
        events = [
            event
            for event in await older_events(here, execution_id)
            if event["data"].get("step") == "each"
        ]
        names = Counter(event["type"] for event in events)
        assert {name: names[name] for name in ("loop.started", "loop_started", "loop.finished", "loop_completed")} == {
            "loop.started": 1, "loop_started": 1, "loop.finished": 1, "loop_completed": 1,
        }  # fmt: skip
        assert names["step.finished"] == names["result"] == 1
        assert (
            names["loop.iteration.started"]
            == names["loop.iteration.finished"]
            == names["command.issued"]
            > 0
        )


async def test_a_cancelled_execution_has_ended_under_its_older_name_too() -> None:
    async with run_api_server() as here:
        await here.register(NOOP)
        execution_id = await here.start()
        await here.get(f"/api/executions/{execution_id}", min_seq=1)
        answer = await here.http.post(f"/api/executions/{execution_id}/cancel")
        assert answer.status_code in (200, 202), answer.text
        await here.wait_for_end(execution_id)
        (ended,) = await older_events(here, execution_id, types="execution_completed")
        assert ended["of"] == "execution.cancelled"


async def test_pages_of_the_list_go_back_in_time() -> None:
    async with run_api_server() as here:
        await here.register(NOOP)
        started = [await here.start() for _ in range(5)]
        for execution_id in started:
            await here.get(f"/api/executions/{execution_id}", min_seq=1)
        first = await here.get("/api/executions", limit=3)
        second = await here.get("/api/executions", limit=3, before=first["next"])
        found = [row["execution_id"] for row in first["executions"] + second["executions"]]
        assert found == started[::-1]
        assert second["next"] is None
        assert len((await here.get("/api/executions", status="running"))["executions"]) == 5
        assert (await here.get("/api/executions", status="failed"))["executions"] == []
        assert (await here.get("/api/executions", since="2100-01-01T00:00:00Z"))["executions"] == []
        assert (
            len(
                (await here.get("/api/executions", since="2020-01-01", path="tests/simple"))[
                    "executions"
                ]
            )
            == 5
        )


async def test_a_start_is_seen_by_the_list_that_follows() -> None:
    async with run_api_server() as here, run_worker(here):
        await here.register(NOOP)
        for _ in range(8):
            began = (
                await here.http.post("/api/execute?wait=true", json={"path": "tests/simple"})
            ).json()
            rows = (await here.get("/api/executions", min_seq=began["seq"]))["executions"]
            assert rows[0]["execution_id"] == began["execution_id"]
            row = await here.get(f"/api/executions/{began['execution_id']}", min_seq=began["seq"])
            assert row["last_seq"] >= began["seq"]
            events = await here.get(f"/api/executions/{began['execution_id']}/events", limit=1)
            assert events["events"][0]["seq"] == began["seq"]
        await here.wait_for_end(began["execution_id"])
        again = (
            await here.http.post(f"/api/executions/{began['execution_id']}/rerun?wait=true")
        ).json()
        rows = (await here.get("/api/executions", min_seq=again["seq"]))["executions"]
        assert rows[0]["execution_id"] == again["execution_id"]


class Mute(InboxMemory):
    """Takes what it is given, and then cannot be asked about it."""

    async def find_message(self, execution_id: ExecutionId, key: str) -> MessageState:
        raise StoreUnavailable("away")


async def test_a_start_that_was_accepted_is_answered_so_whatever_follows() -> None:
    rows, clock = make_shard_rows(SHARDS), WallClock()
    database = MemoryDatabase(rows, clock)
    stores = dataclasses.replace(make_memory_stores(database), inbox=Mute(database))
    leases = LeasesMemory(rows, clock)
    async with run_api_server(
        dataclasses.replace(make_memory_ports(), stores=stores, leases=leases, clock=clock)
    ) as here:
        await here.register(NOOP)
        answer = await here.http.post("/api/execute?wait=true", json={"path": "tests/simple"})
        assert (answer.status_code, answer.json()["created"], answer.json()["seq"]) == (
            202,
            True,
            1,
        )
        await here.get(f"/api/executions/{answer.json()['execution_id']}", min_seq=1)


async def test_a_cancel_is_seen_by_the_read_that_follows() -> None:
    async with run_api_server() as here:
        await here.register(NOOP)
        execution_id = await here.start()
        answer = await here.http.post(f"/api/executions/{execution_id}/cancel")
        assert (answer.status_code, answer.json()["status"]) == (202, "recorded")
        row = await here.get(f"/api/executions/{execution_id}", min_seq=answer.json()["seq"])
        assert row["status"] in ("cancelling", "cancelled")
        await here.wait_for_end(execution_id)
        answer = await here.http.post(f"/api/executions/{execution_id}/cancel")
        assert (answer.status_code, answer.json()["code"]) == (409, "CONFLICT")


async def test_an_unknown_event_type_is_refused_with_a_suggestion() -> None:
    async with run_api_server() as here:
        await here.register(NOOP)
        execution_id = await here.start()
        events = f"/api/executions/{execution_id}/events"
        answer = await here.http.get(events, params={"types": "step.enter,step.exits"})
        assert answer.status_code == 422
        assert answer.json()["hint"].startswith("did you mean step.exit? types: ")
        assert "'step.exits'" in answer.json()["detail"]
        assert (await here.http.get(events, params={"types": "step.started"})).status_code == 422
        assert (
            await here.http.get(events, params={"types": "step.started", "names": "older"})
        ).status_code == 200


async def test_a_status_waits_for_the_end() -> None:
    async with run_api_server() as here:
        await here.register(NOOP)
        execution_id = await here.start()
        place = f"/api/executions/{execution_id}/status"
        assert (await here.get(place, wait=0))["ended"] is False
        waiting = asyncio.create_task(here.get(place, wait=30))
        await here.http.post(f"/api/executions/{execution_id}/cancel")
        status = await waiting
        assert (status["ended"], status["status"]) == (True, "cancelled")
        assert await here.get(place, wait=30) == status
        refused = await here.http.get(place, params={"wait": 31})
        assert refused.status_code == 422


async def test_pause_holds_and_resume_goes_on() -> None:
    async with run_api_server() as here:
        await here.register(NOOP)
        execution_id = await here.start()
        answer = (await here.http.post(f"/api/executions/{execution_id}/pause")).json()
        assert (await here.get(f"/api/executions/{execution_id}/status", min_seq=answer["seq"]))[
            "status"
        ] == "paused"
        second = (await here.http.post(f"/api/executions/{execution_id}/pause")).json()
        assert (answer["reason"], second["status"], second["reason"]) == (
            None,
            "refused",
            "it is paused already",
        )
        answer = (await here.http.post(f"/api/executions/{execution_id}/resume")).json()
        second = (await here.http.post(f"/api/executions/{execution_id}/resume")).json()
        assert (second["status"], second["reason"]) == (
            "refused",
            "it is not paused; it is running",
        )
        async with run_worker(here):
            assert (await here.wait_for_end(execution_id))["status"] == "completed"


async def test_a_signal_ends_a_wait_and_explain_says_so() -> None:
    async with run_api_server() as here, run_worker(here):
        await here.register(WAITS)
        execution_id = await here.start("tests/waits")
        await here.wait_for_event(execution_id, "command.parked")
        found = await here.get(f"/api/executions/{execution_id}/explain/one")
        assert found["verdict"] == "waiting"
        assert "signal" in found["because"][0]
        answer = await here.http.post(
            f"/api/executions/{execution_id}/signals/go", json={"payload": {"by": "ada"}}
        )
        assert answer.status_code == 202
        assert (await here.wait_for_end(execution_id))["status"] == "completed"


@pytest.mark.parametrize(
    "payload", [None, {}, "yes", True, {"approved": "no"}, {"approved": 0}, {"approved": None}]
)
async def test_a_signal_that_neither_approves_nor_rejects_is_refused_and_not_recorded(
    payload: Any,
) -> None:
    async with run_api_server() as here, run_worker(here):
        await here.register(WAITS.replace("signal: go", "approval: ship it?"))
        execution_id = await here.start("tests/waits")
        await here.wait_for_event(execution_id, "command.parked")
        unclear = {"name": "approve:one", "payload": payload}
        clear = {"name": "other", "payload": None}
        asked = {
            f"/api/executions/{execution_id}/signals/approve:one": {"payload": payload},
            "/api/events": {"execution_id": execution_id, **unclear},
            "/api/events/batch": {"execution_id": execution_id, "events": [clear, unclear]},
        }
        for path, body in asked.items():
            answer = await here.http.post(path, json=body)
            assert (answer.status_code, answer.json()["code"]) == (422, "INVALID_INPUT"), path
            assert '{"approved": true' in answer.text.replace("\\", "")
        rejected = {"payload": {"approved": False}}
        await here.http.post(f"/api/executions/{execution_id}/signals/approve:one", json=rejected)
        assert (await here.wait_for_end(execution_id))["status"] == "failed"
        events = (await here.get(f"/api/executions/{execution_id}/events"))["events"]
        assert [event["type"] for event in events].count("signal.received") == 1


CALLS = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: calls, path: tests/calls}
workflow:
- {step: call, tool: {kind: playbook, path: tests/waits}}
"""


async def test_explain_says_how_the_child_is_that_a_step_waits_for() -> None:
    async with run_api_server() as here, run_worker(here):
        await here.register(WAITS)
        await here.register(CALLS)
        execution_id = await here.start("tests/calls")
        await here.wait_for_event(execution_id, "child.started")
        (started,) = (
            await here.get(f"/api/executions/{execution_id}/events", types="child.started")
        )["events"]
        child = started["data"]["child"]
        await here.wait_for_event(child, "command.parked")
        (parked,) = (await here.get(f"/api/executions/{child}/events", types="command.parked"))[
            "events"
        ]
        await here.get(f"/api/executions/{child}/status", min_seq=parked["seq"])
        found = await here.get(f"/api/executions/{execution_id}/explain/call")
        assert found["verdict"] == "waiting"
        assert f"child {child} (tests/waits) is running" in found["because"]


async def test_explain_says_that_no_worker_has_the_pool() -> None:
    async with run_api_server() as here:
        await here.register(NOOP)
        execution_id = await here.start()
        await here.wait_for_event(execution_id, "command.issued")
        found = await here.get(f"/api/executions/{execution_id}/explain/one")
        assert found["verdict"] == "running"
        assert "no worker has that pool" in found["because"][0]
        assert "noetl worker start --pool cpu" in found["because"][0]


async def test_retry_and_rerun_make_new_executions_of_ended_ones() -> None:
    async with run_api_server() as here, run_worker(here):
        await here.register(NOOP)
        execution_id = await here.start()
        assert (await here.http.post(f"/api/executions/{execution_id}/cancel")).status_code in (
            202,
            409,
        )
        await here.wait_for_end(execution_id)
        for what in ("retry", "rerun"):
            headers = {"Idempotency-Key": "again"}
            answer = await here.http.post(f"/api/executions/{execution_id}/{what}", headers=headers)
            repeated = await here.http.post(
                f"/api/executions/{execution_id}/{what}", headers=headers
            )
            assert answer.json()["execution_id"] == repeated.json()["execution_id"] != execution_id
            assert (answer.json()["created"], repeated.json()["created"]) == (True, False)
            row = await here.wait_for_end(answer.json()["execution_id"])
            assert row["retry_of"] == (execution_id if what == "retry" else None)


async def test_what_is_not_there_is_not_found() -> None:
    async with run_api_server() as here:
        for path in (
            "/api/executions/99", "/api/executions/9999999999999999999", "/api/executions/99/events", "/api/vars/99",
            "/api/executions/99/explain/one", "/api/executions/99/stream", "/api/executions/99/status?min_seq=1",
        ):  # fmt: skip
            answer = await here.http.get(path)
            assert (answer.status_code, answer.json()["code"]) == (404, "NOT_FOUND"), path
            assert answer.headers["content-type"] == "application/problem+json"
        for what in ("cancel", "pause", "resume", "retry", "rerun", "release", "signals/x"):
            assert (await here.http.post(f"/api/executions/99/{what}")).status_code == 404
        answer = await here.http.post("/api/execute", json={"path": "no/such"})
        assert (answer.status_code, answer.json()["code"]) == (404, "NOT_FOUND")


async def test_a_read_that_waits_too_long_says_try_again() -> None:
    async with run_api_server() as here:
        await here.register(NOOP)
        execution_id = await here.start()
        import noetl.server.executions.service as service

        patience, service.MIN_SEQ_TIMEOUT_S = service.MIN_SEQ_TIMEOUT_S, 0.05
        try:
            answer = await here.http.get(
                f"/api/executions/{execution_id}", params={"min_seq": 10_000}
            )
        finally:
            service.MIN_SEQ_TIMEOUT_S = patience
        assert (answer.status_code, answer.json()["code"]) == (503, "NOT_YET")
        assert answer.headers["retry-after"] == "1"


# ---- the quick way ---------------------------------------------------------------------------------------------------------


async def test_the_quick_way_answers_as_the_route_does() -> None:
    async with run_api_server() as here:
        await here.register(NOOP)
        body = b'{"path": "tests/simple", "payload": {"n": 2}}'
        kinds = (
            "application/json",
            "application/json; charset=utf-8",
        )  # the second is left to the route
        quick, route = [
            await here.http.post("/api/execute", content=body, headers={"Content-Type": kind})
            for kind in kinds
        ]
        assert quick.status_code == route.status_code == 202
        assert quick.json().keys() == route.json().keys()
        place = f"/api/executions/{quick.json()['execution_id']}"
        await here.get(place, min_seq=1)  # it is projected; without a worker it stays as it is
        answers = [await here.http.get(path) for path in (place, f"{place}?min_seq=0")]
        assert answers[0].json() == answers[1].json()
        assert answers[0].headers["content-type"] == answers[1].headers["content-type"]
        missing = [await here.http.get(f"/api/executions/1{query}") for query in ("", "?min_seq=0")]
        assert missing[0].status_code == missing[1].status_code == 404
        assert missing[0].json()["code"] == missing[1].json()["code"]
        unknown = [
            await here.http.post(
                "/api/execute", content=b'{"path": "no/such"}', headers={"Content-Type": kind}
            )
            for kind in kinds
        ]
        assert unknown[0].status_code == unknown[1].status_code == 404
        assert unknown[0].json() == unknown[1].json()


async def test_a_crowd_that_connects_at_once_is_answered() -> None:
    async with run_api_server() as here:
        limits = httpx.Limits(max_connections=100, max_keepalive_connections=0)
        async with httpx.AsyncClient(base_url=here.url, limits=limits) as crowd:
            answers = await asyncio.gather(*(crowd.get("/health") for _ in range(100)))
        assert {answer.status_code for answer in answers} == {200}
