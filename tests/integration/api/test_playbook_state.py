"""State between executions over HTTP: read, written and unset by people, written by executions, shown with both."""

import asyncio
from pathlib import Path

import pytest

from noetl.model.ids import ExecutionId
from tests.integration.api.api_server import (
    NOOP,
    SHARDS,
    ApiServer,
    run_api_server,
    run_api_server_on_postgres,
    run_worker,
)
from tests.waiting import wait_until

COUNTS = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: counts, path: tests/etl/counts}
workflow:
  - step: count
    tool: {kind: noop}
    set: {state.n: "{{ state.n | default(0) + 1 }}"}
"""
WAITS = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: waits, path: tests/waits}
workflow:
  - {step: hold, tool: {kind: wait, signal: go}, next: count}
  - step: count
    tool: {kind: noop}
    set: {state.n: "{{ state.n | default(0) + 1 }}"}
"""
VALUE = "/api/state/value/n/tests/etl/counts"


async def run_to_completion(here: ApiServer, path: str) -> str:
    started = await here.start(path)
    assert (await here.wait_for_end(started))["status"] == "completed"
    return started


async def test_people_read_write_and_unset_values() -> None:
    async with run_api_server() as here:
        await here.register(COUNTS)
        assert (await here.http.get(VALUE)).status_code == 404
        written = await here.http.put(VALUE, json={"value": 7})
        assert (written.status_code, written.headers["ETag"]) == (200, '"1"')
        row = written.json()
        assert (row["path"], row["name"], row["version"], row["value"]) == (
            "tests/etl/counts",
            "n",
            1,
            7,
        )
        assert (row["by"], row["execution_id"], row["seq"]) == ("local", None, None)
        assert await here.get(VALUE) == row
        assert await here.get("/api/state/values/tests/etl/counts") == {
            "path": "tests/etl/counts",
            "state": [row],
        }
        assert await here.get("/api/state") == {"state": [row], "next": None}
        gone = await here.http.delete(VALUE)
        assert gone.json() == {"path": "tests/etl/counts", "name": "n", "version": 2}
        assert (await here.http.get(VALUE)).status_code == 404
        assert (await here.http.delete(VALUE)).status_code == 404
        versions = (await here.get("/api/state/history/n/tests/etl/counts"))["versions"]
        assert [(each["version"], each["value"], each["unset"]) for each in versions] == [
            (2, None, True),
            (1, 7, False),
        ]


async def test_a_write_with_another_version_is_a_conflict() -> None:
    async with run_api_server() as here:
        await here.register(COUNTS)
        assert (
            await here.http.put(VALUE, json={"value": 1, "expected_version": 0})
        ).status_code == 200
        refused = await here.http.put(VALUE, json={"value": 2, "expected_version": 0})
        assert (refused.status_code, refused.json()["code"]) == (409, "CONFLICT")
        assert "has version 1, not 0" in refused.json()["detail"]
        assert (
            await here.http.put(VALUE, json={"value": 2}, headers={"If-Match": '"2"'})
        ).status_code == 409
        assert (
            await here.http.put(VALUE, json={"value": 2}, headers={"If-Match": '"1"'})
        ).status_code == 200
        assert (await here.http.delete(VALUE, params={"expected_version": 1})).status_code == 409
        assert (await here.http.delete(VALUE, headers={"If-Match": "2"})).status_code == 200


@pytest.mark.parametrize(
    ("place", "body", "code"),
    [
        ("/api/state/value/n/tests/nowhere", {"value": 1}, 404),
        ("/api/state/value/a%20b/tests/etl/counts", {"value": 1}, 422),
        ("/api/state/value/n/tests%00", {"value": 1}, 400),
        (VALUE, {"value": [{"row": 1}]}, 422),
        (VALUE, {"value": "x" * 5_000}, 422),
        (VALUE, {"value": {"$reference": "noetl://execution/1/result/a/b"}}, 422),
        (VALUE, {"value": 1, "expected_version": -1}, 422),
        (VALUE, {}, 422),
    ],
)
async def test_what_cannot_be_kept_is_refused(
    place: str, body: dict[str, object], code: int
) -> None:
    async with run_api_server() as here:
        await here.register(COUNTS)
        refused = await here.http.put(place, json=body)
        assert refused.status_code == code, refused.text
        assert (await here.get("/api/state"))["state"] == []


async def test_executions_write_it_and_say_so() -> None:
    async with run_api_server() as here, run_worker(here):
        await here.register(COUNTS)
        first, second = [await run_to_completion(here, "tests/etl/counts") for _ in range(2)]
        row = await here.get(VALUE)
        assert (row["value"], row["version"], row["execution_id"], row["by"]) == (
            2,
            2,
            second,
            None,
        )
        events = (await here.get(f"/api/executions/{second}/events"))["events"]
        (reporting,) = [event for event in events if event["seq"] == row["seq"]]
        assert (reporting["type"], reporting["data"]["set"]) == ("step.exit", {"state.n": 2})
        shown = (await here.get(f"/api/executions/{second}"))["state"]["n"]
        assert (shown["read_version"], shown["version"], shown["value"], shown["writes"]) == (
            1,
            2,
            2,
            1,
        )
        versions = (await here.get("/api/state/history/n/tests/etl/counts"))["versions"]
        assert [each["execution_id"] for each in versions] == [second, first]


async def test_an_execution_that_lost_the_race_fails_and_says_who_won() -> None:
    async with run_api_server() as here, run_worker(here):
        await here.register(WAITS)
        started = await here.start("tests/waits")
        await here.wait_for_event(started, "command.parked")
        place = "/api/state/value/n/tests/waits"
        await here.http.put(place, json={"value": 100})
        await here.http.post(f"/api/executions/{started}/signals/go", json={"payload": 1})
        ended = await here.wait_for_end(started)
        assert (ended["status"], ended["failure"]["code"]) == ("failed", "STATE_CONFLICT")
        assert ended["failure"]["detail"] == {"name": "n", "expected": 0, "found": 1, "by": "local"}
        assert ended["state"]["n"]["conflict_version"] == 1
        assert (await here.get(place))["value"] == 100


async def test_another_tenant_finds_nothing() -> None:
    async with run_api_server() as here:
        await here.register(COUNTS)
        await here.http.put(VALUE, json={"value": 7})
        own = dict(here.http.headers)
        here.http.headers.update(await here.make_foreign_header())
        assert (await here.http.get(VALUE)).status_code == 404
        assert (await here.get("/api/state"))["state"] == []
        assert (
            await here.http.put(VALUE, json={"value": 8})
        ).status_code == 404  # they have no such playbook
        assert (await here.http.get("/api/state/history/n/tests/etl/counts")).status_code == 404
        here.http.headers.update(own)
        assert (await here.get(VALUE))["value"] == 7


async def test_values_of_many_paths_come_in_pages() -> None:
    async with run_api_server() as here:
        for name in ("a", "b", "c"):
            await here.register(NOOP.replace("tests/simple", f"tests/{name}"))
            await here.http.put(f"/api/state/value/n/tests/{name}", json={"value": name})
        page = await here.get("/api/state", limit=2)
        assert [row["value"] for row in page["state"]] == ["a", "b"]
        rest = await here.get("/api/state", limit=2, after=page["next"])
        assert ([row["value"] for row in rest["state"]], rest["next"]) == (["c"], None)


RACERS, ROUNDS = 8, 3


async def all_shards_are_owned(*servers: ApiServer) -> None:
    """Returns when every shard has an owner, and every server has a shard."""

    async def are_shared() -> bool:
        owned = [each.node.server.shards.list_owned() for each in servers]
        return all(owned) and len({shard for shards in owned for shard in shards}) == SHARDS

    await wait_until(are_shared)


def owns(here: ApiServer, execution_id: str) -> bool:
    shards = here.node.server.shards
    return shards.owns(shards.find_shard(ExecutionId(execution_id)))


async def test_executions_of_two_servers_that_write_one_name_lose_nothing(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = "/api/state/value/n/tests/waits"
    async with (
        run_api_server_on_postgres(
            database, tmp_path / "one", monkeypatch, "s1", several=True
        ) as one,
        run_api_server_on_postgres(
            database, tmp_path / "two", monkeypatch, "s2", several=True
        ) as two,
        run_worker(one, "w1"),
        run_worker(two, "w2"),
    ):
        await all_shards_are_owned(one, two)
        await one.register(WAITS)
        for turn in range(1, ROUNDS + 1):
            racers: list[str] = []
            while len(racers) < RACERS or not all(
                any(owns(each, racer) for racer in racers) for each in (one, two)
            ):
                racers.append(await (one, two)[len(racers) % 2].start("tests/waits"))
            for racer in racers:
                await one.wait_for_event(racer, "command.parked")
            signals = [each.http.post(f"/api/executions/{racer}/signals/go", json={"payload": 1})
                       for number, racer in enumerate(racers) for each in [(one, two)[number % 2]]]  # fmt: skip
            assert {answer.status_code for answer in await asyncio.gather(*signals)} == {202}
            ended = [await one.wait_for_end(racer) for racer in racers]
            (winner,) = [row for row in ended if row["status"] == "completed"]
            losers = [row for row in ended if row is not winner]
            assert {row["failure"]["code"] for row in losers} == {"STATE_CONFLICT"}
            assert {row["failure"]["detail"]["by"] for row in losers} == {winner["execution_id"]}
            value = await two.get(place)
            assert (value["value"], value["version"], value["execution_id"]) == (
                turn,
                turn,
                winner["execution_id"],
            )
        versions = (await one.get("/api/state/history/n/tests/waits"))["versions"]
        assert [(each["version"], each["value"]) for each in versions] == [(3, 3), (2, 2), (1, 1)]
