"""The caller of a request: found by the token in its header, else by the cookie of a browser.

Cookies of one host name go to all of its ports, so the name of the cookie has the port: two
servers of a machine keep their sessions apart. A request of a browser that changes something must
come from the page of this server (`guard.py`), because browsers add cookies by themselves.
"""

from http.cookies import CookieError, SimpleCookie

from starlette.requests import Request

from noetl.model.errors import NotAuthenticated
from noetl.model.identity import Identity
from noetl.server.accounts.authenticator import (
    Authenticator,
    CachedCaller,
    make_missing_token,
)

MAX_COOKIE_CHARS = 8_000
IDENTITY = "noetl.identity"  # in the scope of a request


async def identify_caller(request: Request) -> Identity:
    """The identity of the caller. Raises `NotAuthenticated` if there is none."""
    header = request.headers.get("authorization")
    if header is not None:
        scheme, _, text = header.partition(" ")
        if scheme.lower() != "bearer":
            raise make_missing_token("`Authorization` has another scheme than Bearer")
        authenticator = _get_authenticator(request)
        caller = await authenticator.identify_bearer(text.strip(), get_address(request))
        return caller.identity
    session = await find_session_caller(request)
    if session is None:
        raise make_missing_token("the request has no token")
    return session.identity


async def find_caller(request: Request) -> Identity | None:
    """The identity of the caller; None without a token. Raises if the token is not valid."""
    if "authorization" in request.headers:
        return await identify_caller(request)
    session = await find_session_caller(request)
    return None if session is None else session.identity


async def find_session_caller(request: Request) -> CachedCaller | None:
    """The caller by the cookie of the browser; None without a valid one."""
    text = read_cookie(request, "session")
    if text is None:
        return None
    try:
        return await _get_authenticator(request).identify_session(text, get_address(request))
    except NotAuthenticated:
        return None


def get_address(request: Request) -> str:
    """The network address of the caller, or of the proxy before it."""
    return request.client.host if request.client else ""


def make_cookie_header(request: Request, text: str, lifetime_s: int) -> str:
    """The value of `Set-Cookie`. A lifetime of 0 removes the cookie."""
    name = name_cookie(request, "session")
    secure = "; Secure" if is_secure(request) else ""
    return f"{name}={text}; Path=/; Max-Age={lifetime_s}; HttpOnly; SameSite=Strict{secure}"


def name_cookie(request: Request, use: str) -> str:
    """The name of a cookie of this server. With TLS, browsers take one of this name from this host alone."""
    server = request.scope.get("server")
    port = server[1] if server else 0
    prefix = "__Host-" if is_secure(request) else ""
    return f"{prefix}noetl_{use}_{port}"


def is_secure(request: Request) -> bool:
    """Whether browsers reach the server over TLS, its own or that of a proxy."""
    public_url: str | None = getattr(request.app.state, "public_url", None)
    return request.url.scheme == "https" or (public_url or "").startswith("https:")


def read_cookie(request: Request, use: str) -> str | None:
    header = request.headers.get("cookie")
    if header is None or len(header) > MAX_COOKIE_CHARS:
        return None
    try:
        morsel = SimpleCookie(header).get(name_cookie(request, use))
    except CookieError:
        return None
    return None if morsel is None else morsel.value


def _get_authenticator(request: Request) -> Authenticator:
    authenticator: Authenticator = request.app.state.authenticator
    return authenticator
