"""Routes by which a browser signs in at an issuer of OpenID Connect, and comes back.

Those that lead there and back are for browsers, so the document of the API does not have them.
"""

from typing import Annotated

from starlette.requests import Request
from starlette.responses import Response

from noetl.server.http.callers import (
    find_session_caller,
    get_address,
    is_secure,
    make_cookie_header,
    name_cookie,
    read_cookie,
)
from noetl.server.http.depends import Has
from noetl.server.http.parameters import QueryParameter
from noetl.server.http.routing import Routes
from noetl.server.http.structs import View, describe
from noetl.server.oidc.flow import MAX_FLOW_S, MAX_PLACE_CHARS, read_flow, write_flow

routes = Routes("session")

CALLBACK_PATH = "/api/oidc/callback"
SEE_OTHER = 303
Place = Annotated[
    str | None,
    QueryParameter(
        "path of the page to come back to", max_length=MAX_PLACE_CHARS, examples=["/executions"]
    ),
]


class SignInWaysView(View, frozen=True):
    issuer: Annotated[
        str | None,
        describe("what the button says that signs in by an issuer; null: there is none"),
    ]


@routes.get("/api/session/ways", public=True)
async def list_sign_in_ways(has: Has) -> SignInWaysView:
    """How a user may sign in, beside a password and a token."""
    return SignInWaysView(issuer=has.oidc.get_label())


@routes.get("/api/oidc/start", public=True, documented=False)
async def begin_sign_in(request: Request, has: Has, next: Place = None) -> Response:
    """Lead a browser to the issuer. The answer sets a cookie that belongs to this sign-in."""
    flow, url = await has.oidc.begin_sign_in(next, _make_redirect_uri(request))
    headers = {"Location": url, "Set-Cookie": _make_flow_cookie(request, write_flow(flow))}
    return Response(None, SEE_OTHER, headers)


@routes.get(CALLBACK_PATH, public=True, documented=False, strict=False)
async def end_sign_in(request: Request, has: Has) -> Response:
    """Where the issuer sends the browser back to. Opens a session, and leads to the page."""
    text = read_cookie(request, "oidc")
    flow = None if text is None else read_flow(text)
    query = request.query_params
    answer = {name: query[name] for name in query if len(query.getlist(name)) == 1}
    redirect_uri = _make_redirect_uri(request)
    opened = await has.oidc.end_sign_in(flow, answer, redirect_uri, get_address(request))
    before = await find_session_caller(request)
    if before is not None:
        await has.accounts.end_session(before)
    assert flow is not None
    response = Response(None, SEE_OTHER, {"Location": flow.place})
    session_cookie = make_cookie_header(request, opened.cookie, opened.lifetime_s)
    response.headers.append("Set-Cookie", session_cookie)
    response.headers.append("Set-Cookie", _make_flow_cookie(request, ""))
    return response


def _make_redirect_uri(request: Request) -> str:
    """The address that is registered at the issuer. The Host of the request is one of this server."""
    public_url: str | None = getattr(request.app.state, "public_url", None)
    own = public_url or f"{request.url.scheme}://{request.headers['host']}"
    return f"{own}{CALLBACK_PATH}"


def _make_flow_cookie(request: Request, text: str) -> str:
    """It comes back with the navigation from the site of the issuer, so it is not strict."""
    lifetime_s = MAX_FLOW_S if text else 0
    secure = "; Secure" if is_secure(request) else ""
    name = name_cookie(request, "oidc")
    return f"{name}={text}; Path=/; Max-Age={lifetime_s}; HttpOnly; SameSite=Lax{secure}"
