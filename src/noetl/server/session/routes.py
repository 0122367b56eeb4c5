"""Routes for the caller's own identity, and for the session of a browser.

A browser signs in with a name and a password, with a token, or with a link that is used once, and
gets a cookie that its scripts cannot read and that other sites cannot make it send. The session that
the browser had before ends.
"""

from importlib.metadata import version
from typing import Annotated

from msgspec import Meta
from starlette.requests import Request

from noetl.model.errors import InvalidInput
from noetl.model.identity import Identity, Permission
from noetl.server.accounts.passwords import MAX_PASSWORD_CHARS
from noetl.server.accounts.service import LINK_LIFETIME_S, OpenedSession
from noetl.server.http.callers import find_session_caller, get_address, make_cookie_header
from noetl.server.http.depends import Has, Who
from noetl.server.http.routing import Reply, Routes
from noetl.server.http.structs import LongText, RequestBody, describe
from noetl.server.session.views import LinkView, SessionView, SignedOutView

routes = Routes("session")


class SignInBody(RequestBody, frozen=True):
    token: Annotated[LongText | None, describe("of the caller")] = None
    code: Annotated[LongText | None, describe("of a link that was made for the caller")] = None
    name: Annotated[LongText | None, describe("of a user, with the password", example="ada")] = None
    password: Annotated[
        Annotated[str, Meta(max_length=MAX_PASSWORD_CHARS)] | None, describe("of the user")
    ] = None


@routes.get("/api/session")
async def get_session(who: Who) -> SessionView:
    """Who asks, for which tenant and with which roles, and the version of the server."""
    return _make_session_view(who)


@routes.post("/api/session", public=True)
async def sign_in(body: SignInBody, request: Request, has: Has) -> Reply[SessionView]:
    """Open the session of a browser with a name and a password, with a token, or with the code of a link. The answer sets
    its cookie. 429 after too many tries: `Retry-After` says when the next may come."""
    opened = await _open_session(body, request, has)
    before = await find_session_caller(request)
    if before is not None:
        await has.accounts.end_session(before)
    cookie = make_cookie_header(request, opened.cookie, opened.lifetime_s)
    return Reply(_make_session_view(opened.identity), 200, {"Set-Cookie": cookie})


@routes.delete("/api/session", public=True)
async def sign_out(request: Request, has: Has) -> Reply[SignedOutView]:
    """End the session of this browser."""
    caller = await find_session_caller(request)
    if caller is not None:
        await has.accounts.end_session(caller)
    cookie = make_cookie_header(request, "", 0)
    return Reply(SignedOutView(ended=caller is not None), 200, {"Set-Cookie": cookie})


@routes.post("/api/session/links", status=201)
async def make_link(has: Has, who: Who) -> LinkView:
    """Make a link that signs a browser in as this caller, once."""
    code = await has.accounts.make_link(who)
    return LinkView(code=code, path=f"/login?code={code}", lifetime_s=LINK_LIFETIME_S)


async def _open_session(body: SignInBody, request: Request, has: Has) -> OpenedSession:
    address = get_address(request)
    match body:
        case SignInBody(code=str(code), token=None, name=None, password=None):
            return await has.accounts.open_session_by_link(code, address)
        case SignInBody(code=None, token=str(token), name=None, password=None):
            return await has.accounts.open_session_by_token(token, address)
        case SignInBody(code=None, token=None, name=str(name), password=str(password)):
            return await has.users.open_session_by_password(name, password, address)
    raise InvalidInput(
        "sign in with a name and a password, with a token, or with a code",
        hint="noetl ui opens a signed-in page",
    )


def _make_session_view(who: Identity) -> SessionView:
    return SessionView(
        name=who.name,
        tenant=who.tenant,
        roles=sorted(who.roles),
        version=version("noetl"),
        permissions=[permission for permission in Permission if who.may(permission)],
    )
