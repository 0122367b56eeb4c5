"""What an issuer is to the server: where a browser signs in, and who has signed in."""

from typing import Any, Protocol

from msgspec import Struct

from noetl.model.errors import NotAuthenticated
from noetl.server.oidc.flow import SignInFlow


class IssuerRefused(NotAuthenticated):
    """The issuer, or what it says, does not prove who signs in."""


class IssuerSettings(Struct, frozen=True):
    """An issuer, and which roles its users have: `roles` by the values of the claim `roles_claim`."""

    issuer: str
    client_id: str
    client_secret: str | None
    scopes: str
    roles_claim: str
    roles: dict[str, str]
    label: str


class IssuedClaims(Struct, frozen=True):
    """What the issuer says of a user, checked."""

    subject: str
    claims: dict[str, Any]


class Issuer(Protocol):
    async def make_sign_in_url(self, flow: SignInFlow, redirect_uri: str) -> str:
        """The address at which the user signs in."""
        ...

    async def redeem_code(
        self, flow: SignInFlow, redirect_uri: str, code: str, issuer: str | None
    ) -> IssuedClaims:
        """Who has signed in. `issuer` is the one that the answer names. Raises `IssuerRefused`."""
        ...
