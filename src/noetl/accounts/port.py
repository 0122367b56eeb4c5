"""What is stored of tokens.

A token is a random text that its owner sends with every request. The store has its SHA-256 sum: a
copy of the database opens nothing. The text has 256 random bits, so a slow sum would add nothing.
"""

from typing import Literal, Protocol

from msgspec import Struct

from noetl.model.ids import Micros, Tenant

# api: sent in a header. session: the cookie of a browser. link: opens one session, once.
TokenKind = Literal["api", "session", "link"]


REVOKED_RETENTION_S = 90 * 86_400  # a token that was revoked is listed for so long
# A server stores the tokens of its home at every start. Their rows are never forgotten: a revoked one
# would be valid again.
HOME_CREATOR = "the first start of a server"


class TokenFields(Struct, frozen=True, kw_only=True):
    """What a token is for. `lifetime_s` is None for one that does not expire.

    `parent_id` is the token with which a session or a link was opened: it is revoked with it.
    """

    kind: TokenKind
    tenant: Tenant
    name: str
    roles: tuple[str, ...]
    created_by: str
    pools: tuple[str, ...] | None = None
    parent_id: str | None = None
    lifetime_s: int | None = None


class NewToken(TokenFields, frozen=True, kw_only=True):
    """A token to store, by the sum of its text."""

    token_id: str
    digest: bytes


class StoredToken(Struct, frozen=True):
    token_id: str
    tenant: Tenant
    kind: TokenKind
    name: str
    roles: tuple[str, ...]
    pools: tuple[str, ...] | None
    created_by: str
    parent_id: str | None
    created_at: Micros
    expires_at: Micros | None
    revoked_at: Micros | None
    # Neither it nor the token that opened it has expired or was revoked, by the clock of the store.
    is_valid: bool


class TokenStore(Protocol):
    """All tokens of a database."""

    async def add_token(self, token: NewToken) -> StoredToken:
        """Store a token. One with the same sum stays as it is and is returned.

        Expired sessions and links are deleted on the way, and tokens that were revoked
        `REVOKED_RETENTION_S` seconds ago, except those of a home.
        """
        ...

    async def find_token(self, digest: bytes) -> StoredToken | None:
        """The token with this sum, whether it is valid or not."""
        ...

    async def take_link(self, digest: bytes) -> StoredToken | None:
        """Delete a valid link and return it. Of several callers, one gets it."""
        ...

    async def list_tokens(self, tenant: Tenant) -> list[StoredToken]:
        """Tokens of the kind `api`, the newest first."""
        ...

    async def revoke_token(
        self, tenant: Tenant, token_id: str, kind: TokenKind
    ) -> StoredToken | None:
        """Revoke a token or a session, and the sessions and links that were opened with it.

        None, and nothing is revoked, if there is none of this kind with this id.
        """
        ...
