"""The http tool against a small server on this machine."""

import asyncio
import gzip
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from noetl.tools.http.tool import Http, classify_status, make_auth_headers, parse_retry_after
from noetl.tools.port import Outcome
from tests.unit.tools.calls import LOCAL_GUARD, call, closing, failure, run, value


class HttpServer:
    """Answers as its paths say, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.connections = 0
        self.hung = asyncio.Event()
        self.base = ""
        self.other = ""  # the same server under another name

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while line := await reader.readline():
                method, target, _ = line.decode().split(" ", 2)
                headers: dict[str, str] = {}
                while (line := await reader.readline()).strip():
                    name, _, text = line.decode().partition(":")
                    headers[name.lower()] = text.strip()
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                self.asked.append(
                    {"method": method, "target": target, "headers": headers, "body": body}
                )
                if target.startswith("/hang"):
                    self.hung.set()
                    await reader.read()
                    return
                if target.startswith("/close"):
                    return
                writer.write(self._answer(target, body))
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    def _answer(self, target: str, body: bytes) -> bytes:
        path, _, rest = target.partition("?")[0][1:].partition("/")
        status, more, content = "200 OK", b"", b""
        match path:
            case "json":
                more, content = (
                    b"Content-Type: application/json; charset=utf-8\r\n",
                    b'{"a": [1, "\xc3\xa9"]}',
                )
            case "bad":
                more, content = b"Content-Type: application/json\r\n", b"{nope"
            case "lines":
                more = f"Content-Type: application/{rest}; charset=utf-8\r\n".encode()
                content = b'{"a": 1}\r\n\n{"a": "\xc3\xa9"}\n'
            case "cut":
                more, content = b"Content-Type: application/x-ndjson\r\n", b'{"a": 1}\n{"a":'
            case "text":
                more, content = b"Content-Type: text/plain; charset=latin-1\r\n", b"\xe9"
            case "bytes":
                more, content = b"Content-Type: image/png\r\n", b"\x00\xff"
            case "zip":
                more, content = (
                    b"Content-Type: text/plain\r\nContent-Encoding: gzip\r\n",
                    gzip.compress(b"x" * 5_000_000),
                )
            case "empty":
                status = "204 No Content"
            case "status":
                status, content = f"{rest} Said", b'{"why": "because"}'
                more = b"Content-Type: application/json\r\nRetry-After: 7\r\n"
            case "login":
                status = "302 Found"
                more = b"Location: /json\r\nSet-Cookie: session=one\r\n"
            case "to":
                status, more = (
                    "302 Found",
                    b"Location: "
                    + {"here": "/json", "there": f"{self.other}/json", "round": "/to/round"}[
                        rest
                    ].encode()
                    + b"\r\n",
                )
            case "echo":
                more, content = b"Content-Type: application/octet-stream\r\n", body
        return (
            f"HTTP/1.1 {status}\r\nContent-Length: {len(content)}\r\n".encode()
            + more
            + b"\r\n"
            + content
        )


def play(test: Callable[[Http, HttpServer], Awaitable[Any]], **settings: Any) -> Any:
    async def play_on_server() -> Any:
        served, tool = HttpServer(), Http(**{"guard": LOCAL_GUARD, **settings})
        server = await asyncio.start_server(served.serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        served.base, served.other = f"http://127.0.0.1:{port}", f"http://localhost:{port}"
        try:
            return await test(tool, served)
        finally:
            await tool.close()
            server.close()

    return run(play_on_server())


def outcome(
    path: str, *, auth: Any = None, tool: dict[str, Any] | None = None, **config: Any
) -> tuple[Outcome, HttpServer]:
    async def test(http: Http, server: HttpServer) -> tuple[Outcome, HttpServer]:
        return await http.run(
            call({"url": server.base + path, **config}, auth=auth, key="the-key")
        ), server

    found: tuple[Outcome, HttpServer] = play(test, **(tool or {}))
    return found


# ---- answers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "data"),
    [
        ("/json", {"a": [1, "é"]}),
        ("/lines/x-ndjson", [{"a": 1}, {"a": "é"}]),
        ("/lines/jsonl", [{"a": 1}, {"a": "é"}]),
        ("/lines/stream+json", [{"a": 1}, {"a": "é"}]),
        ("/text", "é"),
        ("/bytes", {"$bytes": "AP8="}),
        ("/empty", None),
        ("/to/here", {"a": [1, "é"]}),
    ],
)
def test_an_answer_is_decoded_by_what_it_says_it_is(path: str, data: Any) -> None:
    found, server = outcome(path)
    assert value(found)["data"] == data
    assert set(value(found)) == {"status_code", "headers", "url", "elapsed", "data"}
    assert value(found)["url"] == server.base + ("/json" if path == "/to/here" else path)


@pytest.mark.parametrize(
    ("status", "kind", "retryable"),
    [
        (302, "redirect", False), (400, "client_error", False), (401, "auth", False), (403, "auth", False),
        (404, "not_found", False), (408, "timeout", True), (409, "client_error", False),
        (429, "rate_limit", True), (500, "server_error", True),
        (501, "server_error", False), (503, "server_error", True),
    ],
)  # fmt: skip
def test_anything_but_2xx_is_a_failure_of_a_kind(status: int, kind: str, retryable: bool) -> None:
    assert classify_status(status) == (kind, retryable)
    found, server = outcome(f"/status/{status}?token=x")
    error = failure(found)
    assert (error.code, error.kind, error.retryable, error.http_status) == (
        f"HTTP_{status}",
        kind,
        retryable,
        status,
    )
    assert error.detail == {"data": {"why": "because"}, "retry_after": 7.0}
    assert error.message == f"GET {server.base}/status/{status} answered {status} Said"
    assert found.facts["http"] == {
        "status": status,
        "content_type": "application/json",
        "retry_after": 7.0,
    }


def test_json_that_is_none_is_a_failure() -> None:
    for path in "/bad", "/cut":
        assert failure(outcome(path)[0]).code == "HTTP_BAD_JSON"


def test_connection_and_timeout_are_told_apart() -> None:
    found = failure(outcome("/close")[0])
    assert (found.code, found.kind, found.retryable) == ("HTTP_CONNECTION", "connection", True)

    async def call_closed_port(http: Http, server: HttpServer) -> Outcome:
        return await http.run(call({"url": "http://me:secret@127.0.0.1:1/"}))

    found = failure(play(call_closed_port))
    assert (found.kind, found.message.partition(": ")[0]) == ("connection", "127.0.0.1:1")


@pytest.mark.parametrize(
    "url", ["ftp://x/", "file:///etc/passwd", "nonsense", "http://", "http://[::1/"]
)
def test_an_address_that_is_none_is_refused(url: str) -> None:
    async def test(http: Http, server: HttpServer) -> Outcome:
        return await http.run(call({"url": url}))

    assert failure(play(test)).code in ("HTTP_URL", "HTTP_REQUEST")


def test_the_api_that_comes_along_has_pages() -> None:
    calls = [
        call({"url": "demo://shop/orders", "params": {"page": page, "size": 900}})
        for page in (1, 6)
    ]
    first, last = [value(outcome)["data"] for outcome in run(closing(Http(), *calls))]
    assert [row["order_id"] for row in first["data"] + last["data"]] == [
        *range(1, 901),
        *range(4501, 5001),
    ]
    assert (first["paging"]["has_more"], last["paging"]) == (
        True,
        {"page": 6, "pages": 6, "has_more": False},
    )


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("demo://shop/nothing", "HTTP_404"),
        ("demo://bank/orders", "HTTP_404"),
        ("demo://shop/orders?page=0", "HTTP_400"),
    ],
)
def test_it_refuses_what_it_does_not_have(url: str, code: str) -> None:
    (outcome,) = run(closing(Http(), call({"url": url})))
    assert failure(outcome).code == code


def test_a_large_answer_is_refused_while_it_comes() -> None:
    assert failure(outcome("/zip", tool={"body_limit": 100_000})[0]).code == "RESULT_TOO_LARGE"


def test_redirects_are_not_followed_for_ever_nor_when_not_wanted() -> None:
    assert failure(outcome("/to/round")[0]).code == "HTTP_REDIRECTS"
    assert failure(outcome("/to/here", follow_redirects=False)[0]).kind == "redirect"


def test_cancelling_ends_the_request() -> None:
    async def test(http: Http, server: HttpServer) -> None:
        task = asyncio.ensure_future(http.run(call({"url": server.base + "/hang"})))
        await server.hung.wait()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert value(await http.run(call({"url": server.base + "/json"})))["status_code"] == 200

    play(test)


def test_connections_are_used_again() -> None:
    async def test(http: Http, server: HttpServer) -> int:
        for _ in range(5):
            await http.run(call({"url": server.base + "/json"}))
        return server.connections

    assert play(test) == 1


# ---- requests ----------------------------------------------------------------------------------------------------------


def get_request(path: str = "/echo", **config: Any) -> dict[str, Any]:
    found, server = outcome(path, **config)
    value(found)
    return server.asked[-1]


def test_what_is_sent() -> None:
    plain = get_request("/echo?a=0", params={"b": [1, 2], "c": None, "d": True, "e": "ü &"})
    assert plain["target"] == "/echo?a=0&b=1&b=2&d=true&e=%C3%BC+%26"
    sent = get_request(method="post", body={"a": [1, None]}, headers={"X-N": 5})
    assert (sent["method"], json.loads(sent["body"])) == ("POST", {"a": [1, None]})
    assert (sent["headers"]["content-type"], sent["headers"]["x-n"]) == ("application/json", "5")
    assert (
        get_request(method="PUT", body="raw", headers={"Content-Type": "text/x"})["body"] == b"raw"
    )
    assert get_request(method="POST", form={"a": 1, "b": "x y"})["body"] == b"a=1&b=x+y"


def test_a_sink_says_which_request_it_is() -> None:
    assert (
        get_request(method="POST", body="x", idempotent=True)["headers"]["idempotency-key"]
        == "the-key"
    )
    assert "idempotency-key" not in get_request(method="POST", body="x")["headers"]
    assert "idempotency-key" not in get_request(idempotent=True)["headers"]


@pytest.mark.parametrize(
    ("auth", "header", "expected"),
    [
        ({"token": "t"}, "authorization", "Bearer t"),
        ({"username": "u", "password": "p"}, "authorization", "Basic dTpw"),
        ({"header": "X-Api-Key", "value": "k"}, "x-api-key", "k"),
        ({"headers": {"X-A": 1}}, "x-a", "1"),
    ],
)
def test_a_credential_becomes_headers(auth: Any, header: str, expected: str) -> None:
    assert get_request(auth=auth)["headers"][header] == expected


def test_what_authenticates_does_not_follow_to_another_host() -> None:
    same = get_request("/to/here", auth={"header": "X-Api-Key", "value": "k"})
    assert same["headers"]["x-api-key"] == "k"
    for auth in ({"header": "X-Api-Key", "value": "k"}, {"token": "k"}):
        other = get_request("/to/there", auth=auth)
        assert other["headers"]["host"].startswith("localhost")
        assert not {"x-api-key", "authorization"} & set(other["headers"])


def test_headers_of_the_author_do_not_follow_to_another_host() -> None:
    headers = {"X-Api-Key": "k", "Authorization": "Basic k", "Cookie": "c=k", "Accept": "text/x"}
    same = get_request("/to/here", headers=headers)["headers"]
    assert (same["x-api-key"], same["authorization"]) == ("k", "Basic k")
    other = get_request("/to/there", headers=headers)["headers"]
    assert set(other) <= {"host", "accept", "accept-encoding", "connection", "user-agent"}
    assert other["accept"] == "text/x"


def test_a_cookie_stays_in_its_call() -> None:
    async def log_in_and_call_again(http: Http, server: HttpServer) -> list[str | None]:
        await http.run(call({"url": server.base + "/login"}))
        await http.run(call({"url": server.base + "/json"}))
        return [asked["headers"].get("cookie") for asked in server.asked]

    assert play(log_in_and_call_again) == [None, "session=one", None]


def test_only_encodings_that_can_be_decoded_are_asked_for() -> None:
    assert get_request("/json")["headers"]["accept-encoding"] == "gzip, deflate"


def test_a_header_of_the_author_wins() -> None:
    assert (
        get_request(auth={"token": "t"}, headers={"authorization": "mine"})["headers"][
            "authorization"
        ]
        == "mine"
    )


def test_a_credential_without_anything_to_show_is_refused() -> None:
    assert failure(outcome("/json", auth={"host": "x"})[0]).code == "AUTH_INVALID"
    assert make_auth_headers(None) == {}


def test_the_workers_proxy_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    assert value(outcome("/json")[0])["status_code"] == 200


def test_retry_after_is_seconds_or_a_date() -> None:
    assert parse_retry_after("3.5") == 3.5
    assert parse_retry_after("Wed, 21 Oct 2015 07:28:00 GMT") == 0.0
    assert (parse_retry_after("Wed, 21 Oct 2099 07:28:00 GMT") or 0) > 1_000_000
    assert parse_retry_after("soon") is None
