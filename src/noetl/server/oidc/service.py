"""Signs users of an issuer in: begins, ends with a session, and gives them the roles of their groups."""

import asyncio
import secrets
from collections.abc import Mapping
from hmac import compare_digest
from typing import Any

from noetl.accounts.users import IssuedUser, UserStore
from noetl.model.errors import Conflict, NotPermitted
from noetl.model.ids import DEFAULT_TENANT
from noetl.server.accounts.authenticator import Authenticator
from noetl.server.accounts.service import MAX_NAME_CHARS, AccountService, OpenedSession
from noetl.server.accounts.throttle import Throttle, make_address_key
from noetl.server.accounts.users import (
    ADDRESS_TRIES,
    make_grant_id,
    make_user_id,
    make_user_identity,
)
from noetl.server.oidc.flow import SECRET_BYTES, SignInFlow, choose_place
from noetl.server.oidc.port import IssuedClaims, Issuer, IssuerRefused, IssuerSettings

NAME_CLAIMS = ("preferred_username", "email", "name")


class OidcService:
    """Without an issuer, nobody signs in by it."""

    def __init__(
        self,
        users: UserStore,
        accounts: AccountService,
        authenticator: Authenticator,
        settings: IssuerSettings | None = None,
        issuer: Issuer | None = None,
    ) -> None:
        self._users = users
        self._accounts = accounts
        self._authenticator = authenticator
        self._settings = settings
        self._issuer = issuer
        self._throttle = Throttle(ADDRESS_TRIES)

    def get_label(self) -> str | None:
        """What the button of the sign-in page says; None without an issuer."""
        return None if self._settings is None else self._settings.label

    async def begin_sign_in(self, place: str | None, redirect_uri: str) -> tuple[SignInFlow, str]:
        """A new flow, and the address at which the user signs in."""
        issuer, _ = self._get_issuer()
        flow = SignInFlow(secrets.token_bytes(SECRET_BYTES), choose_place(place))
        return flow, await issuer.make_sign_in_url(flow, redirect_uri)

    async def end_sign_in(
        self, flow: SignInFlow | None, answer: Mapping[str, str], redirect_uri: str, address: str
    ) -> OpenedSession:
        """Open the session of the user whom the answer of the issuer names.

        `flow` is that of the browser, which comes from this address.
        """
        issuer, settings = self._get_issuer()
        state = answer.get("state", "")
        if flow is None or not compare_digest(state.encode(), flow.state.encode()):
            raise _refuse("this sign-in was not begun in this browser, or too long ago")
        if "error" in answer or "code" not in answer:
            raise _refuse("the issuer has not signed the user in")
        key = make_address_key(address)
        self._throttle.take_try(key, asyncio.get_running_loop().time())
        claims = await issuer.redeem_code(flow, redirect_uri, answer["code"], answer.get("iss"))
        self._throttle.give_back(key)
        return await self._open_session(settings, claims)

    async def _open_session(self, settings: IssuerSettings, who: IssuedClaims) -> OpenedSession:
        name = _choose_name(who)
        roles = choose_roles(settings, who.claims)
        issued = IssuedUser(
            user_id=make_user_id(),
            grant_id=make_grant_id(),
            tenant=DEFAULT_TENANT,
            name=name,
            roles=roles,
            issuer=settings.issuer,
            subject=who.subject,
        )
        # Also without a role: sessions that a user has from better days end.
        changed = await self._users.put_issued_user(issued)
        if changed.ended_grant_id != changed.user.grant_id:
            self._authenticator.forget_token(changed.ended_grant_id)
        if not roles:
            raise NotPermitted(
                f"{name} has no role here",
                hint=f"NOETL_OIDC_ROLES says which values of `{settings.roles_claim}` have which role",
            )
        if changed.user.disabled_at is not None:
            raise NotPermitted(f"{name} is disabled", hint="an administrator enables users")
        return await self._accounts.open_session(make_user_identity(changed.user))

    def _get_issuer(self) -> tuple[Issuer, IssuerSettings]:
        if self._issuer is None or self._settings is None:
            raise Conflict(
                "this server has no issuer to sign in by", hint="NOETL_OIDC_ISSUER names one"
            )
        return self._issuer, self._settings


def choose_roles(settings: IssuerSettings, claims: Mapping[str, Any]) -> tuple[str, ...]:
    """The roles of the user's groups; `*` stands for every user of the issuer."""
    value: Any = claims
    for part in settings.roles_claim.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    groups = [value] if isinstance(value, str) else value
    if not isinstance(groups, list):
        groups = []
    names = {"*", *(group for group in groups if isinstance(group, str))}
    return tuple(sorted({role for group, role in settings.roles.items() if group in names}))


def _choose_name(who: IssuedClaims) -> str:
    for claim in NAME_CLAIMS:
        name = who.claims.get(claim)
        if isinstance(name, str) and name.strip() and name.isprintable():
            return name.strip()[:MAX_NAME_CHARS]
    return "".join(filter(str.isprintable, who.subject))[:MAX_NAME_CHARS] or "user"


def _refuse(why: str) -> IssuerRefused:
    return IssuerRefused(why, hint="begin again on the sign-in page")
