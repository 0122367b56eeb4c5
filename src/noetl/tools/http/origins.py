"""Which origins may get the credential, the headers, the parameters and the body of a request.

These are the origin of the task's own `url`, and those that the task names in `trusted_origins`.
Answers choose other addresses by redirects and by the URL of a next page: such an origin gets nothing
that may be a secret.
"""

from typing import Any

import httpx

Origin = tuple[str, str, int | None]

MAX_SHOWN_ORIGIN_CHARS = 200

# The headers of a request that another origin may get. Cookies of a redirect are chosen by their domain.
HEADERS_FOR_OTHER_ORIGINS = frozenset(
    (
        "accept",
        "accept-encoding",
        "accept-language",
        "connection",
        "content-length",
        "content-type",
        "cookie",
        "host",
        "transfer-encoding",
        "user-agent",
    )
)


def get_origin(url: httpx.URL) -> Origin:
    return url.scheme, url.host, url.port


def show_origin(url: httpx.URL) -> str:
    """The origin as a text, without user and password."""
    return f"{url.scheme}://{url.netloc.decode()}"[:MAX_SHOWN_ORIGIN_CHARS]


def parse_trusted_origins(value: Any) -> frozenset[Origin]:
    """The origins of `trusted_origins`. Raises ValueError if one is more or less than an origin."""
    if not value:
        return frozenset()
    if not isinstance(value, list):
        raise ValueError(
            "trusted_origins is not a list of origins such as https://files.example.com"
        )
    return frozenset(_parse_origin(text) for text in value)


def _parse_origin(text: Any) -> Origin:
    try:
        url = httpx.URL(text) if isinstance(text, str) else httpx.URL()
    except (httpx.InvalidURL, ValueError):
        url = httpx.URL()
    has_more = bool(url.userinfo or url.query or url.fragment or url.path not in ("", "/"))
    if url.scheme not in ("http", "https") or not url.host or has_more:
        raise ValueError(
            f"trusted_origins has {text!r}, which is no origin: "
            "it is a scheme and a host, with a port if it is not the usual one, such as https://files.example.com"
        )
    return get_origin(url)


def list_private_parts(config: dict[str, Any], auth: Any) -> list[str]:
    """The parts of a call that may hold a secret, by their names in the playbook."""
    private = ["auth"] if auth is not None else []
    headers = config.get("headers") or {}
    public = HEADERS_FOR_OTHER_ORIGINS - {"cookie"}
    if not isinstance(headers, dict) or any(str(name).lower() not in public for name in headers):
        private.append("headers")
    return private + [name for name in ("params", "body", "form") if config.get(name)]


def move_to_origin(request: httpx.Request, next_request: httpx.Request) -> None:
    """Give the request to a trusted origin the headers that httpx has removed from it."""
    for name, value in request.headers.items():
        if name not in HEADERS_FOR_OTHER_ORIGINS:
            next_request.headers[name] = value


def remove_private_headers(request: httpx.Request) -> None:
    """Remove what another origin must not get: all headers of the author, which may have a secret."""
    for name in list(request.headers):
        if name not in HEADERS_FOR_OTHER_ORIGINS:
            del request.headers[name]


def has_body(request: httpx.Request) -> bool:
    return (
        request.headers.get("content-length", "0") != "0" or "transfer-encoding" in request.headers
    )
