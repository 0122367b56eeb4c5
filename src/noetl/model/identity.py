"""The identity of a caller. Every service takes one and uses its tenant for queries, never a
tenant from the request."""

from msgspec import Struct

from noetl.model.ids import DEFAULT_TENANT, Tenant


class Identity(Struct, frozen=True):
    tenant: Tenant
    roles: frozenset[str]
    name: str


# There is no login yet: everyone who can reach the loopback interface is an admin.
LOCAL_IDENTITY = Identity(DEFAULT_TENANT, frozenset({"admin"}), "local")
WORKER_IDENTITY = Identity(DEFAULT_TENANT, frozenset({"worker"}), "worker")
