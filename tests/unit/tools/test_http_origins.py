"""Credentials, headers and bodies of the http tool go to the origin of the task, and to those that it trusts.

A second server plays the other origin and remembers everything that it was sent.
"""

import asyncio
from typing import Any

import pytest

from noetl.tools.http.tool import Http
from noetl.tools.port import Call, Outcome, Success
from tests.unit.tools.calls import LOCAL_GUARD, call, failure, run

SECRET = "canary-91f3b7"
PRIVATE_PARTS: list[dict[str, Any]] = [
    {"auth": {"token": SECRET}},
    {"auth": {"username": "u", "password": SECRET}},
    {"auth": {"header": "X-Key", "value": SECRET}},
    {"auth": {"headers": {"X-Key": SECRET}}},
    {"headers": {"Authorization": f"Bearer {SECRET}"}},
    {"headers": {"X-Key": SECRET}},
    {"headers": {"Cookie": f"session={SECRET}"}},
    {"params": {"api_key": SECRET}},
    {"method": "POST", "body": {"password": SECRET}},
    {"method": "POST", "body": SECRET},
    {"method": "PUT", "form": {"password": SECRET}},
]


class RecordingServer:
    """Remembers what it was sent. `/STATUS` answers with a redirect to the same path of `target`."""

    def __init__(self) -> None:
        self.received: list[bytes] = []
        self.base = self.target = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = 0
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                length = int(line.partition(b":")[2])
        self.received.append(head + await reader.readexactly(length))
        path = head.split(b" ")[1].partition(b"?")[0]
        start = b"HTTP/1.1 200 OK\r\n"
        if path[1:].isdigit():
            start = b"HTTP/1.1 %s Moved\r\nLocation: %s/end\r\n" % (path[1:], self.target.encode())
        writer.write(start + b"Content-Length: 0\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()


def send(
    path: str, first_path: str | None = None, *, trusts: bool = False, **parts: Any
) -> tuple[Outcome, RecordingServer, RecordingServer]:
    """The outcome of a call, the task's own server, and the other one.

    With `first_path` the call is that of a page of the other server, which an answer has named.
    """

    async def play() -> tuple[Outcome, RecordingServer, RecordingServer]:
        own, other = RecordingServer(), RecordingServer()
        listeners = []
        for server in (own, other):
            listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
            server.base = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
            listeners.append(listener)
        own.target, other.target = other.base, own.base
        http = Http(LOCAL_GUARD)
        try:
            outcome = await http.run(make_call(own, other))
        finally:
            await http.close()
            for listener in listeners:
                listener.close()
        return outcome, own, other

    def make_call(own: RecordingServer, other: RecordingServer) -> Call:
        config = {name: part for name, part in parts.items() if name != "auth"}
        if trusts:
            config["trusted_origins"] = [other.base]
        if first_path is None:
            return call({"url": own.base + path, **config}, auth=parts.get("auth"))
        return call(
            {"url": other.base + path, **config},
            auth=parts.get("auth"),
            first_url=own.base + first_path,
        )

    found: tuple[Outcome, RecordingServer, RecordingServer] = run(play())
    return found


def holds_secret(server: RecordingServer) -> bool:
    everything = b"".join(server.received)
    encoded = (SECRET.encode(), b"dTpjYW5hcnktOTFmM2I3")  # u:SECRET in base64
    return any(text in everything for text in encoded)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("parts", PRIVATE_PARTS, ids=str)
def test_a_redirect_to_another_origin_carries_no_secret(status: int, parts: dict[str, Any]) -> None:
    outcome, own, other = send(f"/{status}", **parts)
    assert holds_secret(own)
    assert not holds_secret(other)
    if not isinstance(outcome, Success):
        assert failure(outcome).code == "HTTP_ORIGIN"
        assert f"trusted_origins: [{other.base}]" in failure(outcome).message
        assert other.received == []


@pytest.mark.parametrize("status", [307, 308])
@pytest.mark.parametrize("parts", PRIVATE_PARTS[8:], ids=str)
def test_a_redirect_with_a_body_to_another_origin_is_refused(
    status: int, parts: dict[str, Any]
) -> None:
    outcome, _, other = send(f"/{status}", **parts)
    assert failure(outcome).code == "HTTP_ORIGIN"
    assert other.received == []


@pytest.mark.parametrize("parts", PRIVATE_PARTS, ids=str)
def test_a_next_page_at_another_origin_is_refused(parts: dict[str, Any]) -> None:
    outcome, _, other = send("/page2", "/page1", **parts)
    assert failure(outcome).code == "HTTP_ORIGIN"
    assert f"trusted_origins: [{other.base}]" in failure(outcome).message
    assert other.received == []


def test_a_next_page_without_anything_private_may_be_elsewhere() -> None:
    outcome, _, other = send("/page2", "/page1", headers={"Accept": "text/x"})
    assert isinstance(outcome, Success)
    assert len(other.received) == 1


@pytest.mark.parametrize("parts", PRIVATE_PARTS, ids=str)
def test_an_origin_that_the_playbook_names_gets_everything(parts: dict[str, Any]) -> None:
    outcome, _, other = send("/page2", "/page1", trusts=True, **parts)
    assert isinstance(outcome, Success)
    assert holds_secret(other)


@pytest.mark.parametrize(
    "parts",
    [part for part in PRIVATE_PARTS if "params" not in part and "Cookie" not in str(part)],
    ids=str,
)
def test_a_redirect_to_a_trusted_origin_carries_credential_and_body(parts: dict[str, Any]) -> None:
    outcome, _, other = send("/307", trusts=True, **parts)
    assert isinstance(outcome, Success)
    assert holds_secret(other)


@pytest.mark.parametrize(
    "origins",
    [
        "https://a.example",
        ["a.example"],
        ["https://a.example/path"],
        ["ftp://a.example"],
        ["https://u@a.example"],
        [7],
        ["*"],
    ],
)
def test_what_is_no_origin_is_refused(origins: Any) -> None:
    outcome, own, _ = send("/end", trusted_origins=origins)
    assert failure(outcome).code == "HTTP_REQUEST"
    assert "trusted_origins" in failure(outcome).message
    assert own.received == []
