"""A malformed message of a client or a worker is answered with 4xx, and the server goes on."""

# ruff: noqa: E501 - lists of what may be wrong

import asyncio
import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from noetl.model import events as e
from noetl.model.exchange import ExchangeReply, ExchangeRequest, LeaseKey, Progress
from noetl.model.ids import ExecutionId, RefId
from noetl.model.messages import Report, StoredRef
from noetl.model.reference import Address, Reference
from noetl.server.http.application import make_openapi
from tests.integration.api.api_server import (
    NOOP,
    ApiServer,
    run_api_server,
    run_api_server_on_postgres,
)

EXCHANGE = "/api/worker/exchange"
JSON = {"Content-Type": "application/json"}
POSTS = (
    "/api/execute", "/api/executions/execute", "/api/credentials", "/api/events", "/api/events/batch", "/api/schedules", "/api/hooks",
    "/api/context/render", "/api/catalog/register", "/api/executions/{id}/retry", "/api/executions/{id}/rerun",
    "/api/executions/{id}/signals/go", EXCHANGE, "/api/worker/logs", "/api/worker/orphans/{id}",
)  # fmt: skip
WRONG: tuple[Any, ...] = (
    None, True, -1, 0, 1.5, 2**31, 2**63, 2**64, -(2**63), 10**30, "", "x", "\0", "\ud800", "é" * 300, "9" * 19, "9" * 400, "-1", [], [[]],
    {}, {"type": "x"}, [None], [{}], "a" * 100_000, [1] * 10_000,
)  # fmt: skip
KEYS = b"{" + b",".join(b'"k%d":0' % number for number in range(170_000)) + b"}"
BODIES = {
    "empty": b"", "no JSON": b"{", "cut": b'{"worker": "w", "incarn', "two": b"{}{}", "text": b'"x"', "number": b"7", "null": b"null",
    "list": b"[]", "not UTF-8": b'{"worker": "\xff\xfe"}', "NUL": b'{"worker": "\\u0000", "path": "\\u0000"}', "raw NUL": b"\0",
    "deep lists": b"[" * 100_000, "deep maps": b'{"a":' * 100_000, "closed deep": b"[" * 5_000 + b"]" * 5_000,
    "many keys": KEYS, "million keys": b"{" + b",".join(b'"k%d":0' % number for number in range(1_000_000)) + b"}",
    "many maps": b"[" + b",".join([b"{}"] * 600_000) + b"]", "same key": b"{" + b",".join([b'"worker":"w"'] * 100_000) + b"}",
    "long number": b'{"free": ' + b"9" * 100_000 + b"}", "NaN": b'{"free": NaN}', "lone half": b'{"worker": "\\ud800"}',
}  # fmt: skip

MAY_BE_FINE = ("empty", "null", "list")  # where a body is not needed, or is a list


async def lease_command(here: ApiServer) -> tuple[str, str, int]:
    """The execution, the command and the attempt of a lease that worker `w` holds."""
    await here.register(NOOP)
    execution_id = await here.start()
    await here.get(f"/api/executions/{execution_id}", min_seq=1)
    asked = ExchangeRequest(worker="w", incarnation="1", free=1, wait=5_000_000)
    answer = await here.http.post(EXCHANGE, content=msgspec.json.encode(asked))
    [command] = msgspec.json.decode(answer.content, type=ExchangeReply).commands
    return execution_id, command.command_id, command.attempt


def exchange(execution_id: str, command_id: str, attempt: int) -> dict[str, Any]:
    """One with something in every field."""
    uri = str(Address(ExecutionId(execution_id), "result", "one", "k-1"))
    stored = StoredRef(
        reference=Reference(ref_id=RefId("77"), type="kv", uri=uri, sha256="0" * 64, bytes=2, rows=1),
        parent=RefId("78"), inputs=(RefId("79"),), payload=b"{}",
    )  # fmt: skip
    event = e.CommandStarted(
        command_id=command_id, attempt=attempt, worker="w", step="one", activation="a", at=1
    )  # type: ignore[call-arg]
    report = Report(
        execution_id=ExecutionId(execution_id),
        command_id=command_id,
        attempt=attempt,
        worker="w",
        event=event,
        refs=(stored,),  # type: ignore[arg-type]
    )
    held = LeaseKey(command_id, attempt)  # type: ignore[arg-type]
    request = ExchangeRequest(
        worker="w", incarnation="1", free=1, held=(held,), reports=(report,), logs=(stored,), progress=(Progress(held, "half"),), wait=1
    )  # fmt: skip
    made: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(request))
    return made


def paths(value: Any, at: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    if at:
        yield at
    parts = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, part in parts:
        yield from paths(part, (*at, key))


def change_part(value: Any, at: tuple[str | int, ...], part: Any) -> Any:
    twin = copy.deepcopy(value)
    holder = twin
    for key in at[:-1]:
        holder = holder[key]
    if part is KeyError:
        del holder[at[-1]]
    else:
        holder[at[-1]] = part
    return twin


async def send_body(here: ApiServer, path: str, body: bytes, headers: dict[str, str] = JSON) -> Any:
    answer = await here.http.post(path, content=body, headers=headers)
    assert answer.status_code < 500, (path, body[:300], answer.text[:500])
    return answer


def check_refusal(answer: Any, *about: Any) -> None:
    assert 400 <= answer.status_code < 500, about
    assert answer.headers["content-type"] == "application/problem+json", about
    assert answer.json()["detail"], about
    assert len(answer.content) < 20_000, about


@pytest.mark.parametrize("path", POSTS)
async def test_a_body_that_is_not_what_was_agreed_on_is_refused(path: str) -> None:
    async with run_api_server() as here:
        execution_id, _, _ = await lease_command(here)
        for name, body in BODIES.items():
            answer = await send_body(here, path.format(id=execution_id), body)
            if not (answer.is_success and name in MAY_BE_FINE):
                check_refusal(answer, path, name)
        assert (await here.http.get("/api/health")).is_success


@pytest.mark.parametrize(
    "kind", ["", "text/plain", "application/xml", "application/json; charset=latin-1", "x"]
)
async def test_a_body_of_another_type_is_refused(kind: str) -> None:
    async with run_api_server() as here:
        for path in (
            "/api/execute",
            "/api/credentials",
            "/api/schedules",
            "/api/hooks",
            "/api/context/render",
        ):
            answer = await send_body(here, path, b"\xff\xfe", {"Content-Type": kind})
            check_refusal(answer, path, kind)


@pytest.mark.parametrize("field", ["reports", "logs", ""])
async def test_every_field_of_an_exchange_may_be_wrong(
    field: str, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with run_api_server_on_postgres(database, tmp_path, monkeypatch) as here:
        execution_id, command_id, attempt = await lease_command(here)
        right = exchange(execution_id, command_id, attempt)
        for at in paths(right):
            if at[0] != field and (field or at[0] in ("reports", "logs")):
                continue
            if at[0] == "reports" and len(at) > 4 and at[2] == "refs":
                continue  # they are like those of the logs
            bodies = [
                json.dumps(change_part(right, at, part)).encode() for part in (*WRONG, KeyError)
            ]
            for answer in await asyncio.gather(
                *(send_body(here, EXCHANGE, body) for body in bodies)
            ):
                if not answer.is_success:
                    check_refusal(answer, at)
        answer = await send_body(here, EXCHANGE, json.dumps(right).encode())
        assert answer.is_success


@pytest.mark.parametrize(
    "event", get_args(e.Reported), ids=lambda event: str(event.__struct_config__.tag)
)
async def test_every_field_of_a_reported_event_may_be_wrong(event: Any) -> None:
    async with run_api_server() as here:
        right = exchange(*await lease_command(here))
        known = right["reports"][0]["event"]
        fields = [field.encode_name for field in msgspec.structs.fields(event)]
        likely = {name: known[name] for name in fields if name in known} | {
            "type": event.__struct_config__.tag
        }
        for name in fields:
            for part in (
                *WRONG,
                {"status": "x"},
                {"status": "ok", "context": {"a": [1]}},
                {"code": "", "message": ""},
            ):
                body = change_part(right, ("reports", 0, "event"), {**likely, name: part})
                answer = await send_body(here, EXCHANGE, json.dumps({**body, "logs": []}).encode())
                if not answer.is_success:
                    check_refusal(answer, name, part)
        assert (await here.http.get("/api/health")).is_success


IMPOSSIBLE: dict[str, Any] = {
    "worker": ["", None, 1, "\0", "x" * 201], "incarnation": ["", [], "\0"], "pools": ["cpu", [""], [1], ["p"] * 10_000],
    "free": [-1, "1", 1.5, 2**40], "held": [{}, [{}], [{"command_id": "", "attempt": 1}], [{"command_id": "a", "attempt": -1}]],
    "reports": [{}, [{}], [{"type": "start"}], [None]], "logs": [{}, [{}]], "wait": ["1", None], "renew": [1, "yes"],
    "progress": [[{}], {}],
}  # fmt: skip
IMPOSSIBLE_REPORTS: dict[str, Any] = {
    "type": ["start", "x", 1], "execution_id": ["", "x", "-1", "0", "9" * 19, "9" * 400, 7, "1\0", "٣"], "command_id": ["", 1, "\0"],
    "attempt": [-1, 0, "1", 2**40, 2**63], "worker": ["", "\0", 1], "event": [None, {}, {"type": "x"}, {"type": "playbook.completed"}],
    "refs": [{}, [{}], [{"reference": {"ref_id": "1", "type": "tape", "uri": "u"}}], [{"reference": {"ref_id": "x", "type": "kv", "uri": "u"}}],
             [{"reference": {"ref_id": "9" * 30, "type": "kv", "uri": "u"}}], [{"reference": {"ref_id": "1", "type": "kv", "uri": "u", "bytes": -1}}]],
}  # fmt: skip


async def test_what_an_exchange_cannot_mean_is_refused() -> None:
    async with run_api_server() as here:
        right = exchange(*await lease_command(here))
        for field, values in IMPOSSIBLE.items():
            for value in values:
                check_refusal(
                    await send_body(here, EXCHANGE, json.dumps({**right, field: value}).encode()),
                    field,
                    value,
                )
        for field, values in IMPOSSIBLE_REPORTS.items():
            for value in values:
                body = change_part(right, ("reports", 0, field), value)
                check_refusal(
                    await send_body(here, EXCHANGE, json.dumps(body).encode()), field, value
                )


async def test_the_same_report_twice_in_an_exchange_is_recorded_once() -> None:
    async with run_api_server() as here:
        execution_id, command_id, attempt = await lease_command(here)
        right = exchange(execution_id, command_id, attempt)
        doubled = {
            **right,
            "reports": right["reports"] * 3,
            "held": right["held"] * 3,
            "pools": ["cpu"] * 3,
        }
        assert (await send_body(here, EXCHANGE, json.dumps(doubled).encode())).is_success
        events = (await here.get(f"/api/executions/{execution_id}/events"))["events"]
        assert [event["type"] for event in events].count("command.started") == 1


async def test_a_payload_without_a_sound_reference_is_refused() -> None:
    async with run_api_server() as here:
        for reference in (
            "",
            "{",
            "[]",
            '{"ref_id": 1}',
            '{"ref_id": "x", "type": "kv", "uri": "noetl://x"}',
            "[" * 10_000,
        ):
            answer = await here.http.put(
                "/api/worker/payloads", params={"reference": reference}, content=b"{}"
            )
            check_refusal(answer, reference)


def query_parameters() -> list[tuple[str, str, str, dict[str, Any]]]:
    """Method, address, name and schema of every parameter of every route; ids and names in addresses are filled in."""
    found = []
    for path, operations in make_openapi()["paths"].items():
        address = path.replace("{execution_id}", "77")
        address = re.sub(r"\{\w+\}", "some", address)
        for method, operation in operations.items():
            query = [each for each in operation.get("parameters", ()) if each["in"] == "query"]
            found += [(method.upper(), address, each["name"], each["schema"]) for each in query]
    return found


def is_integer(schema: dict[str, Any]) -> bool:
    return any(each.get("type") == "integer" for each in (schema, *schema.get("anyOf", ())))


async def test_parameters_out_of_range_are_refused_by_name() -> None:
    async with run_api_server() as here:
        integers = [
            (method, path, name)
            for method, path, name, schema in query_parameters()
            if is_integer(schema)
        ]
        assert len(integers) >= 20
        for method, path, name in integers:
            for value in ("-1", str(1 << 70), "x", "1.5", ""):
                answer = await here.http.request(method, path, params={name: value})
                assert answer.status_code == 422, (
                    f"{method} {path}?{name}={value}: {answer.status_code}"
                )
                assert method == "HEAD" or f"query.{name}" in answer.text, answer.text


@pytest.mark.parametrize("query", ["offset=-1", "offset=20", "page_size=5", "limits=1"])
async def test_parameters_that_a_route_does_not_know_are_refused_by_name(query: str) -> None:
    async with run_api_server() as here:
        for path, operations in make_openapi()["paths"].items():
            if "get" not in operations or path in ("/health", "/ready", "/metrics"):
                continue
            address = re.sub(r"\{\w+\}", "some", path.replace("{execution_id}", "77"))
            answer = await here.http.get(f"{address}?{query}")
            assert answer.status_code == 422, f"{address}: {answer.status_code}"
            assert f"query.{query.split('=')[0]}: no such parameter here" in answer.json()["detail"]


async def test_a_parameter_given_twice_is_refused() -> None:
    async with run_api_server() as here:
        answer = await here.http.get("/api/executions?limit=1&limit=2")
        assert (answer.status_code, answer.json()["detail"]) == (
            422,
            "query.limit: given more than once",
        )


@pytest.mark.parametrize("since", ["-1d", "yesterday", "1x", "99999999999999999d"])
async def test_a_since_that_is_no_time_is_refused_by_name(since: str) -> None:
    async with run_api_server() as here:
        answer = await here.http.get("/api/executions", params={"since": since})
        assert (answer.status_code, "since" in answer.json()["detail"]) == (422, True), answer.text


async def test_rows_that_end_before_they_begin_are_refused() -> None:
    async with run_api_server() as here:
        await here.register(NOOP)
        execution_id = await here.start()
        answer = await here.http.get(
            f"/api/executions/{execution_id}/result/one/data?start=5&stop=2"
        )
        assert (answer.status_code, "stop" in answer.json()["detail"]) == (422, True), answer.text
