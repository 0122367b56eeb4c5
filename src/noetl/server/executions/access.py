"""Access to executions by tenant. For a caller, executions of other tenants do not exist."""

from noetl.caches import LruCache
from noetl.log.events.port import EventLog
from noetl.model.errors import NotFound
from noetl.model.identity import Identity
from noetl.model.ids import ExecutionId, Tenant
from noetl.model.reference import Reference, parse_uri

MAX_CACHED_TENANTS = 10_000
MAX_EXECUTION_ID = (1 << 63) - 1


class Access:
    """Checks the tenant of executions, and caches it: the tenant of an execution never changes."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._tenants: LruCache[ExecutionId, Tenant] = LruCache(MAX_CACHED_TENANTS)

    async def check_tenant(self, identity: Identity, execution_id: ExecutionId) -> None:
        if await self._find_tenant(execution_id) != identity.tenant:
            raise NotFound(
                f"no execution {execution_id}", hint="noetl exec list shows those there are"
            )

    async def check_reference(self, identity: Identity, reference: Reference) -> None:
        """A result may be one of another execution: a child, or the one it was inherited from."""
        await self.check_tenant(identity, parse_uri(reference.uri).execution_id)

    async def _find_tenant(self, execution_id: ExecutionId) -> Tenant | None:
        cached = self._tenants.get(execution_id)
        if cached is not None:
            return cached
        if not (execution_id.isascii() and execution_id.isdigit()):
            return None
        if not 0 < int(execution_id) <= MAX_EXECUTION_ID:
            return None
        tenant = await self._log.find_tenant(execution_id)
        if tenant is not None:
            self._tenants.put(execution_id, tenant)
        return tenant
