"""Schedules and hooks over HTTP: kept, fired and called."""

import hmac
import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from noetl.model.ids import DEFAULT_TENANT
from noetl.triggers.port import Every, ScheduleDefinition
from tests.integration.api.api_server import (
    NOOP,
    WAITS,
    ApiServer,
    WallClock,
    make_memory_ports,
    run_api_server,
    run_worker,
)
from tests.waiting import wait_until

MINUTE = 60_000_000


async def add(here: ApiServer, **body: Any) -> Any:
    return await here.http.post(
        "/api/schedules", json={"name": "s", "path": "tests/simple", **body}
    )


async def schedule_missed_slots(
    here: ApiServer, name: str, missed: int, **fields: Any
) -> list[int]:
    """A schedule by the minute with these slots behind it, as after an outage."""
    first = WallClock().now() - missed * MINUTE + MINUTE // 2
    rule = Every(MINUTE, first - MINUTE)
    usual = {
        "tenant": DEFAULT_TENANT,
        "name": name,
        "path": "tests/simple",
        "rule": rule,
        "catch_up": "all",
    }
    await here.node.ports.schedules.put_schedule(ScheduleDefinition(**{**usual, **fields}), first)
    return [first + number * MINUTE for number in range(missed)]


async def test_a_schedule_is_kept_shown_paused_and_deleted() -> None:
    async with run_api_server() as here:
        await here.register(NOOP)
        added = await add(
            here, cron="30 2 * * *", timezone="Europe/Berlin", payload={"n": 3}, overlap="skip"
        )
        assert (added.status_code, added.json()["created"]) == (201, True)
        row = await here.get("/api/schedules/s")
        assert row == {name: value for name, value in added.json().items() if name != "created"}
        assert (row["cron"], row["timezone"], row["every"], row["overlap"]) == (
            "30 2 * * *", "Europe/Berlin", None, "skip",
        )  # fmt: skip
        slots = (await here.get("/api/schedules/s/next", count=3))["slots"]
        assert len(slots) == 3
        assert all("T02:30:00+0" in slot or "T03:00:00+0" in slot for slot in slots)
        again = await add(here, every="90s")
        assert (again.status_code, again.json()["created"], again.json()["every"]) == (
            200,
            False,
            "90s",
        )
        assert (await here.get("/api/schedules"))["schedules"] == [
            await here.get("/api/schedules/s")
        ]
        assert (await here.http.post("/api/schedules/s/pause")).json()["paused"] is True
        assert (await here.http.post("/api/schedules/s/resume")).json()["paused"] is False
        assert (await here.http.delete("/api/schedules/s")).json() == {"name": "s"}
        for method, path in (
            ("GET", ""),
            ("DELETE", ""),
            ("POST", "/pause"),
            ("POST", "/resume"),
            ("GET", "/next"),
        ):
            gone = await here.http.request(method, f"/api/schedules/s{path}")
            assert (gone.status_code, gone.json()["hint"]) == (
                404,
                "noetl schedule list shows those there are",
            )


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({}, 422, "either cron or an interval"),
        ({"cron": "0 2 * * *", "every": "1h"}, 422, "either cron or an interval"),
        ({"cron": "0 2 * *"}, 422, "has 4 fields"),
        ({"cron": "0 2 * * *", "timezone": "Nowhere"}, 422, "no time zone 'Nowhere'"),
        ({"every": "1h", "timezone": "UTC"}, 422, "no time zone"),
        ({"every": "soon"}, 422, "not a duration"),
        ({"every": "100ms"}, 422, "at least a second"),
        ({"every": "1h", "path": "tests/nowhere"}, 404, "no playbook"),
        ({"every": "1h", "name": "a b"}, 422, "cannot be the name"),
        ({"every": "1h", "overlap": "maybe"}, 422, "allow"),
        ({"every": "1h", "colour": "red"}, 422, "Extra inputs"),
    ],
)
async def test_a_schedule_that_could_not_fire_is_refused(
    body: dict[str, Any], status: int, words: str
) -> None:
    async with run_api_server() as here:
        await here.register(NOOP)
        answer = await add(here, **body)
        assert (answer.status_code, words in answer.text) == (status, True), answer.text


async def test_each_missed_slot_is_run_once_and_says_which_it_is() -> None:
    async with run_api_server() as here, run_worker(here):
        await here.register(NOOP)
        slots = await schedule_missed_slots(here, "s", 5, payload={"n": 9})

        async def count() -> int:
            return len((await here.get("/api/executions", status="completed"))["executions"])

        await wait_until(count, len(slots))
        rows = (await here.get("/api/executions"))["executions"]
        assert len(rows) == len(slots)
        pinned = [await here.node.ports.stores.log.read_pinned(row["execution_id"]) for row in rows]
        workloads = [each.workload for each in pinned if each is not None]
        assert {each["n"] for each in workloads} == {9}
        assert sorted(each["schedule"]["slot"] for each in workloads) == sorted(
            {each["schedule"]["slot"] for each in workloads}
        )
        row = await here.get("/api/schedules/s")
        assert (row["error"], row["skipped"], row["waiting"]) == (None, 0, [])
        assert row["last_execution"] in {each["execution_id"] for each in rows}


async def test_slots_queue_behind_an_execution_that_runs() -> None:
    async with run_api_server() as here, run_worker(here):
        await here.register(WAITS)
        await schedule_missed_slots(here, "s", 3, path="tests/waits", overlap="queue")
        seen: list[str] = []
        for left in (2, 1, 0):

            async def waiting() -> tuple[int, bool]:
                row = await here.get("/api/schedules/s")
                return len(row["waiting"]), row["last_execution"] not in (None, *seen)

            await wait_until(waiting, (left, True))
            seen.append((await here.get("/api/schedules/s"))["last_execution"])
            assert len((await here.get("/api/executions"))["executions"]) <= len(seen)
            answer = await here.http.post(f"/api/executions/{seen[-1]}/signals/go", json={})
            assert answer.status_code == 202
            assert (await here.wait_for_end(seen[-1]))["status"] == "completed"
        assert len(set(seen)) == 3


async def test_slots_are_skipped_while_an_execution_runs() -> None:
    async with run_api_server() as here:
        await here.register(WAITS)
        await schedule_missed_slots(here, "s", 4, path="tests/waits", overlap="skip")

        async def count_skipped() -> int:
            return int((await here.get("/api/schedules/s"))["skipped"])

        await wait_until(count_skipped, 3)
        assert len((await here.get("/api/executions"))["executions"]) <= 1


async def test_a_playbook_that_is_gone_is_said_and_the_schedule_goes_on() -> None:
    async with run_api_server() as here, run_worker(here):
        await here.register(NOOP)
        await schedule_missed_slots(here, "broken", 2, path="tests/nowhere")
        await schedule_missed_slots(here, "fine", 2)

        async def get_errors() -> Any:
            row = await here.get("/api/schedules/broken")
            return row["error"], (await here.get("/api/schedules/fine"))[
                "last_execution"
            ] is not None

        await wait_until(get_errors, ("no playbook 'tests/nowhere'", True))
        row = await here.get("/api/schedules/broken")
        assert row["next_at"] > row["last_at"]


# ---- hooks -------------------------------------------------------------------------------------------------------------


async def hook(here: ApiServer, **body: Any) -> Any:
    return await here.http.post("/api/hooks", json={"name": "h", "path": "tests/simple", **body})


async def test_a_call_starts_the_playbook_with_its_body_and_a_repeat_starts_nothing() -> None:
    async with run_api_server() as here:
        await here.register(NOOP)
        added = await hook(here)
        assert (added.status_code, added.json()["created"], added.json()["path"]) == (
            201,
            True,
            "tests/simple",
        )
        calls = [
            await here.http.post("/api/hooks/h", json={"n": 5}, headers={"Idempotency-Key": key})
            for key in ("one", "one", "two")
        ]
        assert [call.status_code for call in calls] == [202] * 3
        first, again, other = [call.json() for call in calls]
        assert (first["created"], again["created"], again["execution_id"]) == (
            True,
            False,
            first["execution_id"],
        )
        assert other["execution_id"] != first["execution_id"]
        pinned = await here.node.ports.stores.log.read_pinned(first["execution_id"])
        assert pinned is not None
        assert pinned.workload == {"n": 5}
        assert (await here.http.post("/api/hooks/h", json=[1])).status_code == 422
        assert (await here.http.post("/api/hooks/h", content=b"{")).status_code == 400
        assert (await here.http.post("/api/hooks/nobody", json={})).status_code == 404
        assert (await here.http.delete("/api/hooks/h")).json() == {"name": "h"}
        assert (await here.get("/api/hooks"))["hooks"] == []


async def test_a_body_may_stand_under_a_key_and_a_header_may_name_the_call() -> None:
    async with run_api_server() as here:
        await here.register(NOOP)
        assert (await hook(here, into="push", key_header="X-GitHub-Delivery")).status_code == 201
        assert (await here.http.post("/api/hooks/h", json=[1])).status_code == 422
        calls = [
            await here.http.post("/api/hooks/h", json=[1], headers={"x-github-delivery": "d-1"})
            for _ in range(2)
        ]
        assert len({call.json()["execution_id"] for call in calls}) == 1
        pinned = await here.node.ports.stores.log.read_pinned(calls[0].json()["execution_id"])
        assert pinned is not None
        assert pinned.workload == {"n": 1, "push": [1]}


async def test_a_signed_hook_takes_signed_calls_only(tmp_path: Path) -> None:
    async with run_api_server(make_memory_ports(home=tmp_path)) as here:
        await here.register(NOOP)
        assert (await hook(here, secret="github")).status_code == 404
        for data, status in (({"token": "x"}, 422), ({"secret": "s3cr3t"}, 201)):
            kept = {"name": "github", "kind": "generic", "data": data}
            assert (await here.http.post("/api/credentials", json=kept)).is_success
            assert (await hook(here, secret="github")).status_code == status
        body = json.dumps({"n": 6}).encode()
        good = "sha256=" + hmac.new(b"s3cr3t", body, sha256).hexdigest()
        for signature, status in ((None, 401), ("sha256=00", 401), (good, 202), (good[7:], 202)):
            headers = {} if signature is None else {"X-Hub-Signature-256": signature}
            answer = await here.http.post("/api/hooks/h", content=body, headers=headers)
            assert answer.status_code == status, answer.text
            assert "s3cr3t" not in answer.text
        assert (
            await here.http.post(
                "/api/hooks/h", content=body + b" ", headers={"X-Hub-Signature-256": good}
            )
        ).status_code == 401
        assert (await hook(here, signature_header="X-S")).status_code == 422
        assert "s3cr3t" not in (await here.http.get("/api/hooks/h")).text
