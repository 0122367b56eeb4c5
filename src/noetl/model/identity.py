"""Who calls, and what the caller may do.

Every service takes an `Identity`. It uses the tenant of the identity for queries, never a tenant
from the request, and asks for the permission that an operation needs (`needs`).
"""

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from msgspec import Struct

from noetl.model.errors import NotPermitted
from noetl.model.ids import DEFAULT_TENANT, Tenant


class Permission(StrEnum):
    """What an operation needs."""

    READ = "read"  # look at executions, results, logs, playbooks, queues
    OPERATE = "operate"  # start, stop, repeat and answer executions; pause schedules; pin results
    WRITE = "write"  # register playbooks; add and delete schedules, hooks and state
    ADMINISTER = "administer"  # credentials, tokens and users
    WORK = "work"  # take commands, report them, read credentials in clear text


_READER = frozenset({Permission.READ})
_OPERATOR = _READER | {Permission.OPERATE}
_AUTHOR = _OPERATOR | {Permission.WRITE}
# An administrator is no worker: no person's token reads credentials in clear text.
ROLES: Mapping[str, frozenset[Permission]] = {
    "viewer": _READER,
    "operator": _OPERATOR,
    "author": _AUTHOR,
    "admin": _AUTHOR | {Permission.ADMINISTER},
    "worker": frozenset({Permission.WORK}),
}


class Identity(Struct, frozen=True):
    """A caller. `pools` are those that a worker may take commands from; None: all.

    `token_id` names the token of the request. Without a server there is none.
    """

    tenant: Tenant
    roles: frozenset[str]
    name: str
    pools: frozenset[str] | None = None
    token_id: str | None = None

    def may(self, *permissions: Permission) -> bool:
        """Whether a role of the caller has one of these permissions."""
        return any(
            permission in ROLES.get(role, ()) for role in self.roles for permission in permissions
        )


# A process that opens the database of a home without a server has its password and its files.
LOCAL_IDENTITY = Identity(DEFAULT_TENANT, frozenset({"admin"}), "local")
WORKER_IDENTITY = Identity(DEFAULT_TENANT, frozenset({"worker"}), "worker")


def require(identity: Identity, *permissions: Permission) -> None:
    """Raise `NotPermitted` if the caller has none of these permissions."""
    if identity.may(*permissions):
        return
    able = [role for role, granted in ROLES.items() if granted.intersection(permissions)]
    raise NotPermitted(
        f"{identity.name} ({_join_names(identity.roles)}) may not do this",
        hint=f"it needs a token of the role {' or '.join(able)}: noetl token create",
    )


def require_installation(identity: Identity) -> None:
    """Raise `NotPermitted` unless the caller belongs to the tenant of the installation."""
    if identity.tenant != DEFAULT_TENANT:
        raise NotPermitted(
            f"{identity.name} belongs to a tenant, and this is about the whole installation",
            hint="ask an administrator of the installation",
        )


def _join_names(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "no role"


Service = TypeVar("Service")
Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")


def needs(
    permission: Permission,
) -> Callable[
    [Callable[Concatenate[Service, Identity, Arguments], Answer]],
    Callable[Concatenate[Service, Identity, Arguments], Answer],
]:
    """Declare the permission that a method of a service needs. Its first argument is the caller."""

    def declare(
        method: Callable[Concatenate[Service, Identity, Arguments], Answer],
    ) -> Callable[Concatenate[Service, Identity, Arguments], Answer]:
        @wraps(method)
        def check_and_call(
            service: Service,
            identity: Identity,
            /,
            *arguments: Arguments.args,
            **named: Arguments.kwargs,
        ) -> Answer:
            require(identity, permission)
            return method(service, identity, *arguments, **named)

        checked: Any = check_and_call
        checked.permission = permission
        return check_and_call

    return declare
