"""The tool `nats` against a real server."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import nats
import pytest

from noetl.model.ids import ExecutionId
from noetl.tools.nats import Nats
from noetl.tools.port import Call, CallIdentity, Failed, Outcome, Success
from tests.nats import server
from tests.waiting import HANG_LIMIT_S


def call(**config: Any) -> Call:
    auth = config.pop("auth", None)
    timeout = config.pop("timeout", None)
    return Call(
        config=config,
        input={},
        key="k1",
        identity=CallIdentity(ExecutionId("1"), "s", "t"),
        auth=auth,
        timeout=timeout,
    )


def run_work(work: Coroutine[Any, Any, Outcome]) -> Any:
    outcome = asyncio.run(work)
    return outcome.value if isinstance(outcome, Success) else outcome


def code(url: str | None, **config: Any) -> tuple[str, bool]:
    outcome = run_work(Nats(url).run(call(**config)))
    assert isinstance(outcome, Failed)
    return outcome.failure.code, outcome.failure.retryable


def test_a_subscriber_gets_what_is_published_with_the_key_of_the_call() -> None:
    async def play() -> Any:
        client = await nats.connect(server().url)
        try:
            heard = await client.subscribe("orders.new")
            await client.flush()
            outcome = await Nats(server().url).run(
                call(operation="publish", subject="orders.new", value={"id": 7})
            )
            message = await heard.next_msg(timeout=HANG_LIMIT_S)
            return outcome, message.data, message.headers
        finally:
            await client.close()

    outcome, data, headers = asyncio.run(play())
    assert outcome == Success({"subject": "orders.new", "bytes": 8})
    assert (data, headers) == (b'{"id":7}', {"Nats-Msg-Id": "k1"})


def test_a_request_gives_the_answer() -> None:
    async def play() -> Any:
        client = await nats.connect(server().url)

        async def answer(message: Any) -> None:
            await message.respond(b"HELLO " + message.data)

        try:
            await client.subscribe("shout", cb=answer)
            await client.flush()
            return await Nats(None).run(
                call(operation="request", subject="shout", value="x", auth={"url": server().url})
            )
        finally:
            await client.close()

    assert run_work(play()) == {"subject": "shout", "data": "HELLO x"}


def test_a_key_is_put_read_and_deleted() -> None:
    bucket = server().bucket()

    async def play() -> list[Any]:
        client = await nats.connect(server().url)
        try:
            await client.jetstream().create_key_value(bucket=bucket)
        finally:
            await client.close()
        tool, found = Nats(server().url), []
        for operation in (
            {"operation": "kv_get"},
            {"operation": "kv_put", "value": [1, "a"]},
            {"operation": "kv_get"},
            {"operation": "kv_delete"},
            {"operation": "kv_get"},
        ):
            outcome = await tool.run(call(bucket=bucket, key="day", **operation))
            assert isinstance(outcome, Success), outcome
            found.append(outcome.value)
        return found

    missing, put, got, deleted, gone = asyncio.run(play())
    assert missing == gone == {"found": False, "value": None, "revision": None}
    assert got == {"found": True, "value": [1, "a"], "revision": put["revision"]}
    assert deleted == {"deleted": True}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (
            {"operation": "request", "subject": "nobody.home", "value": 1},
            ("NATS_NO_RESPONDERS", True),
        ),
        (
            {"operation": "kv_get", "bucket": "no_such_bucket", "key": "k"},
            ("NATS_BUCKET_MISSING", False),
        ),
        ({"operation": "publish", "subject": "noetl.commands.1", "value": 1}, ("NATS_OWN", False)),
        (
            {"operation": "kv_put", "bucket": "noetl_results", "key": "k", "value": 1},
            ("NATS_OWN", False),
        ),
        ({"operation": "publish", "subject": "", "value": 1}, ("NATS_FIELD", False)),
    ],
)
def test_what_cannot_be_done_is_a_failure(
    config: dict[str, Any], expected: tuple[str, bool]
) -> None:
    assert code(server().url, **config) == expected


def test_without_a_server_it_says_what_to_set() -> None:
    assert code(None, operation="publish", subject="a", value=1) == ("NATS_MISSING", False)
    assert code("nats://127.0.0.1:9", operation="publish", subject="a", value=1) == (
        "NATS_UNAVAILABLE",
        True,
    )
