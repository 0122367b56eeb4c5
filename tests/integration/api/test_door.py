"""What is kept out, and how refusals look."""

import asyncio
import json
import signal

import pytest

from noetl.model.errors import InvalidInput
from noetl.runtime.listening import open_listener, stop_on_signals
from tests.integration.api.api_server import NOOP, run_api_server


async def test_only_loopback_names_are_answered() -> None:
    async with run_api_server() as here:
        for host in (
            "evil.example",
            "evil.example:8082",
            "127.0.0.1.evil.example",
            "10.0.0.1",
            "",
            "localhost.evil",
            "[::2]",
        ):
            answer = await here.http.get("/health", headers={"Host": host})
            assert (answer.status_code, answer.json()["code"]) == (421, "WRONG_HOST"), host
        for host in ("localhost", "LOCALHOST:1", "127.0.0.1:8082", "[::1]:8082", "127.1.2.3"):
            assert (await here.http.get("/health", headers={"Host": host})).status_code == 200, host


async def test_other_sites_are_refused_and_there_is_no_cors() -> None:
    async with run_api_server() as here:
        for origin in (
            "http://evil.example",
            "https://localhost.evil.example",
            "null",
            "http://localhost:5173",  # another program of this machine
        ):
            answer = await here.http.post(
                "/api/execute", json={"path": "x"}, headers={"Origin": origin}
            )
            assert (answer.status_code, answer.json()["code"]) == (403, "FOREIGN_ORIGIN")
        answer = await here.http.get("/health", headers={"Origin": here.url})
        assert answer.status_code == 200
        assert not [name for name in answer.headers if name.startswith("access-control")]
        assert answer.headers["x-content-type-options"] == "nosniff"
        answer = await here.http.post(
            "/api/execute", content=b'{"path": "x"}', headers={"Content-Type": "text/plain"}
        )
        assert answer.status_code == 422  # a form of another site could send this type


async def test_bodies_are_bounded_before_they_are_read() -> None:
    async with run_api_server() as here:
        answer = await here.http.post(
            "/api/execute", json={"path": "x", "payload": {"a": "b" * 3_000_000}}
        )
        assert (answer.status_code, answer.json()["code"]) == (413, "TOO_LARGE")

        async def chunks():  # type: ignore[no-untyped-def]
            for _ in range(40):
                yield b" " * 100_000

        answer = await here.http.post(
            "/api/execute", content=chunks(), headers={"Content-Type": "application/json"}
        )
        assert (answer.status_code, answer.json()["code"]) == (413, "TOO_LARGE")


BODIES = [
    (b'{"path": "tests/simple", "payload": %s}' % (b"[" * 100 + b"]" * 100), 400),
    (b'{"path": "tests/simple", "payload": {"a": %s}}' % (b"9" * 500), 400),
    (b'{"path": "tests/simple", "payload": {"a": NaN}}', 400),
    (b'{"path": "tests/simple", "payload": {"a": "\xff"}}', 400),
    (b'{"path": "tests/simple"', 400),
    (b'{"path": "tests/simple", "payload": {"a": "\\ud800"}}', 400),
    (b'{"path": "tests/simple", "pay": {}}', 422),
    (b'{"path": "tests/simple", "playbook": "x"}', 422),
    (b'{"path": "tests/simple", "payload": []}', 422),
    (b'{"path": "tests/simple", "version": "x"}', 422),
    (b"[]", 422),
    (b"{}", 422),
    (b'{"path": "tests/simple", "payload": {"a": 123456789012345678901234567890}}', 400),
    (b'{"path": "tests/simple", "payload": {"a": "%s"}}' % (b"[" * 100), 202),
    (b'{"path": "tests/simple", "version": "latest"}', 202),
]


async def test_json_is_taken_strictly() -> None:
    async with run_api_server() as here:
        await here.register(NOOP)
        for body, status in BODIES:
            answer = await here.http.post(
                "/api/execute", content=body, headers={"Content-Type": "application/json"}
            )
            assert answer.status_code == status, (body, answer.text)
            if status != 202:
                assert answer.headers["content-type"] == "application/problem+json"
                assert {"type", "title", "status", "code", "detail", "hint"} <= answer.json().keys()


async def test_what_is_wrong_with_a_body_is_said() -> None:
    async with run_api_server() as here:
        given = {"Content-Type": "application/json"}
        broken = (
            await here.http.post(
                "/api/execute", content=b'{"path": "x",\n "payload" 1}', headers=given
            )
        ).json()
        assert (broken["code"], "line 2, column" in broken["detail"]) == ("BAD_JSON", True)
        text = (
            await here.http.post("/api/execute", content=b'{"path": "a\\u0000"}', headers=given)
        ).json()
        assert "NUL" in text["detail"]
        plain = (await here.http.post("/api/execute", content=b'{"path": "x"}')).json()
        assert "Content-Type is application/json" in plain["hint"]
        missing = (await here.http.get("/api/executions/0")).json()
        assert (missing["code"], missing["hint"]) == (
            "NOT_FOUND",
            "noetl exec list shows those there are",
        )


async def test_a_refusal_does_not_repeat_what_was_sent() -> None:
    async with run_api_server() as here:
        answer = await here.http.post("/api/execute", json={"path": {"secret": "canary"}})
        assert answer.status_code == 422
        assert "canary" not in answer.text


async def test_a_bug_is_answered_without_its_trace(caplog: pytest.LogCaptureFixture) -> None:
    async with run_api_server() as here:

        async def raise_bug(*args: object) -> object:
            raise RuntimeError("canary")

        here.node.services.queue.__class__.count_pools, kept = (
            raise_bug,
            here.node.services.queue.__class__.count_pools,
        )  # type: ignore[method-assign,assignment]
        try:
            answer = await here.http.get("/api/pools")
        finally:
            here.node.services.queue.__class__.count_pools = kept  # type: ignore[method-assign]
        assert (answer.status_code, answer.json()["code"]) == (500, "INTERNAL")
        assert "canary" not in answer.text
        assert "request failed" in caplog.text
        assert (await here.http.get("/health")).status_code == 200


async def test_unknown_routes_and_methods_are_problems() -> None:
    async with run_api_server() as here:
        for answer, status in (
            (await here.http.get("/api/nowhere"), 404),
            (await here.http.get("/metrics/nowhere"), 404),
            (await here.http.post("/nowhere"), 405),
            (await here.http.delete("/api/executions"), 405),
            (await here.http.get("/api/executions/abc"), 404),
            (await here.http.get("/api/executions/0"), 404),
            (await here.http.get(f"/api/executions/{'9' * 30}"), 404),
            (await here.http.get("/api/executions?limit=0"), 422),
            (await here.http.get("/api/executions?since=soon"), 422),
            (
                await here.http.post(
                    "/api/executions/1/cancel", headers={"Idempotency-Key": "x" * 201}
                ),
                422,
            ),
        ):
            assert answer.status_code == status
            assert answer.headers["content-type"] == "application/problem+json", json.dumps(
                answer.text
            )


def test_an_address_that_is_not_of_the_machine_is_said_in_a_sentence() -> None:
    for host in ("192.0.2.1", "no-such-host.invalid"):
        with pytest.raises(InvalidInput, match=f"cannot listen on {host}"):
            open_listener(host, 0)
    with pytest.raises(InvalidInput, match="no address"):
        open_listener("", 0)


def test_a_port_in_use_is_said_in_a_sentence() -> None:
    taken = open_listener(port=0)
    with pytest.raises(InvalidInput, match=r"cannot listen on 127\.0\.0\.1"):
        open_listener(port=taken.getsockname()[1])
    taken.close()


async def test_a_signal_stops() -> None:
    stop = stop_on_signals(signal.SIGUSR1)
    assert not stop.is_set()
    signal.raise_signal(signal.SIGUSR1)
    assert await stop.wait()
    asyncio.get_running_loop().remove_signal_handler(signal.SIGUSR1)
