"""Routes for tokens: make, list, revoke. The text of a token is shown once, when it is made."""

from typing import Annotated

from msgspec import Meta

from noetl.server.accounts.service import MAX_LIFETIME_S, MAX_NAME_CHARS, MAX_POOLS
from noetl.server.accounts.views import EXAMPLE_TOKEN_ID, CreatedTokenView, TokensView, TokenView
from noetl.server.http.depends import Has, Who
from noetl.server.http.parameters import PathParameter, QueryParameter
from noetl.server.http.routing import Routes
from noetl.server.http.structs import RequestBody, ShortText, describe
from noetl.server.tenants.service import MAX_TENANT_NAME_CHARS

routes = Routes("tokens")

TokenId = Annotated[
    str,
    PathParameter(
        "of a token, or the name that one valid token has",
        max_length=100,
        examples=[EXAMPLE_TOKEN_ID],
    ),
]

OfTenant = Annotated[
    str | None,
    QueryParameter(
        "for administrators of the installation; without it, the caller's own",
        max_length=MAX_TENANT_NAME_CHARS,
    ),
]


class TokenBody(RequestBody, frozen=True):
    name: Annotated[str, describe("who uses it", example="ci", max_length=MAX_NAME_CHARS)]
    roles: Annotated[
        list[ShortText],
        describe("viewer, operator, author, admin, worker", example=["operator"], max_length=5),
    ]
    pools: Annotated[
        Annotated[list[ShortText], Meta(max_length=MAX_POOLS)] | None,
        describe("of a worker; null: all pools"),
    ] = None
    lifetime_s: Annotated[
        Annotated[int, Meta(ge=1, le=MAX_LIFETIME_S)] | None,
        describe("seconds; null: it does not expire"),
    ] = None
    tenant: Annotated[
        Annotated[str, Meta(max_length=MAX_TENANT_NAME_CHARS)] | None,
        describe("for administrators of the installation; null: the caller's own", example="acme"),
    ] = None


@routes.post("/api/tokens", status=201)
async def create_token(body: TokenBody, has: Has, who: Who) -> CreatedTokenView:
    """Make a token. Keep its text: the server stores only its sum."""
    return await has.accounts.create_token(
        who, body.name, body.roles, body.pools, body.lifetime_s, body.tenant
    )


@routes.get("/api/tokens")
async def list_tokens(has: Has, who: Who, tenant: OfTenant = None) -> TokensView:
    """All tokens of a tenant, the newest first, without their texts."""
    return await has.accounts.list_tokens(who, tenant)


@routes.delete("/api/tokens/{token_id}")
async def revoke_token(token_id: TokenId, has: Has, who: Who, tenant: OfTenant = None) -> TokenView:
    """Revoke a token for good. Other servers refuse it within seconds."""
    return await has.accounts.revoke_token(who, token_id, tenant)
