"""The memory twin of the lineage. Every method is one critical section."""

import msgspec

from noetl.log.events.port import PinnedExecution
from noetl.log.lineage.port import LineagePosition, TracedReference
from noetl.log.tables import MemoryDatabase
from noetl.model.ids import RefId, Tenant
from noetl.model.messages import StoredRef
from noetl.model.reference import parse_uri

_stored_ref = msgspec.json.Decoder(StoredRef)
_pinned = msgspec.json.Decoder(PinnedExecution)


class LineageMemory:
    def __init__(self, database: MemoryDatabase) -> None:
        self._db = database

    async def trace_references(
        self,
        tenant: Tenant,
        roots: list[RefId],
        depth: int,
        after: LineagePosition | None,
        limit: int,
    ) -> list[TracedReference]:
        visited: set[RefId] = set()
        front = dict.fromkeys(roots)
        found: list[TracedReference] = []
        for distance in range(depth + 1):
            nodes = [self._trace_reference(tenant, ref_id, distance) for ref_id in front]
            traced = [node for node in nodes if node is not None]
            visited |= front.keys()
            found += sorted(traced, key=_lineage_order)
            sources: list[RefId | None] = []
            for node in traced:
                sources += [node.parent, *node.inputs]
            front = dict.fromkeys(
                source for source in sources if source is not None and source not in visited
            )
        last_seen = (-1, 0) if after is None else (after.depth, int(after.ref_id))
        return [node for node in found if _lineage_order(node) > last_seen][:limit]

    def _trace_reference(self, tenant: Tenant, ref_id: RefId, depth: int) -> TracedReference | None:
        data = self._db.refs.get(ref_id)
        if data is None:
            return None
        ref = _stored_ref.decode(data)
        pinned = self._db.pinned.get(parse_uri(ref.reference.uri).execution_id)
        if pinned is None or _pinned.decode(pinned).tenant != tenant:
            return None
        inputs = tuple(sorted(dict.fromkeys(ref.inputs), key=int))
        reference = msgspec.structs.replace(ref.reference, rows_at=None)
        return TracedReference(
            depth=depth,
            reference=reference,
            parent=ref.parent,
            inputs=inputs,
            at=self._db.ref_times[ref_id],
            expired_at=self._db.expired.get(ref_id),
        )


def _lineage_order(traced: TracedReference) -> tuple[int, int]:
    return traced.depth, int(traced.reference.ref_id)
