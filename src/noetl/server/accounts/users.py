"""Makes, lists and changes users, and opens their sessions by name and password."""

import asyncio
import logging
import re
import secrets
from collections.abc import Callable, Iterable

from noetl.accounts.texts import make_public_id
from noetl.accounts.users import (
    GRANT_PREFIX,
    ChangedUser,
    NewUser,
    StoredUser,
    UserChange,
    UserStore,
)
from noetl.model.errors import Conflict, InvalidInput, NotAuthenticated, NotFound
from noetl.model.identity import ROLES, Identity, Permission, needs
from noetl.server.accounts.authenticator import Authenticator
from noetl.server.accounts.passwords import Passwords, check_password
from noetl.server.accounts.service import MAX_NAME_CHARS, AccountService, OpenedSession
from noetl.server.accounts.throttle import Throttle, TryLimit, make_address_key
from noetl.server.accounts.views import UsersView, UserView, make_user_view
from noetl.server.audit.recorder import AuditRecorder

log = logging.getLogger(__name__)

# A person is no worker: no session of a browser reads credentials in clear text.
USER_ROLES = tuple(role for role, granted in ROLES.items() if Permission.READ in granted)
USER_NAME = re.compile(r"[a-z0-9][a-z0-9._@+-]{0,99}", re.ASCII)
NAME_TRIES = TryLimit(tries=10, seconds_per_try=30.0)
ADDRESS_TRIES = TryLimit(tries=30, seconds_per_try=5.0)
ID_RANDOM_BYTES = 9


class UserService:
    def __init__(
        self,
        users: UserStore,
        accounts: AccountService,
        authenticator: Authenticator,
        passwords: Passwords | None = None,
        *,
        audit: AuditRecorder,
    ) -> None:
        self._users = users
        self._accounts = accounts
        self._authenticator = authenticator
        self._audit = audit
        self._passwords = passwords or Passwords()
        self._name_throttle = Throttle(NAME_TRIES)
        self._address_throttle = Throttle(ADDRESS_TRIES)

    # -- users --

    @needs(Permission.ADMINISTER)
    async def create_user(
        self, identity: Identity, name: str, roles: Iterable[str], password: str
    ) -> UserView:
        """Make a user with a password."""
        wanted_name = name.lower()
        wanted_roles = _check_roles(roles)
        if USER_NAME.fullmatch(wanted_name) is None:
            raise InvalidInput(
                "a user has a name of letters, digits and . _ @ + -",
                hint="`ada`, `ada@example.org`",
            )
        check_password(password)
        user = NewUser(
            user_id=make_user_id(),
            grant_id=make_grant_id(),
            tenant=identity.tenant,
            name=wanted_name,
            roles=wanted_roles,
            password_hash=await self._passwords.make_hash(password),
            created_by=identity.name,
        )
        roles_text = " ".join(wanted_roles)
        async with self._audit.record(identity, "user.create", wanted_name, roles=roles_text):
            stored = await self._users.add_user(user)
            if stored is None:
                raise Conflict(
                    f"there is a user {wanted_name} already",
                    hint=f"noetl user password {wanted_name} sets another password",
                )
        return make_user_view(stored)

    @needs(Permission.ADMINISTER)
    async def list_users(self, identity: Identity) -> UsersView:
        users = await self._users.list_users(identity.tenant)
        return UsersView([make_user_view(user) for user in users])

    @needs(Permission.ADMINISTER)
    async def disable_user(self, identity: Identity, user: str) -> UserView:
        """Let a user sign in no more, and end the sessions."""
        return await self._change_user(identity, user, "user.disable", is_disabled=True)

    @needs(Permission.ADMINISTER)
    async def enable_user(self, identity: Identity, user: str) -> UserView:
        """Let a user who was disabled sign in again."""
        return await self._change_user(identity, user, "user.enable", is_disabled=False)

    @needs(Permission.ADMINISTER)
    async def set_roles(self, identity: Identity, user: str, roles: Iterable[str]) -> UserView:
        """Give a user other roles. The sessions end, because they have the old ones."""
        return await self._change_user(identity, user, "user.roles", roles=_check_roles(roles))

    @needs(Permission.ADMINISTER)
    async def set_password(self, identity: Identity, user: str, password: str) -> UserView:
        """Give a user another password, and end the sessions."""
        check_password(password)
        found = await self._find_user(identity, user)
        if found.issuer is not None:
            raise Conflict(
                f"{found.name} has no password here", hint=f"{found.issuer} signs this user in"
            )
        new_hash = await self._passwords.make_hash(password)
        return await self._change_user(
            identity, found.user_id, "user.password", password_hash=new_hash
        )

    # -- sessions --

    async def open_session_by_password(
        self, name: str, password: str, address: str
    ) -> OpenedSession:
        """Open a session of the user with this name and password, who calls from this address.

        Unknown users, wrong passwords and disabled users get the same answer after the same work.
        """
        wanted_name = name.lower()
        give_back = self._take_tries(wanted_name, address)
        user = None
        if USER_NAME.fullmatch(wanted_name) is not None:
            user = await self._users.find_user(wanted_name)
        known_hash = None if user is None else user.password_hash
        is_right = await self._passwords.is_right(password, known_hash)
        if user is None or not is_right or user.disabled_at is not None:
            log.warning("sign-in refused", extra={"address": address})
            raise NotAuthenticated(
                "the name or the password is wrong",
                hint="an administrator sets another password with noetl user password",
            )
        give_back()
        await self._renew_hash(user, password)
        return await self._accounts.open_session(make_user_identity(user))

    def _take_tries(self, name: str, address: str) -> Callable[[], None]:
        """Take a try of the name and of the address. Returns the function that gives them back."""
        now_s = asyncio.get_running_loop().time()
        address_key = make_address_key(address)
        self._address_throttle.take_try(address_key, now_s)
        self._name_throttle.take_try(name, now_s)

        def give_back() -> None:
            self._address_throttle.give_back(address_key)
            self._name_throttle.give_back(name)

        return give_back

    async def _renew_hash(self, user: StoredUser, password: str) -> None:
        """Store a hash with the costs of today if the known one has others."""
        if user.password_hash is None or not self._passwords.is_outdated(user.password_hash):
            return
        new_hash = await self._passwords.make_hash(password)
        await self._users.replace_hash(user.user_id, user.password_hash, new_hash)

    # -- changes --

    async def _change_user(
        self, identity: Identity, user: str, operation: str, **fields: object
    ) -> UserView:
        found = await self._find_user(identity, user)
        change = UserChange(grant_id=make_grant_id(), **fields)  # type: ignore[arg-type]  # of the callers above
        roles = None if change.roles is None else " ".join(change.roles)
        async with self._audit.record(identity, operation, found.name, roles=roles):
            changed = await self._users.change_user(identity.tenant, found.user_id, change)
            if changed is None:
                raise _make_unknown_user(user)
        self._end_cached_sessions(changed)
        return make_user_view(changed.user)

    def _end_cached_sessions(self, changed: ChangedUser) -> None:
        """Refuse the sessions that the change has ended at once, not when the cache is old."""
        if changed.ended_grant_id != changed.user.grant_id:
            self._authenticator.forget_token(changed.ended_grant_id)

    async def _find_user(self, identity: Identity, user: str) -> StoredUser:
        """The user with this name or id. Of several users with one name, none is chosen."""
        users = await self._users.list_users(identity.tenant)
        found = [each for each in users if user in (each.user_id, each.name)]
        if len(found) > 1:
            ids = ", ".join(each.user_id for each in found)
            raise Conflict(f"several users have this name: {ids}", hint="name one by its id")
        if not found:
            raise _make_unknown_user(user)
        return found[0]


def make_user_identity(user: StoredUser) -> Identity:
    return Identity(user.tenant, frozenset(user.roles), user.name, None, user.grant_id)


def make_user_id() -> str:
    return make_public_id(secrets.token_bytes(ID_RANDOM_BYTES))


def make_grant_id() -> str:
    return GRANT_PREFIX + make_public_id(secrets.token_bytes(ID_RANDOM_BYTES))


def _check_roles(roles: Iterable[str]) -> tuple[str, ...]:
    """The roles in the order in which they are stored. Raises `InvalidInput` if a user cannot have one."""
    wanted = tuple(sorted(set(roles)))
    unknown = [role for role in wanted if role not in USER_ROLES]
    if not wanted or unknown:
        problem = f"a user cannot have the role {unknown[0][:MAX_NAME_CHARS]!r}" if unknown else ""
        raise InvalidInput(
            problem or "a user needs a role", hint=f"roles of users are {', '.join(USER_ROLES)}"
        )
    return wanted


def _make_unknown_user(user: str) -> NotFound:
    return NotFound(
        f"no user {user[:MAX_NAME_CHARS]!r}", hint="noetl user list shows those there are"
    )
