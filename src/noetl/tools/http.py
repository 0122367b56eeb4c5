"""`http`: one request; its value is `{status_code, headers, url, elapsed, data}`.

`data` is decoded JSON when the answer says it is JSON, a list when it is JSON in lines, text when it is text, null when it is
empty, else `{"$bytes": base64}`. Anything but 2xx is a failure whose `kind` says what to do about it: connection, timeout,
rate_limit, auth, not_found, client_error, server_error, redirect; what the server said is in its detail. `output.http` has
status, content type and, when told, `retry_after` in seconds. An answer with a header `Link` has `links` too: `{next: address}`.
Connections are shared by all calls of a worker; its proxy settings and `.netrc` are not used. `demo://shop` is answered here
(`demo.py`).
"""

import asyncio
import base64
import email.utils
import ssl
import time
from datetime import UTC, datetime
from typing import Any

import httpx
import msgspec

from noetl.model.errors import Failure
from noetl.playbook.expressions import WORKER_LIMITS, Meter, text
from noetl.tools.demo import SCHEME, Demo
from noetl.tools.egress import Transport
from noetl.tools.port import Call, Failed, Outcome, Success

BODY_LIMIT = 64 * 1024 * 1024
REDIRECTS = 20
TIMEOUT = httpx.Timeout(60.0, connect=10.0, read=300.0)
# Many servers close a connection that was idle for 5 s. A request that is sent in that moment is lost, and must not be repeated.
IDLE_CONNECTION_S = 4.0
LIMITS = httpx.Limits(
    max_connections=200, max_keepalive_connections=50, keepalive_expiry=IDLE_CONNECTION_S
)
LINES = frozenset(
    f"application/{name}"
    for name in (
        "x-ndjson",
        "ndjson",
        "jsonl",
        "x-jsonl",
        "jsonlines",
        "x-jsonlines",
        "stream+json",
    )
)
TEXTUAL = (
    "application/xml",
    "application/javascript",
    "application/x-www-form-urlencoded",
    "application/yaml",
)
DETAIL = 1_500  # characters of an error's body that travel with the error
REPEATING = frozenset(("POST", "PUT", "PATCH", "DELETE"))


class HttpProblem(Exception):
    """`status`: of the answer, when there was one."""

    def __init__(
        self,
        code: str,
        kind: str,
        message: str,
        *,
        retryable: bool = False,
        status: int | None = None,
    ) -> None:
        super().__init__(message)
        self.failure = Failure(
            code=code, kind=kind, message=message, retryable=retryable, http_status=status
        )


class Http:
    kind = "http"

    def __init__(self, body_limit: int = BODY_LIMIT) -> None:
        self._body_limit = body_limit
        self._clients: dict[bool | str, httpx.AsyncClient] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    async def close(self) -> None:
        clients, self._clients = self._clients, {}
        if self._loop is asyncio.get_running_loop():
            for client in clients.values():
                await client.aclose()

    async def run(self, call: Call) -> Outcome:
        began = time.monotonic()
        try:
            client = self._client(call.config.get("verify", True))
            secret = credentials(call.auth)
            request = _request(client, call, secret)
            follow = bool(call.config.get("follow_redirects", True))
            answer, body = await self._answer(client, request, secret, follow=follow)
            return _outcome(call, answer, body, time.monotonic() - began)
        except HttpProblem as problem:
            return Failed(problem.failure, {"http": {"status": problem.failure.http_status}})
        except (httpx.HTTPError, httpx.InvalidURL, ssl.SSLError) as error:
            return Failed(failure(error, call), {"http": {"status": None}})

    def _client(self, verify: bool | str) -> httpx.AsyncClient:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:  # connections belong to the loop they were made on
            self._loop, self._clients = loop, {}
        if verify not in self._clients:
            context = (
                ssl.create_default_context(cafile=verify) if isinstance(verify, str) else verify
            )
            transport = Transport(verify=context, limits=LIMITS, trust_env=False)
            self._clients[verify] = httpx.AsyncClient(
                transport=transport,
                mounts={f"{SCHEME}://": Demo()},
                timeout=TIMEOUT,
                trust_env=False,
            )
        return self._clients[verify]

    async def _answer(
        self,
        client: httpx.AsyncClient,
        request: httpx.Request,
        secret: dict[str, str],
        *,
        follow: bool,
    ) -> tuple[httpx.Response, bytes]:
        """Redirects are followed here: what authenticates must not go to another host."""
        for _ in range(REDIRECTS):
            answer = await client.send(request, stream=True)
            try:
                if not (follow and answer.next_request is not None):
                    return answer, await self._body(answer)
            finally:
                await answer.aclose()
            before, request = request.url, answer.next_request
            if _origin(request.url) != _origin(before):
                for name in secret:
                    request.headers.pop(name, None)
        raise HttpProblem(
            "HTTP_REDIRECTS",
            "redirect",
            f"more than {REDIRECTS} redirects",
            status=answer.status_code,
        )

    async def _body(self, answer: httpx.Response) -> bytes:
        parts: list[bytes] = []
        size = 0
        async for part in answer.aiter_bytes():
            size += len(part)
            if size > self._body_limit:
                message = f"the answer is larger than {self._body_limit} bytes"
                raise HttpProblem("RESULT_TOO_LARGE", "http", message, status=answer.status_code)
            parts.append(part)
        return b"".join(parts)


# ---- the request -------------------------------------------------------------------------------------------------------


def _request(client: httpx.AsyncClient, call: Call, secret: dict[str, str]) -> httpx.Request:
    config = call.config
    method = str(config.get("method") or "GET").upper()
    url = _url(call, _params(_map(config, "params")))
    headers = {
        str(name): _text(value)
        for name, value in _map(config, "headers").items()
        if value is not None
    }
    known = {name.lower() for name in headers}
    headers |= {name: value for name, value in secret.items() if name.lower() not in known}
    if config.get("idempotent") and method in REPEATING and "idempotency-key" not in known:
        headers["Idempotency-Key"] = (
            call.key
        )  # a sink's request: the same key however often it is sent
    if (
        config.get("body") is not None
        and not isinstance(config["body"], str)
        and "content-type" not in known
    ):
        headers["Content-Type"] = "application/json"
    try:
        return client.build_request(method, url, headers=headers, **_content(config))
    except (TypeError, ValueError, UnicodeError) as error:
        raise HttpProblem(
            "HTTP_REQUEST", "config", f"the request cannot be made: {error}"
        ) from None


def _url(call: Call, params: list[tuple[str, str | int | float | bool | None]]) -> httpx.URL:
    """The address, with the parameters beside those it has."""
    text = str(call.config.get("url") or "")
    try:
        url = httpx.URL(text)
    except (httpx.InvalidURL, ValueError):
        url = httpx.URL()
    if url.scheme not in ("http", "https", SCHEME) or not url.host:
        raise HttpProblem(
            "HTTP_URL", "config", f"{call.hidden_url() or text!r} is not an http or https address"
        )
    return url.copy_with(query=str(url.params.merge(params)).encode()) if params else url


def _map(config: dict[str, Any], name: str) -> dict[str, Any]:
    value = config.get(name) or {}
    if not isinstance(value, dict):
        raise HttpProblem("HTTP_REQUEST", "config", f"{name} is not a map")
    return value


def _text(value: Any) -> str:
    return text(Meter(WORKER_LIMITS), value)


def _params(given: dict[str, Any]) -> list[tuple[str, str | int | float | bool | None]]:
    """A list repeats its name; null leaves it out."""
    pairs: list[tuple[str, str | int | float | bool | None]] = []
    for name, value in given.items():
        pairs += [
            (name, _text(part))
            for part in (value if isinstance(value, list) else [value])
            if part is not None
        ]
    return pairs


def _content(config: dict[str, Any]) -> dict[str, Any]:
    """Text is sent as it is; anything else as JSON; `form` as a form."""
    body, form = config.get("body"), config.get("form")
    if form is not None:
        return {
            "data": {
                name: value if isinstance(value, list) else _text(value)
                for name, value in form.items()
            }
        }
    if body is None:
        return {}
    if isinstance(body, str):
        return {"content": body.encode()}
    return {"content": msgspec.json.encode(body)}


def credentials(auth: Any) -> dict[str, str]:
    """Headers from a resolved credential: `token` (bearer), `username` and `password` (basic), `header` and `value`,
    `headers`."""
    if auth is None:
        return {}
    if not isinstance(auth, dict):
        raise HttpProblem(
            "AUTH_INVALID", "config", "auth is neither the name of a credential nor a map"
        )
    if isinstance(auth.get("headers"), dict):
        return {str(name): _text(value) for name, value in auth["headers"].items()}
    if auth.get("header") is not None:
        value = next(
            (auth[name] for name in ("value", "api_key", "token") if auth.get(name) is not None),
            None,
        )
        if value is not None:
            return {str(auth["header"]): _text(value)}
    if (token := auth.get("token", auth.get("access_token"))) is not None:
        return {"Authorization": f"Bearer {_text(token)}"}
    user = auth.get("username", auth.get("user"))
    if user is not None and auth.get("password") is not None:
        pair = f"{_text(user)}:{_text(auth['password'])}".encode()
        return {"Authorization": f"Basic {base64.b64encode(pair).decode()}"}
    message = "auth has neither token, nor username and password, nor header and value, nor headers"
    raise HttpProblem("AUTH_INVALID", "config", message)


def _origin(url: httpx.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


# ---- the answer --------------------------------------------------------------------------------------------------------


def _outcome(call: Call, answer: httpx.Response, body: bytes, elapsed: float) -> Outcome:
    status = answer.status_code
    facts: dict[str, Any] = {"status": status, "content_type": answer.headers.get("content-type")}
    if (wait := retry_after(answer.headers.get("retry-after"))) is not None:
        facts["retry_after"] = wait
    if not answer.is_success:
        return Failed(_refused(call, answer, body, wait), {"http": facts})
    value = {
        "status_code": status,
        "headers": dict(answer.headers),
        "url": str(answer.url),
        "elapsed": round(elapsed, 6),
        "data": decoded(answer, body),
    }
    if links := _links(answer):
        value["links"] = links
    return Success(value, {"http": facts})


def _links(answer: httpx.Response) -> dict[str, str]:
    """What the header `Link` names, by relation, as addresses."""
    named = ((name, found.get("url")) for name, found in answer.links.items())
    return {name: str(answer.url.join(url)) for name, url in named if name and url}


_LINES: msgspec.json.Decoder[Any] = msgspec.json.Decoder()


def decoded(answer: httpx.Response, body: bytes) -> Any:
    if not body:
        return None
    kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind in LINES or kind == "application/json" or kind.endswith("+json"):
        try:
            return _LINES.decode_lines(body) if kind in LINES else msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            message = f"the answer says it is JSON, but is not: {error}"
            status = answer.status_code
            raise HttpProblem(
                "HTTP_BAD_JSON", "server_error", message, retryable=True, status=status
            ) from None
    if not kind or kind.startswith("text/") or kind in TEXTUAL or kind.endswith("+xml"):
        try:
            return body.decode(answer.charset_encoding or "utf-8")
        except (UnicodeDecodeError, LookupError):
            pass
    return {"$bytes": base64.b64encode(body).decode()}


def kind_of(status: int) -> tuple[str, bool]:
    """What a status other than 2xx means, and whether the same request may succeed later."""
    if status < 400:
        return "redirect", False
    if status in (401, 403, 407):
        return "auth", False
    if status in (404, 410):
        return "not_found", False
    if status == 408:
        return "timeout", True
    if status == 429:
        return "rate_limit", True
    if status < 500:
        return "client_error", status in (423, 425)
    return "server_error", status not in (501, 505)


def _refused(call: Call, answer: httpx.Response, body: bytes, wait: float | None) -> Failure:
    status = answer.status_code
    kind, retryable = kind_of(status)
    detail: dict[str, Any] = {"data": _excerpt(answer, body)}
    if wait is not None:
        detail["retry_after"] = wait
    message = f"{answer.request.method} {_asked(call, answer)} answered {status} {answer.reason_phrase}".rstrip()
    return Failure(
        code=f"HTTP_{status}",
        kind=kind,
        message=message,
        retryable=retryable,
        http_status=status,
        detail=detail,
    )


def _asked(call: Call, answer: httpx.Response) -> str:
    """The address without its query, or the template of it."""
    if (written := call.hidden_url()) is not None:
        return written.partition("?")[0]
    return str(
        answer.request.url.copy_with(query=None, username=None, password=None, fragment=None)
    )


def _excerpt(answer: httpx.Response, body: bytes) -> Any:
    try:
        if len(body) <= DETAIL:
            return decoded(answer, body)
    except HttpProblem:
        pass
    return body[:DETAIL].decode(answer.charset_encoding or "utf-8", "replace")


def retry_after(given: str | None) -> float | None:
    """Seconds, from seconds or a date."""
    if given is None:
        return None
    try:
        return max(0.0, float(given))
    except ValueError:
        pass
    try:
        moment = email.utils.parsedate_to_datetime(given)
    except ValueError:
        return None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return round(max(0.0, (moment - datetime.now(UTC)).total_seconds()), 3)


def failure(error: Exception, call: Call) -> Failure:
    # with its port, without who asks
    host = call.hidden_url() or httpx.URL(str(call.config.get("url"))).netloc.decode()
    said = (str(error) or type(error).__name__).partition(" b'")[
        0
    ]  # without the header that is quoted
    if isinstance(error, httpx.TimeoutException):
        message = f"{host} did not answer in time ({type(error).__name__})"
        return Failure(code="HTTP_TIMEOUT", kind="timeout", message=message, retryable=True)
    if isinstance(error, httpx.InvalidURL | httpx.UnsupportedProtocol | httpx.LocalProtocolError):
        return Failure(
            code="HTTP_REQUEST", kind="config", message=f"the request cannot be made: {said}"
        )
    if isinstance(error, httpx.DecodingError):
        return Failure(
            code="HTTP_BODY", kind="server_error", message=f"{host}: {said}", retryable=True
        )
    return Failure(
        code="HTTP_CONNECTION", kind="connection", message=f"{host}: {said}", retryable=True
    )
