"""Routes for users: make, list, disable, and set password and roles. Passwords are never shown."""

from typing import Annotated

from noetl.server.accounts.passwords import MAX_PASSWORD_CHARS
from noetl.server.accounts.service import MAX_NAME_CHARS
from noetl.server.accounts.views import UsersView, UserView
from noetl.server.http.depends import Has, Who
from noetl.server.http.parameters import PathParameter
from noetl.server.http.routing import Routes
from noetl.server.http.structs import RequestBody, ShortText, describe

routes = Routes("users")

User = Annotated[str, PathParameter("its name or its id", max_length=100, examples=["ada"])]
# The lower limit is checked by the service, with a hint.
Password = Annotated[str, describe("12 to 1024 characters", max_length=MAX_PASSWORD_CHARS)]
UserRoles = Annotated[
    list[ShortText],
    describe("viewer, operator, author, admin", example=["operator"], max_length=4),
]


class UserBody(RequestBody, frozen=True):
    name: Annotated[
        str,
        describe(
            "with which the user signs in; letters become small ones",
            example="ada",
            max_length=MAX_NAME_CHARS,
        ),
    ]
    roles: UserRoles
    password: Password


class PasswordBody(RequestBody, frozen=True):
    password: Password


class RolesBody(RequestBody, frozen=True):
    roles: UserRoles


@routes.post("/api/users", status=201)
async def create_user(body: UserBody, has: Has, who: Who) -> UserView:
    """Make a user with a password."""
    return await has.users.create_user(who, body.name, body.roles, body.password)


@routes.get("/api/users")
async def list_users(has: Has, who: Who) -> UsersView:
    """All users by name, those of an issuer too once they have signed in."""
    return await has.users.list_users(who)


@routes.post("/api/users/{user}/disable")
async def disable_user(user: User, has: Has, who: Who) -> UserView:
    """Let a user sign in no more. The sessions end; other servers refuse them within seconds."""
    return await has.users.disable_user(who, user)


@routes.post("/api/users/{user}/enable")
async def enable_user(user: User, has: Has, who: Who) -> UserView:
    """Let a user who was disabled sign in again."""
    return await has.users.enable_user(who, user)


@routes.put("/api/users/{user}/password")
async def set_user_password(user: User, body: PasswordBody, has: Has, who: Who) -> UserView:
    """Give a user another password. The sessions end."""
    return await has.users.set_password(who, user, body.password)


@routes.put("/api/users/{user}/roles")
async def set_user_roles(user: User, body: RolesBody, has: Has, who: Who) -> UserView:
    """Give a user other roles. The sessions end."""
    return await has.users.set_roles(who, user, body.roles)
