"""The lineage in Postgres."""

from pathlib import Path

from noetl.log.lineage.port import MAX_LINEAGE_REFS, LineagePosition, TracedReference
from noetl.model.ids import RefId, Tenant
from noetl.model.reference import Reference
from noetl.postgres.pool import Database, Record
from noetl.postgres.queries import load_queries

_SQL = load_queries(Path(__file__).with_name("lineage.sql"))


class LineagePostgres:
    def __init__(self, database: Database) -> None:
        self._background = database.background

    async def trace_references(
        self,
        tenant: Tenant,
        roots: list[RefId],
        depth: int,
        after: LineagePosition | None,
        limit: int,
    ) -> list[TracedReference]:
        after_depth, after_ref = -1, 0
        if after is not None:
            after_depth, after_ref = after.depth, int(after.ref_id)
        rows = await self._background.read(
            _SQL["trace_references"],
            tenant=tenant,
            roots=[int(ref_id) for ref_id in roots],
            depth=depth,
            most=MAX_LINEAGE_REFS,
            after_depth=after_depth,
            after_ref=after_ref,
            limit=limit,
        )
        return [_decode_traced(row) for row in rows]


def _decode_traced(row: Record) -> TracedReference:
    reference = Reference(
        ref_id=RefId(str(row["ref_id"])),
        type=row["tier"],
        uri=row["uri"],
        sha256=row["sha256"],
        bytes=row["bytes"],
        rows=row["rows"],
        format=row["format"],
    )
    parent = row["parent_ref_id"]
    return TracedReference(
        depth=row["depth"],
        reference=reference,
        parent=None if parent is None else RefId(str(parent)),
        inputs=tuple(RefId(str(ref_id)) for ref_id in row["inputs"]),
        at=row["at"],
        expired_at=row["expired_at"],
    )
