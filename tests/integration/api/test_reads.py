"""Events from outside, queue, workers, templates, health."""

from typing import Any

from tests.integration.api.api_server import NOOP, WAITS, run_api_server, run_worker


async def test_an_event_from_outside_becomes_a_signal_once() -> None:
    async with run_api_server() as here, run_worker(here):
        await here.register(WAITS)
        execution_id = await here.start("tests/waits")
        await here.get(f"/api/executions/{execution_id}", min_seq=1)
        body, headers = (
            {"execution_id": execution_id, "name": "go", "payload": 1},
            {"Idempotency-Key": "a+b"},
        )
        answer = await here.http.post("/api/events", json=body, headers=headers)
        assert (answer.status_code, answer.json()["status"]) == (202, "accepted")
        await here.wait_for_end(execution_id)
        status = await here.get(answer.json()["status_url"])
        assert (status["status"], status["seq"] > 0) == ("recorded", True)
        events = await here.get(f"/api/executions/{execution_id}/events", types="signal.received")
        assert [event["data"]["name"] for event in events["events"]] == ["go"]
        answer = await here.http.post("/api/events", json=body)
        assert answer.status_code == 409


async def test_a_batch_is_taken_in_order_and_once() -> None:
    async with run_api_server() as here:
        await here.register(WAITS)
        execution_id = await here.start("tests/waits")
        await here.get(f"/api/executions/{execution_id}", min_seq=1)
        body = {
            "execution_id": execution_id,
            "events": [{"name": "x", "payload": number} for number in range(3)],
        }
        for _ in range(2):
            answer = await here.http.post(
                "/api/events/batch", json=body, headers={"Idempotency-Key": "b"}
            )
            assert answer.status_code == 202, answer.text
        status = await here.get(answer.json()["status_url"])
        while status["status"] == "accepted":
            status = await here.get(answer.json()["status_url"])
        assert (status["status"], status["recorded"], status["count"]) == ("recorded", 3, 3)
        events = (
            await here.get(f"/api/executions/{execution_id}/events", types="signal.received")
        )["events"]
        assert [event["data"]["payload"] for event in events] == [0, 1, 2]


async def test_a_batch_with_one_event_that_is_too_large_is_refused_whole() -> None:
    async with run_api_server() as here:
        await here.register(WAITS)
        execution_id = await here.start("tests/waits")
        body = {
            "execution_id": execution_id,
            "events": [{"name": "x"}, {"name": "x", "payload": "a" * 9000}],
        }
        answer = await here.http.post(
            "/api/events/batch", json=body, headers={"Idempotency-Key": "b"}
        )
        assert answer.status_code == 422
        status = await here.get(
            "/api/events/batch/status", execution_id=execution_id, request="b", count=2
        )
        assert (status["status"], status["refused"]) == ("refused", 2)


async def test_the_queue_shows_commands_and_never_what_they_carry() -> None:
    async with run_api_server() as here:
        await here.register(NOOP)
        execution_id = await here.start(payload={"n": "canary"})
        await here.get(f"/api/executions/{execution_id}", min_seq=1)
        answer = await here.http.get(
            "/api/queue", params={"status": "queued", "execution_id": execution_id}
        )
        (command,) = answer.json()["commands"]
        assert (command["step"], command["pool"], command["attempt"]) == ("one", "cpu", 1)
        assert "canary" not in answer.text
        pools = await here.get("/api/pools")
        assert pools == [{"pool": "cpu", "workers": 0, "free": 0, "commands": {"queued": 1}}]


async def test_a_worker_is_listed_with_its_pools() -> None:
    async with run_api_server() as here, run_worker(here, "w7", slots=3):
        rows: list[dict[str, Any]] = []
        while not rows:
            rows = await here.get("/api/workers")
        assert (rows[0]["worker"], rows[0]["server"], rows[0]["pools"], rows[0]["free"]) == (
            "w7/1",
            "s1",
            ["cpu"],
            3,
        )
        assert (await here.get("/api/pools"))[0]["workers"] == 1


async def test_the_older_queue_names_the_exchange() -> None:
    async with run_api_server() as here:
        for path in (
            "/api/queue/lease",
            "/queue/lease",
            "/queue/7/complete",
            "/api/queue/7/heartbeat",
            "/queue/7/fail",
        ):
            answer = await here.http.post(path, json={"worker_id": "w"})
            assert (answer.status_code, answer.json()["code"]) == (410, "USE_THE_EXCHANGE")
            assert "/api/worker/exchange" in answer.json()["hint"]


async def test_templates_are_rendered_on_what_the_control_plane_knows() -> None:
    async with run_api_server() as here, run_worker(here):
        await here.register(NOOP)
        execution_id = await here.start(payload={"n": 5})
        await here.wait_for_end(execution_id)

        async def render(**body: Any) -> Any:
            return (await here.http.post("/api/context/render", json=body)).json()

        template = {"a": ["{{ workload.n + ctx.n }}"], "b": "n is {{ n }}"}
        assert (await render(template=template, execution_id=execution_id))["result"] == {
            "a": [10],
            "b": "n is 5",
        }
        assert (await render(template="{{ x | upper }}", context={"x": "a"}))["result"] == "A"
        assert (await render(template="{{ n }}", context={"n": 1}, execution_id=execution_id))[
            "result"
        ] == 1
        assert (await render(template="{{ one.data }}", execution_id=execution_id))["status"] == 422
        assert (await render(template="{{ missing }}"))["status"] == 422
        for strict in (False, 1, "true"):
            refused = await render(template="{{ missing }}", strict=strict)
            assert refused["code"] == "INVALID_REQUEST", strict
        assert "`strict` can only be true" in str(await render(template="x", strict=False))
        assert (await render(template="{% for i in range(10**9) %}x{% endfor %}"))["status"] == 422
        assert (await render(template="{{ ''.__class__ }}"))["status"] == 422
        assert (await render(template="{{ 1 }}", execution_id="99"))["code"] == "NOT_FOUND"


async def test_health_readiness_and_metrics() -> None:
    async with run_api_server() as here:
        assert await here.get("/health") == {"status": "ok"}
        checks = {"lease": "ok", "shards": "ok", "store": "ok", "history": "ok"}
        assert await here.get("/ready") == {"ready": True, "checks": checks}
        await here.register(NOOP)
        execution_id = await here.start()
        await here.get(f"/api/executions/{execution_id}", min_seq=1)
        text = (await here.http.get("/metrics")).text
        assert 'noetl_shard_owner{instance="s1",shard="0"} 1.0' in text
        assert 'noetl_queue_depth{pool="cpu",status="queued"} 1.0' in text
        assert 'noetl_projection_lag_ms{shard="0"}' in text
        assert "noetl_batch_events_count" in text
        assert 'noetl_http_request_ms_count{route="start_execution",status="202"} 1.0' in text


async def test_a_server_without_shards_is_not_ready() -> None:
    async with run_api_server(shard_interval=60) as here:
        await here.get("/ready")
        for shard in here.node.server.shards.list_owned():
            here.node.server.shards.drop(shard)
        answer = await here.http.get("/ready")
        assert (answer.status_code, answer.json()["checks"]["shards"]) == (503, "owns no shard")
