"""`http`: sends one request. The value is `{status_code, headers, url, elapsed, data}`.

`data` depends on the content type: decoded JSON, a list for JSON lines, text for text, else
`{"$bytes": base64}`. It is null if the body is empty. A response with a header `Link` has `links`
too: `{next: url}`.

Any status but 2xx is a failure. Its `kind` is one of connection, timeout, rate_limit, auth,
not_found, client_error, server_error and redirect; its detail has an excerpt of the body.
`output.http` has the status, the content type and, if the server sent it, `retry_after` in seconds.

All calls of a worker share connections, and no cookies. The worker's proxy settings and `.netrc`
are not used. `demo://shop` is answered here (`demo.py`).
"""

import asyncio
import base64
import email.utils
import ssl
import time
from datetime import UTC, datetime
from http.cookiejar import DefaultCookiePolicy
from typing import Any

import httpx
import msgspec

from noetl.model.errors import Failure
from noetl.template.limits import WORKER_LIMITS, Meter
from noetl.template.writing import format_as_text
from noetl.tools.egress.guard import EgressGuard, EgressRefused
from noetl.tools.http.bodies import (
    ACCEPTED_ENCODINGS,
    BodyBroken,
    BodyTooLarge,
    EncodingRefused,
    read_limited_body,
)
from noetl.tools.http.demo import DEMO_SCHEME, DemoTransport
from noetl.tools.http.origins import (
    Origin,
    get_origin,
    has_body,
    list_private_parts,
    move_to_origin,
    parse_trusted_origins,
    remove_private_headers,
    show_origin,
)
from noetl.tools.http.transport import TOKEN_EXTENSION, EgressTransport
from noetl.tools.port import Call, Failed, Outcome, Success

MAX_FETCHED_BODY_BYTES = 64 * 1024 * 1024
MAX_REDIRECTS = 20
HTTP_TIMEOUT = httpx.Timeout(60.0, connect=10.0, read=300.0)
# Many servers close a connection after 5 idle seconds. A request that is sent at that moment is lost, and
# must not be repeated.
IDLE_CONNECTION_S = 4.0
CONNECTION_LIMITS = httpx.Limits(
    max_connections=200, max_keepalive_connections=50, keepalive_expiry=IDLE_CONNECTION_S
)
JSON_LINES_TYPES = frozenset(
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
TEXT_TYPES = (
    "application/xml",
    "application/javascript",
    "application/x-www-form-urlencoded",
    "application/yaml",
)
MAX_EXCERPT_CHARACTERS = 1_500  # characters of an error's body that travel with the error
IDEMPOTENCY_KEY_METHODS = frozenset(("POST", "PUT", "PATCH", "DELETE"))


class HttpProblem(Exception):
    """Fails the call. `status` is the status of the response, if there is one."""

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

    def __init__(
        self, guard: EgressGuard | None = None, body_limit: int = MAX_FETCHED_BODY_BYTES
    ) -> None:
        self._guard = guard or EgressGuard()
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
            client = self._get_client(call.config.get("verify", True))
            auth_headers = make_auth_headers(call.auth)
            request = _build_request(client, call, auth_headers)
            trusted = _find_trusted_origins(call)
            _check_page_origin(call, request.url, trusted)
            follow = bool(call.config.get("follow_redirects", True))
            response, body = await self._send_following(
                client, request, auth_headers, trusted, follow=follow
            )
            return _make_http_outcome(call, response, body, time.monotonic() - began)
        except HttpProblem as problem:
            facts = {"status": problem.failure.http_status}
            return Failed(problem.failure, {"http": facts})
        except EgressRefused as refused:
            return Failed(refused.to_failure(call.hidden_url()), {"http": {"status": None}})
        except (httpx.HTTPError, httpx.InvalidURL, ssl.SSLError) as error:
            return Failed(classify_request_error(error, call), {"http": {"status": None}})

    def _get_client(self, verify: bool | str) -> httpx.AsyncClient:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:  # connections belong to the loop they were made on
            self._loop = loop
            self._clients = {}
        if verify not in self._clients:
            context: bool | ssl.SSLContext
            if isinstance(verify, str):
                context = ssl.create_default_context(cafile=verify)
            else:
                context = verify
            transport = EgressTransport(self._guard, verify=context, limits=CONNECTION_LIMITS)
            client = httpx.AsyncClient(
                transport=transport,
                headers={"Accept-Encoding": ACCEPTED_ENCODINGS},
                mounts={f"{DEMO_SCHEME}://": DemoTransport()},
                timeout=HTTP_TIMEOUT,
                trust_env=False,
            )
            # Calls of other playbooks use the same client, and must not get their cookies.
            client.cookies.jar.set_policy(DefaultCookiePolicy(allowed_domains=[]))
            self._clients[verify] = client
        return self._clients[verify]

    async def _send_following(
        self,
        client: httpx.AsyncClient,
        request: httpx.Request,
        auth_headers: dict[str, str],
        trusted: frozenset[Origin],
        *,
        follow: bool,
    ) -> tuple[httpx.Response, bytearray]:
        """Send the request and read the body.

        Redirects are followed here, because credential and body go to trusted origins only.
        """
        if has_bearer_token(request, auth_headers):
            request.extensions[TOKEN_EXTENSION] = True
        cookies = httpx.Cookies()  # of this call: a login may set one and redirect
        for _ in range(MAX_REDIRECTS):
            response = await client.send(request, stream=True)
            try:
                next_request = response.next_request
                if not follow or next_request is None:
                    return response, await self._read_body(response)
            finally:
                await response.aclose()
            cookies.extract_cookies(response)
            cookies.set_cookie_header(next_request)
            if get_origin(next_request.url) != get_origin(request.url):
                _change_origin(request, next_request, trusted, response.status_code)
            request = next_request
        message = f"more than {MAX_REDIRECTS} redirects"
        raise HttpProblem("HTTP_REDIRECTS", "redirect", message, status=response.status_code)

    async def _read_body(self, response: httpx.Response) -> bytearray:
        status = response.status_code
        try:
            return await read_limited_body(response, self._body_limit)
        except BodyTooLarge as error:
            raise HttpProblem("RESULT_TOO_LARGE", "http", str(error), status=status) from None
        except EncodingRefused as error:
            raise HttpProblem("HTTP_ENCODING", "server_error", str(error), status=status) from None
        except BodyBroken as error:
            raise HttpProblem(
                "HTTP_BODY", "server_error", str(error), retryable=True, status=status
            ) from None


def has_bearer_token(request: httpx.Request, auth_headers: dict[str, str]) -> bool:
    """Whether the request has the bearer token of its credential."""
    token = auth_headers.get("Authorization", "")
    return token.startswith("Bearer ") and request.headers.get("Authorization") == token


def _find_trusted_origins(call: Call) -> frozenset[Origin]:
    """The origins that may get everything of the call, beside that of its URL."""
    try:
        return parse_trusted_origins(call.config.get("trusted_origins"))
    except ValueError as error:
        raise HttpProblem("HTTP_REQUEST", "config", str(error)) from None


def _check_page_origin(call: Call, url: httpx.URL, trusted: frozenset[Origin]) -> None:
    """Refuse to send secrets to a next page, if an answer has moved it to another origin."""
    if call.first_url is None:
        return
    first = httpx.URL(call.first_url)
    if get_origin(url) == get_origin(first) or get_origin(url) in trusted:
        return
    private = list_private_parts(call.config, call.auth)
    if not private:
        return
    parts = ", ".join(f"`{name}`" for name in private)
    own = call.hidden_url() or show_origin(first)
    message = (
        f"the next page is at {show_origin(url)}, and the task is for {own}: its {parts} "
        f"may hold a secret, and {_explain_trust(url)}"
    )
    raise HttpProblem("HTTP_ORIGIN", "config", message)


def _change_origin(
    request: httpx.Request,
    next_request: httpx.Request,
    trusted: frozenset[Origin],
    status: int,
) -> None:
    """Make a redirected request fit for its new origin. Refuses to send a body to a stranger."""
    if get_origin(next_request.url) in trusted:
        move_to_origin(request, next_request)
        return
    if has_body(next_request):
        message = (
            f"{show_origin(request.url)} answers {status} and wants the body sent to "
            f"{show_origin(next_request.url)}; it may hold a secret, and {_explain_trust(next_request.url)}"
        )
        raise HttpProblem("HTTP_ORIGIN", "redirect", message, status=status)
    remove_private_headers(next_request)
    next_request.extensions.pop(TOKEN_EXTENSION, None)


def _explain_trust(url: httpx.URL) -> str:
    return (
        "goes to another origin only if the playbook names it: if you trust it, give the http task "
        f"`trusted_origins: [{show_origin(url)}]`, or use that address as its `url`"
    )


# ---- the request ---------------------------------------------------------------------------------


def _build_request(
    client: httpx.AsyncClient, call: Call, auth_headers: dict[str, str]
) -> httpx.Request:
    config = call.config
    method = str(config.get("method") or "GET").upper()
    url = _build_url(call, _list_params(_get_map(config, "params")))
    headers: dict[str, str] = {}
    for name, value in _get_map(config, "headers").items():
        if value is not None:
            headers[str(name)] = _to_text(value)
    known = {name.lower() for name in headers}
    for name, value in auth_headers.items():
        if name.lower() not in known:
            headers[name] = value
    if (
        config.get("idempotent")
        and method in IDEMPOTENCY_KEY_METHODS
        and "idempotency-key" not in known
    ):
        headers["Idempotency-Key"] = call.key  # the same key for every repetition of a request
    body = config.get("body")
    if body is not None and not isinstance(body, str) and "content-type" not in known:
        headers["Content-Type"] = "application/json"
    try:
        return client.build_request(method, url, headers=headers, **_encode_body(config))
    except (TypeError, ValueError, UnicodeError) as error:
        message = f"the request cannot be made: {error}"
        raise HttpProblem("HTTP_REQUEST", "config", message) from None


def _build_url(call: Call, params: list[tuple[str, str | int | float | bool | None]]) -> httpx.URL:
    """The URL of the config with the parameters added to its own."""
    text = str(call.config.get("url") or "")
    try:
        url = httpx.URL(text)
    except (httpx.InvalidURL, ValueError):
        url = httpx.URL()
    if url.scheme not in ("http", "https", DEMO_SCHEME) or not url.host:
        shown = call.hidden_url() or text
        raise HttpProblem("HTTP_URL", "config", f"{shown!r} is not an http or https address")
    if not params:
        return url
    query = str(url.params.merge(params))
    return url.copy_with(query=query.encode())


def _get_map(config: dict[str, Any], name: str) -> dict[str, Any]:
    value = config.get(name) or {}
    if not isinstance(value, dict):
        raise HttpProblem("HTTP_REQUEST", "config", f"{name} is not a map")
    return value


def _to_text(value: Any) -> str:
    return format_as_text(Meter(WORKER_LIMITS), value)


def _list_params(params: dict[str, Any]) -> list[tuple[str, str | int | float | bool | None]]:
    """The parameters as pairs. A list repeats its name; null leaves it out."""
    pairs: list[tuple[str, str | int | float | bool | None]] = []
    for name, value in params.items():
        values = value if isinstance(value, list) else [value]
        pairs += [(name, _to_text(part)) for part in values if part is not None]
    return pairs


def _encode_body(config: dict[str, Any]) -> dict[str, Any]:
    """The body of the request: `form` as a form, text as it is, anything else as JSON."""
    form = config.get("form")
    if form is not None:
        fields = {name: _to_form_value(value) for name, value in form.items()}
        return {"data": fields}
    body = config.get("body")
    if body is None:
        return {}
    if isinstance(body, str):
        return {"content": body.encode()}
    return {"content": msgspec.json.encode(body)}


def _to_form_value(value: Any) -> Any:
    if isinstance(value, list):
        return value
    return _to_text(value)


def make_auth_headers(auth: Any) -> dict[str, str]:
    """The headers of a resolved credential.

    It has `token` (bearer), `username` and `password` (basic), `header` and `value`, or `headers`.
    """
    if auth is None:
        return {}
    if not isinstance(auth, dict):
        message = "auth is neither the name of a credential nor a map"
        raise HttpProblem("AUTH_INVALID", "config", message)
    if isinstance(auth.get("headers"), dict):
        return {str(name): _to_text(value) for name, value in auth["headers"].items()}
    if auth.get("header") is not None:
        for field in ("value", "api_key", "token"):
            if auth.get(field) is not None:
                return {str(auth["header"]): _to_text(auth[field])}
    token = auth.get("token", auth.get("access_token"))
    if token is not None:
        return {"Authorization": f"Bearer {_to_text(token)}"}
    user = auth.get("username", auth.get("user"))
    if user is not None and auth.get("password") is not None:
        pair = f"{_to_text(user)}:{_to_text(auth['password'])}".encode()
        return {"Authorization": f"Basic {base64.b64encode(pair).decode()}"}
    message = "auth has neither token, nor username and password, nor header and value, nor headers"
    raise HttpProblem("AUTH_INVALID", "config", message)


# ---- the response --------------------------------------------------------------------------------


def _make_http_outcome(
    call: Call, response: httpx.Response, body: bytearray, elapsed: float
) -> Outcome:
    status = response.status_code
    facts: dict[str, Any] = {
        "status": status,
        "content_type": response.headers.get("content-type"),
    }
    wait = parse_retry_after(response.headers.get("retry-after"))
    if wait is not None:
        facts["retry_after"] = wait
    if not response.is_success:
        failure = _make_status_failure(call, response, body, wait)
        return Failed(failure, {"http": facts})
    value = {
        "status_code": status,
        "headers": dict(response.headers),
        "url": str(response.url),
        "elapsed": round(elapsed, 6),
        "data": decode_response_body(response, body),
    }
    links = _list_links(response)
    if links:
        value["links"] = links
    return Success(value, {"http": facts})


def _list_links(response: httpx.Response) -> dict[str, str]:
    """The absolute URLs of the header `Link`, by relation."""
    urls: dict[str, str] = {}
    for relation, link in response.links.items():
        url = link.get("url")
        if relation and url:
            urls[relation] = str(response.url.join(url))
    return urls


_JSON_DECODER: msgspec.json.Decoder[Any] = msgspec.json.Decoder()


def decode_response_body(response: httpx.Response, body: bytearray) -> Any:
    """The value of a body, by its content type."""
    if not body:
        return None
    content_type = response.headers.get("content-type", "")
    media_type = content_type.partition(";")[0].strip().lower()
    if (
        media_type in JSON_LINES_TYPES
        or media_type == "application/json"
        or media_type.endswith("+json")
    ):
        try:
            if media_type in JSON_LINES_TYPES:
                return _JSON_DECODER.decode_lines(body)
            return msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            message = f"the answer says it is JSON, but is not: {error}"
            status = response.status_code
            raise HttpProblem(
                "HTTP_BAD_JSON", "server_error", message, retryable=True, status=status
            ) from None
    if _is_text(media_type):
        try:
            return body.decode(response.charset_encoding or "utf-8")
        except (UnicodeDecodeError, LookupError):
            pass
    return {"$bytes": base64.b64encode(body).decode()}


def _is_text(media_type: str) -> bool:
    if not media_type or media_type in TEXT_TYPES:
        return True
    return media_type.startswith("text/") or media_type.endswith("+xml")


def classify_status(status: int) -> tuple[str, bool]:
    """The kind of failure of a status other than 2xx, and whether a retry may succeed."""
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


def _make_status_failure(
    call: Call, response: httpx.Response, body: bytearray, wait: float | None
) -> Failure:
    status = response.status_code
    kind, retryable = classify_status(status)
    detail: dict[str, Any] = {"data": _cut_body(response, body)}
    if wait is not None:
        detail["retry_after"] = wait
    request = f"{response.request.method} {_describe_url(call, response)}"
    message = f"{request} answered {status} {response.reason_phrase}"
    return Failure(
        code=f"HTTP_{status}",
        kind=kind,
        message=message.rstrip(),
        retryable=retryable,
        http_status=status,
        detail=detail,
    )


def _describe_url(call: Call, response: httpx.Response) -> str:
    """The URL of the request, or its template, without query."""
    template = call.hidden_url()
    if template is not None:
        return template.partition("?")[0]
    url = response.request.url
    return str(url.copy_with(query=None, username=None, password=None, fragment=None))


def _cut_body(response: httpx.Response, body: bytearray) -> Any:
    try:
        if len(body) <= MAX_EXCERPT_CHARACTERS:
            return decode_response_body(response, body)
    except HttpProblem:
        pass
    return body[:MAX_EXCERPT_CHARACTERS].decode(response.charset_encoding or "utf-8", "replace")


def parse_retry_after(header: str | None) -> float | None:
    """The seconds of a header `Retry-After`, which has seconds or a date."""
    if header is None:
        return None
    try:
        return max(0.0, float(header))
    except ValueError:
        pass
    try:
        date = email.utils.parsedate_to_datetime(header)
    except ValueError:
        return None
    if not date.tzinfo:
        date = date.replace(tzinfo=UTC)
    seconds = (date - datetime.now(UTC)).total_seconds()
    return round(max(0.0, seconds), 3)


def classify_request_error(error: Exception, call: Call) -> Failure:
    """The failure of a request that got no response."""
    # `netloc` has the port, and no user or password.
    host = call.hidden_url()
    if not host:
        url = httpx.URL(str(call.config.get("url")))
        host = url.netloc.decode()
    error_name = type(error).__name__
    # The text may quote a header, which may have a secret: cut it off.
    reason, _, _ = (str(error) or error_name).partition(" b'")
    if isinstance(error, httpx.TimeoutException):
        message = f"{host} did not answer in time ({error_name})"
        return Failure(code="HTTP_TIMEOUT", kind="timeout", message=message, retryable=True)
    if isinstance(error, httpx.InvalidURL | httpx.UnsupportedProtocol | httpx.LocalProtocolError):
        message = f"the request cannot be made: {reason}"
        return Failure(code="HTTP_REQUEST", kind="config", message=message)
    message = f"{host}: {reason}"
    if isinstance(error, httpx.DecodingError):
        return Failure(code="HTTP_BODY", kind="server_error", message=message, retryable=True)
    return Failure(code="HTTP_CONNECTION", kind="connection", message=message, retryable=True)
