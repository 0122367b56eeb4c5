"""Who asks. Every service takes one; the tenant of a query is the identity's, never the request's."""

from msgspec import Struct

from noetl.model.ids import DEFAULT_TENANT, Tenant


class Identity(Struct, frozen=True):
    tenant: Tenant
    roles: frozenset[str]
    name: str


# Until there is a login: whoever can reach the loopback interface.
LOCAL = Identity(DEFAULT_TENANT, frozenset({"admin"}), "local")
WORKER = Identity(DEFAULT_TENANT, frozenset({"worker"}), "worker")
