"""Tokens in memory."""

from msgspec.structs import replace

from noetl.accounts.port import HOME_CREATOR, REVOKED_RETENTION_S, NewToken, StoredToken, TokenKind
from noetl.accounts.users import GRANT_PREFIX
from noetl.accounts.users_memory import UsersMemory
from noetl.model.clock import Clock
from noetl.model.ids import Micros, Tenant

MICROS_PER_SECOND = 1_000_000


class TokensMemory:
    def __init__(self, clock: Clock, users: UsersMemory) -> None:
        self._clock = clock
        self._users = users
        self._tokens: dict[bytes, StoredToken] = {}  # by sum, in order of creation

    async def add_token(self, token: NewToken) -> StoredToken:
        self._forget_expired()
        known = self._tokens.get(token.digest)
        if known is not None:
            return self._judge(known)
        now = self._clock.now()
        expires_at = None
        if token.lifetime_s is not None:
            expires_at = Micros(now + token.lifetime_s * MICROS_PER_SECOND)
        stored = StoredToken(
            token_id=token.token_id,
            tenant=token.tenant,
            kind=token.kind,
            name=token.name,
            roles=token.roles,
            pools=token.pools,
            created_by=token.created_by,
            parent_id=token.parent_id,
            created_at=now,
            expires_at=expires_at,
            revoked_at=None,
            is_valid=True,
        )
        self._tokens[token.digest] = stored
        return self._judge(stored)

    async def find_token(self, digest: bytes) -> StoredToken | None:
        found = self._tokens.get(digest)
        return None if found is None else self._judge(found)

    async def take_link(self, digest: bytes) -> StoredToken | None:
        found = await self.find_token(digest)
        if found is None or found.kind != "link" or not found.is_valid:
            return None
        del self._tokens[digest]
        return found

    async def list_tokens(self, tenant: Tenant) -> list[StoredToken]:
        newest_first = reversed(self._tokens.values())
        return [
            self._judge(token)
            for token in newest_first
            if token.tenant == tenant and token.kind == "api"
        ]

    async def revoke_token(
        self, tenant: Tenant, token_id: str, kind: TokenKind
    ) -> StoredToken | None:
        named = next((each for each in self._tokens.values() if each.token_id == token_id), None)
        if named is None or named.kind != kind:
            return None
        revoked = None
        for digest, token in self._tokens.items():
            if token.tenant != tenant or token_id not in (token.token_id, token.parent_id):
                continue
            if token.revoked_at is None:
                self._tokens[digest] = replace(token, revoked_at=self._clock.now())
            if token.token_id == token_id:
                revoked = self._judge(self._tokens[digest])
        return revoked

    def _judge(self, token: StoredToken) -> StoredToken:
        """The token with its validity. A session is valid for as long as the token that opened it,
        or the grant of the user who did."""
        parents = [each for each in self._tokens.values() if each.token_id == token.parent_id]
        is_valid = not any(map(self._is_over, [token, *parents]))
        if token.parent_id is not None and token.parent_id.startswith(GRANT_PREFIX):
            is_valid = is_valid and self._users.has_grant(token.parent_id)
        return replace(token, is_valid=is_valid)

    def _is_over(self, token: StoredToken) -> bool:
        is_expired = token.expires_at is not None and token.expires_at <= self._clock.now()
        return token.revoked_at is not None or is_expired

    def _forget_expired(self) -> None:
        """Sessions and links that have expired are no use to anybody; tokens stay in the list for a
        while after they were revoked."""
        expired = [digest for digest, token in self._tokens.items() if self._is_forgotten(token)]
        for digest in expired:
            del self._tokens[digest]

    def _is_forgotten(self, token: StoredToken) -> bool:
        if token.kind != "api":
            return not self._judge(token).is_valid
        oldest = self._clock.now() - REVOKED_RETENTION_S * MICROS_PER_SECOND
        is_old = token.revoked_at is not None and token.revoked_at <= oldest
        return is_old and token.created_by != HOME_CREATOR
