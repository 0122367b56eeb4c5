"""Users in memory."""

from msgspec.structs import replace

from noetl.accounts.users import ChangedUser, IssuedUser, NewUser, StoredUser, UserChange
from noetl.model.clock import Clock
from noetl.model.ids import Tenant


class UsersMemory:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._users: dict[str, StoredUser] = {}  # by id

    async def add_user(self, user: NewUser) -> StoredUser | None:
        if await self.find_user(user.name) is not None:
            return None
        stored = StoredUser(
            user_id=user.user_id,
            grant_id=user.grant_id,
            tenant=user.tenant,
            name=user.name,
            issuer=None,
            subject=None,
            roles=user.roles,
            password_hash=user.password_hash,
            created_by=user.created_by,
            created_at=self._clock.now(),
            disabled_at=None,
        )
        self._users[user.user_id] = stored
        return stored

    async def find_user(self, name: str) -> StoredUser | None:
        users = self._users.values()
        return next((user for user in users if user.name == name and user.issuer is None), None)

    async def list_users(self, tenant: Tenant) -> list[StoredUser]:
        own = [user for user in self._users.values() if user.tenant == tenant]
        return sorted(own, key=lambda user: (user.name, user.user_id))

    async def change_user(
        self, tenant: Tenant, user_id: str, change: UserChange
    ) -> ChangedUser | None:
        old = self._users.get(user_id)
        if old is None or old.tenant != tenant:
            return None
        disabled_at = old.disabled_at
        if change.is_disabled is not None:
            disabled_at = (old.disabled_at or self._clock.now()) if change.is_disabled else None
        changed = replace(
            old,
            grant_id=change.grant_id,
            password_hash=change.password_hash or old.password_hash,
            roles=old.roles if change.roles is None else change.roles,
            disabled_at=disabled_at,
        )
        self._users[user_id] = changed
        return ChangedUser(changed, old.grant_id)

    async def replace_hash(self, user_id: str, old_hash: str, new_hash: str) -> None:
        user = self._users.get(user_id)
        if user is not None and user.password_hash == old_hash:
            self._users[user_id] = replace(user, password_hash=new_hash)

    async def put_issued_user(self, user: IssuedUser) -> ChangedUser:
        known = (user.issuer, user.subject)
        old = next(
            (each for each in self._users.values() if (each.issuer, each.subject) == known), None
        )
        if old is None:
            old = StoredUser(
                user_id=user.user_id,
                grant_id=user.grant_id,
                tenant=user.tenant,
                name=user.name,
                issuer=user.issuer,
                subject=user.subject,
                roles=user.roles,
                password_hash=None,
                created_by=user.issuer,
                created_at=self._clock.now(),
                disabled_at=None,
            )
        grant_id = old.grant_id if old.roles == user.roles else user.grant_id
        changed = replace(old, name=user.name, roles=user.roles, grant_id=grant_id)
        self._users[old.user_id] = changed
        return ChangedUser(changed, old.grant_id)

    def has_grant(self, grant_id: str) -> bool:
        """Whether a user who is not disabled has this grant."""
        users = self._users.values()
        return any(user.grant_id == grant_id and user.disabled_at is None for user in users)
