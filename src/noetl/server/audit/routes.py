"""Routes to read the audit trail: as a list, and as the chain that `noetl audit verify` checks."""

from typing import Annotated

from noetl.audit.port import MAX_CHAIN_ENTRIES, AuditFilter, AuditOutcome
from noetl.server.audit.views import AuditChainView, AuditView
from noetl.server.http.depends import Has, Who
from noetl.server.http.parameters import Limit, QueryParameter
from noetl.server.http.routing import Routes

routes = Routes("audit")

MAX_SEQ = 1 << 62


@routes.get("/api/audit")
async def list_audit(
    has: Has,
    who: Who,
    operation: Annotated[
        str | None,
        QueryParameter("of this operation, or of its kind", max_length=100, examples=["token"]),
    ] = None,
    by: Annotated[str | None, QueryParameter("of this caller", max_length=100)] = None,
    outcome: Annotated[AuditOutcome | None, QueryParameter("with this outcome")] = None,
    before: Annotated[
        int | None, QueryParameter("`next` of the page before", ge=1, le=MAX_SEQ)
    ] = None,
    limit: Limit = 50,
) -> AuditView:
    """Who changed what, newest first. Entries are appended, and never changed or deleted."""
    return await has.audit.list_page(who, AuditFilter(operation, by, outcome), before, limit)


@routes.get("/api/audit/chain")
async def read_audit_chain(
    has: Has,
    who: Who,
    after: Annotated[int, QueryParameter("`seq` of the last entry known", ge=0, le=MAX_SEQ)] = 0,
    limit: Annotated[int, QueryParameter(ge=1, le=MAX_CHAIN_ENTRIES)] = MAX_CHAIN_ENTRIES,
) -> AuditChainView:
    """Entries in the order of the chain, and its head. The hash of an entry is the SHA-256 sum of tenant,
    seq, time, the hash before it and its text, joined by line feeds; 64 zeros stand before the first."""
    return await has.audit.read_chain(who, after, limit)
