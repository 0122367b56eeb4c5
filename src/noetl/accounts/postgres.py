"""Tokens in Postgres."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from noetl.accounts.port import HOME_CREATOR, REVOKED_RETENTION_S, NewToken, StoredToken, TokenKind
from noetl.model.ids import Tenant
from noetl.postgres.pool import Database
from noetl.postgres.queries import load_queries

_SQL = load_queries(Path(__file__).with_name("tokens.sql"))


class TokensPostgres:
    def __init__(self, database: Database) -> None:
        self._pool = database.main

    async def add_token(self, token: NewToken) -> StoredToken:
        rows = await self._pool.write(
            _SQL["add_token"],
            token_id=token.token_id,
            tenant=token.tenant,
            kind=token.kind,
            name=token.name,
            roles=list(token.roles),
            pools=None if token.pools is None else list(token.pools),
            digest=token.digest,
            created_by=token.created_by,
            parent_id=token.parent_id,
            lifetime_s=token.lifetime_s,
            retention_s=REVOKED_RETENTION_S,
            home_creator=HOME_CREATOR,
        )
        added = _read_first(rows)
        if added is None:  # another process has stored it since this statement began
            added = await self.find_token(token.digest)
        assert added is not None
        return added

    async def find_token(self, digest: bytes) -> StoredToken | None:
        return _read_first(await self._pool.read(_SQL["find_token"], digest=digest))

    async def take_link(self, digest: bytes) -> StoredToken | None:
        return _read_first(await self._pool.write(_SQL["take_link"], digest=digest))

    async def list_tokens(self, tenant: Tenant) -> list[StoredToken]:
        rows = await self._pool.read(_SQL["list_tokens"], tenant=tenant)
        return [_read_token(row) for row in rows]

    async def revoke_token(
        self, tenant: Tenant, token_id: str, kind: TokenKind
    ) -> StoredToken | None:
        rows = await self._pool.write(
            _SQL["revoke_token"], tenant=tenant, token_id=token_id, kind=kind
        )
        return _read_first(rows)


def _read_first(rows: Sequence[Any]) -> StoredToken | None:
    return _read_token(rows[0]) if rows else None


def _read_token(row: Sequence[Any]) -> StoredToken:
    token_id, tenant, kind, name, roles, pools, *rest = row
    pool_names = None if pools is None else tuple(pools)
    return StoredToken(token_id, tenant, kind, name, tuple(roles), pool_names, *rest)
