"""What is stored of users.

A user has a password, of which the store has an argon2 hash, or is vouched for by an issuer of
OpenID Connect. The sessions of a user have the grant of the user as their parent: they are valid
while the user has this grant and is not disabled. Another grant ends all of them.
"""

from typing import Protocol

from msgspec import Struct

from noetl.model.ids import Micros, Tenant

GRANT_PREFIX = "user."  # no id of a token has a dot


class NewUser(Struct, frozen=True, kw_only=True):
    """A user with a password."""

    user_id: str
    grant_id: str
    tenant: Tenant
    name: str
    roles: tuple[str, ...]
    password_hash: str
    created_by: str


class IssuedUser(Struct, frozen=True, kw_only=True):
    """What an issuer says of a user who signs in. The ids are used if the user is new or changed."""

    user_id: str
    grant_id: str
    tenant: Tenant
    name: str
    roles: tuple[str, ...]
    issuer: str
    subject: str


class UserChange(Struct, frozen=True, kw_only=True):
    """What becomes different of a user. None: it stays. The new grant ends the sessions."""

    grant_id: str
    password_hash: str | None = None
    roles: tuple[str, ...] | None = None
    is_disabled: bool | None = None


class StoredUser(Struct, frozen=True):
    user_id: str
    grant_id: str
    tenant: Tenant
    name: str
    issuer: str | None
    subject: str | None
    roles: tuple[str, ...]
    password_hash: str | None
    created_by: str
    created_at: Micros
    disabled_at: Micros | None


class ChangedUser(Struct, frozen=True):
    """A user after a change, and the grant of the sessions that have ended with it."""

    user: StoredUser
    ended_grant_id: str


class UserStore(Protocol):
    """All users of a database."""

    async def add_user(self, user: NewUser) -> StoredUser | None:
        """Store a user with a password. None if the name is taken, in any tenant."""
        ...

    async def find_user(self, name: str) -> StoredUser | None:
        """The user with a password who has this name."""
        ...

    async def list_users(self, tenant: Tenant) -> list[StoredUser]:
        """All users, by name."""
        ...

    async def change_user(
        self, tenant: Tenant, user_id: str, change: UserChange
    ) -> ChangedUser | None:
        """Change a user and end the sessions. None if there is no user with this id."""
        ...

    async def replace_hash(self, user_id: str, old_hash: str, new_hash: str) -> None:
        """Store another hash of the same password, unless the password was changed. Sessions go on."""
        ...

    async def put_issued_user(self, user: IssuedUser) -> ChangedUser:
        """Store a user of an issuer, or what the issuer says now. Other roles end the sessions."""
        ...
