"""Makes, lists and revokes tokens, and opens and ends sessions of browsers."""

import secrets
from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import asdict, replace

from noetl.accounts.port import NewToken, StoredToken, TokenFields, TokenKind, TokenStore
from noetl.accounts.tenants import StoredTenant, TenantStore
from noetl.accounts.texts import RANDOM_BYTES, make_token_text, read_token_id, sum_token
from noetl.audit.port import AuditScalar
from noetl.model.errors import Conflict, InvalidInput, NotFound, NotPermitted
from noetl.model.identity import ROLES, Identity, Permission, needs, require_installation
from noetl.server.accounts.authenticator import (
    Authenticator,
    CachedCaller,
    make_identity,
    make_missing_token,
)
from noetl.server.accounts.views import CreatedTokenView, TokensView, TokenView, make_token_view
from noetl.server.audit.recorder import AuditRecorder
from noetl.server.http.structs import extend_view
from noetl.server.tenants.service import find_named

LINK_LIFETIME_S = 120
SESSION_LIFETIME_S = 12 * 3600
MAX_NAME_CHARS = 100
MAX_POOLS = 64
MAX_AUDITED_NAME_CHARS = 20
MAX_LIFETIME_S = 10 * 365 * 86_400
# What the audit trail calls the making of a token, by its kind.
CREATE_OPERATIONS: dict[TokenKind, str] = {
    "api": "token.create",
    "session": "session.open",
    "link": "session.link",
}


class OpenedSession(Struct, frozen=True):
    """A session that was opened: the caller, and the text of its cookie."""

    identity: Identity
    cookie: str
    lifetime_s: int


class AccountService:
    def __init__(
        self,
        tokens: TokenStore,
        authenticator: Authenticator,
        tenants: TenantStore,
        *,
        audit: AuditRecorder,
    ) -> None:
        self._tokens = tokens
        self._authenticator = authenticator
        self._tenants = tenants
        self._audit = audit

    # -- tokens --

    @needs(Permission.ADMINISTER)
    async def create_token(
        self,
        identity: Identity,
        name: str,
        roles: Iterable[str],
        pools: Iterable[str] | None = None,
        lifetime_s: int | None = None,
        tenant: str | None = None,
    ) -> CreatedTokenView:
        """Make a token of the caller's tenant, or of the one with this name. Its text is in this
        answer and nowhere else."""
        owner = await self._find_tenant(identity, tenant)
        role_names = tuple(sorted(set(roles)))
        pool_names = None if pools is None else tuple(sorted(set(pools)))
        check_token_fields(name, role_names, pool_names, lifetime_s)
        fields = TokenFields(
            kind="api",
            tenant=owner.tenant,
            name=name,
            roles=role_names,
            created_by=identity.name,
            pools=pool_names,
            lifetime_s=lifetime_s,
        )
        text, stored = await self._store_token(identity, fields)
        return extend_view(CreatedTokenView, make_token_view(stored, owner.name), token=text)

    @needs(Permission.ADMINISTER)
    async def list_tokens(self, identity: Identity, tenant: str | None = None) -> TokensView:
        owner = await self._find_tenant(identity, tenant)
        tokens = await self._tokens.list_tokens(owner.tenant)
        return TokensView([make_token_view(token, owner.name) for token in tokens])

    @needs(Permission.ADMINISTER)
    async def revoke_token(
        self, identity: Identity, token: str, tenant: str | None = None
    ) -> TokenView:
        """Revoke a token for good, and the sessions that were opened with it.

        `token` is its id, or its name if no other valid token of the tenant has this name.
        """
        owner = await self._find_tenant(identity, tenant)
        # Somebody may give the whole token by mistake: the trail gets its id, or too little to use.
        named = read_token_id(token) or token[:MAX_AUDITED_NAME_CHARS]
        async with self._audit.record(identity, "token.revoke", named, tenant=owner.name):
            revoked = await self._tokens.revoke_token(owner.tenant, token, "api")
            if revoked is None:
                token_id = await self._find_token_id(owner, token)
                revoked = await self._tokens.revoke_token(owner.tenant, token_id, "api")
            if revoked is None:
                raise _make_unknown_token(token)
        self._authenticator.forget_token(revoked.token_id)
        return make_token_view(revoked, owner.name)

    async def _find_tenant(self, identity: Identity, name: str | None) -> StoredTenant:
        """The tenant of this name, or the caller's own. Only administrators of the installation
        name others; to all others, each name but their own gives the same error."""
        own = await self._tenants.find_tenant(identity.tenant)
        if own is None:
            raise NotPermitted(f"{identity.name} belongs to a tenant that is not there")
        if name is None or name == own.name:
            return own
        require_installation(identity)
        return await find_named(self._tenants, name)

    async def _find_token_id(self, owner: StoredTenant, name: str) -> str:
        """The id of the valid token with this name. Of several, none is chosen."""
        tokens = await self._tokens.list_tokens(owner.tenant)
        ids = [token.token_id for token in tokens if token.name == name and token.is_valid]
        if len(ids) > 1:
            raise Conflict(
                f"several tokens have this name: {', '.join(ids)}", hint="name one by its id"
            )
        if not ids:
            raise _make_unknown_token(name)
        return ids[0]

    # -- sessions of browsers --

    @needs(Permission.READ)
    async def make_link(self, identity: Identity) -> str:
        """A code that opens one session of this caller, once, within two minutes."""
        fields = _copy_identity(identity, "link", LINK_LIFETIME_S)
        code, _ = await self._store_token(identity, fields)
        return code

    async def open_session_by_link(self, code: str, address: str = "") -> OpenedSession:
        if read_token_id(code) is None:
            raise make_missing_token("the link is not one of NoETL")
        digest = sum_token(code)
        link = await self._authenticator.look_up(address, lambda: self._tokens.take_link(digest))
        if link is None:
            raise make_missing_token("the link has been used or has expired: noetl ui makes one")
        return await self.open_session(replace(make_identity(link), token_id=link.parent_id))

    async def open_session_by_token(self, text: str, address: str = "") -> OpenedSession:
        caller = await self._authenticator.identify_bearer(text, address)
        if not caller.identity.may(Permission.READ):
            raise NotPermitted(
                f"{caller.identity.name} may not look at anything",
                hint="sign in with a token of the role viewer, operator, author or admin",
            )
        return await self.open_session(caller.identity)

    async def end_session(self, caller: CachedCaller) -> None:
        async with self._audit.record(caller.identity, "session.end", caller.token_id):
            await self._tokens.revoke_token(caller.identity.tenant, caller.token_id, "session")
        self._authenticator.forget_token(caller.token_id)

    async def open_session(self, identity: Identity) -> OpenedSession:
        """A session of a caller who has proved who it is."""
        fields = _copy_identity(identity, "session", SESSION_LIFETIME_S)
        cookie, _ = await self._store_token(identity, fields)
        return OpenedSession(identity, cookie, SESSION_LIFETIME_S)

    async def _store_token(
        self, identity: Identity, wanted: TokenFields
    ) -> tuple[str, StoredToken]:
        """Make a token with these fields. Returns its text and its row."""
        text = make_token_text(secrets.token_bytes(RANDOM_BYTES))
        token = make_new_token(text, wanted)
        operation = CREATE_OPERATIONS[wanted.kind]
        details: dict[str, AuditScalar] = {"name": wanted.name, "roles": " ".join(wanted.roles)}
        if wanted.tenant != identity.tenant:
            details["tenant"] = wanted.tenant
        async with self._audit.record(identity, operation, token.token_id, **details):
            return text, await self._tokens.add_token(token)


def make_new_token(text: str, wanted: TokenFields) -> NewToken:
    """The row of the token with this text."""
    token_id = read_token_id(text)
    assert token_id is not None
    return NewToken(token_id=token_id, digest=sum_token(text), **asdict(wanted))


def _copy_identity(identity: Identity, kind: TokenKind, lifetime_s: int) -> TokenFields:
    """A session or a link of this caller, which ends with the caller's token."""
    return TokenFields(
        kind=kind,
        tenant=identity.tenant,
        name=identity.name,
        roles=tuple(sorted(identity.roles)),
        created_by=identity.name,
        parent_id=identity.token_id,
        lifetime_s=lifetime_s,
    )


def _make_unknown_token(token: str) -> NotFound:
    return NotFound(
        f"no token {token[:MAX_NAME_CHARS]!r}", hint="noetl token list shows those there are"
    )


def check_token_fields(
    name: str,
    roles: tuple[str, ...],
    pools: tuple[str, ...] | None,
    lifetime_s: int | None,
) -> None:
    """Raise `InvalidInput` if no such token can be made."""
    if not name.strip() or len(name) > MAX_NAME_CHARS or not name.isprintable():
        raise InvalidInput(
            "a token needs a name of printable characters", hint="who uses it: `ci`, `ada`"
        )
    unknown = [role for role in roles if role not in ROLES]
    if unknown or not roles:
        raise InvalidInput(
            f"there is no role {unknown[0][:MAX_NAME_CHARS]!r}"
            if unknown
            else "a token needs a role",
            hint=f"roles are {', '.join(ROLES)}",
        )
    if pools is not None and "worker" not in roles:
        raise InvalidInput("pools are for tokens of workers", hint="give it the role worker")
    if pools is not None and not 0 < len(pools) <= MAX_POOLS:
        raise InvalidInput(f"a token is for at most {MAX_POOLS} pools, and at least one")
    if lifetime_s is not None and not 0 < lifetime_s <= MAX_LIFETIME_S:
        raise InvalidInput("a token lives for at least a second and at most ten years")
