"""Users in Postgres."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from noetl.accounts.users import ChangedUser, IssuedUser, NewUser, StoredUser, UserChange
from noetl.model.ids import Tenant
from noetl.postgres.pool import Database
from noetl.postgres.queries import load_queries

_SQL = load_queries(Path(__file__).with_name("users.sql"))


class UsersPostgres:
    def __init__(self, database: Database) -> None:
        self._pool = database.main

    async def add_user(self, user: NewUser) -> StoredUser | None:
        rows = await self._pool.write(
            _SQL["add_user"],
            user_id=user.user_id,
            grant_id=user.grant_id,
            tenant=user.tenant,
            name=user.name,
            roles=list(user.roles),
            password_hash=user.password_hash,
            created_by=user.created_by,
        )
        return _read_user(rows[0]) if rows else None

    async def find_user(self, name: str) -> StoredUser | None:
        rows = await self._pool.read(_SQL["find_user"], name=name)
        return _read_user(rows[0]) if rows else None

    async def list_users(self, tenant: Tenant) -> list[StoredUser]:
        rows = await self._pool.read(_SQL["list_users"], tenant=tenant)
        return [_read_user(row) for row in rows]

    async def change_user(
        self, tenant: Tenant, user_id: str, change: UserChange
    ) -> ChangedUser | None:
        rows = await self._pool.write(
            _SQL["change_user"],
            tenant=tenant,
            user_id=user_id,
            grant_id=change.grant_id,
            password_hash=change.password_hash,
            roles=None if change.roles is None else list(change.roles),
            is_disabled=change.is_disabled,
        )
        return _read_change(rows[0]) if rows else None

    async def replace_hash(self, user_id: str, old_hash: str, new_hash: str) -> None:
        await self._pool.write(
            _SQL["replace_hash"], user_id=user_id, old_hash=old_hash, new_hash=new_hash
        )

    async def put_issued_user(self, user: IssuedUser) -> ChangedUser:
        """Of two sign-ins of a new user at once, one adds the row and both read it."""
        who = {"issuer": user.issuer, "subject": user.subject, "name": user.name}
        fields = {**who, "grant_id": user.grant_id, "roles": list(user.roles)}
        rows = await self._pool.write(_SQL["change_issued_user"], **fields)
        if not rows:
            new = {**fields, "user_id": user.user_id, "tenant": user.tenant}
            await self._pool.write(_SQL["add_issued_user"], **new)
            rows = await self._pool.write(_SQL["change_issued_user"], **fields)
        return _read_change(rows[0])


def _read_change(row: Sequence[Any]) -> ChangedUser:
    *columns, ended_grant_id = row
    return ChangedUser(_read_user(columns), ended_grant_id)


def _read_user(row: Sequence[Any]) -> StoredUser:
    user_id, grant_id, tenant, name, issuer, subject, roles, *rest = row
    return StoredUser(user_id, grant_id, tenant, name, issuer, subject, tuple(roles), *rest)
