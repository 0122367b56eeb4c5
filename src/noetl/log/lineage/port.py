"""The contract of lineage: from which references a reference was made."""

from typing import NamedTuple, Protocol

from msgspec import Struct

from noetl.model.ids import Micros, RefId, Tenant
from noetl.model.reference import Reference

# References that one walk over lineage visits. One that is met at several depths counts for each.
MAX_LINEAGE_REFS = 100_000


class LineagePosition(NamedTuple):
    """How far a walk has been read."""

    depth: int
    ref_id: RefId


class TracedReference(Struct, frozen=True, kw_only=True):
    """A reference and its sources. `depth` is the number of steps back from the nearest requested
    one.
    """

    depth: int
    reference: Reference
    parent: RefId | None
    inputs: tuple[RefId, ...]
    at: Micros
    expired_at: Micros | None = None


class Lineage(Protocol):
    async def trace_references(
        self,
        tenant: Tenant,
        roots: list[RefId],
        depth: int,
        after: LineagePosition | None,
        limit: int,
    ) -> list[TracedReference]:
        """The roots and their sources, up to `depth` steps back, across executions.

        Each reference comes once, nearest first, then by id; `after` is the position of the last
        one seen. Of a graph that is too large, the nearest part is returned.
        """
        ...
