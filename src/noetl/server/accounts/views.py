"""The structs that answers about tokens and users have."""

from typing import Annotated

from noetl.accounts.port import StoredToken
from noetl.accounts.users import StoredUser
from noetl.model.clock import format_iso, format_iso_or_none
from noetl.server.http.structs import View, describe

EXAMPLE_TOKEN_ID = "f3Qk0aLs9ZxY"


class TokenView(View, frozen=True):
    token_id: Annotated[str, describe("no secret: it names the token", example=EXAMPLE_TOKEN_ID)]
    name: Annotated[str, describe("who uses it", example="ci")]
    tenant: Annotated[str, describe("that it belongs to", example="default")]
    roles: Annotated[list[str], describe(example=["operator"])]
    pools: Annotated[list[str] | None, describe("of a worker; null: all pools")]
    created_by: str
    created_at: str
    expires_at: Annotated[str | None, describe("null: it does not expire")]
    revoked_at: str | None
    valid: Annotated[bool, describe("neither expired nor revoked")]


class CreatedTokenView(TokenView, frozen=True):
    token: Annotated[str, describe("its text, which is shown only now")]


class TokensView(View, frozen=True):
    tokens: list[TokenView]


def make_token_view(token: StoredToken, tenant: str) -> TokenView:
    return TokenView(
        token_id=token.token_id,
        name=token.name,
        tenant=tenant,
        roles=list(token.roles),
        pools=None if token.pools is None else list(token.pools),
        created_by=token.created_by,
        created_at=format_iso(token.created_at),
        expires_at=format_iso_or_none(token.expires_at),
        revoked_at=format_iso_or_none(token.revoked_at),
        valid=token.is_valid,
    )


class UserView(View, frozen=True):
    user_id: Annotated[str, describe("no secret: it names the user", example=EXAMPLE_TOKEN_ID)]
    name: Annotated[str, describe("with which the user signs in", example="ada")]
    roles: Annotated[list[str], describe(example=["operator"])]
    issuer: Annotated[str | None, describe("that signs the user in; null: by a password")]
    created_by: str
    created_at: str
    disabled_at: Annotated[str | None, describe("null: the user may sign in")]


class UsersView(View, frozen=True):
    users: list[UserView]


def make_user_view(user: StoredUser) -> UserView:
    return UserView(
        user_id=user.user_id,
        name=user.name,
        roles=list(user.roles),
        issuer=user.issuer,
        created_by=user.created_by,
        created_at=format_iso(user.created_at),
        disabled_at=format_iso_or_none(user.disabled_at),
    )
