"""The outermost layer of HTTP: checks where a request comes from and its size, and measures it.

Browsers add the cookie of a session by themselves, so the server refuses what a browser sends for
another site: requests with a name that was rebound to this server (the Host is not one of
`hosts.py`), and requests of a form or script of another origin (the Origin is not that of this server, or the
browser says that the site is another one). There is no CORS: no other origin may read an answer.
"""

import logging
import time
from collections.abc import MutableMapping
from typing import Any

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from noetl.metrics import Metrics
from noetl.model.exchange import MAX_EXCHANGE_BYTES
from noetl.server.http.hosts import AllowedHosts
from noetl.server.http.problems import make_internal_problem, make_problem
from noetl.time_slice import AdmissionGate

log = logging.getLogger(__name__)

MAX_HTTP_BODY_BYTES = 2 * 1024 * 1024  # a workload is at most 1 MB
EXCHANGE_PATH = "/api/worker/exchange"
COMMON_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
OWN_SITES = frozenset(
    {"same-origin", "none"}
)  # of Sec-Fetch-Site; none: the user typed the address
CACHE_CONTROL = b"cache-control"


class Guard:
    """ASGI middleware that refuses foreign and oversized requests, and measures the others."""

    def __init__(self, app: ASGIApp, metrics: Metrics, hosts: AllowedHosts | None = None) -> None:
        self._app = app
        self._hosts = hosts or AllowedHosts()
        self._metrics = metrics
        self._write_gate = AdmissionGate()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        limit = MAX_EXCHANGE_BYTES if scope["path"] == EXCHANGE_PATH else MAX_HTTP_BODY_BYTES
        refusal = self._check_host(scope) or _check_headers(Headers(scope=scope), limit)
        refusal = refusal or _check_request_path(scope)
        if refusal is not None:
            return await refusal(scope, receive, _AnswerSender(send))
        if scope["method"] not in ("GET", "HEAD") and scope["path"] != EXCHANGE_PATH:
            await self._write_gate.wait_for_turn()
        answer = _AnswerSender(send)
        began = time.perf_counter()
        try:
            await self._app(scope, _limit_body(receive, limit), answer)
        except ClientDisconnect:
            return
        except Exception:  # the HTTP boundary: log the error, answer it and go on
            log.exception("request failed", extra={"path": scope["path"]})
            if answer.status == 0:
                await make_internal_problem()(scope, receive, answer)
        if scope["path"] != EXCHANGE_PATH and not scope["path"].endswith("/stream"):
            route = getattr(scope.get("endpoint"), "__name__", "none")
            milliseconds = (time.perf_counter() - began) * 1000
            self._metrics.http_ms.labels(route, str(answer.status)).observe(milliseconds)

    def _check_host(self, scope: Scope) -> Response | None:
        """The answer to a request under a name that is not of this server; None if it may pass."""
        server = scope.get("server")
        own_address = server[0] if server else ""
        if self._hosts.allows(Headers(scope=scope).get("host", ""), own_address):
            return None
        return make_problem(
            421,
            "WRONG_HOST",
            "this server does not answer under this name",
            "use http://127.0.0.1 or http://localhost on its machine; NOETL_ALLOWED_HOSTS of the server allows other names",
        )


class _AnswerSender:
    """Passes the answer on with the common headers, and remembers its status."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status = 0

    async def __call__(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = [*message.get("headers", ()), *COMMON_HEADERS]
            if all(name != CACHE_CONTROL for name, _ in headers):
                headers.append((CACHE_CONTROL, b"no-store"))
            message["headers"] = headers
        await self._send(message)


def _check_headers(headers: Headers, limit: int) -> Response | None:
    """The answer to a request of the wrong origin or size; None if it may pass."""
    if _is_foreign(headers):
        return make_problem(403, "FOREIGN_ORIGIN", "requests from other sites are refused")
    length = headers.get("content-length", "0")
    if not length.isascii() or not length.isdigit():
        return make_problem(400, "BAD_REQUEST", "Content-Length is not a number")
    if int(length) > limit:
        return make_problem(413, "TOO_LARGE", f"the body may have at most {limit} bytes")
    return None


def _is_foreign(headers: Headers) -> bool:
    """Whether a browser sends the request for another site.

    Links of other sites may lead to the page: a browser navigates to it without an Origin.
    """
    origin = headers.get("origin")
    if origin is not None and origin.partition("://")[2].lower() != headers["host"].lower():
        return True
    is_navigation = headers.get("sec-fetch-mode") == "navigate"
    return headers.get("sec-fetch-site", "none") not in OWN_SITES and not is_navigation


def _check_request_path(scope: Scope) -> Response | None:
    """A refusal if the address contains NUL, which no name has and no database takes."""
    if "\0" in scope["path"] or b"%00" in scope["query_string"]:
        return make_problem(400, "BAD_REQUEST", "the address has a NUL character in it")
    return None


def _limit_body(receive: Receive, limit: int) -> Receive:
    """Count the bytes of the body as they come, since it may have no Content-Length."""
    received = 0

    async def receive_limited() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > limit:
            raise HTTPException(413, f"the body may have at most {limit} bytes")
        return message

    return receive_limited
