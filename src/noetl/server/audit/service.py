"""The audit trail as administrators read it."""

from noetl.audit.port import AuditFilter, AuditLog
from noetl.model.identity import Identity, Permission, needs
from noetl.server.audit.views import AuditChainView, AuditView, make_chain_view, make_entry_view


class AuditService:
    def __init__(self, log: AuditLog) -> None:
        self._log = log

    @needs(Permission.ADMINISTER)
    async def list_page(
        self,
        identity: Identity,
        wanted: AuditFilter,
        before: int | None = None,
        limit: int = 50,
    ) -> AuditView:
        """A page of entries, newest first."""
        entries = await self._log.list_entries(identity.tenant, wanted, before, limit)
        following = entries[-1].seq if len(entries) == limit else None
        return AuditView([make_entry_view(entry) for entry in entries], following)

    @needs(Permission.ADMINISTER)
    async def read_chain(self, identity: Identity, after: int, limit: int) -> AuditChainView:
        """Entries in the order of the chain, as they are summed, with the head."""
        page = await self._log.read_chain(identity.tenant, after, limit)
        return make_chain_view(identity.tenant, page)
